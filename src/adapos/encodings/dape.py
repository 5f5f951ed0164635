"""DAPE: an MLP over scores and biases of all heads. Zheng et al. 2024, arXiv 2405.14722, eq. 3; V2: 2410.04798."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from adapos.encoding import Keys, PositionalEncoding, Shape
from adapos.layout import Layout
from adapos.pairs import HeadMix, Pairs
from adapos.registry import at_least, one_of, register, true_or_false


@register("dape", "cape")
class Dape(PositionalEncoding):
    """logit = S + B + f([S; B]), B the bias of what it stands beside, f two layers of `width` across all heads.

    `kernel` 1 is DAPE, 3, 5 or 7 DAPE V2, whose layers also reach over neighbouring keys. Forms: `residual`
    as above, `concat` S + f([S; B]), `add` S + B + f(S + B), `scores` S + B + f(S), `bias` S + B + f(B). With no
    bias beside it, S + f(S). Between the two layers stands a leaky rectifier of slope 0.01, and zeros where the
    query sees nothing. `zero` starts f at zero, so that the model equals its base.
    """

    mixes = True

    def __init__(
        self, shape: Shape, width: int = 32, kernel: int = 1, form: str = "residual", zero: bool = False
    ) -> None:
        super().__init__(shape)
        at_least(self.name, "width", width, 1)
        at_least(self.name, "kernel", kernel, 1)
        if kernel % 2 == 0:
            raise ValueError(f"dape: kernel ({kernel}) must be odd, so that it has a centre")
        one_of(self.name, "form", form, ("residual", "concat", "add", "scores", "bias"))
        true_or_false(self.name, "zero", zero)
        self.width, self.kernel, self.form, self.zero = width, kernel, form, zero
        self.biased = False
        self._make(shape.heads)

    def beside(self, others: Sequence[PositionalEncoding]) -> None:
        biased = any(other.biases for other in others)
        if self.form == "bias" and not biased:
            raise ValueError(
                "dape: form='bias' reads the bias of an encoding beside it, and there is none; "
                "write 'kerple + dape(form=\"bias\")'"
            )
        self.biased = biased
        if biased and self.form in ("residual", "concat"):
            self._make(2 * self.shape.heads)

    def _make(self, channels: int) -> None:
        layers, heads = self.shape.layers, self.shape.heads
        first, second = 1 / math.sqrt(channels * self.kernel), 1 / math.sqrt(self.width * self.kernel)
        if self.zero:
            second = 0.0
        self.w_in = nn.Parameter(torch.empty(layers, self.width, channels, self.kernel).uniform_(-first, first))
        self.b_in = nn.Parameter(torch.empty(layers, self.width).uniform_(-first, first))
        self.w_out = nn.Parameter(torch.empty(layers, heads, self.width, self.kernel).uniform_(-second, second))
        self.b_out = nn.Parameter(torch.empty(layers, heads).uniform_(-second, second))

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        w_in, form = self.w_in[layer], self.form
        if form == "scores":  # residual, with nothing of the bias
            form = "residual"
            w_in = torch.cat([w_in, torch.zeros_like(w_in)], dim=1) if self.biased else w_in
        mix = HeadMix(w_in, self.b_in[layer], self.w_out[layer], self.b_out[layer], form)
        return Pairs(mix=mix)
