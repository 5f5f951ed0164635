"""Every backend against the reference: output and all gradients, over all kinds of layouts, terms, sizes and tiles."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import cycle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from adapos import Layout, Pairs, attend, explain
from adapos.kernels import BACKENDS, named
from adapos.pairs import DistanceTable, HeadMix, Ramp
from cases import LAYOUTS, PAIRS, Attention, Draw, Sizes, apart, head_mix, table, tiles_of

EXACT = 1e-10
# batch, length, heads, groups, width, values
SIZES = [(3, 17, 4, 2, 8, 5), (1, 23, 3, 3, 5, 9), (2, 13, 6, 1, 4, 4), (4, 9, 2, 2, 3, 16)]


def sized(pairs: str, layout: str, sizes: tuple[int, ...], **settings: Any) -> Attention:
    names = ("batch", "length", "heads", "groups", "width", "values")
    return Attention.make(pairs, layout, **dict(zip(names, sizes, strict=True)), **settings)


def errors(attention: Attention) -> dict[str, float]:
    """How far each backend that runs it is from the reference, with gradients and without."""
    specified = attention.run("reference")
    found = {backend: max(map(apart, attention.run(backend), specified)) for backend in attention.able()}
    with torch.no_grad():
        for name, reason in explain(attention.q, attention.k, attention.v, attention.layout, attention.pairs):
            if reason is None:
                out = attend(attention.q, attention.k, attention.v, attention.layout, attention.pairs, backend=name)
                found[name] = max(found.get(name, 0.0), apart(out, specified[0]))
    return found


def beyond(found: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {where: errors for where, errors in found.items() if not all(error <= EXACT for error in errors.values())}


@pytest.mark.usefixtures("small_tiles", "poisoned", "one_thread")
@pytest.mark.parametrize("pairs", PAIRS)
def test_every_backend_equals_the_reference_in_every_layout_where_many_tiles_meet(pairs: str) -> None:
    sizes = cycle(SIZES)
    assert beyond({layout: errors(sized(pairs, layout, next(sizes))) for layout in LAYOUTS}) == {}


@pytest.mark.parametrize("pairs", ["nothing", "table", "mix 1 residual", "mix 3 residual", "mix 3 of fire", "cope"])
def test_every_backend_equals_the_reference_with_the_tiles_of_production(pairs: str) -> None:
    found = {}
    for layout in ("dense", "one query", "bidirectional", "documents", "window", "ids that jump"):
        for length in (63, 65, 150):
            found[f"{layout} of {length}"] = errors(sized(pairs, layout, (2, length, 2, 1, 8, 8)))
    assert beyond(found) == {}


@pytest.mark.parametrize("pairs", [name for name in PAIRS if name.startswith("mix")])
def test_texts_shorter_than_the_kernel_are_no_exception(pairs: str) -> None:
    found = {}
    for layout in ("dense", "one query", "bidirectional", "documents"):
        for length in (1, 2, 3, 4, 5, 6):
            found[f"{layout} of {length}"] = errors(sized(pairs, layout, (2, length, 2, 1, 4, 4)))
    assert beyond(found) == {}


@pytest.mark.usefixtures("small_tiles", "threads")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_number_of_threads_changes_nothing(count: int) -> None:
    torch.set_num_threads(count)
    found = {}
    for pairs in ("nothing", "table", "mix 1 residual", "mix 3 concat", "mix 3 of ramp", "cope and table"):
        for layout in ("dense", "documents", "ids that jump", "bidirectional"):
            found[f"{pairs}, {layout}"] = errors(Attention.make(pairs, layout))
    assert torch.get_num_threads() == count
    assert beyond(found) == {}


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    """Any ids and documents, of any sizes."""
    groups, repeats = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    batch, keys = draw(st.integers(1, 3)), draw(st.integers(1, 20))
    queries = draw(st.integers(1, keys))
    ids = st.lists(st.integers(-30, 30), min_size=keys, max_size=keys)
    straight = st.integers(-5, 50).map(lambda first: list(range(first, first + keys)))
    k_pos = torch.tensor(draw(st.lists(straight | ids, min_size=batch, max_size=batch)))
    documents = st.lists(st.integers(-1, 2), min_size=keys, max_size=keys)
    k_doc = torch.tensor(
        draw(st.lists(documents | documents.map(sorted) | st.just([0] * keys), min_size=batch, max_size=batch))
    )
    start = draw(st.integers(0, keys - queries) | st.just(keys - queries))
    here = slice(start, start + queries)
    layout = Layout(
        k_pos[:, here],
        k_pos,
        k_doc[:, here],
        k_doc,
        start=start,
        causal=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, keys)),
    )
    random = Draw(draw(st.integers(0, 2**20)))
    at = Sizes(batch, groups * repeats, groups, queries, keys)
    width = draw(st.integers(1, 9))
    q = random(batch, at.heads, queries, width)
    k, v = random(batch, groups, keys, width), random(batch, groups, keys, draw(st.integers(1, 9)))
    return Attention(q, k, v, layout, PAIRS[draw(st.sampled_from(sorted(PAIRS)))](random, at))


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(
    attention=attentions(),
    rows=st.integers(1, 9),
    keys=st.integers(1, 9),
    pairs=st.integers(1, 80),
    scores=st.integers(1, 300),
)
def test_any_call_in_any_tiles_equals_the_reference(
    attention: Attention, rows: int, keys: int, pairs: int, scores: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        tiles_of(patch, rows=rows, keys=keys, pairs=pairs, scores=scores)
        found = errors(attention)
    assert "tiled" in found
    assert all(error <= EXACT for error in found.values()), found


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("backend", ["reference", "tiled", "sdpa"])
def test_a_scale_of_ones_own_is_used(backend: str) -> None:
    a = Attention.make("nothing", "dense", groups=4)
    out = attend(a.q, a.k, a.v, a.layout, scale=0.7, backend=backend)
    score = 0.7 * torch.einsum("bhtd,bhsd->bhts", a.q, a.k)
    want = score.masked_fill(~a.layout.visible(), -math.inf).softmax(-1) @ a.v
    assert apart(out, want) < EXACT


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("pairs", ["table", "mix 1 residual", "mix 3 residual", "mix 3 of ramp", "cope", "fire"])
def test_gradients_are_found_for_those_tensors_alone_that_ask(pairs: str) -> None:
    """A frozen model with trained positions, and the other way round."""
    specified = Attention.make(pairs, "dense")
    want = specified.run("reference")[1:]
    for asking in range(len(want)):
        a = Attention.make(pairs, "dense")
        for index, x in enumerate(a.inputs):
            x.requires_grad_(index == asking)
        out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend="tiled")
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
        (found,) = torch.autograd.grad(out, [a.inputs[asking]], grad)
        assert apart(found, want[asking]) < EXACT


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("pairs", ["mix 1 residual", "mix 3 residual", "cope", "mix 3 of distance dot"])
def test_inputs_that_are_views_are_read_as_what_they_are(pairs: str) -> None:
    """Heads come out of one projection by a transpose; a batch may be expanded."""
    a = Attention.make(pairs, "dense", batch=2)
    want = a.run("reference")
    q, k, v = (x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in (a.q, a.k, a.v))
    assert not q.is_contiguous()
    for backend in a.able():
        assert apart(attend(q, k, v, a.layout, a.pairs, backend=backend), want[0]) < EXACT
    once = [x.detach()[:1].expand(2, -1, -1, -1) for x in (a.q, a.k, a.v)]
    specified = attend(*once, a.layout, a.pairs, backend="reference")
    for backend in a.able():
        assert apart(attend(*once, a.layout, a.pairs, backend=backend), specified) < EXACT


@pytest.mark.usefixtures("small_tiles", "threads")
@pytest.mark.parametrize("pairs", ["nothing", "table", "mix 1 residual", "mix 3 residual", "mix 3 of ramp", "cope"])
def test_the_same_call_gives_the_same_bits_from_run_to_run(pairs: str) -> None:
    torch.set_num_threads(2)
    a = Attention.make(pairs, "dense", length=60, dtype=torch.float32)
    first = a.run("tiled")
    for _ in range(3):
        assert all(map(torch.equal, a.run("tiled"), first))


def test_extreme_scores_neither_overflow_nor_vanish() -> None:
    for pairs in ("nothing", "table", "mix 1 residual", "mix 3 residual"):
        a = Attention.make(pairs, "dense", dtype=torch.float32)
        with torch.no_grad():
            q = a.q * 1e4
            want = attend(q, a.k, a.v, a.layout, a.pairs, backend="reference")
            assert want.isfinite().all()
            for backend in a.able():
                assert apart(attend(q, a.k, a.v, a.layout, a.pairs, backend=backend), want) < 1e-3


def test_a_query_that_sees_nothing_gets_zeros_and_gives_finite_gradients_in_every_precision() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        for pairs in ("nothing", "table", "mix 1 residual", "mix 3 residual", "cope", "log dot"):
            a = Attention.make(pairs, "nothing to see", dtype=dtype)
            for backend in ("reference", *a.able()):
                assert all(x.isfinite().all() and not x.any() for x in a.run(backend)), (dtype, pairs, backend)


def plain(a: Attention) -> Tensor:
    """The same attention as one would write it in PyTorch, every step in the dtype of q."""
    repeats = a.q.shape[1] // a.k.shape[1]
    k, v = a.k.repeat_interleave(repeats, 1), a.v.repeat_interleave(repeats, 1)
    score = a.q @ k.transpose(-1, -2) * a.q.shape[-1] ** -0.5
    mask = ~a.layout.visible()
    bias = None
    for term in a.pairs.bias:
        if isinstance(term, DistanceTable):
            column = a.layout.distance() + term.zero
            values = term.table[:, column[:, 0].clamp(0, term.table.shape[1] - 1)].transpose(0, 1)
        else:
            assert isinstance(term, Ramp)
            values = term.q[..., None] + term.k[:, :, None]
        bias = values if bias is None else bias + values
    logit = score if bias is None else score + bias
    mix = a.pairs.mix
    if mix is not None:
        assert isinstance(mix, HeadMix)
        assert bias is not None
        channels = torch.cat([score, bias.expand_as(score)], dim=1).masked_fill(mask, 0.0)
        padding = (0, mix.kernel // 2)
        hidden = F.leaky_relu(F.conv2d(channels, mix.w_in[:, :, None], mix.b_in, padding=padding), 0.01)
        hidden = hidden.masked_fill(mask, 0.0) if mix.kernel > 1 else hidden
        logit = logit + F.conv2d(hidden, mix.w_out[:, :, None], mix.b_out, padding=padding)
    return logit.masked_fill(mask, -math.inf).softmax(-1) @ v


def test_the_plain_way_is_the_same_attention() -> None:
    for pairs in ("nothing", "table", "ramp", "table and ramp", "mix 1 residual", "mix 3 residual"):
        a = Attention.make(pairs, "dense")
        assert max(map(apart, a.differentiated(plain(a)), a.run("reference"))) < EXACT


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pairs", ["nothing", "table", "ramp", "mix 1 residual", "mix 3 residual"])
def test_a_backend_errs_at_most_twice_as_much_as_plain_pytorch_in_the_same_dtype(
    pairs: str, dtype: torch.dtype
) -> None:
    low = Attention.make(pairs, "dense", length=150, batch=2, width=16, values=16, dtype=dtype)
    exact = low.to(torch.float64)
    truth = exact.differentiated(plain(exact))
    usual = low.differentiated(plain(low))
    # a rectifier's input that rounding moves across zero is nobody's error
    floor = max(4 * torch.finfo(dtype).eps, 1e-5)
    for backend in ("reference", *low.able()):
        for name, found, eager, true in zip(["out", *"qkv", *range(9)], low.run(backend), usual, truth, strict=False):
            assert found.dtype == dtype
            allowed = 2 * float((eager.double() - true).abs().max()) + floor * max(1.0, float(true.abs().max()))
            assert float((found.double() - true).abs().max()) <= allowed, (backend, name)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("backend", ["reference", "tiled"])
@pytest.mark.parametrize("pairs", ["nothing", "table", "mix 3 residual"])
def test_dropping_weights_is_right_on_average_and_as_scattered_as_it_should_be(pairs: str, backend: str) -> None:
    draws, rate = 3000, 0.3
    a = Attention.make(pairs, "dense", batch=1, length=9, heads=2, groups=1, values=3)
    with torch.no_grad():
        whole = attend(a.q, a.k, a.v, a.layout, a.pairs, backend="reference")
        eye = torch.eye(9, dtype=torch.float64).expand(1, 1, -1, -1)
        weights = attend(a.q, a.k, eye, a.layout, a.pairs, backend="reference")
        q, k, v = (x.expand(draws, -1, -1, -1) for x in (a.q, a.k, a.v))
        pairs_of_all = a.pairs
        out = attend(q, k, v, Layout.dense(draws, 9), pairs_of_all, dropout=rate, backend=backend)
    # each weight is kept with probability 1 - rate and grows by as much
    variance = rate / (1 - rate) * weights**2 @ (a.v**2).repeat_interleave(2, 1)
    assert ((out.mean(0) - whole[0]).abs() <= 6 * (variance[0] / draws).sqrt() + 1e-12).all()
    torch.testing.assert_close(out.var(0), variance[0].detach(), rtol=0.2, atol=1e-12)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("pairs", ["nothing", "mix 1 residual", "mix 3 residual", "cope"])
def test_the_backward_pass_of_tiles_drops_the_same_weights(pairs: str) -> None:
    a = Attention.make(pairs, "documents")

    def run() -> Tensor:
        torch.manual_seed(3)
        return attend(a.q, a.k, a.v, a.layout, a.pairs, dropout=0.4, backend="tiled")

    out, grad = run(), Draw(5)(*a.q.shape[:3], a.v.shape[-1]).detach()
    dq, dv = torch.autograd.grad(out, [a.q, a.v], grad)
    # the output is linear in the values
    torch.testing.assert_close((dv * a.v).sum(), (out * grad).sum())
    step, along = 1e-6, Draw(6)(*a.q.shape).detach()
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            a.q.add_(along, alpha=sign * step)
            ends.append((run() * grad).sum())
            a.q.sub_(along, alpha=sign * step)
    torch.testing.assert_close((dq * along).sum(), (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("backend", ["reference", "tiled"])
def test_what_is_dropped_is_drawn_anew_and_follows_the_seed(backend: str) -> None:
    a = Attention.make("mix 1 residual", "dense")

    def run(seed: int | None = None) -> Tensor:
        if seed is not None:
            torch.manual_seed(seed)
        return attend(a.q, a.k, a.v, a.layout, a.pairs, dropout=0.4, backend=backend)

    first, second = run(1), run()
    assert not torch.equal(first, second)
    assert torch.equal(run(1), first)
    assert not torch.equal(run(2), first)


class Meter(TorchDispatchMode):
    """The largest tensor that any operation of this thread made, and the most bytes alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.peak = 0, 0
        self._alive: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {StorageWeakRef(x.untyped_storage()) for x in tree_leaves(args) if isinstance(x, Tensor)}
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                storage = x.untyped_storage()
                reference = StorageWeakRef(storage)
                if reference not in given:
                    self._alive[reference] = storage.nbytes()
                    self.largest = max(self.largest, storage.nbytes())
        self.peak = max(self.peak, self.alive())
        return result

    def alive(self) -> int:
        self._alive = {reference: size for reference, size in self._alive.items() if not reference.expired()}
        return sum(self._alive.values())


