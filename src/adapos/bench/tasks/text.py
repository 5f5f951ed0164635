"""Language modelling on text: any data, any tokenizer, windows of any length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.random import Generator

from adapos.bench.store import Array, Store, store
from adapos.bench.task import IGNORED, Batch, Cell, Ids, Task
from adapos.bench.tasks import register
from adapos.bench.tokenizer import tokenizer as named
from adapos.registry import at_least, one_of


@dataclass(frozen=True)
class Windows:
    """Stretches of text to be evaluated on, each read as one document."""

    tokens: Ids  # (count, length + 1)
    widths: Ids  # (count, length + 1): bytes that each token stands for


@register("text")
class Text(Task):
    """Say the next token, everywhere. `length` is the tokens that a model reads.

    `data` is "stdlib" (the Python standard library's own sources), "enwik8" (Wikipedia), a file or folder, or a dataset
    given as "hf:OWNER/NAME[/CONFIG][:SPLIT]"; `field` names the text in rows of .jsonl, .parquet, .arrow and datasets.
    Documents are "joined" to one stream, whose windows begin and end anywhere, or kept "apart": then no token sees
    another document or is asked for one. `limit` is how many bytes of it are read at most, 0 for all.
    """

    metric = "perplexity"
    protocols = True

    def __init__(
        self,
        data: str = "stdlib",
        field: str = "text",
        tokenizer: str = "bytes",
        documents: str = "joined",
        limit: int = 0,
    ) -> None:
        for name, value in {"data": data, "field": field, "tokenizer": tokenizer}.items():
            if not isinstance(value, str) or not value:
                raise ValueError(f"text: {name} must be a word in quotes, not {value!r}")
        one_of("text", "documents", documents, ("joined", "apart"))
        at_least("text", "limit", limit, 0)
        self.data, self.field, self.tokenizer, self.documents, self.limit = data, field, tokenizer, documents, limit
        self.reader = named(tokenizer)

    @cached_property
    def store(self) -> Store:
        return store(self.data, self.field, self.reader, self.limit)

    @cached_property
    def checksum(self) -> str:
        return self.store.checksum

    @property
    def vocabulary(self) -> int:
        return self.reader.vocabulary

    def batch(self, rng: Generator, size: int, length: int) -> Batch:
        """Windows of the train part. Apart, the documents in a window are counted from 0."""
        part = self.store.split("train")
        self._need(length, len(part.tokens), "the train part")
        places = rng.integers(len(part.tokens) - length, size=(size, 1)) + np.arange(length + 1)
        tokens = part.tokens[places].astype(np.int64)  # (size, length + 1)
        targets = tokens[:, 1:]
        if self.documents == "joined":
            return Batch(tokens[:, :-1], targets)
        doc = np.searchsorted(part.starts, places, side="right")
        doc -= doc[:, :1].copy()
        return Batch(tokens[:, :-1], np.where(doc[:, 1:] == doc[:, :-1], targets, IGNORED), doc[:, :-1])

    def windows(self, part: str, length: int, count: int) -> Windows:
        """As many as fit up to `count`, not overlapping, evenly over the part; apart: each inside one document."""
        at_least("text", "count", count, 1)
        tokens, starts, widths = self.stream(part)
        sizes = np.diff(starts, append=len(tokens))
        whose = "the longest document in " if self.documents == "apart" else ""
        self._need(length, int(sizes.max(initial=0)), f"{whose}the {part} part")
        fit = sizes // (length + 1)  # windows in each document
        before = np.cumsum(fit) - fit
        count = min(count, fit.sum())
        chosen = np.arange(count) * fit.sum() // count
        document = np.searchsorted(before, chosen, side="right") - 1
        first = starts[document] + (chosen - before[document]) * sizes[document] // fit[document]
        places = first[:, None] + np.arange(length + 1)
        return Windows(tokens[places].astype(np.int64), widths[places].astype(np.int64))

    def stream(self, part: str) -> tuple[Array, Ids, Array]:
        """All tokens of a part, where documents begin (joined: one, at 0), and the bytes that each token stands for."""
        held = self.store.split(part)
        return held.tokens, held.starts if self.documents == "apart" else held.starts[:1], held.widths

    def exam(self, rng: Generator, size: int, cell: Cell) -> Batch:
        raise ValueError("text has no exams: it is evaluated by protocols, on windows of text")

    def tokens_at(self, length: int) -> int:
        return length

    def check(self, train_length: int, lengths: Sequence[int]) -> None:
        self.batch(np.random.default_rng(0), 1, train_length)
        if lengths:
            self.windows("test", max(lengths), 1)

    def describe(self, tokens: Ids) -> str:
        return self.reader.decode(tokens)

    def _need(self, length: int, tokens: int, what: str) -> None:
        at_least("text", "length", length, 1)
        if tokens <= length:
            raise ValueError(
                f"{what} of {self.data} holds {tokens} tokens and length {length} needs {length + 1}; "
                "give more data or shorter lengths"
            )
