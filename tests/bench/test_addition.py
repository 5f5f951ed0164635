"""Addition against Python's own whole numbers."""

import numpy as np
import pytest
from numpy.random import default_rng

from adapos.bench.task import IGNORED, Batch, Cell
from adapos.bench.tasks import addition, build
from adapos.bench.tasks.addition import Addition


def sums(batch: Batch) -> list[tuple[str, str, str]]:
    """What each row reads and is asked for: its numbers as written, and the answer."""
    doc = np.zeros_like(batch.tokens) if batch.doc is None else batch.doc
    assert set(np.unique(doc)) <= {0, -1}
    found = []
    for tokens, targets, inside in zip(batch.tokens, batch.targets, doc == 0, strict=True):
        asked = np.flatnonzero(targets != IGNORED)
        prompt = Addition().describe(tokens[: asked[0] + 1])
        answer = Addition().describe(targets[asked])
        # the answer is read as it is said, but for its end, and then there is padding
        assert Addition().describe(tokens[inside]) == prompt + answer[:-1]
        assert (np.diff(asked) == 1).all()
        assert (np.diff(inside.astype(int)) <= 0).all()
        assert prompt[-1] == "="
        first, second = prompt[:-1].split("+")
        found.append((first, second, answer))
    return found


def value(written: str) -> int:
    return sum(int(digit) * 10**power for power, digit in enumerate(written))


def test_every_answer_is_the_sum_and_then_the_end() -> None:
    for length in [*range(1, 41), 100]:
        for first, second, answer in sums(Addition().batch(default_rng(length), 40, length)):
            assert answer == str(value(first) + value(second))[::-1] + "$"
            assert max(len(first), len(second)) <= length


def test_the_docstrings_example(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter([[2, 1, 0, 0], [5, 4, 3, 0]])
    monkeypatch.setattr(addition, "_numbers", lambda rng, digits, width: np.array([next(numbers)]))
    rows = sums(Addition().exam(default_rng(0), 1, Cell(3, {"first": 2, "second": 3})))
    assert rows == [("21", "543", "753$")]
    assert "12 + 345 = 357 is `21+543=753$`" in str(Addition.__doc__)


def test_no_number_but_zero_starts_with_a_zero() -> None:
    numbers = [n for row in sums(Addition().batch(default_rng(1), 3000, 3)) for n in row[:2]]
    assert all(n == "0" or n[-1] != "0" for n in numbers)
    ones = [n for n in numbers if len(n) == 1]
    assert set(ones) == set("0123456789")
    assert 0.05 < ones.count("0") / len(ones) < 0.15
    assert {n[-1] for n in numbers if len(n) == 2} == set("123456789")
    assert {n[0] for n in numbers if len(n) == 2} == set("0123456789")


def test_training_draws_all_pairs_of_digits_alike() -> None:
    pairs = [(len(first), len(second)) for first, second, _ in sums(Addition().batch(default_rng(2), 8000, 4))]
    often = [pairs.count((a, b)) / 8000 for a in range(1, 5) for b in range(1, 5)]
    assert max(abs(share - 1 / 16) for share in often) < 0.015


def test_an_exam_has_exactly_the_digits_of_its_cell() -> None:
    for length in range(1, 41):
        for cell in Addition(grid=3).cells(length):
            batch = Addition().exam(default_rng(length), 8, cell)
            for first, second, answer in sums(batch):
                assert (len(first), len(second)) == (cell.marks["first"], cell.marks["second"])
                assert answer == str(value(first) + value(second))[::-1] + "$"
            assert batch.tokens.shape[1] <= Addition().tokens_at(length)
    assert {len(n) for row in sums(Addition().exam(default_rng(0), 8, Cell(7))) for n in row[:2]} == {7}


def test_no_text_is_longer_than_said_and_one_is_as_long() -> None:
    widths = {Addition().exam(default_rng(seed), 64, Cell(6)).tokens.shape[1] for seed in range(5)}
    assert max(widths) == Addition().tokens_at(6) == len("999999+999999=8999991")


def test_the_cells_of_a_length_are_all_its_pairs_or_spread_evenly() -> None:
    pairs = lambda task, length: [tuple(cell.marks.values()) for cell in task.cells(length)]  # noqa: E731
    assert pairs(Addition(), 1) == [(1, 1)]
    assert pairs(Addition(), 3) == [(1, 3), (2, 3), (3, 3), (3, 2), (3, 1)]
    assert set(pairs(Addition(grid=1000), 40)) == {
        (a, b) for a in range(1, 41) for b in range(1, 41) if max(a, b) == 40
    }
    assert pairs(Addition(grid=1), 40) == [(40, 40)]
    for length in (5, 40, 80):
        thinned = pairs(Addition(), length)
        assert len(set(thinned)) == 9
        assert all(max(pair) == length for pair in thinned)
        assert [(b, a) for a, b in reversed(thinned)] == thinned
        along = np.array([a + (length - b) for a, b in thinned])
        assert np.ptp(np.diff(along)) <= 1


def test_rows_of_equal_lengths_need_no_documents() -> None:
    batch = Addition().exam(default_rng(0), 1, Cell(9))
    assert batch.doc is None
    assert (batch.targets[:, -1] == 12).all()


def test_tokens_lie_in_the_vocabulary_and_the_seed_decides() -> None:
    first, second = (Addition().batch(default_rng(3), 200, 12) for _ in range(2))
    assert (first.tokens == second.tokens).all()
    assert (first.targets == second.targets).all()
    assert not np.array_equal(first.tokens, Addition().batch(default_rng(4), 200, 12).tokens)
    assert set(np.unique(first.tokens)) == set(range(Addition().vocabulary))
    assert first.tokens.dtype == first.targets.dtype == np.int64


def test_only_a_whole_answer_counts() -> None:
    batch = Addition().exam(default_rng(0), 2, Cell(4))
    said = batch.targets.copy()
    said[1, np.flatnonzero(said[1] >= 0)[1]] += 1
    assert Addition().score(batch.targets, said).tolist() == [1, 0]


def test_what_cannot_be_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="addition: grid must be a whole number of at least 1, not 0"):
        build("addition(grid=0)")
    with pytest.raises(ValueError, match="addition: length must be a whole number of at least 1, not 0"):
        build("addition").batch(default_rng(0), 2, 0)
    with pytest.raises(ValueError, match="addition: length must be a whole number of at least 1, not 0"):
        build("addition").exam(default_rng(0), 2, Cell(0))
