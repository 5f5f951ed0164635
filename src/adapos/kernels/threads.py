"""Work spread over a few Python threads with one torch thread each.

Tiles in parallel beat operations in parallel: each operation on a tile is small, and torch releases the GIL
inside it. Shares are dealt beforehand, so that sums come out in the same order from run to run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")

_pool: ThreadPoolExecutor | None = None
_size = 0
_lock = Lock()


def spread(
    work: Callable[[list[Job]], Result], jobs: Sequence[Job], cost: Callable[[Job], float], device: torch.device
) -> list[Result]:
    """work(share) for one share of the jobs per thread, in the order of the shares; never under autocast."""
    shares = _dealt(jobs, cost, torch.get_num_threads() if device.type == "cpu" else 1)

    inference = torch.is_inference_mode_enabled()  # each thread's own, and a tensor made in it stays in it

    def exact(share: list[Job]) -> Result:
        with torch.inference_mode(inference), torch.autocast(device.type, enabled=False):
            return work(share)

    if len(shares) == 1:
        return [exact(shares[0])]
    return list(_threads(len(shares)).map(exact, shares))


def _dealt(jobs: Sequence[Job], cost: Callable[[Job], float], workers: int) -> list[list[Job]]:
    """The dearest job first, to whoever has the least."""
    shares: list[list[Job]] = [[] for _ in range(min(workers, len(jobs)))]
    load = [0.0] * len(shares)
    for job in sorted(jobs, key=cost, reverse=True):
        least = load.index(min(load))
        shares[least].append(job)
        load[least] += cost(job)
    return shares


def _threads(size: int) -> ThreadPoolExecutor:
    global _pool, _size
    with _lock:
        if _pool is None or _size < size:
            ours = torch.get_num_threads()
            # the setting is each thread's own, but new threads start from the last one made anywhere
            _pool, _size = ThreadPoolExecutor(size, "adapos", initializer=torch.set_num_threads, initargs=(1,)), size
            together = Barrier(size)
            list(_pool.map(lambda _: together.wait(), range(size)))
            torch.set_num_threads(ours)
        return _pool


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _pool, _lock
    _pool, _lock = None, Lock()


os.register_at_fork(after_in_child=_forget)
