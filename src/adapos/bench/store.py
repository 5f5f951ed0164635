"""Tokens on disk: documents are tokenised once, dealt to train, validation and test, and mapped into memory.

A store is a folder, named after what it is made from: the contents of the source, and the tokenizer.

  tokens     of all documents: those of train, then validation, then test, each in the order of the source
  widths     how many bytes each token stands for; not there where tokens are bytes
  starts     where each document begins
  names      of the documents, a line of JSON each
  meta.json  types, parts, source, tokenizer, and the checksum of each file
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
import warnings
from array import array
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapos import files
from adapos.bench.sources import documents, fingerprint
from adapos.bench.task import Ids
from adapos.bench.tokenizer import Bytes, Tokenizer
from adapos.registry import one_of

FORMAT = 2
PARTS = ("train", "validation", "test")
SHARE = 20  # validation and test are each one of so many shares
ABANDONED = 24 * 3600  # seconds after which a half-made store is taken for one whose process was killed

Array = NDArray[Any]

_whole: set[Path] = set()  # stores that this process has verified


@dataclass(frozen=True)
class Part:
    """Documents one after another. `tokens` and `widths` are views of files: what is not read takes no memory."""

    tokens: Array  # (N,), unsigned, as narrow as the vocabulary allows
    widths: Array  # (N,), unsigned: bytes that each token stands for
    starts: Ids  # where each document begins
    bytes: int

    @property
    def documents(self) -> int:
        return len(self.starts)


class Store:
    """A store that is whole. Its checksum is of what it holds, wherever that came from and wherever it lies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = _verified(folder)
        self.checksum: str = self.meta["checksum"]
        tokens, starts = self._mapped("tokens"), self._mapped("starts")
        widths = self._mapped("widths") if "widths" in self.meta["files"] else np.broadcast_to(np.uint8(1), len(tokens))
        self._parts = {}
        for name, part in self.meta["parts"].items():
            held, begins = slice(*part["tokens"]), starts[slice(*part["documents"])]
            self._parts[name] = Part(tokens[held], widths[held], begins - held.start, part["bytes"])

    def split(self, part: str) -> Part:
        one_of("text", "part", part, PARTS)
        return self._parts[part]

    def names(self, part: str) -> list[str]:
        """Of the documents of a part."""
        one_of("text", "part", part, PARTS)
        lines = (self.folder / "names").read_text().splitlines()
        return [json.loads(line) for line in lines[slice(*self.meta["parts"][part]["documents"])]]

    def _mapped(self, name: str) -> Array:
        # as a plain array, which is quicker to index than a memmap
        return np.asarray(np.memmap(self.folder / name, self.meta["types"][name], "r"))


def store(data: str, field: str, reader: Tokenizer, limit: int = 0) -> Store:
    """The tokens of a source (see `sources.documents`): from the cache if they are there, else made and kept there."""
    source = fingerprint(data, field, limit)
    key = hashlib.sha256(json.dumps([FORMAT, source, reader.fingerprint]).encode()).hexdigest()[:32]
    folder = files.cache() / "text" / key
    damaged = folder.exists()
    if damaged:
        try:
            return Store(folder)
        except (OSError, ValueError) as problem:
            warnings.warn(f"the tokens in {folder} were damaged ({problem}) and are made again", stacklevel=2)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder.parent)
        with tempfile.TemporaryDirectory(prefix=f"{key}.", dir=folder.parent) as beside:
            new = _made(Path(beside), data, field, reader, limit, source)
            if damaged:
                with suppress(FileNotFoundError):
                    folder.rename(Path(beside, "old"))
            try:
                new.rename(folder)
            except OSError:
                if not folder.exists():  # else another process was first
                    raise
    except OSError as problem:
        raise ValueError(
            f"tokens cannot be kept in {folder.parent}: {problem.strerror}; set ADAPOS_CACHE to another folder"
        ) from None
    return Store(folder)


def deal(sizes: Ids, keys: NDArray[np.uint64]) -> Ids:
    """The part of each of three or more documents, from its tokens and a key of its own, not from its place.

    Those of more than a share go to train. The others, in the order of their keys, fill test, then validation, then
    train. A part that is left with less than half a share is given the smallest of the rest.
    """
    share = sizes.sum() / SHARE
    parts = np.zeros(len(sizes), np.int64)
    order = np.argsort(keys)
    order = order[sizes[order] <= share]
    begins = np.cumsum(sizes[order]) - sizes[order]
    parts[order[begins < 2 * share]] = PARTS.index("validation")
    parts[order[begins < share]] = PARTS.index("test")
    for part in (1, 2):
        while sizes[parts == part].sum() < share / 2:
            shared = np.bincount(parts, minlength=3)[parts] > 1
            spare = np.flatnonzero(shared & (parts != part))
            if not len(spare):
                break
            parts[spare[np.lexsort((keys[spare], sizes[spare]))[0]]] = part
    return parts


@dataclass
class _Index:
    """What is remembered of each document while a store is made: some numbers, and never its text."""

    sizes: Ids  # tokens
    letters: Ids  # bytes of its line of names
    keys: NDArray[np.uint64]
    widest: int  # of all tokens


