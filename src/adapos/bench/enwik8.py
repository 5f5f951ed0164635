"""enwik8: the first 10^8 bytes of an English Wikipedia of 2006, a standard corpus of language models on bytes."""

from __future__ import annotations

import gzip
import hashlib
import io
import urllib.request
import zipfile
import zlib
from pathlib import Path

from adapos import files

NAME = "enwik8"
HOME = "https://mattmahoney.net/dc/enwik8.zip"
SHA256 = "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"  # unpacked
DAMAGED = (OSError, EOFError, zlib.error, zipfile.BadZipFile)  # what cannot be fetched, read or unpacked
WAIT = 60  # seconds for an answer


def path() -> Path:
    """Where it lies; it is fetched from its home where it does not."""
    place = files.cache() / NAME
    if not place.exists():
        try:
            with urllib.request.urlopen(HOME, timeout=WAIT) as answer:
                found = unpacked(answer.read())
        except DAMAGED as problem:
            raise ValueError(
                f"{NAME} cannot be fetched from {HOME} ({problem}); give the file itself as --data PATH"
            ) from None
        if not known(found):
            raise ValueError(f"what came from {HOME} is not {NAME}; give the file itself as --data PATH")
        files.write(place, found)
    return place


def called(data: str) -> str:
    """Its name, for a file that is this, packed or not, and is kept from then on; else what was given."""
    file, place = Path(data).expanduser(), files.cache() / NAME
    if not file.is_file() or not file.name.startswith(NAME):
        return data
    try:
        found = unpacked(file.read_bytes())
    except DAMAGED:  # who reads it says what is wrong
        return data
    if not known(found):
        return data
    if not place.exists():
        files.write(place, found)
    return NAME


def known(data: bytes) -> bool:
    return hashlib.sha256(data).hexdigest() == SHA256


def unpacked(data: bytes) -> bytes:
    """Of a .zip its first file."""
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    if data[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as held:
            return held.read(held.namelist()[0])
    return data
