"""One self-contained HTML page: the answer in words, then curves, tables and all that they rest on."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from adapos import html
from adapos.bench.report import charts, tables, words
from adapos.bench.report.charts import Chart
from adapos.bench.report.grids import SHADES, grids
from adapos.bench.report.results import BESIDE, Comparison, Results
from adapos.numbers import listed
from adapos.plots import looks

TITLE = "Which positional encoding, for which length"

STYLE = """
:root { --better: #1f7a4d; --worse: #b3372b; }
@media (prefers-color-scheme: dark) { :root { --better: #5ecb95; --worse: #f08a7d; } }
.answer { font-size: 1.1rem; max-width: 60rem; margin: .5rem 0 1rem; padding: .75rem 1rem; background: var(--tint);
  border-left: 4px solid var(--faint); border-radius: 4px; }
.answer ul { margin: .25rem 0; padding-left: 1.1rem; }
.answer p { margin: .25rem 0; }
.tall .plot { height: 26rem; }
.controls { display: flex; flex-wrap: wrap; gap: .5rem 1rem; margin: .5rem 0; font-size: .9rem; }
.controls label { display: flex; gap: .4rem; align-items: center; max-width: 100%; white-space: nowrap; }
select, button { font: inherit; color: inherit; }
select { background: var(--tint); border: 1px solid var(--faint); border-radius: 4px; padding: .15rem .3rem;
  min-width: 0; max-width: 100%; }
th button { background: none; border: 0; padding: 0; cursor: pointer; font-weight: 600; white-space: nowrap; }
th button::after { content: "\\2195"; color: var(--faint); padding-left: .2rem; }
th[aria-sort=ascending] button::after { content: "\\2191"; color: inherit; }
th[aria-sort=descending] button::after { content: "\\2193"; color: inherit; }
:focus-visible { outline: 2px solid #5577ff; outline-offset: 2px; }
.sorted td, .sorted th { padding: .35rem .25rem .35rem .75rem; vertical-align: top; }
.sorted tbody tr { border-bottom: 1px solid var(--line); }
.sorted :is(th, td):first-child { position: sticky; left: 0; background: var(--paper); text-align: left;
  white-space: normal; overflow-wrap: break-word; min-width: 8.5rem; max-width: 16rem; padding-left: 0; z-index: 1; }
.sorted small { display: block; color: var(--faint); font-size: .78rem; }
.sorted small.better { color: var(--better); font-weight: 600; }
.sorted small.worse { color: var(--worse); font-weight: 600; }
.grids { grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }
.grids .plot { height: 16rem; }
.grids figcaption { font-weight: 400; }
.scale { display: flex; align-items: center; gap: .5rem; font-size: .875rem; }
.scale i { width: 10rem; height: .8rem; display: block; border-radius: 2px; }
.scale i.up { background: linear-gradient(to right, SHADES); }
.scale i.down { background: linear-gradient(to left, SHADES); }
@media (max-width: 40rem) { .sorted :is(th, td):first-child { max-width: 10rem; font-size: .8rem; }
  dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; } .tall .plot { height: 21rem; } }
""".replace("SHADES", ", ".join(SHADES))

# a column's first click puts the best first; what has no number stays last
SORT = """
for (const table of document.querySelectorAll("table.sorted")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, at) => head.querySelector("button").addEventListener("click", () => {
    const other = {ascending: "descending", descending: "ascending"};
    const order = other[head.getAttribute("aria-sort")] ?? head.dataset.first;
    for (const each of heads) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const of = row => row.cells[at].dataset.value, sign = order === "ascending" ? 1 : -1;
    const compared = (a, b) => {
      const x = of(a), y = of(b);
      if (x === "" || y === "") return (x === "") - (y === "");
      return sign * (isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y);
    };
    body.append(...[...body.rows].sort(compared));
  }));
}
"""


def page(results: Results) -> str:
    """The page as text. An ImportError says how to install plotly."""
    figures: dict[str, Any] = {}
    body = [
        top(results),
        "<noscript><p>The plots need JavaScript; the tables hold the same numbers.</p></noscript>",
        *(quality(each, results, figures) for each in results.comparisons),
        cost(results, figures),
        positions(results, figures),
        adaptation(results, figures),
        failed(results),
        about(results),
    ]
    return html.document(TITLE, body, figures, style=STYLE, script=SORT)


def top(results: Results) -> str:
    """The answer by the first measure of each task."""
    parts = [
        f"<p><strong>{escape(words.title(each.measure))}</strong> ({words.direction(each.measure)})</p>"
        + bullets(words.answers(each, results), "")
        for each in results.main()
    ]
    parts = parts or ["<p>No encoding has been measured: every trial failed, or none has been evaluated yet.</p>"]
    cautions = "".join(f'<p class="warn">{escape(said)}</p>' for said in (words.caution(results),) if said)
    return f'<div class="answer">{"".join(parts)}</div>{cautions}'


def quality(comparison: Comparison, results: Results, figures: dict[str, Any]) -> str:
    name = comparison.measure.name
    curves = charts.curves(comparison)
    look = looks(comparison.encodings)
    seen = {each: look[each] for each in comparison.encodings if any(each == place for place, _ in comparison.scores)}
    several = len(results.seeds) > 1
    note = "The dashed line marks the training length" + ("; bands span the seeds." if several else ".")
    return (
        f"<section><h2>{escape(words.title(comparison.measure))}</h2>{html.key(seen)}"
        f'<div class="tall">{drawn(f"{name}-curves", curves, figures)}</div><p class="faint">{note}</p>'
        + bullets(words.diverged(comparison))
        + f"{table(comparison, results)}"
        + f'<p class="faint">{escape(words.caption(comparison, results))}</p>'
        + bullets([*words.fewer(comparison, results), *words.incomplete(comparison, results)])
        + heat_maps(comparison, figures)
        + "</section>"
    )


def table(comparison: Comparison, results: Results) -> str:
    first = "ascending" if comparison.measure.lower else "descending"
    heads = [sorter("encoding", "ascending"), *(sorter(f"{length:,}", first) for length in comparison.lengths)]
    best = {length: comparison.best(length) for length in comparison.lengths}
    lines = []
    for encoding in comparison.encodings:
        name = escape(encoding) + ("<small>baseline</small>" if encoding == results.baseline else "")
        cells = [f'<td data-value="{escape(encoding)}">{name}</td>']
        for length in comparison.lengths:
            score, verdict = comparison.scores.get((encoding, length)), comparison.verdicts.get((encoding, length))
            said = escape(words.mean(comparison.measure, score))
            said = f"<b>{said}</b>" if encoding in best[length] else said
            value = "" if score is None or score.diverged else repr(score.mean)
            small = [("", words.spread(comparison.measure, score))]
            if verdict and verdict.word != "diverged":
                small += [("", words.tested(comparison.measure, verdict)), (verdict.word, words.verdict(verdict))]
            beside = "".join(f'<small class="{kind}">{escape(text)}</small>' for kind, text in small if text)
            cells.append(f'<td data-value="{value}">{said}{beside}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return sortable(heads, lines, f"{words.title(comparison.measure)}, by encoding and length")


def sorter(name: str, first: str) -> str:
    return f'<th scope="col" data-first="{first}"><button type="button">{escape(name)}</button></th>'


def sortable(heads: list[str], lines: list[str], label: str) -> str:
    """Scrolled sideways where it is wide, by keyboard too."""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(label)}"><table class="sorted">'
        f"<thead><tr>{''.join(heads)}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def heat_maps(comparison: Comparison, figures: dict[str, Any]) -> str:
    found = list(grids(comparison))
    if not found:
        return ""
    shown = "".join(
        drawn(f"{comparison.measure.name}-grid-{at}", charts.heat(grid), figures) for at, grid in enumerate(found)
    )
    if comparison.measure.lower:
        ends, way = [words.value(comparison.measure, end) for end in found[0].ends], "down"
    else:
        ends, way = ["0", "1"], "up"
    name = words.named(comparison.measure)
    return (
        f'<h3>{escape(name)} by place</h3><div class="scale"><span>{ends[0]}</span><i class="{way}"></i>'
        f'<span>{ends[1]}</span></div><p class="faint">Means over seeds; blank where there was no exam.</p>'
        f'<div class="plots grids">{shown}</div>'
    )


def drawn(place: str, chart: Chart, figures: dict[str, Any]) -> str:
    """The place of a figure, under its controls; those with one option are set by it and not shown."""
    figures[place] = chart.figure
    labels = []
    for label, options in chart.controls.items():
        listed = "".join(f'<option value="{at}">{escape(option)}</option>' for at, option in enumerate(options))
        hidden = " hidden" if len(options) == 1 else ""
        labels.append(f'<label{hidden}>{escape(label)} <select data-of="{escape(place)}">{listed}</select></label>')
    controls = f'<div class="controls">{"".join(labels)}</div>' if labels else ""
    return f"<div>{controls}{html.figure(place, chart.title)}</div>"


def cost(results: Results, figures: dict[str, Any]) -> str:
    chart = charts.cost(results)
    look = looks(results.encodings)
    seen = {each: look[each] for each in results.costs}
    lines = []
    for each in results.costs.values():
        numbers = [
            "",
            *tables.cost_numbers(each, results)[1:4],
            results.speed(each.encoding),
            *tables.cost_numbers(each, results)[4:6],
            "",
        ]
        cells = zip(tables.cost(each, results), numbers, strict=True)
        inside = "".join(
            f'<td data-value="{escape(said) if value == "" else "" if value is None else value}">{escape(said)}</td>'
            for said, value in cells
        )
        lines.append(f"<tr>{inside}</tr>")
    more = ("tokens/s", "x baseline")
    heads = [sorter(name, "descending" if name in more else "ascending") for name in tables.COST]
    plot = f'{html.key(seen)}<div class="tall">{drawn("cost", chart, figures)}</div>' if chart else ""
    return (
        f"<section><h2>Cost</h2>{plot}{sortable(heads, lines, 'cost by encoding')}"
        f'<p class="faint">{tables.COST_CAPTION}</p></section>'
    )


def positions(results: Results, figures: dict[str, Any]) -> str:
    chart = charts.positions(results)
    if chart is None:
        return ""
    seen = looked(results, (row.encoding for row in results.of("loss", "position")))
    return f'<section><h2>Loss by position</h2>{seen}<div class="tall">{drawn("loss", chart, figures)}</div></section>'


def adaptation(results: Results, figures: dict[str, Any]) -> str:
    wanted = {
        "adaptive_share": "adaptive part, beside the static bias",
        "adaptive_variation": "share of it that varies between texts",
    }
    found = {name: chart for name, title in wanted.items() if (chart := charts.adaptation(results, name, title))}
    if not found:
        return ""
    shown = "".join(drawn(name, chart, figures) for name, chart in found.items())
    seen = looked(results, (row.encoding for name in found for row in results.of(name, "adaptation")))
    return (
        f"<section><h2>Adaptation</h2><p>{escape(words.adaptation(results))}</p>{seen}"
        f'<div class="plots">{shown}</div></section>'
    )


def looked(results: Results, encodings: Iterable[str]) -> str:
    there = set(encodings)
    return html.key({name: look for name, look in looks(results.encodings).items() if name in there})


def failed(results: Results) -> str:
    parts = {"What failed": words.failures(results), "Where the loss jumped": words.jumps(results)}
    return "".join(f"<section><h2>{name}</h2>{bullets(lines)}</section>" for name, lines in parts.items() if lines)


def about(results: Results) -> str:
    plan, rows = results.plan, results.rows
    tasks = dict.fromkeys(f"{row.task}, version {row.version}" for row in rows)
    facts = {
        "task": "; ".join(tasks),
        "protocol": listed(list(dict.fromkeys(row.protocol for row in rows if row.protocol not in BESIDE))),
        "training length": rows[0].train_length,
        "lengths": listed([f"{length:,}" for length in sorted({*plan.get("lengths", ())} or lengths(results))], 40),
        "encodings": "; ".join(results.encodings),
        "baseline": results.baseline or "none",
        "significance": f"p < {results.significance:g}",
        "seeds": listed(list(map(str, results.seeds)), 40),
        "commit": listed(list(dict.fromkeys(row.commit for row in rows if row.commit)) or ["unknown"]),
    }
    # all other settings of the plan, as they are there
    others = {name: value for name, value in plan.items() if name not in (*facts, "command", "train_length", "format")}
    for name in ("scored", "stride"):  # 0: as the protocol of the rows says
        if not others.get(name):
            others.pop(name, None)
    shown = facts | {name.replace("_", " "): value for name, value in others.items()}
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(fact))}</dd>" for name, fact in shown.items())
    return f"<section><h2>How it was run</h2><dl>{items}</dl><pre>{escape(plan['command'])}</pre></section>"


def lengths(results: Results) -> set[int]:
    return {length for each in results.comparisons for length in each.lengths}


def bullets(lines: Iterable[str], kind: str = "said") -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="{kind}">{items}</ul>' if items else ""
