"""The Triton kernels on a GPU, against the reference in float64 there: `make test-triton` runs this where one is."""

from __future__ import annotations

import pytest
import torch

from adapos import Layout, SelfAttention, attend
from adapos.kernels import triton
from cases import LAYOUTS, Attention
from judge import GROUPED, KNOWN, Judge, mixed, worse_than_in_halves

DEVICE = "cuda"
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.skipif(triton.INTERPRETED, reason="what is interpreted does not run on one"),
]


def judged(pairs: str, layout: str, sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> dict[str, str]:
    named = dict(zip(GROUPED, sizes, strict=True))
    judge = Judge.clear(lambda seed: Attention.make(pairs, layout, seed=seed, dtype=dtype, **named).on(DEVICE))
    return judge.beyond(judge.a.run("triton"))


@pytest.mark.parametrize("pairs", KNOWN)
def test_they_equal_the_reference_in_every_layout(pairs: str) -> None:
    assert {layout: wrong for layout in LAYOUTS if (wrong := judged(pairs, layout, (2, 47, 6, 2, 40, 24)))} == {}


@pytest.mark.parametrize("length", [1, 127, 129, 1025])
@pytest.mark.parametrize("pairs", ["nothing", "table and ramp", "mix 1 residual"])
def test_odd_lengths_are_right(pairs: str, length: int) -> None:
    assert judged(pairs, "dense", (1, length, 4, 2, 64, 64)) == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_err_at_most_twice_as_much_as_the_reference(dtype: torch.dtype) -> None:
    assert judged("table and ramp", "dense", (2, 300, 8, 2, 64, 64), dtype) == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "channels", "kernel"), [(12, 32, 1), (12, 32, 3), (32, 64, 3), (16, 144, 1)])
def test_a_mix_in_tf32_errs_less_than_one_in_halves(heads: int, channels: int, kernel: int, dtype: torch.dtype) -> None:
    assert worse_than_in_halves(mixed(heads, channels, kernel, dtype).on(DEVICE)) == {}


@pytest.mark.parametrize("pairs", ["table and ramp", "mix 3 residual"])
def test_gradients_are_the_same_from_run_to_run(pairs: str) -> None:
    a = Attention.make(pairs, "documents", length=200, dtype=torch.float32).on(DEVICE)
    first, again = a.run("triton"), a.run("triton")
    assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


def test_what_torch_compiles_is_one_graph() -> None:
    layer, x = SelfAttention(64, 4, "kerple + dape(kernel=3)", backend="triton").to(DEVICE), torch.randn(2, 70, 64)
    found = torch.compile(layer, fullgraph=True)(x.to(DEVICE))
    assert (found - layer(x.to(DEVICE))).abs().max() < 1e-4


def test_a_graph_of_launches_gives_the_same() -> None:
    a = Attention.make("mix 3 residual", "dense", length=200, dtype=torch.float32).on(DEVICE)

    def run() -> torch.Tensor:
        with torch.no_grad():
            return attend(a.q, a.k, a.v, a.layout, a.pairs, backend="triton")

    usual, graph = run(), torch.cuda.CUDAGraph()  # tiles have been tried by then
    with torch.cuda.graph(graph):
        found = run()
    graph.replay()
    assert torch.equal(found, usual)


def test_a_token_at_a_time_is_decoded_as_in_one_pass() -> None:
    a = Attention.make("mix 3 residual", "dense", batch=2, length=600, dtype=torch.float32).on(DEVICE)
    whole = attend(a.q, a.k, a.v, a.layout, a.pairs, backend="triton")
    last = attend(a.q[:, :, -1:], a.k, a.v, Layout.dense(2, 1, cached=599).to(DEVICE), a.pairs, backend="triton")
    assert (last - whole[:, :, -1:]).abs().max() < 1e-5
