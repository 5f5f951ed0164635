"""The pictures, each as SVG with a title and a caption, of one model or of two on the same text.

The app, the page and the figures all show these. What a model does not have is said in the caption, not drawn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from adapos.explore.reading import ROUNDING, Numbers, Reading, Row, Spread, parts
from adapos.explore.strip import strip
from adapos.numbers import listed
from adapos.plots import COLOURS, GREY, Axis, Look, even, looks
from adapos.svg import ASIDE, LETTER, SCREEN, SMALL, Plot

EACH = ("text", "products", "moved")  # of which each of two models has its own
NAMES = (*("scores", "bias", "adaptive", "attention", "distance", "rollout", "heads"), *EACH)
LABEL = 40  # letters of a model's name, in that of a file
COLUMNS = 400  # that keys or distances are put into, where there are more
LINES = 6  # layers whose products are drawn, where there are more
NUMBERED = 8  # heads of a layer, at most, whose marks have room for their numbers
DEEPEST = 1e4  # times less than the most is where a logarithmic axis of shares ends
OWN = (Look(COLOURS[0], "circle", "solid"), Look(COLOURS[1], "square", "dash"))
SHUFFLED = (Look(COLOURS[4], "circle", "dot"), Look(COLOURS[3], "circle", "dashdot"))
KEYS = "position of the key, bytes"
DISTANCE = "distance, bytes"


@dataclass(frozen=True)
class Picture:
    name: str  # of its file
    title: str
    caption: str
    svg: str = ""  # nothing where the caption says why
    saved: str = ""  # the name of a file by itself, which says of what it is


@dataclass(frozen=True)
class Columns:
    """Numbers by position or distance: where the line goes through each column, with its least and its most."""

    at: Numbers
    line: Numbers
    low: Numbers
    high: Numbers


def columns(mean: Numbers, low: Numbers, high: Numbers, edges: NDArray[np.int64]) -> Columns:
    """Between edges, of which the last is the end of the numbers."""
    begins, ends = edges[:-1], edges[1:]
    return Columns(
        (begins + ends - 1) / 2,
        np.add.reduceat(mean, begins) / (ends - begins),
        np.minimum.reduceat(low, begins),
        np.maximum.reduceat(high, begins),
    )


def by_place(values: Numbers, most: int, *, peaks: bool = False) -> Columns:
    """In columns of so many keys each; the last may have fewer. The line goes through their means, or their peaks."""
    width = -(-len(values) // most)
    edges = np.append(np.arange(0, len(values), width), len(values))
    found = columns(values, values, values, edges)
    return replace(found, line=found.high) if peaks else found


def by_distance(found: Spread, most: int) -> Columns:
    """In columns that are as wide as they are far, from 1 on: for a logarithmic axis."""
    end = len(found.mean)
    edges = np.unique(np.geomspace(1, end, min(most, end)).round().astype(np.int64))
    return columns(found.mean, found.low, found.high, edges)


def draw(plot: Plot, found: Columns, look: Look, width: float = 1.5) -> None:
    if len(found.at) == 1:
        plot.mark(found.at[0], found.line[0], look, 3.5)
        return
    if (found.high - found.low).max() > 0:
        plot.band(found.at.tolist(), found.low.tolist(), found.high.tolist(), look)
    plot.line(found.at.tolist(), found.line.tolist(), look, width)


def places(last: int) -> Axis:
    high = max(last, 1)
    return Axis(0, high, tuple(tick for tick in even(0, high) if tick == round(tick)))


def distances(length: int) -> Axis:
    """Logarithmic from 1; the powers of 2 that have room."""
    powers = [2.0**power for power in range(20) if 2**power < length]
    return Axis(1, max(length - 1, 2), tuple(powers[:: 1 + len(powers) // 7]), log=True)


def in_columns(count: int, found: Columns, *, peaks: bool = False) -> str:
    """What is said of a line that stands for more keys than it has points."""
    keys = -(-count // len(found.at))
    if peaks:
        return f" Lines go through the greatest of each {keys} keys, bands go down to the least."
    return f" Lines are means of {keys} keys, bands go from their least to their most."


def acts(reading: Reading) -> str:
    """How a model without a bias knows of positions."""
    held = parts(reading.model.encoding)
    ways = {"adds": "are added to the embeddings", "rotates": "turn queries and keys"}
    found = [said for trait, said in ways.items() if any(getattr(part, trait) for part in held)]
    if found:
        return f"its positions {listed(found)}"
    return "it has an adaptive term alone" if reading.mixes(0) else "it is told nothing of positions"


def of_row(readings: Sequence[Reading], layer: int, head: int, query: int, most: int = COLUMNS) -> list[Picture]:
    """The four parts of a row and the text around the query."""
    there = [(each, look) for each, look in zip(readings, OWN, strict=False) if each.holds(layer, head)]
    rows = [(each, look, each.row(layer, head, query)) for each, look in there]
    absent = [without(each) for each in readings if not each.holds(layer, head)]
    chosen = {"layer": layer, "head": head, "query": query}

    def picture(
        name: str,
        title: str,
        unit: str,
        says: str,
        part: Callable[[Row], Numbers],
        lacks: Callable[[Reading], str] = lambda _: "",
    ) -> Picture:
        peaks = name == "attention"  # a mean would hide that one key has it all
        shown = [(each, look, by_place(part(row), most, peaks=peaks)) for each, look, row in rows if not lacks(each)]
        notes = [sentence for each, _, _ in rows if (sentence := lacks(each))] + absent
        caption = " ".join([*([says] if shown else []), *notes])
        if not shown:
            return Picture(name, title, caption)
        values = np.concatenate([x for _, _, found in shown for x in (found.low, found.high)])
        up, of = Axis.linear(values.tolist(), zero=peaks), [each for each, _, _ in shown]
        plot = Plot(titled(title, of, **chosen), places(query), up, (KEYS, unit), SCREEN, f"in-{name}")
        for _, look, found in shown:
            draw(plot, found, look)
        if query + 1 > most:
            caption += in_columns(query + 1, shown[0][2], peaks=peaks)
        drawn = plot.svg(key(readings, shown), marks=False, said=caption)
        return Picture(name, title, caption, drawn, filed(name, of, **chosen))

    kinds = {True: "reads the text, and differs from text to text", False: "static, the same for every text"}
    biased = [each for each, _ in there if each.biases(layer)]
    bias_says = " ".join(f"{each.label}: {kinds[each.reads_text]}." for each in biased)
    return [
        picture(
            "scores", "raw scores", "q·k / √D, nats", "What queries and keys say by themselves.", lambda x: x.score
        ),
        picture(
            "bias",
            "bias",
            "added to the score, nats",
            bias_says,
            lambda x: x.bias,
            lambda each: "" if each.biases(layer) else f"{each.label} has no bias: {acts(each)}.",
        ),
        picture(
            "adaptive",
            "adaptive term",
            "added to the score, nats",
            "What the encoding adds after it has read the scores.",
            lambda x: x.adaptive,
            lambda each: "" if each.mixes(layer) else f"{each.label} has no adaptive term: nothing in it reads scores.",
        ),
        picture(
            "attention",
            "attention",
            "weight, of 1 in all",
            "The softmax of the sum of the three.",
            lambda x: x.weights,
        ),
        *(
            Picture(
                named("text", at, readings),
                f"what is attended{whose(each, readings)}",
                *strip(each, row.weights, query, look.colour, titled("what is attended", [each], **chosen)),
                filed("text", [each], **chosen),
            )
            for at, (each, look, row) in enumerate(rows)
        ),
    ]


def of_distance(readings: Sequence[Reading], layer: int, head: int, most: int = COLUMNS) -> Picture:
    """What is added to raw scores, for the text and for its shuffle."""
    name, title = "distance", "what is added to the score, by distance"
    shown, notes = [], []
    for at, each in enumerate(readings):
        if not each.holds(layer, head):
            notes.append(without(each))
        elif not each.biases(layer) and not each.mixes(layer):
            notes.append(f"{each.label} adds nothing to the scores: {acts(each)}.")
        elif each.length < 2:
            notes.append("A text of one byte has no distances.")
        else:
            here, there = (by_distance(found[head], most) for found in each.added(layer))
            shown.append((each, OWN[at], SHUFFLED[at], here, there))
            apart = max(
                float(np.abs(getattr(here, part) - getattr(there, part)).max()) for part in ("line", "low", "high")
            )
            size = max(1.0, float(np.abs(here.line).max()))
            same = apart <= ROUNDING * size
            notes.append(f"{each.label}: the two {'coincide' if same else f'differ by up to {apart:.2g} nats'}.")
    if not shown:
        return Picture(name, title, " ".join(notes))
    values = np.concatenate([x for _, _, _, *both in shown for found in both for x in (found.low, found.high)])
    of = [each for each, *_ in shown]
    plot = Plot(
        titled(title, of, layer=layer, head=head),
        distances(readings[0].length),
        Axis.linear(values.tolist()),
        (DISTANCE, "bias + adaptive term, nats"),
        SCREEN,
        f"in-{name}",
    )
    lines = {}
    for each, own, other, here, there in shown:
        draw(plot, here, own, 2.0)
        draw(plot, there, other)
        lines[f"{each.label}, this text"], lines[f"{each.label}, shuffled"] = own, other
    caption = (
        f"Bias and adaptive term, for this text and for its bytes in random order. {' '.join(notes)} "
        f"{over_those_that_reach(readings[0], shown[0][3])} Bands go from the least to the most."
    )
    drawn = plot.svg(lines, marks=False, said=caption)
    return Picture(name, title, caption, drawn, filed(name, of, layer=layer, head=head))


def of_products(readings: Sequence[Reading], most: int = COLUMNS) -> list[Picture]:
    """Of states that travel, layer by layer: two pictures for each model that has them, a sentence for another."""
    found = []
    for at, each in enumerate(readings):
        found += products(each, named("products", at, readings), whose(each, readings), most)
    return found


def products(reading: Reading, name: str, whose: str, most: int) -> list[Picture]:
    title = "products of positions, layer by layer"
    if not reading.states or reading.length < 2:
        lacks = "A text of one byte has no distances."
        if not reading.model.encoding.travels:
            lacks = f"{reading.label} has none: no state of its tokens travels from layer to layer."
        elif not reading.states:
            lacks = f"{reading.label} carries a state that is not one number for each frequency."
        return [Picture(name, f"{title}{whose}", lacks)]
    lines = [by_distance(Spread(x, x, x), most) for x in reading.products]
    last = len(lines) - 1
    layers = sorted({round(at) for at in np.linspace(1, last, min(LINES, last))}) if last else []
    first, look = lines[0], looks([f"layer {layer}" for layer in layers])
    start, grey = "RoPE and layer 0" if reading.turns else "layer 0, as begun", Look(GREY, "circle", "solid")

    def plot(name: str, title: str, caption: str, unit: str, base: Numbers) -> Picture:
        """All lines less `base`, which is that of the first layer or nothing."""
        values = [first.line - base, *(lines[layer].line - base for layer in layers)]
        found = Plot(
            titled(title, [reading]),
            distances(reading.length),
            Axis.linear(np.concatenate(values).tolist()),
            (DISTANCE, unit),
            SCREEN,
            f"in-{name}",
        )
        for value, each, width in zip(values, (grey, *look.values()), (3.0, *[1.5] * len(layers)), strict=True):
            draw(found, Columns(first.at, value, value, value), each, width)
        drawn = found.svg({start: grey} | look, marks=False, said=caption)
        return Picture(name, f"{title}{whose}", caption, drawn, filed(name.partition("-")[0], [reading]))

    caption = (
        "How alike the states of two tokens are: the cosine of the angle between them, the mean over frequencies and "
        f"heads. {over_those_that_reach(reading, first)}"
    )
    shown = [plot(name, title, caption, "mean cosine", np.zeros_like(first.line))]
    if layers:
        gap = {layer: float(np.abs(lines[layer].line - first.line).max()) for layer in layers}
        furthest = max(gap, key=lambda layer: gap[layer])
        title, name = "how far the layers have moved them", name.replace("products", "moved")
        caption = (
            f"The same, less what they began as. Layer {furthest} is furthest from it, by up to {gap[furthest]:.2g}."
            if gap[furthest] > ROUNDING
            else "The same, less what they began as: no layer has moved them."
        )
        shown.append(plot(name, title, caption, "change of the mean cosine", first.line))
    return shown


def of_rollout(readings: Sequence[Reading], query: int, most: int = COLUMNS) -> Picture:
    name, title = "rollout", "attention rollout through all layers"
    rows = [by_place(each.rollout([query])[0], most, peaks=True) for each in readings]
    highest = max(float(row.high.max()) for row in rows)
    lowest = max(min(float(row.low.min()) for row in rows), highest / DEEPEST)
    plot = Plot(
        titled(title, readings, query=query),
        places(query),
        Axis.logarithmic([lowest, highest]),
        (KEYS, "share of the query, log scale"),
        SCREEN,
        f"in-{name}",
    )
    shown = []
    for each, look, row in zip(readings, OWN, rows, strict=False):
        inside = Columns(row.at, *(x.clip(lowest) for x in (row.line, row.low, row.high)))
        draw(plot, inside, look)
        shown.append((each, look, inside))
    caption = (
        "How much of each byte reaches the query through all layers, if each layer passes on half of a token as it is "
        "and half by the mean attention of its heads."
    )
    if query + 1 > most:
        caption += in_columns(query + 1, rows[0], peaks=True)
    drawn = plot.svg(key(readings, shown), marks=False, said=caption)
    return Picture(name, title, caption, drawn, filed(name, readings, query=query))


def of_heads(readings: Sequence[Reading], layer: int | None = None, head: int | None = None) -> Picture:
    """How far each head of each layer looks back. Without a layer every head has a ring, for a page to show."""
    name, title = "heads", "how far heads look back"
    deepest, most = (max(getattr(each, count) for each in readings) for count in ("layers", "heads"))
    values = np.concatenate([each.looks_back.ravel() for each in readings])
    numbered = most <= NUMBERED
    height, room = max(SCREEN.height, 60 + 26.0 * deepest), 2 * LETTER * SMALL * most if numbered else 0.0
    step = 1 + (deepest - 1) // 12
    plot = Plot(
        titled(title, readings),
        Axis.linear(values.tolist(), zero=True),
        Axis(deepest - 0.4, -0.6, tuple(range(0, deepest, step))),  # the first layer on top
        ("mean distance of what is attended, bytes", "layer"),
        replace(SCREEN, height=height, right=max(SCREEN.right, room)),
        f"in-{name}",
    )
    for at, (each, look) in enumerate(zip(readings, OWN, strict=False)):
        shift = 0.0 if len(readings) == 1 else (-0.16, 0.16)[at]
        for i, row in enumerate(each.looks_back.tolist()):
            for j, value in enumerate(row):
                if layer is None or (i, j) == (layer, head):
                    plot.ring(value, i + shift, f"{i} {j}" if layer is None else "")
                plot.mark(value, i + shift, look, 4.0, f"{each.label}, layer {i}, head {j}: {value:.1f} bytes")
            for group in groups([plot.x(value) for value in row]) if numbered else ():
                plot.beside(row[group[-1]], i + shift, ",".join(map(str, group)))
    numbers = "with its number; those of close marks stand together, from left to right"
    caption = (
        f"One mark for each head, {numbers if numbered else 'which says its number when pointed at'}. "
        f"{over(readings[0])} The head that is chosen has a ring."
    )
    shown = [(each, look, None) for each, look in zip(readings, OWN, strict=False)]
    return Picture(name, title, caption, plot.svg(key(readings, shown), said=caption), filed(name, readings))


def groups(places: Sequence[float]) -> list[list[int]]:
    """Marks from left to right, those together of which one would stand on the number of another."""
    found: list[list[int]] = []
    end = -math.inf
    for mark in sorted(range(len(places)), key=lambda mark: places[mark]):
        if places[mark] - ASIDE < end:
            found[-1].append(mark)
        else:
            found.append([mark])
        end = places[mark] + ASIDE + LETTER * SMALL * len(",".join(map(str, found[-1])))
    return found


def everything(readings: Sequence[Reading], layer: int, head: int, query: int, *, rolled: bool = True) -> list[Picture]:
    return [
        *of_row(readings, layer, head, query),
        of_distance(readings, layer, head),
        *([of_rollout(readings, query)] if rolled else []),
        of_heads(readings, layer, head),
        *of_products(readings),
    ]


def key(readings: Sequence[Reading], shown: Sequence[tuple[Reading, Look, object]]) -> dict[str, Look]:
    """Which line is whose, where there could be a doubt."""
    return {each.label: look for each, look, _ in shown} if len(readings) > 1 else {}


def titled(title: str, readings: Sequence[Reading], **chosen: int) -> str:
    """Of which models a picture is, and of which layer, head and query."""
    labels = listed([each.label for each in readings])
    return ", ".join([f"{labels}: {title}", *(f"{name} {value}" for name, value in chosen.items())])


def filed(name: str, readings: Sequence[Reading], **chosen: int) -> str:
    """The same as the name of a file, in letters that every system takes."""
    words = [name, *(each.label[:LABEL] for each in readings), *(f"{name} {value}" for name, value in chosen.items())]
    return re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")


def without(reading: Reading) -> str:
    return (
        f"{reading.label} has no such head: its last layer is {reading.layers - 1}, its last head {reading.heads - 1}."
    )


def whose(reading: Reading, readings: Sequence[Reading]) -> str:
    return f", {reading.label}" if len(readings) > 1 else ""


def named(name: str, at: int, readings: Sequence[Reading]) -> str:
    return f"{name}-{at + 1}" if len(readings) > 1 else name


def over(reading: Reading) -> str:
    count = len(reading.sample)
    if count == reading.length:
        return f"Means over all {count:,} queries." if count > 1 else "Of the one query."
    return f"Means over {count} queries, evenly spaced among {reading.length:,}."


def over_those_that_reach(reading: Reading, found: Columns) -> str:
    """The same of means by distance."""
    count = len(reading.sample)
    queries = f"all {count:,} queries"
    if count < reading.length:
        queries = f"{count} queries, evenly spaced among {reading.length:,},"
    together = " Far distances are drawn together, the further the more of them."
    return (
        f"At each distance it is the mean over those of {queries} that reach so far back; distance 0, the query "
        f"itself, is left out.{together if len(found.at) < reading.length - 1 else ''}"
    )
