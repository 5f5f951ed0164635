"""Terms against loops over pairs, and what Pairs does with them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from adapos import Layout, Pairs
from adapos.pairs import (
    Bias,
    Cope,
    DistanceDot,
    DistanceTable,
    Fire,
    Grid,
    HeadMix,
    LogDot,
    Mix,
    Ramp,
    Term,
    along_keys,
    wide,
)
from cases import BIASES, LAYOUTS, PAIRS, Attention, Draw, Sizes, apart, cope, head_mix, ramp, table

SOME = ["dense", "some queries", "queries amid the keys", "bidirectional", "documents", "ids that jump", "shuffled ids"]


def one(term: Bias, layout: Layout, b: int, h: int, i: int, j: int) -> float:
    """One number of a bias, straight from its docstring."""
    far = int(layout.q_pos[b, i] - layout.k_pos[b, j])
    if isinstance(term, Ramp):
        return float(term.q[b, h, i] + term.k[b, h, j])
    if isinstance(term, DistanceTable):
        return float(term.table[h, min(max(far + term.zero, 0), term.table.shape[1] - 1)])
    if isinstance(term, DistanceDot):
        return float(term.q[b, h, i] @ term.r[h, min(max(far + term.zero, 0), term.r.shape[1] - 1)])
    if isinstance(term, LogDot):
        repeats = term.q.shape[1] // term.k.shape[1]
        return math.log(max(float(term.q[b, h, i] @ term.k[b, h // repeats, j]), term.floor))
    if isinstance(term, Grid):
        return float(term.values[b, h, i, j])
    assert isinstance(term, Fire)
    c, threshold = float(term.c), float(term.threshold)

    def psi(x: float) -> float:
        return math.log(1 + abs(c * x))

    ratio = psi(far) / (psi(max(int(layout.q_pos[b, i]), threshold)) + 1e-6)
    hidden = [max(float(w) * ratio + float(x), 0.0) for w, x in zip(term.w1, term.b1, strict=True)]
    return sum(float(w) * x for w, x in zip(term.w2[h], hidden, strict=True)) + float(term.b2[h])


@torch.no_grad()
@pytest.mark.parametrize("layout", SOME)
@pytest.mark.parametrize("name", BIASES)
def test_a_bias_is_what_its_docstring_says_of_each_pair(name: str, layout: str) -> None:
    where = LAYOUTS[layout](2, 8)
    term = BIASES[name](Draw(1), Sizes(2, 4, 2, where.queries, where.keys))
    assert isinstance(term, Bias)
    found, seen = term.rows(where).expand(2, -1, -1, -1), where.visible()
    for b in range(2):
        for h in range(4):
            for i in range(where.queries):
                for j in range(where.keys):
                    if seen[b, 0, i, j]:
                        assert float(found[b, h, i, j]) == pytest.approx(one(term, where, b, h, i, j), abs=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("layout", [*SOME, "one query", "window", "bidirectional shuffled ids", "negative ids"])
@pytest.mark.parametrize("name", PAIRS)
def test_some_rows_are_those_of_the_whole(name: str, layout: str) -> None:
    """Which lets a backend cut them, and leave out keys that none of the rows sees."""
    where = LAYOUTS[layout](2, 11)
    pairs = PAIRS[name](Draw(1), Sizes(2, 4, 2, where.queries, where.keys))
    score = Draw(2)(2, 4, where.queries, where.keys)
    whole = pairs.rows(score, where)
    for begin, end in ((0, 1), (where.queries // 2, where.queries), (where.queries // 3, where.queries // 3 + 1)):
        keys = min(where.start + end, where.keys) if where.causal else where.keys
        rows = slice(begin, end)
        part = pairs.rows(score[:, :, rows, :keys], where.first(keys), rows)
        torch.testing.assert_close(part, whole[:, :, rows, :keys], rtol=0, atol=1e-12)
        assert (whole[:, :, rows, keys:] == -math.inf).all()


@pytest.mark.parametrize("name", PAIRS)
def test_unseen_pairs_are_minus_infinity_and_change_nothing(name: str) -> None:
    where = LAYOUTS["documents"](3, 9)
    pairs = PAIRS[name](Draw(1), Sizes(3, 4, 2, 9, 9))
    seen, score = where.visible().expand(-1, 4, -1, -1), Draw(2)(3, 4, 9, 9)
    logit = pairs.rows(score, where)
    assert (logit[~seen] == -math.inf).all()
    assert logit[seen].isfinite().all()
    other = torch.where(seen, score, 1e6)
    assert torch.equal(pairs.rows(other, where), logit)
    (grad,) = torch.autograd.grad(logit[seen].sum(), score)
    assert not grad[~seen].any()


def test_a_head_mix_reads_neighbouring_keys_and_never_other_queries() -> None:
    where, at = Layout.dense(1, 12), Sizes(1, 2, 2, 12, 12)
    for kernel in (1, 3, 5):
        mix = head_mix(Draw(1), at, kernel=kernel, biased=False)
        score = Draw(2)(1, 2, 12, 12)
        logit = Pairs((), mix).rows(score, where)
        (grad,) = torch.autograd.grad(logit[0, 0, 9, 4], score)
        touched = grad[0, 0].nonzero()
        assert set(touched[:, 0].tolist()) == {9}
        reach = 2 * (kernel // 2)
        assert touched[:, 1].tolist() == list(range(4 - reach, 4 + reach + 1))
        assert grad[0, 1].any()


def test_the_hidden_layer_is_masked_too() -> None:
    """So that a decoding step equals one pass: whether there are later keys is not felt."""
    at = Sizes(1, 2, 2, 12, 12)
    mix = head_mix(Draw(1), at, kernel=3, biased=False)
    score = Draw(2)(1, 2, 12, 12)
    whole = Pairs((), mix).rows(score, Layout.dense(1, 12))
    step = Pairs((), mix).rows(score[:, :, 6:7, :7], Layout.dense(1, 1, cached=6))
    torch.testing.assert_close(step, whole[:, :, 6:7, :7], rtol=0, atol=1e-12)


def test_biases_add_up_and_pairs_join() -> None:
    where, at, draw = Layout.dense(2, 6), Sizes(2, 4, 2, 6, 6), Draw(1)
    first, second, mix = Pairs((table(draw, at),)), Pairs((ramp(draw, at),)), Pairs((), head_mix(draw, at))
    both = first + second + mix
    assert both.terms == (*first.bias, *second.bias, mix.mix)
    assert apart(both.added(where), first.added(where) + second.added(where)) < 1e-12
    assert (mix + first).mix is mix.mix
    assert Pairs().added(where) is None


def test_two_mixes_are_refused() -> None:
    draw, at = Draw(1), Sizes(1, 4, 4, 6, 6)
    with pytest.raises(
        ValueError, match="only one term may mix scores, and both HeadMix and Cope do; keep one of them"
    ):
        Pairs((), head_mix(draw, at)) + Pairs((), cope(draw, at))


@pytest.mark.parametrize("name", PAIRS)
def test_the_tensors_of_pairs_can_be_taken_out_and_put_back(name: str) -> None:
    pairs = PAIRS[name](Draw(1), Sizes(2, 4, 2, 7, 7))
    doubled = pairs.holding([2 * x for x in pairs.tensors()])
    assert [type(term) for term in doubled.terms] == [type(term) for term in pairs.terms]
    assert all(torch.equal(b, 2 * a) for a, b in zip(pairs.tensors(), doubled.tensors(), strict=True))
    if isinstance(pairs.mix, HeadMix):
        assert isinstance(doubled.mix, HeadMix)
        assert doubled.mix.form == pairs.mix.form
    for a, b in zip(pairs.bias, doubled.bias, strict=True):
        assert getattr(a, "zero", None) == getattr(b, "zero", None)


def test_too_few_tensors_are_refused() -> None:
    pairs = PAIRS["table"](Draw(1), Sizes(2, 4, 2, 7, 7))
    with pytest.raises(ValueError, match="zip"):
        pairs.holding([])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", PAIRS)
def test_terms_are_computed_in_at_least_single_precision(name: str, dtype: torch.dtype) -> None:
    attention = Attention.make(name, "ids that jump", dtype=dtype)
    score = torch.randn(3, 4, 23, 23, dtype=wide(attention.q).dtype)
    assert attention.pairs.rows(score, attention.layout).dtype == torch.promote_types(dtype, torch.float32)


def test_a_convolution_along_the_keys_is_one() -> None:
    x, weight = Draw(1)(2, 3, 4, 9), Draw(2)(5, 3, 7)
    want = torch.nn.functional.conv2d(x, weight[:, :, None], padding=(0, 3))
    assert apart(along_keys(x, weight), want) < 1e-12
    short = x[..., :2]
    assert (
        apart(along_keys(short, weight), torch.nn.functional.conv2d(short, weight[:, :, None], padding=(0, 3))) < 1e-12
    )


def test_a_term_of_ones_own_says_what_it_lacks() -> None:
    class Empty(Bias):
        pass

    class Blank(Mix):
        pass

    where, x = Layout.dense(1, 2), torch.zeros(1, 1, 2, 2)
    with pytest.raises(NotImplementedError, match="Empty must say the sizes of its tensors"):
        Empty().sizes(1, 1, 1, 1)
    with pytest.raises(NotImplementedError, match="Empty must compute its rows"):
        Empty().rows(where)
    with pytest.raises(NotImplementedError, match="Blank must compute its rows"):
        Blank().rows(x, None, x > 0)
    assert Term().tensors() == ()


def test_counting_positions_starts_at_the_query() -> None:
    """With all gates open each key further back is one position further."""
    where = Layout.dense(1, 5)
    logits = torch.tensor([0.0, 10.0, 20.0, 30.0]).expand(1, 1, 5, 4).double()
    score = torch.full((1, 1, 5, 5), 50.0).double()
    found: Tensor = Pairs((), Cope(logits)).rows(score, where) - 50
    torch.testing.assert_close(found[0, 0, 4], torch.tensor([30.0, 30, 30, 20, 10]).double())
