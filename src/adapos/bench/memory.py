"""The most memory that a trial has held."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress

import torch

from adapos import resident


def forget_peak(device: str) -> None:
    """So that a trial is not charged for those before it. Where the system cannot forget, the peak is of them all."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):
        resident.forget_peak()


def peak(device: str) -> int:
    """In bytes."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    if resident.STATUS.exists():
        return resident.resident("VmHWM")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
