"""Decoding with a cache: our model in transformers beside its own Llama of the same shape, side by side.

    python benchmarks/decoding.py [--context 2048] [--batch 1] [--repeats 7]

Every model reads the same text once; then each round decodes some tokens with each model and forgets them again. The
ratio is of tokens a second, in each round against Llama's in the same round. Bytes are those of the cache, per token.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import adapos.hf as hf

SIZES = {"vocab_size": 32000, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
MLP = 2048
ENCODINGS = ("rope", "alibi", "kerple", "kerple + dape", "kerple + dape(kernel=3)", "tape")
NEW = 16


def models(kv_heads: int) -> dict[str, Any]:
    shape = SIZES | {"intermediate_size": MLP, "num_key_value_heads": kv_heads, "tie_word_embeddings": True}
    made = {"Llama of transformers": LlamaForCausalLM(LlamaConfig(**shape))}
    made |= {name: hf.AdaposForCausalLM(hf.AdaposConfig(encoding=name, **shape)) for name in ENCODINGS}
    return {name: model.eval() for name, model in made.items()}


def decoded(model: Any, past: Any, token: torch.Tensor) -> float:
    """Seconds of NEW steps, after which the cache is as it was."""
    began = time.perf_counter()
    for _ in range(NEW):
        token = model(token, past_key_values=past, use_cache=True).logits[:, -1:].argmax(-1)
    spent = time.perf_counter() - began
    past.crop(-NEW)
    return spent


def size(past: Any) -> int:
    if isinstance(past, hf.PositionsCache):
        return past.bytes
    return sum(x.numel() * x.element_size() for layer in past.layers for x in (layer.keys, layer.values))


@torch.no_grad()
def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--context", type=int, default=2048)
    options.add_argument("--batch", type=int, default=1)
    options.add_argument("--kv-heads", type=int, default=12)
    options.add_argument("--repeats", type=int, default=7)
    given = options.parse_args()
    torch.manual_seed(0)
    tokens = torch.randint(SIZES["vocab_size"], (given.batch, given.context))
    held = {
        name: (model, model(tokens, use_cache=True).past_key_values) for name, model in models(given.kv_heads).items()
    }
    for model, past in held.values():
        decoded(model, past, tokens[:, :1])
    times: dict[str, list[float]] = {name: [] for name in held}
    for _ in range(given.repeats):
        for name, (model, past) in held.items():
            times[name].append(decoded(model, past, tokens[:, :1]) / NEW)
    llama = times["Llama of transformers"]
    print(f"batch {given.batch}, context {given.context}, {given.kv_heads} kv heads, {torch.get_num_threads()} threads")
    print(f"{'':26}{'ms a token':>12}{'x Llama':>24}{'bytes a token':>16}")
    for name, spent in times.items():
        ratios = [theirs / ours for theirs, ours in zip(llama, spent, strict=True)]
        said = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        per = size(held[name][1]) // (given.batch * given.context)
        print(f"{name:26}{1e3 * statistics.median(spent):12.1f}{said:>24}{per:16,}")


if __name__ == "__main__":
    main()
