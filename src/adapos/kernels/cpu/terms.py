"""What the native kernel computes with: the tensors of a call's Pairs as tables over distance, ramps and matrices.

With the bias b a table over distance, HeadMix needs only the scores of a tile, its weights on them, and two tables,
through which ordinary autograd carries the gradients on to whatever made b:

    hidden = leaky(w_in S + first)          first  = w_bias b + b_in      (W, distance)
    logit  = S + w_out hidden + second      second = b                    (H, distance)

b_out is not added, for no softmax sees a constant; its gradient is zero.

Where that does not hold, the kernel is given b and w_bias and sends the bias through the first layer pair by pair:
for ramps, for FIRE, for ids that are not consecutive where taps read neighbours, and in rows where a tap meets a key
that is not seen. FIRE is a network of psi, a table over distance, against a number of each query; it is computed where
it is needed, and has no gradients here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from adapos.kernels.call import Call
from adapos.kernels.terms import one_ramp, one_table
from adapos.layout import Layout
from adapos.pairs import EPSILON, Fire, HeadMix, along_keys, psi

FEW = 16  # queries, for which making tables costs more than it saves


@dataclass(frozen=True, eq=False)
class Terms:
    """Float32 but for ramps, whose halves are far larger than their sum; None where a tensor does not apply."""

    first: Tensor | None = None  # (W, R + 2r)
    second: Tensor | None = None  # (H, R)
    bias: Tensor | None = None  # (H, R)
    ramp_q: Tensor | None = None  # (B, H, T)
    ramp_k: Tensor | None = None  # (B, H, S)
    w_in: Tensor | None = None  # (k, W, H)
    w_bias: Tensor | None = None  # (k, W, H)
    b_in: Tensor | None = None  # (W,)
    w_out: Tensor | None = None  # (k, H, W)
    psi: Tensor | None = None  # (1, R)
    against: Tensor | None = None  # (B, T)
    w1: Tensor | None = None  # (U,)
    b1: Tensor | None = None  # (U,)
    w2: Tensor | None = None  # (H, U)
    b2: Tensor | None = None  # (H,)
    b_out: Tensor | None = None  # (H,)
    zero: int = 0  # the column of distance 0 in `second` and `bias`
    added: bool = True  # the bias stands beside the mix as well as inside it
    ahead: int = 0  # the column of distance 0 in `psi`
    unit_slope: float = 0.0  # of the network's rectifier, below zero

    def tensors(self) -> list[Tensor | None]:
        return [getattr(self, name) for name in NAMES]


NAMES = tuple(field.name for field in fields(Terms) if field.name not in ("zero", "added", "ahead", "unit_slope"))


def prepared(call: Call) -> Terms:
    """By ordinary differentiable operations."""
    (table, zero), (ramp_q, ramp_k) = one_table(call.pairs.bias), one_ramp(call.pairs.bias)
    fire = next((term for term in call.pairs.bias if isinstance(term, Fire)), None)
    network = {} if fire is None else _network(fire, call.layout)
    mix = call.pairs.mix
    if mix is None:
        return Terms(second=table, ramp_q=ramp_q, ramp_k=ramp_k, zero=zero, **network)
    assert isinstance(mix, HeadMix)
    mix = mix.holding([x.float() for x in mix.tensors()])
    b_in, w_out, b_out, (of_score, of_bias) = mix.b_in, mix.w_out, mix.b_out, mix.halves(call.heads)
    reach, biased = mix.kernel // 2, bool(call.pairs.bias)
    plain = ramp_q is None and fire is None and (call.layout.consecutive or not reach)
    tabled = table is not None and plain and call.layout.queries > FEW
    spelled = not tabled or reach > 0
    first = second = None
    if tabled:
        assert table is not None
        first = torch.addmm(b_in[:, None], of_bias[..., 0], table) if not reach else _through(table, of_bias, b_in)
        second = table if mix.adds else None
    return Terms(
        first=None if first is None else first.contiguous(),
        second=second,
        bias=table if spelled else None,
        ramp_q=ramp_q,
        ramp_k=ramp_k,
        w_in=None if of_score is None else of_score.permute(2, 0, 1).contiguous(),
        w_bias=of_bias.permute(2, 0, 1).contiguous() if spelled and biased else None,
        b_in=b_in if spelled else None,
        w_out=w_out.permute(2, 0, 1).contiguous(),
        b_out=b_out,
        zero=zero,
        added=mix.adds,
        **network,
    )


def _network(fire: Fire, layout: Layout) -> dict[str, Any]:
    c, threshold, w1, b1, w2, b2 = (x.float().contiguous() for x in fire.tensors())
    own = torch.maximum(layout.q_pos.float(), threshold)
    return {
        "psi": psi(c, layout.distances().float())[None].contiguous(),
        "against": (psi(c, own) + EPSILON).contiguous(),
        "w1": w1,
        "b1": b1,
        "w2": w2,
        "b2": b2,
        "ahead": layout.ahead,
        "unit_slope": fire.slope,
    }


def _through(table: Tensor, weight: Tensor, b_in: Tensor) -> Tensor:
    """A table through the first layer: (H, R) -> (W, R + 2r), distance 0 being r columns further on."""
    reach = weight.shape[-1] // 2
    # past either end a table goes on as it ended
    column = torch.arange(-2 * reach, table.shape[1] + 2 * reach, device=table.device)
    wider = table.index_select(1, column.clamp(0, table.shape[1] - 1))
    # a tap further along the keys is a step closer: distance runs the other way
    first = along_keys(wider[None, :, None], weight.flip(2))[0, :, 0] + b_in[:, None]
    return first[:, reach : first.shape[1] - reach]
