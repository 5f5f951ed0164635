"""Plans: what makes sense, what a folder already holds, and what its trials are called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapos.bench import plan as plans
from adapos.bench.plan import SIZES, Plan, settle
from adapos.bench.tasks import TASKS, build, normal
from adapos.model import Decoder


def test_trials_are_every_encoding_for_every_seed() -> None:
    plan = Plan(encodings=("rope", "alibi"), seeds=(0, 3), task="copy")
    assert [(trial.encoding, trial.seed) for trial in plan.trials] == [
        ("rope", 0),
        ("alibi", 0),
        ("rope", 3),
        ("alibi", 3),
    ]
    assert len({trial.name for trial in plan.trials}) == 4


def test_one_encoding_has_one_name_however_it_is_written() -> None:
    plan = Plan(
        encodings=("kerple+dape( kernel = 1 )", "rope(base=10000.0)"),
        task="copy( alphabet=16 )",
        baseline="rope(base=10000.0)",
    )
    assert plan.encodings == ("kerple + dape", "rope")
    assert (plan.task, plan.baseline) == ("copy", "rope")


@pytest.mark.parametrize(
    ("name", "millions"), [("300k", 0.33), ("1m", 1), ("3m", 2.7), ("10m", 10), ("125m", 85), ("350m", 303)]
)
def test_sizes_are_what_they_are_called(name: str, millions: float) -> None:
    import torch

    with torch.device("meta"):
        model = Decoder(1, SIZES[name], "nope")
    assert sum(x.numel() for x in model.parameters()) == pytest.approx(millions * 1e6, rel=0.03)


def test_a_shape_of_ones_own_takes_the_place_of_the_size() -> None:
    assert Plan(encodings=("rope",), task="copy", layers=3, width=48, heads=4).shape.head_width == 12
    assert Plan(encodings=("rope",), task="copy", heads=8).shape.kv_heads == 8
    assert Plan(encodings=("rope",), task="copy", kv_heads=2).shape.kv_heads == 2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"encodings": ("roep",)}, "no encoding is called 'roep'; did you mean 'rope'?"),
        ({"task": "copi"}, r"no task is called 'copi'; did you mean 'copy'\? `adapos tasks` lists all"),
        (
            {"task": "copy(alphabot=3)"},
            r"copy has no parameter 'alphabot'; did you mean 'alphabet'\? it knows: alphabet=16",
        ),
        ({"task": "copy + reverse"}, r"no task is called 'copy \+ reverse'"),
        ({"encodings": ()}, "encodings must name at least one"),
        ({"encodings": ("rope", "rope(base=10000.0)")}, "encodings: 'rope' appears twice; name it once"),
        ({"seeds": (1, 1)}, "seeds: 1 appears twice"),
        ({"seeds": (-1,)}, "seeds must be a whole number of at least 0, not -1"),
        ({"lengths": (64, 32)}, "lengths must rise, and 64, 32 do not"),
        ({"lengths": (0,)}, "lengths must be a whole number of at least 1, not 0"),
        ({"size": "2m"}, "size must be one of '300k', '1m', '3m', '10m', '125m', '350m', not '2m'"),
        (
            {"protocol": "lasst"},
            "protocol must be one of 'last', 'sliding', 'blocks', not 'lasst'; did you mean 'last'?",
        ),
        ({"dtype": "int8"}, "dtype must be one of"),
        ({"steps": 0}, "steps must be a whole number of at least 1, not 0"),
        ({"batch": 1.5}, "batch must be a whole number of at least 1, not 1.5"),
        ({"rate": 0.0}, "rate must be above 0 and finite, not 0.0"),
        ({"rate": float("nan")}, "rate must be a number of at least 0.0, not nan"),
        ({"dropout": 2}, "dropout must lie from 0 to 1, not 2"),
        ({"dropout": 1}, "dropout must be below 1"),
        ({"rate": float("inf")}, "rate must be above 0 and finite, not inf"),
        ({"seeds": (2**70,)}, "seeds must lie below 2\\^62"),
        ({"seeds": range(10**8)}, "seeds must be a list"),
        ({"seeds": tuple(range(10_001))}, "seeds must be at most 10,000"),
        ({"layers": 10**9}, "layers must be at most 10,000"),
        ({"lengths": 5}, "lengths must be a list, not 5"),
        ({"encodings": 5}, "encodings must be a list, not 5"),
        ({"encodings": ("",)}, "'' names none"),
        ({"baseline": ""}, "baseline must be a word, not ''"),
        ({"task": 5}, "task must be a word, not 5"),
        ({"heads": 7}, "width"),
        (
            {"protocol": "sliding", "stride": 9, "lengths": (8,)},
            r"stride \(9\) must not be more than the shortest length",
        ),
        (
            {"task": "text", "protocol": "blocks", "lengths": (96, 128)},
            "only where each divides the longest, 128, and 96, 128 do not",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as problem:
        Plan(**{"encodings": ("rope",), "task": "copy"} | settings)  # type: ignore[arg-type]
    assert "\n" not in str(problem.value)


def test_a_plan_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    plan = Plan(encodings=("rope", "kerple + dape"), task="copy", lengths=(4, 8), seeds=(0, 1), rate=2e-3)
    settle(plan, tmp_path)
    assert plans.load(tmp_path / "plan.json") == plan


def test_encodings_seeds_and_lengths_can_be_added_to_a_folder(tmp_path: Path) -> None:
    settle(Plan(encodings=("rope",), task="copy", lengths=(8,), seeds=(0,)), tmp_path)
    both = settle(Plan(encodings=("alibi",), task="copy", lengths=(8, 16), seeds=(0, 1), baseline="alibi"), tmp_path)
    assert (both.encodings, both.lengths, both.seeds) == (("rope", "alibi"), (8, 16), (0, 1))
    assert both.baseline == "alibi"
    assert plans.load(tmp_path / "plan.json") == both


def test_the_baseline_may_be_in_the_folder_alone_and_what_is_not_given_again_stays(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"baseline \('rope'\) must be one of the encodings, 'alibi'"):
        settle(Plan(encodings=("alibi",), task="copy", baseline="rope"), tmp_path)
    settle(Plan(encodings=("rope",), task="copy", significance=0.01), tmp_path)
    both = settle(Plan(encodings=("alibi",), task="copy", baseline="rope"), tmp_path)
    assert (both.baseline, both.significance) == ("rope", 0.01)
    again = settle(Plan(encodings=("alibi",), task="copy", significance=0.1), tmp_path)
    assert (again.baseline, again.significance) == ("rope", 0.1)


def test_a_folder_of_another_plan_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    settle(Plan(encodings=("rope",), task="copy", lengths=(8,)), tmp_path)
    before = (tmp_path / "plan.json").read_bytes()
    with pytest.raises(
        ValueError, match="holds another plan: steps is 1000 there and 7 here, batch is 32 there and 9 here"
    ):
        settle(Plan(encodings=("rope",), task="copy", lengths=(8,), steps=7, batch=9), tmp_path)
    assert (tmp_path / "plan.json").read_bytes() == before


def test_lengths_that_would_change_what_is_scored_are_refused(tmp_path: Path) -> None:
    settle(Plan(encodings=("rope",), lengths=(64,)), tmp_path)
    with pytest.raises(
        ValueError, match=r"scores the last 32 tokens of each text, and with lengths from 16 on it .* 8"
    ):
        settle(Plan(encodings=("rope",), lengths=(16,)), tmp_path)


def test_lengths_of_exams_can_be_added_below_and_where_there_were_none(tmp_path: Path) -> None:
    settle(Plan(encodings=("rope",), task="copy"), tmp_path / "none")
    assert settle(Plan(encodings=("rope",), task="copy", lengths=(16,)), tmp_path / "none").lengths == (16,)
    settle(Plan(encodings=("rope",), task="copy", lengths=(64,)), tmp_path)
    assert settle(Plan(encodings=("rope",), task="copy", lengths=(16,)), tmp_path).lengths == (16, 64)


def test_data_that_has_changed_is_another_plan(tmp_path: Path) -> None:
    settle(Plan(encodings=("rope",), checksum="one"), tmp_path)
    with pytest.raises(ValueError, match=r"the data of text is not what it was when .* was begun"):
        settle(Plan(encodings=("rope",), checksum="two"), tmp_path)


def test_the_plan_of_a_run_can_be_given_to_another(tmp_path: Path) -> None:
    plan = Plan(encodings=("rope",), task="copy", lengths=(8,), checksum="one", command="adapos compare")
    settle(plan, tmp_path)
    again = Plan(**plans.from_file(tmp_path / "plan.json"))
    assert (again.encodings, again.lengths, again.checksum, again.command) == (("rope",), (8,), "", "")


@pytest.mark.parametrize("ending", ["toml", "yaml", "json"])
def test_settings_are_read_from_a_file(tmp_path: Path, ending: str) -> None:
    if ending == "yaml":
        pytest.importorskip("yaml")
    text = {
        "toml": 'encodings = ["rope", "kerple + dape"]\ntask = "copy"\nsteps = 7\ntrain-length = 64\n',
        "yaml": "encodings: [rope, kerple + dape]\ntask: copy\nsteps: 7\ntrain-length: 64\n",
        "json": json.dumps({"encodings": ["rope", "kerple + dape"], "task": "copy", "steps": 7, "train_length": 64}),
    }[ending]
    (tmp_path / f"plan.{ending}").write_text(text)
    plan = Plan(**plans.from_file(tmp_path / f"plan.{ending}"))
    assert (plan.encodings, plan.steps, plan.train_length) == (("rope", "kerple + dape"), 7, 64)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("plan.toml", "steps = ", "the plan .*plan.toml does not parse: "),
        ("plan.yaml", "steps: [", "the plan .*plan.yaml does not parse: "),
        ("plan.json", "{", "the plan .*plan.json does not parse: "),
        ("plan.toml", "stepps = 3", "a plan has no setting 'stepps'; did you mean 'steps'?"),
        ("plan.yaml", "- 3", "must be settings by name"),
        ("plan.ini", "steps = 3", "its name must end in .toml, .yaml or .json"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=sentence):
        plans.from_file(tmp_path / name)


def test_a_folder_without_a_plan_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no plan.json; `adapos compare --out .*` makes one"):
        plans.load(tmp_path / "plan.json")


def test_a_damaged_plan_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(ValueError, match=r"plan.json cannot be read as a plan"):
        plans.load(tmp_path / "plan.json")


@pytest.mark.parametrize("name", [name for name in TASKS if name != "text"])
def test_every_task_builds_by_name_and_says_what_it_asks(name: str) -> None:
    task = build(name)
    assert task.name == name
    assert normal(name) == name
    assert (task.__doc__ or "").strip()
    assert task.vocabulary > 1
