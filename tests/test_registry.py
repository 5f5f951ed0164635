"""Specs: what builds, what comes back, and the sentences a typo meets."""

import pytest

import adapos
from adapos import PositionalEncoding, Shape, build, register, spec
from adapos.encoding import Compose
from adapos.registry import REGISTRY, find, names, parameters, parse
from cases import SHAPE


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("kerple", "kerple"),
        (" kerple ", "kerple"),
        ("kerple()", "kerple"),
        ("kerple+dape", "kerple + dape"),
        ("dape(width=32, kernel=1)", "dape"),
        ("dape(kernel=3,width=8)", "dape(width=8, kernel=3)"),
        ("cape", "dape"),
        ("cape(kernel=3)", "dape(kernel=3)"),
        ('kerple(form="power")', "kerple(form='power')"),
        ("rope(base=500000)", "rope(base=500000)"),
        ("rope(schedule='yarn', factor=4.0, trained=2048)", "rope(schedule='yarn', factor=4.0, trained=2048)"),
        ("(kerple + alibi) + dape", "kerple + alibi + dape"),
        ("tape(width=None)", "tape"),
        ("tape(mlp=False) + dape(zero=True)", "tape(mlp=False) + dape(zero=True)"),
    ],
)
def test_a_spec_comes_back_as_the_shortest_that_builds_the_same(given: str, written: str) -> None:
    assert spec(build(given, SHAPE)) == written
    assert spec(build(written, SHAPE)) == written


def test_the_encodings_are_those_of_the_design() -> None:
    absolute, rotary = ["nope", "sinusoidal", "learned"], ["rope", "xpos", "randomized"]
    biases, adaptive = ["t5", "alibi", "kerple", "fire", "xl", "fox", "cable"], ["cope", "dape", "tape"]
    assert names() == absolute + rotary + biases + adaptive
    assert find("cape") is find("dape")


def test_settings_have_the_names_and_defaults_that_scripts_rely_on() -> None:
    schedules = {"base": 10000.0, "schedule": "none", "factor": 1.0, "trained": None, "late": False}
    known = {
        "learned": {"longest": 2048},
        "rope": schedules,
        "randomized": {"factor": 4},
        "t5": {"buckets": 32, "furthest": 128},
        "alibi": {"learned": False},
        "kerple": {"form": "log"},
        "fire": {"width": 32},
        "cope": {"positions": 64},
        "dape": {"width": 32, "kernel": 1, "form": "residual", "zero": False},
        "tape": {"width": None, "attention": True, "mlp": True, "mixing": "heads", "form": "rotary", **schedules},
    }
    assert {name: parameters(cls) for name, cls in REGISTRY.items() if parameters(cls)} == known


