"""The tasks of the Chomsky hierarchy, against answers found one row at a time."""

import math
import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from adapos.bench.task import IGNORED, Batch, Cell
from adapos.bench.tasks import TASKS, build
from adapos.bench.tasks.chomsky.transduction import Transduction

LEVELS = {
    "even_pairs": "regular",
    "modular_arithmetic_simple": "regular",
    "parity_check": "regular",
    "cycle_navigation": "regular",
    "stack_manipulation": "context-free",
    "reverse_string": "context-free",
    "modular_arithmetic": "context-free",
    "solve_equation": "context-free",
    "duplicate_string": "context-sensitive",
    "missing_duplicate": "context-sensitive",
    "odds_first": "context-sensitive",
    "binary_addition": "context-sensitive",
    "binary_multiplication": "context-sensitive",
    "compute_sqrt": "context-sensitive",
    "bucket_sort": "context-sensitive",
}
LENGTHS = (*range(1, 61), 63, 64, 65, 100, 127, 128, 129, 257, 500)


def task(name: str) -> Transduction:
    built = build(f"chomsky/{name}")
    assert isinstance(built, Transduction)
    return built


def lines(built: Transduction, batch: Batch) -> list[str]:
    """Each row as 'input -> answer'."""
    found = []
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        given = built.describe(tokens[tokens < built.vocabulary - 1])
        found.append(f"{given} -> {built.describe(targets[targets != IGNORED])}")
    return found


def drawn(name: str, size: int, length: int, seed: int = 0) -> list[str]:
    built = task(name)
    return lines(built, built.exam(np.random.default_rng(seed), size, Cell(length)))


def pairs(words: list[str]) -> str:
    text = "".join(words)
    return str(sum(text[i : i + 2] in ("01", "10") for i in range(len(text))) % 2)


def parity(words: list[str]) -> str:
    return str(words.count("1") % 2)


def walk(words: list[str]) -> str:
    place = 0
    for word in words:
        place = {"left": (4, 0, 1, 2, 3), "stay": (0, 1, 2, 3, 4), "right": (1, 2, 3, 4, 0)}[word][place]
    return str(place)


def simple(words: list[str]) -> str:
    assert re.fullmatch(r"[0-4]([-+*][0-4])*", "".join(words))
    return str(eval("".join(words)) % 5)


def bracketed(words: list[str]) -> str:
    text, before = "".join(words), ""
    while text != before:
        before, text = text, re.sub(r"\((-?[0-4]|(E|-?[0-4])[-+*](E|-?[0-4]))\)", "E", text)
    assert re.fullmatch("E|-?[0-4]", text)
    return str(eval("".join(words)) % 5)


def equation(words: list[str]) -> str:
    if len(words) < 3:
        return "0"
    left, right = " ".join(words).split(" = ")
    (answer,) = (x for x in "01234" if bracketed(left.replace("x", x).split()) == right)
    return answer


def stack(words: list[str]) -> str:
    first = [word for word in words if len(word) == 1]
    assert words[: len(first)] == first
    for word in words[len(first) :]:
        if word == "pop":
            first = first[:-1]
        else:
            first.append(word[-1])
    return " ".join([*reversed(first), "end"])


def missing(words: list[str]) -> str:
    if words == ["1"]:
        return "1"
    text = "".join(words)
    assert text.endswith(".") == bool(len(text) % 2)
    text = text.removesuffix(".")
    half = len(text) // 2
    (answer,) = (bit for bit in "01" if text.replace("?", bit)[:half] == text.replace("?", bit)[half:])
    return answer


def odds(words: list[str]) -> str:
    order = sorted(range(len(words)), key=lambda place: (place % 2 == 0, place))
    return " ".join(words[place] for place in order)


def value(text: str) -> int:
    return sum(2**power for power, bit in enumerate(text) if bit == "1")


def arithmetic(words: list[str]) -> str:
    first, sign, second = re.fullmatch(r"([01]+)(?:([+*])([01]+))?", "".join(words)).groups()  # type: ignore[union-attr]
    if sign is None:
        found = value(first)
    else:
        assert value(first) > 0 < value(second)
        found = value(first) + value(second) if sign == "+" else value(first) * value(second)
    return " ".join([*reversed(f"{found:b}"), "end"])


def product(words: list[str]) -> str:
    return arithmetic(words) if len(words) > 2 else ("end", "0 end")[len(words) - 1]


