"""The arithmetic of docs/gpu-design.md: what a tile needs, what a pair costs, and how long that takes at best.

python tools/arithmetic.py    writes the tables of the page anew, from the kernels' own tiles
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adapos.kernels.triton import launch, sizes
from adapos.kernels.triton.launch import Kernel, Tile

PAGE = Path(__file__).parent.parent / "docs" / "gpu-design.md"
HALF, SINGLE = 2, 4  # bytes of a number of the texts, and of all others
PRODUCT = 128  # queries or keys of a tile of torch's products of matrices
TEXTS = 64  # queries of a tile of gather and of FlashAttention
EFFICIENCY = 0.6  # of the peak, at which FlashAttention is said to run


@dataclass(frozen=True)
class Device:
    name: str
    operations: float  # a second, of tensor cores in half precision; of TF32 it does half as many
    cache: float  # bytes a second of its second cache: round numbers of what others have measured
    memory: float  # bytes a second of its main memory


DEVICES = (Device("A100", 312e12, 5e12, 1.55e12), Device("H100", 989e12, 7e12, 3.35e12))


@dataclass(frozen=True)
class Model:
    """Texts in half precision, a table over distance, and a mix of both."""

    heads: int = 12
    width: int = 64  # of a head, and of its values
    channels: int = 32
    taps: int = 1

    @property
    def padded(self) -> int:
        return sizes.up(self.heads)

    @property
    def matrices(self) -> int:
        """Numbers of the three matrices of a mix: of scores, of biases, and of the hidden layer."""
        return 3 * self.taps * self.channels * self.padded

    def tile(self, kernel: Kernel) -> Tile:
        """The largest that it has registers for."""
        of = {"HEADS": self.padded, "TAPS": self.taps, "CHANNELS": self.channels, "VALUES": sizes.up(self.width)}
        return kernel.fitting(of)[0]

    def halo(self, kernel: Kernel) -> float:
        """How many pairs are computed for one that counts: others are there for taps alone."""
        tile = self.tile(kernel)
        return tile.M * tile.N / tile.useful(self.taps)


# --- what a program of weigh needs


def numbers(model: Model, tile: Tile) -> float:
    """That a thread of `weigh` holds: scores, biases and logits, some channels, and the product added to them."""
    assert launch.WEIGH.block is not None
    return tile.M * tile.N * (3 * model.padded + 2 * launch.WEIGH.block) / tile.threads


def kept(model: Model, tile: Tile) -> bool:
    """Whether `weigh` keeps all numbers of its keys while it goes through queries."""
    return model.padded * tile.N * model.width <= sizes.KEPT


def shared(model: Model, tile: Tile) -> int:
    """Bytes of a program of `weigh`: matrices, keys and queries."""
    assert tile.depth is not None
    depth = model.width if kept(model, tile) else tile.depth
    texts = model.padded * (tile.N * depth + tile.M * tile.depth)
    return SINGLE * model.matrices + HALF * texts


# --- what a pair costs, all heads together


def operations(model: Model, *, backward: bool) -> tuple[float, float]:
    """In half precision, and in TF32. Where all heads are together they are padded."""
    scores = 2 * model.padded * model.width * model.halo(launch.WEIGH)
    values = 2 * model.heads * model.width
    product = 2 * model.padded * model.channels * model.taps
    weigh = 3 * product * model.halo(launch.WEIGH)
    if not backward:
        return scores + values, weigh
    # unmix and learn: the first layer of two matrices and the slope of the second, again; then what each is for
    unmix, learn = 5 * product * model.halo(launch.UNMIX), 6 * product * model.halo(launch.LEARN)
    return scores + values + 3 * values, weigh + unmix + learn


def plain(model: Model, *, backward: bool) -> float:
    """Of attention without a mix: two products, and five in the backward pass."""
    return (5 if backward else 2) * 2 * model.heads * model.width


def traffic(model: Model, *, backward: bool) -> dict[str, float]:
    """Bytes through the second cache, by kernel."""
    half, single = HALF * model.heads, SINGLE * model.heads  # of one number of all heads
    of_texts = half * model.width
    weigh, unmix, learn = launch.WEIGH, launch.UNMIX, launch.LEARN
    scored = of_texts * (model.halo(weigh) / sizes.SPAN + 1 / (model.tile(weigh).N - sizes.halo(model.taps)))
    if not backward:
        return {"weigh": scored + single, "gather": single + of_texts / TEXTS}
    blocks = model.channels // weigh.block
    program = sizes.SPAN * (model.tile(learn).N - sizes.halo(model.taps))
    # cleared, written and read
    sums = 3 * SINGLE * (model.matrices + model.channels) / program
    return {
        "weigh": scored + 2 * single,
        "differentiate": single + 2 * of_texts / TEXTS + half + single,
        "unmix": 2 * single * model.halo(unmix) + half + single,
        "learn": 2 * single * model.halo(learn) * blocks + sums,
        "torch and tally": 3 * half + single + 3 * of_texts / PRODUCT,
    }


def remembered(model: Model, *, backward: bool) -> float:
    """Bytes through main memory: those of a chunk, which no cache holds. What neighbours read twice, it does."""
    half, single = HALF * model.heads, SINGLE * model.heads
    if not backward:
        return 2 * single
    weigh, differentiate, unmix = 2 * single, 2 * single + half, 3 * single + half
    learn, torch, tally = 2 * single, 3 * half, single
    return weigh + differentiate + unmix + learn + torch + tally


def picoseconds(model: Model, device: Device, *, backward: bool) -> tuple[float, float, float]:
    """Of a pair, by arithmetic alone, by bytes of the second cache alone, and by those of main memory."""
    half, tf32 = operations(model, backward=backward)
    through = sum(traffic(model, backward=backward).values())
    return (
        1e12 * (half + 2 * tf32) / device.operations,
        1e12 * through / device.cache,
        1e12 * remembered(model, backward=backward) / device.memory,
    )


# --- the tables


def fits() -> str:
    lines = []
    for heads in (8, 12, 16, 32):
        for channels in (16, 32, 64):
            found: list[list[str]] = [[], [], [], []]
            for taps in (1, 3):
                narrow, wide = (Model(heads, width, channels, taps) for width in (64, 128))
                tile = narrow.tile(launch.WEIGH)
                cells = tile.size, f"{numbers(narrow, tile):.0f}", *(kilo(shared(m, tile)) for m in (narrow, wide))
                for column, cell in zip(found, cells, strict=True):
                    column.append(cell)
            lines.append([str(heads), str(channels), *(", ".join(column) for column in found)])
    heads = ["H", "W", "tile", "numbers a thread", "kB shared, D = 64", "D = 128"]
    return "k = 1, k = 3:\n\n" + table(heads, lines)


def programs() -> str:
    lines = []
    for heads in (8, 12, 16, 32):
        for channels in (16, 32, 64):
            cells = []
            for width in (64, 128):
                for taps in (1, 3):
                    model = Model(heads, width, channels, taps)
                    pairs = sizes.SPAN * (model.tile(launch.WEIGH).N - sizes.halo(taps))
                    half, tf32 = operations(model, backward=False)
                    half -= 2 * heads * width  # those of gather
                    done, moved = pairs * (half + tf32), pairs * traffic(model, backward=False)["weigh"]
                    cells.append(f"{done / 1e6:.1f} M / {kilo(moved)} kB = {done / moved:.0f}")
            lines.append([str(heads), str(channels), *cells])
    return table(["H", "W", "D = 64, k = 1", "k = 3", "D = 128, k = 1", "k = 3"], lines)


def pair() -> str:
    lines = []
    for backward in (False, True):
        for taps in (1, 3):
            model = Model(taps=taps)
            half, tf32 = operations(model, backward=backward)
            usual = plain(model, backward=backward)
            through = traffic(model, backward=backward)
            said = ", ".join(f"{name} {count:.0f}" for name, count in through.items())
            total, weighted = sum(through.values()), half + 2 * tf32
            lines.append(
                [
                    named(backward, taps), f"{half:,.0f}", f"{tf32:,.0f}", f"{weighted / usual:.1f} x",
                    f"{total:,.0f}: {said}", f"{remembered(model, backward=backward):,.0f}",
                ]
            )  # fmt: skip
    heads = ["", "half precision", "TF32", "beside FlashAttention's", "bytes, second cache", "main memory"]
    return table(heads, lines)


def prediction() -> str:
    lines = []
    for backward in (False, True):
        for taps in (1, 3):
            model, cells = Model(taps=taps), []
            for device in DEVICES:
                bounds = picoseconds(model, device, backward=backward)
                usual = 1e12 * plain(model, backward=backward) / (EFFICIENCY * device.operations)
                cells += [
                    ", ".join(f"{bound:.0f}" for bound in bounds),
                    f"{max(bounds) / usual:.0f} to {2 * max(bounds) / usual:.0f} x",
                ]
            lines.append([named(backward, taps), *cells])
    each = [f"{device.name}: {what}" for device in DEVICES for what in ("picoseconds", "ratio")]
    return table(["", *each], lines)


def named(backward: bool, taps: int) -> str:
    return f"{'backward' if backward else 'forward'}, k = {taps}"


def kilo(count: float) -> str:
    return f"{count / 1000:.0f}"


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = "|" + "---|" * len(heads)
    return "\n".join(["| " + " | ".join(heads) + " |", rule, *("| " + " | ".join(line) + " |" for line in lines)])


TABLES = {"fits": fits, "programs": programs, "pair": pair, "prediction": prediction}


def written(page: str) -> str:
    """The page with its tables made anew."""
    for name, made in TABLES.items():
        place = re.compile(rf"(?<=<!-- {name} -->\n).*(?=<!-- /{name} -->)", flags=re.DOTALL)
        page, count = place.subn(lambda _, made=made: f"{made()}\n", page)
        if count != 1:
            raise ValueError(f"the page must hold the marks <!-- {name} --> and <!-- /{name} --> once; add them")
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
