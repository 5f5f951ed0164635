"""Signals that ask for an end: heard while something runs, and given back afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


class Stopped(Exception):
    """A signal asked for an end; what has been done is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}: run the same command again to go on")
        self.number = number


def stop(number: int, frame: Any) -> NoReturn:
    """For what keeps nothing that is half done."""
    raise Stopped(number)


def endings() -> list[int]:
    """SIGTERM, SIGINT, and SIGHUP of a terminal that went away, unless nohup has it ignored."""
    found: list[int] = [signal.SIGTERM, signal.SIGINT]
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        found.append(hangup)
    return found


@contextmanager
def heard(asked: Callable[[int, Any], object]) -> Iterator[None]:
    """`asked` is called with the number of a signal that asks for an end."""
    try:
        before = {number: signal.signal(number, asked) for number in endings()}
    except ValueError:  # not in the main thread, where no signal arrives
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