def root(words: list[str]) -> str:
    number = int("".join(words), 2)
    assert number > 0
    low, high = 0, number + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle * middle <= number else (low, middle)
    return " ".join(f"{low:0{math.ceil(len(words) / 2)}b}")


ANSWERS: dict[str, Callable[[list[str]], str]] = {
    "even_pairs": pairs,
    "modular_arithmetic_simple": simple,
    "parity_check": parity,
    "cycle_navigation": walk,
    "stack_manipulation": stack,
    "reverse_string": lambda words: " ".join(reversed(words)),
    "modular_arithmetic": bracketed,
    "solve_equation": equation,
    "duplicate_string": lambda words: " ".join(words + words),
    "missing_duplicate": missing,
    "odds_first": odds,
    "binary_addition": arithmetic,
    "binary_multiplication": product,
    "compute_sqrt": root,
    "bucket_sort": lambda words: " ".join(sorted(words)),
}


def test_the_fifteen_tasks_are_registered_with_their_levels() -> None:
    found = {name.removeprefix("chomsky/"): cls for name, cls in TASKS.items() if name.startswith("chomsky/")}
    assert {name: cls.level for name, cls in found.items()} == LEVELS  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", LEVELS)
def test_answers_are_those_found_one_row_at_a_time(name: str) -> None:
    for length in LENGTHS:
        for line in drawn(name, 6, length, seed=length):
            given, answer = line.split(" -> ")
            assert ANSWERS[name](given.split()) == answer, line


@pytest.mark.parametrize("name", LEVELS)
def test_a_row_is_the_input_and_then_placeholders_at_which_the_answer_is_asked(name: str) -> None:
    built = task(name)
    for length in LENGTHS:
        batch = built.exam(np.random.default_rng(length), 3, Cell(length))
        given = length - (name == "modular_arithmetic_simple" and length % 2 == 0)
        assert batch.tokens.shape == batch.targets.shape == (3, built.tokens_at(length))
        assert batch.tokens.dtype == batch.targets.dtype == np.int64
        assert batch.tokens.min() >= 0
        assert (batch.tokens[:, :given] < built.vocabulary - 1).all()
        assert (batch.tokens[:, given:] == built.vocabulary - 1).all()
        assert (batch.targets[:, :given] == IGNORED).all()
        asked = batch.targets[:, given:] != IGNORED
        # an answer has no gaps, and something is always asked
        assert asked[:, 0].all()
        assert (asked[:, 1:] <= asked[:, :-1]).all()
        assert batch.targets.max() < built.vocabulary - 1
        assert (batch.targets[:, given:][asked] >= 0).all()


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("even_pairs", "1 1 1 1"),
        ("parity_check", "1 1 1 1"),
        ("stack_manipulation", "2 3 10 11"),
        ("reverse_string", "1 2 9 10"),
        ("duplicate_string", "2 4 18 20"),
        ("odds_first", "1 2 9 10"),
        ("binary_addition", "2 3 10 11"),
        ("binary_multiplication", "1 2 9 10"),
        ("compute_sqrt", "1 1 5 5"),
        ("bucket_sort", "1 2 9 10"),
    ],
)
def test_answers_have_the_published_lengths(name: str, places: str) -> None:
    assert [task(name).answer_length(length) for length in (1, 2, 9, 10)] == [int(place) for place in places.split()]


