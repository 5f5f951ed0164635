"""Encodings broken on purpose: each is caught, by the name of the promise that it breaks and by no other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adapos
from adapos import Keys, Layout, Pairs, PositionalEncoding, Promises, Shape, Tokens
from adapos.layout import ALL
from adapos.pairs import Bias, DistanceTable, Grid, Ramp, wide

pytestmark = pytest.mark.usefixtures("one_thread")


class Biased(PositionalEncoding):
    """A bias of every pair, written out."""

    biases = True

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        values = self.values(q, keys, layout).to(wide(q).dtype)
        return Pairs((Grid(values.expand(layout.batch, self.shape.heads, layout.queries, layout.keys)),))

    def values(self, q: Tensor, keys: Keys, layout: Layout) -> Tensor:
        raise NotImplementedError


def indices(layout: Layout) -> tuple[Tensor, Tensor]:
    """The indices of the queries and of the keys, as doubles."""
    query = torch.arange(layout.start, layout.start + layout.queries)
    return query.double()[:, None], torch.arange(layout.keys).double()


class Marked(PositionalEncoding):
    """A number for each token, cached beside its key."""

    biases = True

    def tokens(self, layer: int, t: Tokens, pos: Tensor, state: Any) -> Tokens:
        return t.but(extra={**t.extra, "mark": t.x[..., : self.shape.heads].transpose(1, 2)})

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        mark = self.read(keys.extra["mark"], layout)
        return Pairs((Ramp(torch.zeros_like(q[..., 0]), mark),))

    def read(self, mark: Tensor, layout: Layout) -> Tensor:
        return mark


class SeesTheFuture(Marked):
    """Each key is marked with the token behind it."""

    def read(self, mark: Tensor, layout: Layout) -> Tensor:
        return mark.roll(-1, dims=2)


class SeesTheMean(PositionalEncoding):
    """Keys are moved by the mean of all tokens of a call, whatever comes after them."""

    def tokens(self, layer: int, t: Tokens, pos: Tensor, state: Any) -> Tokens:
        return t.but(k=t.k * (1 + t.x.mean((1, 2)))[:, None, None, None])


class ForgetsTheOffset(Biased):
    """Distance counted as if the first query of a call were the first key."""

    def values(self, q: Tensor, keys: Keys, layout: Layout) -> Tensor:
        query, key = indices(layout)
        return -0.1 * ((query - layout.start) - key).abs()


class CountsKeys(Biased):
    """Distance relative to how many keys there happen to be."""

    def values(self, q: Tensor, keys: Keys, layout: Layout) -> Tensor:
        query, key = indices(layout)
        return -(query - key).abs() / layout.keys


class ReadsTheIndex(Biased):
    """Where a key stands in the batch, not which id it has."""

    def values(self, q: Tensor, keys: Keys, layout: Layout) -> Tensor:
        return indices(layout)[1].sin()


class ReadsAcrossDocuments(Marked):
    """Each key is marked with the token before it, of whichever document. Padding is at least left out."""

    def read(self, mark: Tensor, layout: Layout) -> Tensor:
        if layout.k_doc is not None:
            mark = mark.masked_fill((layout.k_doc == -1)[:, None], 0.0)
        return torch.cat([torch.zeros_like(mark[:, :, :1]), mark[:, :, :-1]], dim=2)


class ReadsPadding(Marked):
    """Each key is marked with the token before it in its document, padding taken for one of it."""

    def read(self, mark: Tensor, layout: Layout) -> Tensor:
        before = torch.cat([torch.zeros_like(mark[:, :, :1]), mark[:, :, :-1]], dim=2)
        if layout.k_doc is None:
            return before
        other = (layout.k_doc[:, 1:] != layout.k_doc[:, :-1]) & (layout.k_doc[:, :-1] != -1)
        return before.masked_fill(torch.cat([torch.zeros_like(other[:, :1]), other], dim=1)[:, None], 0.0)


class ClaimsToBeRelative(PositionalEncoding):
    """The id itself is added to the embeddings."""

    def begin(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Any]:
        return x + (0.1 * pos).sin()[..., None].to(x.dtype), pos, None


class IsTooModest(PositionalEncoding):
    promises = Promises(relative=False, because="nobody looked")


class Tripled(torch.autograd.Function):
    """x -> x^3, with the gradient of x^2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * grad


class WrongGradient(Biased):
    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.slope = nn.Parameter(torch.full((shape.heads, 1, 1), 0.3))

    def values(self, q: Tensor, keys: Keys, layout: Layout) -> Tensor:
        return -Tripled.apply(self.slope) * layout.distance().abs()


