"""Regular tasks of the Chomsky hierarchy: a finite automaton solves them. Deletang et al. 2022, arXiv 2207.02098."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from adapos.bench.task import Ids
from adapos.bench.tasks import register
from adapos.bench.tasks.chomsky.transduction import BITS, ModularTransduction, Transduction

PLUS, MINUS, TIMES = range(3)  # as they come in the signs
PLACES = 5  # of the cycle


@register("chomsky/even_pairs")
class EvenPairs(Transduction):
    """1 where the pairs 01 and 10 of a binary string are odd in number, 0 where they are even.

    0 1 0 1 0 0 1 -> 1
    """

    level = "regular"
    alphabet = BITS

    def sample(self, rng: Generator, size: int, length: int) -> tuple[Ids, Ids]:
        inputs = rng.integers(0, 2, (size, length))
        # each such pair is a change, so an odd number of them leaves the ends unlike
        return inputs, inputs[:, :1] ^ inputs[:, -1:]


@register("chomsky/parity_check")
class ParityCheck(Transduction):
    """The number of ones in a binary string, modulo 2.

    1 0 1 0 1 0 0 -> 1
    """

    level = "regular"
    alphabet = BITS

    def sample(self, rng: Generator, size: int, length: int) -> tuple[Ids, Ids]:
        inputs = rng.integers(0, 2, (size, length))
        return inputs, inputs.sum(1, keepdims=True) % 2


@register("chomsky/cycle_navigation")
class CycleNavigation(Transduction):
    """The place on a cycle of 5 after steps to the left (-1), to the right (+1) and none, from place 0.

    right left stay left left -> 3
    """

    level = "regular"
    alphabet = ("left", "stay", "right", *map(str, range(PLACES)))

    def sample(self, rng: Generator, size: int, length: int) -> tuple[Ids, Ids]:
        inputs = rng.integers(0, 3, (size, length))
        return inputs, 3 + (inputs - 1).sum(1, keepdims=True) % PLACES


@register("chomsky/modular_arithmetic_simple")
class ModularArithmeticSimple(ModularTransduction):
    """The value of digits joined by +, - and *, where * goes first, in arithmetic modulo `modulus`.

    1 + 2 * 3 -> 2

    An expression has an odd length: an even one is made shorter by one.
    """

    level = "regular"
    signs = "+-*"

    def sample(self, rng: Generator, size: int, length: int) -> tuple[Ids, Ids]:
        inputs = np.empty((size, length - 1 + length % 2), np.int64)
        inputs[:, ::2] = digits = rng.integers(0, self.modulus, inputs[:, ::2].shape)
        operators = rng.integers(PLUS, TIMES, inputs[:, 1::2].shape, endpoint=True)
        inputs[:, 1::2] = self.modulus + operators

        total, term = np.zeros_like(digits[:, 0]), digits[:, 0]
        for digit, operator in zip(digits[:, 1:].T, operators.T, strict=True):
            # a term is open as long as it is multiplied
            times = operator == TIMES
            total += np.where(times, 0, term)
            term = np.where(times, term * digit % self.modulus, np.where(operator == MINUS, -digit, digit))
        return inputs, ((total + term) % self.modulus)[:, None]

    def tokens_at(self, length: int) -> int:
        return length + length % 2
