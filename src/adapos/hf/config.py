"""The configuration of a decoder of ours, as transformers stores it."""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from adapos.encoding import PositionalEncoding, Shape
from adapos.registry import at_least, build, build_layers


def shape_in(config: Any) -> Shape:
    """Of a configuration that names its sizes as Llama's does."""
    return Shape(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_width=getattr(config, "head_dim", None),
    )


@strict
class AdaposConfig(PreTrainedConfig):
    """A decoder with any encoding: `encoding` is a spec such as "kerple + dape(kernel=3)", or a list of one per layer.

    `backend` runs the attention ("auto": the best that can). `window` bounds how far back a token sees. All other names
    are those of transformers' Llama.
    """

    model_type = "adapos"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    vocab_size: int = 256
    encoding: str | list[str] = "kerple + dape"
    hidden_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    mlp: str = "swiglu"
    window: int | None = None
    attention_dropout: float = 0.0
    backend: str = "auto"
    use_cache: bool = True
    tie_word_embeddings: bool = True
    initializer_range: float = 0.02
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for name in kwargs:
            if close := get_close_matches(name, [each.name for each in fields(self)], 1, 0.85):
                raise ValueError(f"AdaposConfig has no {name!r}; did you mean {close[0]!r}?")
        super().__post_init__(**kwargs)
        if not isinstance(self.encoding, str | list):
            raise ValueError(f"encoding must be a spec, or a list of one for each layer, not {self.encoding!r}")
        if self.window is not None:
            at_least("AdaposConfig", "window", self.window, 1)
        self.positions()  # a spec that does not parse is refused here, before any weights are made

    @property
    def shape(self) -> Shape:
        return shape_in(self)

    def positions(self) -> PositionalEncoding:
        if isinstance(self.encoding, str):
            return build(self.encoding, self.shape)
        return build_layers(self.encoding, self.shape)
