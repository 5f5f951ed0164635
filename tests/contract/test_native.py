"""The native kernel against the reference in float64: every term, layout, size, tile, dtype and number of threads."""

from __future__ import annotations

import math
import mmap
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from adapos import Layout, Shape, attend, build, explain
from adapos.kernels import BACKENDS
from adapos.kernels.cpu import library
from adapos.model import Decoder
from adapos.pairs import HeadMix, Pairs
from cases import LAYOUTS, PAIRS, VOCABULARY, Attention, Draw, Sizes, apart, fire, head_mix, ramp, table, text
from judge import EDGE, GROUPED, KNOWN, SIZES, SOME, Judge, attentions, made, operands

pytestmark = pytest.mark.skipif(library.MISSING is not None, reason=library.MISSING or "")

TILES = [(6, 16), (12, 32), (0, 0)]  # rows and columns; 0: as measured best


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles so small that even a short text has many."""
    cut(monkeypatch, 6, 16)


def cut(patch: pytest.MonkeyPatch, rows: int, columns: int) -> None:
    patch.setattr("adapos.kernels.cpu.ops.ROWS", rows)
    patch.setattr("adapos.kernels.cpu.ops.COLUMNS", columns)


def test_what_it_refuses_is_what_these_tests_leave_out() -> None:
    for name in PAIRS:
        call = Attention.make(name, "dense", dtype=torch.float32).call
        native = next(backend for backend in BACKENDS if backend.name == "native")
        assert (native.refuses(call) is None) == (name in KNOWN), name


@pytest.mark.usefixtures("poisoned", "threads")
@pytest.mark.parametrize("pairs", KNOWN)
def test_it_equals_the_reference_in_every_layout_where_many_tiles_meet(
    pairs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, threads, wrong = cycle(SIZES), cycle((1, 2, 3)), {}
    for layout in LAYOUTS:
        torch.set_num_threads(1)
        judge = made(pairs, layout, next(sizes))
        for rows, columns in TILES:
            cut(monkeypatch, rows, columns)
            torch.set_num_threads(count := next(threads))
            if found := judge.beyond(judge.a.run("native")):
                wrong[f"{layout} in tiles of {rows} x {columns} on {count} threads"] = found
        next(threads)
    assert wrong == {}


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("pairs", SOME)
def test_it_equals_the_reference_with_the_tiles_of_production(pairs: str) -> None:
    wrong = {}
    for layout in ("dense", "one query", "some queries", "bidirectional", "documents", "window", "ids that jump"):
        for length, heads in ((96, 2), (97, 12), (229, 1)):
            torch.set_num_threads(1)
            judge = made(pairs, layout, (1, length, heads, 1, 16, 8))
            for count in (1, 2):
                torch.set_num_threads(count)
                if found := judge.beyond(judge.a.run("native")):
                    wrong[f"{layout} of {length} on {count} threads"] = found
    assert wrong == {}


FIRES: dict[str, Callable[[Draw, Sizes], Pairs]] = {
    "alone": lambda draw, at: Pairs((fire(draw, at),)),
    "beside a table": lambda draw, at: Pairs((fire(draw, at), table(draw, at))),
    "in a mix": lambda draw, at: Pairs((fire(draw, at),), head_mix(draw, at)),
    "in a mix that adds none": lambda draw, at: Pairs((fire(draw, at),), head_mix(draw, at, form="concat")),
    "in a mix of 5": lambda draw, at: Pairs((fire(draw, at),), head_mix(draw, at, kernel=5)),
    "with all else": lambda draw, at: Pairs(
        (table(draw, at), fire(draw, at), ramp(draw, at)), head_mix(draw, at, kernel=3)
    ),
}


@torch.no_grad()
@pytest.mark.usefixtures("poisoned", "threads")
@pytest.mark.parametrize("kind", FIRES)
def test_fire_equals_the_reference_where_nobody_asks_for_gradients(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, threads, dtypes = cycle(SIZES), cycle((1, 2)), cycle((torch.float32, torch.float32, torch.bfloat16))
    wrong = {}
    for layout in LAYOUTS:
        dtype, named = next(dtypes), dict(zip(GROUPED, next(sizes), strict=True))

        def drawn(
            seed: int, dtype: torch.dtype = dtype, layout: str = layout, named: dict[str, int] = named
        ) -> Attention:
            a = Attention.make("nothing", layout, seed=seed, dtype=dtype, **named)
            at = Sizes(named["batch"], named["heads"], named["groups"], a.layout.queries, a.layout.keys)
            return replace(a, pairs=FIRES[kind](Draw(seed, dtype), at))

        def run(a: Attention, backend: str) -> list[Tensor]:
            return [attend(a.q, a.k, a.v, a.layout, a.pairs, backend=backend)]

        a = drawn(0)
        judge = Judge(a, run(a.to(torch.float64), "reference"), run(a, "reference"), math.inf)
        for rows, columns in TILES:
            cut(monkeypatch, rows, columns)
            torch.set_num_threads(next(threads))
            if found := judge.beyond(run(a, "native")):
                wrong[f"{layout} in tiles of {rows} x {columns}"] = found
    assert wrong == {}


@pytest.mark.usefixtures("small", "threads")
@pytest.mark.parametrize("pairs", [name for name in KNOWN if name.startswith("mix")])
def test_texts_shorter_than_the_taps_are_no_exception(pairs: str) -> None:
    torch.set_num_threads(2)
    wrong = {}
    for layout in ("dense", "one query", "bidirectional", "documents"):
        for length in (1, 2, 4, 6):
            judge = made(pairs, layout, (2, length, 2, 1, 4, 4))
            if found := judge.beyond(judge.a.run("native")):
                wrong[f"{layout} of {length}"] = found
    assert wrong == {}


@settings(max_examples=250, derandomize=True, deadline=None, database=None)
@given(
    a=attentions(),
    rows=st.sampled_from([0, 1, 5, 6, 12, 18]),
    columns=st.sampled_from([0, 1, 16, 32, 48]),
    threads=st.integers(1, 4),
)
def test_any_call_in_any_tiles_equals_the_reference(a: Attention, rows: int, columns: int, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    judge = Judge.of(a)
    assume(judge.edge > EDGE)
    with pytest.MonkeyPatch.context() as patch:
        cut(patch, rows, columns)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(True)  # unwritten memory is NaN
        try:
            assert judge.beyond(a.run("native")) == {}
            with torch.no_grad():
                out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend="native")
                assert judge.beyond([out, *judge.usual[1:]]) == {}
        finally:
            torch.use_deterministic_algorithms(False)
            torch.set_num_threads(before)


@pytest.mark.usefixtures("small", "one_thread")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pairs", SOME)
def test_halves_err_no_more_than_the_rounding_of_their_results(pairs: str, dtype: torch.dtype) -> None:
    for layout in ("dense", "documents", "ids that jump", "bidirectional window"):
        judge = made(pairs, layout, (3, 60, 4, 2, 8, 5), dtype)
        found = judge.a.run("native")
        assert judge.beyond(found) == {}
        assert apart(found[0], judge.truth[0]) <= torch.finfo(dtype).eps


@pytest.mark.usefixtures("one_thread")
def test_halves_round_as_torch_rounds_from_the_least_number_to_past_the_greatest() -> None:
    """A query that sees one key gives its value back: every half there is, and every tie between two."""
    for dtype in (torch.bfloat16, torch.float16):
        every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        every = every[every.isfinite()]
        v = every.view(1, 1, -1, 16 if every.numel() % 16 == 0 else 1)
        k = torch.zeros_like(v[..., :1])
        out = attend(k, k, v, Layout.dense(1, v.shape[2], window=1), backend="native")
        assert torch.equal(out, v)
        # the mean of neighbours is a tie; summed exactly in float32, rounded once
        low, high = every[:-1].float(), every[1:].float()
        ends = torch.stack([low, high], 1)[(low.sign() == high.sign()) & (low.abs() < 1e37) & (low.abs() > 1e-30)]
        pairs = ends.to(dtype).view(-1, 1, 2, 1)
        zeros = torch.zeros_like(pairs)
        out = attend(zeros[:, :, 1:], zeros, pairs, Layout.dense(len(pairs), 1, cached=1), backend="native")
        assert torch.equal(out.flatten(), ends.mean(1).to(dtype))


@pytest.mark.usefixtures("small", "threads")
@pytest.mark.parametrize("pairs", SOME)
def test_the_same_call_gives_the_same_bits_from_run_to_run(pairs: str) -> None:
    torch.set_num_threads(2)
    for layout in ("dense", "documents", "ids that jump"):
        a = Attention.make(pairs, layout, length=90, dtype=torch.float32)
        first = a.run("native")
        for _ in range(4):
            assert all(map(torch.equal, a.run("native"), first))


@pytest.mark.usefixtures("small", "threads")
@pytest.mark.parametrize("pairs", SOME)
def test_the_number_of_threads_does_not_change_a_bit_of_the_output_of_many_queries(pairs: str) -> None:
    a = Attention.make(pairs, "dense", length=90, dtype=torch.float32)
    outputs = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        outputs.append(a.run("native")[0])
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("pairs", [*SOME, "mix 7 concat"])
@pytest.mark.parametrize("layout", ["one query", "few queries", "some queries", "documents", "window", "ids that jump"])
@pytest.mark.parametrize(("width", "values"), [(8, 5), (27, 64)])  # packed, and read where they lie
def test_few_queries_over_many_keys_are_right_however_many_threads_share_the_keys(
    pairs: str, layout: str, width: int, values: int
) -> None:
    length = 700
    doc = (torch.arange(length) // 300)[None].expand(2, -1) - torch.tensor([[0], [1]])
    pos = torch.arange(length).expand(2, -1)
    where = {
        "one query": Layout.dense(2, 1, cached=length - 1),
        "few queries": Layout.dense(2, 3, cached=length - 3),
        "some queries": Layout.dense(2, 7, cached=length - 7),
        "documents": Layout(pos[:, -2:], pos, doc[:, -2:], doc),
        "window": Layout.dense(2, 1, cached=length - 1, window=450),
        "ids that jump": Layout(3 * pos[:, 400:402], 3 * pos, start=400, causal=False),
    }[layout]

    def make(seed: int) -> Attention:
        draw, at = Draw(seed, torch.float32), Sizes(2, 4, 2, where.queries, length)
        q, k, v = draw(2, 4, where.queries, width), draw(2, 2, length, width), draw(2, 2, length, values)
        return Attention(q, k, v, where, PAIRS[pairs](draw, at))

    torch.set_num_threads(1)
    judge = Judge.clear(make)
    for count in (1, 2, 5, 16):
        torch.set_num_threads(count)
        first = judge.a.run("native")
        assert judge.beyond(first) == {}, count
        assert all(map(torch.equal, judge.a.run("native"), first)), count
        with torch.no_grad():
            out = attend(judge.a.q, judge.a.k, judge.a.v, where, judge.a.pairs, backend="native")
        assert judge.beyond([out, *judge.usual[1:]]) == {}, count


@pytest.mark.usefixtures("small", "threads")
@pytest.mark.parametrize("pairs", ["table", "mix 3 residual"])
def test_threads_that_add_in_turn_find_the_gradients_of_keys_too(pairs: str) -> None:
    """Where sums of each thread's own would take too much memory."""
    layout = Layout.dense(1, 25, cached=2023)

    def make(seed: int) -> Attention:
        draw, at = Draw(seed, torch.float32), Sizes(1, 2, 1, 25, 2048)
        q, k, v = draw(1, 2, 25, 512), draw(1, 1, 2048, 512), draw(1, 1, 2048, 512)
        return Attention(q, k, v, layout, PAIRS[pairs](draw, at))

    judge = Judge.clear(make)
    torch.set_num_threads(40)
    assert 39 * 2048 * 1024 > 2**26
    first = judge.a.run("native")
    assert judge.beyond(first) == {}
    assert all(map(torch.equal, judge.a.run("native"), first))


