"""torch's own fused attention, where nothing mixes scores. Rows are cut so that no mask is ever quadratic."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from adapos.kernels.call import Call
from adapos.pairs import wide

# all but MATH, which is quadratic in memory
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
MASK = 2**23  # numbers in the mask of one cut of rows


class Sdpa:
    name = "sdpa"

    def refuses(self, call: Call) -> str | None:
        if call.pairs.mix is not None:
            return f"{type(call.pairs.mix).__name__} reads scores, and sdpa never shows them"
        if call.scale <= 0:
            return f"sdpa multiplies its own mask by the scale, and {call.scale} makes that a NaN"
        if call.dropout and call.q.device.type == "cpu":
            return "sdpa on a CPU falls back to quadratic memory when it drops attention weights"
        if not call.differentiable:
            return None
        if call.pairs.bias:
            bias = type(call.pairs.bias[0]).__name__
            return f"{bias} would be kept for the backward pass, in memory quadratic in length"
        if not self._maskless(call):
            return "the mask of this layout would be kept for the backward pass, in memory quadratic in length"
        return None

    def rank(self, call: Call) -> int:
        return 1

    def __call__(self, call: Call) -> Tensor:
        call = call.with_padding_zeroed()
        q, k, v = call.q, call.k, call.v
        values = v.shape[-1]
        # the fused kernels want one width: zeros change neither scores nor the columns that are kept
        width = max(q.shape[-1], values)
        q, k, v = (x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1])) for x in (q, k, v))
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        if self._maskless(call):
            out = fused(q, k, v, call, causal=call.layout.causal and call.layout.queries > 1)
            return out[..., :values]
        step = max(1, MASK // (call.layout.batch * (call.heads if call.pairs.bias else 1) * call.layout.keys))
        parts = []
        for begin in range(0, call.layout.queries, step):
            rows = slice(begin, min(begin + step, call.layout.queries))
            keys = min(call.layout.start + rows.stop, call.layout.keys) if call.layout.causal else call.layout.keys
            layout = call.layout.first(keys)
            mask = layout.visible(rows)
            bias = call.pairs.added(layout, rows)
            if bias is not None:
                mask = bias.to(wide(q).dtype).masked_fill(~mask, -torch.inf)
            parts.append(fused(q[:, :, rows], k[:, :, :keys], v[:, :, :keys], call, mask=mask))
        return torch.cat(parts, dim=2)[..., :values]

    def _maskless(self, call: Call) -> bool:
        layout = call.layout
        if call.pairs.bias or layout.k_doc is not None or layout.window is not None:
            return False
        if not layout.causal:
            return True
        last = layout.start + layout.queries == layout.keys
        return last and (layout.queries == 1 or layout.start == 0)


def fused(q: Tensor, k: Tensor, v: Tensor, call: Call, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    with sdpa_kernel(FUSED):
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=call.dropout,
            is_causal=causal,
            scale=call.scale,
            enable_gqa=call.groups != call.heads,
        )
