"""Registers, spills and shared memory of the Triton kernels, compiled for GPUs without one.

python tools/resources.py              compiles them for every target and writes docs/gpu-resources.csv
python tools/resources.py --missing    compiles what the table does not hold yet
python tools/resources.py --compare    compiles what `make test` does, and prints what differs from the table
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, fields, replace
from io import StringIO
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent.parent / "docs" / "gpu-resources.csv"
# targets as Triton names them, and the bytes of shared memory that a program may have there
LIMITS = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "gfx942": 64 * 1024}
# what a kernel makes logits with: nothing, as another made them; a table over distances; and everything there is
MADE, TABLED, EVERYTHING = ("none", "table", "all")
PARAMETERS = {
    "ids": ("q_pos", "k_pos", "q_doc", "k_doc"),
    "texts": ("q", "k", "v", "weights", "d_scores", "d_out"),
    "numbers": ("scale", "slope"),
    "counts": ("texts", "tall", "parts", "share", "lines", "piece"),
}
WIDER = [(12, 64, 32), (16, 128, 64), (32, 128, 32), (32, 128, 64)]
WIDE = [("fp32", 64), ("bf16", 128), ("bf16", 256), ("fp32", 256)]
# of kernels that stand in the table once more: what they are told otherwise
VARIANTS = {"weigh, forward": ("weigh", {"KEPT": False}), "differentiate, sums": ("differentiate", {"SUMMED": True})}
# dtype, heads, their width, channels, taps, terms; of one head, too
USUAL = [("bf16", 12, 64, 32, taps, TABLED) for taps in (1, 3)]
MIXES = [
    *(("bf16", 12, 64, 32, taps, EVERYTHING) for taps in (1, 3)),
    *((dtype, *model, taps, TABLED) for dtype in ("bf16", "fp32") for model in WIDER for taps in (1, 3)),
    *(("fp16", 12, 64, 32, taps, TABLED) for taps in (1, 3)),
    *(("bf16", *model, 7, TABLED) for model in WIDER),
]
GRID = [("bf16", *model, TABLED) for model in product((8, 12, 16, 32), (64, 128), (16, 32, 64), (1, 3))]
ALONE = [
    ("bf16", 1, 64, 0, 1, TABLED),
    *(("bf16", 1, 64, 0, 1, terms) for terms in (MADE, EVERYTHING)),
    ("fp16", 1, 64, 0, 1, TABLED),
    *((dtype, 1, width, 0, 1, terms) for dtype, width in WIDE for terms in (MADE, TABLED)),
]
STRIDES = re.compile(r"[qkv]_(batch|head|token)")


@dataclass(frozen=True, order=True)
class Case:
    """What a kernel is compiled for."""

    kernel: str
    target: str
    dtype: str
    heads: int
    width: int
    channels: int
    taps: int
    terms: str
    tile: str
    threads: int


@dataclass(frozen=True)
class Resources:
    registers: int
    spilled: int  # bytes that are written to memory for want of registers
    shared: int  # bytes
    triton: str  # the version that compiled it


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--missing", action="store_true")
    choice.add_argument("--compare", action="store_true")
    asked = parser.parse_args()
    if asked.compare:
        compare()
    else:
        write(read() if asked.missing else {})


def compare() -> None:
    """What another Triton makes of the kernels of one model."""
    written, some, same = read(), list(cases(some=True)), True
    for case, now in zip(some, all_compiled(some), strict=True):
        then = vars(written[case])
        counted = {name: value for name, value in vars(now).items() if isinstance(value, int)}
        other = [f"{name} {value} (was {then[name]})" for name, value in counted.items() if value != then[name]]
        if other:
            same = False
            print(f"{case.kernel}, {case.target}, k = {case.taps}, {case.tile}: {', '.join(other)}")
    if same:
        print(f"{len(some)} kernels need what the table says")


def write(held: Mapping[Case, Resources]) -> None:
    from adapos import files

    every = list(dict.fromkeys(cases()))
    missing = [case for case in every if case not in held]
    known = {**held, **dict(zip(missing, all_compiled(missing), strict=True))}
    found = {case: known[case] for case in every}
    table = StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow([field.name for kind in (Case, Resources) for field in fields(kind)])
    writer.writerows((*astuple(case), *astuple(resources)) for case, resources in sorted(found.items()))
    files.write(TABLE, table.getvalue())
    print(TABLE)


def all_compiled(cases: Sequence[Case]) -> list[Resources]:
    # a process for each core: most of the time goes to the assemblers
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        return list(pool.map(compiled, cases))


def read() -> dict[Case, Resources]:
    with TABLE.open(newline="") as file:
        lines = list(csv.DictReader(file))
    kinds = {"int": int, "str": str}

    def made(kind: type, line: dict[str, str]) -> Any:
        return kind(**{field.name: kinds[str(field.type)](line[field.name]) for field in fields(kind)})

    return {made(Case, line): made(Resources, line) for line in lines}


def cases(*, some: bool = False) -> Iterator[Case]:
    """Every kernel with every tile it is tried with, for models of many sizes, or for one."""
    from adapos.kernels.triton import launch

    for target, name in product(LIMITS, launch.KERNELS if some else (*launch.KERNELS, *VARIANTS)):
        kernel = launch.KERNELS[VARIANTS.get(name, (name, {}))[0]]
        models = USUAL if kernel.block else ALONE[:1]
        if not some and name not in VARIANTS and kernel.block:
            models = [*USUAL, *MIXES, *(GRID if target.startswith("sm_") else [])]
        elif not some and "D" in kernel.names:
            models = [*USUAL, *MIXES[:2]] if kernel.block else ALONE
        for dtype, heads, width, channels, taps, terms in models:
            # one that does not know how wide heads are is the same for all of them
            model = dtype, heads, width if "D" in kernel.names else 0, channels, taps, terms
            case = Case(name, target, *model, tile="", threads=0)
            for tile in kernel.fitting(constants(case)):
                yield replace(case, tile=tile.size, threads=tile.threads)


def constants(case: Case) -> dict[str, Any]:
    """What a kernel is told of its problem."""
    from adapos.kernels.triton import sizes

    everything = case.terms == EVERYTHING
    width = case.width or 64
    _, otherwise = VARIANTS.get(case.kernel, (case.kernel, {}))
    return {
        "H": case.heads, "HEADS": sizes.up(case.heads), "REPEATS": 1, "D": width, "E": width,
        "VALUES": sizes.up(width), "W": case.channels, "CHANNELS": sizes.whole(case.channels), "TAPS": case.taps,
        "CAUSAL": True, "WINDOW": everything, "DOCS": everything, "TABLE": case.terms != MADE, "IDS": everything,
        "RAMP": everything, "SCORED": True, "BIASED": True, "ADDED": True, "KEPT": True, "MIXED": case.terms == MADE,
        "ATOMIC": False, "SUMMED": False, "PRECISION": "ieee" if case.dtype == "fp32" else "tf32", "SPAN": sizes.SPAN,
        **({} if everything else dict.fromkeys((*PARAMETERS["ids"], "ramp_q", "ramp_k"))),
        **otherwise,
    }  # fmt: skip


def compiled(case: Case) -> Resources:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from adapos.kernels.triton import launch

    kernel = launch.KERNELS[VARIANTS.get(case.kernel, (case.kernel, {}))[0]]
    tile = next(tile for tile in kernel.tiles if (tile.size, tile.threads) == (case.tile, case.threads))
    names = kernel.run.arg_names
    settings = constants(case) | {"BLOCK": kernel.block, **tile.sizes}
    settings = {name: value for name, value in settings.items() if name in names}
    signature = {name: "constexpr" if name in settings else kind(name, case.dtype) for name in names}
    aligned = [i for i, name in enumerate(names) if signature[name].startswith("*") or STRIDES.fullmatch(name)]
    source = ASTSource(kernel.run, signature, settings, attrs={(i,): [["tt.divisibility", 16]] for i in aligned})
    nvidia = case.target.startswith("sm_")
    target = GPUTarget("cuda", int(case.target[3:]), 32) if nvidia else GPUTarget("hip", case.target, 64)
    warps = tile.threads // target.warp_size
    built = triton.compile(source, target, options={"num_warps": warps, "num_stages": tile.stages})
    count = by_ptxas(built.asm["ptx"]) if nvidia else by_notes(built.asm["amdgcn"])
    return Resources(*count, built.metadata.shared, triton.__version__)


def kind(name: str, dtype: str) -> str:
    """The type of an argument."""
    from adapos.kernels.triton.tile import LENGTHS

    if name in PARAMETERS["texts"]:
        return f"*{dtype}"
    if name in PARAMETERS["ids"]:
        return "*i64"
    if name in PARAMETERS["numbers"]:
        return "fp32"
    if name in (*LENGTHS, *PARAMETERS["counts"]) or STRIDES.fullmatch(name):
        return "i32"
    return "*fp32"


def by_ptxas(code: str) -> tuple[int, int]:
    """Registers, and bytes that are spilled, as NVIDIA's assembler says."""
    from triton.backends.nvidia.compiler import get_ptxas

    (target,) = re.findall(r"\.target (\w+)", code)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "kernel.ptx"
        place.write_text(code)
        tool = get_ptxas(int(re.sub(r"\D", "", target))).path
        done = subprocess.run(
            [tool, "-v", f"-arch={target}", place, "-o", os.devnull], capture_output=True, text=True, check=True
        )
    (registers,) = re.findall(r"Used (\d+) registers", done.stderr)
    (spilled,) = re.findall(r"(\d+) bytes spill stores", done.stderr)
    return int(registers), int(spilled)


def by_notes(code: str) -> tuple[int, int]:
    """The same as AMD's assembler notes it; a spilled register is four bytes."""
    (registers,) = re.findall(r"\.vgpr_count:\s+(\d+)", code)
    (spilled,) = re.findall(r"\.vgpr_spill_count:\s+(\d+)", code)
    return int(registers), 4 * int(spilled)


if __name__ == "__main__":
    main()
