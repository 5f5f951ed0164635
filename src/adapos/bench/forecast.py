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

STEPS = 3  # timed, after one that is not; one, where a step is large
FAR = 1024  # tokens, up to which reading is timed; beyond, it grows as its parts do
# operations that one timing may take; what takes more is timed in a part, from which the whole is reckoned
AFFORDED = {"cpu": 2e11, "cuda": 2e13}


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
    model = decoder(trial, task, setup.backend).to(setup.device).eval()
    pace = Pace(model, setup.device)
    reading = sum(texts(plan, task, length) * pace.seconds(task.tokens_at(length)) for length in plan.lengths)
    if task.generates:
        reading += sum(answers(plan, task, length) for length in plan.lengths) * step_seconds(model, setup.device)
    afforded = pace.afforded // 3  # there and back
    del model, pace  # one is in memory at a time
    training, memory = step(trial, setup, task, afforded)
    return Forecast(trial.encoding, trial.steps * training, reading, memory)


def step(trial: Trial, setup: Setup, task: Task, tokens: int) -> tuple[float, int]:
    """Seconds and bytes of a step: of a whole one, or of more than so many tokens reckoned from two smaller ones, for
    both grow as the texts do."""
    some = min(trial.batch, max(1, tokens // task.tokens_at(trial.train_length)))
    taken, memory = timed(replace(trial, batch=some), setup, task, STEPS if some == trial.batch else 1)
    if some == trial.batch:
        return taken, memory
    if some == 1:  # nothing smaller is there, so what does not grow is counted with what does
        return taken * trial.batch, memory * trial.batch
    fewer = some // 2
    less, smaller = timed(replace(trial, batch=fewer), setup, task, 1)
    times = (trial.batch - some) / (some - fewer)
    return taken + times * max(0.0, taken - less), memory + round(times * max(0, memory - smaller))


def timed(trial: Trial, setup: Setup, task: Task, steps: int) -> tuple[float, int]:
    forget_peak(setup.device)
    _, spent = paced(trial, task, replace(setup, accumulate=1), steps)
    return spent / steps, peak(setup.device)


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


class Pace:
    """How long a model takes to read."""

    def __init__(self, model: Decoder, device: str) -> None:
        self.model, self.device, self.known = model, device, dict[int, float]()
        operations = 2 * sum(x.numel() for x in model.parameters())  # of a token, attention aside
        self.afforded = max(2, int(AFFORDED[torch.device(device).type] / operations))

    def seconds(self, length: int) -> float:
        """Of one text: a part that grows with its length, and one with the square, from two timings."""
        # of powers of two, so that many lengths share them
        far = max(2, 1 << min(length, FAR, self.afforded).bit_length() - 1)
        short = far // 2
        slope = max(0.0, (self.per_token(far) - self.per_token(short)) / (far - short))
        return (self.per_token(far) + slope * max(0, length - far)) * length

    @torch.no_grad()
    def per_token(self, size: int) -> float:
        if size not in self.known:
            many = max(1, min(TOKENS // 4, self.afforded) // size)
            tokens = torch.zeros(many, size, dtype=torch.long, device=self.device)
            self.model.hidden(tokens)
            began = now(self.device)
            self.model.hidden(tokens)
            self.known[size] = (now(self.device) - began) / many / size
        return self.known[size]
