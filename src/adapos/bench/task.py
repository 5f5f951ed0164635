"""What a task is: batches to train on and exams at any length, both made from a random generator alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

IGNORED = -100  # a target that is not asked for, as torch's cross entropy has it

Ids = NDArray[np.int64]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """What a model reads and what it should say at each place."""

    tokens: Ids  # (B, T)
    targets: Ids  # (B, T), IGNORED where nothing is asked
    doc: Ids | None = None  # (B, T), the document of each token, -1 for padding; None: one document a row

    def rows(self, rows: slice) -> Batch:
        return Batch(self.tokens[rows], self.targets[rows], None if self.doc is None else self.doc[rows])


@dataclass(frozen=True)
class Cell:
    """One place in a grid of exams: a length, and other axes by name, such as the depth of a needle."""

    length: int
    marks: Mapping[str, float] = field(default_factory=dict)


class Task(ABC):
    """A task with its parameters, which are keywords of its constructor with defaults, kept as attributes.

    `length` counts what the task's own first line says. Everything random comes from `rng`, so that the same
    seed gives the same batch, and batches of one seed do not depend on what was drawn before them.
    """

    name: ClassVar[str] = ""
    version: ClassVar[int] = 1  # of the data: rises when the same seed gives other batches
    metric: ClassVar[str] = "accuracy"  # what `score` is called
    generates: ClassVar[bool] = False  # exams are decoded token by token, not read in one pass
    protocols: ClassVar[bool] = False  # evaluated by protocols on windows of text, not by exams
    causal: bool = True

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """How many tokens there are."""

    @property
    def checksum(self) -> str:
        """Of data that is not made from a generator."""
        return ""

    @abstractmethod
    def batch(self, rng: Generator, size: int, length: int) -> Batch:
        """To train on; `length` is the greatest, and the task's own curriculum draws from those up to it."""

    @abstractmethod
    def exam(self, rng: Generator, size: int, cell: Cell) -> Batch:
        """To be examined on, all at the cell's length. Where the task generates, what comes before the first target
        is the prompt, and the targets, one after another, are the answer, which ends in a token that says so."""

    def cells(self, length: int) -> list[Cell]:
        """The exams at a length."""
        return [Cell(length)]

    def score(self, targets: Ids, said: Ids) -> Numbers:
        """(B,) of targets and answers (B, T): here the share of the targets that were said."""
        asked = targets != IGNORED
        return ((targets == said) & asked).sum(1) / asked.sum(1)

    @abstractmethod
    def tokens_at(self, length: int) -> int:
        """How many tokens a text of that length takes at most, prompt and answer: for memory and tables of ids."""

    def check(self, train_length: int, lengths: Sequence[int]) -> None:
        """See that there is something to train on and to be examined on at every length, or say what is missing."""
        rng = np.random.default_rng(0)
        self.batch(rng, 1, train_length)
        for length in lengths:
            self.exam(rng, 1, self.cells(length)[0])

    def describe(self, tokens: Ids) -> str:
        """A row of tokens as a person would write it."""
        return " ".join(map(str, tokens.tolist()))


def exact(targets: Ids, said: Ids) -> Numbers:
    """(B,): 1 where every target was said."""
    return ((targets == said) | (targets == IGNORED)).all(1).astype(np.float64)


def reading(texts: Ids, lengths: Ids, prompts: Ids, padding: int) -> Batch:
    """Texts (N,), one behind the other, as rows of a batch, padded on the right where they are unequal.

    All of a text is read but its last token; asked for is what follows its first `prompts` tokens.
    """
    column = np.arange(lengths.max())
    inside = column < lengths[:, None]
    rows = np.full(inside.shape, padding)
    rows[inside] = texts
    targets = np.where(inside & (column >= prompts[:, None]), rows, IGNORED)
    read = inside[:, 1:]
    return Batch(rows[:, :-1], targets[:, 1:], None if read.all() else np.where(read, 0, -1))
