"""Trials as if they had been trained, made in no time."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save

from adapos.bench import tasks
from adapos.bench.plan import Trial
from adapos.bench.train import COSTS, decoder, trained, weights

SETTINGS = {
    **{"train_length": 16, "steps": 1, "batch": 1, "rate": 1e-3, "warm_up": 0.05, "floor": 0.1, "decay": 0.1},
    **{"clip": 1.0, "dropout": 0.0, "dtype": "float32", "layers": 3, "width": 32, "heads": 4, "kv_heads": 4},
}


def trial(folder: Path, encoding: str, task: str = "text", seed: int = 0, noise: float = 0.3, **given: int) -> Path:
    """A trial that is done, of weights that say something about every pair."""
    made = Trial(encoding=encoding, seed=seed, task=task, **SETTINGS | given)  # type: ignore[arg-type]
    of = tasks.build(made.task)
    model = decoder(made, of, "auto")
    torch.manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.add_(noise * torch.randn_like(parameter))
    folder.mkdir(parents=True)
    data = save(weights(trained(model)))
    (folder / "weights.safetensors").write_bytes(data)
    config = {"trial": asdict(made), "vocabulary": of.vocabulary, "task_version": of.version, "data": ""}
    (folder / "config.json").write_text(json.dumps(config))
    facts = dict.fromkeys((*COSTS, "tokens", "parameters", "positional"), 1) | {"jumps": [], "adaptation": []}
    (folder / "done.json").write_text(json.dumps(facts | {"sha256": hashlib.sha256(data).hexdigest()}))
    return folder
