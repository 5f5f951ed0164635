"""One self-contained HTML page: cost against length on logarithmic axes, then the tables and the machine.

plotly is imported here and nowhere else, and its script is written into the page, so that it works offline.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from adapos.profile import words
from adapos.profile.plan import PLAIN
from adapos.profile.rows import Results, Row

MISSING = "the page is not made without plotly: pip install 'adapos[bench]'"

# of middling lightness, to be read on white and on black
COLOURS = ("#3f87d2", "#e0762f", "#2f9e6b", "#c653a0", "#8d6fe0", "#b38a12", "#d6455d", "#1f9fb5")
GREY = "#8b8f96"
RESOLUTION = 2**17  # bytes
MARKS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star")

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1e21; --faint: #62676f; --line: #dfe2e6; --tint: #f5f6f8;
  --warn: #9a5b00; }
@media (prefers-color-scheme: dark) { :root { --paper: #15171a; --ink: #e4e6e9; --faint: #9aa0a8; --line: #33373d;
  --tint: #1d2024; --warn: #e0a458; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .25rem; border-top: 1px solid var(--line); padding-top: 1.25rem; }
p { margin: .25rem 0 .75rem; max-width: 52rem; }
.faint { color: var(--faint); font-size: .875rem; }
.warn { color: var(--warn); }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; list-style: none; margin: .75rem 0; padding: 0;
  font-size: .9rem; }
.key li { display: flex; align-items: center; gap: .4rem; }
.key svg { flex: none; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: 1rem; }
figure { margin: 0; min-width: 0; }
figcaption { font-size: .9rem; font-weight: 600; }
.plot { height: 20rem; width: 100%; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .25rem .75rem .25rem 0; text-align: right; white-space: nowrap; }
th { font-weight: 600; border-bottom: 1px solid var(--ink); vertical-align: bottom; }
td.words, th.words { text-align: left; }
td.note { white-space: normal; text-align: left; color: var(--faint); }
tr.first td { border-top: 1px solid var(--line); }
code, pre { font-family: ui-monospace, monospace; font-size: .85rem; }
pre { background: var(--tint); padding: .75rem; white-space: pre-wrap; overflow-wrap: anywhere; border-radius: 4px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .9rem; margin: .5rem 0; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
ul.said { padding-left: 1.1rem; font-size: .875rem; color: var(--faint); margin: .25rem 0; }
"""

DRAW = """
const figures = JSON.parse(document.getElementById("figures").textContent);
function themed(layout) {
  const style = getComputedStyle(document.documentElement), of = name => style.getPropertyValue(name).trim();
  const axis = a => ({...a, gridcolor: of("--line"), linecolor: of("--faint"), tickcolor: of("--faint")});
  return {...layout, font: {...layout.font, color: of("--ink")}, xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
    hoverlabel: {bgcolor: of("--tint"), bordercolor: of("--line"), font: {color: of("--ink")}}};
}
function draw() {
  for (const [id, figure] of Object.entries(figures))
    Plotly.react(id, figure.data, themed(figure.layout), {displayModeBar: false, responsive: true});
}
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
"""


