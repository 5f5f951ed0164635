"""Biases of cumulated gates: what lies between two tokens decides how far apart they are."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adapos.encoding import Keys, PositionalEncoding, Promises, Shape, Tokens
from adapos.encodings.absolute import precise
from adapos.layout import Layout
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
        if self.name not in keys.extra:
            raise ValueError(
                f"{self.name} reads gates from keys.extra[{self.name!r}]: pass on the extra that tokens() returns"
            )
        gate = keys.extra[self.name]
        # in double: the sums grow with the text, and near tokens differ by little
        gate = precise(gate)  # (B, H, S)
        if layout.k_doc is None:
            total = gate.cumsum(-1)
        else:
            # document by document, for what stands between two tokens may be another's
            order = layout.k_doc.argsort(dim=1, stable=True)[:, None].expand_as(gate)
            total = torch.empty_like(gate).scatter(2, order, gate.gather(2, order).cumsum(-1))
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
