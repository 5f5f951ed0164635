"""Train two encodings on short texts and read long ones: perplexity by length, on the CPU, in about two minutes.

The texts are the source files of the Python standard library as bytes, whole files held out. Both models see
the same batches and start from the same weights, but for those of the encoding. Every length scores the same
bytes, the last ones of each held-out text; only how much of the text before them is shown differs.
"""

from __future__ import annotations

import argparse
import math
import sysconfig
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import adapos
from adapos.model import Decoder

VOCABULARY = 256
SHAPE = adapos.Shape(layers=4, width=128, heads=4)
TRAINED = 128  # bytes a model reads while it trains
LENGTHS = (128, 256, 512, 1024)
SCORED = 64  # bytes of each held-out text


def texts() -> list[Tensor]:
    """The standard library's files that are long enough to read at every length, always in the same order."""
    library = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "test", "tests", "idlelib", "lib2to3"}
    paths = sorted(path for path in library.rglob("*.py") if skipped.isdisjoint(path.relative_to(library).parts))
    found = [bytearray(path.read_bytes()) for path in paths]
    return [torch.frombuffer(text, dtype=torch.uint8).long() for text in found if len(text) > max(LENGTHS)]


def batches(files: list[Tensor], steps: int, size: int) -> Tensor:
    """(steps, size, TRAINED + 1): windows of random files, longer files more often."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.tensor([float(len(text)) for text in files])
    chosen = torch.multinomial(weights, steps * size, replacement=True, generator=generator)
    where = torch.rand(steps * size, generator=generator)
    windows = []
    for index, fraction in zip(chosen.tolist(), where.tolist(), strict=True):
        begin = int(fraction * (len(files[index]) - TRAINED))
        windows.append(files[index][begin : begin + TRAINED + 1])
    return torch.stack(windows).unflatten(0, (steps, size))


def held_out_windows(files: list[Tensor], count: int) -> Tensor:
    """(count, longest + 1): stretches of the held-out files, spread over them evenly."""
    stretch = max(LENGTHS) + 1
    cuts = torch.cat([text[: len(text) // stretch * stretch].view(-1, stretch) for text in files])
    return cuts[torch.linspace(0, len(cuts) - 1, count).long()]


def models(specs: list[str]) -> list[Decoder]:
    """One decoder for each spec, all with the weights of the first but for `encoding.*`."""
    built = []
    for spec in specs:
        torch.manual_seed(0)
        built.append(Decoder(VOCABULARY, SHAPE, spec))
    shared = {name: value for name, value in built[0].state_dict().items() if not name.startswith("encoding.")}
    for model in built[1:]:
        missing = model.load_state_dict(shared, strict=False).missing_keys
        assert all(name.startswith("encoding.") for name in missing), missing
    return built


def optimizer_of(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """AdamW that decays matrices alone, and nothing of the encoding."""
    decayed, kept = [], []
    for name, parameter in model.named_parameters():
        decays = parameter.ndim > 1 and not name.startswith("encoding.")
        (decayed if decays else kept).append(parameter)
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))


# of 8e-4, 1.5e-3, 3e-3 and 6e-3 the best for both encodings, by these same held-out texts at length 128
RATE = 1.5e-3


def train(model: Decoder, data: Tensor, console: Console, *, rate: float = RATE) -> None:
    optimizer = optimizer_of(model, rate)
    steps, warm_up = len(data), max(1, len(data) // 20)
    began = time.perf_counter()
    model.train()
    for step, batch in enumerate(data):
        done = max(0.0, (step - warm_up) / max(1, steps - warm_up))
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / warm_up, 0.55 + 0.45 * math.cos(math.pi * done))
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % max(1, steps // 5) == 0:
            spent = time.perf_counter() - began
            console.print(f"  step {step + 1:4d} of {steps}   training perplexity {loss.exp():6.2f}   {spent:4.0f} s")


@torch.no_grad()
def perplexity(model: Decoder, windows: Tensor, length: int) -> float:
    """Of the last SCORED bytes of each window, read with the `length` bytes that come before the last."""
    model.eval()
    total = 0.0
    for part in windows.split(8):
        logits = model(part[:, -length - 1 : -1])[:, -SCORED:]
        total += F.cross_entropy(logits.flatten(0, 1), part[:, -SCORED:].flatten(), reduction="sum").item()
    return math.exp(total / (len(windows) * SCORED))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="*", default=["rope", "kerple + dape"], help="encodings to compare")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--windows", type=int, default=64, help="held-out texts to score")
    options = parser.parse_args()
    if min(options.steps, options.batch, options.windows) < 1:
        parser.error("--steps, --batch and --windows must be at least 1")
    try:
        built = models(options.specs)
    except ValueError as problem:
        parser.error(str(problem))
    console = Console()

    files = texts()
    if len(files) < 2:
        parser.error("this Python has no source files of its standard library to read; run the demo with another")
    training = [text for index, text in enumerate(files) if index % 10]
    held_out = held_out_windows(files[::10], options.windows)
    data = batches(training, options.steps, options.batch)
    console.print(
        f"{len(training)} files to train on, {len(files[::10])} held out; "
        f"{options.steps} steps of {options.batch} x {TRAINED} bytes"
    )

    table = Table(title=f"perplexity per byte by length read, trained at {TRAINED}", title_justify="left")
    for column in ("encoding", *map(str, LENGTHS), "parameters", "positional"):
        table.add_column(column, justify="left" if column == "encoding" else "right")
    for spec, model in zip(options.specs, built, strict=True):
        sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
        positional = sum(size for name, size in sizes.items() if name.startswith("encoding."))
        console.print(f"{spec}:")
        train(model, data, console)
        row = [f"{perplexity(model, held_out, length):.2f}" for length in LENGTHS]
        table.add_row(spec, *row, f"{sum(sizes.values()):,}", f"{positional:,}")
    console.print(table)
    console.print(
        f"Each figure scores the same {held_out.shape[0] * SCORED:,} bytes of held-out files. "
        "One seed and a small model: it shows how to measure, not which encoding is best."
    )


if __name__ == "__main__":
    main()
