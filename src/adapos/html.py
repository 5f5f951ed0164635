"""One self-contained HTML page: all that it needs is written into it, plotly's script too, so that it works offline.

plotly is imported here and nowhere else, and only where a page has plots of its kind.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from adapos.plots import Look, swatch

MISSING = "the page is not made without plotly: pip install 'adapos[bench]'"

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1e21; --faint: #62676f; --line: #dfe2e6; --tint: #f5f6f8;
  --warn: #9a5b00; }
@media (prefers-color-scheme: dark) { :root { --paper: #15171a; --ink: #e4e6e9; --faint: #9aa0a8; --line: #33373d;
  --tint: #1d2024; --warn: #e0a458; } }
* { box-sizing: border-box; }
[hidden] { display: none !important; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .25rem; border-top: 1px solid var(--line); padding-top: 1.25rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
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

# a figure with choices is drawn as its controls say: their values, joined, name one of them
DRAW = """
const figures = JSON.parse(document.getElementById("figures").textContent);
const controls = id => [...document.querySelectorAll("select[data-of]")].filter(each => each.dataset.of === id);
function themed(layout) {
  const style = getComputedStyle(document.documentElement), of = name => style.getPropertyValue(name).trim();
  const axis = a => ({...a, gridcolor: of("--line"), linecolor: of("--faint"), tickcolor: of("--faint")});
  return {...layout, font: {...layout.font, color: of("--ink")}, xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
    hoverlabel: {bgcolor: of("--tint"), bordercolor: of("--line"), font: {color: of("--ink")}}};
}
function drawn(id) {
  const held = figures[id];
  const figure = held.choices ? held.choices[controls(id).map(each => each.value).join(" ")] : held;
  Plotly.react(id, figure.data, themed(figure.layout), {displayModeBar: false, responsive: true});
}
function draw() { Object.keys(figures).forEach(drawn); }
draw();
for (const each of document.querySelectorAll("select[data-of]"))
  each.addEventListener("change", () => drawn(each.dataset.of));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
"""


def document(title: str, body: Iterable[str], figures: Mapping[str, Any], *, style: str = "", script: str = "") -> str:
    """A whole page. Figures are plotly's, by the id of their place. An ImportError says how to install plotly."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ImportError(MISSING) from None
    drawn = [
        f'<script type="application/json" id="figures">{held(figures)}</script>',
        f"<script>{get_plotlyjs()}</script>",
        f"<script>{DRAW}{script}</script>",
    ]
    return shell(title, [*body, *drawn], style=style)


def shell(title: str, body: Iterable[str], *, style: str = "", head: str = "") -> str:
    """A page without plots of plotly's."""
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        head,
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>",
        "<body>",
        f"<h1>{escape(title)}</h1>",
        *body,
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def held(data: Any) -> str:
    """JSON that no text in it can end."""
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c")


def plain(text: str) -> str:
    """Text that plotly, which reads some tags, shows as it is."""
    return escape(text, quote=False)


def key(looks: Mapping[str, Look]) -> str:
    """Which line is whose."""
    items = "".join(f"<li>{swatch(look)}<span>{escape(name)}</span></li>" for name, look in looks.items())
    return f'<ul class="key">{items}</ul>'


def figure(place: str, title: str) -> str:
    """Where the figure of that id is drawn."""
    return f'<figure><figcaption>{escape(title)}</figcaption><div class="plot" id="{escape(place)}"></div></figure>'
