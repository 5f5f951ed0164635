"""The Triton kernels in Triton's interpreter, on a CPU, against the reference in float64.

TRITON_INTERPRET=1 must be set before Python starts; `make test` runs some of these tests, `make test-triton` all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from torch._dynamo.compiled_autograd import _enable
from torch.autograd import forward_ad

from adapos import Layout, Pairs, SelfAttention, attend, kernels
from adapos.kernels import triton
from adapos.kernels.triton import sizes
from adapos.model import Cache, Decoder
from adapos.pairs import DistanceTable, HeadMix, Ramp
from cases import LAYOUTS, SHAPE, VOCABULARY, Attention, Draw, apart, text
from judge import (
    EDGE,
    KNOWN,
    SOME,
    Judge,
    attentions,
    deviation,
    made,
    mixed,
    operands,
    times,
    worse_than_in_halves,
)

pytestmark = [
    pytest.mark.skipif(not triton.INTERPRETED, reason="TRITON_INTERPRET=1 is not set; `make test-triton` sets it"),
    pytest.mark.usefixtures("one_thread"),
]

SIZES = [(2, 21, 4, 2, 8, 5), (1, 37, 3, 3, 5, 9), (2, 19, 6, 1, 4, 4), (3, 17, 2, 2, 3, 20)]
# heads, channels and taps: some that fill whole tiles, and some whose matrices are read some channels at a time
WIDTHS = [(16, 16, 3), (32, 16, 1), (16, 48, 1), (12, 16, 5), (16, 48, 3)]
FEW = ["dense", "one query", "bidirectional", "documents", "window", "ids that jump"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles and chunks so small that even a short text has many."""
    cut(monkeypatch)


def cut(patch: pytest.MonkeyPatch) -> None:
    from adapos.kernels.triton import launch

    tiles = {
        "WEIGH": launch.Tile(8, 32, 4),
        "UNMIX": launch.Tile(4, 32),
        "LEARN": launch.Tile(8, 32),
        "GATHER": launch.Tile(8, 16, 8),
        "DIFFERENTIATE": launch.Tile(16, 8, 8),
        "TALLY": launch.Tile(4, 8),
    }
    for name, tile in tiles.items():
        patch.setattr(launch, name, replace(getattr(launch, name), tiles=(tile,)))
    for name, size in {"LOGITS": 2**10, "ROWS": 8, "LEAST": 4, "CUT": 8, "SPAN": 16, "PART": 8, "FEW": 2}.items():
        patch.setattr(f"adapos.kernels.triton.sizes.{name}", size)


def wrong(pairs: str, layouts: list[str], dtype: torch.dtype = torch.float32) -> dict[str, dict[str, str]]:
    sizes, found = cycle(SIZES), {}
    for layout in layouts:
        judge = made(pairs, layout, next(sizes), dtype)
        if beyond := judge.beyond(judge.a.run("triton")):
            found[layout] = beyond
    return found


@pytest.mark.usefixtures("poisoned", "small")
@pytest.mark.parametrize("pairs", SOME)
def test_they_equal_the_reference(pairs: str) -> None:
    assert wrong(pairs, FEW) == {}


@pytest.mark.full
@pytest.mark.usefixtures("poisoned", "small")
@pytest.mark.parametrize("pairs", KNOWN)
def test_they_equal_the_reference_in_every_layout(pairs: str) -> None:
    assert wrong(pairs, list(LAYOUTS)) == {}


@pytest.mark.full
@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(a=attentions())
def test_any_call_equals_the_reference(a: Attention) -> None:
    judge = Judge.of(a)
    assume(judge.edge > EDGE)
    with pytest.MonkeyPatch.context() as patch:
        cut(patch)
        assert judge.beyond(a.run("triton")) == {}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pairs", ["table and ramp", "mix 3 residual"])
def test_halves_err_at_most_twice_as_much_as_the_reference(pairs: str, dtype: torch.dtype) -> None:
    assert wrong(pairs, ["dense", "documents"], dtype) == {}


@pytest.mark.parametrize(("heads", "channels", "kernel"), WIDTHS)
def test_matrices_of_every_width_are_right(heads: int, channels: int, kernel: int) -> None:
    judge = Judge.of(mixed(heads, channels, kernel))
    assert judge.edge > EDGE
    assert judge.beyond(judge.a.run("triton")) == {}


