"""The store of rows: appended whole, read once each."""

from __future__ import annotations

import math
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from adapos.bench import rows
from adapos.bench.rows import Row

ROW = Row("trial", "rope", 0, "copy", 1, "exam", 8, 8, "accuracy", 0.5, marks={"depth": 0.25})


def test_rows_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    some = [ROW, replace(ROW, length=16, value=math.inf), replace(ROW, metric="exact", error=0.1, note='"<é>\n')]
    rows.append(tmp_path / "rows.jsonl", some[:1])
    rows.append(tmp_path / "rows.jsonl", some[1:])
    assert rows.read(tmp_path / "rows.jsonl") == some


def test_a_later_row_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    rows.append(tmp_path / "rows.jsonl", [ROW, replace(ROW, marks={}), replace(ROW, value=0.75)])
    assert [row.value for row in rows.read(tmp_path / "rows.jsonl")] == [0.75, 0.5]


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
