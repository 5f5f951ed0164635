"""Beyond text: digits somewhere in an image, read patch by patch, trained in small images and examined in larger ones.

Distances are those of reading order, in one dimension, or those of the plane. A digit stays as large as it is: what
grows is the image around it, and with it how many patches there are and how far they can be apart.
"""

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

BLACK, CLASSES, SIDE = 16, 10, 8  # of scikit-learn's digits
PATCH = 2  # pixels a side
AT_ONCE = 32  # images that are examined
VERSION = 2  # of the task
ROW = 64  # the id of a patch is ROW x row + column, so that the difference of two ids tells both of theirs


class Plane(PositionalEncoding):
    """bias[h, i, j] = -p_h log(1 + a_h |x_i - x_j|^2), x the row and column of a patch: kerple in two dimensions."""

    name = "plane"
    biases = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.p = nn.Parameter(torch.rand(shape.layers, shape.heads) * 3 + 1)
        self.a = nn.Parameter(torch.rand(shape.layers, shape.heads) + 0.5)

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        difference = layout.distances()
        rows = torch.div(difference + ROW // 2, ROW, rounding_mode="floor")
        apart = self.apart(layer, torch.stack([rows, difference - ROW * rows], -1).to(self.p.dtype))
        p, a = (wide(x[layer]).clamp(min=0.01)[:, None] for x in (self.p, self.a))
        return Pairs((DistanceTable(-p * torch.log1p(a * apart), zero=layout.ahead),))

    def apart(self, layer: int, difference: Tensor) -> Tensor:
        """(R, 2) -> (H or 1, R), squared"""
        return difference.square().sum(-1)[None]


class Aimed(Plane):
    """bias[h, i, j] = -p_h log(1 + a_h |x_i - x_j - o_h|^2): each head looks o_h away from its patch, learned."""

    name = "aimed"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.o = nn.Parameter(torch.randn(shape.layers, shape.heads, 2))

    def apart(self, layer: int, difference: Tensor) -> Tensor:
        return (difference - wide(self.o[layer])[:, None]).square().sum(-1)


PLANES = {each.name: each for each in (Plane, Aimed)}


def built(spec: str, shape: Shape) -> PositionalEncoding:
    """Of the registry, or of the plane with or without others beside it."""
    first, _, others = spec.partition(" + ")
    if first not in PLANES:
        return registry.build(spec, shape)
    plane = PLANES[first](shape)
    return Compose([plane, registry.build(others, shape)]) if others else plane


class Reader(nn.Module):
    """Patches are tokens; of what a transformer makes of them the greatest in each channel tells the digit.

    The mean would tell how much of the image is empty as well, and that changes with its size.
    """

    def __init__(self, shape: Shape, spec: str) -> None:
        super().__init__()
        self.patches = nn.Linear(PATCH * PATCH, shape.width)
        self.body = Decoder(1, shape, "nope", head=False)
        self.head = nn.Linear(shape.width, CLASSES)
        self.body.encoding = built(spec, shape)  # last, so that all other weights are the same for every encoding

    def forward(self, images: Tensor) -> Tensor:
        """(B, side, side), from 0 to 1 -> (B, classes)"""
        count = images.shape[-1] // PATCH
        if count > ROW // 2:
            raise ValueError(
                f"images must have up to {ROW // 2 * PATCH} pixels a side, for ids to tell patches apart, "
                f"not {images.shape[-1]}"
            )
        places = torch.arange(count)
        pos = (places[:, None] * (ROW if self.plane else count) + places).flatten().expand(len(images), -1)
        patches = F.pixel_unshuffle(images[:, None], PATCH).flatten(2).mT
        x = self.body.through(self.patches(patches), Layout(pos, pos, causal=False))
        return self.head(x.amax(1))

    @property
    def plane(self) -> bool:
        return any(isinstance(module, Plane) for module in self.body.encoding.modules())


@dataclass(frozen=True, eq=False)
class Digits(Study):
    sides: tuple[int, ...]  # of images, the first those of training
    shape: Shape
    steps: int
    batch: int = 64
    rate: float = 2e-3

    @property
    def lengths(self) -> tuple[int, ...]:
        """Patches of an image."""
        return tuple((side // PATCH) ** 2 for side in self.sides)

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
        settings = (VERSION, self.sides, self.shape, self.steps, self.batch, self.rate, spec, seed)
        return f"{spec}-{seed}-{hashlib.sha256(repr(settings).encode()).hexdigest()[:8]}"

    def trial(self, spec: str, seed: int) -> Iterator[Row]:
        train, test = digits()
        torch.manual_seed(seed)
        model = Reader(self.shape, spec)
        # the schedule moves the first of the betas to 0.85 and back
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.rate, betas=(0.95, 0.95), weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.rate, total_steps=self.steps)
        draw = torch.Generator().manual_seed(seed)
        for _ in range(self.steps):
            chosen = torch.randint(len(train.images), (self.batch,), generator=draw)
            images = framed(train.images[chosen], self.sides[0], draw)
            loss = F.cross_entropy(model(images), train.classes[chosen])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        for side, length in zip(self.sides, self.lengths, strict=True):
            yield Row(
                trial=self.called(spec, seed),
                encoding=spec,
                seed=seed,
                task="digits",
                version=VERSION,
                protocol="framed",
                train_length=self.lengths[0],
                length=length,
                metric="accuracy",
                value=right(model, framed(test.images, side, torch.Generator().manual_seed(0)), test.classes),
                n=len(test.images),
                parameters=sum(x.numel() for x in model.parameters()),
                positional=sum(x.numel() for x in model.body.encoding.parameters()),
                steps=self.steps,
                tokens=self.steps * self.batch * self.lengths[0],
                commit=commit(),
            )

    def foresee(self, order: Order, encodings: Sequence[str]) -> None:
        small = f"{self.sides[0]} x {self.sides[0]}"
        print(f"{len(encodings)} encodings x {order.seeds} seeds, {self.steps} steps of {self.batch} images of {small}")
        _, test = digits()
        seconds = 0.0
        for spec in encodings:
            model = Reader(self.shape, spec)

            def step(side: int, count: int, model: Reader = model, *, training: bool = False) -> float:
                images = framed(test.images[:count], side, torch.Generator())
                begin = time.perf_counter()
                with torch.set_grad_enabled(training):
                    said = model(images)
                    if training:
                        said.sum().backward()
                return time.perf_counter() - begin

            step(self.sides[0], 1)
            batches = len(test.images) / AT_ONCE
            seconds += self.steps * step(self.sides[0], self.batch, training=True)
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
    images: Tensor  # (N, 8, 8), from 0 to 1
    classes: Tensor  # (N,)


def digits() -> tuple[Part, Part]:
    """To train on and to be examined on: four fifths and one, the same for every seed."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError('the digits are scikit-learn\'s: pip install "adapos[bench]"') from None
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = torch.from_numpy(found.images[order]).float() / BLACK
    classes = torch.from_numpy(found.target[order]).long()
    cut = len(images) * 4 // 5
    return Part(images[:cut], classes[:cut]), Part(images[cut:], classes[cut:])


def framed(images: Tensor, side: int, draw: torch.Generator) -> Tensor:
    """The same digits, each somewhere in an empty image: (N, 8, 8) -> (N, side, side)"""
    found = torch.zeros(len(images), side, side)
    corners = torch.randint(side - SIDE + 1, (2, len(images), 1, 1), generator=draw)
    rows, columns = corners[0] + torch.arange(SIDE)[:, None], corners[1] + torch.arange(SIDE)
    found[torch.arange(len(images))[:, None, None], rows, columns] = images
    return found


@torch.no_grad()
def right(model: Reader, images: Tensor, classes: Tensor) -> float:
    """The share that is told right."""
    said = torch.cat([model(part).argmax(-1) for part in images.split(AT_ONCE)])
    return float((said == classes).double().mean())
