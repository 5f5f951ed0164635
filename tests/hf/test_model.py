"""A decoder of ours in transformers: saved, loaded, generating, trained."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    DynamicCache,
    StaticCache,
    Trainer,
    TrainingArguments,
)

import adapos.hf as hf
from adapos.registry import REGISTRY
from hf.small import gradients, shake, texts

SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
SPECS: list[Any] = [
    *(name for name in REGISTRY if name != "randomized"),
    "kerple + dape(kernel=3)",
    "randomized + rope",
]
SPECS += ["rope + fox", "tape(form='additive')", ["rope", "nope", "tape"]]


def made(encoding: Any = "kerple + dape", **given: Any) -> Any:
    torch.manual_seed(0)
    model = hf.AdaposForCausalLM(hf.AdaposConfig(encoding=encoding, **SIZES | given)).eval()
    shake(model)
    return model


@pytest.mark.parametrize("encoding", SPECS, ids=str)
def test_what_is_saved_is_loaded_and_generates_with_a_cache_as_without(tmp_path: Path, encoding: Any) -> None:
    model = made(encoding)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens, mask = texts()
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, again(tokens).logits)
    for more in ({"do_sample": False}, {"num_beams": 3, "do_sample": False}):
        how = {"attention_mask": mask, "max_new_tokens": 9, "pad_token_id": 0} | more
        cached, plain = again.generate(tokens, **how), again.generate(tokens, **how, use_cache=False)
        assert torch.equal(cached, plain)
        for row in range(len(tokens)):  # padding on the left changes nothing
            alone = again.generate(tokens[row : row + 1, 2 * row :], **how | {"attention_mask": None})
            assert torch.equal(alone[0, -9:], cached[row, -9:])


def test_sampling_draws_the_same_with_a_cache_as_without() -> None:
    model, (tokens, mask) = made("tape"), texts()
    drawn = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        how = {"attention_mask": mask, "max_new_tokens": 9, "do_sample": True, "top_k": 10, "pad_token_id": 0}
        drawn.append(model.generate(tokens, **how, use_cache=use_cache))
    assert torch.equal(*drawn)


@pytest.mark.parametrize("encoding", ["rope", "kerple + dape", "tape", "fox + rope"])
def test_a_cache_is_cropped_repeated_and_reordered_with_all_it_holds(encoding: str) -> None:
    model, (tokens, _) = made(encoding), texts()
    with torch.no_grad():
        past = model(tokens, use_cache=True).past_key_values
        assert isinstance(past, hf.PositionsCache)
        past.crop(-5)
        assert past.get_seq_length() == 12
        past.batch_repeat_interleave(2)
        past.reorder_cache(torch.tensor([5, 0, 3]))
        found = model(tokens[[2, 0, 1], 12:], past_key_values=past).logits
        whole = model(tokens[[2, 0, 1]]).logits[:, 12:]
    assert torch.allclose(found, whole, atol=1e-5)


def test_caches_of_other_kinds_are_taken_where_empty_and_refused_else() -> None:
    model, (tokens, _) = made(), texts()
    assert isinstance(model(tokens, past_key_values=DynamicCache()).past_key_values, hf.PositionsCache)
    filled = DynamicCache()
    filled.update(torch.zeros(3, 2, 4, 8), torch.zeros(3, 2, 4, 8), 0)
    with pytest.raises(ValueError, match="past_key_values is a DynamicCache that another model has filled"):
        model(tokens, past_key_values=filled)
    with pytest.raises(ValueError, match="decodes with a cache that grows; leave cache_implementation out"):
        model(tokens, past_key_values=StaticCache(config=model.config, max_cache_len=32))


def test_cache_bytes_per_token_of_tape_are_at_most_half_more_than_of_rope() -> None:
    tokens, _ = texts()
    bytes_of = {name: made(name)(tokens, use_cache=True).past_key_values.bytes for name in ("rope", "tape")}
    assert bytes_of["tape"] <= 1.5 * bytes_of["rope"]


def test_ids_that_begin_anew_are_texts_of_their_own() -> None:
    model, (tokens, _) = made("kerple + dape"), texts()
    pos = torch.cat([torch.arange(9), torch.arange(8)])[None]
    with torch.no_grad():
        packed = model(tokens, position_ids=pos, use_cache=False).logits
        apart = torch.cat([model(tokens[:, :9]).logits, model(tokens[:, 9:]).logits], dim=1)
    assert torch.allclose(packed, apart, atol=1e-5)


def test_embeddings_may_be_given_in_place_of_tokens() -> None:
    model, (tokens, _) = made("tape"), texts()
    with torch.no_grad():
        given = model(inputs_embeds=model.get_input_embeddings()(tokens)).logits
        assert torch.equal(given, model(tokens).logits)
    with pytest.raises(ValueError, match="give input_ids or inputs_embeds, one of the two"):
        model()


def test_attentions_come_from_the_reference_which_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model, (tokens, mask) = made("kerple + dape"), texts()
    logging.getLogger("transformers").propagate = True
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        found = model(tokens, attention_mask=mask, output_attentions=True, output_hidden_states=True)
        plain = model(tokens, attention_mask=mask)
    assert "attention runs through the backend 'reference'" in caplog.text
    assert [weights.shape for weights in found.attentions] == [(3, 4, 17, 17)] * 3
    assert torch.allclose(found.attentions[0].sum(-1)[mask[:, None].expand(-1, 4, -1) == 1], torch.tensor(1.0))
    assert len(found.hidden_states) == 4
    assert torch.allclose(found.logits, plain.logits, atol=1e-5)


def test_activations_computed_again_give_the_same_gradients() -> None:
    model, (tokens, _) = made("tape"), texts()
    found = gradients(model, tokens)
    assert model.model.decoder.recomputes
    for name, grad in found[0].items():
        assert torch.allclose(grad, found[1][name], atol=1e-6), name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch.compile
def test_the_trainer_of_transformers_trains_and_compiles(tmp_path: Path) -> None:
    model, (tokens, mask) = made("kerple + dape"), texts(8)
    data = [{"input_ids": row, "attention_mask": seen, "labels": row} for row, seen in zip(tokens, mask, strict=True)]
    arguments = TrainingArguments(
        tmp_path,
        max_steps=12,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        logging_steps=1,
    )
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert losses[-1] < losses[0] - 0.5
    model.eval()
    with torch.no_grad():
        assert torch.allclose(torch.compile(model)(tokens).logits, model(tokens).logits, atol=1e-5)


def test_a_classifier_is_made_of_a_language_model(tmp_path: Path) -> None:
    model = made("rope", pad_token_id=0)
    model.save_pretrained(tmp_path)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=4)
    tokens, mask = texts()
    assert classifier(tokens, attention_mask=mask).logits.shape == (3, 4)
    body = AutoModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(body(tokens).last_hidden_state, model.model(tokens).last_hidden_state)


def test_half_precision_stays_close_to_single(tmp_path: Path) -> None:
    model, (tokens, _) = made("tape"), texts()
    model.save_pretrained(tmp_path)
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {x.dtype for name, x in half.named_parameters() if "encoding" in name} == {torch.float32}
    with torch.no_grad():
        assert torch.allclose(half(tokens).logits.float(), model(tokens).logits, atol=0.1)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"encoding": "kerple +"}, "the spec 'kerple \\+' does not parse"),
        ({"encoding": "kerpel"}, "no encoding is called 'kerpel'; did you mean 'kerple'?"),
        ({"encoding": ["rope", "nope"]}, "there are 3 layers and encodings for 2; name one for each"),
        ({"encoding": ["rope", "learned", "nope"]}, "learned acts before the first layer, on all of them"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "width \\(32\\) must be a multiple of heads \\(5\\)"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        hf.AdaposConfig(**SIZES | given)


def test_an_encoding_that_cannot_be_cached_says_so_and_runs_without() -> None:
    model, (tokens, _) = made("rope(schedule='dynamic', factor=2.0, trained=8)"), texts()
    assert model(tokens).past_key_values is None
    with pytest.raises(ValueError, match="cannot decode with a cache"):
        model.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert model.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0, use_cache=False).shape == (3, 20)


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (
            torch.ones(3, 1, 17, 17),
            r"attention_mask must have shape \(batch, tokens\), with 0 for padding, not \(3, 1, 17",
        ),
        (torch.ones(3, 16), r"attention_mask must have shape \(3, 17\), a number for each token, not \(3, 16\)"),
    ],
)
def test_a_mask_of_another_shape_is_refused(mask: torch.Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        made()(texts()[0], attention_mask=mask)


def test_weights_too_many_too_few_and_of_another_shape_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    made().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    held = load_file(path)
    name = "model.decoder.encoding.parts.1.w_in"
    for change, sentence in (
        ({"odd": torch.zeros(2)}, "it has besides odd"),
        ({name: None}, f"it lacks {name}"),
        ({name: torch.zeros(2)}, name),
    ):
        changed = {key: x for key, x in (held | change).items() if x is not None}
        save_file(changed, path, metadata={"format": "pt"})
        with pytest.raises((ValueError, RuntimeError), match=sentence):
            AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"it has in another shape {name}"):
        AutoModelForCausalLM.from_pretrained(tmp_path, ignore_mismatched_sizes=True)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    made().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="adapos loads weights from safetensors only"):
        hf.AdaposForCausalLM.from_pretrained(tmp_path, use_safetensors=False)
    (tmp_path / "model.safetensors").unlink()
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(OSError, match=r"safetensors"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_the_auto_classes_know_the_configuration(tmp_path: Path) -> None:
    hf.AdaposConfig(encoding="tape", **SIZES).save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), hf.AdaposConfig)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"encodin": "alibi"}, "AdaposConfig has no 'encodin'; did you mean 'encoding'"),
        ({"encoding": None}, "encoding"),
        ({"window": 0}, "window must be a whole number of at least 1, not 0"),
    ],
)
def test_a_setting_that_would_be_passed_over_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        hf.AdaposConfig(**SIZES | given)


def test_what_is_cached_is_not_computed_again() -> None:
    model, (tokens, _) = made(), texts()
    model.gradient_checkpointing_enable()
    model(tokens, labels=tokens).loss.backward()
    model.train()(tokens, labels=tokens, use_cache=True).loss.backward()


def test_threads_are_given_their_own_attentions() -> None:
    model, (tokens, _) = made(), texts()
    alone = [model(tokens[row : row + 1], output_attentions=True).attentions for row in range(3)]

    def same(row: int) -> bool:
        found = [model(tokens[row : row + 1], output_attentions=True).attentions for _ in range(20)]
        return all(all(map(torch.equal, each, alone[row])) and len(each) == len(alone[row]) for each in found)

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(same, range(3)))
