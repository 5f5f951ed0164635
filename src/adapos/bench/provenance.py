"""Which adapos made a row."""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path


@cache
def commit() -> str:
    """The version, and the commit where adapos is run from a clone; marked where files there have changed since."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        tracked = git("ls-files", "--error-unmatch", Path(__file__).name)
        changed = git("status", "--porcelain", "--untracked-files=no", str(here.parent))
        mark = git("rev-parse", "--short=10", "HEAD") + ("-changed" if changed else "") if tracked else ""
    except (OSError, subprocess.CalledProcessError):
        mark = ""
    return f"{version('adapos')}+{mark}" if mark else version("adapos")
