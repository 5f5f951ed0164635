"""A pretrained model of transformers as the bench trains and examines it.

What is done to it is written like an encoding: `original` is the model as it is, `tape` an encoding put into it,
`lora(rank=8)` low-rank updates with its own positions, `tape + lora(rank=8)` both. All else stays frozen.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from adapos import files
from adapos.encoding import Shape
from adapos.layout import PADDING, count
from adapos.registry import at_least, check_known, parse, written

ORIGINAL = "original"
LORA = "lora"


@dataclass(frozen=True)
class Method:
    """What is done to a model."""

    encoding: str | None = None  # None: its own positions
    rank: int = 0  # of low-rank updates; 0: none

    def __str__(self) -> str:
        parts = [self.encoding, f"{LORA}(rank={self.rank})" if self.rank else None]
        return " + ".join(filter(None, parts)) or ORIGINAL


def method(text: str, config: Any) -> Method:
    """What a spec says to do to a model of a configuration."""
    parts = parse(text)
    if parts == [(ORIGINAL, {})]:
        return Method()
    rank = 0
    for name, given in parts:
        if name == ORIGINAL:
            raise ValueError(f"{ORIGINAL!r} is the model as it is, and stands alone, not in {text!r}")
        if name == LORA:
            check_known(LORA, given, {"rank": 8})
            rank = given.get("rank", 8)
            at_least(LORA, "rank", rank, 1)
    # in the words that were given: parameters that are not named are the model's own
    said = written(part for part in parts if part[0] != LORA)
    if said:
        from adapos.hf.travel import inside

        inside(said, config)
    return Method(said or None, rank)


def shape_of(name: str) -> Shape:
    """Of a model's configuration."""
    from adapos.hf.config import shape_in

    return shape_in(configuration(name))


@cache
def checksum(name: str) -> str:
    """Of a model's files; of one in a hub, its revision."""
    path = Path(name)
    if not path.exists():
        return str(configuration(name)._commit_hash)
    held = [path] if path.is_file() else sorted([path / "config.json", *path.glob("*.safetensors")])
    return hashlib.sha256(json.dumps([(each.name, files.digest(each)) for each in held]).encode()).hexdigest()


@cache
def configuration(name: str) -> Any:
    from transformers import AutoConfig

    from adapos.hf.families import NAMES
    from adapos.hf.pretrained import source, unreached

    place, given = source(name)
    try:
        config = AutoConfig.from_pretrained(place, **given)
    except Exception as problem:  # of the network, the hub and the files: of any kind
        raise unreached(name, problem) from None
    if config.model_type.startswith("adapos"):
        raise ValueError(f"{name} has the encoding {config.encoding!r} already; give the model that it was")
    if config.model_type not in NAMES:
        raise ValueError(
            f"{name} is a {config.model_type}, and adapos trains inside {', '.join(NAMES)}; choose another"
        )
    return config


class Pretrained(nn.Module):
    """With what the bench asks of a Decoder."""

    def __init__(self, name: str, done: Method, vocabulary: int) -> None:
        super().__init__()
        import adapos.hf

        model, _ = adapos.hf.pretrained(name, dtype=torch.float32)
        if vocabulary > model.config.vocab_size:
            raise ValueError(f"the task has {vocabulary} tokens, and {name} knows {model.config.vocab_size}")
        self.vocabulary = model.config.vocab_size
        model.requires_grad_(False)
        self.model: Any = adapted(model, done)

    @property
    def inner(self) -> Any:
        """The model of transformers, whatever is around it."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    @property
    def blocks(self) -> Any:
        return self.inner.model.layers

    @property
    def head(self) -> nn.Module:
        return self.inner.lm_head

    @property
    def recomputes(self) -> bool:
        return self.inner.is_gradient_checkpointing

    @recomputes.setter
    def recomputes(self, on: bool) -> None:
        if on:
            self.inner.gradient_checkpointing_enable({"use_reentrant": False})

    def forward(
        self, tokens: Tensor, *, doc: Tensor | None = None, causal: bool = True, last: int | None = None
    ) -> Tensor:
        x = self.hidden(tokens, doc=doc, causal=causal)
        return self.head(x if last is None else x[:, -last:])

    def hidden(self, tokens: Tensor, *, doc: Tensor | None = None, causal: bool = True) -> Tensor:
        if not causal:
            raise ValueError("a pretrained language model is causal; choose a task that is read in one direction")
        given: dict[str, Any] = {}
        if doc is not None:
            given["position_ids"] = count(doc)
            if bool((doc == PADDING).any()):
                if bool((doc > 0).any()):
                    raise ValueError("a pretrained model reads several texts in a row, or texts with padding, not both")
                given["attention_mask"] = (doc != PADDING).long()
        return self.inner.model(tokens, use_cache=False, **given).last_hidden_state

    def generate(self, tokens: Tensor, new: int, *, doc: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(tokens) if doc is None else (doc != PADDING).long()
        # an answer ends where the exam says so, not where the model would
        how = {
            "attention_mask": mask,
            "max_new_tokens": new,
            "min_new_tokens": new,
            "do_sample": False,
            "pad_token_id": 0,
        }
        return self.inner.generate(tokens, **how)


def adapted(model: Any, done: Method) -> Any:
    if done == Method():
        return model
    from peft import LoraConfig, get_peft_model

    from adapos.hf.peft import PROJECTIONS, AdaposPeftConfig

    if done.encoding is None:
        return get_peft_model(
            model, LoraConfig(r=done.rank, lora_alpha=2 * done.rank, target_modules=list(PROJECTIONS))
        )
    config = AdaposPeftConfig(encoding=done.encoding, r=done.rank, lora_alpha=2 * (done.rank or 1))
    return get_peft_model(model, config)
