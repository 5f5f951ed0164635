"""Small random models of every family that is converted, and texts of unequal lengths, padded on the left."""

from __future__ import annotations

from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0}
TRAINED = {"original_max_position_embeddings": 16}
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


def model(family: str, **given: Any) -> Any:
    torch.manual_seed(0)
    if family == "llama":
        config = transformers.LlamaConfig(**SIZES | {"rope_parameters": LLAMA3 | TRAINED} | given)
        return transformers.LlamaForCausalLM(config).eval()
    if family == "mistral":
        return transformers.MistralForCausalLM(
            transformers.MistralConfig(**SIZES | {"sliding_window": 6} | given)
        ).eval()
    if family == "qwen2":
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES | given)).eval()
    config = transformers.Qwen3Config(**SIZES | {"head_dim": 8, "rope_parameters": YARN | TRAINED} | given)
    return transformers.Qwen3ForCausalLM(config).eval()


def texts(rows: int = 3, length: int = 17) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and a mask."""
    tokens = torch.randint(1, 90, (rows, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    for row in range(rows):
        mask[row, : 2 * row] = 0
    return tokens, mask


def gradients(model: Any, tokens: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """Of all parameters, with activations that are kept, and with those that are computed again."""
    model.train()
    found = []
    for again in (False, True):
        model.gradient_checkpointing_enable() if again else model.gradient_checkpointing_disable()
        model.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        found.append({name: x.grad.clone() for name, x in model.named_parameters()})
    return found


def shake(model: Any) -> None:
    """Positional parameters that do something: those that start at zero say nothing of themselves."""
    drawn = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "encoding" in name:
                x.add_(0.3 * torch.randn(x.shape, generator=drawn))
