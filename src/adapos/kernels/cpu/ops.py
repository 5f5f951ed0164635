"""The native kernel as operators of torch's, with shapes for the compiler and gradients for autograd.

Where nobody watches what is dispatched, `native` does without the operators: to go through their schemas takes longer
than the arithmetic of a short call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from adapos.kernels.cpu import library
from adapos.kernels.cpu.terms import NAMES
from adapos.pairs import SLOPE

ROWS, COLUMNS = 0, 0  # of a tile; 0: as measured best
TABLES = ("first", "second", "bias", "psi")
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

_PLACES = "Tensor? q_pos, Tensor? k_pos, Tensor? q_doc, Tensor? k_doc"
_TERMS = ", ".join(f"Tensor? {name}" for name in NAMES)
# numbers: start, window or 0, causal, consecutive, zero, added, ahead
_REST = f"{_PLACES}, {_TERMS}, SymInt[] numbers, float scale, float unit_slope"
torch.library.define("adapos::native", f"(Tensor q, Tensor k, Tensor v, {_REST}) -> (Tensor, Tensor)")
torch.library.define(
    "adapos::native_backward",
    f"(Tensor grad, Tensor out, Tensor ends, Tensor q, Tensor k, Tensor v, {_REST}) -> Tensor[]",
)


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
    for name, x in zip(("q_pos", "k_pos", "q_doc", "k_doc"), places, strict=True):
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


def _outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The output, and each row's greatest logit and its sum of exp(logit - greatest)."""
    # float32 whatever q is: the backward pass reads the output, and rounding it would cost all gradients their digits
    batch, heads, queries, _ = q.shape
    out = q.new_empty((batch, heads, queries, v.shape[3]), dtype=torch.float32)
    return out, q.new_empty((2, batch, heads, queries), dtype=torch.float32)


def _forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    q, k, v = (_rows(x) for x in (q, k, v))
    out, ends = _outputs(q, v)
    library.run(_problem(q, k, v, out, ends, rest), backward=False)
    return out, ends


@torch.library.register_fake("adapos::native")
def _forward_shapes(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _outputs(q, v)


def _gradients(q: Tensor, k: Tensor, v: Tensor, terms: tuple[Tensor | None, ...]) -> list[Tensor]:
    """Of q, k, v and the terms that are there, in their order, but for b_out, whose gradient is zero."""
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v, *terms[:-1]) if x is not None]


def _backward(grad: Tensor, out: Tensor, ends: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Tensor]:
    q, k, v, grad, out = (_rows(x) for x in (q, k, v, grad, out))
    terms = rest[4 : 4 + len(NAMES)]
    found = _gradients(q, k, v, terms)
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


@torch.library.register_fake("adapos::native_backward")
def _backward_shapes(
    grad: Tensor, out: Tensor, ends: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> list[Tensor]:
    return _gradients(q, k, v, rest[4 : 4 + len(NAMES)])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.numbers, ctx.scale, ctx.unit_slope = inputs
    ctx.there = [x is not None for x in tensors]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output, *(x for x in tensors if x is not None))


def _differentiate(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * (len(ctx.there) + 3)
    out, ends, *kept = ctx.saved_tensors
    rest = iter(kept)
    tensors = [next(rest) if there else None for there in ctx.there]
    # with gradients of gradients asked for, the operator refuses
    run: Callable[..., Any] = (
        torch.ops.adapos.native_backward if torch.is_grad_enabled() or _watched(grad) else _backward
    )
    found = iter(run(grad, out, ends, *tensors, ctx.numbers, ctx.scale, ctx.unit_slope))
    gradients: list[Tensor | None] = []
    for index, x in enumerate(tensors):
        place = 3 <= index < 7
        last = index == len(tensors) - 1
        gradients.append(None if x is None or place else torch.zeros_like(x) if last else next(found))
    return *gradients, None, None, None


def _refuse(ctx: Any, *_: Any) -> tuple[None, ...]:
    raise RuntimeError(
        "the native kernel gives gradients, but no gradients of gradients; call attend with backend='reference'"
    )


torch.library.impl("adapos::native", "CPU", _forward)
torch.library.impl("adapos::native_backward", "CPU", _backward)
torch.library.register_autograd("adapos::native", _differentiate, setup_context=_keep)
torch.library.register_autograd("adapos::native_backward", _refuse)


class NativeAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        output = _forward(*inputs)
        _keep(ctx, inputs, output)
        return output

    backward = staticmethod(_differentiate)


def native(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    """The output in float32."""
    if _watched(q):
        out: Tensor = torch.ops.adapos.native(q, k, v, *rest)[0]
    elif torch.is_grad_enabled():
        out = NativeAttention.apply(q, k, v, *rest)[0]
    else:
        out = _forward(q, k, v, *rest)[0]
    return out


def _watched(x: Tensor) -> bool:
    """Whether a compiler, a mode or a kind of tensor wants to see operators."""
    return (
        torch.compiler.is_compiling() or type(x) not in (Tensor, Parameter) or torch._C._len_torch_dispatch_stack() > 0
    )


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
