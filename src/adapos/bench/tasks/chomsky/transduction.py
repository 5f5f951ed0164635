"""What the tasks of the Chomsky hierarchy share: an input, then a placeholder for each place of the answer."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from adapos.bench.task import IGNORED, Batch, Cell, Ids, Task
from adapos.registry import at_least, true_or_false

BITS = ("0", "1")


class Transduction(Task):
    """Read an input of `length` tokens and say the answer at the placeholders after it, every place at once.

    Training draws one length for a batch, uniform from 1 to the greatest. What follows the end of an answer is
    not asked: the published accuracy hides it, though the published loss asks for zeros there.
    """

    level: ClassVar[str]  # of the hierarchy
    alphabet: tuple[str, ...]  # how tokens are written; the placeholder comes after the last

    def __init__(self, causal: bool = False) -> None:
        true_or_false(self.name, "causal", causal)
        self.causal = causal

    @abstractmethod
    def sample(self, rng: Generator, size: int, length: int) -> tuple[Ids, Ids]:
        """Inputs (B, length) and answers (B, answer_length(length)), IGNORED beyond the end of each."""

    def answer_length(self, length: int) -> int:
        return 1

    @property
    def vocabulary(self) -> int:
        return len(self.alphabet) + 1

    def batch(self, rng: Generator, size: int, length: int) -> Batch:
        at_least(self.name, "length", length, 1)
        return self.exam(rng, size, Cell(int(rng.integers(1, length, endpoint=True))))

    def exam(self, rng: Generator, size: int, cell: Cell) -> Batch:
        at_least(self.name, "length", cell.length, 1)
        inputs, answers = self.sample(rng, size, cell.length)
        placeholders = np.full_like(answers, len(self.alphabet))
        unasked = np.full_like(inputs, IGNORED)
        return Batch(np.hstack((inputs, placeholders)), np.hstack((unasked, answers)))

    def tokens_at(self, length: int) -> int:
        return length + self.answer_length(length)

    def describe(self, tokens: Ids) -> str:
        words = (*self.alphabet, "_")
        return " ".join(words[token] for token in tokens.tolist())


class StringTransduction(Transduction):
    """The input is a string of so many different symbols, each as likely as the others."""

    def __init__(self, symbols: int = 2, causal: bool = False) -> None:
        super().__init__(causal)
        at_least(self.name, "symbols", symbols, 2)
        self.symbols = symbols
        self.alphabet = tuple(map(str, range(symbols)))

    def sample(self, rng: Generator, size: int, length: int) -> tuple[Ids, Ids]:
        inputs = rng.integers(0, self.symbols, (size, length))
        return inputs, self.answers(inputs)

    @abstractmethod
    def answers(self, inputs: Ids) -> Ids: ...

    def answer_length(self, length: int) -> int:
        return length


class ModularTransduction(Transduction):
    """The input is of digits below `modulus` and of signs."""

    signs: ClassVar[str]

    def __init__(self, modulus: int = 5, causal: bool = False) -> None:
        super().__init__(causal)
        at_least(self.name, "modulus", modulus, 2)
        self.modulus = modulus
        self.alphabet = (*map(str, range(modulus)), *self.signs)


def ended(answers: Ids, counts: Ids, end: int) -> Ids:
    """The first `counts` (B,) of each of the answers (B, m), then its end, then nothing that is asked."""
    place, counts = np.arange(answers.shape[1]), counts[:, None]
    return np.where(place < counts, answers, np.where(place == counts, end, IGNORED))
