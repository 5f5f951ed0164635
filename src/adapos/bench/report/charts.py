"""What the page draws, as plotly's data: curves, cost against quality, loss by position, adaptation and grids."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adapos.bench.report import words
from adapos.bench.report.curves import axis, points, runs
from adapos.bench.report.grids import Grid
from adapos.bench.report.results import Comparison, Results
from adapos.bench.rows import Row
from adapos.html import plain
from adapos.numbers import number
from adapos.plots import AXIS, GREY, LAYOUT, Axis, Look, looks

COSTS = {"tokens_per_second": ("tokens a second in training", 1.0), "peak_bytes": ("peak memory, MiB", 2.0**20)}

WRITTEN = 10  # columns of a grid that have room for their numbers


@dataclass(frozen=True)
class Chart:
    """One figure, or one for each choice of its controls; `controls` has the options of each by its label."""

    title: str
    figure: Mapping[str, Any]
    controls: Mapping[str, Sequence[str]]


def curves(comparison: Comparison) -> Chart:
    drawn, look = points(comparison), looks(comparison.encodings)
    traces: list[dict[str, Any]] = []
    for encoding, line in drawn.items():
        for run in runs(line):
            if any(point.high > point.low for point in run):
                traces.append(band(look[encoding], run))
    for encoding, line in drawn.items():
        said = [words.value(comparison.measure, point.mean) for point in line]
        traces.append(trace(encoding, look[encoding], line, said, "length"))
    up = axis(comparison.measure, [x for line in drawn.values() for point in line for x in (point.low, point.high)])
    across = Axis.lengths([*comparison.lengths, comparison.train_length])
    name = words.named(comparison.measure)
    return Chart(
        f"{name} against length, {words.direction(comparison.measure)}",
        {"data": traces, "layout": layout(across.plotly("length"), up.plotly(name), comparison.train_length)},
        {},
    )


def band(look: Look, run: Sequence[Any]) -> dict[str, Any]:
    there, back = list(run), list(reversed(run))
    return {
        "type": "scatter",
        "x": [point.length for point in there + back],
        "y": [point.high for point in there] + [point.low for point in back],
        "fill": "toself",
        "fillcolor": f"rgba({', '.join(str(int(look.colour[at : at + 2], 16)) for at in (1, 3, 5))}, 0.15)",
        "line": {"width": 0},
        "mode": "lines",
        "hoverinfo": "skip",
    }


def trace(encoding: str, look: Look, line: Sequence[tuple[float, ...]], said: list[str], unit: str) -> dict[str, Any]:
    """A line through the first two numbers of each point, with holes where the second is not finite."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(encoding),
        "x": [point[0] for point in line],
        "y": [point[1] if math.isfinite(point[1]) else None for point in line],
        "line": {"color": look.colour, "width": 2, "dash": look.dash},
        "marker": {"color": look.colour, "symbol": look.mark, "size": 8},
        "text": said,
        "hovertemplate": f"<b>%{{fullData.name}}</b><br>{unit} %{{x:,}}: %{{text}}<extra></extra>",
    }


def layout(xaxis: dict[str, Any], yaxis: dict[str, Any], train_length: int | None = None) -> dict[str, Any]:
    """With a line at the training length, on a logarithmic axis."""
    found = LAYOUT | {"xaxis": xaxis, "yaxis": yaxis}
    if train_length is None:
        return found
    at = math.log10(train_length)
    low, high = xaxis["range"]
    return found | {
        "margin": LAYOUT["margin"] | {"t": 24},
        "shapes": [
            {
                **{"type": "line", "x0": train_length, "x1": train_length, "yref": "paper", "y0": 0, "y1": 1},
                "line": {"color": GREY, "width": 1.5, "dash": "dash"},
            }
        ],
        "annotations": [
            {
                **{"x": at, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False},
                "xanchor": "left" if at < (low + high) / 2 else "right",
                "text": f"trained at {train_length:,}",
                "font": {"size": 11},
            }
        ],
    }


def cost(results: Results) -> Chart | None:
    """A point for each encoding; what quality is, and what cost, is chosen on the page, the longest length first."""
    look = looks(results.encodings)
    places = [(each, length) for each in results.comparisons for length in reversed(each.lengths)]
    timed = {name: spent for name in COSTS if (spent := results.spent(name))}
    if not places or not timed:
        return None
    choices = {}
    for i, (comparison, length) in enumerate(places):
        means = dict(comparison.ranked(length))
        name = words.named(comparison.measure)
        for j, (cost, spent) in enumerate(timed.items()):
            title, unit = COSTS[cost]
            shown = {each: (spent[each] / unit, means[each]) for each in means if each in spent}
            traces = [
                dot(each, look[each], point, name, words.value(comparison.measure, point[1]), title)
                for each, point in shown.items()
            ]
            across = Axis.logarithmic(x for x, _ in shown.values())
            up = axis(comparison.measure, (y for _, y in shown.values()))
            choices[f"{i} {j}"] = {"data": traces, "layout": layout(across.plotly(title), up.plotly(name))}
    several = len(results.comparisons) > 1
    options = [
        (f"{words.title(each.measure)}, " if several else f"{words.named(each.measure)} ") + f"at {length:,}"
        for each, length in places
    ]
    return Chart(
        "what quality costs",
        {"choices": choices},
        {"quality": options, "cost": [COSTS[name][0] for name in timed]},
    )


