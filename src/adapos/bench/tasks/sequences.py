"""Short programs over random symbols: copy, reverse and induction."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.random import Generator

from adapos.bench.task import IGNORED, Batch, Cell, Ids, Task
from adapos.bench.tasks import register
from adapos.registry import at_least


class Sequences(Task):
    """Symbols 0..alphabet - 1, uniform and independent, and one token more that marks a place: `|`.

    Training draws one length for the whole batch, uniformly from the shortest up to `length`.
    """

    shortest = 1

    def __init__(self, alphabet: int = 16) -> None:
        at_least(self.name, "alphabet", alphabet, 2)
        self.alphabet = alphabet

    @property
    def vocabulary(self) -> int:
        return self.alphabet + 1

    def batch(self, rng: Generator, size: int, length: int) -> Batch:
        at_least(self.name, "length", length, self.shortest)
        return self.exam(rng, size, Cell(int(rng.integers(self.shortest, length + 1))))

    def exam(self, rng: Generator, size: int, cell: Cell) -> Batch:
        at_least(self.name, "length", cell.length, self.shortest)
        return self.ask(rng, rng.integers(self.alphabet, size=(size, cell.length)))

    @abstractmethod
    def ask(self, rng: Generator, symbols: Ids) -> Batch:
        """The task put to random symbols (B, length)."""

    def describe(self, tokens: Ids) -> str:
        return " ".join("|" if token == self.alphabet else str(token) for token in tokens)


@register("copy")
class Copy(Sequences):
    """`length` is the symbols to copy: behind `3 1 2 |` come `3 1 2`, each read once it was asked for."""

    def ask(self, rng: Generator, symbols: Ids) -> Batch:
        return _said(symbols, self.alphabet, symbols)

    def tokens_at(self, length: int) -> int:
        return 2 * length


@register("reverse")
class Reverse(Sequences):
    """`length` is the symbols to reverse: behind `3 1 2 |` come `2 1 3`, each read once it was asked for."""

    def ask(self, rng: Generator, symbols: Ids) -> Batch:
        return _said(symbols, self.alphabet, symbols[:, ::-1])

    def tokens_at(self, length: int) -> int:
        return 2 * length


@register("induction")
class Induction(Sequences):
    """`length` is the tokens read, at least 3: at the end of `3 | 1 2 0 |` comes `1`, which followed the mark before.

    The mark stands twice: at the end, and at a place uniform over the first length - 2. Only its second follower is
    asked for.
    """

    shortest = 3

    def ask(self, rng: Generator, symbols: Ids) -> Batch:
        size, length = symbols.shape
        row, place = np.arange(size), rng.integers(length - 2, size=size)
        targets = np.full_like(symbols, IGNORED)
        targets[:, -1] = symbols[row, place + 1]
        symbols[row, place] = symbols[:, -1] = self.alphabet
        return Batch(symbols, targets)

    def tokens_at(self, length: int) -> int:
        return length


def _said(symbols: Ids, mark: int, answer: Ids) -> Batch:
    """The symbols and the mark, behind which each place is asked for the next token of the answer."""
    read = np.insert(symbols, symbols.shape[1], mark, axis=1)
    nothing = np.full_like(symbols, IGNORED)
    return Batch(np.hstack([read, answer[:, :-1]]), np.hstack([nothing, answer]))