def measured(pairs: str, length: int, *, backend: str = "tiled", layout: str = "dense", grad: bool = True) -> Meter:
    a = sized(pairs, layout, (1, length, 2, 1, 4, 4), dtype=torch.float32)
    with Meter() as meter, torch.set_grad_enabled(grad):
        out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend=backend)
        if grad:
            torch.autograd.grad(out, a.inputs, torch.ones_like(out), allow_unused=True)
    return meter


@pytest.fixture
def metered(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """Only this thread's operations are metered. Tiles a little larger, for each of their operations is."""
    tiles_of(monkeypatch, rows=16, keys=16, pairs=256, scores=4096)


@pytest.mark.usefixtures("metered")
@pytest.mark.parametrize("layout", ["dense", "documents", "ids that jump"])
@pytest.mark.parametrize(
    "pairs", ["nothing", "table", "mix 1 residual", "mix 3 residual", "mix 3 of ramp", "cope", "log dot"]
)
def test_the_memory_of_tiles_grows_no_faster_than_length(pairs: str, layout: str) -> None:
    short, long = (measured(pairs, length, layout=layout) for length in (96, 192))
    assert long.peak <= 2.1 * short.peak
    assert long.largest <= 2.1 * short.largest
    quadratic = measured(pairs, 192, backend="reference", layout=layout)
    assert quadratic.largest > 4 * long.largest


@pytest.mark.usefixtures("metered")
@pytest.mark.parametrize("pairs", ["table", "ramp", "fire", "log dot", "distance dot"])
def test_sdpa_never_holds_a_bias_of_all_pairs(pairs: str) -> None:
    short, long = (measured(pairs, length, backend="sdpa", grad=False) for length in (256, 512))
    assert long.largest <= 2.1 * short.largest
    assert long.largest < 512 * 512


@pytest.mark.usefixtures("metered")
@pytest.mark.parametrize("backend", [backend.name for backend in BACKENDS])
def test_without_gradients_nothing_is_kept(backend: str) -> None:
    a = Attention.make("nothing" if backend == "sdpa" else "mix 3 residual", "dense", dtype=torch.float32)
    if reason := named(backend).refuses(a.call):
        pytest.skip(reason)
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    with torch.no_grad(), torch.autograd.graph.saved_tensors_hooks(keep, keep), Meter() as meter:
        out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend=backend)
    assert kept == []
    assert out.grad_fn is None
    assert meter.alive() == out.untyped_storage().nbytes()


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("pairs", ["nothing", "table", "mix 1 residual", "mix 3 residual", "mix 3 of ramp", "cope"])
def test_what_tiles_keep_for_the_backward_pass_is_linear(pairs: str) -> None:
    def kept(length: int) -> int:
        total: list[int] = []

        def keep(x: Tensor) -> Tensor:
            total.append(x.numel())
            return x

        a = sized(pairs, "dense", (1, length, 2, 1, 4, 4))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            attend(a.q, a.k, a.v, a.layout, a.pairs, backend="tiled")
        return sum(total)

    assert kept(400) <= 2.1 * kept(200)


