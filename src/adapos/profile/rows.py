"""Results: one tidy row for each measurement, encoding and length, and the files they are kept in."""

from __future__ import annotations

import csv
import io
import json
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from adapos import files
from adapos.profile.machine import Machine
from adapos.profile.plan import PLAIN

NOISE = 0.15  # a spread above this is noise
FILES = ("profile.json", "profile.csv", "profile.html")
QUARTERS = 5  # repeats from which the spread is that of the middle half


@dataclass(frozen=True)
class Row:
    """Ratios are to plain attention in the same repeat. A row without numbers says why in its note."""

    what: str
    encoding: str
    length: int
    backend: str | None = None
    milliseconds: float | None = None  # the median
    ratio: float | None = None  # the median
    ratio_least: float | None = None
    ratio_most: float | None = None
    spread: float | None = None
    noisy: bool = False
    ratios: tuple[float, ...] = ()  # of every repeat
    extra_memory: int | None = None  # bytes
    flops: int | None = None
    share_of_peak: float | None = None  # of arithmetic
    share_of_bandwidth: float | None = None  # in decoding: bytes of the cache a second
    tokens_per_second: float | None = None  # of a model
    parameters: int | None = None  # of a model
    refused: dict[str, str] = field(default_factory=dict)  # backends, and why they did not run it
    note: str = ""

    @property
    def name(self) -> str:
        return named(self.what, self.length, self.encoding)


def named(what: str, length: int, encoding: str) -> str:
    """'forward, 512 tokens: kerple'"""
    return f"{what}, {length} tokens: {encoding}"


def spread(ratios: Sequence[float]) -> float | None:
    """How far repeats lie apart, of their median: the middle half of five or more, the whole range of fewer."""
    if len(ratios) < 2:
        return None
    if len(ratios) < QUARTERS:
        low, high = min(ratios), max(ratios)
    else:
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return (high - low) / statistics.median(ratios)


@dataclass
class Results:
    machine: Machine
    settings: dict[str, Any]
    command: str
    rows: list[Row] = field(default_factory=list)
    finished: bool = False
    tiles: list[dict[str, Any]] = field(default_factory=list)  # that Triton's tuner chose, on a GPU
    failures: dict[str, str] = field(default_factory=dict)  # tracebacks of what broke, by the names of rows
    lost: str = ""  # what took the GPU with it, and how

    @property
    def telling(self) -> bool:
        """Whether an encoding ran, or broke: refusals are known without measuring."""
        ran = any(row.milliseconds is not None and row.encoding != PLAIN for row in self.rows)
        return ran or bool(self.failures)

    def to_json(self) -> str:
        return json.dumps({"format": 1, **asdict(self)}, indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Results:
        held = json.loads(text)
        if held.pop("format", None) != 1:
            raise ValueError("this is no profile of format 1; make it again with `adapos profile`")
        rows = [Row(**row | {"ratios": tuple(row["ratios"])}) for row in held.pop("rows")]
        return cls(machine=Machine(**held.pop("machine")), rows=rows, **held)

    def to_csv(self) -> str:
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(field.name for field in fields(Row))
        table.writerows([_cell(getattr(row, field.name)) for field in fields(Row)] for row in self.rows)
        return text.getvalue()


def rows_of_csv(text: str) -> list[Row]:
    words = {field.name for field in fields(Row) if str(field.type).startswith("str")}
    found = []
    for line in csv.DictReader(io.StringIO(text)):
        values: dict[str, Any] = {
            name: cell if name in words else json.loads(cell) for name, cell in line.items() if cell
        }
        found.append(Row(**values | {"ratios": tuple(values["ratios"])}))
    return found


def _cell(value: Any) -> str:
    """Words as they are, nothing for None, and all else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def whole(path: Path) -> bool:
    """Whether a profile is there, of any version, whose run came to its end."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # none, or something else
        return False
    return isinstance(held, dict) and "rows" in held and held.get("finished") is True


class Folder:
    """Where results are kept. One that was made for nothing goes again.

    A whole profile makes way for another whole one only: until then it waits as `profile-earlier`.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        if not path:
            raise ValueError("out must name a folder, and '' names none; write . for this one")
        self.made, self.kept = not self.path.exists(), False
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise ValueError(
                f"out ({path}) must be a folder, and cannot be made one: {problem.strerror}; choose another"
            ) from None
        try:
            tempfile.TemporaryFile(dir=self.path).close()
        except OSError as problem:
            raise ValueError(
                f"out ({path}) must be a folder that can be written to: {problem.strerror}; choose another"
            ) from None

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        if self.made:
            with suppress(OSError):  # it holds something
                self.path.rmdir()

    def keep(self, results: Results) -> None:
        if not self.kept:
            self.set_aside()
        self.kept = True
        self.write("profile.json", results.to_json())
        self.write("profile.csv", results.to_csv())
        if results.finished and whole(self.earlier("profile.json")):
            for name in FILES:
                self.earlier(name).unlink(missing_ok=True)

    def set_aside(self) -> None:
        """Files of two runs would not go together."""
        if whole(self.path / "profile.json"):
            for name in FILES:
                with suppress(FileNotFoundError):
                    (self.path / name).replace(self.earlier(name))
        (self.path / "profile.html").unlink(missing_ok=True)

    def spared(self) -> str:
        """Where a whole profile waits, or nothing."""
        place = self.earlier("profile.json")
        return f"; the whole profile that was here before is {place}" if whole(place) else ""

    def earlier(self, name: str) -> Path:
        return self.path / name.replace("profile", "profile-earlier")

    def write(self, name: str, text: str) -> None:
        files.write(self.path / name, text)
