"""The text around a query, byte by byte, shaded by how much each is attended."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from adapos.numbers import share
from adapos.svg import SCREEN, whole

if TYPE_CHECKING:
    from adapos.explore.reading import Numbers, Reading

ACROSS, DOWN = 44, 7  # bytes to a line, and lines
AFTER = 6  # bytes that follow the query, to be read with it
LEFT, CELL, LINE, GAP = 38.0, 7.2, 19.0, 10.0
SIGNS = {"\n": "↵", "\t": "⇥", "\r": "␍", " ": "\u00a0"}
MONOSPACED = "ui-monospace, Menlo, Consolas, monospace"
FAINTEST = 0.04  # of a shade that is drawn


def signs(text: bytes) -> list[str]:
    """A sign for each byte: a character stands at its first byte, and nothing at those that follow."""
    found, at = [], 0
    while at < len(text):
        size = next((n for n in (1, 2, 3, 4) if valid(text[at : at + n])), 0)
        letter = text[at : at + size].decode() if size else "·"
        sign = SIGNS.get(letter, letter if letter.isprintable() else "·")
        found += [sign, *["\u00a0"] * (size - 1)]
        at += size or 1
    return found


def valid(piece: bytes) -> bool:
    try:
        return len(piece.decode()) == 1
    except UnicodeDecodeError:
        return False


def lines(length: int, query: int, best: int) -> list[tuple[int, int]]:
    """Where the lines begin and end: those up to the query, below two around the most attended byte if it is far."""
    last = min(query + 1 + AFTER, length)
    first = max(0, last - ACROSS * DOWN)
    far: list[tuple[int, int]] = []
    if best < first:
        first = last - ACROSS * (DOWN - 2)
        begin = max(0, min(best - ACROSS, first - 2 * ACROSS))
        far = [(begin, begin + ACROSS), (begin + ACROSS, begin + 2 * ACROSS)]
    return far + [(begin, min(begin + ACROSS, last)) for begin in range(first, last, ACROSS)]


def strip(reading: Reading, weights: Numbers, query: int, colour: str, title: str) -> tuple[str, str]:
    """The caption and the picture."""
    letters, best = signs(reading.text), int(weights.argmax())
    most, inside, parts, top, before = float(weights[best]), 0.0, [], 4.0, 0
    for begin, end in lines(reading.length, query, best):
        top += GAP if before and begin > before else 0.0  # where something is left out
        before = end
        parts.append(
            f'<text x="{LEFT - 6:g}" y="{top + 13.5:.1f}" text-anchor="end" font-size="9" fill="#777">{begin:,}</text>'
        )
        for at in range(begin, min(end, query + 1)):
            weight = float(weights[at])
            inside, shade = inside + weight, (weight / most) ** 0.5
            if shade >= FAINTEST:
                parts.append(
                    f'<rect x="{LEFT + CELL * (at - begin):.1f}" y="{top:g}" width="{CELL}" height="18" '
                    f'fill="{colour}" fill-opacity="{0.75 * shade:.2f}"><title>byte {at}: {share(weight)}</title>'
                    "</rect>"
                )
        if begin <= query < end:
            parts.append(
                f'<rect x="{LEFT + CELL * (query - begin):.1f}" y="{top:g}" width="{CELL}" height="18" fill="none" '
                'stroke="#000" stroke-width="1.4" class="axis"/>'
            )
        parts += line(letters[begin:end], top + 13.5)
        top += LINE
    caption = (
        f"Byte {query} is framed, and bytes are shaded by the root of their weight: {share(inside)} of it falls on "
        f"what is shown. The most attended is byte {best} ({share(most)}), in “{around(letters, best)}”."
    )
    return caption, whole(title, SCREEN.width, top + 4, 11.5, parts, MONOSPACED, caption)


def line(letters: list[str], y: float) -> list[str]:
    """In one element, each at its place; apart where a browser might join or reorder them."""
    places = [LEFT + CELL * (at + 0.5) for at in range(len(letters))]
    if all(ord(letter) < 0x300 or letter in SIGNS.values() for letter in letters):
        xs = " ".join(f"{x:.1f}" for x in places)
        return [f'<text x="{xs}" y="{y:.1f}" text-anchor="middle" class="ink">{escape("".join(letters))}</text>']
    return [
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" class="ink">{escape(letter)}</text>'
        for x, letter in zip(places, letters, strict=True)
    ]


def around(letters: list[str], at: int, reach: int = 6) -> str:
    return "".join(letters[max(0, at - reach) : at + reach + 1]).strip("\u00a0") or letters[at]
