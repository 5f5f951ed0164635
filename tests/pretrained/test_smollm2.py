"""SmolLM2-135M, a pretrained Llama with grouped queries, converted and trained on. `make test-pretrained` gets it."""

from __future__ import annotations

import copy
import os
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch

MODEL = os.environ.get("ADAPOS_SMOLLM2")
if not MODEL:
    pytest.skip("`make test-pretrained` fetches the model and runs this", allow_module_level=True)

import adapos.hf as hf  # noqa: E402

PROMPT = "The three most important things to know about whales are"


@pytest.fixture(scope="module")
def pretrained() -> tuple[Any, Any]:
    assert MODEL is not None
    return hf.pretrained(MODEL, dtype=torch.float32)


@pytest.fixture(scope="module")
def said(pretrained: tuple[Any, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens of a prompt, what the model says of them, and what it goes on with."""
    model, tokenizer = pretrained
    tokens = tokenizer(PROMPT, return_tensors="pt").input_ids
    with torch.no_grad():
        return tokens, model(tokens).logits, model.generate(tokens, max_new_tokens=64, do_sample=False)


@pytest.mark.parametrize(("encoding", "rate"), [("tape", 1e-4), ("rope + dape(zero=True)", 3e-3)])
def test_a_converted_model_says_the_same_and_learns_positions_alone(
    pretrained: tuple[Any, Any], said: tuple[torch.Tensor, torch.Tensor, torch.Tensor], encoding: str, rate: float
) -> None:
    base, tokenizer = pretrained
    tokens, logits, text = said
    model = hf.convert(copy.deepcopy(base), encoding)
    with torch.no_grad():
        apart = float((model(tokens).logits - logits).abs().max() / logits.abs().max())
    assert apart < 1e-4, apart
    for use_cache in (True, False):
        assert torch.equal(model.generate(tokens, max_new_tokens=64, do_sample=False, use_cache=use_cache), text)
    for name, x in model.named_parameters():
        x.requires_grad_("encoding" in name)
    learned = [x for x in model.parameters() if x.requires_grad]
    before = {name: x.clone() for name, x in base.named_parameters()}
    source = Path(sysconfig.get_path("stdlib"), "argparse.py").read_text()
    stream = tokenizer(source, return_tensors="pt").input_ids[0]
    batch = stream[: 4 * 257].view(4, 257)
    optimizer = torch.optim.AdamW(learned, lr=rate, weight_decay=0.0)
    model.train()
    losses = []
    for _ in range(20):
        loss = model(batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    print(f"{encoding}: logits apart {apart:.1e}, loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    assert losses[-1] < losses[0] - 0.01
    now = dict(model.named_parameters())
    assert all(torch.equal(now[name], x) for name, x in before.items())
