"""How calls are cut into chunks, and which tiles are started. No kernel runs here."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adapos.kernels import triton
from adapos.kernels.triton import UNKNOWN, installed, sizes, told

HEADS, NUMBERS = 12, 12


def chunks(batch: int, queries: int, keys: int, **settings: Any) -> list[sizes.Chunk]:
    usual = {"heads": HEADS, "numbers": NUMBERS, "least": 0, "start": keys - queries, "window": 0, "causal": True}
    return sizes.chunks(batch, queries, keys, **{**usual, **settings})


@pytest.mark.parametrize("numbers", [0, NUMBERS])
@pytest.mark.parametrize(("batch", "queries", "keys"), [(1, 1, 1), (3, 700, 700), (70, 1, 9_000), (2, 40, 200_000)])
def test_every_query_is_in_one_chunk_with_all_keys_it_sees(batch: int, queries: int, keys: int, numbers: int) -> None:
    found = {}
    for chunk in chunks(batch, queries, keys, numbers=numbers):
        for text in chunk.texts:
            for row in chunk.rows:
                assert (text, row) not in found
                assert chunk.keys.start == 0
                found[text, row] = chunk.keys.stop - (keys - queries + row)
    assert len(found) == batch * queries
    assert min(found.values()) >= 1


@pytest.mark.parametrize(("batch", "length"), [(1, 300), (5, 2_000), (512, 1_024), (3, 100_000)])
def test_a_chunk_has_no_more_numbers_than_fit(batch: int, length: int) -> None:
    for chunk in chunks(batch, length, length):
        assert NUMBERS * len(chunk.texts) * len(chunk.rows) * len(chunk.keys) <= sizes.LOGITS


def test_keys_that_no_query_of_a_chunk_sees_are_few_where_texts_are_many() -> None:
    pairs = sum(len(chunk.texts) * len(chunk.rows) * len(chunk.keys) for chunk in chunks(64, 1_024, 1_024))
    assert pairs < 1.3 * 64 * 1_024 * 1_025 / 2


def test_a_token_of_each_text_is_decoded_in_one_chunk() -> None:
    assert len(chunks(64, 1, 8_192)) == 1
    assert len(chunks(2, 1, 1_000_000)) == 1


def test_sums_of_very_short_texts_fit_too() -> None:
    size = 5_000
    for chunk in chunks(100_000, 8, 8, least=size):
        assert len(chunk.texts) * size <= sizes.LOGITS


@pytest.mark.parametrize("atomic", [False, True])
def test_sums_of_wide_mixes_fit_piece_by_piece(atomic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from adapos.kernels.triton import launch

    tiles: list[int] = []

    def start(self: Any, grid: Any, arguments: dict[str, Any]) -> None:
        count, *_ = grid({"M": 1, "N": 16})
        tiles.append(count // 2)
        assert sum(x.numel() for name, x in arguments.items() if name.startswith("d_") and x is not None) <= 2**20
        assert arguments["piece"] == len(tiles) - 1

    monkeypatch.setattr(sizes, "LOGITS", 2**20)
    monkeypatch.setattr(launch.Kernel, "__call__", start)
    of_mix = {
        "w_score": torch.zeros(7, 32, 32),
        "w_bias": None,
        "b_in": torch.zeros(32),
        "w_out": torch.zeros(7, 32, 32),
    }
    settings = {"HEADS": 32, "CHANNELS": 32, "TAPS": 7, "PRECISION": "tf32"}
    list(launch.learn(sizes.Chunk(range(1), range(70), range(2_000)), atomic=atomic, **of_mix, **settings))
    assert sum(tiles) >= 2_000 / (16 - sizes.halo(7))
    assert (len(tiles) == 1) is atomic


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_tile_that_does_not_fit_the_device_is_passed_over(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tiles may not be tried, for what they sum up is to be the same from run to run."""
    triton = pytest.importorskip("triton")
    from adapos.kernels.triton import launch

    started: list[int] = []

    class Run:
        arg_names = ("x", "M", "N")

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            def start(*, M: int, **_: Any) -> None:
                if 8 >> failing < M:
                    raise triton.OutOfResources(2, 1, "shared memory")
                started.append(M)

            return start

    monkeypatch.setattr(launch, "INTERPRETED", False)
    monkeypatch.setattr(launch, "lanes", lambda: 32)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    tiles = tuple(launch.Tile(M, 16) for M in (8, 4, 2))
    kernel = replace(launch.TALLY, run=Run(), tiles=tiles, room=(8, 8, 8))
    kernel(lambda tile: (1,), {"x": torch.zeros(1)})
    assert started == [8 >> failing]


