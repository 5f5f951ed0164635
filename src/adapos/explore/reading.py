"""A text as a model read it, and what is measured of it: rows, means by distance, products of positions, rollout.

The text is read once. A row is computed when it is asked for; what takes all queries is measured on a bounded sample of
them and kept. Nothing is quadratic in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adapos.anatomy import ROWS, Anatomy
from adapos.encoding import PositionalEncoding, Several
from adapos.model import Decoder

LONGEST = 4096  # tokens
SAMPLED = 128  # queries that means are taken over, where there are more
SEED = 0  # of the shuffle
ROUNDING = 1e-5

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """Of one head and one query, over the keys that it sees."""

    score: Numbers
    bias: Numbers
    adaptive: Numbers
    weights: Numbers


@dataclass(frozen=True)
class Spread:
    """By distance from 0 on: the mean over queries, the least and the most."""

    mean: Numbers
    low: Numbers
    high: Numbers


def checked(text: bytes) -> bytes:
    if not text.strip():
        raise ValueError("the text is empty; type or paste some, or give a file that holds some")
    if len(text) > LONGEST:
        raise ValueError(
            f"the text is {len(text):,} bytes long, and at most {LONGEST:,} are shown, one byte being one token; "
            "shorten it"
        )
    return text


def shuffled(text: bytes) -> bytes:
    """The same bytes in a random order, the same for the same text."""
    return bytes(np.random.default_rng(SEED).permutation(np.frombuffer(text, np.uint8)))


class Reading:
    """A text of a model, by the model's name."""

    def __init__(self, label: str, model: Decoder, text: bytes) -> None:
        self.label, self.model, self.text = label, model, checked(text)
        self.anatomy = self.read(text)
        self.length, self.layers, self.heads = len(text), model.shape.layers, model.shape.heads
        self.spreads: dict[int, tuple[list[Spread], list[Spread]]] = {}
        self.rolled: dict[int, Numbers] = {}

    def read(self, text: bytes) -> Anatomy:
        return Anatomy(self.model, torch.frombuffer(bytearray(text), dtype=torch.uint8).long()[None])

    @cached_property
    def shuffle(self) -> Anatomy:
        return self.read(shuffled(self.text))

    @property
    def sample(self) -> list[int]:
        """Queries, evenly spaced up to the last."""
        count = min(self.length, SAMPLED)
        return [(at + 1) * self.length // count - 1 for at in range(count)]

    def holds(self, layer: int, head: int) -> bool:
        return 0 <= layer < self.layers and 0 <= head < self.heads

    def row(self, layer: int, head: int, query: int) -> Row:
        rows = self.anatomy.rows(layer, slice(query, query + 1), cropped=True)
        parts = (part[head, 0].double().numpy() for part in (rows.score, rows.bias, rows.adaptive, rows.weights))
        return Row(*parts)

    def mixes(self, layer: int) -> bool:
        """Whether something reads scores and adds to them."""
        return self.anatomy.heard.pairs[layer][3].mix is not None

    def biases(self, layer: int) -> bool:
        return bool(self.anatomy.heard.pairs[layer][3].bias)

    @cached_property
    def reads_text(self) -> bool:
        """Whether the bias itself, and not only what a mix adds to it, is another for another text."""
        last = slice(self.length - 1, self.length)
        for layer in range(self.layers):
            here, there = (each.rows(layer, last).bias for each in (self.anatomy, self.shuffle))
            if float((here - there).abs().max()) > ROUNDING * max(1.0, float(here.abs().max())):
                return True
        return False

    def added(self, layer: int) -> tuple[list[Spread], list[Spread]]:
        """What is added to raw scores by distance, of each head: of the text, and of its shuffle."""
        if layer not in self.spreads:
            self.spreads[layer] = (self._added(self.anatomy, layer), self._added(self.shuffle, layer))
        return self.spreads[layer]

    def _added(self, anatomy: Anatomy, layer: int) -> list[Spread]:
        total, count = torch.zeros(self.heads, self.length, dtype=torch.float64), torch.zeros(self.length)
        low, high = torch.full_like(total, torch.inf), torch.full_like(total, -torch.inf)
        for query in self.sample:
            rows = anatomy.rows(layer, slice(query, query + 1), cropped=True)
            value = (rows.bias + rows.adaptive)[:, 0].flip(-1).double()  # (H, query + 1), by distance
            near = slice(0, query + 1)
            total[:, near] += value
            count[near] += 1
            low[:, near] = torch.minimum(low[:, near], value)
            high[:, near] = torch.maximum(high[:, near], value)
        mean = total / count
        return [Spread(*(x[head].numpy() for x in (mean, low, high))) for head in range(self.heads)]

    @cached_property
    def looks_back(self) -> Numbers:
        """(layers, heads): the mean distance of what is attended, over the sampled queries."""
        found = torch.zeros(self.layers, self.heads, dtype=torch.float64)
        for layer in range(self.layers):
            for query in self.sample:
                weights = self.anatomy.weights(layer, slice(query, query + 1))[:, 0].double()
                found[layer] += weights @ torch.arange(query, -1, -1, dtype=torch.float64)
        return (found / len(self.sample)).numpy()

    @cached_property
    def states(self) -> list[Tensor]:
        """Of each layer, the states that travel, (G, T, D); none where nothing does, or what does is no such state."""
        if not self.model.encoding.travels:
            return []
        width, found = self.model.shape.head_width, []
        for layer in range(self.layers):
            held = [x for x in self.anatomy.heard.states[layer] if x.ndim == 4]
            if not held or held[0].shape[2:] != (self.length, width) or width % 2:
                return []
            found.append(held[0][0])
        return found

    @property
    def turns(self) -> bool:
        """Whether states begin as the turns of RoPE."""
        return any(part.travels and part.rotates for part in parts(self.model.encoding))

    @cached_property
    def products(self) -> list[Numbers]:
        """Of each layer, by distance from 0 on: the mean of Re(conj(z_i) z_j) / |z_i z_j| over frequencies, heads and
        the sampled queries. Of RoPE's states it is the mean of cos(distance w_m)."""
        return [self._product(state) for state in self.states]

    def _product(self, state: Tensor) -> Numbers:
        real, imaginary = state.double().chunk(2, dim=-1)  # (G, T, D / 2)
        size = (real.square() + imaginary.square()).sqrt().clamp(min=1e-12) * real.shape[-1] ** 0.5
        unit = torch.cat([real / size, imaginary / size], dim=-1)
        total, count = torch.zeros(self.length, dtype=torch.float64), torch.zeros(self.length)
        for query in self.sample:
            product = (unit[:, : query + 1] @ unit[:, query, :, None])[..., 0]  # (G, query + 1)
            total[: query + 1] += product.mean(0).flip(-1)
            count[: query + 1] += 1
        return (total / count).numpy()

    def rollout(self, queries: Sequence[int]) -> list[Numbers]:
        """Of each query, how much of each token up to it reaches it through all layers.

        Abnar and Zuidema 2020, arXiv 2005.00928: the product over layers of (A + 1) / 2, A the mean over heads.
        """
        missing = [query for query in queries if query not in self.rolled]
        if missing:
            for query, row in zip(missing, rollout(self.anatomy, missing), strict=True):
                self.rolled[query] = row[: query + 1].numpy()
        return [self.rolled[query] for query in queries]


def rollout(anatomy: Anatomy, queries: Sequence[int]) -> Tensor:
    """(queries, T): rows of the product, from the last layer down, each a row times a matrix that is never whole."""
    reached = torch.zeros(len(queries), anatomy.length, dtype=torch.float64)
    reached[range(len(queries)), list(queries)] = 1.0
    for layer in reversed(range(anatomy.layers)):
        below = 0.5 * reached
        for begin in range(0, max(queries) + 1, ROWS):
            end = min(begin + ROWS, max(queries) + 1)
            weights = anatomy.weights(layer, slice(begin, end)).mean(0)  # (t, end)
            below[:, :end] += 0.5 * (reached[:, begin:end] @ weights.double())
        reached = below
    return reached


def parts(encoding: PositionalEncoding) -> list[PositionalEncoding]:
    return list(encoding) if isinstance(encoding, Several) else [encoding]
