"""The claims: what they run can be run, and how they are judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adapos.bench.report.results import Results
from adapos.bench.rows import Row
from adapos.evidence import finding
from adapos.evidence.catalogue import CLAIMS, find
from adapos.evidence.dape import TEXT
from adapos.evidence.study import SCALES
from commands import run


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", CLAIMS)
def test_every_plan_is_made_of_what_there_is_under_its_own_name(name: str, scale: str) -> None:
    for study, encodings in CLAIMS[name].runs:
        plan = study.plan(scale, encodings, {"data": "stdlib", "tokenizer": "bytes"})
        assert plan.encodings == encodings
        assert len(plan.seeds) >= 3


def results(bits: dict[str, list[float]], length: int = 8192) -> Results:
    rows = [
        Row(f"{name}-{seed}", name, seed, "text", 1, "last", 128, length, "bits_per_byte", value)
        for name, values in bits.items()
        for seed, value in enumerate(values)
    ]
    return Results({"encodings": list(bits), "baseline": None}, rows)


def judge(claim: str, bits: dict[str, list[float]], length: int = 8192) -> finding.Finding:
    return CLAIMS[claim].judge({TEXT.name: results(bits, length)})


def test_a_claim_holds_where_every_pair_differs_as_it_says() -> None:
    worse, better = [3.0, 3.1, 2.9], [2.0, 2.12, 1.88]
    kernels = [f"kerple + dape(kernel={kernel})" for kernel in (3, 5, 7)]
    found = judge("dape/kernel", {"kerple + dape": worse, **dict.fromkeys(kernels, better)})
    assert found.verdict == finding.HOLDS
    assert found.seeds == 3
    assert found.chance is not None
    assert found.chance < 0.05
    assert "kerple + dape 3.000, kerple + dape(kernel=3) 2.000" in found.ours


def test_a_claim_does_not_hold_where_one_pair_could_be_chance() -> None:
    worse, better = [3.0, 3.1, 2.9], [2.0, 2.12, 1.88]
    kernels = [f"kerple + dape(kernel={kernel})" for kernel in (3, 5, 7)]
    bits = {"kerple + dape": worse, **dict.fromkeys(kernels, better)} | {kernels[2]: [3.2, 2.8, 3.0]}
    found = judge("dape/kernel", bits)
    assert found.verdict == finding.FAILS
    assert [each.held for each in found.contrasts] == [True, True, False]


def test_numbers_that_overflow_lose() -> None:
    nan = float("nan")
    found = judge(
        "dape/trained-length",
        {f"{base}{how}": [nan, nan, nan] if not how else [2.0, 2.1, 1.9] for base in BASES for how in ("", " + dape")},
        128,
    )
    assert found.verdict == finding.HOLDS


BASES = ("t5", "alibi", "kerple", "fire")


def test_what_was_not_run_to_its_end_is_not_judged() -> None:
    with pytest.raises(ValueError, match="'kerple' was not examined at 8192; run the claim to its end"):
        judge("dape/width", {"kerple + dape": [2.0, 2.1, 1.9], "kerple + dape(width=4)": [2.0, 2.1, 1.9]})
    with pytest.raises(ValueError, match="share 2 seeds at 8192, and 3 are needed"):
        judge("tape/perplexity", {"tape": [2.0, 2.1], "alibi": [2.0, 2.1], "rope": [3.0, 3.0]})


def test_names_find_claims() -> None:
    assert [claim.name for claim in find("dape/kernel")] == ["dape/kernel"]
    assert {claim.name.partition("/")[0] for claim in find("tape")} == {"tape"}
    assert len(find("all")) == len(CLAIMS)
    with pytest.raises(ValueError, match="no claim is called 'dape/kernels'; did you mean 'dape/kernel'"):
        find("dape/kernels")


def test_the_list_and_a_wrong_name_on_the_command_line(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("reproduce")
    assert (code, out.count("not run")) == (0, len(CLAIMS))
    for words, sentence in (
        (("tape/nothing",), "no claim is called 'tape/nothing'"),
        (("dape/kernel", "--scale", "huge"), "scale must be one of"),
    ):
        code, _, err = run("reproduce", *words)
        assert code == 2
        assert sentence in err
    assert not list(tmp_path.iterdir())
