"""What an optimizer is to decay: matrices that are not an encoding's."""

from __future__ import annotations

from typing import Any

from torch import nn


def parameter_groups(model: nn.Module, decay: float = 0.01) -> list[dict[str, Any]]:
    """For AdamW: weight decay spares what is learned of positions, norms and biases."""
    decayed: list[nn.Parameter] = []
    kept: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            positional = any(part.endswith("encoding") for part in name.split("."))
            (decayed if parameter.ndim > 1 and not positional else kept).append(parameter)
    return [{"params": decayed, "weight_decay": decay}, {"params": kept, "weight_decay": 0.0}]
