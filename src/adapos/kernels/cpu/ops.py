"""The native kernel as operators of torch's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adapos.kernels.cpu import library
from adapos.kernels.cpu.terms import NAMES
from adapos.kernels.operators import PLACES, Operator, gradients, in_rows, outputs
from adapos.pairs import SLOPE

ROWS, COLUMNS = 0, 0  # of a tile; 0: as measured best
TABLES = ("first", "second", "bias", "psi")
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def _problem(q: Tensor, k: Tensor, v: Tensor, out: Tensor, ends: Tensor, rest: tuple[Any, ...]) -> library.Problem:
    places, terms = rest[:4], dict(zip(NAMES, rest[4 : 4 + len(NAMES)], strict=True))
    (start, window, causal, consecutive, zero, added, ahead), scale, unit_slope = rest[-3:]
    w_out = terms["w_out"]
    taps, hidden = (1, 0) if w_out is None else (w_out.shape[0], w_out.shape[2])
    problem = library.Problem(
        batch=q.shape[0],
        heads=q.shape[1],
        groups=k.shape[1],
        queries=q.shape[2],
        keys=k.shape[2],
        width=q.shape[3],
        values=v.shape[3],
        hidden=hidden,
        taps=taps,
        units=0 if terms["w1"] is None else terms["w1"].shape[0],
        start=start,
        window=window,
        causal=causal,
        consecutive=consecutive,
        dtype=DTYPES[q.dtype],
        added=added,
        rows=ROWS,
        columns=COLUMNS,
        threads=torch.get_num_threads(),
        scale=scale,
        slope=SLOPE,
        unit_slope=unit_slope,
        q=library.view(q),
        k=library.view(k),
        v=library.view(v),
        out=library.view(out),
        top=ends.data_ptr(),
        sums=ends.data_ptr() + ends.nbytes // 2,
    )
    for name, x in zip(PLACES, places, strict=True):
        if x is not None:
            setattr(problem, name, x.data_ptr())
    for name, x in terms.items():
        kind = torch.float64 if name.startswith("ramp") else torch.float32
        if x is not None and (x.dtype != kind or not x.is_contiguous()):
            raise ValueError(
                f"{name} must be contiguous and of {kind}, and it is of {x.dtype} with strides {x.stride()}"
            )
        if x is None or name == "b_out":
            continue
        if name in TABLES:
            at = {"first": zero + taps // 2, "psi": ahead}.get(name, zero)
            setattr(problem, name, library.Table(x.data_ptr(), None, x.shape[1], at))
        else:
            setattr(problem, name, x.data_ptr())
    return problem


def forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    q, k, v = (in_rows(x) for x in (q, k, v))
    out, ends = outputs(q, v)
    library.run(_problem(q, k, v, out, ends, rest), backward=False)
    return out, ends


def backward(grad: Tensor, out: Tensor, ends: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Tensor]:
    q, k, v, grad, out = (in_rows(x) for x in (q, k, v, grad, out))
    terms = rest[4 : 4 + len(NAMES)]
    found = gradients((q, k, v, *rest[: 4 + len(NAMES)]))
    problem = _problem(q, k, v, out, ends, rest)
    problem.d_out = library.view(grad)
    problem.d_q, problem.d_k, problem.d_v = (library.view(x) for x in found[:3])
    names = [name for name, x in zip(NAMES[:-1], terms[:-1], strict=True) if x is not None]
    for name, x in zip(names, found[3:], strict=True):
        if name in TABLES:
            getattr(problem, name).grad = x.data_ptr()
        else:
            setattr(problem, f"d_{name}", x.data_ptr())
    library.run(problem, backward=True)
    return found


# numbers: start, window or 0, causal, consecutive, zero, added, ahead
native = Operator("native", ["CPU"], NAMES, "SymInt[] numbers, float scale, float unit_slope", forward, backward)
