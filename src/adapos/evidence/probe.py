"""What is measured of models that another study has trained: how far heads look, and what a shift changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adapos.anatomy import Anatomy
from adapos.bench import rows, train
from adapos.bench.evaluate import blank_row
from adapos.bench.plan import Trial
from adapos.bench.provenance import commit
from adapos.bench.rows import Row
from adapos.bench.tasks.text import Text
from adapos.evidence.study import Order, Study, Training, Unfinished
from adapos.model import Decoder

# what metrics are called, with their units
NAMES = {
    "mean_distance": "mean attended distance, tokens",
    "slope": "slope of f by log distance, nats",
    "attention_shifted": "share of attention that later ids move",
    "attention_prepended": "share of attention that tokens before move",
    "products_shifted": "change of mean cosines by later ids",
    "products_prepended": "change of mean cosines by tokens before",
}
# the metric, its marks, and its value
Measured = Iterator[tuple[str, dict[str, float], float]]


@dataclass(frozen=True, eq=False)
class Probe(Study):
    """Numbers of every trained model on the same texts of the test part."""

    of: Training
    length: int
    texts: int
    measure: Callable[[Decoder, Tensor], Measured]

    @property
    def rests_on(self) -> Training:
        return self.of

    def check(self, order: Order, encodings: Sequence[str]) -> None:
        """It needs nothing but the models."""

    def run(self, order: Order, encodings: Sequence[str]) -> None:
        trained, store = order.folder / self.of.name, order.folder / self.name / "rows.jsonl"
        store.parent.mkdir(parents=True, exist_ok=True)
        have = {row.trial for row in rows.read(store)}
        for trial in self.of.plan(encodings, order).trials:
            if trial.name not in have and (trained / "trials" / trial.name / "done.json").exists():
                order.say(f"{trial.encoding}, seed {trial.seed}: {self.name}")
                rows.append(store, self.rows(trained / "trials" / trial.name, trial))

    def rows(self, folder: Path, trial: Trial) -> list[Row]:
        _, task, model = train.load(folder)
        assert isinstance(task, Text)
        texts = torch.from_numpy(task.windows("test", self.length, self.texts).tokens[:, :-1])
        blank = replace(blank_row(trial, task, commit(), folder), protocol=self.name, length=self.length, n=len(texts))
        return [
            replace(blank, metric=metric, marks=marks, value=value)
            for metric, marks, value in self.measure(model, texts)
        ]

    def foresee(self, order: Order, encodings: Sequence[str]) -> None:
        print(f"measures of the models of {self.of.name}, in seconds")

    def read(self, folder: Path) -> list[Row]:
        trained = {row.trial for row in rows.read(folder / self.of.name / "rows.jsonl")}
        found = [row for row in rows.read(folder / self.name / "rows.jsonl") if row.trial in trained]
        if not found:
            raise Unfinished(f"nothing of {self.name} was run")
        return found


def patterns(model: Decoder, texts: Tensor) -> Measured:
    """By layer and head, of each half of the texts: the mean attended distance, and how f goes with log distance."""
    since = texts.shape[1] // 2
    for half, part in enumerate(texts.chunk(2)):
        read = [Anatomy(model, text[None]) for text in part]
        for layer in range(read[0].layers):
            for metric, ask in (("mean_distance", Anatomy.distances), ("slope", Anatomy.slopes)):
                found = torch.stack([ask(each, layer, since) for each in read]).mean(0)
                for head, value in enumerate(found.tolist()):
                    yield metric, {"layer": float(layer), "head": float(head), "half": float(half)}, value


SHIFT = 3  # ids, or tokens before the text
BEFORE = ord("\n")  # the token: a new line, in bytes


def shifts(model: Decoder, texts: Tensor) -> Measured:
    """By layer: how much of attention moves, and how far products of states do, when ids start later or tokens are
    put before the text."""
    length = texts.shape[1]
    ids = torch.arange(length)[None]
    changes: dict[tuple[str, str, int], list[float]] = {}
    for text in texts:
        plain = Anatomy(model, text[None])
        later = Anatomy(model, text[None], ids + SHIFT)
        behind = Anatomy(model, torch.cat([torch.full((SHIFT,), BEFORE), text])[None])
        for layer in range(plain.layers):
            for how, other, skipped in (("shifted", later, 0), ("prepended", behind, SHIFT)):
                for what, value in change(plain, other, layer, skipped).items():
                    changes.setdefault((what, how, layer), []).append(value)
    for (what, how, layer), values in changes.items():
        yield f"{what}_{how}", {"layer": float(layer)}, sum(values) / len(values)


def change(one: Anatomy, other: Anatomy, layer: int, skipped: int) -> dict[str, float]:
    """Of the tokens that both have read: `other` has `skipped` before them."""
    queries = slice(0, one.length)
    before = one.rows(layer, queries).logits.double().softmax(-1)
    after = other.rows(layer, slice(skipped, other.length)).logits.double()[..., skipped:].softmax(-1)
    found = {"attention": float((before - after).abs().sum(-1).mean()) / 2}
    products = [turns(each.heard.states[layer]) for each in (one, other)]
    if products[0] is not None and products[1] is not None:
        found["products"] = float((products[0] - products[1][..., skipped:, skipped:]).abs().mean())
    return found


def turns(state: list[Tensor]) -> Tensor | None:
    """(G, T, T): the cosine between the states of two tokens, the mean over frequencies; None where none turn."""
    if not state:
        return None
    parts: Any = state if len(state) == 2 else state[0].chunk(2, dim=-1)
    z = torch.complex(*(part.double() for part in parts))[0]
    z = z / z.abs().clamp(min=1e-12)
    z = z if z.ndim == 3 else z[None]
    return (z @ z.mH).real / z.shape[-1]
