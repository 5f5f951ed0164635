"""Vector figures for papers: the curves of a comparison as SVG with real text, at the width of a column."""

from __future__ import annotations

from adapos.bench.report import words
from adapos.bench.report.curves import Point, axis, points, runs
from adapos.bench.report.results import Comparison, Results
from adapos.plots import Axis, Look, looks
from adapos.svg import Plot


def files(results: Results) -> dict[str, str]:
    """The text of each file by its name."""
    return {f"{each.measure.name}.svg": curves(each) for each in results.comparisons}


def curves(comparison: Comparison) -> str:
    drawn = points(comparison)
    look = looks(comparison.encodings)
    across = Axis.lengths([*comparison.lengths, comparison.train_length])
    up = axis(comparison.measure, [x for each in drawn.values() for point in each for x in (point.low, point.high)])
    plot = Plot(words.title(comparison.measure), across, up, ("length", words.named(comparison.measure)))
    plot.rule(comparison.train_length, "trained")
    for encoding, found in drawn.items():
        line(plot, found, look[encoding])
    return plot.svg({encoding: look[encoding] for encoding in drawn})


def line(plot: Plot, found: list[Point], look: Look) -> None:
    """The band over seeds, the line through the means, and their marks."""
    for run in runs(found):
        lengths, means = [point.length for point in run], [point.mean for point in run]
        plot.band(lengths, [point.low for point in run], [point.high for point in run], look)
        plot.line(lengths, means, look)
        for point in run:
            plot.mark(point.length, point.mean, look)