def in_child(a: Attention, want: list[Tensor], outcome: Any) -> None:
    found = a.run("native")
    outcome.put(all(map(torch.equal, found, want)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("small", "threads")
def test_a_forked_child_of_a_process_with_threads_runs_it_with_threads_too() -> None:
    torch.set_num_threads(2)
    a = Attention.make("mix 3 residual", "dense", length=90, dtype=torch.float32)
    want = a.run("native")
    context = multiprocessing.get_context("fork")
    for _ in range(2):
        outcome = context.SimpleQueue()
        child = context.Process(target=in_child, args=(a, want, outcome))
        child.start()
        child.join(60)
        if child.is_alive():
            child.kill()
            pytest.fail("the child hangs")
        assert child.exitcode == 0
        assert outcome.get()
    assert all(map(torch.equal, a.run("native"), want))


@pytest.mark.usefixtures("small", "threads")
def test_many_python_threads_may_call_it_at_once() -> None:
    torch.set_num_threads(2)
    calls = [Attention.make(pairs, "dense", length=90, dtype=torch.float32) for pairs in SOME]
    want = [a.run("native") for a in calls]

    def again(number: int) -> bool:
        torch.set_num_threads(2)
        found = calls[number % len(calls)].run("native")
        return all(map(torch.equal, found, want[number % len(calls)]))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(again, range(60)))


@pytest.mark.usefixtures("small", "one_thread")
@pytest.mark.parametrize("pairs", SOME)
def test_without_gradients_it_gives_the_same_output_and_keeps_nothing(pairs: str) -> None:
    a = Attention.make(pairs, "documents", dtype=torch.float32)
    want = a.run("native")[0]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend="native")
        assert torch.equal(out, want)
        assert out.grad_fn is None


