"""The kernels with their tiles, started. On a GPU the first call of its kind tries the tiles and keeps the fastest.

What a kind is does not depend on lengths: a bench that changes them all the time tries once, and compiles once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from adapos.kernels.triton import INTERPRETED
from adapos.kernels.triton.differentiate import differentiate as differentiating
from adapos.kernels.triton.gather import gather as gathering
from adapos.kernels.triton.learn import learn as learning
from adapos.kernels.triton.sizes import FEW, Chunk
from adapos.kernels.triton.unmix import unmix as unmixing
from adapos.kernels.triton.weigh import weigh as weighing

MATRICES = ("w_score", "w_bias", "b_in", "w_out")
# what decides which tiles are the fastest, beside the types of tensors
KIND = ["H", "HEADS", "D", "E", "CHANNELS", "TAPS", "MIXED", "TABLE", "IDS", "RAMP", "DOCS", "BIASED", "PRECISION"]
Grid = Callable[[Mapping[str, Any]], tuple[int, ...]]


@dataclass(frozen=True)
class Tile:
    """Queries x keys, numbers of a head or of its values at a time, and who works on it."""

    M: int
    N: int
    depth: int | None = None
    warps: int = 8
    stages: int = 1

    @property
    def size(self) -> str:
        return f"{self.M} x {self.N}"

    @property
    def sizes(self) -> dict[str, int]:
        """As the kernels that have all heads or one are told."""
        return {"M": self.M, "N": self.N} | ({} if self.depth is None else {"DEPTH": self.depth})


@dataclass(frozen=True)
class Kernel:
    """A kernel and the tiles it is tried with, the first of them where nothing can be tried."""

    run: Any
    tiles: tuple[Tile, ...]
    block: int | None = None  # channels of the hidden layer at a time
    held: int | None = None  # numbers of one kind that a program of all heads has room for
    restored: tuple[str, ...] = ()  # tensors that it reads and writes
    zeroed: tuple[str, ...] = ()  # tensors of which it writes a part

    def fitting(self, heads: int) -> tuple[Tile, ...]:
        """Those whose numbers of so many heads, padded, a program can hold."""
        return tuple(tile for tile in self.tiles if self.held is None or tile.M * tile.N * heads <= self.held)

    def configurations(self, heads: int) -> list[Any]:
        blocked = {} if self.block is None else {"BLOCK": self.block}
        return [
            triton.Config(tile.sizes | blocked, num_warps=tile.warps, num_stages=tile.stages)
            for tile in self.fitting(heads)
        ]

    def __call__(self, grid: Grid, arguments: Mapping[str, Any]) -> None:
        taken = {name: x for name, x in arguments.items() if name in self.run.arg_names}
        heads = taken.get("HEADS", 1)
        if INTERPRETED or torch.are_deterministic_algorithms_enabled():
            first = self.configurations(heads)[0]
            sizes = first.kwargs
            self.run[grid(sizes)](**taken, **sizes, num_warps=first.num_warps, num_stages=first.num_stages)
        else:
            self.tried(heads, few=taken["end"] - taken["begin"] <= FEW)[grid](**taken)

    def tried(self, heads: int, *, few: bool = False) -> Any:
        """The kernel with Triton's tuner around it, one for decoding and one for all else."""
        if (self, heads, few) not in TRIED:
            key = [name for name in KIND if name in self.run.arg_names]
            tuned = triton.autotune(
                self.configurations(heads), key, restore_value=list(self.restored), reset_to_zero=list(self.zeroed)
            )
            TRIED[self, heads, few] = tuned(self.run)
        return TRIED[self, heads, few]


TRIED: dict[Any, Any] = {}
# the first spills least wherever it is compiled, others may be faster where they fit
WEIGH = Kernel(weighing, (Tile(16, 16, 16), Tile(16, 32, 32), Tile(16, 16, 32, warps=4)), block=16, held=2**13)
UNMIX = Kernel(unmixing, (Tile(4, 32), Tile(8, 32), Tile(16, 16)), block=16, held=2**12)
LEARN = Kernel(
    learning,
    (Tile(4, 32), Tile(8, 32), Tile(16, 16)),
    block=16,
    held=2**13,
    zeroed=tuple(f"d_{name}" for name in MATRICES),
)
GATHER = Kernel(
    gathering,
    (
        Tile(32, 32, 32),
        Tile(64, 64, 64, warps=4, stages=2),
        Tile(64, 32, 64, warps=4, stages=2),
        Tile(16, 64, 64, warps=4, stages=2),
    ),
)
DIFFERENTIATE = Kernel(
    differentiating,
    (Tile(32, 32, 64, warps=4), Tile(64, 64, 64, warps=8), Tile(64, 32, 64, warps=4)),
    restored=("logits",),
)

KERNELS = {"weigh": WEIGH, "gather": GATHER, "differentiate": DIFFERENTIATE, "unmix": UNMIX, "learn": LEARN}


def all_heads(chunk: Chunk, taps: int) -> Grid:
    """Tiles whose outermost keys are there for taps alone."""
    halo = 4 * (taps // 2)
    return lambda tile: (
        triton.cdiv(len(chunk.keys), tile["N"] - halo),
        triton.cdiv(len(chunk.rows), tile["M"]),
        len(chunk.texts),
    )


def weigh(chunk: Chunk, **arguments: Any) -> None:
    WEIGH(all_heads(chunk, arguments["TAPS"]), arguments)


def unmix(chunk: Chunk, **arguments: Any) -> None:
    UNMIX(all_heads(chunk, arguments["TAPS"]), arguments)


def summed(of_mix: Mapping[str, Any]) -> int:
    """How many numbers `learn` writes for each pair, at most."""
    size = sum(x.numel() for name in MATRICES if (x := of_mix[name]) is not None)
    halo = 4 * (of_mix["TAPS"] // 2)
    return -(-size // min(tile.M * (tile.N - halo) for tile in LEARN.fitting(of_mix["HEADS"])))


def learn(chunk: Chunk, *, atomic: bool, **arguments: Any) -> dict[str, Tensor]:
    """The sums of each program, (programs, ...), by the names of the matrices."""
    grid = all_heads(chunk, arguments["TAPS"])
    programs = 1 if atomic else max(math.prod(grid(tile.sizes)) for tile in LEARN.fitting(arguments["HEADS"]))
    found = {name: x.new_zeros((programs, *x.shape)) for name in MATRICES if (x := arguments[name]) is not None}
    # what is not there gets something that can be zeroed all the same
    sums = {f"d_{name}": found.get(name, arguments["b_in"].new_zeros(1)) for name in MATRICES}
    LEARN(grid, {**arguments, **sums, "ATOMIC": atomic})
    return found


def gather(chunk: Chunk, **arguments: Any) -> None:
    heads, parts = arguments["H"], arguments["parts"]
    GATHER(lambda tile: (triton.cdiv(len(chunk.rows), tile["M"]), heads, len(chunk.texts) * parts), arguments)


def differentiate(chunk: Chunk, **arguments: Any) -> None:
    heads = len(chunk.texts) * arguments["H"]
    DIFFERENTIATE(
        lambda tile: (triton.cdiv(len(chunk.keys), tile["N"]), triton.cdiv(len(chunk.rows), tile["M"]), heads),
        arguments,
    )