@pytest.mark.parametrize(
    ("name", "length", "expected"),
    [
        ("even_pairs", 1, "0 -> 0; 1 -> 0"),
        ("parity_check", 1, "0 -> 0; 1 -> 1"),
        ("cycle_navigation", 1, "left -> 4; stay -> 0; right -> 1"),
        ("modular_arithmetic_simple", 1, "0 -> 0; 1 -> 1; 2 -> 2; 3 -> 3; 4 -> 4"),
        ("modular_arithmetic_simple", 2, "0 -> 0; 1 -> 1; 2 -> 2; 3 -> 3; 4 -> 4"),
        ("stack_manipulation", 1, "0 -> 0 end; 1 -> 1 end"),
        (
            "stack_manipulation",
            2,
            "0 pop -> end; 0 push0 -> 0 0 end; 0 push1 -> 1 0 end; 1 pop -> end; 1 push0 -> 0 1 end; "
            "1 push1 -> 1 1 end",
        ),
        ("modular_arithmetic", 1, "0 -> 0; 1 -> 1; 2 -> 2; 3 -> 3; 4 -> 4"),
        ("modular_arithmetic", 2, "- 0 -> 0; - 1 -> 4; - 2 -> 3; - 3 -> 2; - 4 -> 1"),
        ("modular_arithmetic", 3, "( 0 ) -> 0; ( 1 ) -> 1; ( 2 ) -> 2; ( 3 ) -> 3; ( 4 ) -> 4"),
        ("modular_arithmetic", 4, "( - 0 ) -> 0; ( - 1 ) -> 4; ( - 2 ) -> 3; ( - 3 ) -> 2; ( - 4 ) -> 1"),
        ("solve_equation", 1, "0 -> 0"),
        ("solve_equation", 2, "0 0 -> 0"),
        ("solve_equation", 3, "x = 0 -> 0; x = 1 -> 1; x = 2 -> 2; x = 3 -> 3; x = 4 -> 4"),
        ("solve_equation", 4, "- x = 0 -> 0; - x = 1 -> 4; - x = 2 -> 3; - x = 3 -> 2; - x = 4 -> 1"),
        ("missing_duplicate", 1, "1 -> 1"),
        ("missing_duplicate", 2, "0 ? -> 0; ? 0 -> 0; 1 ? -> 1; ? 1 -> 1"),
        ("missing_duplicate", 3, "0 ? . -> 0; ? 0 . -> 0; 1 ? . -> 1; ? 1 . -> 1"),
        ("binary_addition", 1, "0 -> 0 end"),
        ("binary_addition", 2, "0 0 -> 0 end; 1 0 -> 1 end; 0 1 -> 0 1 end"),
        ("binary_addition", 3, "1 + 1 -> 0 1 end"),
        ("binary_multiplication", 1, "0 -> end"),
        ("binary_multiplication", 2, "0 0 -> 0 end; 1 0 -> 0 end; 0 1 -> 0 end"),
        ("binary_multiplication", 3, "1 * 1 -> 1 end"),
        ("compute_sqrt", 1, "1 -> 1"),
        ("compute_sqrt", 2, "0 1 -> 1; 1 0 -> 1; 1 1 -> 1"),
    ],
)
def test_the_shortest_inputs_are_as_published_and_each_is_as_likely(name: str, length: int, expected: str) -> None:
    found = Counter(drawn(name, 6000, length))
    assert set(found) == set(expected.split("; "))
    assert min(found.values()) > 0.8 * 6000 / len(found)


@pytest.mark.parametrize("name", LEVELS)
def test_the_example_of_the_docstring_is_drawn_with_that_answer(name: str) -> None:
    (example,) = re.findall(r"^ +(\S.* -> .*)$", TASKS[f"chomsky/{name}"].__doc__ or "", re.MULTILINE)
    length = len(example.split(" -> ")[0].split())
    assert example in drawn(name, 12000, length)


@pytest.mark.parametrize("name", ["even_pairs", "parity_check", "missing_duplicate"])
@pytest.mark.parametrize("length", [2, 9, 40])
def test_half_of_the_answers_are_ones(name: str, length: int) -> None:
    answers = task(name).exam(np.random.default_rng(0), 20000, Cell(length)).targets[:, -1]
    assert abs(answers.sum() - 10000) < 400


@pytest.mark.parametrize(
    ("name", "pattern", "places"),
    [
        ("binary_addition", r"([01]+)\+", 10),
        ("binary_multiplication", r"([01]+)\*", 10),
        ("stack_manipulation", r"([01]+)p", 11),
        ("missing_duplicate", r"([01]*)\?", 12),
        # a left part that is a digit, with or without a minus before it
        ("modular_arithmetic", r"\((-?\d)[-+*]", 2),
    ],
)
def test_where_an_input_is_split_is_uniform(name: str, pattern: str, places: int) -> None:
    texts = (line.split(" -> ")[0].replace(" ", "") for line in drawn(name, 12000, 12))
    found = Counter(len(match[1]) for match in (re.match(pattern, text) for text in texts) if match)
    assert len(found) == places
    # a left part of an expression of twelve tokens is 1 to 8 long, and two of these are looked at
    expected = 12000 / (8 if name == "modular_arithmetic" else places)
    assert all(abs(count - expected) < 0.12 * expected for count in found.values())


@pytest.mark.parametrize(
    ("name", "length", "place", "operators"),
    [("modular_arithmetic_simple", 3, 1, "+-*"), ("modular_arithmetic", 5, 2, "+-*"), ("solve_equation", 7, 2, "+-")],
)
def test_operators_are_each_as_likely(name: str, length: int, place: int, operators: str) -> None:
    found = Counter(line.split()[place] for line in drawn(name, 9000, length))
    assert set(found) == set(operators)
    assert all(abs(count - 9000 / len(operators)) < 300 for count in found.values())