@pytest.mark.usefixtures("small", "one_thread")
@pytest.mark.parametrize("pairs", SOME)
def test_autocast_changes_nothing(pairs: str) -> None:
    """It is given q, k and v in a dtype of their own, and keeps tables and weights in float32."""
    for dtype in (torch.float32, torch.bfloat16):
        a = Attention.make(pairs, "dense", dtype=dtype)
        want = a.run("native")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend="native")
        assert all(map(torch.equal, a.differentiated(out), want))


@pytest.mark.usefixtures("small", "one_thread")
@pytest.mark.parametrize("pairs", SOME)
def test_inputs_that_are_views_are_read_as_what_they_are(pairs: str) -> None:
    a = Attention.make(pairs, "dense", batch=2, length=40, dtype=torch.float32)
    want = a.run("native")

    def strided(x: Tensor) -> Tensor:
        """Every second number of every second token."""
        return torch.stack([x, x + 1], -1).flatten(-2).repeat_interleave(2, 2)[:, :, ::2, ::2]

    views: list[Callable[[Tensor], Tensor]] = [
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
        lambda x: F.pad(x, (3, 4))[..., 3:-4],
        lambda x: F.pad(x, (0, 0, 5, 6))[:, :, 5:-6],
        strided,
    ]
    for view in views:
        q, k, v = (view(x.detach()).requires_grad_() for x in (a.q, a.k, a.v))
        assert not q.is_contiguous()
        seen = Attention(q, k, v, a.layout, a.pairs)
        assert all(map(torch.equal, seen.run("native"), want))
    once = [x.detach()[:1].expand(2, -1, -1, -1).requires_grad_() for x in (a.q, a.k, a.v)]
    whole = [x.detach().contiguous().requires_grad_() for x in once]
    assert once[0].stride(0) == 0
    expanded, repeated = (Attention(*x, a.layout, a.pairs) for x in (once, whole))
    assert all(map(torch.equal, expanded.run("native"), repeated.run("native")))