@pytest.fixture
def spoiled_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward pass is told nothing of the forward pass but which rows see a key."""
    from adapos.kernels.triton import passes

    real = passes.forward

    def spoiled(problem: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, ends = real(problem)
        return torch.full_like(out, torch.nan), torch.where(ends[1] == 0, 0.0, torch.nan).expand_as(ends)

    monkeypatch.setattr(passes, "forward", spoiled)


@pytest.mark.usefixtures("small", "spoiled_ends")
@pytest.mark.parametrize("pairs", ["table and ramp", "mix 3 residual"])
def test_where_one_key_has_all_the_weight_scores_and_terms_get_no_gradient(pairs: str) -> None:
    """However the forward pass rounded its logits."""
    judge = times(Attention.make(pairs, "dense", dtype=torch.float32), 1000)
    for x, true in zip(judge.a.run("triton")[1:], judge.truth[1:], strict=True):
        assert apart(x, true) < 1e-6


@pytest.mark.usefixtures("small", "spoiled_ends")
@pytest.mark.parametrize("pairs", ["table", "mix 1 residual"])
def test_gradients_do_not_depend_on_what_the_forward_pass_found(pairs: str) -> None:
    judge = made(pairs, "documents", SIZES[0])
    assert set(judge.beyond(judge.a.run("triton"))) == {"out"}


@pytest.mark.parametrize("by", [1e4, 1e-4])
@pytest.mark.parametrize("pairs", ["table", "mix 1 residual"])
def test_gradients_in_float16_may_be_large_or_small(pairs: str, by: float) -> None:
    a = Attention.make(pairs, "dense", batch=1, length=70, values=16, dtype=torch.float16)
    assert max(in_float16(a, torch.tensor(by))) < 1.5


def in_float16(a: Attention, by: torch.Tensor) -> list[float]:
    """How much more the gradients of q, k and v deviate than those of the reference do, the output times so much."""

    def gradients(a: Attention, backend: str) -> list[torch.Tensor]:
        out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend=backend)
        return a.differentiated(by.to(out.dtype) * out)[1:4]

    truth = gradients(a.to(torch.float64), "reference")
    found, usual = gradients(a, "triton"), gradients(a, "reference")
    return [deviation(x, true) / deviation(y, true) for x, y, true in zip(found, usual, truth, strict=True)]


def test_gradients_in_float16_keep_their_digits_where_many_heads_share_keys() -> None:
    sizes = {"batch": 1, "length": 200, "heads": 8, "groups": 1, "width": 16, "values": 16}
    a = Attention.make("table", "dense", dtype=torch.float16, **sizes)
    q = a.q.detach().clone()
    q[..., 0] *= 16
    assert max(in_float16(replace(a, q=q.requires_grad_()), torch.ones(()))) < 2


@pytest.mark.parametrize("by", [1e4, 1e-4, 1e-6])
def test_gradients_in_float16_keep_their_digits_chunk_by_chunk(by: float, monkeypatch: pytest.MonkeyPatch) -> None:
    a = Attention.make("table", "dense", batch=1, length=128, heads=2, groups=1, values=16, dtype=torch.float16)
    monkeypatch.setattr(sizes, "LOGITS", 2 * 128 * 16)
    monkeypatch.setattr(sizes, "CUT", 16)
    assert len(sizes.chunks(1, 128, 128, heads=2, numbers=2, least=0, start=0, window=0, causal=True)) == 8
    assert max(in_float16(a, torch.tensor(by))) < 1.5


def test_gradients_in_float16_keep_their_digits_beside_rows_that_see_nothing() -> None:
    a = Attention.make("table", "documents", length=40, values=16, dtype=torch.float16)
    assert a.layout.q_doc is not None
    padding = (a.layout.q_doc == -1)[:, None, :, None]
    assert padding.any()
    assert max(in_float16(a, torch.where(padding, 1e4, 1e-2))) < 1.5


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("number", [torch.inf, torch.nan])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_text_in_float16_is_right_beside_one_that_is_not_finite(name: str, number: float) -> None:
    a = Attention.make("table", "dense", batch=2, length=20, dtype=torch.float16)
    spoiled = getattr(a, name).detach().clone()
    spoiled[0, 0, 3, 1] = number
    found = replace(a, **{name: spoiled.requires_grad_()}).run("triton")[:4]
    for x, true in zip(found, a.to(torch.float64).run("reference"), strict=False):
        assert apart(x[1], true[1]) < 3e-3
    assert not found[0][0].isfinite().all()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bits", [0x7FFFFFFF, -1])
def test_what_is_no_number_stays_none_where_numbers_are_rounded(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapos.kernels.triton.problem.precision", lambda q: "interpreted tf32")
    a = mixed(12, 16, 1)
    assert isinstance(a.pairs.mix, HeadMix)
    weights = a.pairs.mix.w_out.detach().clone()
    weights.view(torch.int32)[0, 0] = bits
    pairs = replace(a.pairs, mix=replace(a.pairs.mix, w_out=weights))
    assert attend(a.q, a.k, a.v, a.layout, pairs, backend="triton")[:, 0].isnan().all()


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize("pairs", ["mix 1 residual", "mix 3 of ramp"])
def test_a_bias_at_the_end_of_float32_stays_finite_where_numbers_are_rounded(
    pairs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapos.kernels.triton.problem.precision", lambda q: "interpreted tf32")
    a = Attention.make(pairs, "dense", batch=1, length=9, dtype=torch.float32)
    (term,) = a.pairs.bias
    low = torch.finfo(torch.float32).min
    if isinstance(term, Ramp):
        term = replace(term, k=term.k.detach().masked_fill(torch.arange(9) == 2, low), q=torch.zeros_like(term.q))
    else:
        term = replace(term, table=term.table.detach().index_fill(1, torch.tensor([term.zero + 2]), low))
    with torch.no_grad():
        mix = a.pairs.mix.holding([0.1 * x for x in a.pairs.mix.tensors()])
    found, usual = (attend(a.q, a.k, a.v, a.layout, Pairs((term,), mix), backend=b) for b in ("triton", "reference"))
    assert usual.isfinite().all()
    assert found.isfinite().all()


@pytest.mark.full
@pytest.mark.parametrize("length", [127, 129, 1025])
@pytest.mark.parametrize("pairs", ["table", "mix 3 residual"])
def test_odd_lengths_are_right(pairs: str, length: int) -> None:
    judge = made(pairs, "dense", (1, length, 4, 2, 16, 16))
    assert judge.beyond(judge.a.run("triton")) == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_mix_in_tf32_errs_less_than_one_in_halves(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapos.kernels.triton.problem.precision", lambda q: "interpreted tf32")
    assert worse_than_in_halves(mixed(12, 32, 1, dtype)) == {}


@pytest.mark.parametrize("pairs", ["nothing", "table and ramp", "mix 1 residual"])
def test_tiles_are_tried_once_for_all_lengths(pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Triton's tuner, with a clock that likes the last of them best."""
    from adapos.kernels.triton import launch

    tune, tried, clock = launch.triton.autotune, [], iter(range(1000, 0, -1))

    def timed(run: Callable[[], object], **_: object) -> list[int]:
        run()
        run()
        return [next(clock)] * 3

    def tuner(configs: list[Any], key: list[str], **settings: Any) -> Any:
        tried.append(len(configs))
        return tune(configs, key, do_bench=timed, **settings)

    monkeypatch.setattr(launch, "INTERPRETED", False)
    monkeypatch.setattr(launch, "lanes", lambda: 32)
    monkeypatch.setattr(launch, "CHOSEN", {})
    monkeypatch.setattr(launch.triton, "autotune", tuner)
    counts = []
    for length in (21, 21, 34):
        judge = made(pairs, "dense", (2, length, 4, 2, 8, 5))
        assert judge.beyond(judge.a.run("triton")) == {}
        counts.append(len(tried))
    assert counts[0] == counts[-1]
    assert max(tried) > 1
    assert {len(config.kwargs) > 1 for config in launch.CHOSEN.values()} == {True}


