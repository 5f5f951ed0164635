"""Passkey and needle, read as a person would: find the fact, say what it says."""

import re

import numpy as np
import pytest
from numpy.random import default_rng

from adapos.bench import tokenizer as tokenizers
from adapos.bench.task import IGNORED, Batch, Cell
from adapos.bench.tasks import build
from adapos.bench.tasks.retrieval import GRASS, KEYS, WORDS, Needle, Passkey, Retrieval

NAMES = ("passkey", "needle")
FACT = {"passkey": r" The pass key is (\d{5})\.", "needle": r"\n([a-z]{3}): (\d{4})\n"}
MARK = {"passkey": ".", "needle": "\n"}
SHORTEST = {"passkey": 57, "needle": 54}


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a tokenizer of which some numbers take fewer tokens than others."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    texts = [GRASS, WORDS, " The pass key is 12345.", " 1234 12 34", *(f" {n}" for n in range(10, 60))]
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False))
    path = tmp_path_factory.mktemp("merged")
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(path)
    return str(path)


def rows(task: Retrieval, batch: Batch) -> list[tuple[str, str]]:
    """The prompt and the answer of each row, as the docstring of Task.exam has them."""
    doc = np.zeros_like(batch.tokens) if batch.doc is None else batch.doc
    found = []
    for tokens, targets, inside in zip(batch.tokens, batch.targets, doc == 0, strict=True):
        asked = np.flatnonzero(targets != IGNORED)
        assert (np.diff(asked) == 1).all()
        assert np.array_equal(tokens[inside][asked[0] + 1 :], targets[asked[:-1]])
        assert asked[-1] == inside.sum() - 1
        assert (np.diff(inside.astype(int)) <= 0).all()
        found.append((task.describe(tokens[: asked[0] + 1]), task.describe(targets[asked])))
    return found


def right(name: str, prompt: str) -> str:
    """What a person would say."""
    facts = re.findall(FACT[name], prompt)
    if name == "passkey":
        (key,) = facts
        assert prompt.endswith(" What is it? The pass key is")
        return f" {key}."
    assert len(dict(facts)) == len(facts)
    return f" {dict(facts)[prompt.removesuffix(':')[-3:]]}\n"


@pytest.mark.parametrize("name", NAMES)
def test_every_exam_has_its_length_and_asks_for_the_fact(name: str) -> None:
    task = build(name)
    for length in [*range(SHORTEST[name], SHORTEST[name] + 40), 64, 128, 1000]:
        for cell in task.cells(length):
            batch = task.exam(default_rng(length), 3, cell)
            assert batch.tokens.shape == (3, length)
            assert batch.doc is None
            assert task.tokens_at(length) == length
            for prompt, answer in rows(task, batch):
                assert answer == right(name, prompt)


@pytest.mark.parametrize("name", NAMES)
def test_lengths_are_exact_in_tokens_of_any_tokenizer(name: str, merged: str) -> None:
    task = build(f"{name}(tokenizer={merged!r})")
    answers = set()
    for cell in task.cells(90):
        batch = task.exam(default_rng(1), 40, cell)
        assert batch.tokens.shape == (40, 90)
        assert batch.doc is None
        assert batch.tokens.max() < task.vocabulary
        for prompt, answer in rows(task, batch):
            assert answer == right(name, prompt)
        answers |= set((batch.targets != IGNORED).sum(1).tolist())
    # or the test is of one tokenizer only
    assert len(answers) > 1
    for prompt, answer in rows(task, task.batch(default_rng(1), 40, 90)):
        assert answer == right(name, prompt)