@pytest.mark.usefixtures("small", "one_thread")
@pytest.mark.parametrize("pairs", SOME)
def test_terms_that_are_views_are_read_as_what_they_are(pairs: str) -> None:
    a = Attention.make(pairs, "dense", length=40, dtype=torch.float32)
    want = a.run("native")
    turned = [x.detach().permute(*range(x.ndim)[::-1]).contiguous() for x in a.pairs.tensors()]
    turned = [x.permute(*range(x.ndim)[::-1]).requires_grad_() for x in turned]
    found = Attention(a.q, a.k, a.v, a.layout, a.pairs.holding(turned)).run("native")
    # torch may sum in another order where it makes tables
    assert max(map(apart, found, want)) < 1e-5


@pytest.mark.usefixtures("small", "one_thread")
def test_gradients_that_come_expanded_transposed_or_strided_are_read_as_what_they_are() -> None:
    a = Attention.make("mix 3 residual", "dense", length=40, dtype=torch.float32)
    out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend="native")
    plain = torch.randn_like(out)
    for grad in (
        torch.ones(()).expand_as(out),
        plain[:1].expand_as(out),
        plain.transpose(2, 3).contiguous().transpose(2, 3),
        plain.repeat_interleave(2, 3)[..., ::2],
    ):
        assert not grad.is_contiguous()
        found, want = (torch.autograd.grad(out, a.inputs, g, retain_graph=True) for g in (grad, grad.contiguous()))
        assert all(map(torch.equal, found, want))
    out.sum().backward()
    want = torch.autograd.grad(
        attend(a.q, a.k, a.v, a.layout, a.pairs, backend="native"), a.inputs, torch.ones_like(out)
    )
    for x, grad in zip(a.inputs, want, strict=True):
        assert x.grad is not None
        assert torch.equal(x.grad, grad)


