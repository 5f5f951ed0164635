"""No setting is silently ignored: each one of each encoding changes what the model computes."""

import pytest
import torch

from adapos import build
from adapos.registry import REGISTRY, parameters
from cases import SHAPE, decoder, text

# encoding: what it stands in, the setting, another value of it
SETTINGS = {
    "learned": [("learned({})", "longest=64", "longest=63")],
    "rope": [
        ("rope({})", "base=10000.0", "base=500.0"),
        ("rope(factor=2.0, trained=8, {})", "schedule='linear'", "schedule='ntk'"),
        ("rope(factor=2.0, trained=8, {})", "schedule='ntk'", "schedule='dynamic'"),
        ("rope(factor=2.0, trained=8, {})", "schedule='dynamic'", "schedule='yarn'"),
        ("rope(schedule='linear', {})", "factor=1.0", "factor=2.0"),
        ("rope(schedule='ntk', {})", "factor=1.0", "factor=2.0"),
        ("rope(schedule='yarn', trained=8, {})", "factor=1.0", "factor=2.0"),
        ("rope(schedule='dynamic', trained=8, {})", "factor=1.0", "factor=2.0"),
        ("rope(schedule='yarn', factor=2.0, {})", "trained=8", "trained=64"),
        ("rope(schedule='dynamic', factor=2.0, {})", "trained=8", "trained=10"),
        ("rope(schedule='linear', factor=2.0, {})", "late=False", "late=True"),
    ],
    "randomized": [("rope + randomized({})", "factor=2", "factor=4")],
    "t5": [("t5({})", "buckets=32", "buckets=8"), ("t5(buckets=8, {})", "furthest=20", "furthest=10")],
    "alibi": [("alibi({})", "learned=False", "learned=True")],
    "kerple": [("kerple({})", "form='log'", "form='power'")],
    "fire": [("fire({})", "width=32", "width=8")],
    "cope": [("cope({})", "positions=64", "positions=4")],
    "dape": [
        ("kerple + dape({})", "width=32", "width=8"),
        ("kerple + dape({})", "kernel=1", "kernel=3"),
        ("kerple + dape({})", "form='residual'", "form='concat'"),
        ("kerple + dape({})", "form='add'", "form='bias'"),
        ("kerple + dape({})", "form='scores'", "form='bias'"),
        ("kerple + dape({})", "zero=False", "zero=True"),
    ],
    "tape": [
        ("tape({})", "width=None", "width=5"),
        ("tape({})", "attention=True", "attention=False"),
        ("tape({})", "mlp=True", "mlp=False"),
        ("tape({})", "mixing='heads'", "mixing='scale'"),
        ("tape({})", "mixing='heads'", "mixing='entries'"),
        ("tape({})", "form='rotary'", "form='additive'"),
        ("tape({})", "base=10000.0", "base=500.0"),
        ("tape(form='additive', {})", "base=10000.0", "base=500.0"),
        ("tape(factor=2.0, trained=8, {})", "schedule='linear'", "schedule='yarn'"),
        ("tape(schedule='yarn', trained=8, {})", "factor=1.0", "factor=2.0"),
        ("tape(schedule='yarn', factor=2.0, {})", "trained=8", "trained=64"),
        ("tape(schedule='linear', factor=2.0, {})", "late=False", "late=True"),
    ],
}
EVERY = [(spec, one, other) for rows in SETTINGS.values() for spec, one, other in rows]


@pytest.mark.parametrize(("spec", "one", "other"), EVERY, ids=[f"{spec}: {one}, {other}" for spec, one, other in EVERY])
def test_a_setting_changes_something(spec: str, one: str, other: str) -> None:
    tokens, found = text(1, 30), []
    for setting in (one, other):
        model = decoder(spec.format(setting))
        model.train("randomized" in spec or "late" in one)
        torch.manual_seed(3)
        with torch.no_grad():
            found.append(model(tokens))
    assert float((found[0] - found[1]).abs().max()) > 1e-4


def test_every_setting_of_every_encoding_is_among_them() -> None:
    tried = {
        name: {text.split("=")[0] for _, one, other in rows for text in (one, other)} for name, rows in SETTINGS.items()
    }
    known = {name: set(parameters(cls)) for name, cls in REGISTRY.items()}
    assert tried == {name: settings for name, settings in known.items() if settings}


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("rope", []),
        ("alibi", []),
        ("t5", ["table"]),
        ("kerple + dape", ["parts.0.p", "parts.0.a", "parts.1.w_in", "parts.1.b_in", "parts.1.w_out", "parts.1.b_out"]),
        ("tape", ["w_p", "w_1", "w_x", "w_2"]),
        ("tape(attention=False, mlp=False)", []),
    ],
)
def test_positional_parameters_are_all_under_the_encoding(spec: str, names: list[str]) -> None:
    assert [name for name, _ in build(spec, SHAPE).named_parameters()] == names
    model = decoder(spec)
    positional = {
        name.removeprefix("encoding.") for name, _ in model.named_parameters() if name.startswith("encoding.")
    }
    assert positional == set(names)
