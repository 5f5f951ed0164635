"""SelfAttention: one layer for a model of one's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from adapos import Layout, SelfAttention
from adapos.model import Cache
from cases import Draw, apart, packed

SPECS = [
    "kerple + dape",
    "kerple + dape(kernel=3)",
    "rope",
    "alibi",
    "rope + fox",
    "xl",
    "cope",
    "sinusoidal",
    "randomized + t5",
]


def layer(spec: str = "kerple + dape", **settings: Any) -> SelfAttention:
    torch.manual_seed(1)
    made = SelfAttention(16, 4, spec, **settings).double().eval()
    for parameter in made.attention.parameters():
        parameter.data.normal_(std=0.4)
    return made


def test_without_positions_it_is_torchs_own_layer() -> None:
    own, x = layer("nope"), Draw(1)(2, 7, 16)
    usual = nn.MultiheadAttention(16, 4, bias=False, batch_first=True).double()
    projections = own.attention
    usual.in_proj_weight.data = torch.cat([projections.q.weight, projections.k.weight, projections.v.weight])
    usual.out_proj.weight.data = projections.out.weight
    mask = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    assert apart(own(x), usual(x, x, x, attn_mask=mask, is_causal=True)[0]) < 1e-12
    assert apart(own(x, causal=False), usual(x, x, x)[0]) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("kv_heads", [None, 2, 1])
@pytest.mark.parametrize("spec", SPECS)
def test_decoding_with_a_cache_equals_one_pass(spec: str, kv_heads: int | None) -> None:
    own, x, cache = layer(spec, kv_heads=kv_heads), Draw(1)(2, 12, 16), Cache()
    parts = [own(x[:, here], cache=cache) for here in (slice(0, 5), slice(5, 6), slice(6, 12))]
    assert apart(torch.cat(parts, 1), own(x)) < 1e-12
    assert cache.length == 12


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_a_layout_packs_and_pads(spec: str) -> None:
    own, x = layer(spec), Draw(1)(1, 10, 16)
    doc = packed([4, -2, 4])
    pos = torch.tensor([[0, 1, 2, 3, 0, 0, 0, 1, 2, 3]])
    out = own(x, Layout(pos, pos, doc, doc))
    assert apart(out[:, :4], own(x[:, :4])) < 1e-12
    assert apart(out[:, 6:], own(x[:, 6:])) < 1e-12
    assert not out[:, 4:6].any()


def test_all_of_it_trains() -> None:
    own = layer(dropout=0.2).train()
    own(Draw(1)(2, 12, 16)).square().sum().backward()
    assert all((p.grad != 0).any() for p in own.parameters())


def test_dropout_is_for_training_alone() -> None:
    own, x = layer(dropout=0.5), Draw(1)(2, 12, 16)
    assert torch.equal(own(x), own(x))
    own.train()
    assert not torch.equal(own(x), own(x))


def test_it_says_which_encoding_it_holds() -> None:
    assert "encoding='kerple + dape(kernel=3)'" in repr(layer("kerple + dape(kernel=3)"))


def test_a_head_width_of_ones_own() -> None:
    assert layer("rope", head_width=6)(Draw(1)(2, 5, 16)).shape == (2, 5, 16)


@pytest.mark.parametrize("spec", ["tape", "tape + dape", "tape(form='additive')"])
def test_a_travelling_state_needs_a_decoder(spec: str) -> None:
    with pytest.raises(
        ValueError, match=r"travels from layer to layer, and SelfAttention is one layer; use adapos\.model\.D"
    ):
        SelfAttention(16, 4, spec)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 17}, r"width \(17\) must be a multiple of heads \(4\), or give head_width"),
        ({"kv_heads": 3}, r"heads \(4\) must be a multiple of kv_heads \(3\)"),
        ({"encoding": "kerpel"}, "did you mean 'kerple'"),
        ({"encoding": "rope", "head_width": 5}, r"rope: head_width \(5\) must be even"),
    ],
)
def test_a_layer_that_cannot_be_built_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SelfAttention(**({"width": 16, "heads": 4} | settings))


def test_what_it_cannot_read_is_refused() -> None:
    own, x = layer(), torch.zeros(2, 5, 16, dtype=torch.float64)
    for wrong in (x[0], x[..., :15], x[None]):
        with pytest.raises(ValueError, match=r"x must have shape \(batch, tokens, 16\), not"):
            own(wrong)
    for empty in (x[:0], x[:, :0]):
        with pytest.raises(ValueError, match="must be at least 1; there is nothing to attend to"):
            own(empty)
    with pytest.raises(
        ValueError, match="give a layout or a cache, not both: the cache knows where the new tokens are"
    ):
        own(x, Layout.dense(2, 5), cache=Cache())
    with pytest.raises(
        ValueError, match="the layout is for batch 2, 4 queries and 4 keys, and q, k have batch 2, 5 queries"
    ):
        own(x, Layout.dense(2, 4))
    with pytest.raises(ValueError, match="is for causal attention only: gates are cumulated from the past"):
        layer("fox")(x, causal=False)
    with pytest.raises(ValueError, match="cannot decode with a cache"):
        layer("rope(schedule='dynamic', factor=2.0, trained=4)")(x, cache=Cache())
    with pytest.raises(ValueError, match="backend 'sdpa' cannot run this call: HeadMix reads scores"):
        layer(backend="sdpa")(x)