@pytest.mark.usefixtures("small", "one_thread")
@pytest.mark.parametrize("pairs", SOME)
def test_gradients_are_found_for_those_tensors_alone_that_ask(pairs: str) -> None:
    """A frozen model with trained positions, and the other way round."""
    want = Attention.make(pairs, "dense", dtype=torch.float32).run("native")[1:]
    for asking in range(len(want)):
        a = Attention.make(pairs, "dense", dtype=torch.float32)
        for index, x in enumerate(a.inputs):
            x.requires_grad_(index == asking)
        out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend="native")
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(11), dtype=torch.float64).float()
        (found,) = torch.autograd.grad(out, [a.inputs[asking]], grad)
        assert torch.equal(found, want[asking])


@pytest.mark.usefixtures("one_thread")
def test_gradients_of_gradients_are_refused_and_not_silently_zero() -> None:
    a = Attention.make("mix 3 residual", "dense", dtype=torch.float32)
    out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend="native")
    (first,) = torch.autograd.grad(out.square().sum(), [a.q], create_graph=True)
    with pytest.raises(RuntimeError, match="no gradients of gradients"):
        torch.autograd.grad(first.square().sum(), [a.k])


@pytest.mark.usefixtures("small", "one_thread")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("pairs", SOME)
def test_a_query_that_is_not_finite_spoils_its_own_row_alone(pairs: str, bad: float) -> None:
    a = Attention.make(pairs, "dense", length=40, dtype=torch.float32)
    with torch.no_grad():
        want = attend(a.q, a.k, a.v, a.layout, a.pairs, backend="native")
        q = a.q.clone()
        q[1, :, 9] = bad
        out = attend(q, a.k, a.v, a.layout, a.pairs, backend="native")
    others = torch.ones_like(out, dtype=torch.bool)
    others[1, :, 9] = False
    assert torch.equal(out[others], want[others])
    if math.isnan(bad):
        # a mix of form `bias` adds its scores too
        assert out[1, :, 9].isnan().all()


@pytest.mark.usefixtures("small", "threads")
@pytest.mark.parametrize("pairs", SOME)
def test_what_padded_keys_hold_leaks_nowhere(pairs: str) -> None:
    torch.set_num_threads(2)
    a = Attention.make(pairs, "documents", length=40, dtype=torch.float32)
    assert a.layout.k_doc is not None
    padding = (a.layout.k_doc == -1)[:, None, :, None]
    assert padding.any()
    want = a.run("native")
    k, v = (x.detach().masked_fill(padding, math.nan).requires_grad_() for x in (a.k, a.v))
    q = a.q.detach().masked_fill(padding, math.nan).requires_grad_()
    found = Attention(q, k, v, a.layout, a.pairs).run("native")
    q_alone = Attention(a.q, k, v, a.layout, a.pairs).run("native")
    assert all(map(torch.equal, q_alone, want))
    # queries of padding see nothing, whatever they hold
    assert torch.equal(found[0], want[0])


