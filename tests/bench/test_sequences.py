"""Copy, reverse and induction against what a reader would say."""

import numpy as np
import pytest
from numpy.random import default_rng

from adapos.bench.task import IGNORED, Batch, Cell
from adapos.bench.tasks import build

NAMES = ("copy", "reverse", "induction")


def said(name: str, mark: int, tokens: list[int]) -> list[int]:
    """The targets of a row, from what it reads, token by token."""
    if name == "induction":
        before = tokens.index(mark)
        return [IGNORED] * (len(tokens) - 1) + [tokens[before + 1]]
    half = tokens.index(mark)
    answer = tokens[:half] if name == "copy" else list(reversed(tokens[:half]))
    # what was asked for is read in the next place
    assert tokens[half + 1 :] == answer[:-1]
    return [IGNORED] * half + answer


def same(first: Batch, second: Batch) -> bool:
    return np.array_equal(first.tokens, second.tokens) and np.array_equal(first.targets, second.targets)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("alphabet", [2, 16, 300])
def test_every_target_is_what_a_reader_would_say(name: str, alphabet: int) -> None:
    task = build(f"{name}(alphabet={alphabet})")
    for length in range(3 if name == "induction" else 1, 41):
        batch = task.exam(default_rng(length), 8, Cell(length))
        assert batch.doc is None
        assert batch.tokens.shape == (8, task.tokens_at(length))
        for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            assert targets == said(name, alphabet, tokens)


def test_the_docstrings_examples() -> None:
    rng = default_rng(0)
    for name, asked in (("copy", [3, 1, 2]), ("reverse", [2, 1, 3])):
        task = build(f"{name}(alphabet=4)")
        batch = task.exam(rng, 2000, Cell(3))
        found = [row for row in range(2000) if task.describe(batch.tokens[row]).startswith("3 1 2 |")]
        assert len(found) > 0
        assert all(batch.targets[row, 3:].tolist() == asked for row in found)
    task = build("induction(alphabet=4)")
    batch = task.exam(rng, 20_000, Cell(6))
    found = [row for row in range(20_000) if task.describe(batch.tokens[row]) == "3 | 1 2 0 |"]
    assert len(found) > 0
    assert all(batch.targets[row].tolist() == [IGNORED] * 5 + [1] for row in found)


@pytest.mark.parametrize("name", NAMES)
def test_training_draws_every_length_up_to_the_greatest_alike(name: str) -> None:
    task, shortest = build(name), 3 if name == "induction" else 1
    rng = default_rng(0)
    widths = [task.batch(rng, 1, 10).tokens.shape[1] for _ in range(3000)]
    lengths = range(shortest, 11)
    assert set(widths) == {task.tokens_at(length) for length in lengths}
    often = [widths.count(task.tokens_at(length)) / 3000 for length in lengths]
    assert max(abs(share - 1 / len(lengths)) for share in often) < 0.03


@pytest.mark.parametrize("name", NAMES)
def test_symbols_are_uniform_and_the_mark_stands_where_it_should(name: str) -> None:
    task = build(f"{name}(alphabet=5)")
    batch = task.exam(default_rng(0), 4000, Cell(6))
    assert task.vocabulary == 6
    marks = batch.tokens == 5
    if name == "induction":
        assert (marks.sum(1) == 2).all()
        assert marks[:, -1].all()
        assert np.abs(marks[:, :4].mean(0) - 0.25).max() < 0.03
        assert not marks[:, 4].any()
    else:
        assert (marks.sum(1) == 1).all()
        assert marks[:, 6].all()
    often = np.bincount(batch.tokens[~marks], minlength=5) / (~marks).sum()
    assert np.abs(often - 0.2).max() < 0.01
    often = np.bincount(batch.targets[batch.targets != IGNORED], minlength=5)
    assert np.abs(often / often.sum() - 0.2).max() < 0.03


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides(name: str) -> None:
    task = build(name)
    assert same(task.batch(default_rng(1), 9, 30), task.batch(default_rng(1), 9, 30))
    assert not same(task.exam(default_rng(1), 9, Cell(30)), task.exam(default_rng(2), 9, Cell(30)))


@pytest.mark.parametrize(("name", "least"), [("copy", 1), ("reverse", 1), ("induction", 3)])
def test_what_cannot_be_is_refused_in_one_sentence(name: str, least: int) -> None:
    with pytest.raises(ValueError, match=f"{name}: alphabet must be a whole number of at least 2, not 1"):
        build(f"{name}(alphabet=1)")
    task = build(name)
    for ask in (
        lambda: task.batch(default_rng(0), 2, least - 1),
        lambda: task.exam(default_rng(0), 2, Cell(least - 1)),
    ):
        with pytest.raises(ValueError, match=f"{name}: length must be a whole number of at least {least}, not"):
            ask()
