"""Sources: every kind of data gives its documents in one order, and bad data is refused in a sentence."""

import gzip
import json
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapos.bench import sources
from adapos.bench.sources import documents, fingerprint


def read(path: Path, field: str = "text") -> list[tuple[str, bytes]]:
    return list(documents(str(path), field))


def refused(data: Path | str, sentence: str, field: str = "text") -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        list(documents(str(data), field))
    assert type(caught.value) is ValueError
    assert "\n" not in str(caught.value)


def test_the_standard_library_is_read_from_its_sources_without_tests_and_programs() -> None:
    found = dict(documents("stdlib"))
    assert len(found) > 300
    assert found["json/decoder.py"] == Path(json.decoder.__file__).read_bytes()
    assert not [name for name in found if re.search(r"(^|/)(tests?|site-packages|idlelib|lib2to3)/", name)]
    assert all(name.endswith(".py") for name in found)
    assert list(found) == sorted(found)


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.py", "a.TXT", "enwik8"])
def test_a_file_of_text_is_one_document(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes("käse\r\nzwei\n".encode())
    assert read(tmp_path / name) == [(name, "käse\r\nzwei\n".encode())]


def test_each_line_of_jsonl_is_a_document_and_blank_ones_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one\\ntwo", "n": 1}\n\n{"text": ""}\n{"text": "k\\u00e4se \\u0000"}', encoding="utf-8")
    assert read(path) == [("a.jsonl:1", b"one\ntwo"), ("a.jsonl:4", "käse \0".encode())]
    path.write_text('{"body": "b"}\n', encoding="utf-8")
    assert read(path, field="body") == [("a.jsonl:1", b"b")]


def test_gzip_holds_any_kind_and_text_where_the_ending_inside_is_unknown(tmp_path: Path) -> None:
    for name, content in {"a.jsonl.gz": b'{"text": "row"}\n', "b.txt.gz": b"text", "enwik8.gz": b"plain"}.items():
        (tmp_path / name).write_bytes(gzip.compress(content))
    assert read(tmp_path) == [("a.jsonl.gz:1", b"row"), ("b.txt.gz", b"text"), ("enwik8.gz", b"plain")]


def test_endings_may_be_in_capitals(tmp_path: Path) -> None:
    (tmp_path / "A.JSONL.GZ").write_bytes(gzip.compress(b'{"text": "row"}\n'))
    assert read(tmp_path) == [("A.JSONL.GZ:1", b"row")]


def test_zstandard_holds_any_kind_in_any_number_of_frames(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    lines = [json.dumps({"text": f"row {number}"}).encode() + b"\n" for number in range(3)]
    frames = [pyarrow.compress(line, codec="zstd", asbytes=True) for line in lines]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames))
    (tmp_path / "b.zst").write_bytes(pyarrow.compress(b"text", codec="zstd", asbytes=True))
    assert read(tmp_path) == [*((f"a.jsonl.zst:{n + 1}", f"row {n}".encode()) for n in range(3)), ("b.zst", b"text")]


