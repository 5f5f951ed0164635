"""What attention is made of: raw scores, static bias, what adapts, and the weights, of any query of a text.

A text is read once; rows are computed when they are asked for, in memory linear in its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from adapos.encoding import Keys, PositionalEncoding
from adapos.layout import Layout
from adapos.model import Decoder
from adapos.pairs import Pairs, grouped, wide

ROWS = 64  # computed at once


@dataclass(frozen=True)
class Rows:
    """Of some queries, (H, t, S) each; zero where a query sees nothing."""

    score: Tensor  # q.k / sqrt(D)
    bias: Tensor  # of what stands beside, the same for every text of a static encoding
    adaptive: Tensor  # what a mix adds: f of DAPE
    logits: Tensor  # minus infinity where a query sees nothing
    seen: Tensor  # (t, S)

    @property
    def weights(self) -> Tensor:
        return self.logits.softmax(-1)


@dataclass
class Heard:
    """What an encoding was asked and answered in each layer."""

    pairs: dict[int, tuple[Tensor, Keys, Layout, Pairs]] = field(default_factory=dict)
    states: dict[int, list[Tensor]] = field(default_factory=dict)


class Anatomy:
    """One text (1, T), read by a decoder."""

    def __init__(self, model: Decoder, tokens: Tensor, pos: Tensor | None = None) -> None:
        if tokens.ndim != 2 or len(tokens) != 1:
            raise ValueError(f"tokens must have shape (1, length), not {tuple(tokens.shape)}")
        training = model.training
        model.eval()
        with torch.no_grad(), heard(model.encoding) as found:
            model.hidden(tokens, pos=pos)
        model.train(training)
        self.heard, self.length = found, tokens.shape[1]

    @property
    def layers(self) -> int:
        return len(self.heard.pairs)

    @torch.no_grad()
    def rows(self, layer: int, queries: slice, *, cropped: bool = False) -> Rows:
        """Of these queries and all keys, or, cropped, the keys up to the last of them."""
        q, keys, layout, pairs = self.heard.pairs[layer]
        if cropped:
            keys, layout = self.up_to(layer, queries)
        score, seen = scores(q[:, :, queries], keys), layout.visible(queries)
        logit = pairs.rows(score, layout, queries)
        bias = pairs.added(layout, queries)
        bias = torch.zeros_like(score) if bias is None else bias.to(score.dtype).expand_as(score)
        if pairs.mix is not None and not pairs.mix.adds:
            bias = torch.zeros_like(bias)
        # nothing but rounding is left where nothing mixes
        parts = (score, bias, torch.zeros_like(score) if pairs.mix is None else logit - score - bias)
        score, bias, adaptive = (part.masked_fill(~seen, 0.0)[0] for part in parts)
        return Rows(score, bias, adaptive, logit[0], seen.expand_as(logit)[0, 0])

    @torch.no_grad()
    def weights(self, layer: int, queries: slice) -> Tensor:
        """(H, t, S): the weights alone, over the keys up to the last of the queries."""
        q, _, _, pairs = self.heard.pairs[layer]
        keys, layout = self.up_to(layer, queries)
        return pairs.rows(scores(q[:, :, queries], keys), layout, queries).softmax(-1)[0]

    def up_to(self, layer: int, queries: slice) -> tuple[Keys, Layout]:
        """What queries that see no future need of the keys."""
        _, keys, layout, _ = self.heard.pairs[layer]
        end = queries.indices(self.length)[1]
        return Keys(keys.k[:, :, :end], keys.v[:, :, :end]), layout.first(end)

    def distances(self, layer: int, since: int = 0) -> Tensor:
        """(H,): how far back a head looks, the mean over the queries from `since` on."""
        return self.over(layer, since, lambda rows, apart: (rows.weights * apart).sum(-1))

    def slopes(self, layer: int, since: int = 0) -> Tensor:
        """(H,): how what adapts goes with the logarithm of distance, the mean over queries of the regression's slope.

        Below 0 it pulls a head closer, above 0 it pushes it away.
        """

        def slope(rows: Rows, apart: Tensor) -> Tensor:
            x = (1.0 + apart).log().masked_fill(~rows.seen, 0.0)
            count = rows.seen.sum(-1).clamp(min=1)
            x = (x - (x.sum(-1) / count)[..., None]).masked_fill(~rows.seen, 0.0)
            return (rows.adaptive * x).sum(-1) / x.square().sum(-1).clamp(min=1e-9)

        return self.over(layer, since, slope)

    def over(self, layer: int, since: int, measure: Any) -> Tensor:
        """The mean over queries of what is measured of rows, (H, t), and distances, (t, S)."""
        total, places = torch.zeros(()), torch.arange(self.length)
        for begin in range(since, self.length, ROWS):
            queries = slice(begin, min(begin + ROWS, self.length))
            apart = (places[queries, None] - places).clamp(min=0).double()
            total = total + measure(self.rows(layer, queries), apart).sum(-1).double()
        return total / (self.length - since)


def scores(q: Tensor, keys: Keys) -> Tensor:
    """q.k / sqrt(D), (B, H, t, S)."""
    k = wide(keys.k[..., : q.shape[-1]])
    found = (grouped(wide(q), k.shape[1]) @ k[:, :, None].transpose(-1, -2)).flatten(1, 2)
    return found * q.shape[-1] ** -0.5


@contextmanager
def heard(encoding: PositionalEncoding) -> Iterator[Heard]:
    """Listen at two hooks of an encoding."""
    found = Heard()
    tokens, pairs = encoding.tokens, encoding.pairs

    def listening_tokens(layer: int, t: Any, pos: Tensor, state: Any) -> Any:
        found.states[layer] = list(tensors(state))
        return tokens(layer, t, pos, state)

    def listening_pairs(layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        answer = pairs(layer, q, keys, layout)
        found.pairs[layer] = (q, keys, layout, answer)
        return answer

    object.__setattr__(encoding, "tokens", listening_tokens)
    object.__setattr__(encoding, "pairs", listening_pairs)
    try:
        yield found
    finally:
        del encoding.__dict__["tokens"], encoding.__dict__["pairs"]


def tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield wide(state)
    elif isinstance(state, list | tuple):
        for part in state:
            yield from tensors(part)
