"""The Triton kernels as operators of torch's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adapos.kernels.operators import PLACES, Operator, in_rows
from adapos.kernels.triton import passes
from adapos.kernels.triton.problem import Problem
from adapos.kernels.triton.terms import NAMES


def _problem(q: Tensor, k: Tensor, v: Tensor, rest: tuple[Any, ...]) -> Problem:
    *tensors, _, (start, window, causal, zero, added), scale = rest
    named = dict(zip((*PLACES, *NAMES[:-1]), tensors, strict=True))
    numbers = {"start": start, "window": window, "causal": bool(causal), "zero": zero, "added": bool(added)}
    return Problem(in_rows(q), in_rows(k), in_rows(v), **named, **numbers, scale=scale)


def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    # Triton starts kernels on the current device
    with torch.cuda.device_of(q):
        return passes.forward(_problem(q, k, v, rest))


def backward(grad: Tensor, out: None, ends: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Tensor]:
    with torch.cuda.device_of(q), torch.autocast(q.device.type, enabled=False):
        found = passes.backward(_problem(q, k, v, rest), grad, ends)
    terms = dict(zip(NAMES[:-1], rest[4 : 4 + len(NAMES) - 1], strict=True))
    return [found[name].to(x.dtype) for name, x in {"q": q, "k": k, "v": v, **terms}.items() if x is not None]


# numbers: start, window or 0, causal, zero, added
fused = Operator("triton", ["CUDA", "CPU"], NAMES, "SymInt[] numbers, float scale", forward, backward, reads=False)
