"""How fast encodings train, side by side.

Trials run one after another, and what else the machine does meanwhile would decide which looks cheaper. So every
encoding takes a few steps in each of several rounds, and those that differ in every round, by more than a little,
differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from adapos.bench.evaluate import blank_row
from adapos.bench.plan import Trial
from adapos.bench.processes import Processes
from adapos.bench.rows import SIDE_BY_SIDE, Row
from adapos.bench.task import Task
from adapos.bench.train import Quiet, Setup, Trainer

ROUNDS = 7
STEPS = 3  # of each encoding in a round, at least
SECONDS = 0.6  # that the steps of one encoding in a round take, about
SHARE = 0.2  # of the steps of training, at most, that all rounds together take


def side_by_side(
    trials: list[Trial], task: Task, setup: Setup, commit: str, say: Callable[[str], object] = lambda text: None
) -> list[Row]:
    """Tokens a second of each trial in each round."""
    _, seconds = paced(trials[0], task, setup, 1)
    count = max(STEPS, round(min(SECONDS / seconds, SHARE * trials[0].steps / ROUNDS)))
    found = []
    for number in range(ROUNDS):
        say(f"speed side by side: round {number + 1} of {ROUNDS}")
        # forth and back, so that none is always the first
        for trial in trials if number % 2 == 0 else trials[::-1]:
            tokens, seconds = paced(trial, task, setup, count)
            blank = replace(blank_row(trial, task, commit), protocol=SIDE_BY_SIDE, metric="tokens_per_second")
            found.append(replace(blank, value=tokens / seconds, n=count, marks={"round": float(number)}))
    return found


def paced(trial: Trial, task: Task, setup: Setup, count: int) -> tuple[int, float]:
    """Tokens and seconds of so many steps, after one that allocates and compiles; the same batches for every encoding.

    The model is made for this alone, so that one is in memory at a time.
    """
    if setup.compiled:
        torch.compiler.reset()
    alone = Processes(device=setup.device)
    trainer = Trainer(trial, task, Path(), replace(setup, sharded=False), Quiet(), alone)
    model = trainer.ready()
    trainer.advance(model)
    trained, began = trainer.tokens, now(setup.device)
    for _ in range(count):
        trainer.advance(model)
    return trainer.tokens - trained, now(setup.device) - began


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
