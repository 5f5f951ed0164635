"""How plots look, on pages and in vector figures: what tells their lines apart, and their axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# far apart to every kind of colour vision, and of middling lightness, to be read on white and on black
COLOURS = ("#5577ff", "#cc8800", "#22aa66", "#9933aa", "#bb3322", "#ff55aa", "#556666")
GREY = "#8b8f96"
MARKS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star")
DASHES = {"solid": "none", "dash": "6 3", "dot": "2 3", "dashdot": "6 3 2 3"}
REACH = 1e4  # a logarithmic axis ends at so many times its least value

LAYOUT: dict[str, Any] = {
    "margin": {"l": 56, "r": 18, "t": 8, "b": 44},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "showlegend": False,
    "hovermode": "closest",
    "font": {"size": 12, "family": "system-ui, sans-serif"},
}
AXIS: dict[str, Any] = {"zeroline": False, "showline": True, "ticks": "outside", "fixedrange": True}


class Look(NamedTuple):
    colour: str
    mark: str
    dash: str


def looks(names: Sequence[str]) -> dict[str, Look]:
    """The colour, mark and dash of each line; any one of them tells neighbours apart."""
    dashes = tuple(DASHES)
    return {
        name: Look(COLOURS[at % len(COLOURS)], MARKS[at % len(MARKS)], dashes[at % len(dashes)])
        for at, name in enumerate(names)
    }


def swatch(look: Look) -> str:
    """A piece of the line, for a key beside a plot."""
    return (
        f'<svg width="34" height="14" aria-hidden="true"><line x1="1" y1="7" x2="33" y2="7" stroke="{look.colour}" '
        f'stroke-width="2" stroke-dasharray="{DASHES[look.dash]}"/>{marked(look, 17, 7, 4.5)}</svg>'
    )


def marked(look: Look, x: float, y: float, radius: float) -> str:
    """A mark as an element of SVG."""
    if look.mark == "circle-open":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="none" stroke="{look.colour}"/>'
    if look.mark == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{look.colour}"/>'
    points = " ".join(f"{x + radius * a:.1f},{y + radius * b:.1f}" for a, b in CORNERS[look.mark])
    return f'<polygon points="{points}" fill="{look.colour}"/>'


def around(corners: int, turn: float, *radii: float) -> list[tuple[float, float]]:
    """Corners on circles of these radii by turns, from `turn` degrees on, downwards being 90."""
    angles = [math.radians(turn + 360 * at / corners) for at in range(corners)]
    return [
        (radii[at % len(radii)] * math.cos(angle), radii[at % len(radii)] * math.sin(angle))
        for at, angle in enumerate(angles)
    ]


def plus(turn: float) -> list[tuple[float, float]]:
    """A cross with arms a third as broad as it is long."""
    arm = math.degrees(math.atan(1 / 3))
    found = []
    for quarter in range(4):
        for angle, radius in ((-arm, 1.05), (arm, 1.05), (45, 0.47)):
            at = math.radians(turn + 90 * quarter + angle)
            found.append((radius * math.cos(at), radius * math.sin(at)))
    return found


CORNERS = {
    "square": around(4, 45, 1.2),
    "diamond": around(4, 0, 1.3),
    "triangle-up": around(3, -90, 1.3),
    "triangle-down": around(3, 90, 1.3),
    "cross": plus(0),
    "x": plus(45),
    "star": around(10, -90, 1.4, 0.6),
}


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    @classmethod
    def logarithmic(cls, values: Iterable[float]) -> Axis:
        """Around positive values; what is far above the least of them is left outside."""
        found = list(values) or [1.0]
        low, high = min(found), min(max(found), min(found) * REACH)
        margin = max(1.05, (high / low) ** 0.06)
        low, high = low / margin, high * margin
        inside = tuple(tick for tick in ticks(low, high) if low <= tick <= high)
        # even ones would crowd at the top of a wide axis
        return cls(low, high, inside if len(inside) > 2 or high > 100 * low else even(low, high), log=True)

    @classmethod
    def linear(cls, values: Iterable[float], *, zero: bool = False) -> Axis:
        found = list(values) or [0.0]
        least, most = min(found), max(found)
        least = min(least, 0.0) if zero else least
        margin = 0.06 * (most - least) or 0.05 * abs(most) or 1.0
        low, high = least - (0 if zero and least == 0 else margin), most + margin
        return cls(low, high, even(low, high))

    @classmethod
    def share(cls) -> Axis:
        """From 0 to 1, with room for marks at both ends."""
        return cls(-0.03, 1.03, (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))

    @classmethod
    def lengths(cls, values: Iterable[float]) -> Axis:
        """Logarithmic, with ticks at values that are there, as many as are told apart."""
        found = sorted(set(values))
        kept = found
        while len(kept) > 6:
            kept = kept[::-1][::2][::-1]
        low, high = min(found), max(found)
        margin = max(high / low, 2) ** 0.05
        return cls(low / margin, high * margin, tuple(kept), log=True)

    def place(self, value: float) -> float:
        """0 at the low end and 1 at the high one."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return (value - low) / (high - low)

    def plotly(self, title: str) -> dict[str, Any]:
        ends = [math.log10(end) for end in (self.low, self.high)] if self.log else [self.low, self.high]
        return AXIS | {
            "type": "log" if self.log else "linear",
            "range": ends,
            "tickvals": list(self.ticks),
            "ticktext": [f"{tick:,g}" for tick in self.ticks],
            "title": {"text": title, "standoff": 8},
        }


def even(low: float, high: float) -> tuple[float, ...]:
    """Round numbers, as far from one to the next."""
    step = 10.0 ** math.floor(math.log10((high - low) / 2))
    step *= next(times for times in (1, 2, 5, 10) if (high - low) / (times * step) <= 6)
    first = math.ceil(low / step - 1e-9)
    return tuple(round(at * step, 12) for at in range(first, math.floor(high / step + 1e-9) + 1))


def ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10... around the range; only powers of ten where there are many."""
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    steps: tuple[float, ...] = (1,) if math.log10(high / low) > 2.5 else (1, 2, 5)
    if high / low < 5:
        steps = (1, 1.5, 2, 3, 4, 5, 6, 8)
    if high / low < 2:
        steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8)
    return [round(step * 10.0**power, 12) for power in powers for step in steps]
