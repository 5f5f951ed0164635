"""The attention call that one layer of a model would make, in sizes only: what backends are asked about it.

Tensors are torch's fake ones, which have a shape, a dtype and a device and hold nothing, so that a million tokens
cost no more than ten. An encoding that reads its ids cannot read fake ones; then as little as possible is made for
real, within a limit.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from adapos.encoding import Keys, PositionalEncoding, Tokens
from adapos.kernels import Call
from adapos.layout import Layout
from adapos.model.layer import allowed, begun
from adapos.registry import label

REAL = 2**29  # bytes of real tensors at most


@dataclass(frozen=True)
class Size:
    batch: int
    length: int
    dtype: torch.dtype
    device: str
    causal: bool

    def __post_init__(self) -> None:
        available(self.device)

    def bytes(self, width: int) -> int:
        """Of one tensor with `width` numbers a token."""
        return self.batch * self.length * width * self.dtype.itemsize


def available(device: str) -> torch.device:
    try:
        return torch.empty(1, device=device).device
    except (RuntimeError, AssertionError):
        raise ValueError(f"device {device!r} is not available on this machine; try 'cpu'") from None


def sketch(encoding: PositionalEncoding, size: Size) -> Call:
    """The call of the first layer. In inference ask the backends under `torch.no_grad`, as the model would."""
    encoding.to(size.device, size.dtype)
    longest = encoding.promises.longest
    if longest is not None and size.length > longest:
        raise ValueError(f"{label(encoding)!r} takes ids below {longest}, and length {size.length} goes past them")
    # ever more for real: nothing, the first hook, everything
    for begins, attends in ((False, False), (True, False)):
        try:
            return _call(encoding, size, begins=begins, attends=attends)
        except RuntimeError:  # a fake tensor was asked for its numbers
            continue
    return _call(encoding, size, begins=True, attends=True)


def _call(encoding: PositionalEncoding, size: Size, *, begins: bool, attends: bool) -> Call:
    shape = encoding.shape
    widths = [shape.width] if begins else []
    widths += [shape.head_width * (shape.heads + 2 * shape.kv_heads)] if attends else []
    if (needed := size.bytes(sum(widths))) > REAL:
        longest = size.length * REAL // needed
        raise ValueError(
            f"{label(encoding)!r} reads numbers, so its tensors must be real, and a batch of {size.batch} with length "
            f"{size.length} would take too much memory to only look at; ask for a length up to {longest}"
        )
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def drawn(*shape: int) -> Tensor:
        """Real ones share a single number."""
        x = torch.zeros((), dtype=size.dtype, device=size.device, requires_grad=torch.is_grad_enabled())
        return x.expand(*shape)

    with nullcontext() if begins else fake:
        layout = Layout.dense(size.batch, size.length, device=size.device, causal=size.causal)
        allowed(encoding, layout, None)
        x, layout, state = begun(encoding, drawn(size.batch, size.length, shape.width), layout)
    with nullcontext() if attends else fake:
        q, k, v = (
            drawn(size.batch, heads, size.length, shape.head_width)
            for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
        )
        t = encoding.tokens(0, Tokens(x, q, k, v), layout.q_pos, state)
        pairs = encoding.pairs(0, t.q, Keys(t.k, t.v, t.extra), layout)
    return Call.checked(t.q, t.k, t.v, layout, pairs, None, 0.0)
