"""How an encoding goes through a model of transformers: what its rotary embedding returns is carried to every layer,
and that is where positions live.

  rotary_emb      begin: a Journey, in place of cosines and sines
  self_attn       tokens, pairs, after_attention
  mlp             after_mlp, by a hook
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from adapos.encoding import Compose, PositionalEncoding, Promises, Shape, Tokens
from adapos.hf.attention import NAME, Seen
from adapos.hf.config import shape_in
from adapos.hf.inputs import documents_and_ids
from adapos.layout import Layout
from adapos.model import Cache
from adapos.model.layer import allowed, attended, placed
from adapos.registry import build, label, parse

TURNING = ("base", "schedule", "factor", "trained")  # parameters that say what angles are
CHANGING = ("dynamic", "longrope")  # kinds of angles that are others in a longer text


class Journey:
    """One pass: where tokens are, and the state that reaches each layer.

    States are kept by layer and never changed, so that a layer can be computed again in the backward pass.
    """

    def __init__(self, encoding: PositionalEncoding, x: Tensor, position_ids: Tensor) -> None:
        if position_ids.ndim != 2:
            raise ValueError(f"position_ids must have shape (batch, tokens), not {tuple(position_ids.shape)}")
        self.encoding = encoding
        self.ids = position_ids.expand(x.shape[0], -1)
        _, self.pos, begun = encoding.begin(x, self.ids)
        self.states: dict[int, Any] = {0: begun}
        self.between: dict[int, Any] = {}  # after attention, before the MLP
        self.layout: Layout | None = None

    def where(self, mask: Any, cache: Cache | None, window: int | None) -> Layout:
        """The layout, made in the first layer, with the window of each."""
        if self.layout is None:
            self.layout = self._placed(mask, cache)
            allowed(self.encoding, self.layout, cache)
        return self.layout if window is None else replace(self.layout, window=window, known=True)

    def _placed(self, mask: Any, cache: Cache | None) -> Layout:
        if mask is not None and not isinstance(mask, Seen):
            raise ValueError(
                f"the positions of {label(self.encoding)!r} go by masks of shape (batch, tokens); set "
                "attn_implementation='adapos' and give no mask of another shape"
            )
        batch, length = self.ids.shape
        padding = None if mask is None else mask.keys
        packed = mask is not None and mask.doc is not None  # transformers has found it so
        doc, pos = documents_and_ids(padding, self.ids, batch, length, cache, self.ids.device, packed=packed)
        if self.pos is not self.ids:  # drawn anew
            pos = self.pos
        causal = mask is None or mask.causal
        return placed((batch, length), pos, doc, cache, device=self.ids.device, causal=causal)


class Positions(nn.Module):
    """In the place of a model's rotary embedding, which it keeps."""

    kept = "rotary"

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        setattr(self, self.kept, rotary)
        self.held: tuple[PositionalEncoding, ...] = ()  # no part of this module: its weights are the model's

    @property
    def own(self) -> Any:
        """The model's rotary embedding."""
        return getattr(self, self.kept)

    @property
    def encoding(self) -> PositionalEncoding | None:
        """The one that is at work; None where the model's own positions are."""
        return self.held[0] if self.held else None

    def forward(self, x: Tensor, position_ids: Tensor) -> Any:
        encoding = self.encoding
        return self.own(x, position_ids) if encoding is None else Journey(encoding, x, position_ids)


