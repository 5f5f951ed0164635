"""What training costs: our decoder beside transformers' Llama of the same shape, encodings beside one another, and the
making of batches beside a step. Ratios of neighbours in one run: the median of the repeats, the least and the most.

    python benchmarks/training.py [--size 3m] [--batch 16] [--length 128] [--repeats 9]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from adapos.bench import tasks, train
from adapos.bench.plan import SIZES, Plan
from adapos.numbers import large

ENCODINGS = ("rope", "alibi", "kerple", "kerple + dape", "kerple + dape(kernel=3)", "tape")
VOCABULARY = 256


def llama(size: str, length: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = SIZES[size]
    hidden = 8 * ((8 * shape.width // 3 + 7) // 8)  # as in our decoder
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.width,
        intermediate_size=hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=length,
        tie_word_embeddings=True,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, logits: Callable[[Tensor], Tensor], text: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    F.cross_entropy(logits(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def said(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="3m", choices=list(SIZES))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    console = Console()

    task = tasks.build("text")
    plan = Plan(encodings=ENCODINGS, size=options.size, train_length=options.length, batch=options.batch)
    text = torch.randint(VOCABULARY, (options.batch, options.length + 1))
    runs: dict[str, Callable[[], None]] = {}
    other = llama(options.size, options.length)
    adam = train.optimizer(other, plan.trials[0])
    runs["transformers' Llama"] = lambda: step(other, adam, lambda tokens: other(tokens).logits, text)
    for trial in plan.trials:
        model = train.decoder(trial, task)
        ours = train.optimizer(model, trial)
        runs[trial.encoding] = lambda model=model, ours=ours: step(model, ours, model, text)  # type: ignore[misc]
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(options.repeats + 2):
        for name, run in runs.items():
            spent = seconds(run)
            if repeat > 1:
                times[name].append(spent)

    tokens = options.batch * options.length
    beside, plain = times["transformers' Llama"], times["rope"]
    table = Table(
        title=f"a training step: {options.size}, {options.batch} x {options.length} tokens", title_justify="left"
    )
    for column in ("", "tokens/s", "x Llama's speed", "x rope's speed"):
        table.add_column(column, justify="left" if not column else "right")
    for name, found in times.items():
        table.add_row(
            name,
            large(tokens / statistics.median(found)),
            said([a / b for a, b in zip(beside, found, strict=True)]),
            said([a / b for a, b in zip(plain, found, strict=True)]),
        )
    console.print(table)

    spent = statistics.median(plain)
    table = Table(title="making a batch, beside a step of rope", title_justify="left")
    for column in ("task", "tokens/s", "share of the step"):
        table.add_column(column, justify="left" if column == "task" else "right")
    for name in tasks.TASKS:
        made = tasks.build(name)
        shown = made.batch(train.generator(0), options.batch, 64).tokens.size
        took = statistics.median(
            seconds(lambda made=made, index=index: made.batch(train.generator(0, index), options.batch, 64))  # type: ignore[misc]
            for index in range(30)
        )
        table.add_row(name, large(shown / took), f"{100 * (took / shown) / (spent / tokens):.2f} %")
    console.print(table)


if __name__ == "__main__":
    main()