def test_files_that_the_zstandard_package_writes_are_read(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    zstandard = pytest.importorskip("zstandard")
    text = b"".join(b"line %d\n" % number for number in range(100_000))
    (tmp_path / "a.txt.zst").write_bytes(zstandard.ZstdCompressor(level=3).compress(text))
    assert read(tmp_path / "a.txt.zst") == [("a.txt.zst", text)]


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    """The same five rows, the third empty, in every form of table."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"id": range(5), "text": [f"row {n}" if n != 2 else "" for n in range(5)]})
    paths = {kind: tmp_path / f"a.{kind}" for kind in ("parquet", "file.arrow", "stream.arrow")}
    parquet.write_table(table, paths["parquet"], row_group_size=2)
    with pyarrow.OSFile(str(paths["file.arrow"]), "wb") as out, pyarrow.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    with pyarrow.OSFile(str(paths["stream.arrow"]), "wb") as out, pyarrow.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    paths["gz"] = tmp_path / "a.parquet.gz"
    paths["gz"].write_bytes(gzip.compress(paths["parquet"].read_bytes()))
    paths["zst"] = tmp_path / "a.parquet.zst"
    paths["zst"].write_bytes(pyarrow.compress(paths["parquet"].read_bytes(), codec="zstd", asbytes=True))
    return paths


@pytest.mark.parametrize("kind", ["parquet", "file.arrow", "stream.arrow", "gz", "zst"])
def test_rows_of_tables_are_documents(tables: dict[str, Path], kind: str) -> None:
    path = tables[kind]
    assert read(path) == [(f"{path.name}:{n}", f"row {n}".encode()) for n in (0, 1, 3, 4)]
    refused(path, rf"{path.name} must have the field 'body', and has 'id', 'text'; name the one", field="body")
    refused(path, rf"{path.name}, row 0: the field 'id' must be text, not int", field="id")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_table_that_is_broken_is_refused(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / name).write_bytes(b"nonsense" * 10)
    refused(tmp_path / name, rf"{name} cannot be read: ")


def test_a_folder_is_read_recursively_in_order_without_hidden_or_unknown_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a/b/c.py", "a.txt", "photo.png", ".hidden.txt", ".git/config.txt", "empty.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("" if name == "empty.txt" else name)
    assert read(tmp_path) == [(name, name.encode()) for name in ("a.txt", "a/b/c.py", "a/z.md", "b.txt")]


def test_a_limit_cuts_the_last_document_between_characters(tmp_path: Path) -> None:
    for name, text in (("a.txt", "abc"), ("b.txt", "d\N{SNOWMAN}e"), ("c.txt", "f")):
        (tmp_path / name).write_text(text)

    def read(limit: int) -> list[str]:
        return [text.decode() for _, text in documents(str(tmp_path), limit=limit)]

    assert read(0) == read(9) == ["abc", "d\N{SNOWMAN}e", "f"]
    assert read(3) == ["abc"]
    assert read(6) == ["abc", "d"]
    assert read(7) == ["abc", "d\N{SNOWMAN}"]
    assert len({fingerprint(str(tmp_path), limit=limit) for limit in (0, 3, 6)}) == 3


def test_the_fingerprint_changes_with_names_contents_and_field_and_with_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    path = tmp_path / "one" / "a.txt"
    path.write_text("old")
    before = fingerprint(str(tmp_path / "one"))
    stamp = path.stat()
    (tmp_path / "one").rename(tmp_path / "two")
    path = tmp_path / "two" / "a.txt"
    (tmp_path / "two" / "photo.png").write_text("not read")
    assert fingerprint(str(tmp_path / "two")) == before
    assert fingerprint(str(tmp_path / "two"), "body") != before
    path.write_text("new")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert fingerprint(str(tmp_path / "two")) != before
    path.write_text("old")
    assert fingerprint(str(tmp_path / "two")) == before
    path.rename(tmp_path / "two" / "b.txt")
    assert fingerprint(str(tmp_path / "two")) != before


def test_a_path_that_is_not_there_is_refused() -> None:
    refused(
        "nowhere/at/all",
        r"^data must be 'stdlib', 'enwik8', a file or folder, or hf:OWNER/NAME, and there is no 'nowhere/at/",
    )
    refused("stdlb", r"there is no 'stdlb'; did you mean 'stdlib'\?$")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "folder"])
def test_nothing_is_refused(tmp_path: Path, name: str) -> None:
    if name == "folder":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("")
    refused(tmp_path / name, rf"^data must hold text, and \S*{name} is empty; give more$")


def test_a_folder_without_known_endings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(b"\x89PNG")
    refused(
        tmp_path, r"^a folder of text must hold files in \.txt, \.md, \.py, \.jsonl, .*\.arrow, and \S+ holds none$"
    )


@pytest.mark.parametrize("place", [0, 3, sources.PIECE - 1, sources.PIECE, 2 * sources.PIECE + 5])
def test_binary_content_is_refused_with_its_place(tmp_path: Path, place: int) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * place + b"\0rest")
    refused(path, rf"a\.txt must be text, and byte {place} is NUL; leave it out$")
    path.write_bytes(b"x" * place + b"\xe2\x82x")
    refused(path, rf"a\.txt must be UTF-8, and byte {place} is not; convert it or leave it out$")
    path.write_bytes(b"x" * place + "€".encode())
    assert len(read(path)[0][1]) == place + 3


def test_text_that_ends_inside_a_character_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"ab\xe2\x82")
    refused(tmp_path / "a.txt", r"byte 2 is not")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b'{"text": "b"', r"a\.jsonl:2 must be a JSON object, and does not parse: Expecting ',' delimiter$"),
        (b'["b"]', r"a\.jsonl:2 must be a JSON object, such as \{'text': \.\.\.\}, not list$"),
        (b'{"body": "b", "id": 3}', r"a\.jsonl:2 must have the field 'text', and has 'body', 'id'; name the one"),
        (
            b"{}",
            r"a\.jsonl:2 must have the field 'text', and has none; name the one with the text by --field \(field=\)$",
        ),
        (b'{"text": null}', r"a\.jsonl:2: the field 'text' must be text, not NoneType$"),
        (
            b'{"text": "ab\\ud800"}',
            r"a\.jsonl:2: the field 'text' must be whole characters, and character 2 is half of",
        ),
        (b'{"text": "\xff"}', r"a\.jsonl:2 must be UTF-8, and byte 10 is not"),
        (b'{"text": "\0"}', r"a\.jsonl:2 must be text, and byte 10 is NUL"),
    ],
)
def test_a_bad_line_of_jsonl_is_refused_with_its_number(tmp_path: Path, line: bytes, sentence: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n' + line + b"\n")
    refused(tmp_path / "a.jsonl", sentence)


def test_packed_files_that_are_broken_are_refused(tmp_path: Path) -> None:
    whole = gzip.compress(b"text " * 1000)
    for content, reason in ((b"no gzip", "Not a gzipped file"), (whole[:-9], "Compressed file ended before")):
        (tmp_path / "a.gz").write_bytes(content)
        refused(tmp_path / "a.gz", rf"a\.gz cannot be read: {reason}")
    (tmp_path / "a.gz").write_bytes(whole[:20] + b"\xff\xff\xff" + whole[23:])
    refused(tmp_path / "a.gz", r"a\.gz cannot be read: ")


def test_zstandard_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    whole = pyarrow.compress(b"".join(b"%d" % n for n in range(10_000)), codec="zstd", asbytes=True)
    (tmp_path / "a.zst").write_bytes(whole[: len(whole) // 2])
    refused(tmp_path / "a.zst", r"a\.zst cannot be read: ")


def test_a_missing_package_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "datasets", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("a.zst", "a.parquet", "a.arrow"):
        (tmp_path / name).write_bytes(b"x")
        refused(tmp_path / name, rf"{name} needs pyarrow to be read: pip install pyarrow$")
    refused("hf:owner/name", r"^hf:owner/name needs datasets to be read: pip install 'adapos\[bench\]'$")
    with pytest.raises(ValueError, match=r"hf:owner/name needs huggingface_hub to be read: pip install 'adapos\[bench"):
        fingerprint("hf:owner/name")


class Hub:
    """A stand-in for the datasets library and the hub: remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.rows: list[dict[str, object]] = [{"text": "one"}, {"text": ""}, {"text": "three"}]
        self.sha = "abc"
        self.fails_after = 1_000

    def load_dataset(
        self, name: str, config: str | None, *, split: str, streaming: bool
    ) -> Iterator[dict[str, object]]:
        if name == "owner/gone":
            raise FileNotFoundError("Dataset 'owner/gone' doesn't exist\nor cannot be accessed")
        self.asked.append((name, config, split, streaming))
        return self.stream()

    def stream(self) -> Iterator[dict[str, object]]:
        for number, row in enumerate(self.rows):
            if number == self.fails_after:
                raise ConnectionError("connection lost")
            yield row

    def dataset_info(self, name: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(sha=f"{name} {self.sha}")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub()
    monkeypatch.setitem(sys.modules, "datasets", hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(HfApi=lambda: hub))
    return hub


def test_a_dataset_is_streamed_row_by_row(hub: Hub) -> None:
    assert list(documents("hf:owner/name/raw-v1:validation")) == [("0", b"one"), ("2", b"three")]
    list(documents("hf:owner/name"))
    list(documents("hf:name:test"))
    assert hub.asked == [
        ("owner/name", "raw-v1", "validation", True),
        ("owner/name", None, "train", True),
        ("name", None, "test", True),
    ]


def test_a_dataset_is_known_by_its_revision_configuration_and_split(hub: Hub) -> None:
    names = ("hf:o/a", "hf:o/b", "hf:o/a/c", "hf:o/a:test")
    before = {name: fingerprint(name) for name in names}
    assert len(set(before.values())) == 4
    assert fingerprint("hf:o/a:train") == before["hf:o/a"]
    hub.sha = "def"
    assert all(fingerprint(name) != before[name] for name in names)


def test_a_dataset_that_cannot_be_read_is_refused(hub: Hub) -> None:
    refused("hf:owner/gone", r"^hf:owner/gone cannot be read: Dataset 'owner/gone' doesn't exist$")
    refused("hf:owner/name", r"^hf:owner/name, row 0 must have the field 'body', and has 'text'; name", field="body")
    hub.fails_after = 1
    refused("hf:owner/name", r"^hf:owner/name cannot be read: connection lost$")
    for data in ("hf:", "hf:a/b/c/d", "hf:a//c", "hf:/b", "hf:a/"):
        refused(data, r"^a Hugging Face dataset is given as hf:OWNER/NAME\[/CONFIG\]\[:SPLIT\], not 'hf:")


def test_a_folder_that_hides_a_dataset_is_refused(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    sentence = (
        r"^hf:owner/name names a dataset of the hub, and there is a 'owner/name' here; give that as data, or move"
    )
    refused("hf:owner/name", sentence)
    with pytest.raises(ValueError, match=sentence):
        fingerprint("hf:owner/name")
