"""The machine: what it is, and its measured peak of arithmetic and of memory traffic."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

SIDE = 2048  # of the matrices whose product is the peak
COPIED = 2**28  # bytes
TRIALS = 5
PATIENCE = 0.2  # seconds: where a product takes longer, no larger one is tried


@dataclass(frozen=True)
class Machine:
    processor: str
    cores: int  # that this process may use
    threads: int
    platform: str
    python: str
    torch: str
    adapos: str
    flops_per_second: float  # of a product of matrices in the dtype of the run, or in float32
    bytes_per_second: float  # read and written by a copy
    gpu: dict[str, str] = field(default_factory=dict)  # its capability and memory, and the versions that run it


def measured(dtype: torch.dtype, device: str) -> Machine:
    return Machine(
        processor=processor(device),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        adapos=version("adapos"),
        flops_per_second=peak(dtype, device),
        bytes_per_second=bandwidth(device),
        gpu=gpu(device) if torch.device(device).type == "cuda" else {},
    )


def gpu(device: str) -> dict[str, str]:
    about = torch.cuda.get_device_properties(device)
    return {
        "capability": f"{about.major}.{about.minor}",
        "memory": f"{about.total_memory / 2**30:.0f} GiB",
        "cuda": str(torch.version.cuda or torch.version.hip),
        "triton": version("triton") if find_spec("triton") else "none",
    }


def processor(device: str) -> str:
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def peak(dtype: torch.dtype, device: str) -> float:
    """Operations a second of a product of square matrices, the best of several.

    A CPU without units for half precision is quicker in float32, in which attention computes its logits anyway.
    """
    halved = dtype.itemsize < 4 and torch.device(device).type == "cpu"
    return max(_peak(kind, device) for kind in ((dtype, torch.float32) if halved else (dtype,)))


def _peak(dtype: torch.dtype, device: str) -> float:
    largest = 4 * SIDE if torch.device(device).type == "cuda" else SIDE  # a GPU is not filled by less
    side, found = min(512, largest), 0.0
    while True:
        a, b = torch.randn(2, side, side, device=device).to(dtype)
        out = torch.empty_like(a)
        took = best(lambda a=a, b=b, out=out: torch.mm(a, b, out=out), device)  # type: ignore[misc]
        found = max(found, 2 * side**3 / took)
        if side >= largest or took > PATIENCE:
            return found
        side = min(2 * side, largest)


def bandwidth(device: str) -> float:
    """Bytes a second that a copy reads and writes, the best of several."""
    source = torch.ones(COPIED // 4, device=device)
    target = torch.zeros_like(source)
    return 2 * COPIED / best(lambda: target.copy_(source), device)


def best(run: Callable[[], object], device: str) -> float:
    run()
    return min(seconds(run, device) for _ in range(TRIALS))


def seconds(run: Callable[[], object], device: str, count: int = 1) -> float:
    """Of one of `count` runs, on average."""
    wait(device)
    begin = time.perf_counter()
    for _ in range(count):
        run()
    wait(device)
    return (time.perf_counter() - begin) / count


def wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
