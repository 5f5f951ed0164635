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


@contextmanager
def heard(asked: Callable[[int, Any], object]) -> Iterator[None]:
    """`asked` is called with the number of SIGTERM or SIGINT."""
    try:
        before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not in the main thread, where no signal arrives
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
