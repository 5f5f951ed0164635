"""The text task: its batches, windows and streams against the plain way to cut them."""

import time
from pathlib import Path

import numpy as np
import pytest

from adapos.bench import store as stores
from adapos.bench import tasks
from adapos.bench.task import IGNORED, Cell, Ids
from adapos.bench.tasks.text import Text
from adapos.bench.tokenizer import Tokenizer

PARTS = ("train", "validation", "test")


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stores, "_whole", set())


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Eighty documents of 30 to 300 bytes, in which any nine bytes are found only once."""
    (tmp_path / "data").mkdir()
    rng = np.random.default_rng(0)
    for number, length in enumerate(rng.integers(30, 300, 80)):
        (tmp_path / "data" / f"{number}.txt").write_bytes(rng.integers(97, 123, length).astype(np.uint8).tobytes())
    return str(tmp_path / "data")


class Threes(Tokenizer):
    """A token is three bytes; the last of a text may be fewer."""

    name = fingerprint = "threes"
    vocabulary = 1000

    def piece(self, text: str) -> tuple[Ids, Ids]:
        cut = [text[begin : begin + 3] for begin in range(0, len(text), 3)]
        return np.array([sum(each.encode()) for each in cut]), np.array([len(each) for each in cut])

    def decode(self, ids: Ids) -> str:
        return str(ids)


def found(whole: bytes, window: Ids) -> int:
    """Where a window stands in a part."""
    place = whole.find(window.astype(np.uint8).tobytes())
    assert place >= 0
    return place


def documents_of(task: Text, part: str) -> list[int]:
    """The document of each token of a part, counted one by one."""
    held = task.store.split(part)
    starts, document, each = set(held.starts.tolist()), -1, []
    for place in range(len(held.tokens)):
        document += place in starts
        each.append(document)
    return each


def test_joined_batches_are_windows_anywhere_in_train(data: str) -> None:
    task = Text(data)
    whole = task.store.split("train").tokens.tobytes()
    batch = task.batch(np.random.default_rng(0), 64, 40)
    assert batch.tokens.shape == batch.targets.shape == (64, 40)
    assert batch.tokens.dtype == batch.targets.dtype == np.int64
    assert batch.doc is None
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        place = found(whole, tokens)
        assert targets.astype(np.uint8).tobytes() == whole[place + 1 : place + 41]


def test_every_window_can_be_drawn_and_none_besides(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(1, 101)))
    task = Text(str(tmp_path / "a.txt"))
    assert len(task.store.split("train").tokens) == 90
    batch = task.batch(np.random.default_rng(0), 5000, 80)
    assert sorted(set(batch.tokens[:, 0].tolist())) == list(range(1, 11))
    assert batch.targets.max() == 90


def test_batches_of_documents_apart_are_packed(data: str) -> None:
    task = Text(data, documents="apart")
    whole = task.store.split("train").tokens.tobytes()
    owner = documents_of(task, "train")
    batch = task.batch(np.random.default_rng(1), 200, 100)
    joined = Text(data).batch(np.random.default_rng(1), 200, 100)
    np.testing.assert_array_equal(batch.tokens, joined.tokens)
    assert batch.doc is not None
    assert batch.doc.shape == (200, 100)
    several = 0
    for tokens, targets, doc in zip(batch.tokens, batch.targets, batch.doc, strict=True):
        place = found(whole, tokens)
        for i in range(100):
            assert doc[i] == owner[place + i] - owner[place]
            same = owner[place + i] == owner[place + i + 1]
            assert targets[i] == (whole[place + i + 1] if same else IGNORED)
        several += doc[-1] > 0
    assert several > 50


@pytest.mark.parametrize("documents", ["joined", "apart"])
def test_the_same_seed_gives_the_same_batch(data: str, documents: str) -> None:
    one, two = Text(data, documents=documents), Text(data, documents=documents)
    first = one.batch(np.random.default_rng(3), 8, 20)
    np.testing.assert_array_equal(first.tokens, two.batch(np.random.default_rng(3), 8, 20).tokens)
    assert (first.tokens != two.batch(np.random.default_rng(4), 8, 20).tokens).any()


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("length", [8, 17, 64])
@pytest.mark.parametrize("count", [1, 3, 7, 100_000])
def test_windows_do_not_overlap_and_are_spread_evenly(data: str, part: str, length: int, count: int) -> None:
    task = Text(data)
    whole = task.store.split(part).tokens.tobytes()
    windows = task.windows(part, length, count)
    fit = min(count, len(whole) // (length + 1))
    assert windows.tokens.shape == windows.widths.shape == (fit, length + 1)
    assert windows.tokens.dtype == windows.widths.dtype == np.int64
    places = [found(whole, window) for window in windows.tokens]
    assert places[0] == 0
    steps = np.diff([*places, len(whole)])
    assert steps.min() >= length + 1
    # as even as windows on a grid can be
    assert np.abs(steps - len(whole) / fit).max() <= 2 * (length + 1)
    np.testing.assert_array_equal(windows.tokens, task.windows(part, length, count).tokens)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("length", [8, 49, 120])
def test_windows_of_documents_apart_lie_inside_one(data: str, part: str, length: int) -> None:
    task = Text(data, documents="apart")
    whole = task.store.split(part).tokens.tobytes()
    owner = documents_of(task, part)
    sizes = np.bincount(owner)
    every = task.windows(part, length, 100_000)
    places = [found(whole, window) for window in every.tokens]
    assert all(owner[place] == owner[place + length] for place in places)
    assert np.diff(places, append=len(whole)).min() >= length + 1
    np.testing.assert_array_equal(
        np.bincount([owner[place] for place in places], minlength=len(sizes)), sizes // (length + 1)
    )
    few = task.windows(part, length, 2)
    chosen = [places.index(found(whole, window)) for window in few.tokens]
    assert chosen == ([0, len(places) // 2] if len(places) > 1 else [0])


def test_widths_are_those_of_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{number:07}\n" for number in range(125)))
    monkeypatch.setattr("adapos.bench.tasks.text.named", lambda _: Threes())
    task = Text(str(tmp_path / "a.txt"), tokenizer="threes")
    assert task.vocabulary == 1000
    parts = [task.stream(part) for part in PARTS]
    assert sum(int(widths.sum()) for _, _, widths in parts) == 1000
    assert parts[2][2].tolist() == [3] * 16 + [1]
    windows = task.windows("test", 16, 1)
    assert windows.widths.tolist() == [[3] * 16 + [1]]
    assert Text(str(tmp_path / "a.txt"), tokenizer="threes").windows("train", 4, 2).widths.tolist() == [[3] * 5] * 2


def test_a_stream_is_the_whole_part(data: str) -> None:
    for part in PARTS:
        joined, apart = Text(data).stream(part), Text(data, documents="apart").stream(part)
        held = Text(data).store.split(part)
        assert joined[0].tobytes() == apart[0].tobytes() == held.tokens.tobytes()
        assert joined[1].tolist() == [0]
        assert apart[1].tolist() == held.starts.tolist()
        assert len(joined[2]) == len(held.tokens)


def test_data_that_is_too_short_is_refused_with_both_numbers(tmp_path: Path, data: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x" * 200)
    task = Text(str(path))
    sentence = r"^the {} part of \S+a\.txt holds {} tokens and length {} needs {}; give more data or shorter lengths$"
    with pytest.raises(ValueError, match=sentence.format("train", 180, 180, 181)):
        task.batch(np.random.default_rng(0), 4, 180)
    with pytest.raises(ValueError, match=sentence.format("validation", 10, 10, 11)):
        task.windows("validation", 10, 5)
    assert task.batch(np.random.default_rng(0), 4, 179).tokens.shape == (4, 179)
    assert task.windows("validation", 9, 5).tokens.shape == (1, 10)
    path.write_text("x")
    with pytest.raises(ValueError, match=sentence.format("train", 0, 1, 2)):
        Text(str(path)).windows("train", 1, 5)
    apart = Text(data, documents="apart")
    longest = int(np.bincount(documents_of(apart, "train")).max())
    with pytest.raises(ValueError, match=rf"^the longest document in the train part of \S+ holds {longest} tokens and"):
        apart.windows("train", longest, 5)
    assert apart.windows("train", longest - 1, 5).tokens.shape[1] == longest


def test_it_is_built_from_its_spec(data: str) -> None:
    spec = f"text(data={data!r}, field='body', documents='apart')"
    task = tasks.build(spec)
    assert isinstance(task, Text)
    assert (task.data, task.field, task.tokenizer, task.documents) == (data, "body", "bytes", "apart")
    assert tasks.normal(spec) == spec
    assert (task.vocabulary, task.tokens_at(128), task.protocols, task.metric) == (256, 128, True, "perplexity")
    assert task.checksum == task.store.checksum != Text("stdlib").checksum
    assert task.describe(np.array(list("käse".encode()))) == "käse"


def test_bad_parameters_are_refused(data: str) -> None:
    with pytest.raises(ValueError, match="text: data must be a word in quotes, not 3"):
        tasks.build("text(data=3)")
    with pytest.raises(ValueError, match="text: field must be a word in quotes, not ''"):
        tasks.build("text(field='')")
    with pytest.raises(ValueError, match="text: documents must be one of 'joined', 'apart', not 'apar'; did you mean"):
        tasks.build("text(documents='apar')")
    with pytest.raises(ValueError, match="did you mean 'bytes'"):
        tasks.build("text(tokenizer='byts')")
    task = Text(data)
    with pytest.raises(ValueError, match="text: length must be a whole number of at least 1, not 0"):
        task.batch(np.random.default_rng(0), 4, 0)
    with pytest.raises(ValueError, match="text: count must be a whole number of at least 1, not 0"):
        task.windows("train", 8, 0)
    with pytest.raises(ValueError, match="part must be one of 'train', 'validation', 'test', not 'dev'"):
        task.windows("dev", 8, 1)
    with pytest.raises(ValueError, match="text has no exams: it is evaluated by protocols, on windows of text"):
        task.exam(np.random.default_rng(0), 4, Cell(8))


def test_the_standard_library_works_out_of_the_box_and_quickly() -> None:
    task = tasks.build("text")
    assert isinstance(task, Text)
    assert len(task.store.split("train").tokens) > 5_000_000
    rng = np.random.default_rng(0)
    taken = []
    for _ in range(50):
        begin = time.perf_counter()
        task.batch(rng, 32, 128)
        taken.append(time.perf_counter() - begin)
    assert min(taken) < 1e-3
    assert any("def " in task.describe(row) for row in task.windows("validation", 4096, 20).tokens)