def page(results: Results) -> str:
    """The page as text. An ImportError says how to install plotly."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ImportError(MISSING) from None
    sections: list[str] = []
    figures: dict[str, dict[str, Any]] = {}
    for what in results.settings["what"]:
        rows = [row for row in results.rows if row.what == what]
        if rows:
            found = plots(what, rows, results.settings["encodings"])
            figures |= {name: figure for name, (_, figure) in found.items()}
            sections.append(section(what, rows, results, {name: title for name, (title, _) in found.items()}))
    held = json.dumps(figures).replace("<", "\\u003c")
    warning = words.warning(results)
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>What positions cost</title><style>{STYLE}</style></head>",
        "<body>",
        "<h1>What positions cost</h1>",
        f"<p>Positional encodings beside plain attention, on {escape(results.machine.processor)}.</p>",
        "" if results.finished else '<p class="warn">The run was interrupted: this is what had been measured.</p>',
        f'<p class="warn">{escape(warning)}.</p>' if warning else "",
        "<noscript><p>The plots need JavaScript; the tables hold the same numbers.</p></noscript>",
        *sections,
        about(results),
        f'<script type="application/json" id="figures">{held}</script>',
        f"<script>{get_plotlyjs()}</script>",
        f"<script>{DRAW}</script>",
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def section(what: str, rows: list[Row], results: Results, titles: dict[str, str]) -> str:
    drawn = [name for name in (PLAIN, *results.settings["encodings"]) if any(_timed(row, name) for row in rows)]
    look = looks(results.settings["encodings"])
    key = "".join(f"<li>{swatch(look[name])}{escape(name)}</li>" for name in drawn)
    shown = "".join(
        f'<figure><figcaption>{escape(title)}</figcaption><div class="plot" id="{name}"></div></figure>'
        for name, title in titles.items()
    )
    said = "".join(f"<li>{escape(line)}</li>" for line in (*words.notes(rows), *words.refusals(rows)))
    _, _, sizes = words.title(what, results).partition(": ")
    return (
        f'<section><h2>{what}</h2><p class="faint">{escape(sizes[0].upper() + sizes[1:])}</p>'
        + (f'<ul class="key">{key}</ul><div class="plots">{shown}</div>' if drawn else "")
        + f'<div class="wide">{table(what, rows)}</div>'
        + f'<p class="faint">{escape(words.caption(what, results))}</p>'
        + (f'<ul class="said">{said}</ul>' if said else "")
        + "</section>"
    )


def _timed(row: Row, name: str) -> bool:
    return row.encoding == name and row.milliseconds is not None


def table(what: str, rows: list[Row]) -> str:
    heads = ["tokens", "encoding", "ms", "x plain", "spread", "MiB", "FLOP", "peak"]
    heads += ["tokens/s"] if what == "model" else []
    heads += ["backend"]
    lines, last = [], None
    for row in rows:
        first = "" if row.length == last else f"{row.length:,}"
        cells: list[tuple[str, str]] = [("", first), ("words", row.encoding)]
        if row.milliseconds is None:
            rest = f'<td class="note" colspan="{len(heads) - 2}">not run: {escape(row.note)}</td>'
        else:
            rest = ""
            cells += [
                ("", words.number(row.milliseconds)),
                ("warn" if row.noisy else "", words.ratio(row)),
                ("", "" if row.encoding == PLAIN else words.share(row.spread)),
                ("", words.memory(row)),
                ("", "not counted" if row.flops is None else words.large(row.flops)),
                ("", words.of_peak(row)),
            ]
            if what == "model":
                cells.append(("", "" if row.tokens_per_second is None else words.number(row.tokens_per_second)))
            cells.append(("words", row.backend or ""))
        inside = "".join(f'<td class="{kind}">{escape(text)}</td>' for kind, text in cells)
        lines.append(f'<tr class="{"first" if first else ""}">{inside}{rest}</tr>')
        last = row.length
    named = "".join(f'<th class="{"words" if name in ("encoding", "backend") else ""}">{name}</th>' for name in heads)
    return f"<table><thead><tr>{named}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def about(results: Results) -> str:
    machine = results.machine
    facts = {
        "processor": f"{machine.processor}, {machine.cores} cores, {machine.threads} threads used",
        "peak, measured": f"{words.large(machine.flops_per_second)}FLOP/s in {results.settings['dtype']}, "
        f"{words.large(machine.bytes_per_second)}B/s read and written by a copy",
        "software": f"adapos {machine.adapos}, torch {machine.torch}, Python {machine.python}, {machine.platform}",
    }
    listed = "".join(f"<dt>{name}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items())
    return (
        f"<section><h2>How it was measured</h2><dl>{listed}</dl><pre>{escape(results.command)}</pre>"
        '<p class="faint">FLOP are the products of the pairs that a query sees, counted by formula. Memory is what a '
        "run adds to the peak beyond its inputs. The numbers are of this machine; ratios carry over better than "
        "times.</p></section>"
    )


def looks(encodings: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """The colour, mark and dash of each line."""
    found = {PLAIN: (GREY, "circle-open", "dash")}
    for index, name in enumerate(encodings):
        dash = ("solid", "dot", "dashdot")[index // len(COLOURS) % 3]
        found[name] = (COLOURS[index % len(COLOURS)], MARKS[index % len(MARKS)], dash)
    return found


def swatch(look: tuple[str, str, str]) -> str:
    colour, _, dash = look
    dashes = {"dash": "6 3", "dot": "2 3", "dashdot": "6 3 2 3"}.get(dash, "")
    return (
        f'<svg width="28" height="12" aria-hidden="true"><line x1="1" y1="6" x2="27" y2="6" stroke="{colour}" '
        f'stroke-width="2.5" stroke-dasharray="{dashes}"/></svg>'
    )


def plots(what: str, rows: list[Row], encodings: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Figures with their titles, by the id of their place on the page."""
    wanted: list[tuple[str, str, str, Callable[[Row], float | None]]] = [
        ("time", "time, ms", " ms", lambda row: row.milliseconds),
        ("ratio", "times plain attention", " x plain", lambda row: row.ratio),
        ("memory", "extra peak memory, MiB", " MiB", _mebibytes),
    ]
    found = {}
    for name, title, unit, value in wanted:
        lines = [
            line(encoding, look, [row for row in rows if row.encoding == encoding], value, unit, bars=name == "ratio")
            for encoding, look in looks(encodings).items()
        ]
        lines = [line for line in lines if line["x"]]
        if lines:
            found[f"{what}-{name}"] = (title, {"data": lines, "layout": axes(lines)})
    return found


