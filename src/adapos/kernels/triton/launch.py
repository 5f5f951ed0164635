"""The kernels with their tiles, started. On a GPU the first call of its kind tries the tiles and keeps the fastest.

What a kind is does not depend on lengths: a bench that changes them all the time tries once, and compiles once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
import triton
from torch import Tensor

from adapos.kernels.triton import INTERPRETED, sizes
from adapos.kernels.triton.differentiate import differentiate as differentiating
from adapos.kernels.triton.gather import gather as gathering
from adapos.kernels.triton.learn import learn as learning
from adapos.kernels.triton.sizes import Chunk
from adapos.kernels.triton.tally import tally as tallying
from adapos.kernels.triton.tile import LOWEST
from adapos.kernels.triton.unmix import unmix as unmixing
from adapos.kernels.triton.weigh import weigh as weighing

MATRICES = ("w_score", "w_bias", "b_in", "w_out")
# settings that decide which tiles are the fastest
KIND = ["H", "HEADS", "D", "E", "CHANNELS", "TAPS", "MIXED", "TABLE", "IDS", "RAMP", "DOCS", "BIASED", "PRECISION"]
TRIES = 3  # tiles, at most
Grid = Callable[[Mapping[str, Any]], tuple[int, ...]]


@dataclass(frozen=True)
class Tile:
    """Queries x keys, numbers of a head or of its values at a time, and who works on it."""

    M: int
    N: int
    depth: int | None = None
    threads: int = 256
    stages: int = 1

    @property
    def size(self) -> str:
        return f"{self.M} x {self.N}"

    @property
    def sizes(self) -> dict[str, int]:
        return {"M": self.M, "N": self.N} | ({} if self.depth is None else {"DEPTH": self.depth})

    def useful(self, taps: int) -> int:
        """Pairs that are not there for taps alone."""
        return self.M * (self.N - sizes.halo(taps))


@dataclass(frozen=True)
class Kernel:
    """A kernel and its tiles."""

    run: Any
    tiles: tuple[Tile, ...]
    # numbers of one kind, of all pairs and heads of a tile or of its queries' values, that a thread has registers for:
    # of one tap, of several, and of several with 32 heads, as docs/gpu-resources.csv shows
    room: tuple[int, int, int]
    block: int | None = None  # channels of the hidden layer at a time
    gathers: bool = False  # a sum of values for each query
    zeroed: tuple[str, ...] = ()  # tensors of which it writes a part

    def fitting(self, of: Mapping[str, Any]) -> tuple[Tile, ...]:
        """Tiles that a call of these settings has registers for, the largest first; or the one that needs least."""
        taps, heads = (of[name] if name in self.names else 1 for name in ("TAPS", "HEADS"))
        values = of["VALUES"] if self.gathers else 0
        room: float = self.room[0 if taps == 1 else 1 if heads <= 16 else 2]
        if self.zeroed and taps > 3:  # a sum for each of them
            room /= 2
        if of.get("PRECISION") == "ieee":  # operands are in registers, too
            room /= 4 if taps > 1 or heads > 16 else 2

        def held(tile: Tile) -> float:
            return tile.M * (tile.N * heads + values) / tile.threads

        tiles = [tile for tile in self.tiles if tile.useful(taps) > 0]
        found = [tile for tile in tiles if held(tile) <= room] or [min(tiles, key=held)]
        return tuple(sorted(found, key=lambda tile: tile.useful(taps), reverse=True)[:TRIES])

    def configurations(self, of: Mapping[str, Any], lanes: int = 32) -> list[Any]:
        """For devices whose warps have so many lanes."""
        blocked = {} if self.block is None else {"BLOCK": self.block, "SPAN": sizes.SPAN}
        return [
            triton.Config(tile.sizes | blocked, num_warps=tile.threads // lanes, num_stages=tile.stages)
            for tile in self.fitting(of)
        ]

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self.run.arg_names)

    def __call__(self, grid: Grid, arguments: Mapping[str, Any]) -> None:
        taken = {name: x for name, x in arguments.items() if name in self.names}
        if INTERPRETED:
            self.start(self.configurations(taken)[0], grid, taken)
        elif torch.are_deterministic_algorithms_enabled():
            self.start_first(grid, taken)
        elif (kind := self.kind(taken)) in CHOSEN:
            self.start(CHOSEN[kind], grid, taken)
        else:
            tuner = self.tuner(taken)
            tuner[grid](**taken)
            CHOSEN[kind], TRIED[kind] = tuner.best_config, getattr(tuner, "configs_timings", {})

    def start(self, config: Any, grid: Grid, taken: Mapping[str, Any]) -> None:
        self.run[grid(config.kwargs)](
            **taken, **config.kwargs, num_warps=config.num_warps, num_stages=config.num_stages
        )

    def start_first(self, grid: Grid, taken: Mapping[str, Any]) -> None:
        """With the first tile that the device has memory for, which is the same one each time."""
        *others, last = self.configurations(taken, lanes())
        for config in others:
            try:
                return self.start(config, grid, taken)
            except triton.OutOfResources:
                continue  # nothing has been started
        self.start(last, grid, taken)

    def kind(self, taken: Mapping[str, Any]) -> tuple[Any, ...]:
        """What decides which tiles are the fastest: types, settings, and whether there is little or much to do."""
        device = next(x.device for x in taken.values() if isinstance(x, Tensor))
        types = tuple((name, x.dtype) for name, x in taken.items() if isinstance(x, Tensor))
        work = sizes.amount(taken["end"] - taken["begin"], taken["last"] - taken["first"])
        return self.run, device, types, work, *(taken.get(name) for name in KIND)

    def tuner(self, taken: Mapping[str, Any]) -> Any:
        """Triton's, around the kernel."""
        zeroed = [name for name in self.zeroed if taken[name] is not None]
        # there is one for each kind; the key is for what Triton may keep on disk
        key = [name for name in KIND if name in self.names]
        tuned = triton.autotune(self.configurations(taken, lanes()), key, reset_to_zero=zeroed)
        return tuned(self.run)


