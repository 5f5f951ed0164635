"""Plots as SVG with real text: a frame with named axes, and lines, bands and marks inside it.

A plot is whole by itself, in black on nothing, for papers. On a page its classes (`ink`, `axis`, `grid`) take the
colours of the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from textwrap import wrap
from xml.etree import ElementTree

from adapos.plots import DASHES, Axis, Look, marked

NAMESPACE = "http://www.w3.org/2000/svg"
TAG = f"{{{NAMESPACE}}}"  # before the name of one, to ElementTree
FAMILY = "Helvetica, Arial, sans-serif"
LETTER = 0.51  # about the width of one, beside the size of the font
SMALL = 9.0  # the font of words below a plot, and beside marks
ASIDE = 9.0  # from a mark to the word beside it
THIN = 1.3


@dataclass(frozen=True)
class Frame:
    """The sizes of a plot with its labels, without the key below it."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    font: float


# 340 is a column of 3.4 inches at 100 to the inch
COLUMN = Frame(width=340.0, height=210.0, left=42.0, right=10.0, top=14.0, bottom=32.0, font=9.0)
# as wide as a phone shows it, so that its letters are read there
SCREEN = Frame(width=360.0, height=216.0, left=58.0, right=18.0, top=12.0, bottom=40.0, font=11.0)


@dataclass
class Plot:
    title: str
    across: Axis
    up: Axis
    names: tuple[str, str]  # of the axes, with their units
    frame: Frame = COLUMN
    clip: str = "inside"  # an id, of its own where several plots stand on one page
    parts: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)  # may reach out of the frame

    @property
    def end(self) -> tuple[float, float]:
        """The lower right corner of the frame."""
        return self.frame.width - self.frame.right, self.frame.height - self.frame.bottom

    def x(self, value: float) -> float:
        return self.frame.left + self.across.place(value) * (self.end[0] - self.frame.left)

    def y(self, value: float) -> float:
        return self.end[1] - self.up.place(value) * (self.end[1] - self.frame.top)

    def points(self, xs: Iterable[float], ys: Iterable[float]) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(xs, ys, strict=True))

    def line(self, xs: Sequence[float], ys: Sequence[float], look: Look, width: float = THIN) -> None:
        self.parts.append(
            f'<polyline points="{self.points(xs, ys)}" fill="none" stroke="{look.colour}" stroke-width="{width}" '
            f'stroke-dasharray="{DASHES[look.dash]}"/>'
        )

    def band(self, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float], look: Look) -> None:
        there, back = self.points(xs, highs), self.points(list(xs)[::-1], list(lows)[::-1])
        self.parts.append(f'<polygon points="{there} {back}" fill="{look.colour}" fill-opacity="0.15"/>')

    def mark(self, x: float, y: float, look: Look, radius: float = 2.6, said: str = "") -> None:
        drawn = marked(look, self.x(x), self.y(y), radius)
        self.parts.append(f"<g><title>{escape(said)}</title>{drawn}</g>" if said else drawn)

    def ring(self, x: float, y: float, name: str = "") -> None:
        """Around a mark. One that has a name is hidden until a page shows it."""
        hidden = f' data-ring="{name}" visibility="hidden"' if name else ""
        at = f'cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="7"'
        self.parts.append(f'<circle {at} fill="none" stroke="currentColor"{hidden}/>')

    def beside(self, x: float, y: float, said: str) -> None:
        """A word to the right of a mark, above the line that it stands on."""
        self.over.append(
            f'<text x="{self.x(x) + ASIDE:.1f}" y="{self.y(y) - 2:.1f}" font-size="{SMALL:g}" class="ink">'
            f"{escape(said)}</text>"
        )

    def rule(self, x: float, said: str) -> None:
        """An upright line over the whole height, named at its top."""
        at = self.x(x)
        anchor = "start" if at < self.frame.width / 2 else "end"
        self.over.append(
            f'<line x1="{at:.1f}" y1="{self.frame.top}" x2="{at:.1f}" y2="{self.end[1]}" stroke="#777" '
            f'stroke-dasharray="3 2"/><text x="{at:.1f}" y="{self.frame.top - 4}" text-anchor="{anchor}" '
            f'fill="#555" class="ink">{escape(said)}</text>'
        )

    def svg(self, key: Mapping[str, Look] | None = None, marks: bool = True, said: str = "") -> str:
        """The whole, with a key below it that names the lines, and a description that is not seen."""
        frame, (right, bottom) = self.frame, self.end
        middle, font = (frame.top + bottom) / 2, frame.font
        parts = [
            f'<line x1="{frame.left}" y1="{self.y(tick):.1f}" x2="{right}" y2="{self.y(tick):.1f}" stroke="#e4e4e4" '
            f'class="grid"/><text x="{frame.left - 4}" y="{self.y(tick) + font / 3:.1f}" text-anchor="end" '
            f'class="ink">{tick:,g}</text>'
            for tick in self.up.ticks
        ]
        parts += [
            f'<line x1="{self.x(tick):.1f}" y1="{bottom}" x2="{self.x(tick):.1f}" y2="{bottom + 3}" stroke="#000" '
            f'class="axis"/><text x="{self.x(tick):.1f}" y="{bottom + 4 + font:.1f}" text-anchor="middle" '
            f'class="ink">{tick:,g}</text>'
            for tick in self.across.ticks
        ]
        parts += [
            *self.over,
            f'<text x="{(frame.left + right) / 2:.1f}" y="{frame.height - 5}" text-anchor="middle" class="ink">'
            f"{escape(self.names[0])}</text>",
            f'<text x="{font + 1}" y="{middle:.1f}" text-anchor="middle" class="ink" '
            f'transform="rotate(-90 {font + 1} {middle:.1f})">{escape(self.names[1])}</text>',
            f'<clipPath id="{self.clip}"><rect x="{frame.left}" y="{frame.top}" width="{right - frame.left}" '
            f'height="{bottom - frame.top}"/></clipPath>',
            f'<g clip-path="url(#{self.clip})">',
            *self.parts,
            "</g>",
            f'<path d="M{frame.left} {frame.top}V{bottom}H{right}" fill="none" stroke="#000" class="axis"/>',
        ]
        named, below = legend(key or {}, frame, marks)
        return whole(self.title, frame.width, frame.height + below, font, [*parts, *named], said=said)


