"""What happens to a score between q.k and the softmax, described as data so that a kernel can fuse it.

logit = mix(score, bias), or score + bias where nothing mixes; the score is already scaled. Terms hold
tensors, never modules: autograd and kernels need them. A term that reads scores sees zeros where the query
sees nothing, before and between its layers, so that a decoding step equals one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from adapos.layout import ALL, Layout

SLOPE = 0.01  # of the leaky rectifier inside HeadMix
EPSILON = 1e-6  # in the denominator of FIRE, as released


def wide(x: Tensor) -> Tensor:
    """At least float32: scores, biases and positions are never computed in half precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@dataclass(frozen=True, eq=False)
class Term:
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(x for field in fields(self) if isinstance(x := getattr(self, field.name), Tensor))

    def holding(self, tensors: Sequence[Tensor]) -> Self:
        """The same term with other tensors, in the order of `tensors()`."""
        names = [field.name for field in fields(self) if isinstance(getattr(self, field.name), Tensor)]
        return replace(self, **dict(zip(names, tensors, strict=True)))

    @property
    def breadth(self) -> int:
        """How many numbers a pair takes while the term is computed, where that is more than one a head."""
        return 0

    def sizes(self, batch: int, heads: int, queries: int, keys: int) -> dict[str, tuple[int | None, ...]]:
        """The shape that each tensor must have; None fits any size."""
        raise NotImplementedError(f"{type(self).__name__} must say the sizes of its tensors")


class Bias(Term):
    """A number added to the score of each pair."""

    def rows(self, layout: Layout, rows: slice = ALL) -> Tensor:
        """(B or 1, H, t, S)"""
        raise NotImplementedError(f"{type(self).__name__} must compute its rows")


class Mix(Term):
    """A function of the scores of whole rows, all heads together."""

    @property
    def adds(self) -> bool:
        """Whether the bias stands beside it, as well as inside."""
        return True

    def rows(self, score: Tensor, bias: Tensor | None, seen: Tensor, rows: slice = ALL) -> Tensor:
        """score (B, H, t, S), bias (B or 1, H, t, S), both zero where not seen (B, 1, t, S) -> logits"""
        raise NotImplementedError(f"{type(self).__name__} must compute its rows")


@dataclass(frozen=True, eq=False)
class Ramp(Bias):
    """bias[h, i, j] = q[h, i] + k[h, j]"""

    q: Tensor  # (B, H, T)
    k: Tensor  # (B, H, S)

    def sizes(self, batch: int, heads: int, queries: int, keys: int) -> dict[str, tuple[int | None, ...]]:
        return {"q": (batch, heads, queries), "k": (batch, heads, keys)}

    def rows(self, layout: Layout, rows: slice = ALL) -> Tensor:
        return wide(self.q)[:, :, rows, None] + wide(self.k)[:, :, None, : layout.keys]


@dataclass(frozen=True, eq=False)
class DistanceTable(Bias):
    """bias[h, i, j] = table[h, clip(p_i - p_j + zero)]; `zero` is the column of distance 0."""

    table: Tensor  # (H, R)
    zero: int = 0

    def sizes(self, batch: int, heads: int, queries: int, keys: int) -> dict[str, tuple[int | None, ...]]:
        return {"table": (heads, None)}

    def rows(self, layout: Layout, rows: slice = ALL) -> Tensor:
        table = wide(self.table)
        if layout.consecutive:
            return diagonals(table, self.zero, layout, rows)[None]
        column = (layout.distance(rows) + self.zero).clamp(0, table.shape[1] - 1)  # (B, 1, t, S)
        return table[:, once(column)[:, 0]].transpose(0, 1)