def lanes() -> int:
    """Threads of a warp."""
    return 32 if INTERPRETED else triton.runtime.driver.active.get_current_target().warp_size


# the configuration of each kind, once its tiles have been tried
CHOSEN: dict[tuple[Any, ...], Any] = {}
# milliseconds of each of its configurations, the median first and then what most runs lie between
TRIED: dict[tuple[Any, ...], dict[Any, Any]] = {}
WEIGH = Kernel(
    weighing,
    (
        Tile(16, 16, 32),
        Tile(8, 32, 16),
        Tile(4, 32, 16),
        Tile(2, 32, 16),
        Tile(4, 16, 16),
        Tile(1, 32, 16),
        Tile(2, 16, 16),
    ),
    (16, 16, 8),
    block=16,
)
UNMIX = Kernel(unmixing, (Tile(8, 32), Tile(4, 32), Tile(2, 32), Tile(1, 32)), (16, 8, 8), block=16)
LEARN = Kernel(
    learning,
    (Tile(4, 32), Tile(2, 32), Tile(1, 32), Tile(1, 16)),
    (8, 4, 4),
    block=16,
    zeroed=tuple(f"d_{name}" for name in MATRICES),
)
GATHER = Kernel(
    gathering,
    (
        Tile(64, 64, 64, threads=128, stages=2),
        Tile(64, 32, 64, threads=128, stages=2),
        Tile(16, 64, 64, threads=128, stages=2),
        Tile(32, 32, 32),
    ),
    (64, 0, 0),
    gathers=True,
)
DIFFERENTIATE = Kernel(
    differentiating,
    (Tile(64, 64, 64), Tile(64, 32, 64, threads=128), Tile(32, 32, 64, threads=128)),
    (16, 0, 0),
    zeroed=("of_weights", "of_means"),
)
TALLY = Kernel(tallying, (Tile(8, 128),), (8, 0, 0))

KERNELS = {
    "weigh": WEIGH,
    "gather": GATHER,
    "differentiate": DIFFERENTIATE,
    "unmix": UNMIX,
    "learn": LEARN,
    "tally": TALLY,
}


def all_heads(chunk: Chunk, taps: int) -> Grid:
    """Tiles whose outermost keys are there for taps alone, `sizes.SPAN` queries one after another."""
    return lambda tile: (
        triton.cdiv(len(chunk.keys), tile["N"] - sizes.halo(taps)),
        triton.cdiv(len(chunk.rows), sizes.SPAN),
        len(chunk.texts),
    )


