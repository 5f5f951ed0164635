"""What the kernels compute with: the terms of a call's Pairs as one table, one ramp and the matrices of a mix."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor

from adapos.kernels.call import Call
from adapos.kernels.terms import one_ramp, one_table
from adapos.pairs import HeadMix


@dataclass(frozen=True, eq=False)
class Terms:
    """Float32 but for ramps, whose halves are far larger than their sum; None where a tensor does not apply."""

    table: Tensor | None = None  # (H, R)
    ramp_q: Tensor | None = None  # (B, H, T)
    ramp_k: Tensor | None = None  # (B, H, S)
    w_score: Tensor | None = None  # (k, W, H)
    w_bias: Tensor | None = None  # (k, W, H)
    b_in: Tensor | None = None  # (W,)
    w_out: Tensor | None = None  # (k, H, W)
    b_out: Tensor | None = None  # (H,): no softmax sees a constant
    zero: int = 0  # the column of distance 0
    added: bool = True  # the bias stands beside the mix as well as inside it

    def tensors(self) -> list[Tensor | None]:
        return [getattr(self, name) for name in NAMES]


NAMES = tuple(field.name for field in fields(Terms) if field.name not in ("zero", "added"))


def prepared(call: Call) -> Terms:
    """By ordinary differentiable operations."""
    (table, zero), (ramp_q, ramp_k) = one_table(call.pairs.bias), one_ramp(call.pairs.bias)
    if call.pairs.mix is None:
        return Terms(table, ramp_q, ramp_k, zero=zero)
    assert isinstance(call.pairs.mix, HeadMix)
    mix = call.pairs.mix.holding([x.float() for x in call.pairs.mix.tensors()])
    of_score, of_bias = mix.halves(call.heads)
    return Terms(
        table,
        ramp_q,
        ramp_k,
        w_score=None if of_score is None else of_score.permute(2, 0, 1),
        w_bias=of_bias.permute(2, 0, 1) if call.pairs.bias else None,
        b_in=mix.b_in,
        w_out=mix.w_out.permute(2, 0, 1),
        b_out=mix.b_out,
        zero=zero,
        added=mix.adds,
    )
