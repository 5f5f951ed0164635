"""adapos's attention for other models of transformers: `attn_implementation="adapos"`.

An attention function needs a mask function beside it, or models are given no mask and see the future. What a query sees
is passed on as it was asked for, causal or not, a window, padding, several texts in a row; no matrix is built of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface

from adapos.kernels import attend, weights
from adapos.layout import PADDING, Layout
from adapos.pairs import Grid, Pairs

NAME = "adapos"
FOREIGN = "this model reads masks itself, and attn_implementation='adapos' gives it none; choose 'eager'"


@dataclass(frozen=True, eq=False)
class Seen:
    """What takes the place of a mask."""

    causal: bool = False
    window: int | None = None  # a query sees keys at a distance below this
    keys: Tensor | None = None  # (B, S): False at padding; None where there is none
    given: Tensor | None = None  # (B, S): the same, as it was given
    doc: Tensor | None = None  # (B, S): the text that each token belongs to, of several in a row

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{FOREIGN} (it asks for {name!r})")

    def __radd__(self, other: Any) -> Any:
        raise ValueError(FOREIGN)

    def contiguous(self) -> Seen:
        """What transformers asks of a mask where keys have a number that is fixed."""
        raise ValueError("attn_implementation='adapos' has no caches of a fixed size; leave cache_implementation out")

    def layout(self, batch: int, queries: int, keys: int, device: torch.device) -> Layout:
        """The queries are the last keys. Ids are places: what a model knows of positions is in its queries and keys."""
        dense = Layout.dense(
            batch, queries, cached=keys - queries, device=device, causal=self.causal, window=self.window
        )
        if self.keys is None and self.doc is None:
            return dense
        doc = torch.zeros(batch, keys, dtype=torch.long, device=device) if self.doc is None else self.doc.long()
        if self.keys is not None:
            doc = torch.where(self.keys, doc, PADDING)
        doc = doc.expand(batch, -1)
        # queries of another text have no padding of these keys
        own = doc[:, keys - queries :]
        own = torch.zeros_like(own) if self.doc is None and not self.causal else own
        return Layout(dense.q_pos, dense.k_pos, own, doc, causal=self.causal, window=self.window)


def attention(
    module: nn.Module,
    query: Tensor,  # (B, H, T, D)
    key: Tensor,  # (B, G, S, D)
    value: Tensor,
    attention_mask: Seen | Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_bias: Tensor | None = None,  # (1 or B, H, T, S)
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    output_attentions: bool | None = None,
    **unused: Any,
) -> tuple[Tensor, Tensor | None]:
    """As transformers calls it: (B, T, H, E), and weights (B, H, T, S) where they are asked for."""
    if softcap is not None or s_aux is not None:
        what = "cap on scores (softcap)" if softcap is not None else "attention sinks (s_aux)"
        raise ValueError(f"attn_implementation='adapos' has no {what}, which this model asks for; choose 'eager'")
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    biases = [] if position_bias is None else [position_bias.expand(batch, heads, -1, -1)]
    if isinstance(attention_mask, Tensor):  # a matrix of the user's own
        if attention_mask.ndim != 4:
            raise ValueError(
                "a mask of one's own must have shape (batch, heads or 1, queries, keys), not "
                f"{tuple(attention_mask.shape)}"
            )
        own = attention_mask[..., :keys].expand(batch, heads, -1, -1)
        biases.append(
            torch.zeros_like(own, dtype=query.dtype).masked_fill(~own, -torch.inf) if own.dtype == torch.bool else own
        )
        attention_mask = Seen()
    if attention_mask is None:  # a model that makes no mask says by itself whether it is causal
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        attention_mask = Seen(causal=bool(causal) and queries > 1)
    shown = output_attentions or getattr(getattr(module, "config", None), "output_attentions", False)
    if not attention_mask.causal and queries != keys:
        if shown:
            raise ValueError(
                "attn_implementation='adapos' keeps no weights of attention to another text; choose 'eager' for "
                "output_attentions"
            )
        return crossed(query, key, value, attention_mask, biases, dropout, scaling), None
    layout = attention_mask.layout(batch, queries, keys, query.device)
    pairs = Pairs(tuple(Grid(bias) for bias in biases))
    out = attend(query, key, value, layout, pairs, scale=scaling, dropout=dropout)
    seen = weights(query, key, layout, pairs, scale=scaling) if shown else None
    return out.transpose(1, 2).contiguous(), seen


def crossed(
    query: Tensor, key: Tensor, value: Tensor, seen: Seen, biases: list[Tensor], dropout: float, scaling: float | None
) -> Tensor:
    """Attention to the tokens of another text, which has no positions of its own: torch's."""
    if seen.window is not None or seen.doc is not None:
        raise ValueError("attn_implementation='adapos' has no windows or packing over another text; choose 'sdpa'")
    if seen.keys is not None:
        hidden = torch.zeros_like(seen.keys, dtype=query.dtype).masked_fill(~seen.keys, -torch.inf)
        biases = [*biases, hidden[:, None, None]]
    total = sum(biases[1:], biases[0]) if biases else None
    out = F.scaled_dot_product_attention(
        query, key, value, total, dropout, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return out.transpose(1, 2).contiguous()


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., Any],
    q_offset: int | Tensor = 0,
    kv_offset: int | Tensor = 0,
    attention_mask: Tensor | None = None,
    **unused: Any,
) -> Seen:
    """What a model asks to be seen; `mask_function` is a composition of transformers' own parts."""
    facts: dict[str, Any] = {}
    for part in parts(mask_function):
        held = inspect.getclosurevars(part).nonlocals
        match part.__qualname__.partition(".")[0]:
            case "causal_mask_function":
                facts["causal"] = True
            case "bidirectional_mask_function":
                pass
            case "sliding_window_overlay":
                facts["window"] = held["sliding_window"]
            case "sliding_window_bidirectional_overlay":  # it counts the last that is seen
                facts["window"] = held["sliding_window"] + 1
            case "packed_sequence_mask_function":
                facts["doc"] = held["packed_sequence_mask"]
            case other:
                raise ValueError(
                    "attn_implementation='adapos' knows masks that are causal, bidirectional, of a window, padding and "
                    f"several texts in a row, and this model asks for {other}; choose 'sdpa'"
                )
    if facts.get("causal") and int(kv_offset) + kv_length != int(q_offset) + q_length:
        raise ValueError(
            f"attn_implementation='adapos' takes the last keys for those of the queries, and {kv_length} keys are of "
            f"{int(q_offset) + q_length} tokens: caches of a fixed size are not for it; leave cache_implementation out"
        )
    if attention_mask is not None:
        tokens = int(kv_offset) + kv_length
        if attention_mask.shape[-1] != tokens:
            raise ValueError(
                f"attention_mask must have shape ({batch_size}, {tokens}), a number for each token, not "
                f"{tuple(attention_mask.shape)}"
            )
        facts["given"] = kept = attention_mask[:, -kv_length:].bool()
        if not bool(kept.all()):
            facts["keys"] = kept
    return Seen(**facts)


def parts(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Those that must all hold."""
    if not function.__qualname__.startswith("and_masks."):
        return [function]
    return [part for each in inspect.getclosurevars(function).nonlocals["mask_functions"] for part in parts(each)]


def offer() -> None:
    """Make the name known to transformers."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, mask)
