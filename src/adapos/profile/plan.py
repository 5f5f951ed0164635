"""What will be measured: the options of `adapos profile`, read and checked before anything runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from adapos import registry, sketch
from adapos.encoding import PositionalEncoding, Shape
from adapos.hints import meant
from adapos.kernels import named
from adapos.kernels.triton import INTERPRETED

PLAIN = "plain"  # what every ratio is to

MEASUREMENTS = {
    "forward": "one call of attention without gradients",
    "training": "one call of attention and its backward pass",
    "decode": "one query over the cached keys",
    "model": "a decoder, forward and backward",
}


@dataclass(frozen=True)
class Size:
    """A decoder by name."""

    vocabulary: int
    shape: Shape


SIZES = {
    "10m": Size(16000, Shape(layers=8, width=256, heads=4)),
    "125m": Size(50257, Shape(layers=12, width=768, heads=12)),
    "350m": Size(50257, Shape(layers=24, width=1024, heads=16)),
}


@dataclass(frozen=True)
class Plan:
    """The options. `heads`, `kv_heads` and `head_width` are of the attention calls; a model has those of its `size`."""

    encodings: tuple[str, ...]
    lengths: tuple[int, ...]
    what: tuple[str, ...]
    heads: int = 12
    kv_heads: int = 12
    head_width: int = 64
    batch: int = 1
    dtype: str = "float32"
    device: str = "cpu"
    threads: int = 1
    repeats: int = 5
    backend: str = "auto"
    size: str = "10m"
    memory: bool = True
    out: str = "profile"

    def __post_init__(self) -> None:
        for name in ("encodings", "lengths", "what"):  # lists, where they come from JSON
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("batch", "threads", "repeats"):
            registry.at_least("profile", name, getattr(self, name), 1)
        registry.one_of("profile", "size", self.size, tuple(SIZES))
        if self.backend != "auto":
            named(self.backend)
        if sketch.available(self.device).type not in ("cpu", "cuda"):
            raise ValueError(f"device must be cpu or cuda, not {self.device!r}: others are not timed yet")
        if INTERPRETED and (self.backend == "triton" or (self.on_gpu and self.backend == "auto")):
            raise ValueError(
                "TRITON_INTERPRET must not be on: Triton's interpreter would run the kernels in place of a GPU, and "
                "its times say nothing; unset it, or choose another backend than 'triton'"
            )
        for what, length in self.groups:
            sketch.countable(sketch.Size(self.batch, length, self.type, self.device, causal=True), self.shape(what))
        # an encoding that cannot be built is found now, not after an hour
        for what in self.what:
            for spec in self.encodings:
                self.build(spec, what)

    def shape(self, what: str) -> Shape:
        if what == "model":
            return SIZES[self.size].shape
        # two layers: a state that travels has somewhere to go
        width = max(1, self.heads * self.head_width)
        return Shape(layers=2, width=width, heads=self.heads, kv_heads=self.kv_heads, head_width=self.head_width)

    def build(self, spec: str, what: str) -> PositionalEncoding:
        """On the plan's device, always with the same parameters, in training or in evaluation as `what` asks."""
        torch.manual_seed(0)
        try:
            encoding = registry.build(spec, self.shape(what))
        except RuntimeError as problem:  # a table too large for the memory
            raise ValueError(f"{spec!r} cannot be built: {problem}") from None
        return encoding.to(self.device, self.type).train(what in ("training", "model"))

    @property
    def on_gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"

    @property
    def type(self) -> torch.dtype:
        found = getattr(torch, self.dtype)
        assert isinstance(found, torch.dtype)
        return found

    @property
    def groups(self) -> Iterator[tuple[str, int]]:
        """What is run side by side: every encoding for one measurement and length."""
        return ((what, length) for what in self.what for length in self.lengths)

    @property
    def settings(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def command(self) -> str:
        """The command line that makes this plan, with every option that matters."""
        given: dict[str, object] = {
            "encodings": ", ".join(self.encodings),
            "lengths": ",".join(map(str, self.lengths)),
            "what": ",".join(self.what),
        }
        if set(self.what) - {"model"}:
            given |= {"heads": self.heads, "kv-heads": self.kv_heads, "head-width": self.head_width}
        if "model" in self.what:
            given |= {"size": self.size}
        for name in ("batch", "dtype", "device", "threads", "repeats", "backend", "out"):
            given[name] = getattr(self, name)
        words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        return shlex.join(["adapos", "profile", *words, *([] if self.memory else ["--no-memory"])])


def measurements(text: str) -> tuple[str, ...]:
    """'forward,decode' -> what to measure, in the order given."""
    found: list[str] = []
    for part in text.split(","):
        word = part.strip()
        if word not in MEASUREMENTS:
            listed = ", ".join(MEASUREMENTS)
            raise ValueError(f"what must be some of {listed}, and {word!r} is none of them{meant(word, MEASUREMENTS)}")
        if word not in found:
            found.append(word)
    return tuple(found)
