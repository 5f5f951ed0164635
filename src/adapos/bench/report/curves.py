"""Quality against length, as points: what the page and the vector figures both draw."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from adapos.bench.report.results import Comparison, Measure
from adapos.plots import Axis


class Point(NamedTuple):
    """NaN where an encoding diverged or has no number."""

    length: int
    mean: float
    low: float
    high: float


def points(comparison: Comparison) -> dict[str, list[Point]]:
    """Of each encoding that has any number."""
    found: dict[str, list[Point]] = {}
    for encoding in comparison.encodings:
        line = []
        for length in comparison.lengths:
            score = comparison.scores.get((encoding, length))
            here = (math.nan,) * 3 if score is None or score.diverged else (score.mean, score.low, score.high)
            line.append(Point(length, *here))
        if any(math.isfinite(point.mean) for point in line):
            found[encoding] = line
    return found


def runs(line: list[Point]) -> list[list[Point]]:
    """The stretches of a line between its holes."""
    return [list(group) for there, group in groupby(line, key=lambda point: math.isfinite(point.mean)) if there]


def axis(measure: Measure, values: Iterable[float]) -> Axis:
    finite = [value for value in values if math.isfinite(value)]
    if measure.logarithmic:
        return Axis.logarithmic(finite)
    return Axis.linear(finite) if measure.lower else Axis.share()
