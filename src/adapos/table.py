"""The table of encodings, read off the registry: the command line, the README and the docs all print this one."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any

from adapos import registry
from adapos.encoding import PositionalEncoding, Promises, Shape

ARXIV = re.compile(r"\b\d{4}\.\d{4,5}\b")
SHAPE = Shape(layers=2, width=32, heads=4)  # some promises depend on parameters, so one of each is built


@dataclass(frozen=True)
class Row:
    name: str
    aliases: tuple[str, ...]
    parameters: dict[str, Any]
    does: str  # one sentence or a formula
    papers: tuple[str, ...]  # arXiv ids
    promises: Promises  # in evaluation, with the default parameters

    @property
    def names(self) -> str:
        return ", ".join((self.name, *self.aliases))

    @property
    def defaults(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())

    @property
    def promised(self) -> str:
        words = [word for word in ("relative", "cacheable") if getattr(self.promises, word)]
        words += ["causal only"] if self.promises.causal_only else []
        words += [] if self.promises.longest is None else [f"ids below {self.promises.longest}"]
        return ", ".join(words) or "none"


def rows() -> list[Row]:
    """One row for each registered encoding, in the order of registration."""
    return [row(cls) for cls in registry.REGISTRY.values()]


def row(cls: type[PositionalEncoding]) -> Row:
    aliases = tuple(alias for alias, name in registry.ALIASES.items() if name == cls.name)
    promises = cls(SHAPE).eval().promises
    return Row(cls.name, aliases, registry.parameters(cls), first_sentence(cls.__doc__ or ""), papers(cls), promises)


def first_sentence(text: str) -> str:
    """Up to the first full stop that ends a word; in `q . k` the dot is a product."""
    return re.split(r"(?<=[^\s.])\.(?:\s|$)", " ".join(text.split()), maxsplit=1)[0]


def papers(cls: type[PositionalEncoding]) -> tuple[str, ...]:
    """The arXiv ids of the docstring, or else of the module's, without those that it gives to a neighbour by name."""
    own = ARXIV.findall(cls.__doc__ or "")
    if own:
        return tuple(own)
    module = sys.modules.get(cls.__module__)
    neighbours = {
        other.name for other in registry.REGISTRY.values() if other.__module__ == cls.__module__ and other is not cls
    }
    found = []
    for part in ((module and module.__doc__) or "").split(";"):
        labels = {label.lower() for label in re.findall(r"(\w+):", part)}
        found += [] if labels & neighbours else ARXIV.findall(part)
    return tuple(found)


def markdown() -> str:
    lines = ["| encoding | parameters | what it does | paper | promises |", "|---|---|---|---|---|"]
    for row in rows():
        names = ", ".join(f"`{name}`" for name in (row.name, *row.aliases))
        defaults = ", ".join(f"`{name}={value!r}`" for name, value in row.parameters.items())
        links = ", ".join(f"[{paper}](https://arxiv.org/abs/{paper})" for paper in row.papers)
        # a bar would end the cell
        cells = [cell.replace("|", r"\|") for cell in (names, defaults, row.does, links, row.promised)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(re.sub(r" {2,}", " ", line) for line in lines)
