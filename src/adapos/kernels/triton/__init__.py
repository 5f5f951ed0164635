"""Triton kernels for GPUs: logits of all heads of a tile in one program, and the softmax and values of each head.

adapos loads Triton with the first call that these kernels run, never before. TRITON_INTERPRET=1 in the environment,
before Python starts, runs them on a CPU, slowly: that is how they are tested where there is no GPU.
"""

from __future__ import annotations

import os
import re
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import torch
from torch import Tensor

from adapos.kernels.call import OPAQUE, Call
from adapos.kernels.terms import placed
from adapos.pairs import DistanceTable, HeadMix, Ramp


def told(name: str) -> bool:
    """Whether a variable of the environment says yes, as Triton reads it."""
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on", "y")


def installed() -> tuple[int, ...] | None:
    """The version of Triton, told without loading it; None where it is not there."""
    try:
        found = find_spec("triton")
    except (ValueError, ImportError):  # something else stands in its place, or in its way
        return None
    if found is None or found.origin is None:  # a folder that happens to be called so has no origin
        return None
    try:
        return tuple(int(part) for part in re.findall(r"\d+", version("triton"))[:2])
    except PackageNotFoundError:  # torch brings it under another name, as for AMD's
        return UNKNOWN


def of(parts: tuple[int, ...]) -> str:
    return ".".join(map(str, parts))


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CAPABLE = (8, 0)
OLDEST = (3, 3)
MIXING = (3, 5)  # the first Triton that multiplies matrices of fewer than 16 rows
UNKNOWN = (2**31,)  # later than any
# asked once: what torch compiles should not see how
INTERPRETED, VERSION = told("TRITON_INTERPRET"), installed()
WIDEST = 256  # numbers of a head, and of its values
HEADS = 32
TAPS = 7


class Triton:
    name = "triton"

    def refuses(self, call: Call) -> str | None:
        device = call.q.device
        if device.type != "cuda" and not (INTERPRETED and device.type == "cpu"):
            return f"it runs on GPUs, and these tensors are on {device}"
        if device.type == "cuda" and INTERPRETED:
            return "TRITON_INTERPRET is set, by which Triton would interpret it in place of a GPU; unset it"
        if device.type == "cuda" and torch.version.hip is None and (has := capability(device)) < CAPABLE:
            return f"it needs a GPU of compute capability {of(CAPABLE)} or later, and {device} has {of(has)}"
        if VERSION is None:
            return "it needs Triton: pip install triton"
        if VERSION < OLDEST:
            return f"it needs Triton {of(OLDEST)} or later, as torch 2.7 brings, and this is {of(VERSION)}"
        if call.q.dtype not in DTYPES:
            return f"it takes float32, bfloat16 and float16, and these tensors are {str(call.q.dtype)[6:]}"
        if max(call.q.shape[3], call.v.shape[3]) > WIDEST:
            return f"heads and values may be up to {WIDEST} wide, and they are {call.q.shape[3]} and {call.v.shape[3]}"
        for term in call.pairs.bias:
            if not isinstance(term, DistanceTable | Ramp):
                return f"it adds tables over distance and ramps, and {type(term).__name__} is neither"
        mix = call.pairs.mix
        if mix is not None and not isinstance(mix, HeadMix):
            return f"of mixes it knows HeadMix alone, and {type(mix).__name__} counts along whole rows"
        if mix is not None and VERSION < MIXING:
            return f"it mixes heads with Triton {of(MIXING)} or later, as torch 2.9 brings, and this is {of(VERSION)}"
        if mix is not None and call.heads > HEADS:
            return f"it mixes up to {HEADS} heads, and there are {call.heads}"
        if mix is not None and mix.kernel > TAPS:
            return f"it mixes with a kernel of up to {TAPS} keys, and this has {mix.kernel}"
        if call.transformed:
            return OPAQUE
        if call.dropout:
            return "it does not drop attention weights"
        return None

    def rank(self, call: Call) -> int:
        if call.q.device.type != "cuda":
            return 4
        # torch's own is ahead where there is nothing but plain attention
        return 0 if call.pairs.terms else 2

    def __call__(self, call: Call) -> Tensor:
        try:
            from adapos.kernels.triton.ops import fused
        except Exception as problem:  # whatever a broken one raises
            raise RuntimeError(
                f"backend 'triton' cannot run: Triton is installed and does not import ({type(problem).__name__}: "
                f"{problem}); install it anew, or name another backend"
            ) from problem
        from adapos.kernels.triton.terms import prepared

        call, layout = call.with_padding_zeroed(), call.layout
        with torch.autocast(call.q.device.type, enabled=False):
            terms = prepared(call)
        places, window = placed(layout)
        numbers = [layout.start, window, int(layout.causal), terms.zero, int(terms.added)]
        return fused(call.q, call.k, call.v, *places, *terms.tensors(), numbers, call.scale).to(call.v.dtype)


def capability(device: torch.device) -> tuple[int, int]:
    # torch compiles calls of this, and none of `get_device_capability`
    about = torch.cuda.get_device_properties(device)
    return about.major, about.minor