@dataclass(frozen=True, eq=False)
class DistanceDot(Bias):
    """bias[h, i, j] = q[h, i] . r[h, clip(p_i - p_j + zero)]"""

    q: Tensor  # (B, H, T, D)
    r: Tensor  # (H, R, D)
    zero: int = 0

    def sizes(self, batch: int, heads: int, queries: int, keys: int) -> dict[str, tuple[int | None, ...]]:
        return {"q": (batch, heads, queries, None), "r": (heads, None, None)}

    def rows(self, layout: Layout, rows: slice = ALL) -> Tensor:
        q, r = wide(self.q)[:, :, rows], wide(self.r)
        last = r.shape[1] - 1
        if layout.consecutive:
            begin, end, _ = rows.indices(layout.queries)
            length, keys = end - begin, layout.keys
            # one column more than the diagonals, so that cutting the flat rows one shorter shifts each by one
            distance = layout.start + end - 1 - torch.arange(length + keys, device=r.device)
            r = r[:, (distance + self.zero).clamp(0, last)]
            dot = (q @ r.transpose(-1, -2)).flatten(-2)  # (B, H, t * (t + S))
            dot = dot[..., length - 1 : length - 1 + length * (length + keys - 1)]
            return dot.unflatten(-1, (length, length + keys - 1))[..., :keys]
        column = (layout.distance(rows) + self.zero).clamp(0, last)
        return (q @ r.transpose(-1, -2)).gather(-1, column.expand(-1, q.shape[1], -1, -1))


@dataclass(frozen=True, eq=False)
class Fire(Bias):
    """bias[h, i, j] = MLP(psi(|p_i - p_j|) / psi(max(p_i, threshold)))[h], psi(x) = log(1 + |c x|)"""

    c: Tensor  # ()
    threshold: Tensor  # ()
    w1: Tensor  # (W,)
    b1: Tensor  # (W,)
    w2: Tensor  # (H, W)
    b2: Tensor  # (H,)
    slope: float = 0.0  # of the rectifier, below zero

    @property
    def breadth(self) -> int:
        return self.w1.shape[0]

    def sizes(self, batch: int, heads: int, queries: int, keys: int) -> dict[str, tuple[int | None, ...]]:
        width = self.w1.shape[0]
        return {"c": (), "threshold": (), "w1": (None,), "b1": (width,), "w2": (heads, width), "b2": (heads,)}

    def rows(self, layout: Layout, rows: slice = ALL) -> Tensor:
        distance = once(layout.distance(rows))  # (B or 1, 1, t, S)
        own = layout.q_pos[: distance.shape[0], None, rows, None].to(wide(self.c).dtype)
        return self.network(distance, torch.maximum(own, wide(self.threshold)))

    def table(self, layout: Layout) -> DistanceTable:
        """The same for queries whose ids are below the threshold, of which distance alone is left."""
        found = self.network(layout.distances()[None, None, None], wide(self.threshold))
        return DistanceTable(found[0, :, 0], zero=layout.ahead)

    def network(self, distance: Tensor, against: Tensor) -> Tensor:
        """(B, 1, t, S) -> (B, H, t, S)"""
        c, w1, b1, w2, b2 = (wide(x) for x in (self.c, self.w1, self.b1, self.w2, self.b2))
        ratio = (psi(c, distance.to(c.dtype)) / (psi(c, against) + EPSILON)).to(w1.dtype)
        hidden = F.leaky_relu(ratio * w1[:, None, None] + b1[:, None, None], self.slope)  # (B, W, t, S)
        return torch.einsum("hw,bwts->bhts", w2, hidden) + b2[:, None, None]


def psi(c: Tensor, x: Tensor) -> Tensor:
    """Distances as FIRE has them."""
    return torch.log((c * x).abs() + 1)


@dataclass(frozen=True, eq=False)
class LogDot(Bias):
    """bias[h, i, j] = log(max(q[h, i] . k[h, j], floor)): states of positions compared as they are."""

    q: Tensor  # (B, H, T, R)
    k: Tensor  # (B, G, S, R)
    floor: float

    def sizes(self, batch: int, heads: int, queries: int, keys: int) -> dict[str, tuple[int | None, ...]]:
        return {"q": (batch, heads, queries, None), "k": (batch, None, keys, None)}

    def rows(self, layout: Layout, rows: slice = ALL) -> Tensor:
        q, k = wide(self.q)[:, :, rows], wide(self.k)[:, :, : layout.keys]
        dot = grouped(q, k.shape[1]) @ k[:, :, None].transpose(-1, -2)  # (B, G, N, t, S)
        return dot.flatten(1, 2).clamp(min=self.floor).log()


