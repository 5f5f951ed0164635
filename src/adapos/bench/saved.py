"""The plan of a run as it was saved, for those who check it and for the report, which needs no torch to read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def saved_plan(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.parent} holds no plan.json; `adapos compare --out {path.parent}` makes one") from None
    except (OSError, ValueError) as problem:
        raise ValueError(f"{path} cannot be read as a plan: {problem}") from None