@pytest.mark.usefixtures("small", "poisoned", "threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pairs", KNOWN)
def test_queries_that_see_nothing_get_zeros_and_give_zeros(pairs: str, dtype: torch.dtype) -> None:
    for count in (1, 2):
        torch.set_num_threads(count)
        assert not any(x.any() for x in Attention.make(pairs, "nothing to see", dtype=dtype).run("native"))
        a = Attention.make(pairs, "documents", length=40, dtype=dtype)
        assert a.layout.q_doc is not None
        out, dq, *rest = a.run("native")
        padding = (a.layout.q_doc == -1)[:, None, :, None]
        assert not out.masked_select(padding).any()
        assert not dq.masked_select(padding).any()
        for x in rest[:2]:
            assert not x.masked_select(padding).any()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("pairs", ["nothing", "table", "mix 1 residual", "mix 3 residual"])
def test_extreme_scores_neither_overflow_nor_vanish(pairs: str) -> None:
    a = Attention.make(pairs, "dense", length=150, dtype=torch.float32)
    for factor in (1e4, -1e4, 1e-30, 0.0):
        b = Attention((a.q * factor).detach().requires_grad_(), a.k, a.v, a.layout, a.pairs)
        found, want = b.run("native"), b.to(torch.float64).run("reference")
        assert apart(found[0], want[0]) < 1e-3
        assert all(x.isfinite().all() for x in found)


@pytest.mark.usefixtures("small", "one_thread")
def test_logits_that_fall_by_thousands_from_tile_to_tile_and_rise_again_are_weighed_right() -> None:
    for way in (1, -1):
        draw = Draw(3, torch.float32)
        slope = way * torch.linspace(0.0, 9000.0, 60)
        pairs = PAIRS["ramp"](draw, Sizes(1, 2, 1, 60, 60))
        pairs = pairs.holding([torch.zeros(1, 2, 60), slope.expand(1, 2, -1).contiguous()])
        a = Attention(draw(1, 2, 60, 4), draw(1, 1, 60, 4), draw(1, 1, 60, 4), Layout.dense(1, 60), pairs)
        for x in a.pairs.tensors():
            x.requires_grad_()
        assert Judge.of(a).beyond(a.run("native")) == {}


@pytest.mark.usefixtures("one_thread")
def test_ramps_whose_halves_are_far_larger_than_their_sum_keep_it() -> None:
    draw, far = Draw(3, torch.float32), 1e9
    sizes = Sizes(1, 2, 1, 40, 40)
    low = PAIRS["ramp"](draw, sizes)
    halves = [x.detach().double() + sign * far for x, sign in zip(low.tensors(), (1, -1), strict=True)]
    pairs = low.holding([x.requires_grad_() for x in halves])
    a = Attention(draw(1, 2, 40, 4), draw(1, 1, 40, 4), draw(1, 1, 40, 4), Layout.dense(1, 40), pairs)
    truth = a.to(torch.float64).run("reference")
    assert apart(a.run("native")[0], truth[0]) < 1e-5


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("window", [60, 2**31, 2**32 + 1, 2**62, 2**63 - 1])
@pytest.mark.parametrize("causal", [True, False])
def test_a_window_of_any_size_is_no_smaller_than_it_says(window: int, causal: bool) -> None:
    a = Attention.make("table", "dense", length=60, dtype=torch.float32)
    wide, all_keys = (
        Attention(a.q, a.k, a.v, Layout.dense(3, 60, window=w, causal=causal), a.pairs) for w in (window, None)
    )
    assert all(map(torch.equal, wide.run("native"), all_keys.run("native")))


