"""What claims are read from: small runs of each kind, from beginning to end."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from adapos.bench import rows
from adapos.bench.rows import Row
from adapos.bench.train import Setup
from adapos.encoding import Shape
from adapos.evidence import reproduce
from adapos.evidence.claim import Claim, of_pairs
from adapos.evidence.cost import Timing
from adapos.evidence.finding import Finding
from adapos.evidence.images import ROW, SIDE, Aimed, Digits, Plane, Reader, digits, framed
from adapos.evidence.judges import near_and_far, steady
from adapos.evidence.probe import SHIFT, Probe, patterns, shifts
from adapos.evidence.study import Order, Training, Unfinished
from adapos.layout import Layout
from adapos.model import Decoder

TINY = {"task": "text", "train_length": 16, "lengths": "16,32", "layers": 2, "width": 16, "heads": 2}
QUICK = {"steps": 2, "batch": 2, "scored": 8, "examples": 2}


def ordered(folder: Path, said: list[str] | None = None) -> Order:
    heard = [] if said is None else said
    return Order(folder, Setup(), 2, heard.append)


@pytest.mark.slow
def test_a_study_is_run_once_and_judged_by_all_claims_that_need_it(tmp_path: Path) -> None:
    text, said = Training("text", {**TINY, **QUICK}), []
    probe = Probe("patterns", text, 16, 2, patterns)
    claims = [
        of_pairs("one", "", "", "", text, "bits_per_byte", [("kerple + dape", "kerple")], (32,)),
        Claim(
            "two",
            "",
            "",
            "",
            ((probe, ("kerple", "kerple + dape")), (text, ())),
            partial(near_and_far, probe, text, "kerple", "kerple + dape"),
        ),
    ]
    assert all(
        isinstance(found, Unfinished) for _, found in reproduce.findings(claims, reproduce.read(claims, tmp_path))
    )
    for _ in range(2):
        for study, encodings in reproduce.needed(claims).items():
            study.run(ordered(tmp_path, said), encodings)
    found = dict(reproduce.findings(claims, reproduce.read(claims, tmp_path)))
    assert all(isinstance(each, Finding) for each in found.values())
    assert sum("done" in text for text in said) == 6  # trained once
    assert sum("patterns" in text for text in said) == 6  # measured once
    assert len(list((tmp_path / "text" / "trials").iterdir())) == 6
    assert (tmp_path / "text" / "report.html").exists()
    assert {row.protocol for row in rows.read(tmp_path / "patterns" / "rows.jsonl")} == {"patterns"}


def moved(spec: str) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(256, Shape(layers=3, width=32, heads=4), spec)
    with torch.no_grad():
        for parameter in model.encoding.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(("spec", "stays"), [("rope", True), ("tape", True), ("tape(mixing='entries')", False)])
def test_ids_that_start_later_move_only_what_does_not_commute(spec: str, stays: bool) -> None:
    found = {(metric, marks["layer"]): value for metric, marks, value in shifts(moved(spec), torch.arange(24)[None])}
    for what in ("attention", "products"):
        assert found[f"{what}_shifted", 0.0] < 1e-6  # before any update
        assert (found[f"{what}_shifted", 2.0] < 1e-6) == stays
    assert found["attention_prepended", 0.0] < 1e-6  # what is left of it is shared out as before
    assert found["attention_prepended", 2.0] > 1e-4
    assert (found["products_prepended", 2.0] < 1e-6) == (spec == "rope")


def test_encodings_without_states_have_no_products() -> None:
    assert {metric for metric, _, _ in shifts(moved("alibi"), torch.arange(8)[None])} == {
        "attention_shifted",
        "attention_prepended",
    }
    assert SHIFT == 3  # as the paper has it


def test_patterns_are_by_half_layer_and_head() -> None:
    found = list(patterns(moved("kerple + dape"), torch.randint(256, (4, 16))))
    assert len(found) == 2 * 2 * 3 * 4
    assert len({(metric, *marks.values()) for metric, marks, _ in found}) == len(found)
    assert any(value for metric, _, value in found if metric == "slope")
    still = patterns(moved("kerple"), torch.randint(256, (2, 16)))
    assert all(abs(value) < 1e-6 for metric, _, value in still if metric == "slope")


@pytest.mark.parametrize("kind", [Plane, Aimed])
def test_a_plane_measures_distances_in_two_dimensions(kind: type[Plane]) -> None:
    plane, places = kind(Shape(layers=1, width=16, heads=2)), torch.arange(5)
    pos = (places[:, None] * ROW + places).flatten()[None]
    layout = Layout(pos, pos, causal=False)
    q = torch.zeros(1, 2, 25, 8)
    bias = plane.pairs(0, q, None, layout).added(layout, slice(None))  # type: ignore[arg-type]
    where = torch.cartesian_prod(places, places).double()
    p, a = (x[0].clamp(min=0.01)[:, None, None] for x in (plane.p, plane.a))
    looked = where[:, None] - where
    if isinstance(plane, Aimed):
        looked = looked - plane.o[0][:, None, None]
    want = -p * torch.log1p(a * looked.square().sum(-1))
    assert float((bias[0] - want).detach().abs().max()) < 1e-6


def test_digits_are_told_by_models_that_differ_in_their_encoding_alone(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    study = Digits("digits", (8, 12), Shape(layers=1, width=16, heads=2), steps=2, batch=4)
    said: list[str] = []
    for _ in range(2):
        study.run(ordered(tmp_path, said), ("nope", "plane + dape"))
    assert len(said) == 6
    results = study.read(tmp_path)
    (table,) = results.comparisons
    assert set(table.scores) == {(name, length) for name in ("nope", "plane + dape") for length in (16, 36)}
    first = {}
    for spec in ("nope", "plane + dape"):
        torch.manual_seed(0)
        first[spec] = Reader(study.shape, spec).head.weight
    assert torch.equal(*first.values())
    train, test = digits()
    assert (len(train.images), len(test.images)) == (1437, 360)
    assert torch.equal(framed(test.images, SIDE, torch.Generator()), test.images)
    larger = framed(test.images, 16, torch.Generator().manual_seed(0))
    assert torch.allclose(larger.sum((1, 2)), test.images.sum((1, 2)))
    assert len({tuple(image.nonzero()[0].tolist()) for image in larger}) > 20  # not all in one place
    with pytest.raises(Unfinished):
        replace(study, name="others").read(tmp_path)
    # rows of other settings are none of these
    with pytest.raises(Unfinished, match="nothing of digits was run"):
        replace(study, steps=3).read(tmp_path)
    with pytest.raises(ValueError, match="up to 64 pixels a side, for ids to tell patches apart, not 80"):
        Reader(study.shape, "nope")(torch.zeros(1, 80, 80))


def test_costs_are_measured_once(tmp_path: Path) -> None:
    timing = Timing("cost", 2, 8, (16, 32), ("forward",), threads=1, memory=False)
    said: list[str] = []
    with pytest.raises(Unfinished):
        timing.read(tmp_path)
    timing.run(ordered(tmp_path, said), ("rope", "kerple + dape"))
    heard = len(said)
    timing.run(ordered(tmp_path, said), ("rope",))
    assert heard == len(said) > 0
    replace(timing, lengths=(16,)).run(ordered(tmp_path, said), ("rope",))
    assert len(said) > heard
    timing.run(ordered(tmp_path, said), ("rope", "kerple + dape"))
    assert {(row.encoding, row.length) for row in timing.read(tmp_path).rows if row.encoding == "rope"} == {
        ("rope", 16),
        ("rope", 32),
    }
    for damaged in ('{"format": 1}', '{"for', "{}"):
        (tmp_path / "cost" / "profile.json").write_text(damaged)
        with pytest.raises(Unfinished, match=r"cost/profile.json is damaged; remove it and run the claim again"):
            timing.read(tmp_path)


def test_a_study_that_holds_nothing_stops_no_other(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "rows.jsonl").write_text("")
    with pytest.raises(Unfinished, match="nothing of text was run"):
        Training("text", TINY).read(tmp_path)
    (tmp_path / "text" / "rows.jsonl").write_text(json.dumps(asdict(Row("a", "a", 0, "t", 1, "p", 1, 1, "m", 1.0))))
    with pytest.raises(Unfinished, match=r"plan.json"):
        Training("text", TINY).read(tmp_path)


def test_a_shift_probe_without_its_encodings_is_unfinished() -> None:
    probe = Probe("shifts", Training("text", TINY), 16, 2, shifts)
    with pytest.raises(Unfinished, match="'rope' was not measured"):
        steady(probe, [("tape", "rope")], [], {"shifts": []})
