"""CoPE: positions counted by gates of the scores. Golovneva et al. 2024, arXiv 2405.18719, eq. 5."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adapos.encoding import Keys, PositionalEncoding, Promises, Shape
from adapos.layout import Layout
from adapos.pairs import Cope, Pairs, wide
from adapos.registry import at_least, register


@register("cope")
class ContextualPositions(PositionalEncoding):
    """logit = s_ij + q_i . e[n_ij], n_ij = sum of sigmoid(s_il) over j <= l <= i.

    e is interpolated between whole positions and cut at `positions`.
    """

    mixes = True
    unturned = True
    promises = Promises(causal_only=True, because="gates are counted from the key up to the query")

    def __init__(self, shape: Shape, positions: int = 64) -> None:
        super().__init__(shape)
        at_least(self.name, "positions", positions, 2)
        self.positions = positions
        self.table = nn.Parameter(torch.zeros(shape.layers, shape.head_width, positions))

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        return Pairs(mix=Cope(wide(q) @ wide(self.table[layer])))
