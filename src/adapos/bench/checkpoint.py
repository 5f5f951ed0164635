"""Checkpoints: written beside their place and moved there, with checksums, so that the last whole one is found again.

checkpoints/00001200/
  model.safetensors, optimizer.safetensors   tensors
  state.json                                 the step, further facts, and the checksum of each file
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

Tensors = Mapping[str, Tensor]
STATE = "state.json"


@dataclass(frozen=True)
class Checkpoint:
    step: int
    tensors: dict[str, dict[str, Tensor]]  # by file, without its ending
    facts: dict[str, Any]


def keep(folder: Path, step: int, tensors: Mapping[str, Tensors], facts: Mapping[str, Any], *, last: int) -> None:
    """Save, then forget all but the last few. A checkpoint that cannot be written leaves the others as they are."""
    beside = folder / f".{step:08d}.{os.getpid()}"
    try:
        beside.mkdir(parents=True, exist_ok=True)
        sums = {}
        for name, held in tensors.items():
            # a tensor of its own for each name: shared memory is not stored twice, nor refused
            data = save({key: x.detach().cpu().contiguous() for key, x in held.items()})
            sums[f"{name}.safetensors"] = hashlib.sha256(data).hexdigest()
            _write(beside / f"{name}.safetensors", data)
        state = {"step": step, "sha256": sums, **facts}
        _write(beside / STATE, json.dumps({**state, "checksum": _checksum(state)}).encode())
        place = folder / f"{step:08d}"
        if place.exists():  # the same step again, after a later checkpoint was found damaged
            shutil.rmtree(place)
        beside.rename(place)
        _sync(folder)
    except OSError as problem:
        raise ValueError(
            f"a checkpoint cannot be written to {folder}: {problem.strerror}; the ones before it are whole: make room "
            "and run the same command again"
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    there = places(folder)
    # later ones were damaged, or this would not be the last; they must not push out those that are whole
    later = [path for path in there if int(path.name) > step]
    for old in [*later, *[path for path in there if path not in later][:-last]]:
        shutil.rmtree(old, ignore_errors=True)


def latest(folder: Path, warn: Callable[[str], object]) -> Checkpoint | None:
    """The last that is whole; `warn` hears of those that are not."""
    for left in folder.glob(".*.*"):  # what a process that was killed had not finished
        shutil.rmtree(left, ignore_errors=True)
    for place in reversed(places(folder)):
        try:
            return _read(place)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
            warn(f"the checkpoint {place} is damaged ({problem}); the one before it is used")
    return None


def places(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir()) if folder.is_dir() else []


def _read(place: Path) -> Checkpoint:
    facts = json.loads((place / STATE).read_text(encoding="utf-8"))
    if facts.pop("checksum") != _checksum(facts):
        raise ValueError(f"the checksum of {STATE} is not what was written")
    sums, step = facts.pop("sha256"), facts.pop("step")
    tensors = {}
    for name, wanted in sums.items():
        data = (place / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != wanted:
            raise ValueError(f"the checksum of {name} is not what was written")
        tensors[name.removesuffix(".safetensors")] = load(data)
    return Checkpoint(step, tensors, facts)


def _checksum(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
