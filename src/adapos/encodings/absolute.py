"""No encoding, and encodings added to the embeddings. Vaswani et al. 2017, arXiv 1706.03762, section 3.5."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from adapos.encoding import PositionalEncoding, Promises, Shape
from adapos.registry import at_least, register


@register("nope")
class Nope(PositionalEncoding):
    """No position at all: a causal decoder infers order from what each token sees. arXiv 2305.19466."""


@register("sinusoidal")
class Sinusoidal(PositionalEncoding):
    """x + [sin(p w), cos(p w)], w_m = 10000^(-2m / C)."""

    adds = True
    promises = Promises(relative=False, because="sinusoids of the id are added to the embeddings")

    def begin(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Any]:
        return x + sinusoids(pos, x.shape[-1]).to(x.dtype), pos, None


@register("learned")
class Learned(PositionalEncoding):
    """x + table[p], for ids below `longest`."""

    adds = True

    def __init__(self, shape: Shape, longest: int = 2048) -> None:
        super().__init__(shape)
        at_least(self.name, "longest", longest, 1)
        self.longest = longest
        self.table = nn.Parameter(torch.empty(longest, shape.width).normal_(std=0.02))

    @property
    def promises(self) -> Promises:  # type: ignore[override]
        return Promises(relative=False, longest=self.longest, because="a vector is learned for each id")

    def begin(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Any]:
        low, high = int(pos.min()), int(pos.max())
        if high >= self.longest:
            raise ValueError(
                f"learned: position {high} is past the table of {self.longest}; evaluate up to {self.longest} "
                "or choose an encoding that extrapolates"
            )
        if low < 0:
            raise ValueError(f"learned: positions must be at least 0, and one is {low}; shift the ids")
        return x + self.table[pos].to(x.dtype), pos, None


def precise(pos: Tensor) -> Tensor:
    """As double precision numbers, where the device has them: for angles and long sums."""
    return pos.to(torch.float32 if pos.device.type == "mps" else torch.float64)


def sinusoids(pos: Tensor, width: int) -> Tensor:
    """(...) integers -> (..., width): the sines of all frequencies, then the cosines."""
    half = precise(torch.arange(0, width, 2, device=pos.device)) / width
    angle = precise(pos)[..., None] * 10000.0**-half
    return torch.cat([angle.sin(), angle.cos()], dim=-1)[..., :width]
