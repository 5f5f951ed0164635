"""Calls of attention over every kind of layout and of Pairs, and how far two results are apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from adapos import Layout, Pairs, Shape, attend, build
from adapos.encoding import Compose, PositionalEncoding
from adapos.kernels import BACKENDS, Call
from adapos.model import Decoder
from adapos.pairs import Cope, DistanceDot, DistanceTable, Fire, Grid, HeadMix, LogDot, Ramp

SHAPE = Shape(layers=2, width=32, heads=4)
VOCABULARY = 31


class Draw:
    """Random leaves for autograd, the same for the same seed."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        self.generator, self.dtype = torch.Generator().manual_seed(seed), dtype

    def __call__(self, *size: int) -> Tensor:
        x = torch.randn(size, generator=self.generator, dtype=torch.float64)
        return x.to(self.dtype).requires_grad_()

    def positive(self, *size: int) -> Tensor:
        x = torch.rand(size, generator=self.generator, dtype=torch.float64) + 0.1
        return x.to(self.dtype).requires_grad_()

    def integers(self, low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high, size, generator=self.generator)

    def order(self, size: int) -> Tensor:
        return torch.randperm(size, generator=self.generator)


def packed(sizes: Sequence[int], batch: int = 1) -> Tensor:
    """Documents 0, 1, 2... of these sizes behind one another; a size below zero is padding."""
    parts = [torch.full((abs(size),), -1 if size < 0 else number) for number, size in enumerate(sizes)]
    return torch.cat(parts).expand(batch, -1).contiguous()


def last(layout: Layout, queries: int) -> Layout:
    """The same keys, and only the last queries: what a decoding step sees."""
    q_doc = None if layout.q_doc is None else layout.q_doc[:, -queries:]
    return Layout(
        layout.q_pos[:, -queries:], layout.k_pos, q_doc, layout.k_doc, causal=layout.causal, window=layout.window
    )