@pytest.mark.usefixtures("one_thread")
def test_ids_may_be_as_far_apart_as_layouts_allow() -> None:
    a = Attention.make("mix 3 residual", "dense", length=20, batch=1, dtype=torch.float32)
    pos = torch.arange(20)[None].clone()
    pos[:, 7:] += 2**60
    pos[:, 15:] -= 2**61
    b = Attention(a.q, a.k, a.v, Layout(pos, pos), a.pairs)
    assert Judge.of(b).beyond(b.run("native")) == {}


def spread(x: Tensor, token: int, head: int, batch: int) -> Tensor:
    """The same numbers with these strides, in memory that is never touched elsewhere."""
    size = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, (batch, head, token, 1), strict=True))
    lazily = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    try:
        memory = mmap.mmap(-1, size * x.element_size(), flags=lazily)
    except OSError:
        pytest.skip("the system hands out no memory lazily")
    far = torch.frombuffer(memory, dtype=x.dtype).as_strided(x.shape, (batch, head, token, 1))
    return far.copy_(x.detach()).requires_grad_()


@pytest.mark.skipif(not hasattr(mmap, "MAP_ANONYMOUS"), reason="the system hands out no memory lazily")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strides_past_two_to_the_31_are_followed(dtype: torch.dtype) -> None:
    for pairs in ("table", "mix 3 residual"):
        a = Attention.make(pairs, "dense", batch=2, length=40, heads=2, groups=2, dtype=dtype)
        want = a.run("native")
        for token, head, batch in ((2**29 + 16, 512, 1024), (512, 2**31 + 8, 64), (16, 1024, 2**32 + 2048)):
            q, k, v = (spread(x, token, head, batch) for x in (a.q, a.k, a.v))
            assert max(n * stride for n, stride in zip(q.shape, q.stride(), strict=True)) > 2**31
            assert all(map(torch.equal, Attention(q, k, v, a.layout, a.pairs).run("native"), want))


@pytest.mark.parametrize("kernel", [3, 7])
def test_sums_over_many_taps_and_channels_keep_their_digits(kernel: int) -> None:
    draw = Draw(dtype=torch.float32)
    q, k, v = (draw(2, 4, 65, 8).detach() for _ in range(3))
    weights = [draw.positive(128, 4, kernel), draw.positive(128), draw.positive(4, 128, kernel), draw(4)]
    weights = [0.1 * x.detach() for x in weights]
    pairs, exact = (Pairs((), HeadMix(*(x.to(kind) for x in weights), form="add")) for kind in (q.dtype, torch.float64))
    layout = Layout.dense(2, 65)
    truth = attend(q.double(), k.double(), v.double(), layout, exact, backend="reference")
    found, usual = (apart(attend(q, k, v, layout, pairs, backend=name), truth) for name in ("native", "reference"))
    assert found < 2 * usual


def refused(a: Attention, **how: float) -> str | None:
    return dict(explain(a.q, a.k, a.v, a.layout, a.pairs, **how))["native"]


def test_what_it_cannot_run_it_refuses_in_one_sentence() -> None:
    def single(pairs: str, dtype: torch.dtype = torch.float32) -> Attention:
        return Attention.make(pairs, "dense", dtype=dtype)

    assert refused(single("table")) is None
    assert (
        refused(single("table", torch.float64))
        == "it takes float32, bfloat16 and float16, and these tensors are float64"
    )
    assert refused(single("fire")) == "it has no gradients of Fire"
    with torch.no_grad():
        assert refused(single("fire")) is None
        a, far = single("fire"), torch.tensor([[0, 2**22]]).expand(3, -1)
        two = replace(a, pairs=Pairs((*a.pairs.bias, *a.pairs.bias)))
        apart = Attention(a.q[:, :, :2], a.k[:, :, :2], a.v[:, :, :2], Layout(far, far), a.pairs)
        assert refused(two) == refused(apart) == "it adds one Fire, of distances below 4194304"
    assert refused(single("mix 3 of grid")) == "it adds tables over distance, ramps and FIRE, and Grid is none of them"
    assert refused(single("cope")) == "of mixes it knows HeadMix alone, and Cope counts along whole rows"
    mix = HeadMix(torch.ones(0, 4, 1), torch.ones(0), torch.ones(4, 0, 1), torch.ones(4), form="add")
    assert refused(replace(single("table"), pairs=Pairs((), mix))) == "it mixes heads through one channel or more"
    assert refused(single("table"), dropout=0.1) == "it does not drop attention weights"
    a = single("fire")
    with pytest.raises(ValueError, match="backend 'native' cannot run this call: it has no gradients of Fire"):
        attend(a.q, a.k, a.v, a.layout, a.pairs, backend="native")


