"""A trained trial examined: rows for every length.

Text is read by one of three protocols, all over the same stretches of the test part, so that every length scores the
same tokens and only the context differs:

| protocol | what is read at length L                                    | what is scored           |
|----------|-------------------------------------------------------------|--------------------------|
| last     | the last L tokens of each stretch                           | the last k of them       |
| sliding  | windows of L tokens, a stride apart                         | what no window before it has scored |
| blocks   | blocks of L tokens, one after another                       | every token              |

Besides, the loss by position, from one pass over whole stretches. Other tasks are exams, the same for every trial.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from adapos.bench import train
from adapos.bench.plan import Plan, Trial
from adapos.bench.rows import Row, way
from adapos.bench.task import IGNORED, Batch, Cell, Ids, Task, exact
from adapos.bench.tasks.text import Text
from adapos.kernels import choose
from adapos.layout import PADDING
from adapos.model import Decoder
from adapos.resident import exhausted
from adapos.sketch import Size, sketch

TOKENS = 16384  # read at once
WORDS = 2**24  # logits at once
EXAMS = 7  # the seed of all exams
PLACES = 32  # that a curve of losses by position has, about

Losses = NDArray[np.float64]
Have = Mapping[tuple[Any, ...], Row]  # rows by their keys, in the order of writing


def evaluate(
    folder: Path,
    plan: Plan,
    have: Have,
    task: Task | None = None,
    *,
    device: str = "cpu",
    backend: str = "auto",
    commit: str = "",
    step: Callable[[str], object] = lambda text: None,
    also: str | None = None,
) -> Iterator[list[Row]]:
    """Rows of a trial, on its own task or on `also`, another one, that `have` does not hold yet, length by length.

    Those of text that it holds, but that were written before the same was read in another way, are given again: the
    last way that was asked for is the one that is shown.
    """
    trial, task, model = train.load(folder, backend, task)
    model = model.to(device)
    if task.vocabulary > model.vocabulary:
        raise ValueError(f"{also or trial.task} has {task.vocabulary} tokens, and the model knows {model.vocabulary}")
    blank = blank_row(trial, task, commit, folder)
    if also is not None:
        blank = replace(blank, task=also)
    reading = Reading(model, task, plan, device) if isinstance(task, Text) else None
    for length in plan.lengths:
        step(f"{trial.encoding}, seed {trial.seed}: {length} tokens")
        row = replace(blank, length=length)
        try:
            found = list(
                read(reading, row, have) if reading is not None else examined(model, task, plan, row, device, have)
            )
            if found:
                size = Size(1, task.tokens_at(length), torch.float32, device, task.causal)
                name = backend_of(model, size, backend)
                found = [replace(each, backend=each.backend or name) for each in found]
            failed = replace(row, protocol="evaluation", metric="failed", value=0.0)
            if failed.key in have and have[failed.key].value:  # not any more
                found.append(failed)
        except (ValueError, MemoryError, RuntimeError) as problem:
            note = unable(problem)
            found = [replace(row, protocol="evaluation", metric="failed", value=1.0, note=note)]
        if found:
            yield found
    if reading is not None and plan.lengths:
        yield list(by_position(reading, replace(blank, length=plan.lengths[-1]), have))


def unable(problem: ValueError | MemoryError | RuntimeError) -> str:
    """What this encoding, or the memory, cannot do at this length; anything else is raised again."""
    if isinstance(problem, RuntimeError) and not exhausted(problem):
        raise problem
    return " ".join(str(problem).split()) or "out of memory"


def blank_row(trial: Trial, task: Task, commit: str, folder: Path | None = None) -> Row:
    """What all rows of a trial share; `folder` is there once it is trained."""
    facts = {} if folder is None else train.facts(folder)
    return Row(
        trial=trial.name,
        encoding=trial.encoding,
        seed=trial.seed,
        task=trial.task,
        version=task.version,
        protocol="training",
        train_length=trial.train_length,
        length=trial.train_length,
        metric="",
        value=math.nan,
        parameters=facts.get("parameters", 0),
        positional=facts.get("positional", 0),
        steps=trial.steps,
        tokens=facts.get("tokens", 0),
        commit=commit,
    )


def of_training(trial: Trial, task: Task, folder: Path, commit: str) -> list[Row]:
    """What training cost, and whether the encoding adapts."""
    facts, blank = train.facts(folder), blank_row(trial, task, commit, folder)
    rows = [replace(blank, metric=name, value=float(facts[name])) for name in train.COSTS]
    if facts["jumps"]:
        note = f"the loss jumped at step {', '.join(map(str, facts['jumps']))}"
        rows.append(replace(blank, metric="jumps", value=float(len(facts["jumps"])), note=note))
    for layer in facts["adaptation"]:
        for name in ("share", "variation"):
            marks = {"layer": float(layer["layer"])}
            found = replace(blank, protocol="adaptation", metric=f"adaptive_{name}", value=layer[name], marks=marks)
            rows.append(found)
    return rows


def of_failure(trial: Trial, task: Task, reason: str, commit: str) -> Row:
    return replace(blank_row(trial, task, commit), metric="failed", value=1.0, note=reason)


class Reading:
    """The stretches that a text is read in, and the model that reads them."""

    def __init__(self, model: Decoder, task: Text, plan: Plan, device: str) -> None:
        self.model, self.task, self.plan, self.device = model, task, plan, device
        self.longest = plan.lengths[-1]
        stretches = task.windows("test", self.longest, plan.examples)
        self.tokens, self.widths = torch.from_numpy(stretches.tokens), stretches.widths

    @property
    def protocol(self) -> str:
        plan = self.plan
        how = {"last": f"last {plan.targets}", "sliding": f"sliding {plan.stride or 'half'}", "blocks": "blocks"}
        # what is scored depends on the stretches: rows of others are of other tokens
        return f"{how[plan.protocol]} of {len(self.tokens)} x {self.longest}"

    def losses(self, length: int) -> tuple[Losses, NDArray[np.int64], int]:
        """(stretches, tokens) of those that are scored, their bytes, and how many tokens were read for it."""
        if self.plan.protocol == "last":
            scored = self.plan.targets
            whole = length == self.longest
            found = self.whole[:, -scored:] if whole else self.of(self.tokens[:, -length - 1 :], scored)
            return found, self.widths[:, -scored:], len(found) * length
        if self.plan.protocol == "blocks":
            blocks = self.longest // length
            cut = self.tokens[:, : blocks * length + 1].unfold(1, length + 1, length).flatten(0, 1)
            found = self.of(cut, length).reshape(len(self.tokens), -1)
            return found, self.widths[:, 1 : blocks * length + 1], found.size
        stride = self.plan.stride or max(1, length // 2)
        parts, read, end = [self.of(self.tokens[:, : length + 1], length)], len(self.tokens) * length, length
        while end < self.longest:
            step = min(stride, self.longest - end)
            end += step
            parts.append(self.of(self.tokens[:, end - length : end + 1], step))
            read += len(self.tokens) * length
        return np.concatenate(parts, axis=1), self.widths[:, 1:], read

    @cached_property
    def whole(self) -> Losses:
        """Of every token of every stretch, read at once."""
        return self.of(self.tokens, self.longest)

    @torch.no_grad()
    def of(self, tokens: Tensor, scored: int) -> Losses:
        """(B, scored): the loss of the last tokens of each row (B, T + 1)."""
        rows = []
        for part in tokens.split(max(1, TOKENS // tokens.shape[1])):
            part = part.to(self.device)
            x = self.model.hidden(part[:, :-1])[:, -scored:].flatten(0, 1)
            wanted = part[:, -scored:].flatten()
            some = max(1, WORDS // self.model.vocabulary)
            found = [
                F.cross_entropy(self.model.head(here).float(), there, reduction="none")
                for here, there in zip(x.split(some), wanted.split(some), strict=True)
            ]
            rows.append(torch.cat(found).view(len(part), scored).double().cpu())
        return torch.cat(rows).numpy()


def read(reading: Reading, row: Row, have: Have) -> Iterator[Row]:
    perplexity = replace(row, protocol=reading.protocol, metric="perplexity")
    per_byte = replace(perplexity, metric="bits_per_byte")
    if {perplexity.key, per_byte.key} <= have.keys():
        shown = [each.protocol for each in have.values() if way(each) == way(perplexity)]
        if shown[-1] != reading.protocol:
            yield from (have[perplexity.key], have[per_byte.key])
        return
    began = time.perf_counter()
    losses, widths, tokens = reading.losses(row.length)
    seconds = time.perf_counter() - began
    mean, error = mean_and_error(losses.mean(1))
    cost: dict[str, Any] = {"n": losses.size, "seconds": seconds, "tokens_per_second": tokens / seconds}
    value = math.exp(mean) if mean < 700 else math.inf
    yield replace(perplexity, value=value, error=None if error is None else value * error, **cost)
    nats, size = losses.sum(1), widths.sum(1)
    ratio = nats.sum() / size.sum()
    # of a ratio: stretches with more bytes have more to lose
    _, apart = mean_and_error(nats - ratio * size)
    apart = None if apart is None else apart / float(size.mean()) / math.log(2)
    yield replace(per_byte, value=ratio / math.log(2), error=apart, **cost)


def by_position(reading: Reading, row: Row, have: Have) -> Iterator[Row]:
    """The loss at each position of whole stretches, in places that widen with the position."""
    edges = np.unique(np.geomspace(1, reading.longest + 1, PLACES + 1).astype(int))
    blank = replace(row, protocol="position", metric="loss")
    places = [replace(blank, marks={"position": float(edge - 1)}).key for edge in edges[:-1]]
    sizes = (len(reading.tokens) * np.diff(edges)).tolist()
    if all(key in have and have[key].n == size for key, size in zip(places, sizes, strict=True)):
        return
    try:
        losses = reading.whole
    except (ValueError, MemoryError, RuntimeError) as problem:  # as its row of this length says
        unable(problem)
        return
    for begin, end in zip(edges[:-1] - 1, edges[1:] - 1, strict=True):
        mean, error = mean_and_error(losses[:, begin:end].mean(1))
        n = losses[:, begin:end].size
        yield replace(blank, value=mean, error=error, n=n, marks={"position": float(begin)})


def examined(model: Decoder, task: Task, plan: Plan, row: Row, device: str, have: Have) -> Iterator[Row]:
    metrics = {task.metric: task.score} | ({} if task.metric == "exact" else {"exact": exact})
    for number, cell in enumerate(task.cells(row.length)):
        rows = [replace(row, protocol="exam", metric=name, marks=dict(cell.marks)) for name in metrics]
        if all(each.key in have and have[each.key].n == plan.examples for each in rows):
            continue
        batch = exam(task, cell, plan.examples, number)
        began = time.perf_counter()
        answers = (written if task.generates else said)(model, task, batch, device)
        seconds = time.perf_counter() - began
        for each, score in zip(rows, metrics.values(), strict=True):
            value, error = mean_and_error(score(*answers))
            speed = batch.tokens.size / seconds
            n = len(batch.tokens)
            yield replace(each, value=value, error=error, n=n, seconds=seconds, tokens_per_second=speed)


def exam(task: Task, cell: Cell, size: int, number: int) -> Batch:
    # four numbers, as no batch of training has
    return task.exam(train.generator(EXAMS, cell.length, number, EXAMS), size, cell)


@torch.no_grad()
def said(model: Decoder, task: Task, batch: Batch, device: str) -> tuple[Ids, Ids]:
    """Targets, and what the model says at their places in one pass."""
    answers = []
    for rows in at_once(*batch.tokens.shape):
        tokens, _, doc = train.tensors(batch.rows(rows), device)
        logits = model(tokens, doc=doc, causal=task.causal)
        answers.append(logits.argmax(-1).cpu().numpy())
    return batch.targets, np.concatenate(answers)


def written(model: Decoder, task: Task, batch: Batch, device: str) -> tuple[Ids, Ids]:
    """Answers, and what the model writes after the prompts, both (B, longest answer)."""
    asked = batch.targets != IGNORED
    counts, first = asked.sum(1), asked.argmax(1)
    wanted = np.full((len(asked), counts.max()), IGNORED)
    wanted[np.arange(counts.max()) < counts[:, None]] = batch.targets[asked]
    # prompts end together, whatever their lengths
    size = int(first.max()) + 1
    place = np.arange(size) - (size - 1 - first)[:, None]
    prompts = np.take_along_axis(batch.tokens, place.clip(0), axis=1)
    doc = np.where(place < 0, PADDING, 0)
    answers = []
    for rows in at_once(len(prompts), size + wanted.shape[1]):
        given, where = (torch.from_numpy(x[rows]).to(device) for x in (prompts, doc))
        whole = model.generate(given, wanted.shape[1], doc=where if (doc[rows] == PADDING).any() else None)
        answers.append(whole[:, size:].cpu().numpy())
    return wanted, np.concatenate(answers)


def at_once(count: int, length: int) -> Iterator[slice]:
    """Rows of a length, as many at a time as are read at once."""
    some = max(1, TOKENS // length)
    return (slice(begin, begin + some) for begin in range(0, count, some))


def mean_and_error(values: NDArray[np.float64]) -> tuple[float, float | None]:
    """The mean of independent values and its standard error; None for a lone one."""
    mean = float(values.mean())
    return mean, float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def backend_of(model: Decoder, size: Size, backend: str) -> str:
    """Which backend runs the first layer; of a pretrained model it is not asked."""
    if not isinstance(model, Decoder):
        return ""
    with torch.no_grad():
        return choose(sketch(model.encoding, size), backend).name
