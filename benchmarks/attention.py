"""What adaptive attention costs beside plain attention: time as a ratio in one run, and peak memory.

    python benchmarks/attention.py [--what forward training memory] [--lengths 512 1024 2048 4096] [--repeats 5]

Batch 1, 12 heads of width 64, W = 32, float32, causal, 2 threads. Each repeat runs plain attention and every encoding
in turn; the ratio is of neighbours in time. Memory is measured in a process of its own, beyond q, k, v and the output's
gradient.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from adapos import Keys, Layout, Shape, attend, build

HEADS, WIDTH, THREADS = 12, 64, 2
SPECS = ("kerple", "kerple + dape", "kerple + dape(kernel=3)")
PLAIN = "plain"


def work(spec: str, length: int, *, training: bool) -> Callable[[], None]:
    """One call of attention (and its backward pass), ready to be timed."""
    q, k, v = (torch.randn(1, HEADS, length, WIDTH, requires_grad=training) for _ in range(3))
    grad, layout = torch.randn(1, HEADS, length, WIDTH), Layout.dense(1, length)
    encoding = None if spec == PLAIN else build(spec, Shape(layers=1, width=HEADS * WIDTH, heads=HEADS))

    def once() -> None:
        with torch.set_grad_enabled(training):
            if encoding is None:
                out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                out = attend(q, k, v, layout, encoding.pairs(0, q, Keys(k, v), layout), backend="tiled")
            if training:
                out.backward(grad)

    return once


def ratios(length: int, repeats: int, *, training: bool) -> dict[str, list[float]]:
    calls = {spec: work(spec, length, training=training) for spec in (PLAIN, *SPECS)}
    found: dict[str, list[float]] = {spec: [] for spec in SPECS}
    for repeat in range(repeats + 1):
        times = {}
        for spec, call in calls.items():
            begin = time.perf_counter()
            call()
            times[spec] = time.perf_counter() - begin
        if repeat:  # the first warms up
            for spec in SPECS:
                found[spec].append(times[spec] / times[PLAIN])
    return found


def extra_memory(spec: str, length: int) -> float:
    """MB that a forward and backward pass adds to the peak of a fresh process."""
    command = [sys.executable, __file__, "--memory", spec, str(length)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure_memory(spec: str, length: int) -> None:
    work(spec, 256, training=True)()  # libraries and threads
    call = work(spec, length, training=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call()
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ["forward", "training", "memory"]
    parser.add_argument("--what", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--memory", nargs=2, metavar=("SPEC", "LENGTH"), help="measure one call's memory in this process"
    )
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    if options.memory:
        measure_memory(options.memory[0], int(options.memory[1]))
        return
    for training in (False, True):
        if ("training" if training else "forward") not in options.what:
            continue
        print(f"\n{'forward and backward' if training else 'forward'}, times plain attention: median [least, most]\n")
        print(f"| | {' | '.join(map(str, options.lengths))} |\n|---|{'---|' * len(options.lengths)}")
        rows: dict[str, list[str]] = {spec: [] for spec in SPECS}
        for length in options.lengths:
            for spec, found in ratios(length, options.repeats, training=training).items():
                rows[spec].append(f"{statistics.median(found):.2f} [{min(found):.2f}, {max(found):.2f}]")
        for spec, cells in rows.items():
            print(f"| `{spec}` | {' | '.join(cells)} |", flush=True)
    if "memory" not in options.what:
        return
    print("\nforward and backward, extra peak memory in MB\n")
    print(f"| | {' | '.join(map(str, options.lengths))} |\n|---|{'---|' * len(options.lengths)}")
    for spec in (PLAIN, *SPECS):
        cells = [f"{extra_memory(spec, length):.0f}" for length in options.lengths]
        print(f"| `{spec}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
