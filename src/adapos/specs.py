"""Lists of encodings and of lengths, as they are written on the command line."""

from __future__ import annotations

from adapos import registry

LONGEST = 2**22


def specs(text: str) -> tuple[str, ...]:
    """'kerple, dape(width=8, kernel=3)' -> its encodings, split at commas outside parentheses and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "," and depth == 0:
            parts.append("")
            continue
        else:
            depth += (letter in "([{") - (letter in ")]}")
        parts[-1] += letter
    found = tuple(" ".join(part.split()) for part in parts)
    for spec in found:
        registry.parse(spec)
        if found.count(spec) > 1:
            raise ValueError(f"encodings: {spec!r} appears twice; name it once")
    return found


def lengths(text: str) -> tuple[int, ...]:
    """'512..4096, 1000' -> 512, 1000, 1024, 2048, 4096: numbers, and doublings from one to another."""
    found: set[int] = set()
    for part in text.split(","):
        low, dots, high = (word.strip() for word in part.partition(".."))
        first = _length(low, part)
        last = _length(high, part) if dots else first
        if last < first:
            raise ValueError(f"lengths: {part.strip()!r} must rise; write {last}..{first}")
        found.add(last)
        while first < last:
            found.add(first)
            first *= 2
    return tuple(sorted(found))


def _length(word: str, part: str) -> int:
    # isdecimal alone lets through digits of other scripts, which int reads too
    number = word.removeprefix("-")
    if not (number.isascii() and number.isdecimal()):
        raise ValueError(
            f"lengths must be whole numbers such as 512,1000 or doublings such as 512..8192, and {part.strip()!r} "
            "is neither"
        )
    if not 1 <= int(word) <= LONGEST:
        raise ValueError(f"lengths must lie from 1 to {LONGEST}, and {word} does not")
    return int(word)