def _made(beside: Path, data: str, field: str, reader: Tokenizer, limit: int, source: str) -> Path:
    """A new store in a folder of its own: first in the order of the source, then in that of the parts."""
    raw, folder = beside / "raw", beside / "new"
    raw.mkdir()
    folder.mkdir()
    types = {"tokens": np.min_scalar_type(reader.vocabulary - 1), "starts": np.dtype(np.int64)}
    index = _tokenised(raw, documents(data, field, limit), reader, types["tokens"])
    if not len(index.sizes):
        raise ValueError(f"data must give tokens, and the tokenizer {reader.name!r} makes none of {data}")
    if fingerprint(data, field, limit) != source:
        raise ValueError(f"{data} changed while it was read; run again when nothing writes to it")
    order, named, starts, borders = _arranged(index)
    starts.tofile(folder / "starts")
    ends = _ends(index.sizes)
    _gather(np.memmap(raw / "tokens", types["tokens"], "r"), ends, order, folder / "tokens")
    _gather(np.memmap(raw / "names", np.uint8, "r"), _ends(index.letters), named, folder / "names")
    spans = np.diff(borders).tolist()
    if not isinstance(reader, Bytes):
        types["widths"] = np.min_scalar_type(index.widest)
        _gather(np.memmap(raw / "widths", np.uint32, "r"), ends, order, folder / "widths", types["widths"])
        widths = np.memmap(folder / "widths", types["widths"], "r")
        spans = [int(widths[a:b].sum(dtype=np.int64)) for a, b in pairwise(borders)]
    parts = zip(
        PARTS, pairwise(borders.tolist()), pairwise(np.searchsorted(starts, borders).tolist()), spans, strict=True
    )
    meta = {
        "format": FORMAT,
        "source": {"data": data, "field": field, "limit": limit, "fingerprint": source},
        "tokenizer": {"name": reader.name, "fingerprint": reader.fingerprint, "vocabulary": reader.vocabulary},
        "types": {name: kind.newbyteorder("<").str for name, kind in types.items()},
        "parts": {name: {"tokens": held, "documents": each, "bytes": span} for name, held, each, span in parts},
        "files": {path.name: files.digest(path) for path in sorted(folder.iterdir())},
    }
    meta["checksum"] = _checksum(meta)
    (folder / "meta.json").write_text(json.dumps(meta, indent=1))
    return folder


def _tokenised(raw: Path, found: Iterable[tuple[str, bytes]], reader: Tokenizer, kind: np.dtype[Any]) -> _Index:
    sizes, letters, keys, widest = array("q"), array("q"), array("Q"), 0
    with open(raw / "tokens", "wb") as tokens, open(raw / "widths", "wb") as widths, open(raw / "names", "wb") as names:
        for name, text in found:
            size = 0
            for ids, spans in reader.read(text):
                size += len(ids)
                tokens.write(ids.astype(kind).data)
                if not isinstance(reader, Bytes):
                    widths.write(spans.astype(np.uint32).data)
                    widest = max(widest, int(spans.max(initial=0)))
            if size:
                sizes.append(size)
                letters.append(names.write(json.dumps(name).encode() + b"\n"))
                keys.append(_key(text))
    return _Index(np.array(sizes), np.array(letters), np.array(keys), widest)


def _key(text: bytes) -> int:
    """Of what a document says, whatever its name: copies are dealt to the same part."""
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big")


def _arranged(index: _Index) -> tuple[Ids, Ids, Ids, Ids]:
    """Documents in their new order; then of each stretch of the store its document and where it begins; and the borders
    of the parts."""
    if len(index.sizes) >= 3:
        parts = deal(index.sizes, index.keys)
        order = np.argsort(parts, kind="stable")
        amounts = np.bincount(parts, index.sizes, minlength=3).astype(np.int64)
        if 2 * SHARE * amounts.min() >= amounts.sum():
            return order, order, _ends(index.sizes[order])[:-1], _ends(amounts)
    # too few to be dealt, or one that is nearly all: cut where the parts end, as is usual for one long text
    ends = _ends(index.sizes)
    borders = ends[-1] * np.array([0, SHARE - 2, SHARE - 1, SHARE]) // SHARE
    starts = np.unique(np.concatenate([ends[:-1], borders[:-1]]))
    return np.arange(len(index.sizes)), np.searchsorted(ends, starts, side="right") - 1, starts, borders


def _ends(sizes: Ids) -> Ids:
    """Where stretches end that follow one another, with a zero before the first."""
    return np.concatenate([[0], np.cumsum(sizes)])


def _gather(held: Array, ends: Ids, order: Ids, path: Path, kind: np.dtype[Any] | None = None) -> None:
    """Stretches of an array in another order."""
    with open(path, "wb") as file:
        for begin, end in zip(ends[order].tolist(), ends[order + 1].tolist(), strict=True):
            file.write(held[begin:end].astype(kind or held.dtype, copy=False).data)


def _verified(folder: Path) -> dict[str, Any]:
    """The meta of a store, if all is there as it was written. Files are read through once a process."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
    except ValueError:
        meta = None
    if not isinstance(meta, dict) or meta.get("checksum") != _checksum(meta):
        raise ValueError("meta.json is not as it was written")
    if folder not in _whole:
        for name, written in meta["files"].items():
            if files.digest(folder / name) != written:
                raise ValueError(f"{name} is not as it was written")
        _whole.add(folder)
    return meta


def _checksum(meta: dict[str, Any]) -> str:
    facts = [meta.get(name) for name in ("format", "tokenizer", "types", "parts", "files")]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed have left."""
    for left in folder.glob("*.*"):
        with suppress(FileNotFoundError):
            newest = max(path.stat().st_mtime for path in [left, *left.rglob("*")])
            if time.time() - newest > ABANDONED:
                shutil.rmtree(left)