@pytest.mark.parametrize("pairs", ["table", "mix 1 residual", "mix 3 of ramp"])
def test_the_tiles_of_production_are_right_too(pairs: str) -> None:
    judge = made(pairs, "dense", (1, 70, 18, 3, 72, 40))
    assert judge.beyond(judge.a.run("triton")) == {}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("pairs", ["mix 1 residual", "mix 5 bias"])
def test_sums_that_are_added_in_place_are_the_same(pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = made(pairs, "dense", SIZES[0])
    monkeypatch.setattr("adapos.kernels.triton.passes.ATOMIC", True)
    assert judge.beyond(judge.a.run("triton")) == {}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("pairs", ["nothing", "table and ramp", "mix 3 residual"])
def test_keys_are_cut_into_parts(pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from adapos.kernels.triton import passes

    joined, seen = passes.joined, []
    monkeypatch.setattr(passes, "joined", lambda out, top, sums: seen.append(len(out)) or joined(out, top, sums))
    for layout, tokens in {"one query": 40, "last queries of documents": 6, "dense": 40}.items():
        judge = made(pairs, layout, (2, tokens, 4, 2, 8, 5))
        assert judge.beyond(judge.a.run("triton")) == {}
    assert seen[0] == 5
    # as many as the keys of a chunk have room for, where chunks are of few queries
    assert len(set(seen[1:])) >= (4 if "mix" in pairs else 1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("pairs", ["table", "mix 3 residual"])
def test_padding_may_hold_anything(pairs: str) -> None:
    a = Attention.make(pairs, "documents", dtype=torch.float32)
    assert a.layout.k_doc is not None
    padding = (a.layout.k_doc == -1)[:, None, :, None]
    spoiled = replace(a, k=a.k.detach().masked_fill(padding, torch.nan), v=a.v.detach().masked_fill(padding, torch.inf))
    out = [attend(x.q, x.k, x.v, x.layout, x.pairs, backend="triton") for x in (a, spoiled)]
    assert torch.equal(*out)
    assert not out[0][padding.expand_as(out[0])].any()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("columns", "zero"), [(3, 9), (3, -40), (1, 0), (90, 40)])
def test_a_table_may_know_none_of_the_distances_or_many_more(columns: int, zero: int) -> None:
    a = Attention.make("nothing", "dense", dtype=torch.float32)
    known = DistanceTable(torch.randn(4, columns, requires_grad=True), zero)
    judge = Judge.of(replace(a, pairs=Pairs((known,))))
    assert judge.beyond(judge.a.run("triton")) == {}


def test_a_key_may_be_hidden_by_a_ramp() -> None:
    a = Attention.make("ramp", "dense", dtype=torch.float32)
    (ramp,) = a.pairs.bias
    assert isinstance(ramp, Ramp)
    hidden = ramp.k.detach().clone()
    hidden[..., 2] = -torch.inf
    pairs = Pairs((replace(ramp, k=hidden),))
    found, usual = (attend(a.q, a.k, a.v, a.layout, pairs, backend=name) for name in ("triton", "reference"))
    assert apart(found[:, :, 3:], usual[:, :, 3:]) < 1e-5


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("form", ["residual", "concat", "bias", "add"])
@pytest.mark.parametrize(("channels", "kernel"), [(6, 1), (16, 1), (6, 3)])
def test_a_key_may_be_hidden_by_a_bias_that_is_mixed(channels: int, kernel: int, form: str) -> None:
    """Weights that are positive make a logit of -inf of it; channels that a tile is padded with must not make NaN."""
    draw = Draw(0, torch.float32)
    q, k, table = draw(1, 2, 9, 8), draw(1, 2, 9, 8), draw(2, 6).detach()
    table[:, 2] = -torch.inf
    sizes = {"residual": 4, "concat": 4, "bias": 2, "add": 2}
    weights = [
        draw.positive(channels, sizes[form], kernel),
        draw(channels),
        draw.positive(2, channels, kernel),
        draw(2),
    ]
    pairs = Pairs((DistanceTable(table, 0),), HeadMix(*weights, form))
    found, usual = (attend(q, k, k, Layout.dense(1, 9), pairs, backend=name) for name in ("triton", "reference"))
    assert apart(found, usual) < 1e-5


@pytest.mark.parametrize("pairs", ["table", "mix 1 residual"])
def test_what_the_loss_says_of_padding_does_not_matter(pairs: str) -> None:
    a = Attention.make(pairs, "documents", dtype=torch.float32)
    assert a.layout.q_doc is not None
    padding = (a.layout.q_doc == -1)[:, None, :, None]
    assert padding.any()

    def gradients(number: float) -> list[torch.Tensor]:
        out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend="triton")
        return list(torch.autograd.grad(out, a.inputs, torch.ones_like(out).masked_fill(padding, number)))

    for x, usual in zip(gradients(torch.nan), gradients(0.0), strict=True):
        assert torch.equal(x, usual)


@pytest.mark.parametrize("pairs", ["table", "table and ramp", "mix 3 residual"])
@pytest.mark.parametrize("backend", ["triton", "native", "tiled"])
def test_a_document_learns_nothing_from_one_whose_loss_is_no_number(backend: str, pairs: str) -> None:
    a = Attention.make(pairs, "documents", dtype=torch.float32)
    assert a.layout.q_doc is not None
    last = a.layout.q_doc == a.layout.q_doc.amax(1, keepdim=True)

    def gradients(number: float, backend: str) -> list[torch.Tensor]:
        out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend=backend)
        grad = torch.ones_like(out).masked_fill(last[:, None, :, None], number)
        return list(torch.autograd.grad(out, (a.q, a.k), grad))

    for x, usual, true in zip(
        gradients(torch.nan, backend), gradients(1.0, backend), gradients(torch.nan, "reference"), strict=True
    ):
        assert torch.equal(x.isnan(), true.isnan())
        assert torch.equal(x[~x.isnan()], usual[~x.isnan()])
        assert x.isnan().any()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("bias", [-1e4, torch.finfo(torch.float32).min])
