"""What a plan will take: time and memory, from a few steps of each encoding run here."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from adapos.bench.evaluate import TOKENS
from adapos.bench.memory import forget_peak, peak
from adapos.bench.plan import Plan, Trial
from adapos.bench.speed import now, paced
from adapos.bench.task import IGNORED, Task
from adapos.bench.train import Setup, decoder, generator
from adapos.model import Decoder

STEPS = 3  # timed, after one that is not
FAR = 1024  # tokens, up to which reading is timed; beyond, it grows as its parts do


@dataclass(frozen=True)
class Forecast:
    encoding: str
    training: float  # seconds of one seed
    reading: float
    memory: int  # bytes, while training


def forecast(plan: Plan, setup: Setup) -> list[Forecast]:
    task = plan.check()
    return [of(trial, plan, setup, task) for trial in replace(plan, seeds=plan.seeds[:1]).trials]


def of(trial: Trial, plan: Plan, setup: Setup, task: Task) -> Forecast:
    forget_peak(setup.device)
    _, spent = paced(trial, task, setup, STEPS)
    memory = peak(setup.device)
    model = decoder(trial, task, setup.backend).to(setup.device).eval()
    reading = sum(
        texts(plan, task, length) * seconds(model, task.tokens_at(length), setup.device) for length in plan.lengths
    )
    if task.generates:
        reading += sum(answers(plan, task, length) for length in plan.lengths) * step_seconds(model, setup.device)
    return Forecast(trial.encoding, trial.steps * spent / STEPS, reading, memory)


def texts(plan: Plan, task: Task, length: int) -> int:
    """How many are read at a length."""
    if not task.protocols:
        return plan.examples * len(task.cells(length))
    longest = plan.lengths[-1]
    stride = plan.stride or max(1, length // 2)
    windows = {"last": 1, "blocks": longest // length, "sliding": 1 + -(-(longest - length) // stride)}
    return plan.examples * windows[plan.protocol]


def answers(plan: Plan, task: Task, length: int) -> int:
    """How many steps of decoding are taken at a length, each for as many texts as are read at once."""
    cells = task.cells(length)
    asked = int((task.exam(generator(0), 1, cells[0]).targets != IGNORED).sum())
    return asked * len(cells) * -(-plan.examples * task.tokens_at(length) // TOKENS)


def step_seconds(model: Decoder, device: str) -> float:
    """To decode one token, of one text or of several at once."""
    prompts = torch.zeros(4, 8, dtype=torch.long, device=device)
    spent = []
    for new in (1, 1, 9):
        began = now(device)
        model.generate(prompts, new)
        spent.append(now(device) - began)
    return max(0.0, spent[2] - spent[1]) / 8


@torch.no_grad()
def seconds(model: Decoder, length: int, device: str) -> float:
    """To read one text of a length: a part that grows with it, and one with its square, from two timings."""
    short, far = max(1, min(length, FAR) // 2), max(2, min(length, FAR))
    spent = {}
    for size in (short, far):
        many = max(1, TOKENS // 4 // size)
        tokens = torch.zeros(many, size, dtype=torch.long, device=device)
        model.hidden(tokens)
        began = now(device)
        model.hidden(tokens)
        spent[size] = (now(device) - began) / many / size
    slope = max(0.0, (spent[far] - spent[short]) / (far - short))
    return (spent[far] + slope * max(0, length - far)) * length
