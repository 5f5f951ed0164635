"""The pictures as HTML, and all of them as one page that needs neither a server nor the network.

The page holds every picture that its controls can ask for, drawn beforehand and compressed; a little script shows the
right ones.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from adapos import html
from adapos.explore import pictures
from adapos.explore.pictures import Picture
from adapos.explore.reading import Reading
from adapos.explore.strip import around, signs

MARK = '<meta name="generator" content="adapos explore">'
COLUMNS = 160  # of a picture: many of them must fit
QUERIES = 6  # to choose from
HELD = 720  # heads times queries times models, about, that make a page of a few megabytes

STYLE = """
.seen { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20.5rem), 1fr)); gap: 1.75rem 1.5rem;
  align-items: start; margin-top: 1rem; }
.seen figure { margin: 0; min-width: 0; }
.seen figcaption { font-weight: 600; font-size: .95rem; margin-bottom: .25rem; }
.seen svg { display: block; width: 100%; height: auto; }
.seen .ink { fill: var(--ink); } .seen .axis { stroke: var(--ink); } .seen .grid { stroke: var(--line); }
.seen p { margin: .4rem 0 0; font-size: .82rem; line-height: 1.45; color: var(--faint); }
.seen p.none { border-left: 3px solid var(--line); padding: .5rem .75rem; background: var(--tint); }
.seen button { all: unset; text-decoration: underline; white-space: nowrap; cursor: pointer; }
.seen button:focus-visible { outline: 2px solid #5577ff; outline-offset: 2px; }
"""
CONTROLS = """
.held { position: sticky; top: 0; z-index: 1; background: var(--paper); padding: .6rem 0; margin-top: .5rem;
  border-bottom: 1px solid var(--line); display: flex; flex-wrap: wrap; gap: .4rem 1rem; font-size: .9rem; }
.held label { display: flex; gap: .4rem; align-items: center; max-width: 100%; }
.held select { font: inherit; color: inherit; background: var(--tint); border: 1px solid var(--faint);
  border-radius: 4px; padding: .2rem .3rem; min-width: 0; max-width: 100%; }
.seen > div { display: contents; }
details pre { max-height: 16rem; overflow-y: auto; }
:focus-visible { outline: 2px solid #5577ff; outline-offset: 2px; }
"""
# a file is made of a picture when it is asked for, so that no page holds it twice
SAVE = """
document.addEventListener("click", event => {
  const button = event.target.closest(".seen button[data-file]");
  if (!button) return;
  // as XML: what HTML would write for a space that does not break is unknown to SVG
  const drawn = new XMLSerializer().serializeToString(button.closest("figure").querySelector("svg"));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([drawn], {type: "image/svg+xml"}));
  link.download = button.dataset.file + ".svg";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
});
"""
# what a place shows is named by the values of its controls, joined
SHOW = """
const place = name => document.getElementById(name), selects = [...document.querySelectorAll(".held select")];
const value = name => place("choose-" + name).value;
async function unpacked() {
  const bytes = Uint8Array.from(atob(place("packed").textContent), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
function show(held) {
  for (const each of document.querySelectorAll("[data-by]")) {
    const key = each.dataset.by.split(" ").map(value).join(" "), found = held[each.id][key];
    each.innerHTML = found ?? '<figure><p class="none">This model has no such layer or head.</p></figure>';
  }
  for (const each of document.querySelectorAll(`[data-ring="${value("layer")} ${value("head")}"]`))
    each.setAttribute("visibility", "visible");
}
unpacked().then(held => {
  show(held);
  for (const each of selects) each.addEventListener("change", () => show(held));
});
"""


def figure(picture: Picture) -> str:
    """A picture with its caption and a button that saves it; a sentence where there is none."""
    title = f"<figcaption>{escape(picture.title)}</figcaption>"
    if not picture.svg:
        return f'<figure data-name="{picture.name}">{title}<p class="none">{escape(picture.caption)}</p></figure>'
    save = f'<button type="button" data-file="{picture.saved}">Save as SVG</button>'
    drawn = picture.svg.strip()
    return f'<figure data-name="{picture.name}">{title}{drawn}<p>{escape(picture.caption)} {save}</p></figure>'


def shown(found: Iterable[Picture]) -> str:
    return f'<div class="seen">{"".join(figure(picture) for picture in found)}</div>'


def tokens(length: int) -> str:
    return f"{length:,} bytes, each of them a token" if length > 1 else "1 byte, one token"


def queries(readings: Sequence[Reading]) -> list[int]:
    """The last, and others evenly spaced, as many as the page has room for; the last first."""
    heads = sum(each.layers * each.heads for each in readings)
    length = readings[0].length
    count = max(1, min(QUERIES, HELD // heads, length))
    return sorted({(at + 1) * length // count - 1 for at in range(count)}, reverse=True)


def page(readings: Sequence[Reading], against: Reading | None = None) -> str:
    """Of each reading, beside that of `against` where it is given; all are of one text."""
    asked = queries(readings)
    held: dict[str, dict[str, str]] = {name: {} for name in ("row", "distance", "products", "rollout", "heads")}

    def put(place: str, keys: Sequence[int], found: Iterable[Picture]) -> None:
        held[place][" ".join(map(str, keys))] = "".join(figure(picture) for picture in found)

    for model, reading in enumerate(readings):
        both = [reading] if against is None else [reading, against]
        put("products", [model], pictures.of_products(both, COLUMNS))
        put("heads", [model], [pictures.of_heads(both)])
        for each in both:
            each.rollout(asked)
        for at, query in enumerate(asked):
            put("rollout", [model, at], [pictures.of_rollout(both, query, COLUMNS)])
        for layer in range(reading.layers):
            for head in range(reading.heads):
                put("distance", [model, layer, head], [pictures.of_distance(both, layer, head, COLUMNS)])
                for at, query in enumerate(asked):
                    put("row", [model, layer, head, at], pictures.of_row(both, layer, head, query, COLUMNS))

    letters = signs(readings[0].text)
    options = {
        "model": [each.label for each in readings],
        "layer": [str(layer) for layer in range(max(each.layers for each in readings))],
        "head": [str(head) for head in range(max(each.heads for each in readings))],
        "query": [f"byte {query}, {around(letters, query, 4)}" for query in asked],
    }
    places = {
        "row": "model layer head query",
        "distance": "model layer head",
        "rollout": "model query",
        "heads": "model",
        "products": "model",
    }
    packed = base64.b64encode(gzip.compress(json.dumps(held).encode(), mtime=0)).decode()
    beside = "" if against is None else f", beside {against.label}"
    body = [
        f"<p>What attention does with one text of {tokens(readings[0].length)}{escape(beside)}. "
        "A query is the byte that looks, a key a byte that it looks at.</p>",
        f"<details><summary>The text</summary><pre>{escape(readings[0].text.decode(errors='replace'))}</pre></details>",
        "<noscript><p>The pictures need JavaScript.</p></noscript>",
        f'<div class="held">{"".join(select(name, found) for name, found in options.items())}</div>',
        '<div class="seen">'
        + "".join(f'<div id="{name}" data-by="{by}"></div>' for name, by in places.items())
        + "</div>",
        f'<script type="application/base64" id="packed">{packed}</script>',
        f"<script>{SAVE}{SHOW}</script>",
    ]
    return html.shell("Positions, seen", body, style=STYLE + CONTROLS, head=MARK)


def select(name: str, options: Sequence[str]) -> str:
    listed = "".join(f'<option value="{at}">{escape(option)}</option>' for at, option in enumerate(options))
    return f'<label>{name} <select id="choose-{name}">{listed}</select></label>'


def check(path: Path, mark: str) -> None:
    """Whether there is a file of the same kind, or none: nothing else is written over."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file")
    above = next(each for each in path.absolute().parents if each.exists())
    if not above.is_dir():
        raise ValueError(f"{path} cannot be written, for {above} is not a folder; choose another name")
    if path.exists() and mark not in path.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"{path} exists and was not made by adapos; remove it or choose another name")
