"""The compiled kernel as Python sees it: found, loaded and called through ctypes, with no header of torch's."""

from __future__ import annotations

import ctypes
import hashlib
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from torch import Tensor

HERE = Path(__file__).parent
NAME = "_native"
FAILED = HERE / f"{NAME}.txt"  # why it was not built, written by setup.py
TARGET = "ADAPOS_NATIVE_TARGET"  # an environment variable: the instruction set to use, where the best is not wanted
BUILD = "ADAPOS_NATIVE_LIBRARY"  # another: the library to load in place of the one built here, as `make sanitize` does
OPENMP = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


class View(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("token", ctypes.c_int64),
    ]


class Table(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("grad", ctypes.c_void_p),
        ("columns", ctypes.c_int64),
        ("zero", ctypes.c_int64),
    ]


_SIZES = ("batch", "heads", "groups", "queries", "keys", "width", "values", "hidden", "taps", "units")
_SETTINGS = ("start", "window", "causal", "consecutive", "dtype", "added", "rows", "columns", "threads")


class Problem(ctypes.Structure):
    """problem.h, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in (*_SIZES, *_SETTINGS)),
        *((name, ctypes.c_double) for name in ("scale", "slope", "unit_slope")),
        *((name, View) for name in ("q", "k", "v", "out")),
        *((name, ctypes.c_void_p) for name in ("q_pos", "k_pos", "q_doc", "k_doc", "top", "sums")),
        *((name, Table) for name in ("first", "second", "bias", "psi")),
        *((name, ctypes.c_void_p) for name in ("ramp_q", "ramp_k", "w_in", "w_bias", "b_in", "w_out")),
        *((name, ctypes.c_void_p) for name in ("against", "w1", "b1", "w2", "b2")),
        *((name, View) for name in ("d_out", "d_q", "d_k", "d_v")),
        *((name, ctypes.c_void_p) for name in ("d_ramp_q", "d_ramp_k", "d_w_in", "d_w_bias", "d_b_in", "d_w_out")),
    ]


def view(x: Tensor) -> View:
    assert x.stride(-1) == 1 or x.shape[-1] == 1
    return View(x.data_ptr(), *x.stride()[:3])


def run(problem: Problem, *, backward: bool) -> None:
    assert _library is not None
    status = _library.adapos_run(CHOSEN.encode(), int(backward), ctypes.byref(problem), int(_forked))
    if status:
        raise MemoryError("the native kernel ran out of memory; give it fewer tokens or threads")


def targets() -> list[str]:
    """The instruction sets that were built and that this processor has, the best first."""
    if _library is None:
        return []
    named: bytes = _library.adapos_targets()
    return named.decode().split()


def sources() -> str:
    """A mark of the sources, as setup.py makes it."""
    digest = hashlib.sha256()
    for path in sorted([*HERE.glob("*.h"), *HERE.glob("*.cpp")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _loaded() -> tuple[ctypes.CDLL | None, str | None]:
    """The library, or why there is none."""
    built = (HERE / f"{NAME}{suffix}" for suffix in EXTENSION_SUFFIXES)
    path = os.environ.get(BUILD) or next((path for path in built if path.exists()), None)
    if path is None:
        why = FAILED.read_text().strip() if FAILED.exists() else "no C++ compiler was found when adapos was installed"
        return None, f"the native kernel was not built: {why}"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as problem:
        return None, f"the native kernel does not load here: {problem}; install adapos again on this machine"
    library.adapos_targets.restype = ctypes.c_char_p
    library.adapos_sources.restype = ctypes.c_char_p
    library.adapos_run.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    if library.adapos_sources().decode() != sources():
        return None, "the native kernel was built from other sources than those beside it; install adapos again"
    loaded = ctypes.CDLL(None)
    if all(hasattr(loaded, name) for name in OPENMP):
        # torch's own: threads of another runtime would fight with its waiting ones. Without it, threads of each call
        library.adapos_use_openmp(*(getattr(loaded, name) for name in OPENMP))
    return library, None


def _after_fork() -> None:
    global _forked
    _forked = True


_forked = False
_library, MISSING = _loaded()
# the instruction set in use, and what is wrong with the one asked for
CHOSEN = os.environ.get(TARGET) or next(iter(targets()), "")
WRONG = None
if MISSING is None and CHOSEN not in targets():
    WRONG = f"{TARGET} must be one of {', '.join(targets())} on this machine, not {CHOSEN!r}"
os.register_at_fork(after_in_child=_after_fork)
