"""A pretrained model as it lies on disk or in a hub: safetensors, or a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_gguf_pytorch_utils
from transformers.utils import logging

LONG = 300  # letters


def source(name: str) -> tuple[str, dict[str, Any]]:
    """Where transformers finds a model, its configuration and its tokenizer. No code of a hub is run."""
    given: dict[str, Any] = {"trust_remote_code": False}
    path = Path(name)
    return (str(path.parent), {**given, "gguf_file": path.name}) if path.suffix == ".gguf" else (name, given)


def pretrained(name: str, **named: Any) -> tuple[Any, Any]:
    """The model and its tokenizer, or None where it has none. No pickle is read."""
    place, given = source(name)
    loading: dict[str, Any] = {"use_safetensors": True}
    if "gguf_file" in given:
        from transformers import GgufConfig

        loading = {"quantization_config": GgufConfig(dequantize=True)}
    try:
        with without_bars():
            model = AutoModelForCausalLM.from_pretrained(place, **given, **loading, **named)
    except Exception as problem:  # of the network, the hub and the files: of any kind
        raise unreached(name, problem) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **given)
    except Exception:  # a model may have none
        tokenizer = None
    return model.eval(), tokenizer


@contextmanager
def without_bars() -> Iterator[None]:
    """transformers draws one for weights that are there already, which takes a moment; downloads keep theirs."""
    drawn, gguf = logging.is_progress_bar_enabled(), modeling_gguf_pytorch_utils.tqdm
    logging.disable_progress_bar()
    modeling_gguf_pytorch_utils.tqdm = lambda tensors, **unused: tensors
    try:
        yield
    finally:
        modeling_gguf_pytorch_utils.tqdm = gguf
        if drawn:
            logging.enable_progress_bar()


def unreached(name: str, problem: Exception) -> ValueError:
    nowhere = "" if Path(name).exists() else "there is no such file or folder, and from the hub: "
    return ValueError(f"{name} cannot be loaded: {nowhere}{reason(problem)}")


def reason(problem: Exception) -> str:
    """What another library says, in a line: its first sentences, as far as they go."""
    said = " ".join(str(problem).split()) or type(problem).__name__
    if len(said) > LONG:
        said = said[: said.rfind(". ", 0, LONG) + 1] or said[: said.rfind(" ", 0, LONG)] + " ..."
    return said
