"""Results: one tidy row for each number, appended to a file of JSON lines."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

SIDE_BY_SIDE = "side by side"  # the protocol of speeds that can be compared


@dataclass(frozen=True)
class Row:
    """One number, and all that is needed to say what it is and where it came from.

    | metric                                         | protocol        | marks                  |
    |------------------------------------------------|-----------------|------------------------|
    | perplexity, bits_per_byte                      | how it was read |                        |
    | loss                                           | position        | position: where, from 0 |
    | accuracy, exact                                | exam            | of the task's grid     |
    | adaptive_share, adaptive_variation             | adaptation      | layer                  |
    | tokens_per_second, peak_bytes, seconds, loss   | training        |                        |
    | tokens_per_second                              | side by side    | round                  |
    | jumps of the loss, with the steps in the note  | training        |                        |
    | failed (value 1, with the reason in the note)  | training, or evaluation at a length |    |
    """

    trial: str  # the name of its folder
    encoding: str
    seed: int
    task: str
    version: int  # of the task
    protocol: str
    train_length: int
    length: int
    metric: str
    value: float
    n: int = 1  # numbers that the value is a mean of
    error: float | None = None  # the standard error of the value
    marks: dict[str, float] = field(default_factory=dict)  # other axes, such as depth
    backend: str = ""
    seconds: float | None = None  # that the evaluation took
    tokens_per_second: float | None = None
    peak_bytes: int | None = None
    parameters: int = 0
    positional: int = 0  # parameters of the encoding
    steps: int = 0
    tokens: int = 0  # trained on
    commit: str = ""
    note: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """What the number is of: a later row with the same key takes the place of an earlier one."""
        marks = tuple(sorted(self.marks.items()))
        return self.trial, self.task, self.protocol, self.length, self.metric, marks


def way(row: Any) -> str:
    """How it was read, without how much: `last` of `last 64 of 32 x 4096`."""
    protocol: str = row.protocol
    return protocol if protocol == SIDE_BY_SIDE else protocol.partition(" ")[0]


def append(path: Path, rows: Iterable[Row]) -> None:
    """All rows or none: they are written in one piece, after a line that an interruption may have left half."""
    lines = "".join(json.dumps(asdict(row), allow_nan=True) + "\n" for row in rows)
    try:
        _append(path, lines)
    except OSError as problem:
        raise ValueError(f"rows cannot be kept in {path}: {problem.strerror}; make room and run it again") from None


def _append(path: Path, lines: str) -> None:
    with open(path, "ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # trials may end together
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                lines = "\n" + lines
        try:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            os.ftruncate(file.fileno(), size)
            raise


def read(path: Path) -> list[Row]:
    """The rows in the order of writing, each key once, the last of its rows. A line that is damaged is passed over."""
    names = {each.name for each in fields(Row)}
    found: dict[tuple[Any, ...], Row] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            held = json.loads(line)
            row = Row(**{name: value for name, value in held.items() if name in names})
            if not whole(row):
                continue
        except (ValueError, TypeError, AttributeError):
            continue
        found.pop(row.key, None)
        found[row.key] = row
    return list(found.values())


MARKED = {"position": "position", "adaptation": "layer", SIDE_BY_SIDE: "round"}  # what rows of a protocol must have


def whole(row: Row) -> bool:
    """Whether it is such a row as was written."""
    numbers = [row.value, row.length, row.n, row.seed, *row.marks.values()]
    names = (row.trial, row.encoding, row.task, row.protocol, row.metric)
    needed = MARKED.get(row.protocol)
    return (
        all(isinstance(number, int | float) for number in numbers)
        and all(isinstance(name, str) for name in names)
        and (needed is None or needed in row.marks)
    )
