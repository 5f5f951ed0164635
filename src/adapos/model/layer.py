"""One layer of self-attention that calls the hooks of an encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from adapos.encoding import Keys, PositionalEncoding, Shape, Tokens
from adapos.kernels import attend, named, weights
from adapos.layout import Layout, count
from adapos.model.cache import Cache
from adapos.registry import build, label


class Attention(nn.Module):
    """Projections, the encoding's hooks in their order, attention. `index` is the layer's number."""

    def __init__(self, shape: Shape, index: int, backend: str = "auto", dropout: float = 0.0) -> None:
        super().__init__()
        if backend != "auto":
            named(backend)
        self.shape, self.index, self.backend, self.dropout = shape, index, backend, dropout
        self.q = nn.Linear(shape.width, shape.heads * shape.head_width, bias=False)
        self.k = nn.Linear(shape.width, shape.kv_heads * shape.head_width, bias=False)
        self.v = nn.Linear(shape.width, shape.kv_heads * shape.head_width, bias=False)
        self.out = nn.Linear(shape.heads * shape.head_width, shape.width, bias=False)

    def forward(
        self,
        x: Tensor,
        encoding: PositionalEncoding,
        layout: Layout,
        state: Any,
        cache: Cache | None = None,
        watched: list[Tensor] | None = None,
    ) -> tuple[Tensor, Any]:
        """Where `watched` is a list, attention runs through the reference, and its weights (B, H, T, S) go there."""
        width = (-1, self.shape.head_width)
        q, k, v = (
            project(x).unflatten(-1, width).transpose(1, 2) for project in (self.q, self.k, self.v)
        )  # (B, ., T, D)
        out, state = attended(
            encoding,
            self.index,
            Tokens(x, q, k, v),
            layout,
            state,
            cache,
            dropout=self.dropout if self.training else 0.0,
            backend=self.backend if watched is None else "reference",
            watched=watched,
        )
        return self.out(out), state


def attended(
    encoding: PositionalEncoding,
    layer: int,
    t: Tokens,
    layout: Layout,
    state: Any,
    cache: Cache | None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
    watched: list[Tensor] | None = None,
) -> tuple[Tensor, Any]:
    """The encoding's hooks in their order around attention: (B, T, H E), and the state. Weights go to `watched`."""
    # positions are never computed in half precision
    with torch.autocast(t.x.device.type, enabled=False):
        t = encoding.tokens(layer, t, layout.q_pos, state)
        keys = Keys(t.k, t.v, t.extra) if cache is None else cache.append(layer, t)
        pairs = encoding.pairs(layer, t.q, keys, layout)
        out = attend(t.q, keys.k, keys.v, layout, pairs, scale=scale, dropout=dropout, backend=backend)
        if watched is not None:
            watched.append(weights(t.q, keys.k, layout, pairs, scale=scale))
        out, state = encoding.after_attention(layer, out, state)
    return out.transpose(1, 2).flatten(2), state


def placed(
    shape: Sequence[int],
    pos: Tensor | None,
    doc: Tensor | None,
    cache: Cache | None,
    *,
    device: torch.device,
    causal: bool = True,
    window: int | None = None,
) -> Layout:
    """Where tokens of shape (B, T) are, behind those in the cache."""
    batch, length = shape
    if cache is not None:
        if not causal:
            raise ValueError("a cache is for causal attention: with causal=False earlier tokens would see later ones")
        return cache.layout(batch, length, pos, doc, device=device, window=window)
    if pos is None and doc is None:
        return Layout.dense(batch, length, device=device, causal=causal, window=window)
    if pos is None:
        assert doc is not None
        pos = count(doc)
    return Layout(pos, pos, doc, doc, causal=causal, window=window)


class SelfAttention(nn.Module):
    """Self-attention for a model of your own: `y = layer(x)`, x and y of shape (batch, tokens, width).

    Give `layout` for padding, packing or ids of your own, `cache` to decode. Encodings whose state travels
    through the layers need a Decoder. An encoding that adds to embeddings adds to this layer's input.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        encoding: str = "kerple + dape",
        kv_heads: int | None = None,
        *,
        head_width: int | None = None,
        dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        shape = Shape(layers=1, width=width, heads=heads, kv_heads=kv_heads, head_width=head_width)
        self.encoding = build(encoding, shape)
        if self.encoding.travels:
            raise ValueError(
                f"the state of {encoding!r} travels from layer to layer, and SelfAttention is one layer; "
                "use adapos.model.Decoder"
            )
        self.attention = Attention(shape, 0, backend, dropout)

    def forward(
        self, x: Tensor, layout: Layout | None = None, *, causal: bool | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Causal unless `causal=False`; a layout or a cache knows that itself."""
        if x.ndim != 3 or x.shape[2] != self.attention.shape.width:
            raise ValueError(f"x must have shape (batch, tokens, {self.attention.shape.width}), not {tuple(x.shape)}")
        if layout is not None and cache is not None:
            raise ValueError("give a layout or a cache, not both: the cache knows where the new tokens are")
        if causal is not None and (layout is not None or cache is not None):
            raise ValueError(
                "give causal, or a layout or cache that knows it: Layout.dense(batch, length, causal=False)"
            )
        batch, length = x.shape[:2]
        if cache is not None:
            layout = cache.layout(batch, length, device=x.device)
        elif layout is None:
            layout = Layout.dense(batch, length, causal=causal is not False, device=x.device)
        allowed(self.encoding, layout, cache)
        x, layout, state = begun(self.encoding, x, layout)
        out, _ = self.attention(x, self.encoding, layout, state, cache)
        if cache is not None:
            cache.commit(layout)
        return out

    def extra_repr(self) -> str:
        return f"encoding={label(self.encoding)!r}"


def allowed(encoding: PositionalEncoding, layout: Layout, cache: Cache | None) -> None:
    """Refuse what the encoding does not promise, before anything is computed."""
    promises = encoding.promises
    if cache is not None and not promises.cacheable:
        raise ValueError(
            f"{label(encoding)!r} cannot decode with a cache: {promises.because}; use_cache=False decodes without"
        )
    if promises.causal_only and not layout.causal:
        raise ValueError(f"{label(encoding)!r} is for causal attention only: {promises.because}")


def begun(encoding: PositionalEncoding, x: Tensor, layout: Layout) -> tuple[Tensor, Layout, Any]:
    """The first hook, and the layout with the ids that it chose."""
    x, pos, state = encoding.begin(x, layout.q_pos)
    if pos is not layout.q_pos:
        if layout.keys != layout.queries:
            raise ValueError(f"{label(encoding)!r} renumbers tokens, which cannot be done once some are cached")
        layout = Layout(pos, pos, layout.q_doc, layout.k_doc, causal=layout.causal, window=layout.window)
    return x, layout, state
