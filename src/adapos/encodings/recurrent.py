"""Transformer-XL's relative encoding. Dai et al. 2019, arXiv 1901.02860, section 3.3."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from adapos.encoding import Keys, PositionalEncoding, Shape
from adapos.encodings.absolute import sinusoids
from adapos.layout import Layout
from adapos.pairs import DistanceDot, Pairs, Ramp, grouped, wide
from adapos.registry import register


@register("xl")
class Xl(PositionalEncoding):
    """score = (q_i . k_j + u . k_j + (q_i + v) . W_r r(i - j)) / sqrt(D), r the sinusoids of the signed distance."""

    biases = True
    unturned = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        layers, heads, width = shape.layers, shape.heads, shape.head_width
        self.u = nn.Parameter(torch.empty(layers, heads, width).normal_(std=0.02))
        self.v = nn.Parameter(torch.empty(layers, heads, width).normal_(std=0.02))
        self.w_r = nn.Parameter(torch.empty(layers, heads, width, shape.width).normal_(std=0.02))

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        scale = self.shape.head_width**-0.5
        u, v, w_r, q, k = (wide(x) for x in (self.u[layer], self.v[layer], self.w_r[layer], q, keys.k))
        distance = layout.distances()
        r = torch.einsum("hdc,rc->hrd", w_r, sinusoids(distance, self.shape.width).to(w_r.dtype))
        content = torch.einsum("gnd,bgsd->bgns", grouped(u[None], k.shape[1])[0], k).flatten(1, 2)  # (B, H, S)
        ramp = Ramp(torch.zeros_like(q[..., 0]), content * scale)
        return Pairs((ramp, DistanceDot((q + v[:, None]) * scale, r, zero=layout.ahead)))
