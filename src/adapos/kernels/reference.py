"""The specification: the full matrix of logits, every Pairs, every device. Quadratic memory, here and nowhere else."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from adapos.kernels.call import Call
from adapos.layout import ALL, Layout
from adapos.pairs import Pairs, grouped, wide


class Reference:
    name = "reference"

    def refuses(self, call: Call) -> str | None:
        return None

    def rank(self, call: Call) -> int:
        return 3

    def __call__(self, call: Call) -> Tensor:
        call = call.with_padding_zeroed()
        with torch.autocast(call.q.device.type, enabled=False):
            weights = attention(wide(call.q) * call.scale, call.k, call.layout, call.pairs)
            if call.dropout:
                weights = F.dropout(weights, call.dropout)
            return gathered(weights, call.v).to(call.v.dtype)


def attention(q: Tensor, k: Tensor, layout: Layout, pairs: Pairs, rows: slice = ALL) -> Tensor:
    """The weights (B, H, t, S) with which the scaled queries of `rows` attend, in at least float32."""
    k = wide(k)
    score = grouped(wide(q), k.shape[1]) @ k[:, :, None].transpose(-1, -2)  # (B, G, N, t, S)
    logit = pairs.rows(score.flatten(1, 2), layout, rows)
    # a row that sees nothing is all -inf: softmax would make it NaN, and its gradient too
    blind = (logit == -torch.inf).all(-1, keepdim=True)
    return logit.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def gathered(weights: Tensor, v: Tensor) -> Tensor:
    """(B, H, t, S), (B, G, S, E) -> (B, H, t, E)"""
    return (grouped(weights, v.shape[1]) @ wide(v)[:, :, None]).flatten(1, 2)