def weigh(chunk: Chunk, **arguments: Any) -> None:
    WEIGH(all_heads(chunk, arguments["TAPS"]), arguments)


def unmix(chunk: Chunk, **arguments: Any) -> None:
    UNMIX(all_heads(chunk, arguments["TAPS"]), arguments)


def summed(of_mix: Mapping[str, Any]) -> int:
    """How many numbers a program of `learn` writes, of all channels."""
    return sum(x.numel() for name in MATRICES if (x := of_mix[name]) is not None)


def learn(chunk: Chunk, *, atomic: bool, **arguments: Any) -> Iterator[dict[str, Tensor]]:
    """The sums of each program, (programs, ...), by the names of the matrices, some tiles of keys after others."""
    blocks, whole = arguments["CHANNELS"] // LEARN.block, all_heads(chunk, arguments["TAPS"])
    programs = 1 if atomic else max(prod(whole(tile.sizes)) for tile in LEARN.fitting(arguments))
    pieces = -(-programs * summed(arguments) // sizes.LOGITS)

    def grid(tile: Mapping[str, Any]) -> tuple[int, ...]:
        tiles, *others = whole(tile)
        return triton.cdiv(tiles, pieces) * blocks, *others

    if not atomic:
        programs = max(prod(grid(tile.sizes)) for tile in LEARN.fitting(arguments)) // blocks
    for piece in range(pieces):
        found = {name: x.new_zeros((programs, *x.shape)) for name in MATRICES if (x := arguments[name]) is not None}
        of_sums = {f"d_{name}": found.get(name) for name in MATRICES}
        LEARN(grid, {**arguments, **of_sums, "piece": piece, "ATOMIC": atomic})
        yield found


def gather(chunk: Chunk, **arguments: Any) -> None:
    heads, parts = arguments["H"], arguments["parts"]
    GATHER(lambda tile: (triton.cdiv(len(chunk.rows), tile["M"]), heads, len(chunk.texts) * parts), arguments)


def differentiate(chunk: Chunk, **arguments: Any) -> None:
    """What is found first of each row, tile by tile, makes p and dlogit of every pair afterwards."""
    heads, rows = len(chunk.texts) * arguments["H"], len(chunk.rows)

    def grid(tile: Mapping[str, Any]) -> tuple[int, ...]:
        return triton.cdiv(len(chunk.keys), tile["N"]), triton.cdiv(rows, tile["M"]), heads

    tiles = max(grid(tile.sizes)[0] for tile in DIFFERENTIATE.fitting(arguments))
    found = arguments["d_out"].new_zeros((3, tiles, heads, rows), dtype=torch.float32)
    arguments |= dict(zip(("of_tops", "of_weights", "of_means"), found, strict=True))
    # of one kind, or the second might have another tile, whose products are rounded otherwise
    DIFFERENTIATE(grid, {**arguments, **dict(zip(("top", "shares", "delta"), found, strict=True)), "SUMMED": True})
    tops, weights, means = found
    top = tops.masked_fill_(weights == 0, LOWEST.value).amax(0)  # of tiles that are not there, too
    weights *= (tops - top).exp()
    total = weights.sum(0)
    shares = torch.where(total == 0, 0.0, 1 / total)
    delta = (means * (weights / total.masked_fill(total == 0, 1.0))).sum(0)
    DIFFERENTIATE(grid, {**arguments, "top": top, "shares": shares, "delta": delta, "SUMMED": False})


def tally(chunk: Chunk, grad: Tensor, **where: int) -> Tensor:
    """(H, .): sums of the gradient (n, H, t, .) of a chunk along diagonals, the least distance first."""
    heads, lines, distances = grad.shape[1], grad.shape[0] * grad.shape[2], len(chunk.rows) + len(chunk.keys) - 1
    tile = TALLY.tiles[0]
    across = triton.cdiv(distances, tile.N)
    parts = max(1, min(triton.cdiv(sizes.PROGRAMS, across * heads), triton.cdiv(lines, tile.M)))
    found = grad.new_empty((parts, heads, distances), dtype=torch.float32)
    share = triton.cdiv(lines, parts)
    TALLY(lambda tile: (across, heads, parts), {"sums": found, "grad": grad, **where, "lines": lines, "share": share})
    return found.sum(0, dtype=torch.float64)