GROWTH = """
import resource, sys, torch
from adapos import Layout, Shape, attend, build, Keys
torch.set_num_threads(2)
encoding = build(sys.argv[1], Shape(layers=1, width=64, heads=4))
def run(length):
    q, k, v = (torch.randn(1, 4, length, 16, requires_grad=True) for _ in range(3))
    layout = Layout.dense(1, length)
    attend(q, k, v, layout, encoding.pairs(0, q, Keys(k, v), layout), backend="tiled").sum().backward()
run(256)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(int(sys.argv[2]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("spec", ["kerple + dape(width=8)", "alibi + dape(width=8, kernel=3)"])
def test_a_long_text_takes_a_fraction_of_the_memory_of_its_pairs(spec: str) -> None:
    done = subprocess.run([sys.executable, "-c", GROWTH, spec, "4096"], capture_output=True, text=True, check=True)
    kilobytes = int(done.stdout)
    # one float32 matrix of all pairs and heads is 256 MB; the plain way holds several
    assert kilobytes < 96 * 1024


def test_a_mix_of_one_kernel_serves_tables_that_end_before_the_longest_distance() -> None:
    """Whatever lies past the last column reads the last column, in every backend."""
    for columns, zero in ((1, 0), (2, 1), (40, 0), (80, 40)):
        draw = Draw(1)
        at = Sizes(1, 2, 2, 20, 20)
        pairs = Pairs((table(draw, at, columns, zero),), head_mix(draw, at, kernel=3))
        a = Attention(draw(1, 2, 20, 4), draw(1, 2, 20, 4), draw(1, 2, 20, 4), Layout.dense(1, 20), pairs)
        assert max(errors(a).values()) < EXACT
