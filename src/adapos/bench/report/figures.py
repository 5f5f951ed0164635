"""Vector figures for papers: the curves of a comparison as SVG with real text, at the width of a column."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from adapos.bench.report import words
from adapos.bench.report.curves import Point, axis, points, runs
from adapos.bench.report.results import Comparison, Results
from adapos.plots import DASHES, Axis, Look, looks, marked

WIDTH, HEIGHT = 340.0, 210.0  # of the plot with its labels; 340 is a column of 3.4 inches at 100 to the inch
LEFT, RIGHT, TOP, BOTTOM = 42.0, 10.0, 14.0, 32.0
LETTER = 4.6  # about the width of one
LINE = 13.0


def files(results: Results) -> dict[str, str]:
    """The text of each file by its name."""
    return {f"{each.measure.name}.svg": curves(each) for each in results.comparisons}


def curves(comparison: Comparison) -> str:
    drawn = points(comparison)
    look = looks(comparison.encodings)
    across = Axis.lengths([*comparison.lengths, comparison.train_length])
    up = axis(comparison.measure, [x for each in drawn.values() for point in each for x in (point.low, point.high)])
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(value: float) -> float:
        return LEFT + across.place(value) * (right - LEFT)

    def y(value: float) -> float:
        return bottom - up.place(value) * (bottom - TOP)

    trained = x(comparison.train_length)
    parts = [
        f'<line x1="{LEFT}" y1="{y(tick):.1f}" x2="{right}" y2="{y(tick):.1f}" stroke="#e4e4e4"/>'
        f'<text x="{LEFT - 4}" y="{y(tick) + 3:.1f}" text-anchor="end">{tick:,g}</text>'
        for tick in up.ticks
    ]
    parts += [
        f'<line x1="{x(tick):.1f}" y1="{bottom}" x2="{x(tick):.1f}" y2="{bottom + 3}" stroke="#000"/>'
        f'<text x="{x(tick):.1f}" y="{bottom + 13}" text-anchor="middle">{tick:,g}</text>'
        for tick in across.ticks
    ]
    parts += [
        f'<line x1="{trained:.1f}" y1="{TOP}" x2="{trained:.1f}" y2="{bottom}" stroke="#777" stroke-dasharray="3 2"/>',
        f'<text x="{trained:.1f}" y="{TOP - 4}" text-anchor="{"start" if trained < WIDTH / 2 else "end"}" '
        'fill="#555">trained</text>',
        f'<text x="{(LEFT + right) / 2:.1f}" y="{HEIGHT - 5}" text-anchor="middle">length</text>',
        f'<text x="10" y="{(TOP + bottom) / 2:.1f}" text-anchor="middle" transform="rotate(-90 10 '
        f'{(TOP + bottom) / 2:.1f})">{escape(words.named(comparison.measure))}</text>',
        f'<clipPath id="inside"><rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}"/></clipPath>',
        '<g clip-path="url(#inside)">',
        *(line(found, look[encoding], x, y) for encoding, found in drawn.items()),
        "</g>",
        f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#000"/>',
    ]
    named, height = legend({encoding: look[encoding] for encoding in drawn})
    whole = HEIGHT + height
    title = escape(words.title(comparison.measure))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0f}" height="{whole:.0f}" '
        f'viewBox="0 0 {WIDTH:.0f} {whole:.0f}" font-family="Helvetica, Arial, sans-serif" font-size="9">\n'
        f"<title>{title}</title>\n" + "\n".join([*parts, *named]) + "\n</svg>\n"
    )


def line(found: list[Point], look: Look, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    """The band over seeds, the line through the means, and their marks."""
    parts = []
    for run in runs(found):
        there = " ".join(f"{x(point.length):.1f},{y(point.high):.1f}" for point in run)
        back = " ".join(f"{x(point.length):.1f},{y(point.low):.1f}" for point in reversed(run))
        means = " ".join(f"{x(point.length):.1f},{y(point.mean):.1f}" for point in run)
        parts.append(f'<polygon points="{there} {back}" fill="{look.colour}" fill-opacity="0.15"/>')
        parts.append(
            f'<polyline points="{means}" fill="none" stroke="{look.colour}" stroke-width="1.3" '
            f'stroke-dasharray="{DASHES[look.dash]}"/>'
        )
        parts += [marked(look, x(point.length), y(point.mean), 2.6) for point in run]
    return "".join(parts)


def legend(look: dict[str, Look]) -> tuple[list[str], float]:
    """Under the plot, as many to a line as there is room for; and its height."""
    parts = []
    left, middle = LEFT / 2, HEIGHT + 6
    for name, each in look.items():
        room = 36 + LETTER * len(name)
        if left > LEFT / 2 and left + room > WIDTH:
            left, middle = LEFT / 2, middle + LINE
        parts.append(
            f'<line x1="{left:.1f}" y1="{middle}" x2="{left + 20:.1f}" y2="{middle}" stroke="{each.colour}" '
            f'stroke-width="1.3" stroke-dasharray="{DASHES[each.dash]}"/>{marked(each, left + 10, middle, 2.6)}'
            f'<text x="{left + 25:.1f}" y="{middle + 3}">{escape(name)}</text>'
        )
        left += room
    return parts, middle + LINE - HEIGHT
