"""A fused kernel as operators of torch's, with shapes for the compiler and gradients for autograd.

Where nobody watches what is dispatched it does without the operators: to go through their schemas takes longer than the
arithmetic of a short call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from adapos.kernels.call import OPAQUE, seen_through

PLACES = ("q_pos", "k_pos", "q_doc", "k_doc")
Forward = Callable[..., tuple[Tensor, Tensor]]
Backward = Callable[..., list[Tensor]]


class Operator:
    """Called with q, k, v, ids and documents or None, terms or None, and settings.

    `forward` gives the output in float32 and of each row its greatest logit and sum of exp(logit - greatest);
    `backward`, given the gradient of the output and both, or None for an output that it never `reads`, the gradients of
    q, k, v and the terms that are there. The last term is b_out, which no softmax sees: its gradient is zero, and
    `backward` leaves it out.
    """

    def __init__(
        self,
        name: str,
        devices: Sequence[str],
        terms: Sequence[str],
        settings: str,
        forward: Forward,
        backward: Backward,
        *,
        reads: bool = True,
    ) -> None:
        self.name, self.forward, self.backward, self.reads = name, forward, backward, reads
        self.settings = settings.count(",") + 1
        tensors = ", ".join(f"Tensor? {each}" for each in (*PLACES, *terms))
        rest = f"Tensor q, Tensor k, Tensor v, {tensors}, {settings}"
        torch.library.define(f"adapos::{name}", f"({rest}) -> (Tensor, Tensor)")
        torch.library.define(f"adapos::{name}_backward", f"(Tensor grad, Tensor? out, Tensor ends, {rest}) -> Tensor[]")
        for device in devices:
            torch.library.impl(f"adapos::{name}", device, forward)
            torch.library.impl(f"adapos::{name}_backward", device, backward)
        torch.library.register_fake(f"adapos::{name}", lambda q, k, v, *_: outputs(q, v))
        torch.library.register_fake(
            f"adapos::{name}_backward", lambda grad, out, ends, *rest: gradients(rest[: -self.settings])
        )
        torch.library.register_autograd(f"adapos::{name}", self._differentiate, setup_context=self._keep)
        torch.library.register_autograd(f"adapos::{name}_backward", self._refuse)
        self.function = type(
            f"{name.capitalize()}Attention",
            (torch.autograd.Function,),
            # functions, for compiled autograd takes no bound method
            {
                "forward": staticmethod(lambda ctx, *inputs: self._forward(ctx, *inputs)),
                "backward": staticmethod(lambda ctx, *grads: self._differentiate(ctx, *grads)),
            },
        )

    def __call__(self, *inputs: Any) -> Tensor:
        """The output in float32."""
        if watched(inputs):
            out: Tensor = getattr(torch.ops.adapos, self.name)(*inputs)[0]
        elif torch.is_grad_enabled():
            out = self.function.apply(*inputs)[0]  # type: ignore[attr-defined]
        else:
            out = self.forward(*inputs)[0]
        return out

    def _forward(self, ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        output = self.forward(*inputs)
        self._keep(ctx, inputs, output)
        return output

    def _keep(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        tensors, ctx.settings = inputs[: -self.settings], inputs[-self.settings :]
        ctx.there = [x is not None for x in tensors]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        out, ends = output
        ctx.save_for_backward(out if self.reads else None, ends, *(x for x in tensors if x is not None))

    def _differentiate(self, ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        nothing = (None,) * self.settings
        if grad is None:
            return (*(None for _ in ctx.there), *nothing)
        if seen_through([grad]):
            raise RuntimeError(f"backend {self.name!r} cannot run this backward pass: {OPAQUE}")
        out, ends, *kept = ctx.saved_tensors
        rest = iter(kept)
        tensors = [next(rest) if there else None for there in ctx.there]
        # with gradients of gradients asked for, the operator refuses
        run: Callable[..., Any] = self.backward
        if torch.is_grad_enabled() or watched((grad, *tensors)):
            run = getattr(torch.ops.adapos, f"{self.name}_backward")
        found = iter(run(grad, out, ends, *tensors, *ctx.settings))
        gradients: list[Tensor | None] = []
        for index, x in enumerate(tensors):
            place = 3 <= index < 3 + len(PLACES)
            last = index == len(tensors) - 1
            gradients.append(None if x is None or place else torch.zeros_like(x) if last else next(found))
        return *gradients, *nothing

    def _refuse(self, ctx: Any, *_: Any) -> tuple[None, ...]:
        raise RuntimeError(
            f"the {self.name} kernel gives gradients, but no gradients of gradients; call attend with "
            "backend='reference'"
        )


def outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The output (B, H, T, E), and each row's greatest logit and its sum of exp(logit - greatest), (2, B, H, T)."""
    # float32 whatever q is: where the backward pass reads the output, rounding would cost all gradients their digits
    batch, heads, queries, _ = q.shape
    out = q.new_empty((batch, heads, queries, v.shape[3]), dtype=torch.float32)
    return out, q.new_empty((2, batch, heads, queries), dtype=torch.float32)


def gradients(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    """Of q, k, v and the terms that are there, in their order, but for b_out."""
    q, k, v, *rest = tensors
    terms = rest[len(PLACES) : -1]
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v, *terms) if x is not None]


def watched(inputs: Sequence[Any]) -> bool:
    """Whether a compiler, a mode or a kind of tensor wants to see operators."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
        return True
    return any(isinstance(x, Tensor) and type(x) not in (Tensor, Parameter) for x in inputs)


def in_rows(x: Tensor) -> Tensor:
    """With its last numbers beside one another."""
    return x if x.stride(-1) == 1 else x.contiguous()
