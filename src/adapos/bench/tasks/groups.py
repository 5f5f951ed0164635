"""Word problems of groups: the product of all elements so far. Merrill et al. 2024, arXiv 2404.08819, section 5."""

from __future__ import annotations

from itertools import permutations
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from adapos.bench.task import Batch, Cell, Ids, Task
from adapos.bench.tasks import register
from adapos.registry import at_least, true_or_false


def permuting(places: int, *, even: bool = False) -> Ids:
    """(N, N): the numbers of the products gh, (gh)(x) = g(h(x)), of all or all even permutations, in the order of
    their spelling: 012 is 0, 021 is 1."""
    g = np.array(list(permutations(range(places))))
    if even:
        left, right = np.triu_indices(places, 1)
        g = g[(g[:, left] > g[:, right]).sum(1) % 2 == 0]
    spelling = places ** np.arange(places)[::-1]
    return np.searchsorted(g @ spelling, g[:, g] @ spelling)


def cyclic(order: int) -> Ids:
    """(N, N): the sums modulo the order."""
    return np.add.outer(np.arange(order), np.arange(order)) % order


def both(g: Ids, h: Ids) -> Ids:
    """The table of the pairs of two groups, (a, b) numbered a times the order of the second, plus b."""
    return (g[:, None, :, None] * len(h) + h[None, :, None, :]).reshape(len(g) * len(h), -1)


class WordProblem(Task):
    """`length` is the elements read, each one token, uniform and independent; asked for, behind each element, is the
    product of all so far. Element 0 changes nothing.

    Training draws one length for the whole batch, uniformly from 1 up to `length`.
    """

    table: ClassVar[Ids]  # (N, N): the number of gh at [g, h]

    @property
    def vocabulary(self) -> int:
        return len(self.table)

    def batch(self, rng: Generator, size: int, length: int) -> Batch:
        at_least(self.name, "length", length, 1)
        return self.exam(rng, size, Cell(int(rng.integers(1, length + 1))))

    def exam(self, rng: Generator, size: int, cell: Cell) -> Batch:
        at_least(self.name, "length", cell.length, 1)
        tokens = self.read(rng, size, cell.length)
        return Batch(tokens, self.products(tokens))

    def read(self, rng: Generator, size: int, length: int) -> Ids:
        """(B, T): the elements."""
        return rng.integers(self.vocabulary, size=(size, length))

    def products(self, tokens: Ids) -> Ids:
        """(B, T): of the first element, the first two, and so on."""
        product, span = tokens.copy(), 1
        # each place holds the product of the last `span` elements, or of all where there are fewer
        while span < tokens.shape[1]:
            product[:, span:] = self.table[product[:, :-span], product[:, span:]]
            span *= 2
        return product

    def tokens_at(self, length: int) -> int:
        return length


@register("s5")
class S5(WordProblem):
    """The 120 permutations of five things: of `24 6 6`, which are 10234 02134 02134, `24 30 24`. Not solvable.

    With `swaps` only the four that swap neighbours are read, behind one that changes nothing. Their products are all
    120, and there is far less to learn: how four elements change each product, and not how 120 do. The first tells a
    swap from the same swap thrice, which attention, a mean of what it sees, could not otherwise.
    """

    table = permuting(5)

    def __init__(self, swaps: bool = False) -> None:
        true_or_false(self.name, "swaps", swaps)
        self.swaps = swaps

    def read(self, rng: Generator, size: int, length: int) -> Ids:
        if not self.swaps:
            return super().read(rng, size, length)
        found = rng.choice([1, 2, 6, 24], size=(size, length))
        found[:, 0] = 0
        return found


@register("a5")
class A5(WordProblem):
    """The 60 even permutations of five things: of `1 3 3`, which are 01342 02143 02143, `1 6 1`. Not solvable."""

    table = permuting(5, even=True)


@register("a4z5")
class A4Z5(WordProblem):
    """The 60 pairs of an even permutation p of four things and a number n modulo 5, numbered 5 p + n: of `7 3 12`,
    `7 5 2`. Solvable, not commutative."""

    table = both(permuting(4, even=True), cyclic(5))


@register("z60")
class Z60(WordProblem):
    """The 60 numbers modulo 60 and their sums: of `50 20 1`, `50 10 11`. Commutative."""

    table = cyclic(60)
