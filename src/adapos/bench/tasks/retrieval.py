"""Facts hidden in a long text, one of which is asked for at its end: passkey and needle."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from adapos.bench import tokenizer as tokenizers
from adapos.bench.task import Batch, Cell, Ids, Numbers, Task, exact, reading
from adapos.bench.tasks import register
from adapos.registry import at_least, true_or_false

GRASS = " The river runs on. The wind is low. Leaves fall, and the day goes by."
KEYS = "ant ape bat bee cat cod cow dog eel elk emu fox gnu hen jay owl pig ram rat yak"
WORDS = """
about above after again air all along also always and another answer any around ask away back base because been
before began begin being below best better big blue body book both boy bring built but call came can car care carry
change check city clear close cold come could course cut day deep did does done door down draw drive dry each early
earth ease east end enough even ever every face fact fall family far farm fast feel feet few field fill final find
fine fire first five fly follow food foot for force form found four free friend from front full game gave get girl
give gold gone good got great green ground group grow had half hand hard has have head hear heard heat help her here
high him his hold home hot hour house how idea inch into island its just keep kind king knew know land large last late
laugh lay lead learn leave left less let letter life light like line list listen little live long look lost love low
made main make man many map mark may mean men might mile mind minute miss money moon more most move much music must
name near need never new next night north note now number off often old once one only open order other our out over
own page paper part pass people person piece place plain plan plane plant play point press pull put quick rain ran
reach read ready real red rest right river road rock room round rule run said same saw say school sea second see seem
self serve set shape she ship short should show side simple since sing six size sleep slow small snow some song soon
sound south space spell stand star start state stay step still stood stop story street strong study such sun sure
table take talk teach tell ten than that the their them then there these they thing think this those though thought
three through time told too took top toward town travel tree true try turn two under unit until use very voice walk
want war warm was watch water way week well went were west what wheel when where which while white who whole why will
wind with wonder wood word work world would write year you young your
"""


class Asked(NamedTuple):
    """The tokens of a row, but for its filler. The first fact answers the question."""

    facts: list[Ids]
    question: Ids
    answer: Ids

    @property
    def tokens(self) -> int:
        return sum(map(len, self.facts)) + len(self.question) + len(self.answer)


class Retrieval(Task):
    """`length` is the tokens of prompt and answer, which filler makes exact. The answer ends as the fact does, with a
    token that is said and not read: a model that was not trained on the task goes on as it has read.

    A depth is the share of the filler that stands before the fact asked for; exams have `depths` of them, from 0 to
    1, and a cell without one draws it. Training draws depths too, and for each row a length, uniformly from the least
    that holds the facts up to `length`: with one length for all, every question would stand in the same place. It
    asks for the answer only, or for every token where `whole`.
    """

    metric = "exact"
    generates = True
    mark = "\n"  # that ends facts and answers

    def __init__(self, tokenizer: str = "bytes", depths: int = 5, whole: bool = False) -> None:
        at_least(self.name, "depths", depths, 2)
        true_or_false(self.name, "whole", whole)
        self.tokenizer, self.depths, self.whole = tokenizer, depths, whole
        self.tokens = tokenizers.tokenizer(tokenizer)
        digit, ended = (self.tokens.encode(text) for text in ("7", f"7{self.mark}"))
        if len(ended) != len(digit) + 1:
            raise ValueError(
                f"{self.name}: answers end with {self.mark!r}, of which the tokenizer {tokenizer!r} makes no token of "
                "its own; choose another"
            )
        self.end = int(ended[-1])

    @property
    def vocabulary(self) -> int:
        return self.tokens.vocabulary

    @abstractmethod
    def ask(self, rng: Generator, size: int) -> list[Asked]:
        """The facts, the question and the answer of each row."""

    @abstractmethod
    def fill(self, rng: Generator, counts: Ids) -> list[Ids]:
        """Filler of so many tokens for each row."""

    def batch(self, rng: Generator, size: int, length: int) -> Batch:
        asked = self.ask(rng, size)
        least = self._least(asked, length)
        return self._texts(rng, asked, rng.integers(least, length + 1, size), rng.random(size), self.whole)

    def exam(self, rng: Generator, size: int, cell: Cell) -> Batch:
        asked = self.ask(rng, size)
        self._least(asked, cell.length)
        depth = np.full(size, cell.marks["depth"]) if "depth" in cell.marks else rng.random(size)
        return self._texts(rng, asked, np.full(size, cell.length), depth)

    def cells(self, length: int) -> list[Cell]:
        return [Cell(length, {"depth": float(depth)}) for depth in np.linspace(0, 1, self.depths)]

    def score(self, targets: Ids, said: Ids) -> Numbers:
        return exact(targets, said)

    def tokens_at(self, length: int) -> int:
        return length

    def describe(self, tokens: Ids) -> str:
        return self.tokens.decode(tokens)

    def _least(self, asked: list[Asked], length: int) -> int:
        least = max(row.tokens for row in asked)
        if length < least:
            raise ValueError(f"{self.name}: length must be at least {least}, to hold the facts, and is {length}")
        return least

    def _texts(self, rng: Generator, asked: list[Asked], lengths: Ids, depth: Numbers, whole: bool = False) -> Batch:
        room = lengths - np.array([row.tokens for row in asked])
        # before which token of the filler each fact stands, with a fraction that orders those before the same one
        places = rng.random((len(asked), len(asked[0].facts))) * (room[:, None] + 1)
        places[:, 0] = depth * room + 0.5
        order = places.argsort(1)
        cuts = np.take_along_axis(places, order, 1).astype(int)
        pieces, end = [], np.array([self.end])
        for row, filler, cut, which in zip(asked, self.fill(rng, room), cuts.tolist(), order.tolist(), strict=True):
            for i, start, stop in zip(which, [0, *cut], cut, strict=False):
                pieces += [filler[start:stop], row.facts[i]]
            pieces += [filler[cut[-1] :], row.question, row.answer, end]
        prompts = np.zeros_like(lengths) if whole else lengths - np.array([len(row.answer) for row in asked])
        return reading(np.concatenate(pieces), lengths + 1, prompts, self.end)


@register("passkey")
class Passkey(Retrieval):
    """`length` is the tokens of prompt and answer. A number of five digits in filler that repeats, at 80 bytes:

    ` The river r The pass key is 48213.uns on. The What is it? The pass key is 48213`

    After Mohtashami and Jaggi 2023, arXiv 2305.16300.
    """

    version = 2
    mark = "."

    def __init__(self, tokenizer: str = "bytes", depths: int = 5, whole: bool = False) -> None:
        super().__init__(tokenizer, depths, whole)
        self._filler = self.tokens.encode(GRASS)
        self._question = self.tokens.encode(" What is it? The pass key is")

    def ask(self, rng: Generator, size: int) -> list[Asked]:
        encode = self.tokens.encode
        return [
            Asked([encode(f" The pass key is {key}.")], self._question, encode(f" {key}"))
            for key in rng.integers(10_000, 100_000, size).tolist()
        ]

    def fill(self, rng: Generator, counts: Ids) -> list[Ids]:
        stream = np.resize(self._filler, counts.max())
        return [stream[:count] for count in counts]


@register("needle")
class Needle(Retrieval):
    """`length` is the tokens of prompt and answer. One of several `facts` in random words, here of two:

    ` find\\nowl: 5823\\n cold mean they wat\\nfox: 1274\\ner some\\nowl: 5823`

    The other facts stand anywhere, and have other keys.
    """

    def __init__(self, tokenizer: str = "bytes", depths: int = 5, whole: bool = False, facts: int = 4) -> None:
        super().__init__(tokenizer, depths, whole)
        at_least(self.name, "facts", facts, 1)
        self._keys = KEYS.split()
        if facts > len(self._keys):
            raise ValueError(f"needle: facts must be at most {len(self._keys)}, the keys there are, not {facts}")
        self.facts = facts
        self._words = [self.tokens.encode(f" {word}") for word in WORDS.split()]

    def ask(self, rng: Generator, size: int) -> list[Asked]:
        encode = self.tokens.encode
        keys = rng.random((size, len(self._keys))).argsort(1)[:, : self.facts]
        values = rng.integers(1_000, 10_000, keys.shape)
        return [
            Asked(
                [encode(f"\n{self._keys[key]}: {value}\n") for key, value in zip(row, held, strict=True)],
                encode(f"\n{self._keys[row[0]]}:"),
                encode(f" {held[0]}"),
            )
            for row, held in zip(keys.tolist(), values.tolist(), strict=True)
        ]

    def fill(self, rng: Generator, counts: Ids) -> list[Ids]:
        shortest = min(map(len, self._words))
        drawn = rng.integers(len(self._words), size=counts.sum() // shortest + 1)
        stream = np.concatenate([self._words[i] for i in drawn])
        return np.split(stream, np.cumsum(counts))[:-1]
