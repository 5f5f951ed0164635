"""Randomized positions: ids of longer texts while training. Ruoss et al. 2023, arXiv 2305.16843, section 3."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adapos.encoding import PositionalEncoding, Promises, Shape
from adapos.registry import at_least, register

MOST = 2**26  # ids to draw from


@register("randomized")
class Randomized(PositionalEncoding):
    """While training, id p becomes the p-th of a sorted random sample from 0..factor x length; plain in evaluation."""

    renumbers = True

    def __init__(self, shape: Shape, factor: int = 4) -> None:
        super().__init__(shape)
        at_least(self.name, "factor", factor, 1)
        self.factor = factor

    @property
    def promises(self) -> Promises:  # type: ignore[override]
        if not self.training:
            return Promises()
        return Promises(
            cacheable=False, relative=False, because="ids are drawn anew at each training step: call .eval() to decode"
        )

    def begin(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Any]:
        if not self.training:
            return x, pos, None
        if int(pos.min()) < 0:
            raise ValueError(f"randomized: positions must be at least 0, and one is {int(pos.min())}; shift the ids")
        length = int(pos.max()) + 1
        if self.factor * length > MOST:
            raise ValueError(
                f"randomized: factor ({self.factor}) times length ({length}) must be at most {MOST}; lower the factor"
            )
        drawn = torch.rand(pos.shape[0], self.factor * length, device=pos.device).topk(length, dim=1).indices
        return x, drawn.sort(dim=1).values.gather(1, pos), None
