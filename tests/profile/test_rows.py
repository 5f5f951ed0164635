"""Rows, their spread, and the files they are kept in."""

import csv
import io
import json
from dataclasses import fields
from pathlib import Path

import pytest
from results import RESULTS

from adapos.profile import rows
from adapos.profile.rows import Folder, Results, Row


def test_results_come_back_from_json() -> None:
    assert Results.from_json(RESULTS.to_json()) == RESULTS


def test_json_says_what_the_machine_is_and_every_setting() -> None:
    held = json.loads(RESULTS.to_json())
    assert {"processor", "cores", "threads", "torch", "adapos", "flops_per_second", "bytes_per_second"} <= set(
        held["machine"]
    )
    assert held["settings"] == RESULTS.settings
    assert held["rows"][1]["refused"] == {"sdpa": "DistanceTable would be kept"}


def test_json_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no profile of format 1; make it again with `adapos profile`"):
        Results.from_json(RESULTS.to_json().replace('"format": 1', '"format": 2'))


def test_rows_come_back_from_csv() -> None:
    assert rows.rows_of_csv(RESULTS.to_csv()) == RESULTS.rows


def test_csv_has_a_column_for_each_field_and_a_line_for_each_row() -> None:
    header, *lines = csv.reader(io.StringIO(RESULTS.to_csv()))
    assert header == [field.name for field in fields(Row)]
    assert len(lines) == len(RESULTS.rows)
    assert all(len(line) == len(header) for line in lines)


def test_the_spread_of_few_repeats_is_their_whole_range() -> None:
    assert rows.spread([1.0, 2.0, 4.0]) == pytest.approx(1.5)
    assert rows.spread([3.0]) is None


def test_one_stray_repeat_of_five_is_not_the_spread() -> None:
    assert rows.spread([1.0, 1.0, 1.0, 1.0, 9.0]) == 0.0
    assert rows.spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)


def test_a_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    Folder(str(tmp_path / "a" / "b")).keep(RESULTS)
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == ["profile.csv", "profile.json"]


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for path in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(ValueError, match=r"out \(.*taken.*\) must be a folder.*choose another"):
            Folder(str(path))


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object, **more: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(rows.tempfile, "TemporaryFile", full)
    with pytest.raises(
        ValueError, match=r"out \(.*\) must be a folder that can be written to: Read-only file system; ch"
    ):
        Folder(str(tmp_path))


def test_a_folder_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="out must name a folder, and '' names none"):
        Folder("")


def test_a_profile_of_an_earlier_version_is_read() -> None:
    held = json.loads(RESULTS.to_json())
    del held["tiles"], held["failures"], held["machine"]["environment"], held["machine"]["gpu"]
    assert Results.from_json(json.dumps(held)) == RESULTS


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_no_part_of_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(str(tmp_path))
    folder.write("profile.json", "old")

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ValueError, match=r"profile\.json cannot be written: No space left on device"):
        folder.write("profile.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["profile.json"]
    assert (tmp_path / "profile.json").read_text() == "old"
