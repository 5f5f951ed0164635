"""Native code for CPUs: tiles of rows x keys with all heads together, an online softmax, and a recomputing backward."""

from __future__ import annotations

import torch
from torch import Tensor

from adapos.kernels.call import OPAQUE, Call
from adapos.kernels.cpu import library
from adapos.kernels.cpu.ops import DTYPES, native
from adapos.kernels.cpu.terms import prepared
from adapos.kernels.terms import placed
from adapos.layout import FURTHEST
from adapos.pairs import DistanceTable, Fire, HeadMix, Ramp

FEW_KEYS = 1024


class Native:
    name = "native"

    def refuses(self, call: Call) -> str | None:
        if call.q.device.type != "cpu":
            return f"it runs on CPUs, and these tensors are on {call.q.device}"
        if call.q.dtype not in DTYPES:
            return f"it takes float32, bfloat16 and float16, and these tensors are {str(call.q.dtype)[6:]}"
        for term in call.pairs.bias:
            if not isinstance(term, DistanceTable | Ramp | Fire):
                return f"it adds tables over distance, ramps and FIRE, and {type(term).__name__} is none of them"
        fires = sum(isinstance(term, Fire) for term in call.pairs.bias)
        if fires and call.differentiable:
            return "it has no gradients of Fire"
        if fires > 1 or (fires and call.layout.span + call.layout.ahead > FURTHEST):
            return f"it adds one Fire, of distances below {FURTHEST}"
        if call.pairs.mix is not None and not isinstance(call.pairs.mix, HeadMix):
            return f"of mixes it knows HeadMix alone, and {type(call.pairs.mix).__name__} counts along whole rows"
        if call.pairs.mix is not None and not call.pairs.mix.b_in.numel():
            return "it mixes heads through one channel or more"
        if call.transformed:
            return OPAQUE
        if call.dropout:
            return "it does not drop attention weights"
        if library.WRONG is not None:
            raise ValueError(library.WRONG)
        return library.MISSING

    def rank(self, call: Call) -> int:
        if library.MISSING is not None:
            return 4
        # measured: sdpa is ahead where there is nothing but plain attention, in both directions or over a few keys
        layout = call.layout
        bare = len(call.pairs.terms) == 0 and layout.k_doc is None and layout.window is None
        alike = call.q.dtype == torch.float32 and call.q.shape[-1] == call.v.shape[-1]
        few = layout.queries == 1 and layout.keys < FEW_KEYS
        return 2 if bare and alike and (few or not layout.causal) else 0

    def __call__(self, call: Call) -> Tensor:
        layout = call.layout
        if torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):
                terms = prepared(call)
        else:
            terms = prepared(call)
        places, window = placed(layout)
        numbers = [
            layout.start, window, int(layout.causal), int(layout.consecutive), terms.zero, int(terms.added), terms.ahead
        ]  # fmt: skip
        settings = numbers, call.scale, terms.unit_slope
        return native(call.q, call.k, call.v, *places, *terms.tensors(), *settings).to(call.v.dtype)
