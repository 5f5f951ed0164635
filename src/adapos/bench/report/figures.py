"""Vector figures for papers: curves and heat maps of a comparison as SVG with real text, at the width of a column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from adapos.bench.report import words
from adapos.bench.report.curves import Point, axis, points, runs
from adapos.bench.report.grids import Grid, grids
from adapos.bench.report.results import Comparison, Results
from adapos.plots import Axis, Look, looks
from adapos.svg import COLUMN, Plot, whole


def files(results: Results) -> dict[str, str]:
    """The text of each file by its name."""
    found = {}
    for each in results.comparisons:
        found[f"{each.measure.name}.svg"] = curves(each)
        if drawn := heat_maps(each):
            found[f"{each.measure.name}-by-place.svg"] = drawn
    return found


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


ACROSS = 3  # heat maps side by side
CELLS, LABELS, GAP = 80.0, 29.0, 22.0  # of a heat map: its cells, what stands left of them and below, and above


def heat_maps(comparison: Comparison) -> str:
    """One for each encoding, with one scale for all below them; nothing where the task has no grid."""
    found = list(grids(comparison))
    if not found:
        return ""
    parts: list[str] = []
    for at, grid in enumerate(found):
        parts += heat(grid, LABELS + at % ACROSS * (CELLS + LABELS + 4), GAP + at // ACROSS * (CELLS + LABELS + GAP))
    height = -(-len(found) // ACROSS) * (CELLS + LABELS + GAP) + 14
    return whole(words.title(comparison.measure), COLUMN.width, height + 16, 8, [*parts, *scale(found[0], height)])


def heat(grid: Grid, left: float, top: float) -> Iterator[str]:
    wide, high = CELLS / len(grid.across), CELLS / len(grid.up)
    low, most = grid.ends
    yield f'<text x="{left:.1f}" y="{top - 5:.1f}" class="ink">{escape(shortened(grid.encoding))}</text>'
    for i, line in enumerate(grid.cells):
        for j, value in enumerate(line):
            if value is not None:
                x, y = left + j * wide, top + CELLS - (i + 1) * high
                fill = shade(grid.shades, (value - low) / ((most - low) or 1.0))
                said = f"{grid.names[0]} {grid.across[j]}, {grid.names[1]} {grid.up[i]}: {value:.2f}"
                yield (
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{fill}">'
                    f"<title>{escape(said)}</title></rect>"
                )
    for at in ends(len(grid.across)):
        x = left + (at + 0.5) * wide
        yield f'<text x="{x:.1f}" y="{top + CELLS + 9:.1f}" text-anchor="middle" class="ink">{grid.across[at]}</text>'
    for at in ends(len(grid.up)):
        y = top + CELLS - (at + 0.5) * high + 3
        yield f'<text x="{left - 3:.1f}" y="{y:.1f}" text-anchor="end" class="ink">{grid.up[at]}</text>'
    middle = left + CELLS / 2
    yield f'<text x="{middle:.1f}" y="{top + CELLS + 9:.1f}" text-anchor="middle" class="ink">{grid.names[0]}</text>'
    x, y = left - 14, top + CELLS / 2
    yield (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" class="ink" transform="rotate(-90 {x:.1f} {y:.1f})">'
        f"{grid.names[1]}</text>"
    )


def scale(grid: Grid, top: float) -> Iterator[str]:
    """What shades stand for, from the first to the last."""
    steps, left, wide = 60, 120.0, 100.0
    for at in range(steps):
        fill = shade(grid.shades, at / (steps - 1))
        x = left + at * wide / steps
        yield f'<rect x="{x:.1f}" y="{top}" width="{wide / steps + 0.3:.1f}" height="7" fill="{fill}"/>'
    for value, x, anchor in ((grid.ends[0], left - 4, "end"), (grid.ends[1], left + wide + 4, "start")):
        yield f'<text x="{x}" y="{top + 7}" text-anchor="{anchor}" class="ink">{value:.3g}</text>'


def shade(shades: Sequence[str], share: float) -> str:
    """Between the two shades that are nearest."""
    place = min(max(share, 0.0), 1.0) * (len(shades) - 1)
    at = min(int(place), len(shades) - 2)
    both = [[int(shades[i][k : k + 2], 16) for k in (1, 3, 5)] for i in (at, at + 1)]
    return "#" + "".join(f"{round(a + (b - a) * (place - at)):02x}" for a, b in zip(*both, strict=True))


def ends(count: int) -> list[int]:
    """The places that are labelled."""
    return sorted({0, count - 1})


def shortened(name: str) -> str:
    most = 25
    return name if len(name) <= most else f"{name[: most - 1]}…"
