"""The attention call that one layer of a model would make, in sizes only: what backends are asked about it.

Tensors are torch's fake ones, which have a shape, a dtype and a device and hold nothing, so that a million tokens
cost no more than ten. An encoding that reads its ids cannot read fake ones; then as little as possible is made for
real, within a limit.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from adapos.encoding import Keys, PositionalEncoding, Shape, Tokens
from adapos.kernels import Call
from adapos.layout import Layout
from adapos.model.layer import allowed, begun
from adapos.registry import label

REAL = 2**29  # bytes of real tensors at most
LARGEST = 2**63  # bytes of any
GPUS = ("gpu", "hip", "rocm")  # what torch calls cuda


@dataclass(frozen=True)
class Size:
    batch: int
    length: int
    dtype: torch.dtype
    device: str
    causal: bool

    def __post_init__(self) -> None:
        if available(self.device).type == "cpu":
            object.__setattr__(self, "device", "cpu")  # 'cpu:0' too, which torch tells apart in tensors of no numbers

    def bytes(self, width: int) -> int:
        """Of one tensor with `width` numbers a token."""
        return self.batch * self.length * width * self.dtype.itemsize


def available(device: str) -> torch.device:
    try:
        found = torch.ones(1, device=device).device  # written to: a GPU may be there that this torch has no code for
    except (RuntimeError, AssertionError, ImportError) as problem:
        raise ValueError(unavailable(device, str(problem))) from None
    if found.type == "cpu" and torch.device(device).index not in (None, 0):
        raise ValueError(f"device {device!r} has a number, and there is one CPU; write 'cpu'")
    if found.type == "meta":
        raise ValueError(f"device {device!r} holds no numbers; try 'cpu', or 'cuda' where torch sees a GPU")
    return found


def unavailable(device: str, said: str) -> str:
    """Why a device cannot be used, of which torch said so much."""
    name, colon, index = device.partition(":")
    if name != "cuda":
        near = get_close_matches(name.lower(), ("cpu", "cuda"), n=1, cutoff=0.7)  # tpu and xpu are further than that
        meant = "cuda" if name.lower() in GPUS else "".join(near)
        if meant:
            numbered = f":{index}" if meant == "cuda" and index.isdecimal() else ""
            return f"no device is called {device!r}; did you mean '{meant}{numbered}'?"
        return f"device {device!r} is not available on this machine; try 'cpu', or 'cuda' where torch sees a GPU"
    if colon and not index.isdecimal():
        return f"device {device!r} must end in the number of a GPU, as 'cuda:0' does, or be 'cuda'"
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"device {device!r} is a GPU, and this torch ({torch.__version__}) is built for CPUs alone; install one "
            "for CUDA or ROCm, or try 'cpu'"
        )
    reason = " ".join(said.partition("\n")[0].split()).rstrip(".")
    if not torch.cuda.is_available():
        return f"device {device!r} is a GPU, and torch sees none on this machine ({reason}); try 'cpu'"
    if int(index or 0) >= (count := torch.cuda.device_count()):
        there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        return f"device {device!r} is not on this machine, of which torch sees {there}; choose one of those"
    return f"device {device!r} is there and cannot be used ({reason}); try another, or 'cpu'"


def sketch(encoding: PositionalEncoding, size: Size) -> Call:
    """The call of the first layer. In inference ask the backends under `torch.no_grad`, as the model would."""
    encoding.to(size.device, size.dtype)
    longest = encoding.promises.longest
    if longest is not None and size.length > longest:
        raise ValueError(f"{label(encoding)!r} takes ids below {longest}, and length {size.length} goes past them")
    countable(size, encoding.shape)
    # ever more for real: nothing, the first hook, everything
    for begins, attends in ((False, False), (True, False)):
        try:
            return _call(encoding, size, begins=begins, attends=attends)
        except RuntimeError:  # a fake tensor was asked for its numbers
            continue
    return _call(encoding, size, begins=True, attends=True)


def countable(size: Size, shape: Shape) -> None:
    widest = max(shape.width, shape.heads * shape.head_width)
    if size.bytes(widest) >= LARGEST:
        raise ValueError(
            f"a batch of {size.batch} with length {size.length} and width {widest} must be below 2^63 bytes, or torch "
            "cannot count them; ask for less"
        )


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
