"""Quality by place on the grid of a task, such as the depth of a fact: what heat maps are drawn of."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from adapos.bench.report.results import Comparison
from adapos.bench.rows import Row

# of the cividis scale, which reads alike to every kind of colour vision
SHADES = ("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838")


@dataclass(frozen=True)
class Grid:
    """Of one encoding, the mean at each place, from the lowest line up; None where there was no exam."""

    encoding: str
    names: tuple[str, str]  # of the axes
    across: list[str]
    up: list[str]
    cells: list[list[float | None]]
    ends: tuple[float, float]  # the values of the first shade and of the last
    shades: tuple[str, ...]  # from the least value to the greatest


def grids(comparison: Comparison) -> Iterator[Grid]:
    """Of each encoding; none where the task has no grid."""
    marked = [row for row in comparison.rows if row.marks and math.isfinite(row.value)]
    if not marked:
        return
    first, *more = marked[0].marks
    x, y = (first, more[0]) if more else ("length", first)

    def of(row: Row, name: str) -> float:
        return row.length if name == "length" else row.marks[name]

    across, up = (Stretches({of(row, name) for row in marked}, comparison.lengths) for name in (x, y))
    cells: dict[str, dict[tuple[int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in marked:
        cells[row.encoding][up.at(of(row, y)), across.at(of(row, x))].append(row.value)
    values = [row.value for row in marked]
    ends, shades = ((min(values), max(values)), SHADES[::-1]) if comparison.measure.lower else ((0.0, 1.0), SHADES)
    for encoding in comparison.encodings:
        if encoding in cells:
            z: list[list[float | None]] = [[None] * len(across.labels) for _ in up.labels]
            for (i, j), found in cells[encoding].items():
                z[i][j] = float(np.mean(found))
            yield Grid(encoding, (x, y), across.labels, up.labels, z, ends, shades)


class Stretches:
    """The places of one axis of a grid: its values, or, where those are many, the stretches between lengths."""

    def __init__(self, values: set[float], lengths: list[int]) -> None:
        self.ends = sorted(values)
        self.labels = [f"{value:,g}" for value in self.ends]
        if len(self.ends) > max(len(lengths), 12) and self.ends[-1] <= lengths[-1]:
            starts = [1, *(length + 1 for length in lengths[:-1])]
            self.ends = list(map(float, lengths))
            self.labels = [f"{a:,}\N{EN DASH}{b:,}" for a, b in zip(starts, lengths, strict=True)]

    def at(self, value: float) -> int:
        return int(np.searchsorted(self.ends, value))
