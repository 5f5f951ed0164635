"""Beyond text: digits read pixel by pixel, trained at 8 x 8 and examined larger, distances in one dimension or two."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adapos import registry
from adapos.bench import rows
from adapos.bench.commands import spell
from adapos.bench.provenance import commit
from adapos.bench.report.results import Results
from adapos.bench.rows import Row
from adapos.encoding import Compose, Keys, PositionalEncoding, Shape
from adapos.evidence.study import Order, Study, Unfinished
from adapos.layout import Layout
from adapos.model import Decoder
from adapos.pairs import DistanceTable, Pairs, wide

SHADES, CLASSES, SIDE = 17, 10, 8  # of scikit-learn's digits
AT_ONCE = 32  # images that are examined
ROW = 64  # the id of a pixel is ROW x row + column, so that the difference of two ids tells both of theirs


class Plane(PositionalEncoding):
    """bias[h, i, j] = -p_h log(1 + a_h |x_i - x_j|), x the row and the column of a pixel: kerple in two dimensions."""

    name = "plane"
    biases = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.p = nn.Parameter(torch.rand(shape.layers, shape.heads) * 2)
        self.a = nn.Parameter(torch.rand(shape.layers, shape.heads))

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        difference = layout.distances()
        rows = torch.div(difference + ROW // 2, ROW, rounding_mode="floor")
        apart = torch.hypot(*(x.to(self.p.dtype) for x in (rows, difference - ROW * rows)))
        p, a = (wide(x[layer]).clamp(min=0.01)[:, None] for x in (self.p, self.a))
        return Pairs((DistanceTable(-p * torch.log1p(a * apart), zero=layout.ahead),))


def built(spec: str, shape: Shape) -> PositionalEncoding:
    """Of the registry, or `plane` with or without others beside it."""
    first, _, others = spec.partition(" + ")
    if first != Plane.name:
        return registry.build(spec, shape)
    return Compose([Plane(shape), registry.build(others, shape)]) if others else Plane(shape)


class Reader(nn.Module):
    """Pixels are tokens; the mean of what a transformer makes of them tells the digit."""

    def __init__(self, shape: Shape, spec: str) -> None:
        super().__init__()
        self.body = Decoder(SHADES, shape, "nope", head=False)
        self.head = nn.Linear(shape.width, CLASSES)
        self.body.encoding = built(spec, shape)  # last, so that all other weights are the same for every encoding

    def forward(self, images: Tensor) -> Tensor:
        """(B, side, side) -> (B, classes)"""
        side = images.shape[-1]
        if side > ROW // 2:
            raise ValueError(f"images must have up to {ROW // 2} pixels a side, for ids to tell them apart, not {side}")
        places = torch.arange(side)
        pos = places[:, None] * ROW + places if self.plane else places[:, None] * side + places
        x = self.body.hidden(images.flatten(1), pos=pos.flatten().expand(len(images), -1), causal=False)
        return self.head(x.mean(1))

    @property
    def plane(self) -> bool:
        return any(isinstance(module, Plane) for module in self.body.encoding.modules())


@dataclass(frozen=True, eq=False)
class Digits(Study):
    sides: tuple[int, ...]
    shape: Shape
    steps: int
    batch: int = 64
    rate: float = 2e-3

    def check(self, order: Order, encodings: Sequence[str]) -> None:
        digits()

    def run(self, order: Order, encodings: Sequence[str]) -> None:
        store = order.folder / self.name / "rows.jsonl"
        store.parent.mkdir(parents=True, exist_ok=True)
        have = {row.trial for row in rows.read(store)}
        for seed in range(order.seeds):
            for spec in encodings:
                if self.called(spec, seed) not in have:
                    order.say(f"{spec}, seed {seed}: digits")
                    rows.append(store, list(self.trial(spec, seed)))

    def called(self, spec: str, seed: int) -> str:
        """A trial, by all that it depends on."""
        settings = (self.sides, self.shape, self.steps, self.batch, self.rate, spec, seed)
        return f"{spec}-{seed}-{hashlib.sha256(repr(settings).encode()).hexdigest()[:8]}"

    def trial(self, spec: str, seed: int) -> Iterator[Row]:
        train, test = digits()
        torch.manual_seed(seed)
        model = Reader(self.shape, spec)
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.rate, betas=(0.9, 0.95), weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.rate, total_steps=self.steps)
        draw = torch.Generator().manual_seed(seed)
        for _ in range(self.steps):
            chosen = torch.randint(len(train.images), (self.batch,), generator=draw)
            loss = F.cross_entropy(model(train.images[chosen]), train.classes[chosen])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        for side in self.sides:
            yield Row(
                trial=self.called(spec, seed),
                encoding=spec,
                seed=seed,
                task="digits",
                version=1,
                protocol="zoomed",
                train_length=SIDE,
                length=side,
                metric="accuracy",
                value=right(model, zoomed(test.images, side), test.classes),
                n=len(test.images),
                parameters=sum(x.numel() for x in model.parameters()),
                positional=sum(x.numel() for x in model.body.encoding.parameters()),
                steps=self.steps,
                tokens=self.steps * self.batch * SIDE * SIDE,
                commit=commit(),
            )

    def foresee(self, order: Order, encodings: Sequence[str]) -> None:
        print(f"{len(encodings)} encodings x {order.seeds} seeds, {self.steps} steps of {self.batch} images of 8 x 8")
        _, test = digits()
        seconds = 0.0
        for spec in encodings:
            model = Reader(self.shape, spec)

            def step(side: int, count: int, model: Reader = model, *, training: bool = False) -> float:
                images = zoomed(test.images[:count], side)
                begin = time.perf_counter()
                with torch.set_grad_enabled(training):
                    said = model(images)
                    if training:
                        said.sum().backward()
                return time.perf_counter() - begin

            step(SIDE, 1)
            batches = len(test.images) / AT_ONCE
            seconds += self.steps * step(SIDE, self.batch, training=True)
            seconds += sum(batches * step(side, AT_ONCE) for side in self.sides)
        print(f"about {spell(order.seeds * seconds)} in all, from a few steps run here")

    def read(self, folder: Path) -> Results:
        found = [
            row
            for row in rows.read(folder / self.name / "rows.jsonl")
            if row.trial == self.called(row.encoding, row.seed)
        ]
        if not found:
            raise Unfinished(f"nothing of {self.name} was run")
        return Results({"baseline": None, "encodings": list(dict.fromkeys(row.encoding for row in found))}, found)


@dataclass(frozen=True)
class Part:
    images: Tensor  # (N, 8, 8), shades from 0 to 16
    classes: Tensor  # (N,)


def digits() -> tuple[Part, Part]:
    """To train on and to be examined on: four fifths and one, the same for every seed."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError('the digits are scikit-learn\'s: pip install "adapos[bench]"') from None
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = torch.from_numpy(found.images[order]).long()
    classes = torch.from_numpy(found.target[order]).long()
    cut = len(images) * 4 // 5
    return Part(images[:cut], classes[:cut]), Part(images[cut:], classes[cut:])


def zoomed(images: Tensor, side: int) -> Tensor:
    """The same digits with more pixels."""
    found = F.interpolate(images[:, None].double(), size=(side, side), mode="bilinear", align_corners=False)
    return found[:, 0].round().long()


@torch.no_grad()
def right(model: Reader, images: Tensor, classes: Tensor) -> float:
    """The share that is told right."""
    said = torch.cat([model(part).argmax(-1) for part in images.split(AT_ONCE)])
    return float((said == classes).double().mean())