def test_a_device_that_no_tile_fits_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    from adapos.kernels.triton import launch

    def start(self: Any, config: Any, grid: Any, taken: Any) -> None:
        raise triton.OutOfResources(2, 1, "shared memory")

    monkeypatch.setattr(launch, "INTERPRETED", False)
    monkeypatch.setattr(launch, "lanes", lambda: 32)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    monkeypatch.setattr(launch.Kernel, "start", start)
    with pytest.raises(triton.OutOfResources, match="shared memory"):
        launch.TALLY(lambda tile: (1,), {})


@pytest.mark.parametrize(("value", "answer"), [("1", True), ("true", True), ("ON", True), ("0", False), ("", False)])
def test_variables_are_read_as_triton_reads_them(value: str, answer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPOS_TRITON_ATOMIC", value)
    assert told("ADAPOS_TRITON_ATOMIC") is answer


@pytest.mark.parametrize(("version", "parts"), [("3.9.0", (3, 9)), ("3.10.1+git8f2", (3, 10)), ("3.5rc1", (3, 5))])
def test_the_version_of_triton_is_told(version: str, parts: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapos.kernels.triton.version", lambda name: version)
    assert installed() == parts


def test_a_triton_of_another_name_has_an_unknown_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch brings it for AMD's GPUs."""

    def version(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("adapos.kernels.triton.version", version)
    assert installed() == UNKNOWN


def test_a_folder_that_is_called_triton_is_not_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapos.kernels.triton.find_spec", lambda name: ModuleSpec(name, None, origin=None))
    assert installed() is None


def test_a_triton_that_does_not_import_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise ImportError('libcuda.so.1 is missing')")
    code = (
        "import torch, adapos; q = torch.randn(1, 2, 5, 8)\n"
        "try: adapos.attend(q, q, q, adapos.Layout.dense(1, 5), backend='triton')\n"
        "except RuntimeError as problem: print(problem)"
    )
    away = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=away)
    assert done.stdout == (
        "backend 'triton' cannot run: Triton is installed and does not import (ImportError: libcuda.so.1 is missing); "
        "install it anew, or name another backend\n"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"capability": lambda device: (7, 5)},
            "it needs a GPU of compute capability 8.0 or later, and cuda has 7.5",
        ),
        ({"VERSION": None}, "it needs Triton: pip install triton"),
        ({"VERSION": (3, 2)}, "it needs Triton 3.3 or later, as torch 2.7 brings, and this is 3.2"),
        (
            {"INTERPRETED": True},
            "TRITON_INTERPRET is set, by which Triton would interpret it in place of a GPU; unset it",
        ),
        ({}, "it takes float32, bfloat16 and float16, and these tensors are float64"),
    ],
)
def test_on_a_gpu_it_says_what_is_wanting(
    changes: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {"capability": lambda device: (8, 0), "VERSION": (3, 9), "INTERPRETED": False}
    for name, value in {**usual, **changes}.items():
        monkeypatch.setattr(triton, name, value)
    tensor: Any = SimpleNamespace(device=torch.device("cuda"), dtype=torch.float64)
    call: Any = SimpleNamespace(q=tensor)
    assert triton.Triton().refuses(call) == reason
