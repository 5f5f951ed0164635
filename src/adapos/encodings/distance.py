"""Biases that depend on distance alone (and, for FIRE, on where the query is)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from adapos.encoding import Keys, PositionalEncoding, Promises, Shape
from adapos.layout import Layout
from adapos.pairs import DistanceTable, Fire, Pairs, wide
from adapos.registry import at_least, one_of, register, true_or_false

LARGEST = 2**16  # table of FIRE, which is made anew for every call


@register("t5")
class T5(PositionalEncoding):
    """bias[h, i, j] = table[h, bucket(i - j)], shared by the layers. Raffel et al. 2019, arXiv 1910.10683, section 2.1.

    Half of the buckets are one distance each, the rest grow logarithmically up to `furthest`; in a
    bidirectional layout keys ahead have buckets of their own.
    """

    biases = True

    def __init__(self, shape: Shape, buckets: int = 32, furthest: int = 128) -> None:
        super().__init__(shape)
        at_least(self.name, "buckets", buckets, 4)
        if buckets % 2:
            raise ValueError(f"t5: buckets ({buckets}) must be even: bidirectional layouts split them in two")
        at_least(self.name, "furthest", furthest, buckets // 2 + 1)
        self.buckets, self.furthest = buckets, furthest
        self.table = nn.Parameter(torch.empty(shape.heads, buckets).normal_(std=shape.width**-0.5))

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        distance = layout.distances(self.furthest)
        bucket = self.bucket(distance, causal=layout.causal)
        return Pairs((DistanceTable(self.table[:, bucket], zero=min(layout.ahead, self.furthest)),))

    def bucket(self, distance: Tensor, *, causal: bool) -> Tensor:
        """The bucket of i - j. Keys ahead share the bucket of distance 0 in a causal layout."""
        buckets = self.buckets if causal else self.buckets // 2
        far = distance.clamp(min=0) if causal else distance.abs()
        exact = buckets // 2
        grown = torch.log(far.clamp(min=1).double() / exact) / math.log(self.furthest / exact) * (buckets - exact)
        # a hair above, so that a distance on the edge of a bucket is not lost to rounding
        bucket = torch.where(far < exact, far, (exact + (grown + 1e-9).floor().long()).clamp(max=buckets - 1))
        return bucket if causal else bucket + buckets * (distance < 0)


@register("alibi")
class Alibi(PositionalEncoding):
    """bias[h, i, j] = -slope_h |i - j|. Press et al. 2021, arXiv 2108.12409, section 3. `learned` starts there."""

    biases = True

    def __init__(self, shape: Shape, learned: bool = False) -> None:
        super().__init__(shape)
        true_or_false(self.name, "learned", learned)
        self.learned = learned
        if learned:
            self.slope = nn.Parameter(torch.tensor(slopes(shape.heads)).repeat(shape.layers, 1))  # (layers, H)

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        distance = layout.distances()
        kind = wide(q).dtype
        slope = (
            wide(self.slope[layer])
            if self.learned
            else torch.tensor(slopes(self.shape.heads), dtype=kind, device=q.device)
        )
        return Pairs((DistanceTable(-slope[:, None] * distance.abs().to(slope.dtype), zero=layout.ahead),))


@register("kerple")
class Kerple(PositionalEncoding):
    """bias[h, i, j] = -p_h log(1 + a_h |i - j|), or -a_h |i - j|^p_h. Chi et al. 2022, arXiv 2205.09921, eq. 7.

    p and a are learned per layer and head and kept from 0.01 up (for power, p up to 2).
    """

    biases = True

    def __init__(self, shape: Shape, form: str = "log") -> None:
        super().__init__(shape)
        one_of(self.name, "form", form, ("log", "power"))
        self.form = form
        self.p = nn.Parameter(torch.rand(shape.layers, shape.heads) * 2)
        self.a = nn.Parameter(torch.rand(shape.layers, shape.heads))

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        p, a = wide(self.p[layer])[:, None], wide(self.a[layer])[:, None]
        far = layout.distances().abs().to(p.dtype)
        a = bounded(a, 0.01)
        if self.form == "log":
            table = -bounded(p, 0.01) * torch.log1p(a * far)
        else:
            # from 1, for 0^p has no derivative there
            table = -a * torch.where(far == 0, 0.0, far.clamp(min=1) ** bounded(p, 0.01, 2.0))
        return Pairs((DistanceTable(table, zero=layout.ahead),))


@register("fire")
class FirePositions(PositionalEncoding):
    """bias[h, i, j] = MLP(psi(|i - j|) / psi(max(i, L)))_h. Li et al. 2023, arXiv 2310.04418, eq. 7.

    psi(x) = log(1 + |c x|). c and L are learned per layer, as is the MLP of `width` rectified units.
    """

    biases = True
    promises = Promises(relative=False, because="distances are measured against the query's own id")
    start = 512.0  # L before training
    slope = 0.0  # of the rectifier below zero

    def __init__(self, shape: Shape, width: int = 32) -> None:
        super().__init__(shape)
        at_least(self.name, "width", width, 1)
        self.width = width
        layers, heads = shape.layers, shape.heads
        self.c = nn.Parameter(torch.full((layers,), 0.1))
        self.multiplier = nn.Parameter(torch.ones(layers))
        self.w1 = nn.Parameter(torch.empty(layers, width).uniform_(-1, 1))
        self.b1 = nn.Parameter(torch.empty(layers, width).uniform_(-1, 1))
        self.w2 = nn.Parameter(torch.empty(layers, heads, width).uniform_(-1, 1) / math.sqrt(width))
        self.b2 = nn.Parameter(torch.empty(layers, heads).uniform_(-1, 1) / math.sqrt(width))

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        threshold = (self.multiplier[layer] * self.start).abs()
        tensors = (self.w1[layer], self.b1[layer], self.w2[layer], self.b2[layer])
        fire = Fire(self.c[layer], threshold, *tensors, slope=self.slope)
        return Pairs((fire.table(layout) if self._within(layer, layout) else fire,))

    def _within(self, layer: int, layout: Layout) -> bool:
        """Whether all ids are known to lie below L: the bias is a table over distance then, and kernels are faster."""
        multiplier = self.multiplier
        if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(multiplier):
            return False  # these cannot ask for a number
        if multiplier.device.type != "cpu":
            return False  # it would be waited for
        return max(layout.last, layout.span, layout.ahead) < min(abs(multiplier.tolist()[layer] * self.start), LARGEST)


def slopes(heads: int) -> list[float]:
    """ALiBi's slopes, 2^(-8 n / heads); where heads is no power of two the next power's are interleaved."""
    power = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-8 * (n + 1) / power) for n in range(power)]
    return first if power == heads else first + slopes(2 * power)[0::2][: heads - power]


def bounded(x: Tensor, low: float, high: float = math.inf) -> Tensor:
    """The value between the bounds, the gradient as if there were none: a parameter at its bound can come back."""
    inside = x.clamp(low, high).detach()
    return inside + (x - x.detach()) if x.requires_grad else inside
