"""Context-sensitive tasks of the Chomsky hierarchy: a tape solves them. Deletang et al. 2022, arXiv 2207.02098."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from adapos.bench.task import Ids
from adapos.bench.tasks import register
from adapos.bench.tasks.chomsky.transduction import BITS, StringTransduction, Transduction, ended

MISSING, PADDING = 2, 3  # tokens of a string that is there twice
OPERATOR, END = 2, 3  # tokens of binary arithmetic


@register("chomsky/duplicate_string")
class DuplicateString(StringTransduction):
    """The string twice.

    0 1 1 -> 0 1 1 0 1 1
    """

    level = "context-sensitive"

    def answers(self, inputs: Ids) -> Ids:
        return np.hstack((inputs, inputs))

    def answer_length(self, length: int) -> int:
        return 2 * length


@register("chomsky/missing_duplicate")
class MissingDuplicate(Transduction):
    """The bit that is missing from a binary string that is there twice.

    0 1 1 0 0 ? 1 0 -> 1

    An odd length ends in padding; at length 1, input and answer are 1.
    """

    level = "context-sensitive"
    alphabet = (*BITS, "?", ".")

    def sample(self, rng: Generator, size: int, length: int) -> tuple[Ids, Ids]:
        if length == 1:
            return np.ones((size, 1), np.int64), np.ones((size, 1), np.int64)
        half = rng.integers(0, 2, (size, length // 2))
        twice = np.hstack((half, half))
        place = rng.integers(0, twice.shape[1], (size, 1))
        answers = np.take_along_axis(twice, place, 1)
        np.put_along_axis(twice, place, MISSING, 1)
        return np.pad(twice, ((0, 0), (0, length % 2)), constant_values=PADDING), answers


@register("chomsky/odds_first")
class OddsFirst(StringTransduction):
    """Every second symbol of a string, s1 s3 s5 ..., then the others, s0 s2 s4 ...

    0 0 1 1 0 1 0 -> 0 1 1 0 1 0 0

    So does the published code; the paper counts from 1, which puts the others first.
    """

    level = "context-sensitive"

    def answers(self, inputs: Ids) -> Ids:
        return np.hstack((inputs[:, 1::2], inputs[:, ::2]))


@register("chomsky/bucket_sort")
class BucketSort(StringTransduction):
    """The symbols of a string, the least first.

    4 0 2 0 1 -> 0 0 1 2 4
    """

    level = "context-sensitive"

    def __init__(self, symbols: int = 5, causal: bool = False) -> None:
        super().__init__(symbols, causal)

    def answers(self, inputs: Ids) -> Ids:
        return np.sort(inputs, 1)


@register("chomsky/binary_addition")
class BinaryAddition(Transduction):
    """The sum of two binary numbers, the least digit first.

    1 0 1 + 1 1 -> 0 0 0 1 end

    Up to length 2 there is one number, and it is the sum.
    """

    level = "context-sensitive"
    alphabet = (*BITS, "+", "end")

    def sample(self, rng: Generator, size: int, length: int) -> tuple[Ids, Ids]:
        inputs, pairs = operands(rng, size, length)
        return inputs, results([a + b for a, b in pairs], self.answer_length(length))

    def answer_length(self, length: int) -> int:
        return length + 1


@register("chomsky/binary_multiplication")
class BinaryMultiplication(Transduction):
    """The product of two binary numbers, the least digit first.

    1 0 1 * 1 1 -> 1 1 1 1 end

    Up to length 2 there is one number, and the product is 0; at length 1 it has no digits.
    """

    level = "context-sensitive"
    alphabet = (*BITS, "*", "end")

    def sample(self, rng: Generator, size: int, length: int) -> tuple[Ids, Ids]:
        inputs, pairs = operands(rng, size, length)
        return inputs, results([a * b for a, b in pairs], self.answer_length(length))

    def answer_length(self, length: int) -> int:
        return length


@register("chomsky/compute_sqrt")
class ComputeSqrt(Transduction):
    """The square root of a positive binary number, rounded down, the greatest digit first.

    1 0 0 1 0 1 -> 1 1 0
    """

    level = "context-sensitive"
    alphabet = BITS

    def sample(self, rng: Generator, size: int, length: int) -> tuple[Ids, Ids]:
        inputs = rng.integers(0, 2, (size, length))
        while (zero := ~inputs.any(1)).any():
            inputs[zero] = rng.integers(0, 2, (zero.sum(), length))
        roots = [math.isqrt(number) for number in numbers(inputs[:, ::-1])]
        return inputs, digits(roots, self.answer_length(length))[:, ::-1]

    def answer_length(self, length: int) -> int:
        return (length + 1) // 2


def operands(rng: Generator, size: int, length: int) -> tuple[Ids, list[tuple[int, int]]]:
    """Two positive numbers with an operator between them (B, length), and the numbers. The first has 1 to length - 2
    digits; up to length 2 it is alone, below 2^length - 1, and the other is 0."""
    if length <= 2:
        alone = rng.integers(0, 2**length - 1, size).tolist()
        return digits(alone, length), [(number, 0) for number in alone]
    split, place = rng.integers(1, length - 1, (size, 1)), np.arange(length)
    inputs = rng.integers(0, 2, (size, length))
    while (zero := ~((inputs & (place < split)).any(1) & (inputs & (place > split)).any(1))).any():
        inputs[zero] = rng.integers(0, 2, (zero.sum(), length))
    np.put_along_axis(inputs, split, 0, 1)
    # one Python integer a row: they have no greatest
    whole = zip(numbers(inputs), split[:, 0].tolist(), strict=True)
    pairs = [(number % (1 << at), number >> (at + 1)) for number, at in whole]
    np.put_along_axis(inputs, split, OPERATOR, 1)
    return inputs, pairs


def results(found: Sequence[int], width: int) -> Ids:
    """Numbers as answers (B, width): at least one digit, no needless zeros, and always room for the end."""
    counts = [min(max(number.bit_length(), 1), width - 1) for number in found]
    return ended(digits(found, width), np.array(counts), END)


def numbers(bits: Ids) -> list[int]:
    """Of rows of bits (B, n), the least first."""
    return [int.from_bytes(row.tobytes(), "little") for row in np.packbits(bits.astype(bool), 1, "little")]


def digits(found: Sequence[int], width: int) -> Ids:
    """The inverse: numbers below 2^width as rows of bits (B, width), the least first."""
    size = (width + 7) // 8
    packed = np.frombuffer(b"".join(number.to_bytes(size, "little") for number in found), np.uint8)
    return np.unpackbits(packed.reshape(-1, size), 1, width, "little").astype(np.int64)
