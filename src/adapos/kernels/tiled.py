"""Portable: tiles with a recomputing backward, every Pairs, every device, memory linear in length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from adapos.kernels import tiles
from adapos.kernels.call import OPAQUE, Call
from adapos.kernels.reference import attention, gathered
from adapos.kernels.threads import spread
from adapos.pairs import wide

SCORES = 2**21  # numbers in the scores of one tile of whole rows


class Tiled:
    """`scores` bounds the tiles of whole rows: all threads together hold so many numbers a channel, or a row each."""

    name = "tiled"

    def __init__(self, scores: int = SCORES) -> None:
        self.scores = scores

    def refuses(self, call: Call) -> str | None:
        if call.transformed:
            return OPAQUE
        return None

    def rank(self, call: Call) -> int:
        # measured on CPUs: ahead of sdpa where that would add a mask to the scores of many rows, or pad the keys
        # of a training step to the width of the values
        padded = call.differentiable and call.q.shape[-1] < call.v.shape[-1]
        masked = bool(call.pairs.bias) and call.layout.queries > 1
        return 0 if call.q.device.type == "cpu" and (padded or masked) and tiles.suits(call) else 2

    def __call__(self, call: Call) -> Tensor:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self.run)(call)
        return self.run(call)

    def run(self, call: Call) -> Tensor:
        call = call.with_padding_zeroed()
        if tiles.suits(call):
            with torch.autocast(call.q.device.type, enabled=False):
                return tiles.run(call)
        seed = int(torch.randint(2**62, ())) if call.dropout else 0
        rows = cuts(call, self.scores)
        if not call.differentiable:
            return forward(call, rows, seed)
        out: Tensor = _Rows.apply(call, rows, seed, call.q, call.k, call.v, *call.pairs.tensors())
        return out


def cuts(call: Call, scores: int) -> list[slice]:
    """The query rows in tiles of whole rows."""
    widest = max(call.heads, *(term.breadth for term in call.pairs.terms), 1)
    size = max(1, scores // (call.layout.batch * widest * call.layout.keys * torch.get_num_threads()))
    return [slice(i, min(i + size, call.layout.queries)) for i in range(0, call.layout.queries, size)]


def attended(call: Call, rows: slice, seed: int) -> Tensor:
    """The output (B, H, t, E) of some rows, reading only keys that one of them sees."""
    layout = call.layout
    keys = min(layout.start + rows.stop, layout.keys) if layout.causal else layout.keys
    q = wide(call.q[:, :, rows]) * call.scale
    weights = attention(q, call.k[:, :, :keys], layout.first(keys), call.pairs, rows)
    if call.dropout:
        # the same draw again when the backward pass recomputes the tile
        generator = torch.Generator(weights.device).manual_seed(seed + rows.start)
        kept = torch.rand(weights.shape, generator=generator, device=weights.device) >= call.dropout
        weights = weights * kept / (1 - call.dropout)
    return gathered(weights, call.v[:, :, :keys]).to(call.v.dtype)


def forward(call: Call, parts: list[slice], seed: int) -> Tensor:
    out = call.v.new_empty(*call.q.shape[:3], call.v.shape[-1])

    def work(share: list[slice]) -> None:
        with torch.no_grad():
            for rows in share:
                out[:, :, rows] = attended(call, rows, seed)

    spread(work, parts, lambda rows: rows.stop, call.q.device)
    return out


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, parts: list[slice], seed: int, *tensors: Tensor) -> Tensor:
        ctx.given = call, parts, seed
        ctx.save_for_backward(*tensors)
        return forward(call, parts, seed)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        call, parts, seed = ctx.given
        tensors = [x.detach() for x in ctx.saved_tensors]
        needed = [i for i, needs in enumerate(ctx.needs_input_grad[3:]) if needs]

        def work(share: list[slice]) -> list[Tensor]:
            totals = [torch.zeros_like(tensors[i], dtype=wide(tensors[i]).dtype) for i in needed]
            for rows in share:
                own = [
                    x.requires_grad_(i in needed) if x.is_floating_point() else x
                    for i, x in enumerate(x.detach() for x in tensors)
                ]
                with torch.enable_grad():
                    here = Call(
                        own[0], own[1], own[2], call.layout, call.pairs.holding(own[3:]), call.scale, call.dropout
                    )
                    out = attended(here, rows, seed)
                found = torch.autograd.grad(out, [own[i] for i in needed], grad[:, :, rows], allow_unused=True)
                for total, part in zip(totals, found, strict=True):
                    if part is not None:
                        total += part
            return totals

        first, *rest = spread(work, parts, lambda rows: rows.stop, grad.device)
        for other in rest:
            for mine, theirs in zip(first, other, strict=True):
                mine += theirs
        result: list[Tensor | None] = [None] * len(tensors)
        for i, total in zip(needed, first, strict=True):
            result[i] = total.to(tensors[i].dtype)
        return None, None, None, *result
