"""The contract over every registered encoding and the combinations of the papers."""

import pytest
import torch

import adapos
from adapos.encoding import Compose
from adapos.registry import names

pytestmark = pytest.mark.usefixtures("one_thread")

STATIC = ("t5", "alibi", "kerple", "fire")
FORMS = ("concat", "add", "scores", "bias")
YARN = "schedule='yarn', factor=4.0, trained=16"

ALONE = [
    "nope",
    "sinusoidal",
    "learned",
    "learned(longest=40)",
    "rope",
    "rope(base=500000.0)",
    "rope(schedule='linear', factor=4.0)",
    "rope(schedule='ntk', factor=4.0)",
    "rope(schedule='dynamic', factor=2.0, trained=16)",
    f"rope({YARN})",
    "xpos",
    "randomized",
    "t5",
    "t5(buckets=8, furthest=20)",
    "alibi",
    "alibi(learned=True)",
    "kerple",
    "kerple(form='power')",
    "fire",
    "fire(width=5)",
    "xl",
    "cope",
    "cope(positions=6)",
    "fox",
    "cable",
    "dape",
    "dape(kernel=3)",
    "dape(kernel=5)",
    "dape(kernel=7, width=8)",
    "dape(zero=True)",
    "tape",
    "tape(attention=False)",
    "tape(mlp=False)",
    "tape(attention=False, mlp=False)",
    "tape(width=6)",
    "tape(mixing='scale')",
    "tape(mixing='entries')",
    "tape(schedule='linear', factor=4.0)",
    "tape(schedule='ntk', factor=4.0)",
    "tape(schedule='dynamic', factor=2.0, trained=16)",
    f"tape({YARN})",
    "tape(form='additive')",
    "tape(form='additive', mixing='scale')",
    "tape(form='additive', attention=False)",
    f"tape(form='additive', {YARN})",
]
TOGETHER = [
    *(f"{base} + {dape}" for base in STATIC for dape in ("dape", "dape(kernel=3)")),
    *(f"kerple + dape(form='{form}')" for form in FORMS),
    *(f"alibi + dape(kernel=3, form='{form}')" for form in FORMS),
    "alibi + dape(width=4)",
    "kerple + dape(zero=True)",
    "kerple + dape(kernel=5)",
    "fire + dape(kernel=7)",
    "kerple(form='power') + dape",
    "alibi(learned=True) + dape",
    "rope + dape",
    "rope + dape(kernel=3)",
    "nope + dape",
    "nope + dape(kernel=3)",
    "rope + kerple + dape",
    "rope + t5",
    "rope + alibi",
    "sinusoidal + dape",
    "learned + dape",
    "xpos + dape",
    f"rope({YARN}) + dape",
    "rope(schedule='dynamic', factor=2.0, trained=16) + dape",
    "randomized + rope",
    "randomized + kerple",
    "randomized + alibi + dape",
    "randomized + tape",
    "rope + fox",
    "rope + cable",
    "fox + cable",
    "fox + dape",
    "fox + dape(kernel=3)",
    "cable + dape",
    "xl + dape",
    "xl + dape(kernel=3)",
    "cope + alibi",
    "cope + kerple",
    "cope + fox",
    "tape + dape",
    "tape + dape(kernel=3)",
    "tape + kerple",
    "tape + kerple + dape",
    "tape + fox",
    "tape(form='additive') + dape",
    "tape(form='additive') + rope",
    "tape(form='additive') + kerple + dape(kernel=3)",
]


@pytest.mark.parametrize("spec", [*ALONE, *TOGETHER])
def test_an_encoding_keeps_the_contract(spec: str) -> None:
    report = adapos.check(spec)
    assert report.ok, f"\n{report}"


def test_every_registered_encoding_is_held_to_the_contract() -> None:
    shape = adapos.Shape(layers=1, width=8, heads=2)
    built = [adapos.build(spec, shape) for spec in ALONE]
    assert {encoding.name for encoding in built} == set(names())
    combined = [adapos.build(spec, shape) for spec in TOGETHER]
    assert all(isinstance(encoding, Compose) for encoding in combined)


def test_the_report_names_every_promise_with_its_error_and_verdict() -> None:
    report = adapos.check("learned(longest=40)")
    verdicts = {finding.promise: finding.verdict for finding in report}
    assert len(verdicts) == len(report.findings) == 17
    assert verdicts["relative"] == verdicts["longest"] == "exempt"
    assert verdicts["decoding"] == verdicts["backends"] == "held"
    assert bool(report)
    assert report.broken == ()
    lines = str(report).splitlines()
    assert lines[0] == "learned(longest=40)"
    assert "exempt" in next(line for line in lines if "relative" in line)
    assert "held" in next(line for line in lines if "decoding" in line)
    assert "limit 1e-09" in next(line for line in lines if "decoding" in line)


def test_the_check_leaves_the_random_state_as_it_was() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    adapos.check("nope")
    assert torch.equal(torch.get_rng_state(), before)


def test_an_encoding_already_built_is_checked_as_it_is_and_left_so() -> None:
    built = adapos.build("kerple + dape(kernel=3)", adapos.Shape(layers=3, width=12, heads=6, kv_heads=3))
    before = {name: x.clone() for name, x in built.state_dict().items()}
    report = adapos.check(built)
    assert report.ok, f"\n{report}"
    assert all(torch.equal(x, before[name]) for name, x in built.state_dict().items())
    assert next(built.parameters()).dtype == torch.float32


def test_what_is_no_encoding_is_refused() -> None:
    with pytest.raises(
        ValueError, match="check takes a spec, an encoding, its class or a function of a Shape, not int"
    ):
        adapos.check(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'kerple'"):
        adapos.check("kerpel")