@pytest.mark.parametrize("name", NAMES)
def test_the_depth_is_the_share_of_filler_before_the_fact(name: str) -> None:
    task = build(name)
    assert [cell.marks for cell in task.cells(99)] == [{"depth": depth} for depth in (0, 0.25, 0.5, 0.75, 1)]
    assert [cell.marks["depth"] for cell in build(f"{name}(depths=3)").cells(99)] == [0, 0.5, 1]
    for cell in task.cells(500):
        for prompt, answer in rows(task, task.exam(default_rng(3), 30, cell)):
            fact = next(found for found in re.finditer(FACT[name], prompt) if answer.strip() in found[0])
            before = re.sub(FACT[name], "", prompt[: fact.start()])
            filler = len(re.sub(FACT[name], "", prompt)) - len(
                " What is it? The pass key is" if name == "passkey" else "\nowl:"
            )
            assert len(before) == int(cell.marks["depth"] * filler + 0.5)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_mark_the_fact_is_anywhere(name: str) -> None:
    task = build(name)
    for batch in (task.exam(default_rng(4), 400, Cell(200)), build(name).batch(default_rng(4), 400, 200)):
        places = [prompt.index(answer[1:]) / len(prompt) for prompt, answer in rows(task, batch)]
        assert min(places) < 0.25
        assert max(places) > 0.7
        assert 0.4 < np.mean(places) < 0.6


def test_filler_of_passkey_repeats_and_that_of_needle_is_made_of_words() -> None:
    passkey, needle = Passkey(), Needle(facts=1)
    for prompt, _ in rows(passkey, passkey.exam(default_rng(0), 5, Cell(400))):
        filler = re.sub(FACT["passkey"], "", prompt).removesuffix(" What is it? The pass key is")
        assert (GRASS * 10).startswith(filler)
    prompts = [prompt for prompt, _ in rows(needle, needle.exam(default_rng(0), 5, Cell(4000)))]
    held = [re.sub(FACT["needle"], "", prompt)[:-5].split() for prompt in prompts]
    # the first and the last may be cut
    assert {word for words in held for word in words[1:-1]} <= set(WORDS.split())
    assert len(set(held[0])) > 200
    assert held[0][10:20] != held[1][10:20]


def test_keys_are_told_from_words_and_of_one_length() -> None:
    assert not set(KEYS.split()) & set(WORDS.split())
    assert {len(key) for key in KEYS.split()} == {3}
    assert len(set(WORDS.split())) == len(WORDS.split())


def test_each_of_the_facts_of_needle_may_be_asked_for() -> None:
    task = Needle(facts=20)
    ranks, keys = [], set()
    for prompt, answer in rows(task, task.exam(default_rng(5), 400, Cell(600))):
        facts = re.findall(FACT["needle"], prompt)
        assert {key for key, _ in facts} == set(KEYS.split())
        asked = prompt.removesuffix(":")[-3:]
        ranks.append([key for key, _ in facts].index(asked))
        keys.add(asked)
        assert answer == f" {dict(facts)[asked]}\n"
    assert keys == set(KEYS.split())
    assert set(ranks) == set(range(20))


def test_the_other_facts_of_needle_are_anywhere() -> None:
    task = Needle(facts=2)
    places = []
    for prompt, answer in rows(task, task.exam(default_rng(9), 400, Cell(600, {"depth": 0.5}))):
        other = next(found for found in re.finditer(FACT["needle"], prompt) if answer.strip() not in found[0])
        places.append(other.start() / len(prompt))
    assert min(places) < 0.05
    assert max(places) > 0.9
    assert 0.45 < np.mean(places) < 0.55


def test_numbers_have_all_their_digits_and_no_leading_zero() -> None:
    for name, digits in (("passkey", 5), ("needle", 4)):
        task = build(name)
        answers = [answer[1:-1] for _, answer in rows(task, task.exam(default_rng(6), 500, Cell(64)))]
        assert {len(answer) for answer in answers} == {digits}
        assert {answer[0] for answer in answers} == set("123456789")
        assert {answer[-1] for answer in answers} == set("0123456789")


