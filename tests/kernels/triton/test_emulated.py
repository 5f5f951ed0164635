"""The Triton kernels as compiled for GPUs, executed instruction by instruction, against the reference in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adapos.kernels import triton
from cases import LAYOUTS, Attention
from judge import EDGE, KNOWN, Judge, made, mixed, times, worse_than_in_halves

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.skipif(triton.INTERPRETED, reason="what is interpreted is not compiled"),
    pytest.mark.slow,
    pytest.mark.usefixtures("one_thread", "poisoned"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Launches are emulated; which tile of a kernel is taken, the first unless it is told."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.compiler import ASTSource, compile, make_backend
    from triton.runtime.jit import create_function_from_signature

    from adapos.kernels.triton import launch, problem
    from ptx import Machine

    target = GPUTarget("cuda", 80, 32)
    backend, chosen = make_backend(target), dict[str, int]()

    def start(self: Any, grid: Any, arguments: dict[str, Any]) -> None:
        run = self.run
        taken = {name: x for name, x in arguments.items() if name in self.names}
        choices = self.configurations(taken)
        tile = choices[min(chosen.get(run.__name__, 0), len(choices) - 1)]
        given = {**taken, **tile.kwargs, "num_warps": tile.num_warps, "num_stages": tile.num_stages}
        bound, special, _ = create_function_from_signature(run.signature, run.params, backend)(**given)
        options, signature, constants, aligned = run._pack_args(backend, given, bound, special, None)
        built = compile(ASTSource(run, signature, constants, aligned), target, options.__dict__)
        named = [(name, bound[name]) for name, kind in signature.items() if kind != "constexpr"]
        Machine().launch(built.asm["ptx"], built.metadata.shared, grid(tile.kwargs), named)

    monkeypatch.setattr(CUDABackend, "make_cubin", lambda *_: b"")  # no device runs it, and assembling is slow
    monkeypatch.setattr(launch.Kernel, "__call__", start)
    assert not problem.INTERPRETED
    monkeypatch.setattr(triton, "INTERPRETED", True)  # for tensors of a CPU not to be refused
    return chosen


@pytest.mark.parametrize("pairs", ["nothing", "table and ramp", "mix 1 residual", "mix 3 of ramp"])
def test_compiled_kernels_equal_the_reference(pairs: str, tiles: dict[str, int]) -> None:
    for layout in ("dense", "documents", "one query"):
        judge = made(pairs, layout, (2, 21, 4, 2, 8, 5))
        assert judge.beyond(judge.a.run("triton")) == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_err_at_most_twice_as_much_as_the_reference(dtype: torch.dtype, tiles: dict[str, int]) -> None:
    judge = made("table and ramp", "dense", (2, 37, 4, 2, 16, 8), dtype)
    for number in range(4):
        tiles.update(gather=number, differentiate=number)
        assert judge.beyond(judge.a.run("triton")) == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "channels", "kernel"), [(12, 32, 1), (16, 144, 1), (12, 32, 3), (32, 32, 3)])
def test_a_mix_in_tf32_errs_less_than_one_in_halves(
    heads: int, channels: int, kernel: int, dtype: torch.dtype, tiles: dict[str, int]
) -> None:
    """With matrices that are held, and with some that are read some channels at a time."""
    assert worse_than_in_halves(mixed(heads, channels, kernel, dtype)) == {}


@pytest.mark.parametrize(("by", "width"), [(10, 32), (1000, 40)])
def test_where_one_key_has_all_the_weight_gradients_are_of_the_same_products(
    by: float, width: int, tiles: dict[str, int]
) -> None:
    """Widths by whose root a score is not divided exactly: logits of both passes must be rounded alike."""
    a = Attention.make("table", "dense", batch=1, length=21, heads=2, width=width, values=16, dtype=torch.float32)
    judge = times(a, by)
    for number in range(4):
        tiles["gather"] = number
        assert judge.beyond(judge.a.run("triton")) == {}


@pytest.mark.full
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("pairs", KNOWN)
def test_every_tile_equals_the_reference(pairs: str, number: int, tiles: dict[str, int]) -> None:
    tiles.update(dict.fromkeys(("weigh", "unmix", "learn", "gather", "differentiate"), number))
    # three layouts of all, others from one to the next
    first, found = KNOWN.index(pairs) + number, list(LAYOUTS)
    for layout in (found[(first + 5 * turn) % len(found)] for turn in range(3)):
        judge = made(pairs, layout, (2, 37, 6, 2, 20, 12))
        assert judge.beyond(judge.a.run("triton")) == {}


@pytest.mark.full
@pytest.mark.parametrize("pairs", ["mix 1 residual", "mix 3 of ramp"])
def test_sums_that_are_added_in_place_are_the_same(
    pairs: str, tiles: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapos.kernels.triton.passes.ATOMIC", True)
    judge = made(pairs, "documents", (2, 37, 6, 2, 20, 12))
    assert judge.beyond(judge.a.run("triton")) == {}


@pytest.mark.full
@pytest.mark.parametrize(("heads", "channels", "kernel"), [(32, 16, 1), (20, 70, 1), (32, 64, 3), (12, 32, 7)])
def test_matrices_of_every_width_are_right(heads: int, channels: int, kernel: int, tiles: dict[str, int]) -> None:
    judge = Judge.of(mixed(heads, channels, kernel))
    assert judge.edge > EDGE
    assert judge.beyond(judge.a.run("triton")) == {}