def test_values_that_weigh_nothing_do_not_overflow(bias: float) -> None:
    draw, hidden = Draw(0, torch.float32), torch.arange(16) < 8
    q, k, v = draw(1, 1, 16, 8), draw(1, 1, 16, 8), draw(1, 1, 16, 4)
    with torch.no_grad():
        v.masked_fill_(hidden[:, None], 2e37)
    ramp = Ramp(torch.zeros(1, 1, 16), torch.zeros(1, 1, 16).masked_fill(hidden, bias).requires_grad_())
    out = attend(q, k, v, Layout.dense(1, 16), Pairs((ramp,)), backend="triton")
    of_hidden = torch.ones(1, 1, 16, 4).masked_fill(hidden[:, None], 0.0)
    for x in torch.autograd.grad(out, (q, k, v, ramp.k), of_hidden):
        assert x.isfinite().all()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_loss_that_is_no_number_spoils_the_distances_of_its_query_alone(number: float) -> None:
    a = Attention.make("table", "ids that jump", batch=1, dtype=torch.float32)
    (table,) = (term.table for term in a.pairs.bias)
    spoiled = []
    for backend in ("reference", "triton"):
        out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend=backend)
        grad = torch.ones_like(out)
        grad[:, 0, 2] = number
        spoiled.append(torch.autograd.grad(out, table, grad)[0].isnan())
    assert torch.equal(*spoiled)
    assert 0 < spoiled[0].sum() < table.shape[1]


