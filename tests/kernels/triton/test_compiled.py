"""The Triton kernels compiled for GPUs, without one: they fit, need no more than was written down, know no lengths."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adapos.kernels import triton
from cases import Attention

installed = pytest.importorskip("triton")
pytestmark = [
    pytest.mark.skipif(triton.INTERPRETED, reason="what is interpreted is not compiled"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]


KERNELS = ["weigh", "weigh, forward", "gather", "differentiate", "differentiate, sums", "unmix", "learn", "tally"]
MODEL = ("kernel", "dtype", "heads", "width", "channels", "taps", "terms")


@contextmanager
def tool(name: str) -> Iterator[Any]:
    """A module of tools/."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[3] / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


@pytest.fixture(scope="module")
def resources() -> Iterator[Any]:
    with tool("resources") as module:
        yield module


@pytest.fixture(scope="module")
def arithmetic() -> Iterator[Any]:
    with tool("arithmetic") as module:
        yield module


@pytest.fixture(scope="module")
def written(resources: Any) -> dict[Any, Any]:
    found: dict[Any, Any] = resources.read()
    (compiled_with,) = {needs.triton for needs in found.values()}
    if compiled_with != installed.__version__:
        pytest.skip(f"what was written down was compiled with Triton {compiled_with}, not {installed.__version__}")
    return found


def checked(case: Any, resources: Any, written: dict[Any, Any]) -> dict[str, str]:
    """What a kernel needs beyond what was written down."""
    found, before = resources.compiled(case), written[case]
    wrong = {
        name: f"{now} > {then}"
        for name in ("registers", "spilled", "shared")
        if (now := getattr(found, name)) > (then := getattr(before, name))
    }
    if found.shared > resources.LIMITS[case.target]:
        wrong["limit"] = f"{found.shared} > {resources.LIMITS[case.target]}"
    return wrong


def test_they_fit_and_need_no_more_than_was_written_down(resources: Any, written: dict[Any, Any]) -> None:
    cases = list(resources.cases(some=True))
    assert {case for case in cases if case not in written} == set()
    assert {str(case): wrong for case in cases if (wrong := checked(case, resources, written))} == {}


def test_all_of_them_are_written_down(resources: Any) -> None:
    assert set(resources.cases()) == set(resources.read())


@pytest.mark.full
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_all_of_them_fit_and_need_no_more_than_was_written_down(
    kernel: str, target: str, resources: Any, written: dict[Any, Any]
) -> None:
    cases = [case for case in written if (case.kernel, case.target) == (kernel, target)]
    assert cases
    assert {str(case): wrong for case in cases if (wrong := checked(case, resources, written))} == {}


def test_every_model_has_tiles_that_spill_little_or_nothing(resources: Any) -> None:
    """Nothing in half precision with up to three taps."""
    found: dict[tuple[object, ...], int] = {}
    for case, needs in resources.read().items():
        if case.dtype == "fp32" or case.taps > 3:
            needs = replace(needs, spilled=max(0, needs.spilled - 96))
        model = case.target, *(getattr(case, name) for name in MODEL)
        found[model] = min(found.get(model, needs.spilled), needs.spilled)
    assert len(found) > 100
    assert {model: spilled for model, spilled in found.items() if spilled} == {}


def test_every_model_has_tiles_that_fit_smaller_devices(resources: Any) -> None:
    """Those of compute capability 8.6 and 8.9, with the instructions of 8.0, have 99 KiB for a program."""
    found: dict[tuple[object, ...], list[int]] = {}
    for case, needs in resources.read().items():
        if case.target == "sm_80":
            found.setdefault(tuple(getattr(case, name) for name in MODEL), []).append(needs.shared)
    assert found
    assert {model: shared for model, shared in found.items() if min(shared) > 99 * 1024} == {}


def test_the_page_of_their_design_reckons_with_their_tiles(arithmetic: Any) -> None:
    page = arithmetic.PAGE.read_text(encoding="utf-8")
    assert arithmetic.written(page) == page


def test_a_page_without_marks_is_refused(arithmetic: Any) -> None:
    with pytest.raises(ValueError, match="must hold the marks <!-- fits --> and <!-- /fits --> once; add them"):
        arithmetic.written("# The GPU kernels")


@pytest.mark.parametrize("heads", [2, 3])
@pytest.mark.parametrize("pairs", ["table", "ramp", "mix 1 residual", "mix 3 of ramp"])
def test_no_length_is_compiled_for(pairs: str, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    from adapos.kernels.triton import launch, ops
    from adapos.kernels.triton.terms import prepared

    backend, keys = make_backend(GPUTarget("cuda", 80, 32)), set()

    def start(self: Any, grid: Any, arguments: dict[str, Any]) -> None:
        """What a launch would be looked up by, among kernels that are compiled."""
        assert min(grid(self.tiles[0].sizes)) >= 1
        taken = {name: x for name, x in arguments.items() if name in self.names}
        binder = create_function_from_signature(self.run.signature, self.run.params, backend)
        _, specialization, _ = binder(**taken, **self.configurations(taken)[0].kwargs)
        keys.add((self.run.__name__, str(specialization)))

    monkeypatch.setattr(launch.Kernel, "__call__", start)
    counts = []
    for length in (17, 1, 16, 48, 100, 129, 1000):
        a = Attention.make(
            pairs, "dense", length=length, batch=1, heads=heads, groups=1, width=16, values=16, dtype=torch.float32
        )
        call = a.call
        numbers = [0, 0, 1, prepared(call).zero, 1]
        inputs = [x.detach() for x in (call.q, call.k, call.v)]
        rest = [None if x is None else x.detach() for x in prepared(call).tensors()]
        out, ends = ops.forward(*inputs, None, None, None, None, *rest, numbers, 0.25)
        ops.backward(out, out, ends, *inputs, None, None, None, None, *rest, numbers, 0.25)
        counts.append(len(keys))
    # forward and backward are told apart, and nothing else
    assert counts[0] >= 2
    assert counts[-1] == counts[0]


def test_what_is_tried_does_not_depend_on_lengths() -> None:
    from adapos.kernels.triton import launch
    from adapos.kernels.triton.tile import LENGTHS

    assert not {*LENGTHS, "texts", "tall", "parts", "share"} & set(launch.KIND)


def test_without_a_gpu_it_refuses_and_triton_is_not_loaded() -> None:
    code = (
        "import sys, torch, adapos; q = torch.randn(1, 2, 5, 8); "
        "print(dict(adapos.explain(q, q, q, adapos.Layout.dense(1, 5)))['triton'], 'triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "it runs on GPUs, and these tensors are on cpu False\n"


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@pytest.mark.parametrize("taps", [1, 3, 5, triton.TAPS])
def test_every_kernel_has_tiles_to_try_for_up_to_all_heads_that_it_takes(taps: int, precision: str) -> None:
    from adapos.kernels.triton import launch, sizes

    for heads in (1, 16, triton.HEADS):
        for width in (16, triton.WIDEST):
            of = {"HEADS": sizes.up(heads), "TAPS": taps, "CHANNELS": 64, "VALUES": width, "PRECISION": precision}
            for kernel in launch.KERNELS.values():
                tiles = kernel.fitting(of)
                assert 0 < len(tiles) <= launch.TRIES
                assert all(tile.useful(taps) > 0 for tile in tiles)
