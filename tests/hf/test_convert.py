"""Encodings put into pretrained models: the same at first, and all that models do goes on working."""

from __future__ import annotations

import copy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import adapos.hf as hf
from hf import small

EXACT = ("tape", "rope + dape(zero=True)", "rope")
OTHERS = ("alibi", "kerple + dape", "tape(form='additive')", "rope + fox", "nope")


@pytest.mark.parametrize("family", small.FAMILIES)
@pytest.mark.parametrize("encoding", EXACT)
def test_a_converted_model_starts_as_what_it_was_and_learns(family: str, encoding: str) -> None:
    base, (tokens, mask) = small.model(family), small.texts()
    model = hf.convert(copy.deepcopy(base), encoding)
    with torch.no_grad():
        for seen in (None, mask):
            apart = model(tokens, attention_mask=seen).logits - base(tokens, attention_mask=seen).logits
            assert float(apart.mul(mask[..., None]).abs().max()) < 1e-6
    model.train()
    model(tokens, labels=tokens).loss.backward()
    learned = [x for name, x in model.named_parameters() if "encoding" in name]
    assert bool(learned) == (encoding != "rope")
    # what starts at zero moves first; the rest follows
    assert all(x.grad is not None for x in learned)
    assert not learned or any(bool(x.grad.abs().max() > 0) for x in learned)


@pytest.mark.parametrize("family", small.FAMILIES)
@pytest.mark.parametrize("encoding", [*EXACT, *OTHERS])
def test_a_converted_model_is_saved_loaded_and_generates_with_a_cache_as_without(
    tmp_path: Path, family: str, encoding: str
) -> None:
    model, (tokens, mask) = hf.convert(small.model(family), encoding), small.texts()
    small.shake(model)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(again) is type(model)
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, again(tokens).logits)
    for more in ({}, {"num_beams": 3}):
        how = {"attention_mask": mask, "max_new_tokens": 9, "do_sample": False, "pad_token_id": 0} | more
        assert torch.equal(again.generate(tokens, **how), again.generate(tokens, **how, use_cache=False))


@pytest.mark.parametrize("encoding", ["tape", "rope + dape"])
def test_activations_computed_again_give_the_same_gradients(encoding: str) -> None:
    model, (tokens, _) = hf.convert(small.model("llama"), encoding), small.texts()
    small.shake(model)
    found = small.gradients(model, tokens)
    for name, grad in found[0].items():
        assert torch.allclose(grad, found[1][name], atol=1e-6), name


def test_checkpointing_that_would_lose_gradients_is_refused() -> None:
    model, (tokens, _) = hf.convert(small.model("llama"), "tape"), small.texts()
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="travels from layer to layer, and reentrant checkpointing loses its gradient"):
        model(tokens)


def test_packed_texts_do_not_see_one_another() -> None:
    model, (tokens, _) = hf.convert(small.model("qwen2"), "tape"), small.texts()
    small.shake(model)
    pos = torch.cat([torch.arange(9), torch.arange(8)])[None]
    with torch.no_grad():
        packed = model(tokens, position_ids=pos, use_cache=False).logits
        apart = torch.cat([model(tokens[:, :9]).logits, model(tokens[:, 9:]).logits], dim=1)
    assert torch.allclose(packed, apart, atol=1e-5)


def test_a_setting_of_the_models_angles_changes_what_it_says() -> None:
    tokens, _ = small.texts()
    said = []
    for theta in (5000.0, 50.0):
        model = hf.convert(small.model("llama", rope_parameters={"rope_type": "default", "rope_theta": theta}), "tape")
        with torch.no_grad():
            said.append(model(tokens).logits)
    assert not torch.allclose(*said, atol=1e-4)


def test_angles_of_the_spec_come_before_those_of_the_model() -> None:
    tokens, _ = small.texts()
    with torch.no_grad():
        theirs = small.model("llama", rope_parameters={"rope_type": "default", "rope_theta": 77.0})(tokens).logits
        ours = hf.convert(small.model("llama"), "rope(base=77.0)")(tokens).logits
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_angles_that_change_with_the_length_cannot_be_cached() -> None:
    changing = {"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 2.0}
    model = hf.convert(small.model("llama", rope_parameters=changing, max_position_embeddings=8), "tape")
    tokens, _ = small.texts()
    assert model(tokens).past_key_values is None
    with pytest.raises(ValueError, match=r"'tape' cannot decode with a cache: the model's angles \(dynamic\) change"):
        model.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0)


def test_attentions_and_hidden_states_are_given() -> None:
    base, (tokens, _) = small.model("llama", attn_implementation="eager"), small.texts()
    model = hf.convert(copy.deepcopy(base), "tape")
    with torch.no_grad():
        ours, theirs = (each(tokens, output_attentions=True, output_hidden_states=True) for each in (model, base))
    for a, b in zip(ours.attentions, theirs.attentions, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    for a, b in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_half_precision_keeps_positions_in_single(tmp_path: Path) -> None:
    model = hf.convert(small.model("llama"), "tape")
    model.save_pretrained(tmp_path)
    half = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {x.dtype for name, x in half.named_parameters() if "encoding" in name} == {torch.float32}
    tokens, _ = small.texts()
    with torch.no_grad():
        assert torch.allclose(half(tokens).logits.float(), model(tokens).logits, atol=0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch.compile
def test_a_converted_model_compiles() -> None:
    model, (tokens, _) = hf.convert(small.model("llama"), "tape"), small.texts()
    small.shake(model)
    with torch.no_grad():
        assert torch.allclose(torch.compile(model)(tokens).logits, model(tokens).logits, atol=1e-5)


def gpt2() -> Any:
    config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def phi3() -> Any:
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**small.SIZES, pad_token_id=0))


