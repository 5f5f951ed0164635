"""Context-free tasks of the Chomsky hierarchy: a stack solves them. Deletang et al. 2022, arXiv 2207.02098."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from adapos.bench.task import Ids
from adapos.bench.tasks import register
from adapos.bench.tasks.chomsky.transduction import BITS, ModularTransduction, StringTransduction, Transduction, ended

POP, PUSH, END = 2, 3, 5  # tokens of the stack; PUSH is of a zero, and that of a one comes after it
PLUS, MINUS, OPEN, CLOSE, TIMES = range(5)  # as they come in the signs
UNKNOWN, EQUALS = 4, 5  # the same, where nothing is multiplied


@register("chomsky/stack_manipulation")
class StackManipulation(Transduction):
    """The stack that is left, from its top, when a first one, given from its bottom, has been pushed to and popped.

    0 1 1 0 push1 pop pop -> 1 1 0 end

    The first stack is of 1 to length - 1 bits. To pop where it is empty does nothing.
    """

    level = "context-free"
    alphabet = (*BITS, "pop", "push0", "push1", "end")

    def sample(self, rng: Generator, size: int, length: int) -> tuple[Ids, Ids]:
        first = rng.integers(1, max(2, length), (size, 1))  # length 1 is a stack alone
        bits, actions = rng.integers(0, 2, (size, length)), rng.integers(POP, END, (size, length))
        inputs = np.where(np.arange(length) < first, bits, actions)

        pushed = np.where(inputs < POP, inputs, inputs - PUSH)
        moves = np.where(inputs == POP, -1, 1)
        stack, depth, rows = np.zeros((size, length + 1), np.int64), np.zeros(size, np.int64), np.arange(size)
        for step in range(length):
            # where it pops, this lies above the top and is never read
            stack[rows, depth] = pushed[:, step]
            depth = np.maximum(depth + moves[:, step], 0)
        down = np.maximum(depth[:, None] - 1 - np.arange(length + 1), 0)
        return inputs, ended(np.take_along_axis(stack, down, 1), depth, END)

    def answer_length(self, length: int) -> int:
        return length + 1


@register("chomsky/reverse_string")
class ReverseString(StringTransduction):
    """The string from its end to its beginning.

    0 1 1 0 1 -> 1 0 1 1 0
    """

    level = "context-free"

    def answers(self, inputs: Ids) -> Ids:
        return inputs[:, ::-1]


@register("chomsky/modular_arithmetic")
class ModularArithmetic(ModularTransduction):
    """The value of an expression with brackets, of digits, +, - and *, in arithmetic modulo `modulus`.

    ( - 2 * 3 ) -> 4
    """

    level = "context-free"
    signs = "+-()*"

    def sample(self, rng: Generator, size: int, length: int) -> tuple[Ids, Ids]:
        inputs, values = expressions(rng, size, length, self.modulus, (PLUS, MINUS, TIMES))
        return inputs, values[:, None]


@register("chomsky/solve_equation")
class SolveEquation(ModularTransduction):
    """The digit x that makes an equation true modulo `modulus`: an expression with brackets, +, - and x, and its value.

    ( 1 - x ) = 3 -> 3

    Nothing is multiplied, so there is one such digit. Below three tokens there is no equation: they are zeros, and
    so is the answer.
    """

    level = "context-free"
    signs = "+-()x="

    def sample(self, rng: Generator, size: int, length: int) -> tuple[Ids, Ids]:
        if length < 3:
            return np.zeros((size, length), np.int64), np.zeros((size, 1), np.int64)
        left, values = expressions(rng, size, length - 2, self.modulus, (PLUS, MINUS))
        # x takes the place of the first digit from a random place on, round the end
        places = (rng.integers(0, length - 2, (size, 1)) + np.arange(length - 2)) % (length - 2)
        found = (np.take_along_axis(left, places, 1) < self.modulus).argmax(1)[:, None]
        hidden = np.take_along_axis(places, found, 1)
        answers = np.take_along_axis(left, hidden, 1)
        np.put_along_axis(left, hidden, self.modulus + UNKNOWN, 1)
        equals = np.full_like(answers, self.modulus + EQUALS)
        return np.hstack((left, equals, values[:, None])), answers


def expressions(rng: Generator, size: int, length: int, modulus: int, operators: tuple[int, ...]) -> tuple[Ids, Ids]:
    """(B, length) and their values (B,), drawn from the published grammar.

    Up to four tokens it is a digit, as d, -d, (d) or (-d); beyond, it is (left operator right), with a left part of
    any length that leaves one token to the right.
    """
    text = np.empty(size * length, np.int64)
    value = np.empty_like(text)  # of the part that begins there
    start, span = np.arange(size) * length, np.full(size, length)  # of the parts at one depth, in all rows
    split = []
    while start.size:
        bracketed = span > 2
        text[start[bracketed]] = modulus + OPEN
        text[(start + span - 1)[bracketed]] = modulus + CLOSE

        small = span < 5
        negative = span[small] % 2 == 0
        place = start[small] + span[small] // 2
        text[place] = digit = rng.integers(0, modulus, place.size)
        text[place[negative] - 1] = modulus + MINUS
        value[start[small]] = np.where(negative, -digit, digit) % modulus

        start, span = start[~small], span[~small]
        left = rng.integers(1, span - 3)
        middle = start + 1 + left
        operator = rng.choice(operators, start.size)
        text[middle] = modulus + operator
        split.append((start, middle, operator))
        start, span = np.concatenate((start + 1, middle + 1)), np.concatenate((left, span - 3 - left))

    for start, middle, operator in reversed(split):
        a, b = value[start + 1], value[middle + 1]
        value[start] = np.select((operator == PLUS, operator == MINUS), (a + b, a - b), a * b) % modulus
    return text.reshape(size, length), value[::length]