def _ids(kind: str, batch: int, length: int) -> Tensor:
    draw = Draw(7)
    if kind == "jump":
        return draw.integers(1, 5, batch, length).cumsum(1)
    if kind == "repeat":
        return draw.integers(0, 2, batch, length).cumsum(1)
    if kind == "restart":
        return torch.arange(length).expand(batch, -1) % max(2, length // 3)
    if kind == "negative":
        return (torch.arange(length) - length // 2).expand(batch, -1)
    assert kind == "shuffled"
    return torch.stack([draw.order(length) for _ in range(batch)])


def _documents(batch: int, length: int) -> Tensor:
    """Rows of packed, of left padded and of right padded documents, in turn; some rows see nothing at all."""
    third = length // 3
    rows = [
        packed([third, length - third]),
        packed([-third, length - third]) if third else packed([length]),
        packed([length - third, -third]) if third else packed([length]),
    ]
    return torch.cat([rows[i % 3] for i in range(batch)])


def _given(pos: Tensor, doc: Tensor | None = None, **settings: object) -> Layout:
    return Layout(pos, pos, doc, doc, **settings)  # type: ignore[arg-type]


LAYOUTS: dict[str, Callable[[int, int], Layout]] = {
    "dense": Layout.dense,
    "one query": lambda batch, length: Layout.dense(batch, 1, cached=length - 1),
    "some queries": lambda batch, length: Layout.dense(batch, max(1, length // 3), cached=length - max(1, length // 3)),
    "queries amid the keys": lambda batch, length: Layout(
        torch.arange(length)[None, length // 4 : length // 4 + max(1, length // 3)].expand(batch, -1),
        torch.arange(length)[None].expand(batch, -1),
        start=length // 4,
    ),
    "bidirectional": lambda batch, length: Layout.dense(batch, length, causal=False),
    "window": lambda batch, length: Layout.dense(batch, length, window=max(1, length // 4)),
    "window of one": lambda batch, length: Layout.dense(batch, length, window=1),
    "bidirectional window": lambda batch, length: Layout.dense(batch, length, window=max(1, length // 4), causal=False),
    "documents": lambda batch, length: _given(torch.arange(length).expand(batch, -1), _documents(batch, length)),
    "bidirectional documents": lambda batch, length: _given(
        torch.arange(length).expand(batch, -1), _documents(batch, length), causal=False
    ),
    "documents in a window": lambda batch, length: _given(
        torch.arange(length).expand(batch, -1), _documents(batch, length), window=max(1, length // 4)
    ),
    "interleaved documents": lambda batch, length: _given(
        torch.arange(length).expand(batch, -1), (torch.arange(length) * 7 % 3 - 1).expand(batch, -1)
    ),
    "restarting documents": lambda batch, length: _given(
        torch.cat([torch.arange(length // 2), torch.arange(length - length // 2)]).expand(batch, -1),
        (torch.arange(length) >= length // 2).long().expand(batch, -1),
    ),
    "last queries of documents": lambda batch, length: last(
        _given(torch.arange(length).expand(batch, -1), _documents(batch, length)), max(1, length // 3)
    ),
    "nothing to see": lambda batch, length: _given(
        torch.arange(length).expand(batch, -1), torch.full((batch, length), -1)
    ),
    **{
        f"ids that {kind}": lambda batch, length, kind=kind: _given(_ids(kind, batch, length))
        for kind in ("jump", "repeat", "restart")
    },
    "negative ids": lambda batch, length: _given(_ids("negative", batch, length)),
    "shuffled ids": lambda batch, length: _given(_ids("shuffled", batch, length)),
    "bidirectional shuffled ids": lambda batch, length: _given(_ids("shuffled", batch, length), causal=False),
    "last queries of shuffled ids": lambda batch, length: last(
        _given(_ids("shuffled", batch, length)), max(1, length // 3)
    ),
}


@dataclass(frozen=True)
class Sizes:
    """The sizes that terms depend on."""

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int


def table(draw: Draw, at: Sizes, columns: int = 11, zero: int = 3) -> DistanceTable:
    """Narrower than the distances, so that both ends are met."""
    return DistanceTable(draw(at.heads, columns), zero)


def ramp(draw: Draw, at: Sizes) -> Ramp:
    return Ramp(draw(at.batch, at.heads, at.queries), draw(at.batch, at.heads, at.keys))


def distance_dot(draw: Draw, at: Sizes) -> DistanceDot:
    return DistanceDot(draw(at.batch, at.heads, at.queries, 6), draw(at.heads, 11, 6), zero=3)


def fire(draw: Draw, at: Sizes) -> Fire:
    return Fire(draw.positive(), draw.positive(), draw(5), draw(5), draw(at.heads, 5), draw(at.heads))


def log_dot(draw: Draw, at: Sizes) -> LogDot:
    return LogDot(draw(at.batch, at.heads, at.queries, 4), draw(at.batch, at.groups, at.keys, 4), floor=1e-2)


def grid(draw: Draw, at: Sizes) -> Grid:
    return Grid(draw(at.batch, at.heads, at.queries, at.keys))


def head_mix(
    draw: Draw, at: Sizes, *, kernel: int = 1, form: str = "residual", biased: bool = True, width: int = 6
) -> HeadMix:
    channels = 2 * at.heads if biased and form in ("residual", "concat") else at.heads
    # of a size at which neither layer vanishes or drowns the scores
    w_in = draw(width, channels, kernel).detach() / math.sqrt(channels * kernel)
    w_out = draw(at.heads, width, kernel).detach() / math.sqrt(width * kernel)
    return HeadMix(w_in.requires_grad_(), draw(width), w_out.requires_grad_(), draw(at.heads), form)


def cope(draw: Draw, at: Sizes, positions: int = 5) -> Cope:
    return Cope(draw(at.batch, at.heads, at.queries, positions))


BIASES: dict[str, Callable[[Draw, Sizes], object]] = {
    "table": table,
    "ramp": ramp,
    "distance dot": distance_dot,
    "fire": fire,
    "log dot": log_dot,
    "grid": grid,
}
PAIRS: dict[str, Callable[[Draw, Sizes], Pairs]] = {
    "nothing": lambda draw, at: Pairs(),
    **{name: lambda draw, at, make=make: Pairs((make(draw, at),)) for name, make in BIASES.items()},
    "two tables": lambda draw, at: Pairs((table(draw, at), table(draw, at, columns=7, zero=2))),
    "table and ramp": lambda draw, at: Pairs((table(draw, at), ramp(draw, at))),
    **{
        f"mix {kernel} {form}": lambda draw, at, kernel=kernel, form=form: Pairs(
            (table(draw, at),), head_mix(draw, at, kernel=kernel, form=form)
        )
        for kernel in (1, 3, 5, 7)
        for form in ("residual", "concat", "add", "bias")
    },
    **{
        f"mix {kernel} alone": lambda draw, at, kernel=kernel: Pairs(
            (), head_mix(draw, at, kernel=kernel, biased=False)
        )
        for kernel in (1, 3, 5, 7)
    },
    **{
        f"mix 3 of {name}": lambda draw, at, make=make: Pairs((make(draw, at),), head_mix(draw, at, kernel=3))
        for name, make in BIASES.items()
        if name != "table"
    },
    "mix 1 of table and ramp": lambda draw, at: Pairs((table(draw, at), ramp(draw, at)), head_mix(draw, at)),
    "cope": lambda draw, at: Pairs((), cope(draw, at)),
    "cope and table": lambda draw, at: Pairs((table(draw, at),), cope(draw, at)),
}


@dataclass(frozen=True)
class Attention:
    """A call with all that gradients can be asked of."""

    q: Tensor
    k: Tensor
    v: Tensor
    layout: Layout
    pairs: Pairs

    @classmethod
    def make(
        cls,
        pairs: str,
        layout: str,
        *,
        batch: int = 3,
        length: int = 23,
        heads: int = 4,
        groups: int = 2,
        width: int = 8,
        values: int = 5,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> Attention:
        draw, where = Draw(seed, dtype), LAYOUTS[layout](batch, length)
        at = Sizes(batch, heads, groups, where.queries, where.keys)
        q = draw(batch, heads, where.queries, width)
        k, v = draw(batch, groups, where.keys, width), draw(batch, groups, where.keys, values)
        return cls(q, k, v, where, PAIRS[pairs](draw, at))

    @property
    def inputs(self) -> list[Tensor]:
        return [self.q, self.k, self.v, *self.pairs.tensors()]

    @property
    def call(self) -> Call:
        return Call.checked(self.q, self.k, self.v, self.layout, self.pairs, None, 0.0)

    def to(self, dtype: torch.dtype) -> Attention:
        """The same numbers, rounded once if at all."""
        q, k, v, *rest = (x.detach().to(dtype).requires_grad_() for x in self.inputs)
        return Attention(q, k, v, self.layout, self.pairs.holding(rest))

    def on(self, device: str) -> Attention:
        q, k, v, *rest = (x.detach().to(device).requires_grad_() for x in self.inputs)
        return Attention(q, k, v, self.layout.to(device), self.pairs.holding(rest))

    def run(self, backend: str, **settings: float) -> list[Tensor]:
        """The output, then the gradients of q, k, v and of every tensor of the pairs."""
        out = attend(self.q, self.k, self.v, self.layout, self.pairs, backend=backend, **settings)
        return self.differentiated(out)

    def differentiated(self, out: Tensor) -> list[Tensor]:
        generator = torch.Generator().manual_seed(11)
        grad = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
        found = torch.autograd.grad(out, self.inputs, grad, allow_unused=True)
        return [
            out.detach(),
            *(torch.zeros_like(x) if g is None else g for x, g in zip(self.inputs, found, strict=True)),
        ]

    def able(self) -> list[str]:
        """The backends that run it, but for the reference."""
        call = self.call
        return [b.name for b in BACKENDS if b.name != "reference" and b.refuses(call) is None]


def tiles_of(patch: pytest.MonkeyPatch, *, rows: int, keys: int, pairs: int, scores: int) -> None:
    """Every backend cuts its work into tiles of these sizes, until the patch is undone."""
    patch.setattr("adapos.kernels.tiles.ROWS", rows)
    patch.setattr("adapos.kernels.tiles.KEYS", keys)
    patch.setattr("adapos.kernels.tiles.PAIRS", pairs)
    patch.setattr("adapos.kernels.sdpa.MASK", scores)
    patch.setattr(next(backend for backend in BACKENDS if backend.name == "tiled"), "scores", scores)


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to numbers above 1; infinite where something is not finite."""
    assert a.shape == b.shape, f"{tuple(a.shape)} against {tuple(b.shape)}"
    a, b = a.detach().double(), b.detach().double()
    if not (a.isfinite().all() and b.isfinite().all()):
        return math.inf
    return float((a - b).abs().max() / b.abs().max().clamp(min=1.0)) if a.numel() else 0.0


def text(batch: int, length: int, seed: int = 2) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def encoding(spec: str, shape: Shape = SHAPE, *, moved: bool = True) -> PositionalEncoding:
    """In double precision, its parameters moved off their starting values, so that nothing hides behind a zero."""
    torch.manual_seed(0)
    made = build(spec, shape).double()
    if moved:
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(0.1 * torch.rand_like(parameter) + 0.05)
    return made


def decoder(spec: str | PositionalEncoding, shape: Shape = SHAPE, *, moved: bool = True, **settings: object) -> Decoder:
    """In double precision, with weights large enough for positions to matter; the same for every encoding."""
    made = encoding(spec, shape, moved=moved) if isinstance(spec, str) else spec
    torch.manual_seed(1)
    model = Decoder(VOCABULARY, shape, made, **settings).double().eval()  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("encoding.") and parameter.ndim > 1:
                parameter.normal_(std=1.5 / math.sqrt(parameter.shape[-1]))
    return model


def part(encoding: PositionalEncoding, name: str) -> PositionalEncoding:
    """The part of that name, or the encoding itself."""
    parts = encoding.parts if isinstance(encoding, Compose) else [encoding]
    return next(p for p in parts if p.name == name)  # type: ignore[return-value]