class WrongGradientOfKeys(PositionalEncoding):
    def tokens(self, layer: int, t: Tokens, pos: Tensor, state: Any) -> Tokens:
        return t.but(k=Tripled.apply(t.k))


class RemembersCalls(Biased):
    """Every call is a little further than the last."""

    calls = 0

    def values(self, q: Tensor, keys: Keys, layout: Layout) -> Tensor:
        self.calls += 1
        return -0.01 * self.calls * layout.distance().abs()


class NeedsOneKeyPerHead(PositionalEncoding):
    def tokens(self, layer: int, t: Tokens, pos: Tensor, state: Any) -> Tokens:
        return t.but(k=t.k + 0.1 * t.q)


class Undeclared(PositionalEncoding):
    """A table of some ids that says nothing of its size."""

    promises = Promises(relative=False, because="a vector for each id")
    table = torch.linspace(0, 20, 5000).sin()

    def begin(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Any]:
        return x + self.table[pos.clamp(max=self.size())][..., None].to(x.dtype), pos, None

    def size(self) -> int:
        return 2**60


class UnenforcedLimit(Undeclared):
    """Ids past the table, declared as the limit, are taken for the last one."""

    promises = Promises(relative=False, longest=5000, because="a vector for each id")

    def size(self) -> int:
        return 4999


class UndeclaredCausality(Biased):
    def values(self, q: Tensor, keys: Keys, layout: Layout) -> Tensor:
        if not layout.causal:
            raise NotImplementedError("only the past is known")
        return -0.1 * layout.distance().abs().double()


class DividesByWhatItSees(Biased):
    """A bias divided among the keys that a query sees: infinite for a query that sees none."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.share = nn.Parameter(torch.ones(shape.heads, 1, 1))

    def values(self, q: Tensor, keys: Keys, layout: Layout) -> Tensor:
        near = 1.0 / (1.0 + layout.distance().abs())
        return self.share * near / layout.visible().sum(-1, keepdim=True)


class ForgetsToCast(PositionalEncoding):
    """Adds doubles, whatever the model's precision."""

    promises = Promises(relative=False, because="the id is added")

    def begin(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Any]:
        return x + (0.1 * pos).double().sin()[..., None], pos, None


class OverflowsHalf(Biased):
    """Far keys are hidden by a number that float16 does not hold; beside it nothing is left of the rest."""

    def values(self, q: Tensor, keys: Keys, layout: Layout) -> Tensor:
        return (-1e5 * (layout.distance() > 10)).to(q.dtype) * q.new_zeros(())


class NeedsTwoTokens(Biased):
    def values(self, q: Tensor, keys: Keys, layout: Layout) -> Tensor:
        if layout.keys == 1:
            raise ZeroDivisionError("distance / (keys - 1)")
        return -0.1 * layout.distance().abs()


@dataclass(frozen=True, eq=False)
class WholeRows(Bias):
    """A term of its own that computes every row, whichever it is asked for."""

    slope: Tensor  # (H,)

    def sizes(self, batch: int, heads: int, queries: int, keys: int) -> dict[str, tuple[int | None, ...]]:
        return {"slope": (heads,)}

    def rows(self, layout: Layout, rows: slice = ALL) -> Tensor:
        return -self.slope[:, None, None] * layout.distance().abs()


@dataclass(frozen=True, eq=False)
class Rescaled(DistanceTable):
    """Rows that are not those of the table, which is what fused backends read, unless it is of doubles."""

    def rows(self, layout: Layout, rows: slice = ALL) -> Tensor:
        return super().rows(layout, rows) * (1 if self.table.dtype == torch.float64 else 2)


class MisleadsKernels(PositionalEncoding):
    biases = True

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        distance = layout.distances().abs().to(wide(q).dtype).expand(self.shape.heads, -1)
        return Pairs((Rescaled(-0.1 * distance / (1 if q.dtype == torch.float64 else 2), zero=layout.ahead),))


class HasNoGradientInSingle(PositionalEncoding):
    biases = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.slope = nn.Parameter(torch.ones(shape.heads))

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        # a root of what is 0 in float32
        root = (1 + self.slope * 1e-12 - 1).abs().sqrt()[:, None]
        distance = layout.distances().abs().to(self.slope.dtype)
        return Pairs((DistanceTable(-0.1 * self.slope[:, None] * distance - root, zero=layout.ahead),))


class IgnoresRows(PositionalEncoding):
    biases = True

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        return Pairs((WholeRows(torch.linspace(0.1, 1, self.shape.heads, dtype=q.dtype)),))