@dataclass(frozen=True, eq=False)
class Grid(Bias):
    """bias = values, materialised: for the odd idea and for tests; quadratic by nature."""

    values: Tensor  # (B, H, T, S)

    def sizes(self, batch: int, heads: int, queries: int, keys: int) -> dict[str, tuple[int | None, ...]]:
        return {"values": (batch, heads, queries, keys)}

    def rows(self, layout: Layout, rows: slice = ALL) -> Tensor:
        return wide(self.values)[:, :, rows, : layout.keys]


@dataclass(frozen=True, eq=False)
class HeadMix(Mix):
    """f = conv(leaky(conv(channels))) across all heads, two 1 x k convolutions along the keys.

    | form     | logit              | channels  |
    |----------|--------------------|-----------|
    | residual | S + B + f([S; B])  | 2H        |
    | concat   | S + f([S; B])      | 2H        |
    | add      | S + B + f(S + B)   | H         |
    | bias     | S + B + f(B)       | H         |

    Without a bias every form but the last is S + f(S), of H channels.
    """

    w_in: Tensor  # (W, 2H or H, k)
    b_in: Tensor  # (W,)
    w_out: Tensor  # (H, W, k)
    b_out: Tensor  # (H,)
    form: str = "residual"

    @property
    def kernel(self) -> int:
        return self.w_in.shape[-1]

    @property
    def breadth(self) -> int:
        return max(self.w_in.shape[:2])

    @property
    def adds(self) -> bool:
        return self.form != "concat"

    def channels(self, heads: int, biased: bool) -> int:
        return 2 * heads if biased and self.form in ("residual", "concat") else heads

    def halves(self, heads: int) -> tuple[Tensor | None, Tensor]:
        """What w_in makes of the scores, None where it reads none, and what it makes of a bias."""
        of_score = None if self.form == "bias" else self.w_in[:, :heads]
        return of_score, self.w_in[:, heads:] if self.form in ("residual", "concat") else self.w_in

    def sizes(self, batch: int, heads: int, queries: int, keys: int) -> dict[str, tuple[int | None, ...]]:
        width, kernel = self.w_in.shape[0], self.kernel
        return {"w_in": (None, None, None), "b_in": (width,), "w_out": (heads, width, kernel), "b_out": (heads,)}

    def rows(self, score: Tensor, bias: Tensor | None, seen: Tensor, rows: slice = ALL) -> Tensor:
        w_in, b_in, w_out, b_out = (x.to(score.dtype) for x in self.tensors())
        channels, static = score, score
        if bias is not None:
            static = score + bias if self.adds else score
            if self.form in ("residual", "concat"):
                channels = torch.cat([score, bias.expand_as(score)], dim=1)
            else:
                channels = score + bias if self.form == "add" else bias
        hidden = F.leaky_relu(along_keys(channels, w_in) + b_in[:, None, None], SLOPE)
        if self.kernel > 1:
            # again, or decoding differs from one pass
            hidden = hidden.masked_fill(~seen, 0.0)
        return static + along_keys(hidden, w_out) + b_out[:, None, None]


@dataclass(frozen=True, eq=False)
class Cope(Mix):
    """logit = S + B + interpolation of `logits` at position sum of sigmoid(S) over the keys from j to i."""

    logits: Tensor  # (B, H, T, P)

    def sizes(self, batch: int, heads: int, queries: int, keys: int) -> dict[str, tuple[int | None, ...]]:
        return {"logits": (batch, heads, queries, None)}

    def rows(self, score: Tensor, bias: Tensor | None, seen: Tensor, rows: slice = ALL) -> Tensor:
        logits = self.logits[:, :, rows].to(score.dtype)
        gate = score.sigmoid().masked_fill(~seen, 0.0)
        position = gate.flip(-1).cumsum(-1).flip(-1).clamp(max=logits.shape[-1] - 1)
        below = position.floor()
        low, high = logits.gather(-1, below.long()), logits.gather(-1, position.ceil().long())
        contextual = torch.lerp(low, high, position - below)
        return score + contextual if bias is None else score + bias + contextual