def dot(encoding: str, look: Look, at: tuple[float, float], name: str, said: str, cost: str) -> dict[str, Any]:
    hover = f"{plain(name)}: %{{text}}<br>{cost}: {number(at[0])}"
    return {
        **{"type": "scatter", "mode": "markers", "name": plain(encoding), "x": [at[0]], "y": [at[1]], "text": [said]},
        "marker": {"color": look.colour, "symbol": look.mark, "size": 12},
        "hovertemplate": f"<b>%{{fullData.name}}</b><br>{hover}<extra></extra>",
    }


def positions(results: Results) -> Chart | None:
    """Loss by the place in the text, counted from 1 for a logarithmic axis."""

    def placed(row: Row) -> float:
        return row.marks["position"] + 1

    def axes(xs: list[float], ys: list[float], train_length: int) -> dict[str, Any]:
        low, high = min(xs), max(max(xs), train_length)
        across = Axis(low / 1.1, high * 1.1, tuple(4.0**k for k in range(20) if low <= 4**k <= high), log=True)
        return layout(across.plotly("position, from 1"), Axis.linear(ys).plotly("loss"), train_length)

    return by_length(
        results, results.of("loss", "position"), placed, axes, "loss by position, lower is better", "position"
    )


def adaptation(results: Results, metric: str, title: str) -> Chart | None:
    def layer(row: Row) -> float:
        return row.marks["layer"]

    def axes(xs: list[float], ys: list[float], train_length: int) -> dict[str, Any]:
        last = int(max(xs))
        across = Axis(-0.3, last + 0.3, tuple(range(0, last + 1, 1 + last // 12)))
        return layout(across.plotly("layer"), Axis.linear(ys, zero=True).plotly(""))

    return by_length(results, results.of(metric, "adaptation"), layer, axes, title, "layer")


def by_length(
    results: Results,
    rows: list[Row],
    across: Callable[[Row], float],
    axes: Callable[[list[float], list[float], int], dict[str, Any]],
    title: str,
    unit: str,
) -> Chart | None:
    """Means over seeds, a figure for each task and length of these rows, the longest first."""
    look = looks(results.encodings)
    groups: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        if math.isfinite(row.value):
            groups[row.task, row.length].append(row)
    if not groups:
        return None
    places = sorted(groups, key=lambda place: (place[0], -place[1]))
    choices = {}
    for at, place in enumerate(places):
        held: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in groups[place]:
            held[row.encoding][across(row)].append(row.value)
        lines = {
            encoding: [(x, float(np.mean(held[encoding][x]))) for x in sorted(held[encoding])]
            for encoding in results.encodings
            if encoding in held
        }
        traces = [
            trace(encoding, look[encoding], line, [number(y) for _, y in line], unit)
            for encoding, line in lines.items()
        ]
        xs, ys = zip(*(point for line in lines.values() for point in line), strict=True)
        choices[str(at)] = {"data": traces, "layout": axes(list(xs), list(ys), groups[place][0].train_length)}
    several = len({task for task, _ in places}) > 1
    options = [(f"{task}, " if several else "") + f"{length:,}" for task, length in places]
    return Chart(title, {"choices": choices}, {"length": options})


def heat(grid: Grid) -> Chart:
    common = AXIS | {"type": "category", "showgrid": False, "showline": False, "ticks": ""}
    said = [["" if x is None else f"{x:.2f}" for x in line] for line in grid.cells]
    shades, (x, y) = grid.shades, map(plain, grid.names)
    figure = {
        "data": [
            {
                **{"type": "heatmap", "x": grid.across, "y": grid.up, "z": grid.cells},
                **{"zmin": grid.ends[0], "zmax": grid.ends[1]},
                "colorscale": [[at / (len(shades) - 1), shade] for at, shade in enumerate(shades)],
                **{"showscale": False, "xgap": 1, "ygap": 1, "hoverongaps": False, "text": said},
                **({"texttemplate": "%{text}", "textfont": {"size": 10}} if len(grid.across) <= WRITTEN else {}),
                "hovertemplate": f"{x} %{{x}}, {y} %{{y}}: %{{text}}<extra></extra>",
            }
        ],
        "layout": LAYOUT
        | {
            "margin": {"l": 60, "r": 8, "t": 4, "b": 56},
            "xaxis": common | {"title": {"text": x, "standoff": 6}},
            "yaxis": common | {"title": {"text": y, "standoff": 6}},
        },
    }
    return Chart(grid.encoding, figure, {})
