"""Text to tokens and back, with the bytes that each token stands for: bytes themselves, or a Hugging Face tokenizer."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from adapos.bench.task import Ids
from adapos.hints import meant

KINDS = "tokenizer must be 'bytes' or a Hugging Face tokenizer's name or folder"
PIECE = 2**20  # bytes


class Tokenizer(ABC):
    name: str
    vocabulary: int
    fingerprint: str  # of all that its tokens depend on

    @abstractmethod
    def piece(self, text: str) -> tuple[Ids, Ids]:
        """The tokens of a text and the bytes that each stands for, which add up to those of the text."""

    @abstractmethod
    def decode(self, ids: Ids) -> str: ...

    def read(self, text: bytes) -> Iterator[tuple[Ids, Ids]]:
        """The same for a document of any size, piece by piece."""
        return (self.piece(piece.decode()) for piece in pieces(text))

    def encode(self, text: str) -> Ids:
        return self.piece(text)[0]

    def widths(self, text: str) -> Ids:
        """How many bytes each token stands for."""
        return self.piece(text)[1]


def tokenizer(name: str) -> Tokenizer:
    """ "bytes", or a Hugging Face tokenizer by its name or path."""
    if name == "bytes":
        return Bytes()
    hint = meant(name, ["bytes"])
    # or the network would be asked for it, which takes a minute where there is none
    if hint and not Path(name).exists():
        raise ValueError(f"{KINDS}, not {name!r}{hint}")
    return HuggingFace(name)


def pieces(text: bytes) -> Iterator[bytes]:
    """UTF-8 text in pieces of a megabyte at most that end with a line, or with a character where a line is longer.

    A text of one piece is tokenised as a whole; in a longer one a tokenizer cannot see across the ends of pieces.
    """
    begin = 0
    while len(text) - begin > PIECE:
        end = text.rfind(b"\n", begin, begin + PIECE) + 1
        if end == 0:
            end = begin + PIECE
            while text[end] & 0xC0 == 0x80:  # the middle of a character
                end -= 1
        yield text[begin:end]
        begin = end
    yield text[begin:]


class Bytes(Tokenizer):
    """Token 0 to 255 is a byte of UTF-8."""

    name = fingerprint = "bytes"
    vocabulary = 256

    def piece(self, text: str) -> tuple[Ids, Ids]:
        ids = np.frombuffer(text.encode(), np.uint8).astype(np.int64)
        return ids, np.ones_like(ids)

    def decode(self, ids: Ids) -> str:
        return np.asarray(ids, np.uint8).tobytes().decode(errors="replace")


class HuggingFace(Tokenizer):
    """A fast tokenizer of transformers, without the special tokens that it would add around a text."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fast = _loaded(name)
        # as saved, it may cut texts to a model's length
        self.fast.no_truncation()
        self.fast.no_padding()
        self.vocabulary = max(self.fast.get_vocab(with_added_tokens=True).values()) + 1
        self.fingerprint = hashlib.sha256(self.fast.to_str().encode()).hexdigest()

    def piece(self, text: str) -> tuple[Ids, Ids]:
        found = self.fast.encode(text, add_special_tokens=False)
        ends = np.array([end for _, end in found.offsets], np.int64)
        return np.array(found.ids, np.int64), _widths(text, ends)

    def decode(self, ids: Ids) -> str:
        return self.fast.decode(np.asarray(ids).tolist(), skip_special_tokens=False)


def _loaded(name: str) -> Any:
    """The tokenizer of the tokenizers library within the one of transformers."""
    try:
        from transformers import AutoTokenizer

        from adapos.hf.pretrained import source
    except ImportError:
        raise ValueError(f"the tokenizer {name!r} needs transformers: pip install 'adapos[hf]'") from None
    try:
        place, given = source(name)
        found = AutoTokenizer.from_pretrained(place, use_fast=True, **given)
    except Exception as problem:  # of the network, the hub and the files: of any kind
        reason = str(problem).strip().partition("\n")[0]
        raise ValueError(f"{KINDS}, and {name!r} cannot be loaded: {reason}") from None
    if not found.is_fast:
        raise ValueError(f"the tokenizer {name!r} has no fast form, which alone tells the bytes of each token")
    return found.backend_tokenizer


def _widths(text: str, ends: Ids) -> Ids:
    """From where tokens end, in characters. What lies between two tokens is counted to the second, what follows the
    last to the last, and a character that several share to the first of them."""
    if not len(ends):
        return ends
    code = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    bytes_before = np.zeros(len(code) + 1, np.int64)
    np.cumsum(1 + (code >= 0x80) + (code >= 0x800) + (code >= 0x10000), out=bytes_before[1:])
    ends = np.maximum.accumulate(ends)
    ends[-1] = len(code)
    return np.diff(bytes_before[ends], prepend=0)