@pytest.mark.parametrize("name", NAMES)
def test_training_rows_have_all_lengths_and_are_padded_on_the_right(name: str) -> None:
    task, shortest = build(name), SHORTEST[name]
    batch = task.batch(default_rng(7), 4000, shortest + 9)
    assert batch.doc is not None
    lengths = (batch.doc == 0).sum(1)
    assert np.abs(np.bincount(lengths)[shortest:] / 4000 - 0.1).max() < 0.03
    assert lengths.min() == shortest
    assert lengths.max() == batch.tokens.shape[1] == shortest + 9
    assert set(np.unique(batch.doc)) == {-1, 0}
    assert (batch.targets[batch.doc == -1] == IGNORED).all()
    for prompt, answer in rows(task, batch)[:200]:
        assert answer == right(name, prompt)


@pytest.mark.parametrize("name", NAMES)
def test_whole_texts_are_asked_for_in_training_only(name: str) -> None:
    whole, answers = build(f"{name}(whole=True)"), build(name)
    batch, short = (task.batch(default_rng(8), 20, 80) for task in (whole, answers))
    assert np.array_equal(batch.tokens, short.tokens)
    assert batch.doc is not None
    for tokens, targets, inside in zip(batch.tokens, batch.targets, batch.doc == 0, strict=True):
        assert np.array_equal(targets[inside][:-1], tokens[inside][1:])
        assert targets[inside][-1] == ord(MARK[name])
    exams = [task.exam(default_rng(8), 20, Cell(80)) for task in (whole, answers)]
    assert np.array_equal(exams[0].targets, exams[1].targets)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_and_tokens_lie_in_the_vocabulary(name: str) -> None:
    task = build(name)
    assert task.vocabulary == 256
    first, second, third = (task.batch(default_rng(seed), 50, 100) for seed in (1, 1, 2))
    assert np.array_equal(first.tokens, second.tokens)
    assert np.array_equal(first.targets, second.targets)
    assert not np.array_equal(first.tokens, third.tokens)
    assert first.tokens.dtype == first.targets.dtype == np.int64
    assert first.tokens.min() >= 0
    assert first.tokens.max() < 256


def test_only_a_whole_answer_counts() -> None:
    batch = Passkey().exam(default_rng(0), 2, Cell(64))
    said = batch.targets.copy()
    said[1, -2] += 1
    assert Passkey().score(batch.targets, said).tolist() == [1, 0]


def test_the_docstrings_examples() -> None:
    task = Passkey()
    text = task.describe(task.exam(default_rng(0), 1, Cell(80, {"depth": 0.5})).tokens[0])
    assert f"`{re.sub('[0-9]{5}', '48213', text)}`" in str(Passkey.__doc__)
    (example,) = re.findall("^ +`(.*)`$", str(Needle.__doc__), re.MULTILINE)
    prompt, answer = example.replace(r"\n", "\n")[:-5], example[-5:] + "\n"
    assert answer == right("needle", prompt)
    filler = re.sub(FACT["needle"], "", prompt)[: -len("\nowl:")]
    assert set(filler.split()) <= set(WORDS.split())


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: depths must be a whole number of at least 2, not 1"):
        build(f"{name}(depths=1)")
    with pytest.raises(ValueError, match=f"{name}: whole must be True or False, not 1"):
        build(f"{name}(whole=1)")
    task, least = build(name), SHORTEST[name]
    for ask in (
        lambda: task.batch(default_rng(0), 2, least - 1),
        lambda: task.exam(default_rng(0), 2, Cell(least - 1)),
    ):
        with pytest.raises(ValueError, match=f"{name}: length must be at least {least}, to hold the facts"):
            ask()


def test_needle_has_no_more_facts_than_keys() -> None:
    with pytest.raises(ValueError, match="needle: facts must be at most 20, the keys there are, not 21"):
        Needle(facts=21)
    with pytest.raises(ValueError, match="needle: facts must be a whole number of at least 1, not 0"):
        Needle(facts=0)


def test_a_tokenizer_must_keep_what_ends_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers.Bytes, "encode", lambda self, text: np.zeros(len(text.split()), np.int64))
    for make, mark in ((Passkey, r"'\.'"), (Needle, r"'\\n'")):
        with pytest.raises(
            ValueError, match=rf"answers end with {mark}, of which the tokenizer 'bytes' makes no token"
        ):
            make()