def whole(
    title: str,
    width: float,
    height: float,
    font: float,
    parts: Iterable[str],
    family: str = FAMILY,
    said: str = "",
) -> str:
    """A file of SVG, or an element of a page, as wide as there is room for."""
    names = [f"<title>{escape(title)}</title>", *([f"<desc>{escape(said)}</desc>"] if said else [])]
    return (
        f'<svg xmlns="{NAMESPACE}" class="adapos" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{family}" font-size="{font:g}" role="img">\n'
        + "\n".join([*names, *parts])
        + "\n</svg>\n"
    )


def captioned(drawn: str) -> str:
    """The same with its title and its description to be read below it, for a file that stands alone."""
    ElementTree.register_namespace("", NAMESPACE)
    root = ElementTree.fromstring(drawn)
    width, height = (int(root.get(side, "0")) for side in ("width", "height"))
    said = ". ".join(root.findtext(TAG + name, "") for name in ("title", "desc"))
    look = {"class": "caption", "font-family": FAMILY, "font-size": f"{SMALL:g}"}
    words = ElementTree.SubElement(root, TAG + "g", look)
    for line in wrap(said, int((width - 2 * SMALL) / (LETTER * SMALL))):
        height += round(1.35 * SMALL)
        ElementTree.SubElement(words, TAG + "text", {"x": f"{SMALL:g}", "y": f"{height}"}).text = line
    height += round(SMALL)
    root.set("height", str(height))
    root.set("viewBox", f"0 0 {width} {height}")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def legend(look: Mapping[str, Look], frame: Frame, marks: bool = True) -> tuple[list[str], float]:
    """Under the plot, as many to a line as there is room for; and its height."""
    if not look:
        return [], 0.0
    parts = []
    start, line = frame.left / 2, 1.45 * frame.font
    left, middle = start, frame.height + 6 + frame.font / 4
    for name, each in look.items():
        room = 36 + LETTER * frame.font * len(name)
        if left > start and left + room > frame.width:
            left, middle = start, middle + line
        mark = marked(each, left + 10, middle, 2.6) if marks else ""
        parts.append(
            f'<line x1="{left:.1f}" y1="{middle:.1f}" x2="{left + 20:.1f}" y2="{middle:.1f}" stroke="{each.colour}" '
            f'stroke-width="{THIN}" stroke-dasharray="{DASHES[each.dash]}"/>{mark}'
            f'<text x="{left + 25:.1f}" y="{middle + frame.font / 3:.1f}" class="ink">{escape(name)}</text>'
        )
        left += room
    return parts, middle + line - frame.height