def test_the_public_names_are_those_that_scripts_rely_on() -> None:
    promised = (
        "build spec Shape Layout Pairs PositionalEncoding Tokens Keys register attend explain check SelfAttention"
    )
    assert set(promised.split()) <= set(adapos.__all__)
    assert all(hasattr(adapos, name) for name in adapos.__all__)
    assert {"Decoder", "Cache"} <= set(adapos.model.__all__)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("kerpel", "no encoding is called 'kerpel'; did you mean 'kerple'\\? `adapos encodings` lists all"),
        ("caep", "no encoding is called 'caep'; did you mean 'cape'"),
        ("zzz", "no encoding is called 'zzz'; `adapos encodings` lists all"),
        ("kerple + dpae", "no encoding is called 'dpae'; did you mean 'dape'"),
        ("Kerple", "no encoding is called 'Kerple'; did you mean 'kerple'"),
        (
            "dape(kernl=3)",
            "dape has no parameter 'kernl'; did you mean 'kernel'\\? it knows: width=32, kernel=1, form=",
        ),
        ("t5(zzz=3)", "t5 has no parameter 'zzz'; it knows: buckets=32, furthest=128"),
        ("nope(width=3)", "nope has no parameter 'width'; it knows: none"),
        ("dape(3)", r"parameters are given by name, as in 'dape\(kernel=3\)'; 'dape\(3\)' gives one without"),
        ("", "a spec names encodings, such as .*; '' names none"),
        ("   ", "a spec names encodings"),
        (None, "a spec names encodings, such as .*; None names none"),
        ("kerple +", r"the spec 'kerple \+' does not parse; write it like 'kerple \+ dape\(kernel=3\)'"),
        ("kerple dape", "does not parse"),
        ("dape(kernel=3", "does not parse"),
        ("dape(kernel=3, kernel=5)", "kernel"),
        ("dape(**{'kernel': 3})", "parameters are given by name"),
        (
            "kerple - dape",
            r"the spec 'kerple - dape' must be names joined by \+, as in 'kerple \+ dape'; 'kerple - dape'",
        ),
        ("'kerple'", r"must be names joined by \+, .* is no name"),
        ("kerple * 2", r"must be names joined by \+"),
        ("a.b", r"must be names joined by \+.*'a.b' is no name"),
        ("dape(kernel=int('3'))", r"dape: kernel must be a plain value \(a number, a quoted word, .* not int\('3'\)"),
        ("dape(kernel=__import__('os').system('true'))", "dape: kernel must be a plain value"),
        ("dape(form=residual)", "dape: form must be a plain value .*, not residual"),
    ],
)
def test_a_spec_that_cannot_be_read_is_answered_with_one_sentence(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(given, SHAPE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("rope + xpos", "rope and xpos both rotate queries and keys; an encoding may hold only one of them"),
        ("rope + kerple + tape", "rope and tape both rotate queries and keys"),
        ("dape + kerple + cope", "dape and cope both mix scores; an encoding may hold only one of them"),
        ("kerple + kerple", "kerple appears twice; name it once"),
        ("fox + rope + fox", "fox appears twice; name it once"),
        ("randomized + randomized", "randomized and randomized both renumber tokens"),
        ("xl + rope", "xl compares queries or keys with vectors of its own, and rope turns them; keep one of the two"),
        ("tape + xl", "xl compares queries or keys with vectors of its own, and tape turns them"),
        ("cope + rope", "cope compares queries or keys with vectors of its own, and rope turns them"),
        ("tape + cope", "cope compares queries or keys with vectors of its own, and tape turns them"),
    ],
)
def test_encodings_that_do_not_go_together_are_refused(given: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(given, SHAPE)


def test_a_shape_is_asked_for() -> None:
    with pytest.raises(ValueError, match=r"build needs an adapos\.Shape as its second argument, not int"):
        build("kerple", 4)  # type: ignore[arg-type]


def test_a_spec_is_read_without_being_executed() -> None:
    assert parse("rope(base=2e4) + dape(kernel=3)") == [("rope", {"base": 2e4}), ("dape", {"kernel": 3})]


@pytest.mark.usefixtures("registry")
def test_an_encoding_of_ones_own_has_a_spec_once_it_is_registered() -> None:
    class Own(PositionalEncoding):
        def __init__(self, shape: Shape, size: int = 3, word: str = "a") -> None:
            super().__init__(shape)
            self.size, self.word = size, word

    with pytest.raises(ValueError, match=r'Own has no spec: put @adapos\.register\("its_name"\) above the class'):
        spec(Own(SHAPE))
    assert register("own", "mine")(Own) is Own
    built = build('mine(size=5, word="it\'s") + dape', SHAPE)
    assert isinstance(built, Compose)
    assert spec(built) == 'own(size=5, word="it\'s") + dape'
    assert "own" in names()
    register("own", "mine")(Own)  # a module that is loaded again


@pytest.mark.usefixtures("registry")
def test_what_cannot_be_registered_is_refused() -> None:
    class Own(PositionalEncoding):
        pass

    class Needy(PositionalEncoding):
        def __init__(self, shape: Shape, size: int) -> None:
            super().__init__(shape)

    with pytest.raises(
        ValueError, match=r"the name 'rope' is taken by adapos\.encodings\.rotary\.Rope; choose another"
    ):
        register("rope")(Own)
    with pytest.raises(ValueError, match=r"the name 'cape' is taken by adapos\.encodings\.dape\.Dape"):
        register("own", "cape")(Own)
    with pytest.raises(ValueError, match="an encoding's name must be a word of letters, digits and _, not 'my own'"):
        register("my own")(Own)
    with pytest.raises(ValueError, match=r"@register\('own'\) takes a subclass of PositionalEncoding, not 3"):
        register("own")(3)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="own: parameter 'size' needs a default, so that the name alone builds it"):
        register("own")(Needy)


@pytest.mark.usefixtures("registry")
def test_names_registered_in_a_test_are_forgotten_after_it() -> None:
    assert not {"own", "mine", "forgetful", "sound", "hidden"} & set(names())
