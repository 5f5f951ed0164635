"""Biases of cumulated gates: what lies between two tokens decides how far apart they are."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adapos.encoding import Keys, PositionalEncoding, Promises, Shape, Tokens
from adapos.layout import PADDING, Layout
from adapos.pairs import Pairs, Ramp, wide
from adapos.registry import register


class Gated(PositionalEncoding):
    """bias[h, i, j] = sum of gate[h, l] over j < l <= i. Gates are cached as they are and cumulated when read."""

    biases = True
    promises = Promises(causal_only=True, because="gates are cumulated from the past to the present")

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        bound = 1 / math.sqrt(shape.width)
        self.weight = nn.Parameter(torch.empty(shape.layers, shape.heads, shape.width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(shape.layers, shape.heads).uniform_(-bound, bound))

    def gate(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def tokens(self, layer: int, t: Tokens, pos: Tensor, state: object) -> Tokens:
        gate = self.gate(F.linear(wide(t.x), wide(self.weight[layer]), wide(self.bias[layer])))  # (B, T, H)
        return t.but(extra={**t.extra, self.name: gate.transpose(1, 2)})

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        gate = wide(keys.extra[self.name])
        if layout.k_doc is not None:
            gate = gate.masked_fill((layout.k_doc == PADDING)[:, None], 0.0)
        total = gate.cumsum(-1)  # (B, H, S)
        return Pairs((Ramp(total[..., layout.start : layout.start + layout.queries], -total),))


@register("fox")
class Fox(Gated):
    """gate = log sigmoid(w_h . x + b_h): the forgetting transformer. Lin et al. 2025, arXiv 2503.02130, eq. 4."""

    def gate(self, x: Tensor) -> Tensor:
        return F.logsigmoid(x)


@register("cable")
class Cable(Gated):
    """gate = -softplus(w_h . x + b_h): context-aware biases. Veisi et al. 2025, arXiv 2503.08067, section 3."""

    def gate(self, x: Tensor) -> Tensor:
        return -F.softplus(x)