@dataclass(frozen=True, eq=False)
class Pairs:
    """The biases, which add up, and at most one mix."""

    bias: tuple[Bias, ...] = ()
    mix: Mix | None = None

    def __add__(self, other: Pairs) -> Pairs:
        if self.mix is not None and other.mix is not None:
            names = f"{type(self.mix).__name__} and {type(other.mix).__name__}"
            raise ValueError(f"only one term may mix scores, and both {names} do; keep one of them")
        return Pairs(self.bias + other.bias, self.mix or other.mix)

    @property
    def terms(self) -> tuple[Term, ...]:
        return self.bias if self.mix is None else (*self.bias, self.mix)

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(x for term in self.terms for x in term.tensors())

    def holding(self, tensors: Sequence[Tensor]) -> Pairs:
        """The same pairs with other tensors, in the order of `tensors()`."""
        rest = list(tensors)
        terms: list[Any] = []
        for term in self.terms:
            size = len(term.tensors())
            terms.append(term.holding(rest[:size]))
            rest = rest[size:]
        return Pairs(tuple(terms[: len(self.bias)]), None if self.mix is None else terms[-1])

    def added(self, layout: Layout, rows: slice = ALL) -> Tensor | None:
        """The sum of the biases, (B or 1, H, t, S)."""
        total = None
        for term in self.bias:
            total = term.rows(layout, rows) if total is None else total + term.rows(layout, rows)
        return total

    def rows(self, score: Tensor, layout: Layout, rows: slice = ALL) -> Tensor:
        """Logits (B, H, t, S) of scores (B, H, t, S), -inf where unseen."""
        seen, bias = layout.visible(rows), self.added(layout, rows)
        bias = None if bias is None else bias.to(score.dtype)
        if self.mix is not None:
            score = score.masked_fill(~seen, 0.0)
            bias = None if bias is None else bias.masked_fill(~seen, 0.0)
            logit = self.mix.rows(score, bias, seen, rows)
        else:
            logit = score if bias is None else score + bias
        return logit.masked_fill(~seen, -torch.inf)


def once(x: Tensor) -> Tensor:
    """One row of a batch that repeats it."""
    return x[:1] if x.stride(0) == 0 else x


def grouped(q: Tensor, groups: int) -> Tensor:
    """(B, H, ...) -> (B, G, N, ...)"""
    return q.unflatten(1, (groups, -1))


def diagonals(table: Tensor, zero: int, layout: Layout, rows: slice) -> Tensor:
    """(C, R) -> (C, t, S): entry [c, i, j] is table[c, clip(i - j + zero)], i and j indices on the key axis."""
    begin, end, _ = rows.indices(layout.queries)
    distance = layout.start + end - 1 - torch.arange(end - begin + layout.keys - 1, device=table.device)
    line = table[:, (distance + zero).clamp(0, table.shape[1] - 1)]
    return line.unfold(1, layout.keys, 1).flip(1)


def along_keys(x: Tensor, weight: Tensor) -> Tensor:
    """A 1 x k convolution over the last axis, zero outside: x (B, I, t, S), weight (O, I, k) -> (B, O, t, S)."""
    kernel = weight.shape[-1]
    x = F.pad(x, (kernel // 2, kernel // 2))
    keys = x.shape[-1] - kernel + 1
    # shifted products: a convolution would make oneDNN keep one primitive for each shape of tile
    taps = [torch.einsum("oi,bits->bots", weight[..., tap], x[..., tap : tap + keys]) for tap in range(kernel)]
    return torch.stack(taps).sum(0) if kernel > 1 else taps[0]
