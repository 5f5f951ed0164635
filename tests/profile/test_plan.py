"""The options of the profile, read and refused."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from adapos import cli, sketch, specs
from adapos.encoding import Shape
from adapos.model import Decoder
from adapos.profile import measure, plan
from adapos.profile.plan import Plan

SMALL = Plan(("rope",), (16,), ("forward",), heads=2, kv_heads=2, head_width=8)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("512", (512,)),
        ("512..8192", (512, 1024, 2048, 4096, 8192)),
        ("512,1000,4096", (512, 1000, 4096)),
        (" 64 .. 256 , 100", (64, 100, 128, 256)),
        ("4096,512", (512, 4096)),
        ("7..7", (7,)),
        ("512..3000", (512, 1024, 2048, 3000)),
        ("64..256,128..512", (64, 128, 256, 512)),
    ],
)
def test_lengths_are_numbers_and_doublings(text: str, found: tuple[int, ...]) -> None:
    assert specs.lengths(text) == found


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0", "lengths must lie from 1 to 4194304, and 0 does not"),
        ("-5", "lengths must lie from 1 to 4194304, and -5 does not"),
        ("16..99999999", "lengths must lie from 1 to 4194304, and 99999999 does not"),
        ("8..4", "lengths: '8..4' must rise; write 4..8"),
        ("many", "lengths must be whole numbers .* and 'many' is neither"),
        ("1.5", "and '1.5' is neither"),
        ("1..2..3", "and '1..2..3' is neither"),
        ("16,", "and '' is neither"),
        ("", "and '' is neither"),
        ("²", "is neither"),
    ],
)
def test_lengths_that_make_no_sense_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        specs.lengths(text)


def test_encodings_are_split_at_commas_outside_parentheses_and_quotes() -> None:
    text = "rope,  kerple +   dape(width=8, kernel=3),tape(form='additive', mixing=\"heads\")"
    assert specs.specs(text) == ("rope", "kerple + dape(width=8, kernel=3)", "tape(form='additive', mixing=\"heads\")")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rope,,alibi", "a spec names encodings"),
        ("", "a spec names encodings"),
        ("dape(kernel=3, alibi", "does not parse"),
        ("rope, alibi, rope", "encodings: 'rope' appears twice; name it once"),
    ],
)
def test_encodings_that_make_no_sense_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        specs.specs(text)


def test_measurements_keep_their_order_and_count_once() -> None:
    assert plan.measurements("decode, forward,decode") == ("decode", "forward")


def test_an_unknown_measurement_is_answered_with_what_was_meant() -> None:
    with pytest.raises(ValueError, match=r"what must be some of .* 'foward' is none of them; did you mean 'forward'\?"):
        plan.measurements("foward")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"repeats": 0}, "profile: repeats must be a whole number of at least 1, not 0"),
        ({"threads": 0}, "profile: threads must be a whole number of at least 1, not 0"),
        ({"batch": -1}, "profile: batch must be a whole number of at least 1, not -1"),
        ({"size": "1b"}, "profile: size must be one of '10m', '125m', '350m', not '1b'"),
        ({"backend": "fast"}, "no backend is called 'fast'; there are auto, .*reference"),
        ({"device": "nowhere"}, "device 'nowhere' is not available on this machine; try 'cpu'"),
        ({"device": "meta"}, "device 'meta' holds no numbers; try 'cpu', or 'cuda' where torch sees a GPU"),
        ({"device": "cudaa"}, r"no device is called 'cudaa'; did you mean 'cuda'\?"),
        ({"heads": 4, "kv_heads": 3}, r"heads \(4\) must be a multiple of kv_heads \(3\)"),
        ({"heads": 0}, r"heads \(0\) must be a whole number of at least 1"),
        ({"head_width": 7}, r"rope: head_width \(7\) must be even"),
        ({"encodings": ("kerpel",)}, "no encoding is called 'kerpel'; did you mean 'kerple'"),
        ({"encodings": ("learned(longest=1000000000000000)",)}, "cannot be built"),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused_before_it_runs(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("device", "backend", "interpreted"),
    [
        ("cpu", "triton", True),
        ("cuda", "triton", True),
        ("cuda", "auto", True),
        ("cpu", "auto", False),
        ("cuda", "sdpa", False),
    ],
)
def test_times_of_the_interpreter_are_refused(
    device: str, backend: str, interpreted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketch, "available", torch.device)
    asked = {"encodings": (), "device": device, "backend": backend}
    replace(SMALL, **asked)
    monkeypatch.setattr(plan, "INTERPRETED", True)
    if not interpreted:
        replace(SMALL, **asked)
        return
    with pytest.raises(ValueError, match=r"TRITON_INTERPRET must not be on: .* its times say nothing; unset it"):
        replace(SMALL, **asked)


@pytest.mark.parametrize(("name", "parameters"), [("10m", 10e6), ("125m", 125e6), ("350m", 350e6)])
def test_sizes_are_what_they_are_called(name: str, parameters: float) -> None:
    size = plan.SIZES[name]
    shape = size.shape
    assert shape.width == shape.heads * shape.head_width
    # a block less, so that the large ones need not be made
    one = Decoder(1, Shape(layers=1, width=shape.width, heads=shape.heads), "nope")
    block = sum(x.numel() for x in one.blocks.parameters())
    assert shape.layers * block + size.vocabulary * shape.width == pytest.approx(parameters, rel=0.06)


def test_the_command_of_a_plan_makes_the_same_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Plan(
        ("kerple + dape(width=8, kernel=3)", "tape(form='additive')"),
        (16, 100),
        ("training", "model"),
        heads=4,
        kv_heads=2,
        head_width=8,
        batch=2,
        dtype="bfloat16",
        threads=3,
        repeats=7,
        backend="tiled",
        size="125m",
        memory=False,
        out="some where",
    )
    made: list[Plan] = []

    def stop(asked: Plan, adapos: str) -> None:
        made.append(asked)
        raise ValueError("seen")

    monkeypatch.setattr(measure, "begun", stop)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli.app, shlex.split(given.command)[1:])
    assert (made, result.stderr) == ([given], "error: seen\n")


def test_each_measurement_trains_or_evaluates_its_encodings() -> None:
    every = replace(SMALL, what=tuple(plan.MEASUREMENTS))
    assert [what for what in every.what if every.build("rope", what).training] == ["training", "model"]
