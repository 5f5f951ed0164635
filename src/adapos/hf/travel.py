"""How an encoding goes through a model of transformers: what its rotary embedding returns is carried to every layer,
and that is where positions live.

  rotary_emb      begin: a Journey, in place of cosines and sines
  self_attn       tokens, pairs, after_attention
  layer           after_mlp, where a state travels
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from adapos.encoding import Compose, PositionalEncoding, Promises, Tokens
from adapos.hf.attention import NAME, Seen
from adapos.hf.cache import PositionsCache
from adapos.hf.config import shape_in
from adapos.hf.inputs import documents_and_ids, ids_of_all
from adapos.layout import Layout
from adapos.model import Cache
from adapos.model.layer import allowed, attended, placed
from adapos.registry import build, find, label, parameters, parse, written

TURNING = ("base", "schedule", "factor", "trained", "late")  # parameters that say what angles are
CHANGING = ("dynamic", "longrope")  # kinds of angles that are others in a longer text


class Journey:
    """One pass: where tokens are, and the state that reaches each layer.

    States are kept by layer and never changed, so that a layer can be computed again in the backward pass.
    """

    def __init__(self, encoding: PositionalEncoding, x: Tensor, position_ids: Tensor) -> None:
        self.encoding = encoding
        self.ids = ids_of_all(position_ids, *x.shape[:2])
        _, self.pos, begun = encoding.begin(x, self.ids)
        self.states: dict[int, Any] = {0: begun}
        self.between: dict[int, Any] = {}  # after attention, before the MLP
        self.layout: Layout | None = None

    def where(self, mask: Any, past: PositionsCache | None, window: int | None) -> Layout:
        """The layout, made in the first layer, with the window of each."""
        if self.layout is None:
            cache = None if past is None else past.tokens
            self.layout = self._placed(mask, cache)
            allowed(self.encoding, self.layout, cache)
            if past is not None:
                past.pending = self.layout
        return self.layout if window is None else replace(self.layout, window=window, known=True)

    def _placed(self, mask: Any, cache: Cache | None) -> Layout:
        if mask is not None and not isinstance(mask, Seen):
            raise ValueError(
                f"the positions of {label(self.encoding)!r} go by masks of shape (batch, tokens); set "
                "attn_implementation='adapos' and give no mask of another shape"
            )
        batch, length = self.ids.shape
        padding = None if mask is None else mask.given
        packed = mask is not None and mask.doc is not None  # transformers has found it so
        doc, pos = documents_and_ids(padding, self.ids, batch, length, cache, self.ids.device, packed=packed)
        if self.pos is not self.ids:  # drawn anew
            pos = self.pos
        causal = mask is None or mask.causal
        return placed((batch, length), pos, doc, cache, device=self.ids.device, causal=causal)

    def leave(self, layer: int, x: Tensor, y: Tensor) -> None:
        """The MLP of a layer made y of x."""
        with torch.autocast(y.device.type, enabled=False):
            self.states[layer + 1] = self.encoding.after_mlp(layer, x, y, self.between.pop(layer))


class Positions(nn.Module):
    """In the place of a model's rotary embedding, which it keeps."""

    kept = "rotary"

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        setattr(self, self.kept, rotary)
        self.held: tuple[PositionalEncoding, ...] = ()  # no part of this module: its weights are the model's
        self.config: tuple[Any, ...] = ()  # of the model, which is changed in place
        self.implementation = ""  # of attention, before

    @property
    def own(self) -> Any:
        """The model's rotary embedding."""
        return getattr(self, self.kept)

    @property
    def encoding(self) -> PositionalEncoding | None:
        """The one that is at work; None where the model's own positions are."""
        return self.held[0] if self.held else None

    def attends(self, *, adapos: bool) -> None:
        """By which attention the model goes: adapos's, or the one that it was loaded with."""
        (config,) = self.config
        config._attn_implementation = NAME if adapos else self.implementation

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

    def turn(self, pos: Tensor, x: Tensor, *, sized: bool = True, training: bool = False) -> tuple[Tensor, Tensor]:
        """(B, T, D / 2) each. Without `sized` they are no longer than 1, whatever the model scales them by."""
        (rotary,) = self.rotary
        dtype = torch.promote_types(x.dtype, torch.float32)
        cos, sin = (part[..., : self.width // 2].to(dtype) for part in rotary(x.float(), pos))
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
            if hasattr(self, "q_norm"):  # in single precision under autocast
                q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
            layout = journey.where(attention_mask, past_key_values, self.window)
            encoding, shown = journey.encoding, unused.get("output_attentions") or self.config.output_attentions
            watched: list[Tensor] | None = [] if shown else None
            out, journey.between[layer] = attended(
                encoding,
                layer,
                Tokens(hidden_states, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)),
                layout,
                journey.states.get(layer, journey.states[0]),
                None if past_key_values is None else past_key_values.tokens,
                scale=self.scaling,
                dropout=self.attention_dropout if self.training else 0.0,
                watched=watched,
            )
            return self.o_proj(out.to(hidden_states.dtype)), watched[0] if watched else None

    return named(NewAttention, family)


@cache
def converted_layer(family: Any) -> Any:
    """A family's layer that hands what its MLP says to a state that travels."""

    class NewLayer(family):
        def forward(
            self, hidden_states: Tensor, attention_mask: Any = None, *, position_embeddings: Any = None, **given: Any
        ) -> Tensor:
            given |= {"attention_mask": attention_mask, "position_embeddings": position_embeddings}
            if not isinstance(position_embeddings, Journey) or not position_embeddings.encoding.travels:
                return super().forward(hidden_states, **given)
            x = hidden_states
            y, _ = self.self_attn(self.input_layernorm(x), **given)
            x = x + y
            h = self.post_attention_layernorm(x)
            y = self.mlp(h)
            position_embeddings.leave(self.self_attn.layer_idx, h, y)
            return x + y

    return named(NewLayer, family)


def named(cls: Any, family: Any) -> Any:
    """A class after the one it changes, where pickle looks for it."""
    cls.__name__ = cls.__qualname__ = f"Adapos{family.__name__}"
    globals()[cls.__name__] = cls
    return cls


def inside(spec: str, config: Any) -> PositionalEncoding:
    """An encoding that has a place in a pretrained model of a configuration."""
    encoding = build(on_its_base(spec, config), shape_in(config))
    if encoding.adds:
        raise ValueError(
            f"{spec!r} adds to the embeddings, which a pretrained model has learned without; choose an encoding of "
            "queries, keys or pairs"
        )
    return encoding


def on_its_base(spec: str, config: Any) -> str:
    """A spec that says how angles are stretched, with the base that the model was trained with."""
    if not spec:
        raise ValueError("the configuration names no encoding, as that of every converted model does: 'encoding'")
    parts = parse(spec)
    for name, given in parts:
        if "base" in given or not set(given) & set(TURNING) or "base" not in parameters(find(name)):
            continue
        kind = config.rope_parameters["rope_type"]
        if kind != "default":
            raise ValueError(
                f"{spec!r} stretches angles that the model stretches already ({kind}); give base too, such as "
                "base=10000.0, for angles of your own"
            )
        given["base"] = float(config.rope_parameters["rope_theta"])
    return written(parts)


def fitting(model: Any, spec: str) -> PositionalEncoding:
    """An encoding for a model without a head, with its angles where the spec gives no others."""
    encoding, given = inside(spec, model.config), dict(parse(spec))
    rotary: Any = getattr(model.rotary_emb, "own", model.rotary_emb)
    part: Any
    for part in encoding if isinstance(encoding, Compose) else [encoding]:
        if hasattr(part, "angles") and not set(given[part.name]) & set(TURNING):
            part.angles = Angles(rotary, part.angles)
    if not any(x.is_meta for x in encoding.parameters()):  # weights that are yet to be loaded come to their place then
        encoding.to(next(model.parameters()).device)
    return encoding.train(model.training)


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
        families: Any = type(attention), type(block)
        attention.__class__, block.__class__ = converted(families[0]), converted_layer(families[1])
    positions.config, positions.implementation = (model.config,), model.config._attn_implementation
    positions.attends(adapos=True)


def remove(model: Any) -> None:
    """The model as it was."""
    positions = model.rotary_emb
    model.rotary_emb = positions.own
    positions.attends(adapos=False)
    for block in model.layers:
        block.self_attn.__class__ = type(block.self_attn).__bases__[0]
        block.__class__ = type(block).__bases__[0]
