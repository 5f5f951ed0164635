"""Files that are whole or not there: written beside their place, then moved into it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def cache() -> Path:
    """ADAPOS_CACHE, or where the platform keeps what can be made again."""
    if given := os.environ.get("ADAPOS_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "adapos"


def folder(path: Path) -> None:
    """Make it, with those above it, where it is not there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise ValueError(
            f"{path} must be a folder, and cannot be made one: {problem.strerror}; choose another"
        ) from None


def write(path: Path, content: str | bytes) -> None:
    """An old file stays until the new one is whole. Text is UTF-8; folders above the file are made."""
    folder(path.parent)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as problem:
        raise ValueError(f"{path} cannot be written: {problem.strerror}") from None
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def read(path: Path, *names: str) -> dict[str, Any]:
    """The JSON of a file, which must hold these names."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise ValueError(f"{path} is damaged: {problem}") from None
    missing = [name for name in names if not isinstance(held, dict) or name not in held]
    if missing:
        raise ValueError(f"{path} is damaged: it lacks {', '.join(missing)}")
    found: dict[str, Any] = held
    return found


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def folder_beside(path: Path) -> Iterator[Path]:
    """A folder to fill, which is moved to its place when it is whole. One that holds something is left as it is."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} must be a new folder or an empty one, and holds something; choose another")
    folder(path.parent)
    beside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield beside
        if path.exists():
            path.rmdir()
        beside.chmod(0o755)
        beside.replace(path)
    except OSError as problem:
        raise ValueError(f"{path} cannot be written: {problem.strerror or problem}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


class Taken(ValueError):
    """Another process holds what is asked for."""


@contextmanager
def locked(path: Path, taken: str | None = None) -> Iterator[None]:
    """Held by one process at a time, and let go of by the system when that ends. Others wait, or are told `taken`."""
    folder(path.parent)
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if taken else 0))
        except BlockingIOError:
            raise Taken(taken) from None
        yield