def test_some_instruction_set_is_there_and_generic_is_the_last() -> None:
    assert library.targets()
    assert library.targets()[-1] == "generic"
    assert os.environ.get(library.TARGET, library.targets()[0]) == library.CHOSEN


OTHER = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from adapos.kernels.cpu import library, ops
from cases import Attention
torch.set_num_threads(2)
ops.ROWS, ops.COLUMNS = 6, 16
found = {}
for pairs in sys.argv[3:]:
    for layout in ("dense", "documents", "ids that jump"):
        found[pairs, layout] = Attention.make(pairs, layout, length=60, dtype=torch.float32).run("native")
torch.save((library.CHOSEN, found), sys.argv[2])
"""


def elsewhere(target: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", OTHER, os.path.dirname(os.path.dirname(__file__)), *words],
        capture_output=True,
        text=True,
        env=os.environ | {library.TARGET: target},
        timeout=300,
    )


@pytest.mark.usefixtures("threads")
def test_every_instruction_set_gives_the_same_results(tmp_path: Any) -> None:
    torch.set_num_threads(1)
    for target in library.targets():
        done = elsewhere(target, str(tmp_path / "found"), *SOME)
        assert done.returncode == 0, done.stderr
        used, found = torch.load(tmp_path / "found")
        assert used == target
        for (pairs, layout), tensors in found.items():
            a = Attention.make(pairs, layout, length=60, dtype=torch.float32)
            assert Judge.of(a).beyond(tensors) == {}, (target, pairs, layout)


def test_an_instruction_set_that_is_not_there_is_named_in_one_sentence(tmp_path: Any) -> None:
    done = elsewhere("mmx", str(tmp_path / "found"), "table")
    assert done.returncode == 1
    there = ", ".join(library.targets())
    want = f"ValueError: ADAPOS_NATIVE_TARGET must be one of {there} on this machine, not 'mmx'"
    assert done.stderr.strip().splitlines()[-1] == want


def test_a_library_that_does_not_load_is_a_reason_to_refuse() -> None:
    code = "from adapos.kernels.cpu import library; print(library.targets(), library.MISSING)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {library.BUILD: "/nowhere/at/all.so"},
        timeout=300,
    )
    assert done.stdout.startswith("[] the native kernel does not load here: /nowhere/at/all.so")


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("layout", ["dense", "one query", "documents", "ids that jump"])
@pytest.mark.parametrize("pairs", ["nothing", "table and ramp", "mix 1 residual", "mix 3 concat"])
def test_the_operator_keeps_the_rules_of_operators(pairs: str, layout: str) -> None:
    a = Attention.make(pairs, layout, length=20, dtype=torch.float32)
    torch.library.opcheck(torch.ops.adapos.native, operands(a, "native"))


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("spec", ["kerple + dape", "kerple + dape(kernel=3)", "tape"])
def test_a_compiled_decoder_equals_the_eager_one(spec: str) -> None:
    shape = Shape(layers=2, width=32, heads=4)
    torch.manual_seed(0)
    model = Decoder(VOCABULARY, shape, build(spec, shape))
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)
    x, results = text(2, 33), []
    for run in (model, compiled):
        model.zero_grad()
        out = run(x)
        out.square().mean().backward()
        results.append([out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(results[0]) == len(results[1])
    assert max(map(apart, results[1], results[0])) < 1e-4