def _mebibytes(row: Row) -> float | None:
    """None below what the pages of a process can tell."""
    return None if (row.extra_memory or 0) < RESOLUTION else (row.extra_memory or 0) / 2**20


def line(
    encoding: str,
    look: tuple[str, str, str],
    rows: list[Row],
    value: Callable[[Row], float | None],
    unit: str,
    *,
    bars: bool,
) -> dict[str, Any]:
    colour, mark, dash = look
    kept = [(row, y) for row in rows if (y := value(row))]  # zero has no logarithm
    found: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": encoding,
        "x": [row.length for row, _ in kept],
        "y": [y for _, y in kept],
        "line": {"color": colour, "width": 2, "dash": dash},
        "marker": {"color": colour, "symbol": mark, "size": 7},
        "text": [words.number(y) for _, y in kept],
        "hovertemplate": "<b>%{fullData.name}</b><br>%{x:,} tokens: %{text}" + unit + "<extra></extra>",
    }
    if bars and encoding != PLAIN:
        found["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [(row.ratio_most or y) - y for row, y in kept],
            "arrayminus": [y - (row.ratio_least or y) for row, y in kept],
            "thickness": 1,
            "width": 3,
        }
    return found


def axes(lines: list[dict[str, Any]]) -> dict[str, Any]:
    across = sorted({x for line in lines for x in line["x"]})
    low, high = min(y for line in lines for y in line["y"]), max(y for line in lines for y in line["y"])
    for line in lines:
        bars = line.get("error_y")
        if bars:
            low = min(low, *(y - below for y, below in zip(line["y"], bars["arrayminus"], strict=True)))
            high = max(high, *(y + above for y, above in zip(line["y"], bars["array"], strict=True)))
    while len(across) > 6:
        across = across[::2]
    common = {"type": "log", "zeroline": False, "showline": True, "ticks": "outside", "fixedrange": True}
    ups = ticks(low, high)
    return {
        "margin": {"l": 56, "r": 12, "t": 8, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "hovermode": "closest",
        "font": {"size": 12, "family": "system-ui, sans-serif"},
        "xaxis": common | {"title": {"text": "tokens"}, "tickvals": across, "ticktext": [f"{x:,}" for x in across]},
        "yaxis": common
        | {
            "tickvals": ups,
            "ticktext": [f"{y:,g}" for y in ups],
            "range": [math.log10(low / 1.25), math.log10(high * 1.25)],
        },
    }


def ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10... around the range; only powers of ten where there are many."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps = (1,) if math.log10(high / low) > 2.5 else (1, 2, 5)
    if high / low < 2:
        steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8)  # type: ignore[assignment]
    return [round(step * 10.0**power, 12) for power in powers for step in steps]
