"""The page of evidence: it says what the rows say, and no more."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from adapos.bench import rows
from adapos.bench.rows import Row
from adapos.evidence import guide, page, reproduce
from adapos.evidence.catalogue import claims

ROOT = Path(__file__).parent.parent.parent
PLAN = {"format": 1, "baseline": None, "size": "300k", "batch": 16, "command": "", "seeds": [0, 1, 2]}


def tool() -> Any:
    found = importlib.util.spec_from_file_location("evidence_tool", ROOT / "tools" / "evidence.py")
    assert found is not None
    assert found.loader is not None
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


def text(folder: Path, bits: dict[str, float]) -> None:
    """A run of the study of text in which each encoding has so many bits per byte."""
    found = []
    for encoding, value in bits.items():
        for seed in range(3):
            name = f"{encoding}-{seed}"
            row = Row(name, encoding, seed, "text", 1, "last 64 of 12 x 8192", 128, 128, "bits_per_byte", value)
            for length in (128, 8192):
                changed = {"length": length, "value": value * (1 + 0.001 * seed), "parameters": 333_000, "steps": 800}
                found.append(Row(**{**row.__dict__, **changed}))
            found.append(
                Row(name, encoding, seed, "text", 1, "position", 128, 8192, "loss", 1.0, marks={"position": 0.0})
            )
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({**PLAN, "encodings": list(bits), "task": "text"}))
    rows.append(folder / "rows.jsonl", found)


BITS = {"kerple + dape": 2.0, "kerple + dape(form='concat')": 2.5, "kerple + dape(form='add')": 2.25}


def test_what_was_run_is_on_the_page_and_nothing_else(tmp_path: Path) -> None:
    text(tmp_path / "small" / "text", BITS)
    known = list(claims("small").values())
    said, drawn = page.written(known, reproduce.read(known, tmp_path / "small"), "small", "../evidence/small")
    assert re.findall(r"^## (.*)$", said, flags=re.MULTILINE) == ["dape/variants"]
    assert said.count("\n## ") == 1
    assert "kerple + dape 2.002, kerple + dape(form='add') 2.252" in said
    assert "| 333 k parameters, 800 steps of 16 texts | 3 | < 0.001 | **holds** |" in said
    assert "`adapos reproduce dape/variants --scale small`" in said
    assert "+0.25" in said
    assert drawn
    assert all(f"../evidence/small/{name}" in said and image.startswith("<svg") for name, image in drawn.items())


def test_the_guide_ranks_what_was_run_and_keeps_what_stands_around_it(tmp_path: Path) -> None:
    known = list(claims("small").values())
    before = "# Choose\n\n<!-- ranking -->\nold\n<!-- /ranking -->\n\nThe end.\n"
    assert guide.filled(before, reproduce.read(known, tmp_path / "small")) == before
    text(tmp_path / "small" / "text", {**BITS, "nope": math.inf})
    held = reproduce.read(known, tmp_path / "small")
    after = guide.filled(before, held)
    assert after.startswith("# Choose\n\n<!-- ranking -->\n| encoding | 128 | 8,192 | time |\n")
    assert after.endswith("<!-- /ranking -->\n\nThe end.\n")
    assert "old" not in after
    ranked = [line.split(" | ")[0][2:] for line in after.splitlines() if line.startswith("| ")][2:]
    assert ranked == ["kerple + dape", "kerple + dape(form='add')", "kerple + dape(form='concat')", "nope"]
    assert guide.filled(after, held) == after
    with pytest.raises(ValueError, match="must hold the marks"):
        guide.filled("# Choose", held)


def test_rows_are_taken_over_without_what_no_claim_reads(tmp_path: Path) -> None:
    text(tmp_path / "text", BITS)
    tool().taken(tmp_path / "text", tmp_path / "held" / "text")
    before, after = (
        [row for row in rows.read(place / "text" / "rows.jsonl") if row.protocol != "position"]
        for place in (tmp_path, tmp_path / "held")
    )
    assert before == after
    assert "position" not in (tmp_path / "held" / "text" / "rows.jsonl").read_text()
    assert (tmp_path / "held" / "text" / "plan.json").exists()


def test_the_page_and_its_figures_are_those_of_the_rows() -> None:
    made = tool().written()
    if not (ROOT / "evidence").exists():
        pytest.skip("no evidence is here yet")
    for place, text in made.items():
        assert place.read_text(encoding="utf-8") == text, f"{place.name} is old: run python tools/evidence.py"