BROKEN: list[tuple[type[PositionalEncoding], set[str]]] = [
    (SeesTheFuture, {"decoding", "ids", "groups", "future", "padding", "packing", "bidirectional"}),
    (SeesTheMean, {"decoding", "ids", "groups", "future", "padding", "packing", "bidirectional"}),
    (ForgetsTheOffset, {"decoding", "ids", "groups"}),
    (CountsKeys, {"decoding", "ids", "groups", "future", "padding", "packing", "bidirectional"}),
    (ReadsTheIndex, {"padding", "packing"}),
    (ReadsAcrossDocuments, {"packing"}),
    (ReadsPadding, {"padding"}),
    (ClaimsToBeRelative, {"relative"}),
    (IsTooModest, {"relative"}),
    (WrongGradient, {"gradients"}),
    (WrongGradientOfKeys, {"gradients"}),
    (NeedsOneKeyPerHead, {"groups"}),
    (Undeclared, {"longest"}),
    (UnenforcedLimit, {"longest"}),
    (UndeclaredCausality, {"bidirectional"}),
    (DividesByWhatItSees, {"backends", "single", "blind"}),
    (ForgetsToCast, {"precision"}),
    (OverflowsHalf, {"precision"}),
    (NeedsTwoTokens, {"packing", "lengths", "backends"}),
    (IgnoresRows, {"backends"}),
    (MisleadsKernels, {"single", "precision"}),
    (HasNoGradientInSingle, {"single"}),
]


@pytest.mark.parametrize(("broken", "promises"), BROKEN, ids=[broken.__name__ for broken, _ in BROKEN])
def test_a_broken_encoding_is_caught_by_the_name_of_the_promise(
    broken: type[PositionalEncoding], promises: set[str]
) -> None:
    report = adapos.check(broken)
    assert set(report.broken) == promises, f"\n{report}"
    assert not report.ok
    assert not report


def test_what_is_kept_between_calls_is_caught() -> None:
    report = adapos.check(RemembersCalls)
    assert {"repeatable", "decoding"} <= set(report.broken), f"\n{report}"


@pytest.mark.usefixtures("registry")
def test_a_parameter_that_the_spec_cannot_write_down_is_caught() -> None:
    @adapos.register("forgetful")
    class Forgetful(PositionalEncoding):
        def __init__(self, shape: Shape, size: int = 3) -> None:
            super().__init__(shape)

    report = adapos.check("forgetful(size=4)")
    assert report.broken == ("round_trip",), f"\n{report}"
    assert "forgetful must keep its parameter 'size' as an attribute of the same name" in str(report)


@pytest.mark.usefixtures("registry")
def test_a_parameter_that_comes_back_changed_is_caught() -> None:
    @adapos.register("growing")
    class Growing(PositionalEncoding):
        def __init__(self, shape: Shape, size: int = 3) -> None:
            super().__init__(shape)
            self.size = 2 * size

    report = adapos.check("growing(size=4)")
    assert report.broken == ("round_trip",), f"\n{report}"
    assert "builds an encoding that calls itself 'growing(size=16)'" in str(report)


@pytest.mark.usefixtures("registry")
def test_numbers_that_the_state_dict_leaves_out_are_caught() -> None:
    @adapos.register("hidden")
    class Hidden(Biased):
        def __init__(self, shape: Shape) -> None:
            super().__init__(shape)
            self.slope = torch.rand(shape.heads, 1, 1).double()

        def values(self, q: Tensor, keys: Keys, layout: Layout) -> Tensor:
            return -self.slope * layout.distance().abs()

    report = adapos.check("hidden")
    assert report.broken == ("round_trip",), f"\n{report}"


@pytest.mark.usefixtures("registry")
def test_an_encoding_of_ones_own_that_is_sound_passes_whole() -> None:
    """So that the ones above are caught for what is broken in them."""

    class Sound(Biased):
        def __init__(self, shape: Shape, power: float = 0.5) -> None:
            super().__init__(shape)
            self.power = power
            self.slope = nn.Parameter(torch.linspace(0.1, 1.0, shape.heads)[:, None, None])

        def values(self, q: Tensor, keys: Keys, layout: Layout) -> Tensor:
            return -self.slope * (1 + layout.distance().abs()) ** self.power

    report = adapos.check(Sound)
    assert report.ok, f"\n{report}"
    verdicts = {finding.promise: finding.verdict for finding in report}
    assert verdicts["round_trip"] == "exempt"
    adapos.register("sound")(Sound)
    report = adapos.check("sound(power=1.5)")
    assert {finding.verdict for finding in report} == {"held"}, f"\n{report}"


def test_an_encoding_that_fails_is_broken_with_its_own_words() -> None:
    class Failing(PositionalEncoding):
        def begin(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Any]:
            raise KeyError("nothing works")

    report = adapos.check(Failing)
    assert "KeyError: 'nothing works'" in str(report)
    assert "decoding" in report.broken