@pytest.mark.parametrize(
    ("make", "encoding", "sentence"),
    [
        (lambda: hf.convert(small.model("llama"), "tape"), "rope", "has the encoding 'tape' already"),
        (gpt2, "tape", "GPT2LMHeadModel cannot be converted: it has no list of layers under `model.layers`; adapos"),
        (phi3, "tape", r"Phi3ForCausalLM cannot be converted: its attention \(Phi3Attention\) has no q_proj"),
        (lambda: torch.nn.Linear(2, 2), "tape", "convert takes a model of transformers, not a Linear"),
        (lambda: small.model("llama"), "learned", "'learned' adds to the embeddings"),
        (lambda: small.model("llama"), "taep", "no encoding is called 'taep'; did you mean 'tape'?"),
    ],
)
def test_what_cannot_be_converted_says_why(make: Any, encoding: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        hf.convert(make(), encoding)


def test_a_conversion_that_is_refused_leaves_the_model_as_it_was() -> None:
    model, (tokens, _) = small.model("llama"), small.texts()
    with torch.no_grad():
        before = model(tokens).logits
        with pytest.raises(ValueError, match="adds to the embeddings"):
            hf.convert(model, "sinusoidal")
        assert torch.equal(model(tokens).logits, before)
    assert type(model) is transformers.LlamaForCausalLM


def test_weights_too_few_and_too_many_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    hf.convert(small.model("llama"), "tape").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    held = load_file(path)
    for changed, sentence in (
        ({name: x for name, x in held.items() if name != "model.encoding.w_p"}, "it lacks model.encoding.w_p"),
        (held | {"odd": torch.zeros(2)}, "it has besides odd"),
    ):
        save_file(changed, path, metadata={"format": "pt"})
        with pytest.raises(ValueError, match=sentence):
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_converted_model_is_not_loaded_as_what_it_was(tmp_path: Path) -> None:
    hf.convert(small.model("llama"), "tape").save_pretrained(tmp_path)
    code = f"from transformers import AutoModelForCausalLM; AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "adapos_llama" in done.stderr


@pytest.mark.parametrize("encoding", EXACT)
def test_ids_that_jump_are_one_text_where_a_mask_or_a_cache_says_so(encoding: str) -> None:
    base, (tokens, _) = small.model("llama"), small.texts()
    model = hf.convert(copy.deepcopy(base), encoding)
    pos = torch.cat([torch.arange(4), torch.arange(100, 113)])[None].expand(3, -1)
    for given in ({"attention_mask": torch.ones_like(tokens)}, {}, {"use_cache": False}):
        with torch.no_grad():
            ours, theirs = (each(tokens, position_ids=pos, **given).logits for each in (model, base))
        assert torch.allclose(ours, theirs, atol=1e-5), given


def test_a_mask_over_what_is_cached_is_heard() -> None:
    base, (tokens, _) = small.model("qwen2"), small.texts()
    model = hf.convert(copy.deepcopy(base), "tape")
    mask = torch.ones_like(tokens)
    mask[0, 6:9] = 0
    said = []
    for each in (base, model):
        with torch.no_grad():
            past = each(tokens[:, :12], use_cache=True).past_key_values
            said.append(each(tokens[:, 12:], attention_mask=mask, past_key_values=past).logits)
    assert torch.allclose(*said, atol=1e-5)


def test_a_window_that_a_family_does_not_know_is_not_given_to_it() -> None:
    base, (tokens, _) = small.model("llama", sliding_window=4), small.texts()
    with torch.no_grad():
        before = base(tokens).logits
        assert torch.allclose(hf.convert(base, "tape")(tokens).logits, before, atol=1e-6)


def test_an_encoding_trains_where_the_model_does() -> None:
    model = hf.convert(small.model("llama"), "randomized + rope")
    assert not model.model.encoding.training


def test_a_converted_model_is_pickled(tmp_path: Path) -> None:
    model, (tokens, _) = hf.convert(small.model("llama"), "tape"), small.texts()
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("length", [16, 34])
def test_a_mask_of_another_length_is_refused(length: int) -> None:
    model, (tokens, _) = hf.convert(small.model("llama"), "tape"), small.texts()
    with pytest.raises(ValueError, match=r"attention_mask must have shape \(3, 17\), a number for each token, not"):
        model(tokens, attention_mask=torch.ones(3, length))


def test_a_body_takes_its_arguments_by_place() -> None:
    model, (tokens, mask) = hf.convert(small.model("llama"), "tape").model, small.texts()
    past = hf.PositionsCache()
    by_place = model(tokens, mask, None, past, None, True)
    assert by_place.past_key_values is past
    assert past.get_seq_length() == 17
    assert torch.equal(by_place.last_hidden_state, model(tokens, attention_mask=mask).last_hidden_state)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_decoding_that_has_no_place_for_positions_is_refused(family: str) -> None:
    model, (tokens, _) = hf.convert(small.model(family), "tape"), small.texts()
    with pytest.raises(ValueError, match=r"fixed size.*leave cache_implementation out"):
        model.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0, cache_implementation="static")
    with pytest.raises(ValueError, match="continuous batching keeps keys and values in pages"):
        model.generate_batch(tokens.tolist())


