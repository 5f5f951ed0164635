"""The token store: whole or not there, the same for the same data, split by document, and flat in memory."""

import gzip
import json
import multiprocessing
import os
import re
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapos import files
from adapos.bench import store as module
from adapos.bench.sources import documents
from adapos.bench.store import PARTS, Store, deal, store
from adapos.bench.task import Ids
from adapos.bench.tokenizer import Bytes, Tokenizer

BYTES = Bytes()


class Words(Tokenizer):
    """A token is a word with the space before it, and its number in the vocabulary the length of the word."""

    name = fingerprint = "words"

    def __init__(self, vocabulary: int = 1_000) -> None:
        self.vocabulary = vocabulary
        self.fingerprint = f"words {vocabulary}"

    def piece(self, text: str) -> tuple[Ids, Ids]:
        words = re.findall(r"\s*\S+", text)
        lengths = np.array([len(word.strip()) for word in words], np.int64)
        return self.vocabulary - 1 - lengths, np.array([len(word.encode()) for word in words], np.int64)

    def decode(self, ids: Ids) -> str:
        return " ".join("x" * (self.vocabulary - 1 - each) for each in ids)


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where stores are kept, and as if this process had opened none."""
    monkeypatch.setenv("ADAPOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_whole", set())
    return tmp_path / "cache" / "text"


def corpus(folder: Path, count: int = 60, size: int = 300) -> str:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        line = f"document {number} says so\n"
        (folder / f"{number:03}.txt").write_text(line * (size // len(line) + number % 5 + 1))
    return str(folder)


def texts(found: Store, part: str) -> dict[str, bytes]:
    """Names and bytes of the documents of a part."""
    held = found.split(part)
    ends = [*held.starts[1:], len(held.tokens)]
    names = found.names(part)
    assert len(names) == held.documents
    return {name: held.tokens[begin:end].tobytes() for name, begin, end in zip(names, held.starts, ends, strict=True)}


def test_parts_hold_every_document_once_and_whole(tmp_path: Path) -> None:
    data = corpus(tmp_path / "data")
    found = store(data, "text", BYTES)
    parts = [texts(found, part) for part in PARTS]
    assert {**parts[0], **parts[1], **parts[2]} == dict(documents(data))
    assert sum(map(len, parts)) == 60
    shares = [len(found.split(part).tokens) / sum(len(found.split(part).tokens) for part in PARTS) for part in PARTS]
    assert shares == pytest.approx([0.9, 0.05, 0.05], abs=0.03)
    assert [found.split(part).bytes for part in PARTS] == [len(found.split(part).tokens) for part in PARTS]
    assert all(list(part) == sorted(part) for part in parts)


def test_a_document_keeps_its_part_whatever_comes_before_it(tmp_path: Path) -> None:
    line = '{"text": "document %d ' + "says so " * 20 + '"}\n'
    before = [line % number for number in range(50)]
    sizes = np.array([len(each) for each in before])
    keys = np.array([module._key(each.encode()) for each in before], np.uint64)
    order = np.random.default_rng(0).permutation(50)
    np.testing.assert_array_equal(deal(sizes[order], keys[order]), deal(sizes, keys)[order])
    assert module._key(b"text") != module._key(b"other")


def test_names_and_packing_do_not_change_what_is_tested_on(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"text": f"document {number} " + "says so " * 20}) + "\n" for number in range(50))
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.jsonl").write_text(lines)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    parts = [
        store(str(tmp_path / name), "text", BYTES).split("test").tokens.tobytes()
        for name in ("a.jsonl", "b.jsonl", "c.jsonl.gz")
    ]
    assert parts[0] == parts[1] == parts[2]


def test_a_text_that_is_nearly_all_is_cut_so_that_there_is_enough_to_test_on(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("word " * 10_000)
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text(f"a note called {name}")
    found = store(str(tmp_path), "text", BYTES)
    assert len(found.split("test").tokens) > 2000
    assert len(found.split("validation").tokens) > 2000


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(1, 1000), min_size=3, max_size=80), st.integers(0, 2**32))
def test_every_part_has_a_document_and_small_ones_are_dealt_by_their_shares(given: list[int], seed: int) -> None:
    sizes = np.array(given)
    keys = np.random.default_rng(seed).integers(0, 2**64, len(sizes), dtype=np.uint64)
    parts = deal(sizes, keys)
    held = np.bincount(parts, sizes, minlength=3)
    assert (np.bincount(parts, minlength=3) > 0).all()
    share = sizes.sum() / 20
    if sizes.max() <= share:
        assert (held[1:] >= share / 2).all()
        assert (held[1:] <= 2 * share).all()
    order = np.random.default_rng(seed + 1).permutation(len(sizes))
    np.testing.assert_array_equal(deal(sizes[order], keys[order]), parts[order])


def test_a_few_large_documents_and_a_note_leave_enough_to_validate_on() -> None:
    sizes = np.array([500_000] * 9 + [100])
    for seed in range(20):
        parts = deal(sizes, np.random.default_rng(seed).integers(0, 2**64, 10, dtype=np.uint64))
        held = np.bincount(parts, sizes, minlength=3)
        assert (held[1:] >= 500_000).all()
        assert held[0] >= 3_500_000
    parts = deal(np.array([940, 30, 30]), np.array([1, 2, 3], np.uint64))
    assert sorted(parts) == [0, 1, 2]
    assert parts[0] == 0


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_documents_are_cut_in_a_row(tmp_path: Path, count: int) -> None:
    text = "".join(f"{number:05}\n" for number in range(1000)).encode()
    (tmp_path / "data").mkdir()
    for number, half in enumerate([text] if count == 1 else [text[:2000], text[2000:]]):
        (tmp_path / "data" / f"{number}.txt").write_bytes(half)
    found = store(str(tmp_path / "data"), "text", BYTES)
    parts = [found.split(part) for part in PARTS]
    assert [len(part.tokens) for part in parts] == [5400, 300, 300]
    assert b"".join(part.tokens.tobytes() for part in parts) == text
    assert [part.starts.tolist() for part in parts] == [[0] if count == 1 else [0, 2000], [0], [0]]
    last = f"{count - 1}.txt"
    assert [found.names(part) for part in PARTS] == [["0.txt"] if count == 1 else ["0.txt", last], [last], [last]]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_tiny_text_is_kept_too(tmp_path: Path, size: int) -> None:
    (tmp_path / "a.txt").write_text("x" * size)
    found = store(str(tmp_path / "a.txt"), "text", BYTES)
    assert sum(len(found.split(part).tokens) for part in PARTS) == size


def test_tokens_are_as_narrow_as_they_can_be_and_widths_are_exact(tmp_path: Path) -> None:
    data = corpus(tmp_path / "data", count=20)
    whole = sum(len(text.strip()) for _, text in documents(data))
    for vocabulary, kind in ((256, np.uint8), (257, np.uint16), (65_536, np.uint16), (65_537, np.uint32)):
        found = store(data, "text", Words(vocabulary))
        parts = [found.split(part) for part in PARTS]
        assert {part.tokens.dtype for part in parts} == {np.dtype(kind)}
        assert {part.widths.dtype for part in parts} == {np.dtype(np.uint8)}
        assert sum(part.bytes for part in parts) == whole
        assert [part.bytes for part in parts] == [part.widths.sum() for part in parts]
        expected = {name: Words(vocabulary).encode(text.decode()) for name, text in documents(data)}
        for name, part in zip(PARTS, parts, strict=True):
            for each, ids in zip(found.names(name), np.split(part.tokens, part.starts[1:]), strict=True):
                np.testing.assert_array_equal(ids, expected[each])


def test_a_token_of_any_width_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": "w" * 10**n}) + "\n" for n in range(6)))
    found = store(str(tmp_path / "a.jsonl"), "text", Words(200_000))
    widths = np.concatenate([found.split(part).widths for part in PARTS])
    assert sorted(widths.tolist()) == [10**n for n in range(6)]


def test_bytes_have_widths_that_take_no_room(tmp_path: Path) -> None:
    found = store(corpus(tmp_path / "data"), "text", BYTES)
    part = found.split("train")
    assert not (found.folder / "widths").exists()
    assert part.widths.shape == part.tokens.shape
    assert part.widths.strides == (0,)
    assert part.widths.min() == part.widths.max() == 1


def test_the_same_data_has_the_same_checksum_and_other_data_another(tmp_path: Path) -> None:
    data = corpus(tmp_path / "data")
    first = store(data, "text", BYTES).checksum
    (tmp_path / "data").rename(tmp_path / "moved")
    assert store(str(tmp_path / "moved"), "text", BYTES).checksum == first
    path = tmp_path / "moved" / "007.txt"
    before, text = path.stat(), path.read_text()
    path.write_text(text.replace("says", "Says"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = store(str(tmp_path / "moved"), "text", BYTES).checksum
    path.write_text(text)
    assert store(str(tmp_path / "moved"), "text", BYTES).checksum == first
    path.rename(tmp_path / "moved" / "700.txt")
    renamed = store(str(tmp_path / "moved"), "text", BYTES).checksum
    others = {store(str(tmp_path / "moved"), "text", Words(vocabulary)).checksum for vocabulary in (256, 257)}
    assert len({first, changed, renamed, *others}) == 5


def test_the_checksum_is_the_same_wherever_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = corpus(tmp_path / "data")
    first = store(data, "text", BYTES)
    (tmp_path / "data").rename(tmp_path / "moved")
    monkeypatch.setenv("ADAPOS_CACHE", str(tmp_path / "elsewhere"))
    second = store(str(tmp_path / "moved"), "text", BYTES)
    assert first.folder != second.folder
    assert first.checksum == second.checksum


def test_a_store_is_made_once_and_verified_once_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = corpus(tmp_path / "data")
    store(data, "text", BYTES)
    read: list[Path] = []
    digest, ours = files.digest, tmp_path / "data"

    def listening(path: Path) -> str:
        if ours not in path.parents:  # of the data itself, which is looked at each time
            read.append(path)
        return digest(path)

    monkeypatch.setattr(files, "digest", listening)
    monkeypatch.setattr(module, "_made", None)
    monkeypatch.setattr(module, "_whole", set())
    found = store(data, "text", BYTES)
    assert sorted(path.name for path in read) == ["names", "starts", "tokens"]
    assert store(data, "text", BYTES).checksum == found.checksum
    assert len(read) == 3


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("tokens", flipped),
        ("widths", flipped),
        ("starts", flipped),
        ("names", flipped),
        ("tokens", Path.unlink),
        ("starts", lambda path: path.write_bytes(path.read_bytes()[:-8])),
        ("meta.json", Path.unlink),
        ("meta.json", lambda path: path.write_text(path.read_text()[:-20])),
        ("meta.json", lambda path: path.write_text("[]")),
        ("meta.json", lambda path: path.write_text(path.read_text().replace('"bytes": ', '"bytes": 1'))),
    ],
)
def test_a_damaged_store_is_made_again(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: object
) -> None:
    data = corpus(tmp_path / "data")
    first = store(data, "text", Words())
    tokens = first.split("train").tokens.copy()
    damage(first.folder / name)  # type: ignore[operator]
    monkeypatch.setattr(module, "_whole", set())
    with pytest.warns(UserWarning, match=rf"^the tokens in \S+ were damaged \(.*{name}.*\) and are made again$"):
        again = store(data, "text", Words())
    assert (again.folder, again.checksum) == (first.folder, first.checksum)
    np.testing.assert_array_equal(again.split("train").tokens, tokens)
    monkeypatch.setattr(module, "_whole", set())
    assert store(data, "text", Words()).checksum == first.checksum
    assert [path.name for path in kept.iterdir()] == [first.folder.name]


def forked(target: Callable[[], object]) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=target, daemon=True)
    process.start()
    return process


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("stage", ["tokenising", "renaming"])
def test_a_process_that_is_killed_leaves_nothing_that_is_taken_for_whole(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    data = corpus(tmp_path / "data")

    def halt(*_: object) -> None:
        (tmp_path / "here").touch()
        time.sleep(600)

    def halted(*given: str) -> Iterator[tuple[str, bytes]]:
        for number, document in enumerate(documents(*given)):
            if number == 30:
                halt()
            yield document

    with monkeypatch.context() as patch:
        if stage == "tokenising":
            patch.setattr(module, "documents", halted)
        else:
            patch.setattr(Path, "rename", halt)
        process = forked(lambda: store(data, "text", BYTES))
    while not (tmp_path / "here").exists():
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    (left,) = kept.iterdir()
    found = store(data, "text", BYTES)
    assert found.folder != left
    assert sum(found.split(part).documents for part in PARTS) == 60
    # what it left is removed when it is old, and not before
    assert left.exists()
    for path in [*left.rglob("*"), left]:
        os.utime(path, (0, time.time() - 2 * module.ABANDONED))
    store(corpus(tmp_path / "other", count=5), "text", BYTES)
    assert not left.exists()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_two_processes_may_make_the_same_store_at_once(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = corpus(tmp_path / "data")
    rename = Path.rename

    def together(path: Path, target: Path) -> Path:
        (tmp_path / f"{os.getpid()}.ready").touch()
        while len(list(tmp_path.glob("*.ready"))) < 2:
            time.sleep(0.01)
        return rename(path, target)

    def say() -> None:
        (tmp_path / f"{os.getpid()}.said").write_text(store(data, "text", BYTES).checksum)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", together)
        both = [forked(say), forked(say)]
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    found = store(data, "text", BYTES)
    assert [path.read_text() for path in tmp_path.glob("*.said")] == [found.checksum] * 2
    assert list(kept.iterdir()) == [found.folder]


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        path = tmp_path / f"{count}.jsonl"
        with open(path, "w") as file:
            for number in range(count):
                file.write(json.dumps({"text": f"{number:03} " * 20_000}) + "\n")
        tracemalloc.start()
        store(str(path), "text", BYTES)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    few, many = peak(10), peak(100)
    assert (tmp_path / "100.jsonl").stat().st_size > 5_000_000
    assert many < few + 300_000


def test_data_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = corpus(tmp_path / "data")

    def changing(*given: str) -> Iterator[tuple[str, bytes]]:
        yield from documents(*given)
        (tmp_path / "data" / "007.txt").write_text("changed")

    monkeypatch.setattr(module, "documents", changing)
    with pytest.raises(ValueError, match=r"data changed while it was read; run again when nothing writes to it$"):
        store(data, "text", BYTES)
    assert list(kept.iterdir()) == []


def test_text_without_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" \n ")
    with pytest.raises(ValueError, match=r"^data must give tokens, and the tokenizer 'words' makes none of \S+a\.txt$"):
        store(str(tmp_path / "a.txt"), "text", Words())


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = corpus(tmp_path / "data")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ADAPOS_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        ValueError, match=r"^tokens cannot be kept in \S+: Not a directory; set ADAPOS_CACHE to another"
    ):
        store(data, "text", BYTES)


def test_there_are_three_parts(tmp_path: Path) -> None:
    found = store(corpus(tmp_path / "data"), "text", BYTES)
    with pytest.raises(
        ValueError, match="part must be one of 'train', 'validation', 'test', not 'tests'; did you mean"
    ):
        found.split("tests")
    with pytest.raises(ValueError, match="part must be one of"):
        found.names("dev")


def test_the_cache_is_where_the_platform_keeps_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert files.cache() == tmp_path / "cache"
    monkeypatch.delenv("ADAPOS_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, folder in {"XDG_CACHE_HOME": "xdg", "LOCALAPPDATA": "local"}.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    for platform, folder in {"linux": "xdg", "win32": "local", "darwin": "Library/Caches"}.items():
        monkeypatch.setattr(sys, "platform", platform)
        assert files.cache() == tmp_path / folder / "adapos"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert files.cache() == tmp_path / ".cache" / "adapos"
