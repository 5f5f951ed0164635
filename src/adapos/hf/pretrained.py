"""A pretrained model as it lies on disk or in a hub: safetensors, or a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer


def pretrained(source: str, **named: Any) -> tuple[Any, Any]:
    """The model and its tokenizer, or None where it has none. No code of a hub is run, and no pickle is read."""
    given: dict[str, Any] = {"trust_remote_code": False}
    path = Path(source)
    if path.suffix == ".gguf":
        from transformers import GgufConfig

        source, given["gguf_file"] = str(path.parent), path.name
        loading = {"quantization_config": GgufConfig(dequantize=True)}
    else:
        loading = {"use_safetensors": True}
    try:
        model = AutoModelForCausalLM.from_pretrained(source, **given, **loading, **named)
    except Exception as problem:  # of the network, the hub and the files: of any kind
        raise ValueError(f"{source} cannot be loaded: {_first(problem)}") from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **given)
    except Exception:  # a model may have none
        tokenizer = None
    return model.eval(), tokenizer


def _first(problem: Exception) -> str:
    return " ".join(str(problem).split("\n")[0].split()) or type(problem).__name__
