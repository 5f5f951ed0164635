"""Attention over any Pairs: `attend`, and `explain`, which says which backend can run a call and why others cannot.

A backend reads the types of the terms, the device, dtypes and widths, and answers None or one sentence
saying why not. `auto` takes the best-ranked that does not refuse; a named backend that refuses raises.
"""

from __future__ import annotations

from torch import Tensor

from adapos.hints import meant
from adapos.kernels.call import Backend, Call
from adapos.kernels.cpu import Native
from adapos.kernels.reference import Reference, attention
from adapos.kernels.sdpa import Sdpa
from adapos.kernels.tiled import Tiled
from adapos.kernels.triton import Triton
from adapos.layout import Layout
from adapos.pairs import Pairs, wide

BACKENDS: tuple[Backend, ...] = (Native(), Triton(), Sdpa(), Tiled(), Reference())

__all__ = ["BACKENDS", "Backend", "Call", "attend", "choose", "explain", "named", "ranked", "weights"]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    pairs: Pairs = Pairs(),  # noqa: B008  (frozen)
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """softmax(pairs(scale q.k)) v -> (B, H, T, E).

    q (B, H, T, D), k (B, G, S, D), v (B, G, S, E); G divides H. `scale` is 1 / sqrt(D) unless given. A query
    that sees nothing gets zeros.
    """
    call = Call.checked(q, k, v, layout, pairs, scale, dropout)
    return choose(call, backend)(call)


def weights(
    q: Tensor,
    k: Tensor,
    layout: Layout,
    pairs: Pairs = Pairs(),  # noqa: B008  (frozen)
    *,
    scale: float | None = None,
) -> Tensor:
    """softmax(pairs(scale q.k)), (B, H, T, S): quadratic in length, by the reference."""
    call = Call.checked(q, k, k, layout, pairs, scale, 0.0).with_padding_zeroed()
    return attention(wide(call.q) * call.scale, call.k, layout, pairs)


def explain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    pairs: Pairs = Pairs(),  # noqa: B008  (frozen)
    *,
    scale: float | None = None,
    dropout: float = 0.0,
) -> list[tuple[str, str | None]]:
    """Each backend in the order of preference, with None or the reason why it cannot run the call."""
    call = Call.checked(q, k, v, layout, pairs, scale, dropout)
    return [(backend.name, backend.refuses(call)) for backend in ranked(call)]


def ranked(call: Call) -> list[Backend]:
    return sorted(BACKENDS, key=lambda backend: backend.rank(call))


def choose(call: Call, backend: str = "auto") -> Backend:
    if backend == "auto":
        return next(candidate for candidate in ranked(call) if candidate.refuses(call) is None)
    chosen = named(backend)
    reason = chosen.refuses(call)
    if reason is not None:
        raise ValueError(f"backend {backend!r} cannot run this call: {reason}; choose another, or 'auto'")
    return chosen


def named(backend: str) -> Backend:
    for candidate in BACKENDS:
        if candidate.name == backend:
            return candidate
    names = ("auto", *(candidate.name for candidate in BACKENDS))
    near = meant(str(backend), names) or ";"
    raise ValueError(f"no backend is called {backend!r}{near} there are {', '.join(names)}")
