"""Text from where the user has it: the standard library, files and folders, or a Hugging Face dataset."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import json
import os
import sysconfig
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from adapos import files
from adapos.bench import enwik8
from adapos.hints import meant

ENDINGS = (".txt", ".md", ".py", ".jsonl", ".gz", ".zst", ".parquet", ".arrow")
# folders of the standard library that are tests or programs, or no part of it
ASIDE = ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3")
PIECE = 2**20  # bytes


def documents(data: str, field: str = "text", limit: int = 0) -> Iterator[tuple[str, bytes]]:
    """The name and the UTF-8 text of each document, always in the same order; those without text are passed over.

    `data` is "stdlib", "enwik8", the path of a file or folder, or "hf:OWNER/NAME[/CONFIG][:SPLIT]". A file is one
    document, but each line of a .jsonl and each row of a .parquet or .arrow is one of its own, with its text under
    `field`. Of a folder all files are read whose ending is known, but for hidden ones. `limit` is how many bytes of
    text are read at most, 0 for all; the last document is cut there.
    """
    if data.startswith("hf:"):
        found = _rows_of_dataset(data, field)
    else:
        found = (document for name, path in _files(data) for document in _read(name, path, field))
    empty, left = True, limit
    for name, text in found:
        last = bool(limit) and len(text) >= left
        if last:  # in whole characters
            text = text[:left].decode(errors="ignore").encode()
        if text:
            empty = False
            yield name, text
        if last:
            break
        left -= len(text)
    if empty:
        raise ValueError(f"data must hold text, and {data} is empty; give more")


def fingerprint(data: str, field: str = "text", limit: int = 0) -> str:
    """A hash of all that the documents are made from: names and contents of files, or the revision of a dataset."""
    facts: list[Any] = [field, limit] if limit else [field]
    if data.startswith("hf:"):
        facts += [*_dataset(data), _revision(data)]
    else:
        for name, path in _files(data):
            with _reading(path):
                facts.append((name, files.digest(path)))
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _files(data: str) -> list[tuple[str, Path]]:
    """Names and paths."""
    if data == "stdlib":
        return [(name, path) for name, path in _walk(Path(sysconfig.get_path("stdlib")), ASIDE) if path.suffix == ".py"]
    if data == enwik8.NAME:
        return [(data, enwik8.path())]
    path = Path(data).expanduser()
    if path.is_file():
        return [(path.name, path)]
    if not path.is_dir():
        raise ValueError(
            f"data must be 'stdlib', 'enwik8', a file or folder, or hf:OWNER/NAME, and there is no {data!r}"
            f"{meant(data, ['stdlib', enwik8.NAME])}"
        )
    found = _walk(path)
    known = [(name, path) for name, path in found if path.suffix.lower() in ENDINGS]
    if found and not known:
        raise ValueError(f"a folder of text must hold files in {', '.join(ENDINGS)}, and {data} holds none")
    return known


def _walk(root: Path, aside: Collection[str] = ()) -> list[tuple[str, Path]]:
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in aside and not name.startswith(".")]
        found += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted((path.relative_to(root).as_posix(), path) for path in found)


def _read(name: str, path: Path, field: str) -> Iterator[tuple[str, bytes]]:
    with _reading(path), open(path, "rb") as file:
        source: Any = file
        kind, inner = path.suffix.lower(), Path(path.stem).suffix.lower()
        if kind == ".gz":
            kind, source = inner, gzip.GzipFile(fileobj=file)
        elif kind == ".zst":
            kind, source = inner, io.BufferedReader(_pyarrow(path).CompressedInputStream(file, "zstd"))
        if kind == ".jsonl":
            yield from _lines(name, path, source, field)
        elif kind in (".parquet", ".arrow"):
            # they are read from their end, which what is unpacked in a stream cannot be
            yield from _rows(name, path, file if source is file else io.BytesIO(source.read()), field)
        else:
            yield name, _checked(source.read(), str(path))


def _lines(name: str, path: Path, file: Iterable[bytes], field: str) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(file, 1):
        where = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            row = json.loads(_checked(line, where).decode())
        except json.JSONDecodeError as problem:
            raise ValueError(f"{where} must be a JSON object, and does not parse: {problem.msg}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{where} must be a JSON object, such as {{{field!r}: ...}}, not {type(row).__name__}")
        yield f"{name}:{number}", _field(row, field, where)


def _rows(name: str, path: Path, file: Any, field: str) -> Iterator[tuple[str, bytes]]:
    arrow = _pyarrow(path)
    with _reading(path, arrow.ArrowException):
        magic = file.read(6)
        file.seek(0)
        if magic[:4] == b"PAR1":
            table = import_module("pyarrow.parquet").ParquetFile(file)
            columns, batches = table.schema_arrow.names, table.iter_batches(columns=[field])
        elif magic == b"ARROW1":
            table = arrow.ipc.open_file(file)
            columns, batches = table.schema.names, map(table.get_batch, range(table.num_record_batches))
        else:  # as the datasets library keeps its tables
            batches = arrow.ipc.open_stream(file)
            columns = batches.schema.names
        if field not in columns:
            raise ValueError(_lacks(str(path), field, columns))
        numbers = count()
        for batch in batches:
            for value in batch.column(field).to_pylist():
                number = next(numbers)
                yield f"{name}:{number}", _field({field: value}, field, f"{path}, row {number}")


def _rows_of_dataset(data: str, field: str) -> Iterator[tuple[str, bytes]]:
    name, config, split = _dataset(data)
    load = _package("datasets", "'adapos[bench]'", data).load_dataset
    rows = iter(_reached(data, load, name, config, split=split, streaming=True))
    for number in count():
        row = _reached(data, next, rows, None)
        if row is None:
            return
        yield str(number), _field(row, field, f"{data}, row {number}")


def _dataset(data: str) -> tuple[str, str | None, str]:
    """The name, the configuration and the split."""
    path, _, split = data.removeprefix("hf:").partition(":")
    owner, *rest = path.split("/")
    if not all([owner, *rest]) or len(rest) > 2:
        raise ValueError(f"a Hugging Face dataset is given as hf:OWNER/NAME[/CONFIG][:SPLIT], not {data!r}")
    name = "/".join([owner, *rest[:1]])
    # the datasets library would read it in place of the one that the revision is of
    if Path(name).exists():
        raise ValueError(
            f"{data} names a dataset of the hub, and there is a {name!r} here; give that as data, or move it"
        )
    return name, rest[1] if len(rest) == 2 else None, split or "train"


def _revision(data: str) -> str:
    hub = _package("huggingface_hub", "'adapos[bench]'", data)
    return _reached(data, hub.HfApi().dataset_info, _dataset(data)[0]).sha


def _reached(data: str, call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    try:
        return call(*given, **named)
    except Exception as problem:  # of the network, the hub and the files: of any kind
        raise ValueError(f"{data} cannot be read: {str(problem).strip().partition(chr(10))[0]}") from None


def _field(row: Mapping[str, Any], field: str, where: str) -> bytes:
    if field not in row:
        raise ValueError(_lacks(where, field, row))
    text = row[field]
    if not isinstance(text, str):
        raise ValueError(f"{where}: the field {field!r} must be text, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as problem:
        raise ValueError(
            f"{where}: the field {field!r} must be whole characters, and character {problem.start} is half of one"
        ) from None


def _lacks(where: str, field: str, fields: Iterable[str]) -> str:
    listed = ", ".join(map(repr, fields)) or "none"
    return f"{where} must have the field {field!r}, and has {listed}; name the one with the text by --field (field=)"


def _checked(text: bytes, where: str) -> bytes:
    """The same, if it is UTF-8 without NUL. In pieces, since decoded it may take four times the memory."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    place = text.find(0)
    if place >= 0:
        raise ValueError(f"{where} must be text, and byte {place} is NUL; leave it out")
    for begin in range(0, len(text), PIECE):
        held, _ = decoder.getstate()
        try:
            decoder.decode(text[begin : begin + PIECE], final=begin + PIECE >= len(text))
        except UnicodeDecodeError as problem:
            place = begin - len(held) + problem.start
            raise ValueError(f"{where} must be UTF-8, and byte {place} is not; convert it or leave it out") from None
    return text


@contextmanager
def _reading(path: Path, *also: type[Exception]) -> Iterator[None]:
    broken: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error, *also)
    try:
        yield
    except broken as problem:
        reason = getattr(problem, "strerror", None) or str(problem).partition("\n")[0]
        raise ValueError(f"{path} cannot be read: {reason}") from None


def _pyarrow(path: Path) -> Any:
    return _package("pyarrow", "pyarrow", str(path))


def _package(name: str, install: str, data: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise ValueError(f"{data} needs {name} to be read: pip install {install}") from None
