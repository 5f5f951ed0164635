"""A corpus by name: what is taken for it, and what is not."""

from __future__ import annotations

import gzip
import hashlib
import io
import urllib.request
import zipfile
from pathlib import Path

import pytest

from adapos import files
from adapos.bench import enwik8, sources

TEXT = b"<page>some words</page>\n" * 50


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another text in its place."""
    monkeypatch.setenv("ADAPOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(enwik8, "SHA256", hashlib.sha256(TEXT).hexdigest())


def zipped(data: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as held:
        held.writestr("enwik8", data)
    return packed.getvalue()


def answering(data: bytes, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: asked.append(url) or io.BytesIO(data))
    return asked


def test_it_is_fetched_once_and_read_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(zipped(TEXT), monkeypatch)
    for _ in range(2):
        assert list(sources.documents("enwik8")) == [("enwik8", TEXT)]
    assert asked == [enwik8.HOME]


def test_what_is_not_it_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(zipped(TEXT + b"."), monkeypatch)
    with pytest.raises(ValueError, match="is not enwik8; give the file itself as --data PATH"):
        enwik8.path()
    assert not (files.cache() / "enwik8").exists()


def test_without_a_network_the_file_itself_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(url: str, timeout: float) -> None:
        raise OSError("no route")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    with pytest.raises(
        ValueError, match=r"cannot be fetched from .* \(no route\); give the file itself as --data PATH"
    ):
        enwik8.path()


@pytest.mark.parametrize(("name", "pack"), [("enwik8", bytes), ("enwik8.gz", gzip.compress), ("enwik8.zip", zipped)])
def test_the_file_itself_is_known_packed_or_not(tmp_path: Path, name: str, pack: object) -> None:
    (tmp_path / name).write_bytes(pack(TEXT))  # type: ignore[operator]
    assert enwik8.called(str(tmp_path / name)) == "enwik8"
    assert enwik8.path().read_bytes() == TEXT
    (tmp_path / name).write_bytes(pack(TEXT[1:]))  # type: ignore[operator]
    assert enwik8.called(str(tmp_path / name)) == str(tmp_path / name)
    (tmp_path / name).write_bytes(pack(TEXT)[:20])  # type: ignore[operator]
    assert enwik8.called(str(tmp_path / name)) == str(tmp_path / name)
    assert enwik8.called("elsewhere") == "elsewhere"
