"""Positions as an adapter of PEFT."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

peft = pytest.importorskip("peft")

import adapos.hf  # noqa: E402
from adapos.hf.peft import AdaposPeftConfig  # noqa: E402
from hf import small  # noqa: E402

KINDS: list[dict[str, Any]] = [
    {"encoding": "tape"},
    {"encoding": "rope + dape(zero=True)", "train_norms": True},
    {"encoding": "tape", "r": 4, "train_embeddings": True},
]


def trained(base: Any, **given: Any) -> Any:
    tokens, _ = small.texts()
    model = peft.get_peft_model(copy.deepcopy(base), AdaposPeftConfig(**given))
    optimizer = torch.optim.AdamW([x for x in model.parameters() if x.requires_grad], lr=1e-2)
    model.train()
    for _ in range(4):
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.mark.parametrize("given", KINDS, ids=str)
def test_only_what_is_asked_for_is_trained_and_saved_and_loads_onto_the_model(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    base, (tokens, mask) = small.model("llama"), small.texts()
    model = trained(base, **given)
    there = dict(base.named_parameters())
    kinds = set()
    for name, x in model.named_parameters():
        if x.requires_grad:
            kinds |= {kind for kind in ("lora_encoding", "norm", "embed", "lm_head", "lora_A") if kind in name}
        else:
            plain = name.removeprefix("base_model.model.").replace(".base_layer", "").replace(".original_module", "")
            assert torch.equal(x, there[plain]), name
    expected = {"lora_encoding"} | ({"norm"} if given.get("train_norms") else set())
    expected |= ({"lora_A"} if given.get("r") else set()) | (
        {"embed", "lm_head"} if given.get("train_embeddings") else set()
    )
    assert kinds == expected
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    with torch.no_grad():
        found = model(tokens).logits
        assert not torch.allclose(found, base(tokens).logits, atol=1e-4)
        for name in ("default", "another"):
            again = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path, adapter_name=name).eval()
            assert torch.equal(again(tokens).logits, found)
        by_transformers = copy.deepcopy(base)
        by_transformers.load_adapter(str(tmp_path))
        assert torch.equal(by_transformers(tokens).logits, found)
        with model.disable_adapter():
            assert torch.allclose(model(tokens).logits, base(tokens).logits, atol=1e-6)
        assert torch.equal(model(tokens).logits, found)
    how = {"attention_mask": mask, "max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(tokens, **how), model.generate(tokens, **how, use_cache=False))


def test_an_adapter_that_is_unloaded_leaves_the_model_as_it_was() -> None:
    base, (tokens, _) = small.model("qwen3"), small.texts()
    left = trained(base, encoding="tape").unload()
    assert type(left.model) is transformers.Qwen3Model
    with torch.no_grad():
        assert torch.equal(left(tokens).logits, base(tokens).logits)


def test_an_encoding_is_not_merged_and_nothing_is_merged_by_half() -> None:
    model, (tokens, _) = trained(small.model("llama"), encoding="tape", r=4), small.texts()
    with torch.no_grad():
        before = model(tokens).logits
        for merge in (model.merge_and_unload, model.merge_adapter):
            with pytest.raises(ValueError, match="an encoding cannot be merged into the weights of another"):
                merge()
            with model.disable_adapter(), pytest.raises(ValueError, match="an encoding cannot be merged"):
                merge()
        assert torch.equal(model(tokens).logits, before)


def test_encodings_are_not_weighed_against_one_another() -> None:
    model = trained(small.model("llama"), encoding="tape", r=4)
    with pytest.raises(ValueError, match="encodings have no weighted sum; activate one adapter"):
        model.add_weighted_adapter(["default"], [0.5], "half")


def test_a_head_that_is_the_embedding_stays_so(tmp_path: Path) -> None:
    base, (tokens, _) = small.model("llama", tie_word_embeddings=True), small.texts()
    model = trained(base, encoding="tape", train_embeddings=True)
    held = model.get_base_model()
    assert held.lm_head.modules_to_save.default.weight is held.model.embed_tokens.modules_to_save.default.weight
    assert not torch.equal(held.lm_head.modules_to_save.default.weight, base.lm_head.weight)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, model(tokens).logits)


def test_an_adapter_of_another_model_is_refused_in_a_sentence(tmp_path: Path) -> None:
    trained(small.model("llama"), encoding="tape").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"the adapter is of another model: .*w_1"):
        peft.PeftModel.from_pretrained(small.model("llama", num_attention_heads=8), tmp_path)
    with pytest.raises(ValueError, match="the adapter is of another model, a llama, and this is a qwen3; load it onto"):
        peft.PeftModel.from_pretrained(small.model("qwen3"), tmp_path)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"encoding": "tape +"}, "the spec 'tape \\+' does not parse"),
        ({"target_modules": ["q_proj"]}, "are for low-rank updates; give their rank too, such as r=8"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        AdaposPeftConfig(**given)


def test_a_family_that_cannot_be_converted_is_refused() -> None:
    model = transformers.Phi3ForCausalLM(transformers.Phi3Config(**small.SIZES, pad_token_id=0))
    with pytest.raises(ValueError, match="Phi3ForCausalLM cannot be converted: its attention"):
        peft.get_peft_model(model, AdaposPeftConfig())
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2))
    with pytest.raises(ValueError, match="GPT2LMHeadModel cannot be converted: it has no list of layers"):
        peft.get_peft_model(gpt2, AdaposPeftConfig())


def test_names_that_would_lose_parameters_and_models_with_adapters_are_refused() -> None:
    with pytest.raises(ValueError, match="an adapter cannot be called 'w_p', as a parameter is"):
        peft.get_peft_model(small.model("llama"), AdaposPeftConfig(encoding="tape"), adapter_name="w_p")
    lora = peft.get_peft_model(small.model("llama"), peft.LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ValueError, match="holds adapters; convert it before they are added"):
        adapos.hf.convert(lora.get_base_model(), "tape")


def test_low_rank_updates_of_a_converted_model_are_merged() -> None:
    model = adapos.hf.convert(small.model("llama"), "tape")
    lora = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))
    assert type(lora.merge_and_unload()) is type(model)
    named = peft.get_peft_model(model, peft.LoraConfig(r=2))
    assert any("q_proj.lora_A" in name for name, _ in named.named_parameters())


@pytest.mark.parametrize(
    "given",
    [
        {"layers_to_transform": [0, 1]},
        {"target_modules": "all-linear"},
        {"target_modules": r".*\.q_proj"},
        {"exclude_modules": ["rotary_emb", "o_proj"]},
    ],
    ids=str,
)
def test_settings_of_low_rank_updates_leave_the_encoding_in_its_place(given: dict[str, Any]) -> None:
    model = peft.get_peft_model(small.model("llama"), AdaposPeftConfig(encoding="kerple", r=2, **given))
    assert any("lora_encoding" in name for name, _ in model.named_parameters())
    layers = {name.split(".")[4] for name, _ in model.named_parameters() if "lora_A" in name}
    assert layers == ({"0", "1"} if "layers_to_transform" in given else {"0", "1", "2"})
    model.unload()


def test_what_peft_offers_and_an_encoding_cannot_is_refused() -> None:
    tokens, _ = small.texts()
    with pytest.raises(ValueError, match="layer_replication makes a model of more layers"):
        AdaposPeftConfig(r=2, layer_replication=[[0, 2], [1, 3]])
    model = peft.get_peft_model(small.model("llama"), AdaposPeftConfig(encoding="kerple"), adapter_name="one").eval()
    model.add_adapter("two", AdaposPeftConfig(encoding="alibi"))
    with pytest.raises(ValueError, match="a batch has one encoding, and adapter_names gives its rows several"):
        model(input_ids=tokens, adapter_names=["one", "two", "__base__"])
    with torch.no_grad():
        past = model(tokens[:, :9], use_cache=True).past_key_values
        model.set_adapter("two")
        with pytest.raises(ValueError, match="the cache was filled with 'kerple', and the model now has 'alibi'"):
            model(tokens[:, 9:], past_key_values=past)


@pytest.mark.parametrize(
    ("name", "encoding", "sentence"),
    [
        ("w_p", "tape", "cannot be called 'w_p'"),
        ("a.b", "tape", "must be without dots"),
        ("good", "learned", "adds to the embeddings"),
        ("good", "tape + alibi + xl", "xl"),
    ],
)
def test_an_adapter_that_is_refused_changes_nothing(name: str, encoding: str, sentence: str) -> None:
    model = small.model("llama")
    with pytest.raises(ValueError, match=sentence):
        peft.get_peft_model(model, AdaposPeftConfig(encoding=encoding), adapter_name=name)
    assert type(model.model) is transformers.LlamaModel
    assert type(model.model.layers[0].self_attn).__name__ == "LlamaAttention"
    held = peft.get_peft_model(small.model("llama"), AdaposPeftConfig(encoding="tape"))
    with pytest.raises(ValueError, match=sentence):
        held.add_adapter(name, AdaposPeftConfig(encoding=encoding))
    held.add_adapter("another", AdaposPeftConfig(encoding="tape"))


def test_without_its_adapter_a_model_attends_as_it_did() -> None:
    base = small.model("llama")
    base.set_attn_implementation("eager")
    model = peft.get_peft_model(copy.deepcopy(base), AdaposPeftConfig(encoding="kerple")).eval()
    tokens, _ = small.texts()
    with torch.no_grad(), model.disable_adapter():
        found = model(tokens, output_attentions=True)
        assert torch.equal(found.attentions[0], base(tokens, output_attentions=True).attentions[0])
        how = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0, "cache_implementation": "static"}
        assert model.generate(tokens, **how).shape == (3, 20)
    assert model.config._attn_implementation == "adapos"


def test_an_adapter_is_loaded_without_memory_of_its_own(tmp_path: Path) -> None:
    base, (tokens, _) = small.model("llama"), small.texts()
    model = trained(base, encoding="rope + dape(zero=True)", r=4)
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(copy.deepcopy(base), tmp_path, low_cpu_mem_usage=True).eval()
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, model(tokens).logits)
