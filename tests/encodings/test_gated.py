"""fox and cable against naive sums of gates."""

import math

import pytest
import torch

from adapos import Keys, PositionalEncoding, Shape, Tokens
from adapos.encoding import Compose
from cases import LAYOUTS, SHAPE, Draw, apart, decoder, encoding, text


def log_sigmoid(x: float) -> float:
    return -math.log(1 + math.exp(-x))


def minus_softplus(x: float) -> float:
    return -math.log(1 + math.exp(x))


GATES = {"fox": log_sigmoid, "cable": minus_softplus}


@torch.no_grad()
@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("layout", ["dense", "some queries", "documents", "ids that jump", "window"])
def test_the_bias_is_the_sum_of_the_gates_between_key_and_query(name: str, layout: str) -> None:
    where, gated, draw = LAYOUTS[layout](3, 9), encoding(name), Draw(1)
    x, q, k = draw(3, 9, 32), draw(3, 4, 9, 8), draw(3, 4, 9, 8)
    t = gated.tokens(1, Tokens(x, q, k, k), where.k_pos, None)
    found = gated.pairs(1, q[:, :, : where.queries], Keys(t.k, t.v, t.extra), where).added(where)
    seen, start = where.visible(), where.start
    for b in range(3):
        for h in range(4):
            raw = [float(gated.weight[1, h] @ x[b, token] + gated.bias[1, h]) for token in range(9)]
            gate = [GATES[name](value) for value in raw]
            for i in range(where.queries):
                for j in range(where.keys):
                    if seen[b, 0, i, j]:
                        assert float(found[b, h, i, j]) == pytest.approx(sum(gate[j + 1 : start + i + 1]), abs=1e-11)


@pytest.mark.parametrize("name", GATES)
def test_a_key_never_gains_by_being_further_back(name: str) -> None:
    where, gated, draw = LAYOUTS["dense"](2, 20), encoding(name), Draw(2)
    x, q = draw(2, 20, 32), draw(2, 4, 20, 8)
    t = gated.tokens(0, Tokens(x, q, q, q), where.k_pos, None)
    found = gated.pairs(0, q, Keys(t.k, t.v, t.extra), where).added(where)
    assert (found[:, :, -1].diff(dim=-1) > 0).all()
    assert found[:, :, -1, -1].abs().max() < 1e-12


@pytest.mark.parametrize("name", GATES)
def test_gates_are_cached_raw_and_in_single_precision(name: str) -> None:
    gated = encoding(name).bfloat16()
    x, q = torch.randn(1, 5, 32).bfloat16(), torch.randn(1, 4, 5, 8).bfloat16()
    t = gated.tokens(0, Tokens(x, q, q, q, {"other": q}), torch.arange(5)[None], None)
    assert t.extra[name].dtype == torch.float32
    assert t.extra[name].shape == (1, 4, 5)
    assert t.extra["other"] is q


def test_gates_are_per_query_head_where_keys_are_shared() -> None:
    gated = encoding("fox", Shape(layers=1, width=32, heads=4, kv_heads=1))
    assert gated.weight.shape == (1, 4, 32)


def test_both_gates_stand_side_by_side() -> None:
    both = encoding("fox + cable")
    assert isinstance(both, Compose)
    parts: list[PositionalEncoding] = list(both)
    draw, where = Draw(1), LAYOUTS["dense"](2, 6)
    x, q = draw(2, 6, 32), draw(2, 4, 6, 8)
    t = both.tokens(0, Tokens(x, q, q, q), where.k_pos, [None, None])
    together = both.pairs(0, q, Keys(t.k, t.v, t.extra), where).added(where)
    apart_from = [part.pairs(0, q, Keys(t.k, t.v, t.extra), where).added(where) for part in parts]
    assert apart(together, sum(apart_from)) < 1e-12


@pytest.mark.parametrize("spec", ["fox", "cable", "cope", "rope + fox", "fox + dape"])
def test_keys_ahead_are_refused(spec: str) -> None:
    with pytest.raises(ValueError, match=r"is for causal attention only: gates are (cumulated|counted) from"):
        decoder(spec, SHAPE)(text(1, 4), causal=False)
