"""The arithmetic of docs/gpu-design.md: what a tile needs, what a pair costs, and how long that takes at best.

python tools/arithmetic.py    writes the tables of the page anew, from the kernels' own tiles
"""

from __future__ import annotations

import csv
import re
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from adapos.kernels.triton import launch, sizes
from adapos.kernels.triton.launch import Kernel, Tile

DOCS = Path(__file__).parent.parent / "docs"
PAGE, RESOURCES = DOCS / "gpu-design.md", DOCS / "gpu-resources.csv"
HALF, SINGLE = 2, 4  # bytes of a number of the texts, and of all others
PRODUCT = 128  # queries or keys of a tile of torch's products of matrices
TEXTS = 64  # queries of a tile of gather and of FlashAttention
LENGTH = 8_192  # keys, from which follows how many queries a chunk has
COLUMNS = 8  # of a product on tensor cores, at least; its rows are keys where queries are fewer than 16
EFFICIENCY = 0.6  # of the peak, at which FlashAttention is said to run


NAMES = ("kernel", "target", "dtype", "heads", "width", "channels", "taps", "terms", "tile")


@dataclass(frozen=True)
class Device:
    name: str
    operations: float  # a second, of tensor cores in half precision; of TF32 it does half as many
    cache: float  # bytes a second of its second cache: assumed, in round numbers
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


# --- what a pair costs, all heads together


def operations(model: Model, *, backward: bool) -> tuple[float, float]:
    """In half precision, and in TF32. Where all heads are together they are padded."""
    empty = max(1, COLUMNS / model.tile(launch.WEIGH).M)  # tensor cores have room for more queries than some tiles
    scores = 2 * model.padded * model.width * model.halo(launch.WEIGH) * empty
    values = 2 * model.heads * model.width
    product = 2 * model.padded * model.channels * model.taps
    weigh = 3 * product * model.halo(launch.WEIGH)
    if not backward:
        return scores + values, weigh
    # unmix and learn: the first layer of two matrices and the slope of the second, again; then what each is for
    unmix, learn = 5 * product * model.halo(launch.UNMIX), 6 * product * model.halo(launch.LEARN)
    # dp twice, and the gradients of q, k and v
    return scores + 5 * values, weigh + unmix + learn


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
        "differentiate": 2 * single + 4 * of_texts / TEXTS + half + single,
        "unmix": 2 * single * model.halo(unmix) + half + single,
        "learn": 2 * single * model.halo(learn) * blocks + sums,
        "torch and tally": 3 * half + single + 3 * of_texts / PRODUCT + added(model),
    }


def added(model: Model) -> float:
    """Bytes of the gradients of k and v, which are added chunk by chunk: a product written and read, a sum the same."""
    chunk, *_ = sizes.chunks(
        1, LENGTH, LENGTH, heads=model.heads, numbers=model.heads, least=0, start=0, window=0, causal=True
    )
    return 2 * model.heads * model.width * (2 * HALF + 2 * SINGLE) / len(chunk.rows)


def remembered(model: Model, *, backward: bool) -> float:
    """Bytes through main memory: those of a chunk, which no cache holds. What neighbours read twice, it does."""
    half, single = HALF * model.heads, SINGLE * model.heads
    if not backward:
        return 2 * single
    weigh, differentiate, unmix = 2 * single, 3 * single + half, 3 * single + half
    learn, torch, tally = 2 * single, 3 * half + added(model), single
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


def compiled() -> dict[tuple[str, ...], dict[str, str]]:
    """The lines of gpu-resources.csv, by NAMES."""
    with RESOURCES.open(newline="") as file:
        return {tuple(line[name] for name in NAMES): line for line in csv.DictReader(file)}


def fits() -> str:
    """As compiled, of the first tile that each kernel of all heads is started with."""
    resources, lines = compiled(), []
    for heads in (8, 12, 16, 32):
        for channels in (16, 32, 64):
            cells = [str(heads), str(channels)]
            for kernel, width in (("weigh", 64), ("weigh", 128), ("unmix", 0), ("learn", 0)):
                found = []
                for taps in (1, 3):
                    tile = Model(heads, width, channels, taps).tile(launch.KERNELS[kernel]).size
                    row = resources[(kernel, "sm_80", "bf16", *map(str, (heads, width, channels, taps)), "table", tile)]
                    spilled = f" ({row['spilled']} spilled)" if row["spilled"] != "0" else ""
                    found.append(f"{tile}: {row['registers']}{spilled}, {kilo(int(row['shared']))}")
                cells.append("; ".join(found))
            lines.append(cells)
    return table(["H", "W", "`weigh`, D = 64", "`weigh`, D = 128", "`unmix`", "`learn`"], lines)


def spills() -> str:
    """How many bytes the tile of each model spills that spills least."""
    least: dict[str, dict[tuple[str, ...], int]] = {}
    for key, line in compiled().items():
        halves, several = line["dtype"] != "fp32", int(line["taps"]) > 3
        kind = f"{'half precision' if halves else 'float32'}, {'k = 7' if several else 'k = 1 and 3'}"
        found, model = least.setdefault(kind, {}), key[:-1]
        found[model] = min(found.get(model, 2**31), int(line["spilled"]))
    lines = [
        [kind, str(len(found)), str(sum(spilled == 0 for spilled in found.values())), f"{max(found.values())}"]
        for kind, found in sorted(least.items(), reverse=True)
    ]
    return table(["", "kernels of models", "without spills", "bytes spilled at most"], lines)


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
                    done, moved = pairs * (half + 2 * tf32), pairs * traffic(model, backward=False)["weigh"]
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


TABLES = {"fits": fits, "spills": spills, "programs": programs, "pair": pair, "prediction": prediction}


def written(page: str) -> str:
    """The page with its tables made anew."""
    for name, made in TABLES.items():
        place = re.compile(rf"(?<=<!-- {name} -->\n).*(?=<!-- /{name} -->)", flags=re.DOTALL)
        page, count = place.subn(lambda _, made=made: f"{made()}\n", page)
        if count != 1:
            raise ValueError(f"the page must hold the marks <!-- {name} --> and <!-- /{name} --> once; add them")
    return page


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
