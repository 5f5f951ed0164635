"""The machine: what it is, and its measured peak of arithmetic and of memory traffic."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import torch

from adapos.kernels.triton import VERSION
from adapos.kernels.triton.problem import tf32

SIDE = 2048  # of the matrices whose product is the peak
COPIED = 2**28  # bytes
TRIALS = 5
PATIENCE = 0.2  # seconds: where a product takes longer, no larger one is tried
# variables of the environment that change what runs, or how fast
VARIABLES = (
    "ADAPOS_NATIVE_TARGET",
    "ADAPOS_TRITON_ATOMIC",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE",
    "TRITON_INTERPRET",
)


@dataclass(frozen=True)
class Machine:
    processor: str
    cores: int  # that this process may use
    threads: int
    platform: str
    python: str
    torch: str
    adapos: str  # the version, and the commit of a clone
    flops_per_second: float  # of a product of matrices in the dtype of the run, or in float32
    bytes_per_second: float  # read and written by a copy
    gpu: dict[str, str] = field(default_factory=dict)  # what it has, and the versions that run it
    environment: dict[str, str] = field(default_factory=dict)  # those of VARIABLES that are set


def measured(dtype: torch.dtype, device: str, adapos: str | None = None) -> Machine:
    return Machine(
        processor=processor(device),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        adapos=adapos or version("adapos"),
        flops_per_second=peak(dtype, device),
        bytes_per_second=bandwidth(device),
        gpu=gpu(device) if torch.device(device).type == "cuda" else {},
        environment={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def gpu(device: str) -> dict[str, str]:
    """What torch tells of it; what this version or this GPU does not tell is left out."""
    about = torch.cuda.get_device_properties(device)
    cache, shared = (getattr(about, name, None) for name in ("L2_cache_size", "shared_memory_per_block_optin"))
    found = {
        "capability": f"{about.major}.{about.minor}",
        "architecture": getattr(about, "gcnArchName", None) if torch.version.hip else None,
        "memory": f"{about.total_memory / 2**30:.0f} GiB",
        "multiprocessors": str(about.multi_processor_count),
        "second cache": f"{cache / 2**20:g} MiB" if cache else None,
        "shared memory of a program": f"{shared / 2**10:g} KiB" if shared else None,
        "driver": None if torch.version.hip else driver(),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "triton": triton(),
        "products of float32": "TF32" if tf32() else "exact",
    }
    return {name: fact for name, fact in found.items() if fact is not None}


def driver() -> str | None:
    """The version that nvidia-smi tells, where it runs."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.split()), None)


def triton() -> str:
    """Its version. torch for AMD's GPUs brings it under another name, which is then told too."""
    if VERSION is None:
        return "none"
    for name in packages_distributions().get("triton", ()):
        return version(name) if name == "triton" else f"{name} {version(name)}"
    return "unknown"


def tiles() -> list[dict[str, Any]]:
    """What Triton's tuner has chosen for each kind of call so far: nothing where the kernels have not run."""
    launch: Any = sys.modules.get("adapos.kernels.triton.launch")
    found = []
    for kind, config in () if launch is None else launch.CHOSEN.items():
        kernel, _, types, work, *settings = kind
        # the median, and what most runs lie between; infinite where a tile does not fit the device
        tried = [
            {**tile(each), "milliseconds": [x if math.isfinite(x) else None for x in times]}
            for each, times in launch.TRIED.get(kind, {}).items()
        ]
        found.append(
            {
                "kernel": kernel.__name__,
                "work": work,
                "types": {name: str(dtype).removeprefix("torch.") for name, dtype in types},
                "settings": {name: x for name, x in zip(launch.KIND, settings, strict=True) if x is not None},
                "tile": tile(config),
                "tried": tried,
            }
        )
    return found


def tile(config: Any) -> dict[str, int]:
    return {**config.kwargs, "warps": config.num_warps, "stages": config.num_stages}


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


def answers(device: str) -> bool:
    """Whether a GPU does: an illegal access to its memory is the end of it for a process."""
    try:
        wait(device)
    except RuntimeError:
        return False
    return True


def wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
