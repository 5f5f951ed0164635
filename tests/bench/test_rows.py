"""The store of rows: appended whole, read once each."""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from adapos.bench import rows
from adapos.bench.rows import Row

ROW = Row("trial", "rope", 0, "copy", 1, "exam", 8, 8, "accuracy", 0.5, marks={"depth": 0.25})


def test_rows_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    some = [ROW, replace(ROW, length=16, value=math.inf), replace(ROW, metric="exact", error=0.1, note='"<é>\n')]
    rows.append(tmp_path / "rows.jsonl", some[:1])
    rows.append(tmp_path / "rows.jsonl", some[1:])
    assert rows.read(tmp_path / "rows.jsonl") == some


@pytest.mark.parametrize(
    "line",
    [
        '{"marks": null}',
        "5",
        "null",
        json.dumps(asdict(ROW) | {"marks": None}),
        json.dumps(asdict(ROW) | {"value": "much"}),
        json.dumps(asdict(ROW) | {"protocol": "position", "marks": {"positoin": 3}}),
        json.dumps(asdict(ROW) | {"protocol": rows.SIDE_BY_SIDE, "marks": {}}),
    ],
)
def test_lines_that_are_damaged_are_passed_over(tmp_path: Path, line: str) -> None:
    rows.append(tmp_path / "rows.jsonl", [ROW])
    with open(tmp_path / "rows.jsonl", "a") as file:
        file.write(line + "\n")
    assert rows.read(tmp_path / "rows.jsonl") == [ROW]


def test_rows_that_cannot_all_be_kept_leave_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.jsonl"
    rows.append(path, [ROW])
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=r"rows cannot be kept in .*: No space left on device; make room"):
        rows.append(path, [replace(ROW, value=0.1), replace(ROW, value=0.2)])
    assert path.read_bytes() == before


def test_a_later_row_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    rows.append(tmp_path / "rows.jsonl", [ROW, replace(ROW, marks={}), replace(ROW, value=0.75)])
    assert [row.value for row in rows.read(tmp_path / "rows.jsonl")] == [0.5, 0.75]


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows.append(path, [ROW, replace(ROW, length=16)])
    path.write_bytes(path.read_bytes()[:-9])
    rows.append(path, [replace(ROW, length=32)])
    assert [row.length for row in rows.read(path)] == [8, 32]


def test_no_file_is_no_rows(tmp_path: Path) -> None:
    assert rows.read(tmp_path / "rows.jsonl") == []


def many(path: Path, seed: int) -> None:
    for length in range(1, 60):
        rows.append(path, [replace(ROW, trial=str(seed), length=length, note="x" * 5000)])


def test_processes_that_append_together_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    workers = [get_context("spawn").Process(target=many, args=(path, seed)) for seed in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(rows.read(path)) == 3 * 59