def test_what_the_backward_pass_does_not_read_is_not_kept() -> None:
    a = Attention.make("table", "dense", groups=2, values=5, dtype=torch.float32)
    kept = list[torch.Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend="triton")
    assert any(x.shape == a.q.shape for x in kept)
    assert not any(x.shape == out.shape for x in kept)


@pytest.mark.parametrize("backend", ["triton", "native"])
def test_a_window_is_one_where_queries_lie_past_the_keys(backend: str) -> None:
    draw, layout = Draw(0, torch.float32), Layout.dense(1, 6, window=4).first(3)
    q, k = draw(1, 2, 6, 4), draw(1, 2, 3, 4)
    found, usual = (attend(q, k, k, layout, backend=name) for name in (backend, "reference"))
    assert apart(found, usual) < 1e-5


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("spec", ["kerple + dape(kernel=3)", "tape + dape", "fox"])
def test_a_decoder_learns_and_decodes_with_them(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, words = Decoder(VOCABULARY, SHAPE, spec), text(2, 13)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)

    def gradients() -> list[torch.Tensor]:
        said = model(words)
        found = torch.autograd.grad(said.square().mean(), list(model.parameters()), allow_unused=True)
        return [said.detach(), *(x for x in found if x is not None)]

    usual = gradients()
    monkeypatch.setattr(kernels, "BACKENDS", (triton.Triton(),))
    found = gradients()
    assert max(map(apart, found, usual)) < 1e-4
    cache = Cache()
    with torch.no_grad():
        steps = [model(part, cache=cache) for part in words.split([7, 1, 5], dim=1)]
    assert apart(torch.cat(steps, 1), found[0]) < 1e-5


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("pairs", ["table", "mix 3 residual"])
@pytest.mark.parametrize("queries", [1, 2, 5])
def test_queries_far_past_all_keys_see_nothing(queries: int, pairs: str) -> None:
    a = Attention.make(pairs, "dense", batch=1, length=3, dtype=torch.float32)
    q = torch.randn(1, 4, queries, 8, requires_grad=True)
    a = replace(a, q=q, layout=Layout.dense(1, queries, cached=19, window=4).first(3))
    assert not any(x.any() for x in a.run("triton"))


