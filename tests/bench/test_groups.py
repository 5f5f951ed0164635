"""Word problems against elements applied one by one to things in a row."""

from itertools import permutations

import numpy as np
import pytest
from numpy.random import default_rng

from adapos.bench.task import Cell
from adapos.bench.tasks import build
from adapos.bench.tasks.groups import WordProblem

NAMES = {"s5": 120, "a5": 60, "a4z5": 60, "z60": 60}


def even(p: tuple[int, ...]) -> bool:
    """By its cycles: one of even length is odd."""
    seen: set[int] = set()
    swaps = 0
    for start in range(len(p)):
        place, steps = start, 0
        while place not in seen:
            seen.add(place)
            place, steps = p[place], steps + 1
        swaps += max(steps - 1, 0)
    return swaps % 2 == 0


def running(name: str, row: list[int]) -> list[int]:
    """The products so far: (gh)(x) = g(h(x)), so that the last element acts first."""
    if name == "z60":
        return [sum(row[: i + 1]) % 60 for i in range(len(row))]
    if name == "a4z5":
        things = [p for p in permutations(range(4)) if even(p)]
        turned, added = applied(things, [g // 5 for g in row]), 0
        found = []
        for p, g in zip(turned, row, strict=True):
            added += g % 5
            found.append(5 * p + added % 5)
        return found
    return applied([p for p in permutations(range(5)) if even(p) or name == "s5"], row)


def applied(elements: list[tuple[int, ...]], row: list[int]) -> list[int]:
    found = []
    for end in range(1, len(row) + 1):
        images = []
        for x in range(len(elements[0])):
            for g in reversed(row[:end]):
                x = elements[g][x]
            images.append(x)
        found.append(elements.index(tuple(images)))
    return found


def task_of(name: str) -> WordProblem:
    task = build(name)
    assert isinstance(task, WordProblem)
    return task


@pytest.mark.parametrize("name", NAMES)
def test_every_place_is_asked_for_the_product_so_far(name: str) -> None:
    task = task_of(name)
    for length in range(1, 41):
        batch = task.exam(default_rng(length), 2, Cell(length))
        assert batch.tokens.shape == batch.targets.shape == (2, length)
        assert batch.doc is None
        for tokens, targets in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
            assert targets == running(name, tokens)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_is_that_of_a_group(name: str) -> None:
    table = task_of(name).table
    elements = np.arange(NAMES[name])
    assert table.shape == (NAMES[name], NAMES[name])
    assert (table[0] == elements).all()
    assert (table[:, 0] == elements).all()
    assert (np.sort(table, 0) == elements[:, None]).all()
    assert (np.sort(table, 1) == elements).all()
    a, b, c = default_rng(0).integers(NAMES[name], size=(3, 2000))
    assert (table[table[a, b], c] == table[a, table[b, c]]).all()
    assert (table == table.T).all() == (name == "z60")


def test_only_the_groups_that_are_called_solvable_are() -> None:
    for name, solvable in (("s5", False), ("a5", False), ("a4z5", True), ("z60", True)):
        table = task_of(name).table
        inverse = (table == 0).argmax(1)
        group = set(range(len(table)))
        for _ in range(4):
            held = np.array(sorted(group))
            ab = table[np.ix_(held, held)]
            group = set(np.unique(table[ab, table[np.ix_(inverse[held], inverse[held])]]).tolist())
            # what commutators make
            while len(more := {int(x) for x in np.unique(table[np.ix_(sorted(group), sorted(group))])} | group) > len(
                group
            ):
                group = more
        assert (group == {0}) == solvable, name


@pytest.mark.parametrize(
    ("name", "read", "asked"),
    [
        ("s5", [24, 6, 6], [24, 30, 24]),
        ("a5", [1, 3, 3], [1, 6, 1]),
        ("a4z5", [7, 3, 12], [7, 5, 2]),
        ("z60", [50, 20, 1], [50, 10, 11]),
    ],
)
def test_the_docstrings_examples(name: str, read: list[int], asked: list[int]) -> None:
    task = task_of(name)
    assert task.products(np.array([read])).tolist() == [asked]
    for row in (read, asked):
        assert f"`{task.describe(np.array(row))}`" in " ".join((type(task).__doc__ or "").split())


@pytest.mark.parametrize("name", NAMES)
def test_elements_and_products_are_uniform_and_in_the_vocabulary(name: str) -> None:
    task = task_of(name)
    assert task.vocabulary == NAMES[name]
    batch = task.exam(default_rng(0), 2000, Cell(20))
    for held in (batch.tokens, batch.targets):
        often = np.bincount(held.flatten(), minlength=task.vocabulary) / held.size
        assert len(often) == task.vocabulary
        assert np.abs(often * task.vocabulary - 1).max() < 0.25


def test_swaps_of_neighbours_make_every_permutation() -> None:
    task = build("s5(swaps=True)")
    batch = task.exam(default_rng(0), 2000, Cell(30))
    spelled = list(permutations(range(5)))
    assert not batch.tokens[:, 0].any()
    read = {spelled[element] for element in np.unique(batch.tokens[:, 1:])}
    assert read == {(1, 0, 2, 3, 4), (0, 2, 1, 3, 4), (0, 1, 3, 2, 4), (0, 1, 2, 4, 3)}
    assert len(np.unique(batch.targets)) == 120
    assert batch.targets[0].tolist() == running("s5", batch.tokens[0].tolist())
    with pytest.raises(ValueError, match="s5: swaps must be True or False, not 2"):
        build("s5(swaps=2)")


def test_training_draws_one_length_for_a_batch_all_alike() -> None:
    rng, task = default_rng(0), task_of("s5")
    widths = [task.batch(rng, 3, 8).tokens.shape[1] for _ in range(3000)]
    assert np.abs(np.bincount(widths)[1:] / 3000 - 1 / 8).max() < 0.03
    assert len(set(widths)) == 8


def test_the_seed_decides() -> None:
    task = task_of("s5")
    first, second = (task.batch(default_rng(1), 9, 30) for _ in range(2))
    assert np.array_equal(first.tokens, second.tokens)
    exams = [task.exam(default_rng(seed), 9, Cell(30)).tokens for seed in (1, 2)]
    assert not np.array_equal(*exams)


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_is_refused_in_one_sentence(name: str) -> None:
    task = task_of(name)
    for ask in (lambda: task.batch(default_rng(0), 2, 0), lambda: task.exam(default_rng(0), 2, Cell(0))):
        with pytest.raises(ValueError, match=f"{name}: length must be a whole number of at least 1, not 0"):
            ask()
    known = "swaps=False" if name == "s5" else "none"
    with pytest.raises(ValueError, match=f"{name} has no parameter 'alphabet'; it knows: {known}"):
        build(f"{name}(alphabet=3)")
