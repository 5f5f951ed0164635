"""One call of attention, checked, and what a backend is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from adapos.layout import PADDING, Layout
from adapos.pairs import HeadMix, Pairs, Term

# what a backend that torch cannot look into says of a call that is `transformed`
OPAQUE = "torch.func and forward-mode differentiation cannot look into it; the reference can be seen through"


@dataclass(frozen=True, eq=False)
class Call:
    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, S, D)
    v: Tensor  # (B, G, S, E)
    layout: Layout
    pairs: Pairs
    scale: float
    dropout: float = 0.0

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def groups(self) -> int:
        return self.k.shape[1]

    @property
    def differentiable(self) -> bool:
        """Whether somebody will ask for gradients."""
        return torch.is_grad_enabled() and any(x.requires_grad for x in (self.q, self.k, self.v, *self.pairs.tensors()))

    @property
    def transformed(self) -> bool:
        """Whether torch.func, even around other tensors, or forward-mode differentiation looks through the call."""
        if torch.compiler.is_compiling():
            return False
        return torch._C._are_functorch_transforms_active() or seen_through(
            (self.q, self.k, self.v, *self.pairs.tensors())
        )

    def with_padding_zeroed(self) -> Call:
        """A weight of zero does not hide a NaN; for backends that multiply padding by it."""
        if self.layout.k_doc is None:
            return self
        padding = (self.layout.k_doc == PADDING)[:, None, :, None]
        return replace(self, k=self.k.masked_fill(padding, 0.0), v=self.v.masked_fill(padding, 0.0))

    @classmethod
    def checked(
        cls, q: Tensor, k: Tensor, v: Tensor, layout: Layout, pairs: Pairs, scale: float | None, dropout: float
    ) -> Call:
        for name, x in (("q", q), ("k", k), ("v", v)):
            if not isinstance(x, Tensor):
                raise ValueError(f"{name} must be a tensor, not {type(x).__name__}; torch.as_tensor makes one")
            if x.layout != torch.strided:
                raise ValueError(f"{name} must be a dense tensor, not one of {x.layout}; make it one")
            if x.ndim != 4:
                raise ValueError(f"{name} must have shape (batch, heads, tokens, width), not {tuple(x.shape)}")
            if not x.is_floating_point():
                raise ValueError(f"{name} must be of a floating dtype, not {x.dtype}")
            if 0 in x.shape:
                raise ValueError(f"{name} of shape {tuple(x.shape)} is empty; every size must be at least 1")
            if x.dtype != q.dtype:
                raise ValueError(
                    f"q, k and v must share a dtype, and {name} is {x.dtype} beside q of {q.dtype}; cast them to one"
                )
            if x.device != q.device:
                raise ValueError(
                    f"q, k and v must be on one device, and {name} is on {x.device} beside q on {q.device}; move them"
                )
            if x.shape[0] != q.shape[0]:
                raise ValueError(f"q, k and v must share a batch, and {name} has {x.shape[0]} beside q of {q.shape[0]}")
        if k.shape[:3] != v.shape[:3]:
            raise ValueError(
                f"k and v must agree in heads and tokens: k has {tuple(k.shape[1:3])} and v {tuple(v.shape[1:3])}"
            )
        if q.shape[3] != k.shape[3]:
            raise ValueError(f"q and k must share a width: q has {q.shape[3]} and k {k.shape[3]}")
        if q.shape[1] % k.shape[1]:
            raise ValueError(f"heads ({q.shape[1]}) must be a multiple of kv_heads ({k.shape[1]})")
        if not isinstance(layout, Layout):
            raise ValueError(
                f"layout must be an adapos.Layout, not {type(layout).__name__}; Layout.dense(batch, length) makes one"
            )
        sizes = (q.shape[0], q.shape[2], k.shape[2])
        if sizes != (layout.batch, layout.queries, layout.keys):
            raise ValueError(
                f"the layout is for batch {layout.batch}, {layout.queries} queries and {layout.keys} keys, "
                f"and q, k have batch {sizes[0]}, {sizes[1]} queries and {sizes[2]} keys"
            )
        if layout.q_pos.device != q.device:
            raise ValueError(
                f"the layout is on {layout.q_pos.device} and q on {q.device}; call layout.to({str(q.device)!r})"
            )
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout ({dropout}) must be at least 0 and below 1")
        if not isinstance(pairs, Pairs):
            raise ValueError(
                f"pairs must be an adapos.Pairs, not {type(pairs).__name__}; an encoding's pairs() makes one"
            )
        for term in pairs.terms:
            check_term(term, q, k)
        if isinstance(pairs.mix, HeadMix):
            check_channels(pairs.mix, q.shape[1], biased=bool(pairs.bias))
        if scale is not None and not math.isfinite(scale):
            raise ValueError(f"scale ({scale}) must be a finite number")
        return cls(q, k, v, layout, pairs, q.shape[3] ** -0.5 if scale is None else float(scale), dropout)


def seen_through(tensors: Iterable[Tensor]) -> bool:
    """Whether torch.func, forward-mode differentiation or a batch of gradients looks through them."""
    if torch.compiler.is_compiling():
        return False
    tensors = tuple(tensors)
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        return True
    functorch = torch._C._functorch
    return any(functorch.is_functorch_wrapped_tensor(x) or functorch.is_legacy_batchedtensor(x) for x in tensors)


class Backend(Protocol):
    name: str

    def refuses(self, call: Call) -> str | None:
        """None, or one sentence saying why it cannot run this call."""

    def rank(self, call: Call) -> int:
        """How good a choice it is where it can run; the least is taken."""

    def __call__(self, call: Call) -> Tensor: ...


def check_term(term: Term, q: Tensor, k: Tensor) -> None:
    for name, size in term.sizes(q.shape[0], q.shape[1], q.shape[2], k.shape[2]).items():
        x = getattr(term, name)
        label = f"{type(term).__name__}.{name}"
        if x.device != q.device:
            raise ValueError(f"{label} is on {x.device} and q on {q.device}; move them to one device")
        fits = x.ndim == len(size) and all(
            # no `in`, which a compiler takes for False where a size is symbolic
            want is None or want == have
            for want, have in zip(size, x.shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if want is None else str(want) for want in size)
            raise ValueError(f"{label} must have shape ({wanted}), not {tuple(x.shape)}")


def check_channels(mix: HeadMix, heads: int, *, biased: bool) -> None:
    if mix.form == "bias" and not biased:
        raise ValueError(
            "HeadMix of form 'bias' reads a bias, and these pairs hold none; add one or choose another form"
        )
    want = mix.channels(heads, biased)
    if mix.w_in.shape[1] != want:
        beside = "with a bias" if biased else "without a bias"
        raise ValueError(
            f"HeadMix of form {mix.form!r} {beside} reads {want} channels for {heads} heads, "
            f"and w_in has {mix.w_in.shape[1]}"
        )
    if mix.kernel % 2 == 0:
        raise ValueError(f"HeadMix needs an odd kernel, and w_in has {mix.kernel} taps")
