"""What this process holds and has held in memory, as Linux tells it."""

from __future__ import annotations

from pathlib import Path

STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(name: str) -> int:
    """Bytes: VmRSS is what the process holds now, VmHWM the most it has held."""
    (line,) = [line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith(f"{name}:")]
    return 1024 * int(line.split()[1])


def forget_peak() -> None:
    """VmHWM begins anew; ru_maxrss never does, and starts with that of the process which started this one."""
    FORGET.write_text("5", encoding="ascii")


def exhausted(problem: BaseException) -> bool:
    """Whether it says that there is none left: torch's allocators raise a RuntimeError."""
    return isinstance(problem, MemoryError) or "memory" in str(problem)
