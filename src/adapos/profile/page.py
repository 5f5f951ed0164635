"""One self-contained HTML page: cost against length on logarithmic axes, then the tables and the machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from adapos import html, plots
from adapos.numbers import large, number, share
from adapos.plots import GREY, Look
from adapos.profile import words
from adapos.profile.plan import PLAIN
from adapos.profile.rows import Results, Row

RESOLUTION = 2**17  # bytes


def page(results: Results) -> str:
    """The page as text. An ImportError says how to install plotly."""
    sections: list[str] = []
    figures: dict[str, dict[str, Any]] = {}
    for what in results.settings["what"]:
        rows = [row for row in results.rows if row.what == what]
        if rows:
            found = drawings(what, rows, results.settings["encodings"])
            figures |= {name: figure for name, (_, figure) in found.items()}
            sections.append(section(what, rows, results, {name: title for name, (title, _) in found.items()}))
    notes = [note for note in (words.ended(results), words.warning(results)) if note]
    body = [
        f"<p>Positional encodings beside plain attention, on {escape(results.machine.processor)}.</p>",
        *(f'<p class="warn">{escape(note[0].upper() + note[1:])}.</p>' for note in notes),
        "<noscript><p>The plots need JavaScript; the tables hold the same numbers.</p></noscript>",
        *sections,
        about(results),
    ]
    return html.document("What positions cost", body, figures)


def section(what: str, rows: list[Row], results: Results, titles: dict[str, str]) -> str:
    drawn = [name for name in (PLAIN, *results.settings["encodings"]) if any(_timed(row, name) for row in rows)]
    look = looks(results.settings["encodings"])
    key = html.key({name: look[name] for name in drawn})
    shown = "".join(html.figure(name, title) for name, title in titles.items())
    said = "".join(f"<li>{escape(line)}</li>" for line in (*words.notes(rows), *words.refusals(rows)))
    _, _, sizes = words.title(what, results).partition(": ")
    return (
        f'<section><h2>{what}</h2><p class="faint">{escape(sizes[0].upper() + sizes[1:])}</p>'
        + (f'{key}<div class="plots">{shown}</div>' if drawn else "")
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
                ("", number(row.milliseconds)),
                ("warn" if row.noisy else "", words.ratio(row)),
                ("", "" if row.encoding == PLAIN else share(row.spread)),
                ("", words.memory(row)),
                ("", "not counted" if row.flops is None else large(row.flops)),
                ("", words.of_peak(row)),
            ]
            if what == "model":
                cells.append(("", "" if row.tokens_per_second is None else number(row.tokens_per_second)))
            cells.append(("words", row.backend or ""))
        inside = "".join(f'<td class="{kind}">{escape(text)}</td>' for kind, text in cells)
        lines.append(f'<tr class="{"first" if first else ""}">{inside}{rest}</tr>')
        last = row.length
    named = "".join(f'<th class="{"words" if name in ("encoding", "backend") else ""}">{name}</th>' for name in heads)
    return f"<table><thead><tr>{named}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def about(results: Results) -> str:
    machine = results.machine
    facts = {
        "processor": f"{machine.processor}, {'beside a CPU of ' if machine.gpu else ''}{machine.cores} cores, "
        f"{machine.threads} threads used",
        "peak, measured": f"{large(machine.flops_per_second)}FLOP/s in {results.settings['dtype']}, "
        f"{large(machine.bytes_per_second)}B/s read and written by a copy",
        "GPU": ", ".join(f"{name} {fact}" for name, fact in machine.gpu.items()),
        "software": f"adapos {machine.adapos}, torch {machine.torch}, Python {machine.python}, {machine.platform}",
        "environment": ", ".join(f"{name}={value}" for name, value in machine.environment.items()),
    }
    listed = "".join(f"<dt>{name}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items() if fact)
    return (
        f"<section><h2>How it was measured</h2><dl>{listed}</dl><pre>{escape(results.command)}</pre>"
        '<p class="faint">FLOP are the products of the pairs that a query sees, counted by formula. Memory is what a '
        "run adds to the peak beyond its inputs. The numbers are of this machine; ratios carry over better than "
        "times.</p></section>"
    )


def looks(encodings: Sequence[str]) -> dict[str, Look]:
    return {PLAIN: Look(GREY, "circle-open", "dash")} | plots.looks(encodings)


def drawings(what: str, rows: list[Row], encodings: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
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
    look: Look,
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
        "name": html.plain(encoding),
        "x": [row.length for row, _ in kept],
        "y": [y for _, y in kept],
        "line": {"color": colour, "width": 2, "dash": dash},
        "marker": {"color": colour, "symbol": mark, "size": 7},
        "text": [number(y) for _, y in kept],
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
    ups = plots.ticks(low, high)
    return plots.LAYOUT | {
        "xaxis": plots.AXIS
        | {"type": "log", "title": {"text": "tokens"}, "tickvals": across, "ticktext": [f"{x:,}" for x in across]},
        "yaxis": plots.AXIS
        | {
            "type": "log",
            "tickvals": ups,
            "ticktext": [f"{y:,g}" for y in ups],
            "range": [math.log10(low / 1.25), math.log10(high * 1.25)],
        },
    }
