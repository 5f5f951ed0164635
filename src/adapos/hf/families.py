"""The model families of transformers that encodings are put into, each as a subclass of its own classes.

A converted model is its family's model with other attention layers: no file of transformers is copied, its weights keep
their names, and those of the encoding are added as `model.encoding.*`. Its classes have names of their own, so that
the Auto classes never load it as what it was.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from adapos.hf.cache import Grows, taken
from adapos.hf.loading import Exact
from adapos.hf.travel import converted, converted_layer, install
from adapos.registry import label

NAMES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


class Converted(Exact):
    """Mixed into a family's model without a head."""

    spare = ("lm_head.",)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        install(self, config.encoding)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **named: Any,
    ) -> Any:
        encoding = self.rotary_emb.encoding
        named |= {"attention_mask": attention_mask, "position_ids": position_ids, "inputs_embeds": inputs_embeds}
        if encoding is None:  # an adapter that is off
            return super().forward(input_ids, past_key_values=past_key_values, use_cache=use_cache, **named)
        if use_cache is None:
            use_cache = self.config.use_cache and encoding.promises.cacheable and not self.training
        recompute = getattr(self.layers[0], "_gradient_checkpointing_func", None)
        recomputed = self.training and torch.is_grad_enabled()
        if recomputed and encoding.travels and getattr(recompute, "keywords", {}).get("use_reentrant"):
            raise ValueError(
                f"the state of {label(encoding)!r} travels from layer to layer, and reentrant checkpointing loses its "
                'gradient; give gradient_checkpointing_enable({"use_reentrant": False})'
            )
        if use_cache or past_key_values is not None:
            past_key_values = taken(past_key_values, label(encoding))
        found = super().forward(input_ids, past_key_values=past_key_values, use_cache=use_cache, **named)
        if past_key_values is not None:
            past_key_values.commit()
        return found


class ConvertedForCausalLM(Grows, Exact):
    """Mixed into a family's model with a head."""

    body: type[nn.Module]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.__class__ = self.body
        install(self.model, config.encoding)


class Family(NamedTuple):
    """The classes of a family as they are, and as they are converted."""

    config: type
    model: type
    causal: type
    new_config: type
    new_model: type
    new_causal: type


@cache
def family(name: str) -> Family:
    prefix, place = NAMES[name], import_module(f"transformers.models.{name}")
    config, model, causal = (getattr(place, prefix + kind) for kind in ("Config", "Model", "ForCausalLM"))

    @strict
    class NewConfig(config):
        model_type = f"adapos_{name}"
        encoding: str = ""

    class NewModel(Converted, model):
        config_class = NewConfig

    class NewCausal(ConvertedForCausalLM, causal):
        config_class = NewConfig
        body = NewModel

    for cls, kind in ((NewConfig, "Config"), (NewModel, "Model"), (NewCausal, "ForCausalLM")):
        cls.__name__ = cls.__qualname__ = f"Adapos{prefix}{kind}"
        globals()[cls.__name__] = cls  # where pickle looks for it
    modeling = import_module(f"transformers.models.{name}.modeling_{name}")
    converted(getattr(modeling, f"{prefix}Attention"))
    converted_layer(getattr(modeling, f"{prefix}DecoderLayer"))
    # how transformers finds what output_attentions and output_hidden_states are taken from
    _CAN_RECORD_REGISTRY[str(NewModel)] = model._can_record_outputs
    return Family(config, model, causal, NewConfig, NewModel, NewCausal)


def offer() -> None:
    """Make converted models known to the Auto classes."""
    for name in NAMES:
        known = family(name)
        AutoConfig.register(f"adapos_{name}", known.new_config, exist_ok=True)
        AutoModel.register(known.new_config, known.new_model, exist_ok=True)
        AutoModelForCausalLM.register(known.new_config, known.new_causal, exist_ok=True)
