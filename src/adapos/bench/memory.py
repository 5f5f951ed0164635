"""The most memory that this process has held, since it was last forgotten."""

from __future__ import annotations

import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak(device: str) -> None:
    """So that a trial is not charged for those before it. Where the system cannot forget, the peak is of them all."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):
        FORGET.write_text("5")


def peak(device: str) -> int:
    """In bytes."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    if STATUS.exists() and (found := re.search(r"^VmHWM:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)):
        return int(found[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
