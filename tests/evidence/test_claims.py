"""The claims: what they run can be run, and how they are judged."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from adapos.bench.report.results import Results
from adapos.bench.rows import Row
from adapos.bench.tasks import TASKS
from adapos.bench.train import Setup
from adapos.evidence.catalogue import claims, find
from adapos.evidence.finding import FAILS, HOLDS, UNTESTABLE, Finding
from adapos.evidence.images import Digits
from adapos.evidence.probe import Probe
from adapos.evidence.studies import CHOMSKY, COST, DIGITS, GUESSED, LANGUAGES, PATTERNS, SCALES, SHIFTS, TEXT
from adapos.evidence.study import Order, Training, Unfinished
from adapos.profile import machine
from adapos.profile import rows as profiled
from commands import run

CLAIMS = claims("small")
NAN = float("nan")


def order(folder: Path = Path()) -> Order:
    return Order(folder, Setup(), 1, lambda text: None, {"data": "stdlib", "tokenizer": "bytes"})


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", CLAIMS)
def test_every_plan_is_made_of_what_there_is_under_its_own_name(name: str, scale: str) -> None:
    claim = claims(scale)[name]
    for study, encodings in claim.needs:
        if isinstance(study, Probe):
            study = study.of
        if isinstance(study, Training) and "model" not in study.settings:
            plan = study.plan(encodings, order())
            assert plan.encodings == encodings
            assert len(plan.seeds) >= 3
        else:
            assert study in COST or isinstance(study, Digits) or name == "tape/finetune"


def test_the_papers_have_all_fifteen_languages() -> None:
    assert {f"chomsky/{name}" for name in LANGUAGES["paper"]} == {name for name in TASKS if name.startswith("chomsky/")}
    assert set(LANGUAGES["paper"]) == set(GUESSED)


def test_claims_are_the_same_at_both_scales() -> None:
    assert list(claims("small")) == list(claims("paper"))


Values = Mapping[str, Sequence[float]]  # of every seed, by encoding


def results(values: Values, lengths: Sequence[int], metric: str = "bits_per_byte", n: int = 1000) -> Results:
    rows = [
        Row(f"{name}-{seed}", name, seed, "task", 1, "last", 128, length, metric, value, n)
        for name, found in values.items()
        for seed, value in enumerate(found)
        for length in lengths
    ]
    return Results({"encodings": list(values), "baseline": None}, rows)


def judge(claim: str, values: Values, length: int = 8192) -> Finding:
    return CLAIMS[claim].judge({"text": results(values, (128, length))})


WORSE, BETTER = (3.0, 3.1, 2.9), (2.0, 2.12, 1.88)
KERNELS = [f"kerple + dape(kernel={kernel})" for kernel in (3, 5, 7)]


def test_a_claim_holds_where_every_pair_differs_as_it_says() -> None:
    found = judge("dape/kernel", {"kerple + dape": WORSE, **dict.fromkeys(KERNELS, BETTER)})
    assert (found.verdict, found.seeds) == (HOLDS, 3)
    assert found.chance is not None
    assert found.chance < 0.05
    assert found.ours.startswith("bits per byte at 8,192: kerple + dape 3.000, kerple + dape(kernel=3) 2.000")


def test_a_claim_does_not_hold_where_one_pair_could_be_chance() -> None:
    bits = {"kerple + dape": WORSE, **dict.fromkeys(KERNELS, BETTER)} | {KERNELS[2]: (3.2, 2.9, 3.1)}
    found = judge("dape/kernel", bits)
    assert found.verdict == FAILS
    assert [each.outcome for each in found.contrasts] == ["yes", "yes", "the other way round"]
    assert found.why == "kerple + dape(kernel=7) against kerple + dape: the other way round"
    unsure = judge("dape/kernel", bits | {KERNELS[2]: (3.1, 2.8, 2.9)})
    assert unsure.why == "kerple + dape(kernel=7) against kerple + dape: could be chance"


def test_a_difference_the_other_way_does_not_hold_however_sure() -> None:
    found = judge("dape/kernel", {"kerple + dape": BETTER, **dict.fromkeys(KERNELS, WORSE)})
    assert found.verdict == FAILS
    assert all(each.gain < 0 and each.corrected < 0.05 for each in found.contrasts)


def test_numbers_that_overflow_lose_and_none_is_made_up_for_them() -> None:
    def found(kerple: Sequence[float], adapted: Sequence[float] = (2.0, 2.1, 1.9)) -> Finding:
        bases = {base: (2.5, 2.62, 2.41) for base in ("alibi", "fire")} | {"kerple": kerple}
        return judge("dape/trained-length", {**bases, **{f"{base} + dape": adapted for base in bases}})

    lost = found((NAN,) * 3)
    assert lost.verdict == HOLDS
    assert "kerple diverged, kerple + dape 2.000" in lost.ours
    (contrast,) = [each for each in lost.contrasts if each.worse == "kerple"]
    assert math.isinf(contrast.gain)
    assert math.isnan(contrast.chance)
    assert lost.chance == max(each.chance for each in lost.contrasts if each.worse != "kerple")
    # some seeds are not all, and nothing that diverges is better than anything
    assert found((NAN, 2.5, 2.6)).verdict == FAILS
    assert found((NAN, 2.5, 2.6)).why == "kerple + dape against kerple: diverges in some seeds only"
    assert found((NAN,) * 3, adapted=(math.inf, 2.1, 1.9)).verdict == FAILS
    assert found((9.5, 9.6, 9.7), adapted=(NAN,) * 3).verdict == FAILS


def test_what_failed_is_named_in_place_of_a_verdict() -> None:
    held = results({"tape": BETTER, "alibi": WORSE, "rope": WORSE[:2]}, (8192,))
    failed = Row("rope-2", "rope", 2, "task", 1, "training", 128, 128, "failed", 1.0, note="the loss is nan at step 2")
    with pytest.raises(Unfinished, match="rope, seed 2, failed: the loss is nan at step 2"):
        CLAIMS["tape/perplexity"].judge({"text": Results(held.plan, [*held.rows, failed])})


def test_a_claim_holds_where_each_pair_does_for_all_must() -> None:
    close = {"kerple + dape": (3.0, 3.1, 2.9), **dict.fromkeys(KERNELS, (2.6, 2.85, 2.37))}
    found = judge("dape/kernel", close)
    assert found.verdict == HOLDS
    assert found.chance == max(each.chance for each in found.contrasts)
    assert all(each.chance < 0.05 < each.corrected for each in found.contrasts)


def test_what_was_not_run_to_its_end_is_not_judged() -> None:
    with pytest.raises(Unfinished, match="'kerple' was not examined at 8192; run the claim to its end"):
        judge("dape/width", {"kerple + dape": BETTER, "kerple + dape(width=4)": BETTER})
    with pytest.raises(Unfinished, match="share 2 seeds, and 3 are needed"):
        judge("tape/perplexity", {"tape": (2.0, 2.1), "alibi": (2.0, 2.1), "rope": (3.0, 3.0)})


def test_sums_are_weighed_by_how_many_pairs_of_digits_there_are() -> None:
    claim = CLAIMS["tape/addition"]
    ((study, encodings),) = claim.needs
    rows = [
        # right up to the trained length, and nowhere beyond it
        Row(f"{name}-{seed}", name, seed, "addition", 1, "exam", 5, length, "exact", float(length <= 5), 100)
        for name in encodings
        for seed in range(3)
        for length in range(1, 11)
    ]
    found = claim.judge({study.name: Results({"encodings": list(encodings), "baseline": None}, rows)})
    assert found.verdict == FAILS
    assert "rope 0.250" in found.ours  # 5 x 5 of 10 x 10 pairs


def passkey(right: Callable[[str, int, int], float]) -> Finding:
    """By encoding, seed and length."""
    claim = CLAIMS["tape/passkey"]
    ((study, encodings),) = claim.needs
    assert isinstance(study, Training)
    rows = [
        Row(f"{name}-{seed}", name, seed, "passkey", 1, "exam", 128, at, "exact", right(name, seed, at), 1000)
        for name in encodings
        for seed in range(3)
        for at in study.lengths
    ]
    return claim.judge({study.name: Results({"encodings": list(encodings), "baseline": None}, rows)})


@pytest.mark.parametrize(("seen", "verdict"), [(0.1, UNTESTABLE), (0.9, HOLDS)])
def test_what_nobody_learns_says_nothing(seen: float, verdict: str) -> None:
    values = (seen, seen - 0.01, seen + 0.01)
    found = passkey(lambda name, seed, length: values[seed] * (1.0 if name == "tape" else 0.2))
    assert found.verdict == verdict


@pytest.mark.parametrize(("unseen", "verdict"), [(0.04, FAILS), (0.6, HOLDS)])
def test_a_little_more_than_nothing_is_not_found(unseen: float, verdict: str) -> None:
    found = passkey(lambda name, seed, length: (0.9 if length <= 128 else unseen * (name == "tape")) + 0.001 * seed)
    assert found.verdict == verdict
    assert found.why == ("tape reaches 0.041 of 0.5" if verdict == FAILS else "")


def languages(right: Callable[[str, str], float], seen: float = 1.0) -> Finding:
    claim = CLAIMS["dape/chomsky"]
    found = {}
    for task, (study, _) in CHOMSKY["small"].items():
        values = {name: [right(task, name) + 0.001 * seed for seed in range(3)] for name in claim.needs[0][1]}
        held = results(values, study.unseen, "accuracy")
        at = results({name: [seen] * 3 for name in values}, (study.train_length,), "accuracy")
        found[study.name] = Results(held.plan, [*held.rows, *at.rows])
    return claim.judge(found)


def test_formal_languages_are_judged_by_the_mean_over_those_that_were_learned() -> None:
    found = languages(lambda task, name: 0.9 if "dape" in name else 0.5)
    assert (found.verdict, len(found.contrasts)) == (HOLDS, 2)
    assert found.contrasts[0].gain == pytest.approx(0.4)
    assert languages(lambda task, name: 0.5).verdict == FAILS
    found = languages(lambda task, name: 0.5, seen=0.21)
    assert found.verdict == UNTESTABLE
    assert found.ours.count("is not learned") == len(LANGUAGES["small"])


def timed(ratio: float) -> dict[str, Any]:
    rows = [
        profiled.Row(what, name, length, ratio=ratio)
        for name in CLAIMS["dape/cost"].needs[0][1]
        for what in COST[0].what
        for length in COST[0].lengths
    ]
    return {each.name: profiled.Results(machine.Machine.__new__(machine.Machine), {}, "", rows, True) for each in COST}


@pytest.mark.parametrize(("ratio", "verdict"), [(1.7, HOLDS), (1.8, FAILS)])
def test_costs_are_held_against_the_operations(ratio: float, verdict: str) -> None:
    found = CLAIMS["dape/cost"].judge(timed(ratio))
    assert found.verdict == verdict
    assert f"kerple + dape {ratio:.2f}" in found.ours
    assert ("kerple + dape 1.80 at 512, cost-12-heads forward" in found.why) == (verdict == FAILS)


def test_costs_that_were_not_all_measured_are_not_judged() -> None:
    held = timed(1.5)
    rows = held[COST[1].name].rows
    (missing,) = [
        row
        for row in rows
        if (row.what, row.encoding, row.length) == ("training", "kerple + dape", COST[1].lengths[-1])
    ]
    rows[rows.index(missing)] = dataclasses.replace(missing, ratio=None, note="out of memory")
    with pytest.raises(Unfinished, match=r"'kerple \+ dape' was not timed at 8192, .*, training: out of memory"):
        CLAIMS["dape/cost"].judge(held)


def heads(slope: Callable[[int, int], float]) -> Finding:
    """Slopes of f, by half of the texts and head."""
    rows = []
    for name in ("kerple", "kerple + dape"):
        for seed in range(3):
            for half in range(2):
                for head in range(6):
                    marks = {"layer": 0.0, "head": float(head), "half": float(half)}
                    for metric, value in (("slope", slope(half, head) + 0.01 * seed), ("mean_distance", 10.0 * head)):
                        row = Row(f"{name}-{seed}", name, seed, "text", 1, "patterns", 128, 512, metric, value)
                        rows.append(Row(**{**row.__dict__, "marks": marks}))
    moved = Row("t", "kerple + dape", 0, "text", 1, "adaptation", 128, 128, "adaptive_variation", 0.25)
    text = Results({"encodings": [], "baseline": None}, [moved])
    return CLAIMS["dape/patterns"].judge({PATTERNS["small"].name: rows, TEXT["small"].name: text})


def test_heads_are_near_and_far_only_if_the_other_half_of_the_texts_says_so() -> None:
    found = heads(lambda half, head: head - 2.5)
    assert found.verdict == HOLDS
    assert "kerple 0 to 50" in found.ours
    assert "25% of what f adds" in found.ours
    # great where heads are chosen, none where they are measured
    assert heads(lambda half, head: (head - 2.5) * (half == 0)).verdict == FAILS
    with pytest.raises(Unfinished, match=r"slope of 'kerple', seed 0, is nan, which says nothing"):
        heads(lambda half, head: NAN)


def test_a_shift_is_judged_by_what_it_moves() -> None:
    claim = CLAIMS["tape/shift"]
    for moved, verdict in ((0.1, HOLDS), (0.0, FAILS)):
        rows = [
            Row(
                f"{name}-{seed}",
                name,
                seed,
                "text",
                1,
                "shifts",
                128,
                128,
                f"{what}_{way}",
                value,
                marks={"layer": 0.0},
            )
            for name in ("rope", "tape", "tape(mixing='entries')")
            for seed in range(3)
            for what in ("attention", "products")
            for way in ("shifted", "prepended")
            for value in [moved * (1 + 0.01 * seed) * (name != "tape")]
        ]
        assert claim.judge({SHIFTS["small"].name: rows}).verdict == verdict


def test_images_are_judged_by_the_larger_ones() -> None:
    def judged(told: float) -> Finding:
        values = {
            name: [(told if "dape" in name else 0.5) + 0.01 * seed for seed in range(3)]
            for name in CLAIMS["beyond/images"].needs[0][1]
        }
        return CLAIMS["beyond/images"].judge({DIGITS.name: results(values, DIGITS.lengths, "accuracy")})

    assert judged(0.9).verdict == HOLDS
    assert "plane + dape 0.910" in judged(0.9).ours
    assert judged(0.8).verdict == UNTESTABLE


def test_names_find_claims() -> None:
    assert [claim.name for claim in find("dape/kernel", "small")] == ["dape/kernel"]
    assert {claim.name.partition("/")[0] for claim in find("tape", "small")} == {"tape"}
    assert len(find("all", "small")) == len(CLAIMS)
    with pytest.raises(ValueError, match=r"no claim is called 'dape/kernels': .*; did you mean 'dape/kernel'"):
        find("dape/kernels", "small")


def test_the_list_and_a_wrong_name_on_the_command_line(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("reproduce")
    assert (code, out.count("not run")) == (0, len(CLAIMS))
    for words, sentence in (
        (("tape/nothing",), "no claim is called 'tape/nothing'"),
        (("dape/kernel", "--scale", "huge"), "scale must be one of"),
        (("tape/state", "--data", "my.txt"), "--data and --tokenizer are for claims that read text, and tape/state"),
        (("dape/cost", "--model", "gpt2"), "--model is for claims of pretrained models, and dape/cost is of none"),
        (("--dry-run",), "--dry-run is of a claim, and none is named"),
        (("dape/kernel", "--out", __file__), "must be a folder, and is a file"),
        # before the hours of what else there is
        (("dape", "--data", "missing.txt"), "missing.txt"),
    ):
        code, _, err = run("reproduce", *words)
        assert code == 2
        assert sentence in err
    assert not list(tmp_path.iterdir())