def test_the_unknown_is_the_first_digit_from_a_random_place_on() -> None:
    # of ( a + b ) = c the places 4, 0 and 1 lead to a, and 2 and 3 to b
    found = Counter(line.split().index("x") for line in drawn("solve_equation", 10000, 7))
    assert set(found) == {1, 3}
    assert abs(found[1] - 6000) < 300


@pytest.mark.parametrize("name", LEVELS)
def test_the_same_seed_gives_the_same_batch_and_another_gives_another(name: str) -> None:
    def tokens(seed: int) -> list[list[int]]:
        rng = np.random.default_rng(seed)
        batches = task(name).batch(rng, 16, 40), task(name).exam(rng, 16, Cell(40))
        return np.hstack([part for batch in batches for part in (batch.tokens, batch.targets)]).tolist()

    assert tokens(1) == tokens(1)
    one, other = (task(name).exam(np.random.default_rng(seed), 16, Cell(40)).tokens for seed in (1, 2))
    assert (one != other).any()


def test_training_draws_one_length_for_a_batch_uniform_up_to_the_greatest() -> None:
    rng = np.random.default_rng(0)
    found = Counter(task("reverse_string").batch(rng, 1, 5).tokens.shape[1] // 2 for _ in range(2000))
    assert set(found) == {1, 2, 3, 4, 5}
    assert all(abs(count - 400) < 80 for count in found.values())


def test_accuracy_is_the_share_of_the_answer_up_to_its_end() -> None:
    built = task("binary_addition")
    batch = built.exam(np.random.default_rng(0), 64, Cell(12))
    said = batch.targets.copy()
    said[said == IGNORED] = 1  # before the answer and after its end, anything
    assert built.score(batch.targets, said).tolist() == [1.0] * 64
    said[:, 12] = 2  # no digit
    asked = (batch.targets == built.alphabet.index("end")).argmax(1) - 11
    assert built.score(batch.targets, said).tolist() == pytest.approx((1 - 1 / asked).tolist())


def test_a_row_is_written_in_the_words_of_its_task() -> None:
    built = task("stack_manipulation")
    assert built.describe(np.arange(built.vocabulary)) == "0 1 pop push0 push1 end _"


def test_more_symbols_and_other_moduli() -> None:
    rng = np.random.default_rng(0)
    for name in ("reverse_string", "duplicate_string", "odds_first", "bucket_sort"):
        built = build(f"chomsky/{name}(symbols=7)")
        assert built.vocabulary == 8
        assert set(built.exam(rng, 100, Cell(20)).tokens.flatten().tolist()) == set(range(8))
    for name, signs in (("modular_arithmetic_simple", 3), ("modular_arithmetic", 5), ("solve_equation", 6)):
        built = build(f"chomsky/{name}(modulus=7)")
        batch = built.exam(rng, 500, Cell(21))
        assert built.vocabulary == 7 + signs + 1
        assert set(batch.tokens.flatten().tolist()) == set(range(built.vocabulary))
        assert set(batch.targets[:, -1].tolist()) == set(range(7))


@pytest.mark.parametrize("name", LEVELS)
def test_an_encoder_by_default_and_a_decoder_where_asked(name: str) -> None:
    assert not task(name).causal
    assert build(f"chomsky/{name}(causal=True)").causal


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("parity_check(causal=1)", "chomsky/parity_check: causal must be True or False, not 1"),
        ("bucket_sort(symbols=1)", "chomsky/bucket_sort: symbols must be a whole number of at least 2, not 1"),
        ("solve_equation(modulus=1)", "chomsky/solve_equation: modulus must be a whole number of at least 2, not 1"),
        ("modular_arithmetic(modulus='5')", "modulus must be a whole number of at least 2, not '5'"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build(f"chomsky/{text}")


@pytest.mark.parametrize("name", LEVELS)
def test_a_length_of_nothing_is_refused(name: str) -> None:
    sentence = f"chomsky/{name}: length must be a whole number of at least 1, not 0"
    with pytest.raises(ValueError, match=sentence):
        task(name).batch(np.random.default_rng(0), 2, 0)
    with pytest.raises(ValueError, match=sentence):
        task(name).exam(np.random.default_rng(0), 2, Cell(0))
