"""Addition of numbers with the least digit first, as in TAPE's experiments. Zhu et al. 2025, arXiv 2501.00712."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from adapos.bench.task import Batch, Cell, Ids, Numbers, Task, exact, reading
from adapos.bench.tasks import register
from adapos.registry import at_least

SYMBOLS = "0123456789+=$"
PLUS, EQUALS, END = 10, 11, 12


@register("addition")
class Addition(Task):
    """`length` is the digits of the longer number: 12 + 345 = 357 is `21+543=753$`, and `753$` is asked for.

    Training draws the digits of the two numbers uniformly from all pairs (1..length)^2. No number has a leading
    zero but 0 itself.

    Exams at a length are the pairs of digits whose greater is the length, 2 length - 1 of them, or the middles of
    `grid` equal stretches of them, from (1, length) over (length, length) to (length, 1), where those are fewer.
    A cell without marks has both numbers of its length. TAPE's figure is the mean over all pairs: for it, give every
    length from 1 on and weigh each by 2 length - 1.
    """

    metric = "exact"
    generates = True

    def __init__(self, grid: int = 9) -> None:
        at_least(self.name, "grid", grid, 1)
        self.grid = grid

    @property
    def vocabulary(self) -> int:
        return len(SYMBOLS)

    def batch(self, rng: Generator, size: int, length: int) -> Batch:
        at_least(self.name, "length", length, 1)
        return _sums(rng, *rng.integers(1, length + 1, (2, size, 1)))

    def exam(self, rng: Generator, size: int, cell: Cell) -> Batch:
        at_least(self.name, "length", cell.length, 1)
        first, second = (int(cell.marks.get(which, cell.length)) for which in ("first", "second"))
        return _sums(rng, np.full((size, 1), first), np.full((size, 1), second))

    def cells(self, length: int) -> list[Cell]:
        pairs = 2 * length - 1
        count = min(self.grid, pairs)
        return [
            Cell(length, {"first": float(min(place + 1, length)), "second": float(min(pairs - place, length))})
            for place in ((2 * i + 1) * pairs // (2 * count) for i in range(count))
        ]

    def score(self, targets: Ids, said: Ids) -> Numbers:
        return exact(targets, said)

    def tokens_at(self, length: int) -> int:
        return 3 * length + 3

    def describe(self, tokens: Ids) -> str:
        return "".join(SYMBOLS[token] for token in tokens)


def _sums(rng: Generator, first: Ids, second: Ids) -> Batch:
    """Random sums of numbers with that many digits, both (B, 1)."""
    longer = np.maximum(first, second)
    width = int(longer.max()) + 1
    a, b = _numbers(rng, first, width), _numbers(rng, second, width)
    total = a + b
    for i in range(width - 1):
        carried = total[:, i] > 9
        total[:, i] -= 10 * carried
        total[:, i + 1] += carried
    answer = longer + np.take_along_axis(total, longer, 1)  # a carry makes one digit more

    size, column = len(first), np.arange(width)
    wide = [a, np.full((size, 1), PLUS), b, np.full((size, 1), EQUALS), total, np.full((size, 1), END)]
    one = np.ones((size, 1), dtype=bool)
    kept = np.hstack([column < first, one, column < second, one, column < answer, one])
    return reading(np.hstack(wide)[kept], kept.sum(1), (first + second + 2)[:, 0], END)


def _numbers(rng: Generator, digits: Ids, width: int) -> Ids:
    """(B, width), the least digit first, zeros past the last."""
    drawn = rng.integers(10, size=(len(digits), width))
    last = rng.integers(digits > 1, 10)
    np.put_along_axis(drawn, digits - 1, last, 1)
    return np.where(np.arange(width) < digits, drawn, 0)