@pytest.mark.parametrize(("has", "runs"), [((3, 4), False), ((3, 5), True), ((3, 10), True), (triton.UNKNOWN, True)])
def test_mixes_need_a_triton_that_knows_small_products(
    has: tuple[int, ...], runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "VERSION", has)
    known, mix = (Attention.make(pairs, "dense", dtype=torch.float32).call for pairs in ("table", "mix 1 residual"))
    expected = "it mixes heads with Triton 3.5 or later, as torch 2.9 brings, and this is 3.4"
    assert triton.Triton().refuses(known) is None
    assert triton.Triton().refuses(mix) == (None if runs else expected)


def test_gradients_of_gradients_are_refused() -> None:
    a = Attention.make("table", "dense", length=5, dtype=torch.float32)
    out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend="triton")
    (grad,) = torch.autograd.grad(out.square().sum(), a.q, create_graph=True)
    with pytest.raises(RuntimeError, match="the triton kernel gives gradients, but no gradients of gradients"):
        grad.sum().backward()


def jets(out: torch.Tensor, inputs: list[torch.Tensor], grad: torch.Tensor) -> None:
    with forward_ad.dual_level():
        torch.autograd.grad(out, inputs, forward_ad.make_dual(grad, grad))


def batches(out: torch.Tensor, inputs: list[torch.Tensor], grad: torch.Tensor) -> None:
    torch.autograd.grad(out, inputs, torch.stack([grad, grad]), is_grads_batched=True)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize("ask", [jets, batches])
@pytest.mark.parametrize("backend", ["triton", "native"])
def test_what_looks_through_gradients_alone_is_refused(backend: str, ask: Callable[..., None]) -> None:
    a = Attention.make("table", "dense", length=5, dtype=torch.float32)
    out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend=backend)
    with pytest.raises(RuntimeError, match=f"'{backend}' cannot run this backward pass: torch.func and forward-mode"):
        ask(out, [a.q, a.k, a.v], torch.ones_like(out))


def test_a_mix_may_have_no_channels() -> None:
    a = Attention.make("nothing", "dense", length=9, dtype=torch.float32)
    draw, heads = Draw(3, torch.float32), a.q.shape[1]
    mix = HeadMix(draw(0, heads, 1), draw(0), draw(heads, 0, 1), draw(heads), form="residual")
    a = replace(a, pairs=Pairs(mix=mix))
    for x, true in zip(a.run("triton"), a.run("reference"), strict=True):
        assert x.shape == true.shape
        assert not x.numel() or apart(x, true) < 1e-5


@pytest.mark.parametrize("pairs", ["table and ramp", "mix 3 residual"])
def test_torch_sees_an_operator_with_shapes_and_gradients(pairs: str) -> None:
    a = Attention.make(pairs, "dense", length=9, dtype=torch.float32)
    # the kernels are loaded by the first call
    attend(a.q, a.k, a.v, a.layout, a.pairs, backend="triton")
    torch.library.opcheck(torch.ops.adapos.triton, operands(a, "triton"))


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("backend", ["triton", "native"])
def test_a_backward_pass_is_compiled_without_the_forward_pass(backend: str) -> None:
    a, found = Attention.make("table", "dense", length=9, dtype=torch.float32), list[torch.Tensor]()
    torch._dynamo.reset()
    for compiled in (False, True):
        loss = attend(a.q, a.k, a.v, a.layout, a.pairs, backend=backend).square().sum()
        with _enable(torch.compile(backend="aot_eager")) if compiled else nullcontext():
            loss.backward()
        found.append(a.q.grad)
        for x in a.inputs:
            x.grad = None
    assert apart(*found) < 1e-6


@pytest.mark.parametrize("version", [(3, 9), triton.UNKNOWN])
def test_what_torch_compiles_is_one_graph(version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "VERSION", version)
    torch._dynamo.reset()
    layer = SelfAttention(32, 4, "kerple + dape", backend="triton")
    x = torch.randn(1, 9, 32)
    assert apart(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), layer(x)) < 1e-6