def test_threads_do_not_mix_their_states() -> None:
    model = hf.convert(small.model("llama"), "tape")
    small.shake(model)
    texts = [torch.randint(1, 90, (1, 40), generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    with torch.no_grad():
        alone = [model(text).logits for text in texts]

    def apart(index: int) -> float:
        with torch.no_grad():
            return max(float((model(texts[index]).logits - alone[index]).abs().max()) for _ in range(20))

    with ThreadPoolExecutor(3) as pool:
        assert max(pool.map(apart, range(3))) < 1e-5


def test_nothing_of_a_pass_stays_behind_in_the_model() -> None:
    model, (tokens, _) = hf.convert(small.model("llama"), "tape"), small.texts()
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model(tokens, labels=tokens).loss.backward()
    model.zero_grad()
    copied = copy.deepcopy(model.eval())
    with torch.no_grad():
        assert torch.equal(copied(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("encoding", ["rope(schedule='linear', factor=4.0)", "tape(schedule='linear', factor=4.0)"])
def test_a_schedule_stretches_the_angles_that_the_model_has(encoding: str) -> None:
    plain = {"rope_type": "default", "rope_theta": 100000.0}
    tokens, _ = small.texts()
    theirs = small.model("llama", rope_parameters=plain | {"rope_type": "linear", "factor": 4.0})
    ours = hf.convert(small.model("llama", rope_parameters=plain), encoding)
    with torch.no_grad():
        assert torch.allclose(ours(tokens).logits, theirs(tokens).logits, atol=1e-6)
    with pytest.raises(
        ValueError, match=r"stretches angles that the model stretches already \(llama3\); give base too"
    ):
        hf.convert(small.model("llama"), encoding)


@pytest.mark.parametrize("family", small.FAMILIES)
def test_autocast_runs(family: str) -> None:
    base, (tokens, _) = small.model(family), small.texts()
    model = hf.convert(copy.deepcopy(base), "tape")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(model(tokens).logits, base(tokens).logits, atol=0.02)


def test_a_model_with_fewer_layers_than_it_had_still_decodes() -> None:
    model, (tokens, mask) = hf.convert(small.model("llama"), "kerple"), small.texts()
    model.model.layers, model.config.num_hidden_layers = model.model.layers[:2], 2
    how = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(tokens, **how), model.generate(tokens, **how, use_cache=False))


def test_a_pass_that_fails_leaves_the_cache_as_it_was() -> None:
    model, (tokens, _) = hf.convert(small.model("llama"), "tape"), small.texts()
    past = model(tokens[:, :9], use_cache=True).past_key_values
    last = model.model.layers[-1].mlp
    handle = last.register_forward_hook(lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(tokens[:, 9:], past_key_values=past)
    handle.remove()
    assert past.get_seq_length() == 9
    with torch.no_grad():
        found = model(tokens[:, 9:], past_key_values=past).logits
        assert torch.allclose(found, model(tokens).logits[:, 9:], atol=1e-5)


def test_a_mask_of_ones_takes_back_what_was_hidden() -> None:
    base, (tokens, mask) = small.model("qwen2"), small.texts()
    model = hf.convert(copy.deepcopy(base), "tape")
    said = []
    for each in (base, model):
        with torch.no_grad():
            past = each(tokens[:, :12], attention_mask=mask[:, :12], use_cache=True).past_key_values
            ids = torch.arange(12, 17)[None]
            given = {"attention_mask": torch.ones_like(mask), "position_ids": ids, "past_key_values": past}
            said.append(each(tokens[:, 12:], **given).logits)
    assert torch.allclose(*said, atol=1e-5)


def test_a_configuration_without_an_encoding_is_refused(tmp_path: Path) -> None:
    hf.convert(small.model("llama"), "alibi").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"encoding"', '"encodng"'))
    with pytest.raises(ValueError, match="the configuration names no encoding"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_double_precision_runs() -> None:
    model, (tokens, _) = hf.convert(small.model("llama"), "tape(attention=False)").double(), small.texts()
    assert model(tokens).logits.dtype == torch.float64


@pytest.mark.parametrize("shape", [(2, 17), (3, 16), (17,)])
def test_ids_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    model, (tokens, _) = hf.convert(small.model("llama"), "tape"), small.texts()
    with pytest.raises(ValueError, match=r"position_ids must have shape \(batch, tokens\), \(3, 17\), not"):
        model(tokens, position_ids=torch.zeros(shape, dtype=torch.long))
