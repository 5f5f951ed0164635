"""How numbers are said, in the terminal and on pages."""

from __future__ import annotations

UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(x: float) -> str:
    """Three digits that matter, or as many as stand before the point."""
    for most, digits in ((0.1, 4), (1, 3), (10, 2), (100, 1)):
        if round(x, digits) < most:
            return f"{x:.{digits}f}"
    return f"{x:,.0f}"


def large(x: float) -> str:
    """1.65 G"""
    for size, letter in UNITS:
        if x >= size:
            return f"{number(x / size)} {letter}"
    return f"{x:.0f}"


def share(x: float | None) -> str:
    if x is None:
        return ""
    return f"{100 * x:.0f} %" if x >= 0.0095 else f"{100 * x:.1g} %"


def listed(words: list[str], most: int = 12) -> str:
    """'a, b and c', or 'a, b and 7 more'."""
    if len(words) > most:
        words = [*words[: most - 1], f"{len(words) - most + 1} more"]
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