class Angles:
    """The angles of a pretrained model, whatever its settings make of them, as `rope` and `tape` ask for them."""

    def __init__(self, rotary: Any, like: Any) -> None:
        self.rotary, self.promises, self.width = (rotary,), like.promises, like.width
        if rotary.rope_type in CHANGING:
            why = (
                f"the model's angles ({rotary.rope_type}) change with the length of a text, and cached keys keep theirs"
            )
            self.promises = Promises(relative=False, cacheable=False, because=why)

    def turn(self, pos: Tensor, x: Tensor, *, sized: bool = True) -> tuple[Tensor, Tensor]:
        """(B, T, D / 2) each. Without `sized` they are no longer than 1, whatever the model scales them by."""
        (rotary,) = self.rotary
        cos, sin = (part[..., : self.width // 2] for part in rotary(x.float(), pos))
        scale = getattr(rotary, "attention_scaling", 1.0)
        return (cos, sin) if sized or scale == 1.0 else (cos / scale, sin / scale)


@cache
def converted(family: Any) -> Any:
    """A family's attention with positions of ours."""

    class NewAttention(family):
        def forward(
            self,
            hidden_states: Tensor,
            position_embeddings: Any,
            attention_mask: Any = None,
            past_key_values: Any = None,
            **unused: Any,
        ) -> tuple[Tensor, Tensor | None]:
            journey, layer = position_embeddings, self.layer_idx
            if not isinstance(journey, Journey):  # the model's own
                return super().forward(
                    hidden_states, position_embeddings, attention_mask, past_key_values=past_key_values, **unused
                )
            width = (-1, self.head_dim)
            q, k, v = (
                project(hidden_states).unflatten(-1, width) for project in (self.q_proj, self.k_proj, self.v_proj)
            )
            if hasattr(self, "q_norm"):
                q, k = self.q_norm(q), self.k_norm(k)
            cache = None if past_key_values is None else past_key_values.tokens
            layout = journey.where(attention_mask, cache, self.window)
            encoding, shown = journey.encoding, unused.get("output_attentions") or self.config.output_attentions
            watched: list[Tensor] | None = [] if shown else None
            out, journey.between[layer] = attended(
                encoding,
                layer,
                Tokens(hidden_states, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)),
                layout,
                journey.states.get(layer, journey.states[0]),
                cache,
                scale=self.scaling,
                dropout=self.attention_dropout if self.training else 0.0,
                watched=watched,
            )
            if encoding.travels:
                self.journey = journey  # for the hook of the MLP that follows
            if cache is not None and layer == encoding.shape.layers - 1:
                cache.commit(journey.layout)
            return self.o_proj(out.to(hidden_states.dtype)), watched[0] if watched else None

    NewAttention.__name__ = NewAttention.__qualname__ = f"Adapos{family.__name__}"
    globals()[NewAttention.__name__] = NewAttention  # where pickle looks for it
    return NewAttention


def inside(spec: str, shape: Shape) -> PositionalEncoding:
    """An encoding that has a place in a pretrained model."""
    encoding = build(spec, shape)
    if encoding.adds:
        raise ValueError(
            f"{spec!r} adds to the embeddings, which a pretrained model has learned without; choose an encoding of "
            "queries, keys or pairs"
        )
    return encoding


def fitting(model: Any, spec: str) -> PositionalEncoding:
    """An encoding for a model without a head, with its angles where the spec gives no others."""
    rotary = model.rotary_emb
    encoding = inside(spec, shape_in(model.config))
    given = dict(parse(spec))
    part: Any
    for part in encoding if isinstance(encoding, Compose) else [encoding]:
        if hasattr(part, "angles") and not set(given[part.name]) & set(TURNING):
            part.angles = Angles(getattr(rotary, "own", rotary), part.angles)
    return encoding.to(next(model.parameters()).device).train(model.training)


def install(model: Any, spec: str) -> None:
    """Put an encoding into a model without a head, in place."""
    encoding = fitting(model, spec)
    model.encoding = encoding
    place(model, Positions(model.rotary_emb))
    model.rotary_emb.held = (encoding,)


def place(model: Any, positions: Positions) -> None:
    """Let the layers take their positions from there."""
    model.rotary_emb = positions
    for block in model.layers:
        attention = block.self_attn
        # Mistral's is that of all layers
        of_all = model.config.sliding_window if model.config.model_type.endswith("mistral") else None
        attention.window = getattr(attention, "sliding_window", of_all)
        attention.journey = None
        family: Any = type(attention)
        attention.__class__ = converted(family)
        attention.after_mlp = block.mlp.register_forward_hook(partial(_after_mlp, attention))
    positions.implementation = model.config._attn_implementation
    model.config._attn_implementation = NAME


def remove(model: Any) -> None:
    """The model as it was."""
    positions = model.rotary_emb
    model.rotary_emb = positions.own
    model.config._attn_implementation = positions.implementation
    for block in model.layers:
        block.self_attn.after_mlp.remove()
        block.self_attn.__class__ = type(block.self_attn).__bases__[0]


def _after_mlp(attention: Any, module: nn.Module, given: tuple[Tensor, ...], y: Tensor) -> None:
    journey, layer, attention.journey = attention.journey, attention.layer_idx, None
    if journey is None:
        return
    with torch.autocast(y.device.type, enabled=False):
        state = journey.encoding.after_mlp(layer, given[0], y, journey.between[layer])
    journey.states[layer + 1] = state
