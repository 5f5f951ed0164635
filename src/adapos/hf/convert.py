"""Another encoding in a pretrained model."""

from __future__ import annotations

from typing import Any

from adapos.hf.families import NAMES, Family, family
from adapos.hf.travel import install


def convert(model: Any, encoding: str) -> Any:
    """Put an encoding into a pretrained model, in place, and return it.

    `tape` and `rope + dape(zero=True)` start as the model was, with its own angles; others change what it says until it
    is trained on.
    """
    known = checked(model)
    if any(hasattr(module, "base_layer") for module in model.modules()):
        raise ValueError(f"this {type(model).__name__} holds adapters; convert it before they are added, or merge them")
    body = model.model if type(model) is known.causal else model
    install(body, encoding)
    config = model.config
    config.__class__ = known.new_config
    config.encoding, config.model_type = encoding, known.new_config.model_type
    body.__class__ = known.new_model
    if body is not model:
        model.__class__ = known.new_causal
    config.architectures = [type(model).__name__]
    return model


def checked(model: Any) -> Family:
    """The family of a model that can be converted."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind is None:
        raise ValueError(f"convert takes a model of transformers, not a {type(model).__name__}")
    if kind == "adapos" or kind.startswith("adapos_"):
        raise ValueError(
            f"this {type(model).__name__} has the encoding {model.config.encoding!r} already; convert the model it was"
        )
    if kind not in NAMES:
        raise ValueError(
            f"{type(model).__name__} cannot be converted: {unfit(model)}; adapos converts {', '.join(NAMES)}"
        )
    known = family(kind)
    if type(model) not in (known.model, known.causal):
        raise ValueError(
            f"a {type(model).__name__} cannot be converted: it must be a {known.causal.__name__} or a "
            f"{known.model.__name__}, without adapters around it"
        )
    return known


def unfit(model: Any) -> str:
    """Which part of a model is not what an encoding needs."""
    body = getattr(model, "model", model)
    if not hasattr(body, "layers"):
        return "it has no list of layers under `model.layers`"
    layer = body.layers[0]
    attention = getattr(layer, "self_attn", None)
    if attention is None:
        return f"its layers ({type(layer).__name__}) have no self_attn"
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        if not hasattr(attention, name):
            return f"its attention ({type(attention).__name__}) has no {name}"
    if not hasattr(body, "rotary_emb"):
        return "it has no rotary embedding (`rotary_emb`), through which positions reach the layers"
    return f"its attention ({type(attention).__name__}) is none of those that were checked"
