"""How far a fused backend may err from the reference in float64, and the calls that it is judged by."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from adapos import Layout, attend
from adapos.pairs import SLOPE, DistanceTable, HeadMix
from cases import PAIRS, Attention, Draw, Sizes, apart

# what fused backends do not compute
REFUSED = ("distance dot", "fire", "log dot", "grid", "cope")
KNOWN = [name for name in PAIRS if not any(term in name for term in REFUSED)]
SOME = ["nothing", "table", "table and ramp", "mix 1 residual", "mix 3 residual", "mix 5 bias", "mix 3 of ramp"]
# a rectifier's input that rounding moves across zero is nobody's error
EDGE = 3e-6
GROUPED = ("batch", "length", "heads", "groups", "width", "values")
SIZES = [(3, 47, 4, 2, 8, 5), (1, 71, 3, 3, 5, 9), (2, 53, 6, 1, 4, 4), (4, 37, 2, 2, 3, 40)]


@dataclass(frozen=True)
class Judge:
    """What a call should give: exactly, and as the reference finds it in the dtype of the call."""

    a: Attention
    truth: list[Tensor]
    usual: list[Tensor]
    edge: float  # how close the input of a rectifier comes to zero

    @classmethod
    def of(cls, a: Attention) -> Judge:
        nearest = [math.inf]
        rectified = F.leaky_relu

        def measured(x: Tensor, *rest: Any) -> Tensor:
            nearest.append(float(x.detach().abs().min()))
            return rectified(x, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(F, "leaky_relu", measured)
            truth = a.to(torch.float64).run("reference")
        return cls(a, truth, a.run("reference"), min(nearest))

    @classmethod
    def clear(cls, make: Callable[[int], Attention]) -> Judge:
        """Of the first seed that keeps away from the edges of rectifiers."""
        return next(judge for seed in range(100) if (judge := cls.of(make(seed))).edge > EDGE)

    def beyond(self, found: list[Tensor]) -> dict[str, str]:
        """What errs by more than twice what the usual way errs by, and a little."""
        dtype = self.a.q.dtype
        # sums of nothing but rounding are as large as what was rounded; in halves that is more than many gradients are
        floor = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
        least = 1.0 if dtype == torch.float32 else 1e-2
        names = ["out", *"qkv", *(f"term {i}" for i in range(len(found) - 4))][: len(found)]
        wrong = {}
        for name, x, eager, true in zip(names, found, self.usual, self.truth, strict=True):
            assert x.dtype == eager.dtype
            assert x.shape == eager.shape
            error = float((x.double() - true).abs().max())
            allowed = 2 * float((eager.double() - true).abs().max()) + floor * max(least, float(true.abs().max()))
            if not error <= allowed:  # NaN is not
                wrong[name] = f"{error:.2e} > {allowed:.2e}"
        return wrong


def made(pairs: str, layout: str, sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Judge:
    named = dict(zip(GROUPED, sizes, strict=True))
    return Judge.clear(lambda seed: Attention.make(pairs, layout, seed=seed, dtype=dtype, **named))


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    """Any ids and documents, of any sizes, at times wider than a vector and longer than a tile."""
    groups, repeats = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    batch, keys = draw(st.integers(1, 3)), draw(st.integers(1, 12) | st.integers(13, 90))
    queries = draw(st.integers(1, keys))
    seed = draw(st.integers(0, 2**20))
    random = Draw(seed, draw(st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16])))
    kind = draw(st.sampled_from(["straight", "straight", "jump", "any"]))
    first = draw(st.integers(-5, 50))
    steps = {"straight": (1, 2), "jump": (0, 4), "any": (-9, 10)}[kind]
    k_pos = first + random.integers(*steps, batch, keys).cumsum(1)
    documents = draw(st.sampled_from(["one", "one", "packed", "padded", "any"]))
    k_doc = torch.zeros(batch, keys, dtype=torch.long)
    if documents == "packed":
        k_doc = random.integers(0, 4, batch, keys).sort(1).values
    elif documents == "padded":
        k_doc = -(torch.arange(keys) < random.integers(0, keys + 1, batch, 1)).long()
        k_doc = k_doc.flip(1) if draw(st.booleans()) else k_doc
    elif documents == "any":
        k_doc = random.integers(-1, 3, batch, keys)
    start = draw(st.integers(0, keys - queries) | st.just(keys - queries))
    here = slice(start, start + queries)
    layout = Layout(
        k_pos[:, here],
        k_pos,
        k_doc[:, here],
        k_doc,
        start=start,
        causal=draw(st.booleans()),
        window=draw(st.none() | st.integers(1, keys + 2)),
    )
    at = Sizes(batch, groups * repeats, groups, queries, keys)
    sizes = st.integers(1, 9) | st.sampled_from([16, 31, 32, 33, 40])
    width = draw(sizes)
    q = random(batch, at.heads, queries, width)
    k, v = random(batch, groups, keys, width), random(batch, groups, keys, draw(sizes))
    return Attention(q, k, v, layout, PAIRS[draw(st.sampled_from(KNOWN))](random, at))


def operands(a: Attention, backend: str) -> tuple[Any, ...]:
    """What the operator of a backend is called with."""
    given: list[tuple[Any, ...]] = []

    class Spy(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is getattr(torch.ops.adapos, backend).default:
                given.append(args)
            return function(*args, **(kwargs or {}))

    with Spy(), torch.no_grad():
        attend(a.q, a.k, a.v, a.layout, a.pairs, backend=backend)
    # leaves, as the operator's own gradients are asked of them
    return tuple(
        x.detach().clone().requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x for x in given[0]
    )


def times(a: Attention, by: float) -> Judge:
    """With queries and keys so many times as large: one key has nearly all the weight of each row."""
    q, k = ((by * x).detach().requires_grad_() for x in (a.q, a.k))
    return Judge.of(replace(a, q=q, k=k))


def mixed(heads: int, channels: int, kernel: int, dtype: torch.dtype = torch.float32) -> Attention:
    """A table and a mix of so many channels."""
    a = Attention.make("table", "dense", batch=1, length=40, heads=heads, groups=2, dtype=dtype)
    draw = Draw(5, dtype)
    mix = HeadMix(
        draw(channels, 2 * heads, kernel), draw(channels), draw(heads, channels, kernel), draw(heads), form="residual"
    )
    return replace(a, pairs=replace(a.pairs, mix=mix))


def deviation(x: Tensor, true: Tensor) -> float:
    return float((x.double() - true).square().mean().sqrt())


def in_halves(a: Attention) -> Tensor:
    """Attention over a table and a mix as it is usually written, every number in the dtype of the texts."""
    (known,), mix, repeats = a.pairs.bias, a.pairs.mix, a.q.shape[1] // a.k.shape[1]
    assert isinstance(known, DistanceTable)
    assert isinstance(mix, HeadMix)
    k, v = (x.repeat_interleave(repeats, 1) for x in (a.k, a.v))
    places = torch.arange(k.shape[2], device=k.device)
    distance = places[:, None] - places
    ahead = distance < 0
    score = (a.q @ k.mT * a.q.shape[3] ** -0.5).masked_fill(ahead, 0)
    bias = known.table[:, (distance + known.zero).clamp(0, known.table.shape[1] - 1)][None].masked_fill(ahead, 0)
    both = torch.cat([score, bias.expand_as(score)], 1)
    hidden = F.leaky_relu(along_keys(mix.w_in, both) + mix.b_in[:, None, None], SLOPE).masked_fill(ahead, 0)
    more = along_keys(mix.w_out, hidden) + mix.b_out[:, None, None]
    return (score + bias + more).masked_fill(ahead, -torch.inf).softmax(-1) @ v


def along_keys(weights: Tensor, x: Tensor) -> Tensor:
    """(O, I, k) and (B, I, T, S) -> (B, O, T, S): a convolution, of zeros past the ends."""
    taps, keys = weights.shape[2], x.shape[3]
    padded = F.pad(x, (taps // 2, taps // 2))
    parts = [torch.einsum("oi,bits->bots", weights[..., at], padded[..., at : at + keys]) for at in range(taps)]
    return torch.stack(parts).sum(0)


def worse_than_in_halves(a: Attention) -> dict[int, str]:
    """What the Triton kernels, whose mixes are of TF32, find less well than `in_halves` does, by its number."""
    exact = a.to(torch.float64)
    truth, found, usual = exact.run("reference"), a.run("triton"), a.differentiated(in_halves(a))
    assert apart(in_halves(exact), truth[0]) < 1e-9
    wrong = {}
    # the last is the bias behind the mix, which no softmax sees
    for number, (x, plain, true) in enumerate(list(zip(found, usual, truth, strict=True))[:-1]):
        error, allowed = deviation(x, true), 1.1 * deviation(plain, true)
        if not error <= allowed:
            wrong[number] = f"{error:.2e} > {allowed:.2e}"
    return wrong
