"""adapos's attention in models of transformers: what is seen is what they asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import adapos.hf
from hf import small

PACKED = torch.cat([torch.arange(9), torch.arange(8)])[None].expand(3, -1)


def bert() -> Any:
    return transformers.BertConfig(**{name: x for name, x in small.SIZES.items() if name != "num_key_value_heads"})


CONFIGS: dict[str, tuple[type, Any]] = {
    "llama": (transformers.LlamaForCausalLM, lambda: transformers.LlamaConfig(**small.SIZES)),
    "mistral": (transformers.MistralForCausalLM, lambda: transformers.MistralConfig(**small.SIZES, sliding_window=5)),
    "qwen3": (transformers.Qwen3ForCausalLM, lambda: transformers.Qwen3Config(**small.SIZES, head_dim=8)),
    "bert": (transformers.BertModel, bert),
}
T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}


def pair(cls: Any, config: Any) -> tuple[Any, Any]:
    """The same model with eager attention and with ours."""
    torch.manual_seed(0)
    eager = cls._from_config(config(), attn_implementation="eager").eval()
    ours = cls._from_config(config(), attn_implementation="adapos").eval()
    ours.load_state_dict(eager.state_dict())
    return eager, ours


def said(model: Any, **given: Any) -> torch.Tensor:
    with torch.no_grad():
        found = model(**given)
    return found.logits if "logits" in found else found.last_hidden_state


@pytest.mark.parametrize("family", CONFIGS)
def test_models_say_the_same_with_padding_and_without(family: str) -> None:
    eager, ours = pair(*CONFIGS[family])
    tokens, mask = small.texts()
    assert torch.allclose(said(eager, input_ids=tokens), said(ours, input_ids=tokens), atol=1e-5)
    padded = (said(model, input_ids=tokens, attention_mask=mask) * mask[..., None] for model in (eager, ours))
    assert torch.allclose(*padded, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3"])
def test_the_future_other_texts_and_padding_are_not_seen(family: str) -> None:
    _, model = pair(*CONFIGS[family])
    tokens, mask = small.texts()
    whole = said(model, input_ids=tokens)
    changed = tokens.clone()
    changed[:, 12:] = 1
    assert torch.equal(said(model, input_ids=changed)[:, :12], whole[:, :12])
    packed = said(model, input_ids=tokens, position_ids=PACKED, use_cache=False)
    assert torch.allclose(packed[:, :9], said(model, input_ids=tokens[:, :9]), atol=1e-5)
    assert torch.allclose(packed[:, 9:], said(model, input_ids=tokens[:, 9:]), atol=1e-5)
    hidden = torch.where(mask == 1, tokens, 7)
    padded = (said(model, input_ids=x, attention_mask=mask) * mask[..., None] for x in (tokens, hidden))
    assert torch.equal(*padded)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_generation_is_the_same(family: str) -> None:
    eager, ours = pair(*CONFIGS[family])
    tokens, mask = small.texts()
    how = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(eager.generate(tokens, **how), ours.generate(tokens, **how))


def t5() -> Any:
    return transformers.T5Config(**T5, decoder_start_token_id=0)


def test_biases_of_t5_and_attention_to_another_text() -> None:
    eager, ours = pair(transformers.T5ForConditionalGeneration, t5)
    tokens, _ = small.texts()
    mask = torch.ones_like(tokens)
    mask[0, 12:] = 0
    for answer in (tokens[:, :7], tokens.repeat(1, 2)):
        given = {"input_ids": tokens, "attention_mask": mask, "decoder_input_ids": answer}
        assert torch.allclose(said(eager, **given), said(ours, **given), atol=1e-5)
    how = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    assert torch.equal(eager.generate(tokens, **how), ours.generate(tokens, **how))


def test_gradients_reach_a_bias() -> None:
    eager, ours = pair(transformers.T5ForConditionalGeneration, t5)
    tokens, _ = small.texts()
    for model in (eager, ours):
        model(input_ids=tokens, labels=tokens).loss.backward()
    for (name, a), b in zip(eager.named_parameters(), ours.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-5), name


def test_weights_are_given_where_they_are_asked_for() -> None:
    eager, ours = pair(*CONFIGS["llama"])
    tokens, mask = small.texts()
    found = [each(tokens, attention_mask=mask, output_attentions=True).attentions for each in (eager, ours)]
    for theirs, own in zip(*found, strict=True):
        seen = mask.bool()[:, None, :, None].expand_as(own)
        assert torch.allclose(own[seen], theirs[seen], atol=1e-6)
    _, crossing = pair(transformers.T5ForConditionalGeneration, t5)
    with pytest.raises(ValueError, match="keeps no weights of attention to another text"):
        crossing(input_ids=tokens, decoder_input_ids=tokens[:, :5], output_attentions=True)


def test_a_model_that_reads_masks_itself_is_told_so() -> None:
    config = transformers.BloomConfig(vocab_size=99, hidden_size=32, n_layer=1, n_head=4)
    model = transformers.BloomForCausalLM._from_config(config, attn_implementation="adapos")
    with pytest.raises(ValueError, match="this model reads masks itself"):
        model(small.texts()[0])


def test_a_mask_of_ones_own_is_taken() -> None:
    eager, ours = pair(*CONFIGS["llama"])
    tokens, _ = small.texts()
    seen = torch.ones(17, 17, dtype=torch.bool).tril()
    seen[10:, 3:6] = False
    own = torch.zeros(3, 1, 17, 17).masked_fill(~seen, torch.finfo(torch.float32).min)
    found = (said(model, input_ids=tokens, attention_mask=own) for model in (eager, ours))
    assert torch.allclose(*found, atol=1e-5)


def test_what_adapos_cannot_do_is_refused() -> None:
    config = transformers.Gemma2Config(**small.SIZES, head_dim=8, attn_logit_softcapping=5.0, pad_token_id=0)
    model = transformers.Gemma2ForCausalLM._from_config(config, attn_implementation="adapos")
    with pytest.raises(ValueError, match=r"has no cap on scores \(softcap\)"):
        model(small.texts()[0])
    tokens, _ = small.texts()
    llama = transformers.LlamaForCausalLM._from_config(
        transformers.LlamaConfig(**small.SIZES), attn_implementation="adapos"
    )
    with pytest.raises(ValueError, match="caches of a fixed size are not for it; leave cache_implementation out"):
        llama.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0, cache_implementation="static")
    for mask in (torch.ones(3, 16), torch.ones(3, 34)):
        with pytest.raises(ValueError, match=r"attention_mask must have shape \(3, 17\), a number for each token, not"):
            llama(tokens, attention_mask=mask)


def test_padding_of_another_text_is_not_that_of_the_queries() -> None:
    eager, ours = pair(transformers.T5ForConditionalGeneration, t5)
    tokens, _ = small.texts()
    mask = torch.ones_like(tokens)
    mask[0, 5:] = 0
    given = {"input_ids": tokens, "attention_mask": mask, "decoder_input_ids": tokens.flip(1)}
    assert torch.allclose(said(eager, **given), said(ours, **given), atol=1e-5)


def test_a_layer_that_says_it_is_not_causal_is_not() -> None:
    q, k, v = torch.randn(3, 2, 4, 6, 8)
    layer = torch.nn.Module()
    found, _ = adapos.hf.attention.attention(layer, q, k, v, None, is_causal=False)
    plain = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert torch.allclose(found.transpose(1, 2), plain, atol=1e-6)
