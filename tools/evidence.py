"""Write `evidence/`, `docs/evidence.md` and the table of `docs/choose.md` from what `adapos reproduce` has run.

python tools/evidence.py [runs/reproduce]    takes rows and plans over, not weights, and makes figures and the page
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from adapos import files
from adapos.bench import rows
from adapos.bench.rows import Row
from adapos.evidence import guide, page, reproduce
from adapos.evidence.catalogue import claims

ROOT = Path(__file__).parent.parent
HELD, PAGE, GUIDE, SCALE = ROOT / "evidence", ROOT / "docs" / "evidence.md", ROOT / "docs" / "choose.md", "small"
LEFT_OUT = ("position", "evaluation")  # protocols that no claim reads
USUAL = {
    each.name: each.default if each.default is not MISSING else None for each in fields(Row) if each.name != "value"
}


def taken(source: Path, target: Path) -> None:
    """The rows and the plan of a study, or its profile."""
    for name in ("plan.json", "profile.json"):
        if (source / name).exists():
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)
    found = [row for row in rows.read(source / "rows.jsonl") if row.protocol not in LEFT_OUT]
    if found:
        files.write(target / "rows.jsonl", "".join(json.dumps(short(row)) + "\n" for row in found))


def short(row: Row) -> dict[str, Any]:
    """Without what is the same in most rows."""
    return {name: value for name, value in asdict(row).items() if value != USUAL.get(name) and value != {}}


def written(held: Path = HELD) -> dict[Path, str]:
    """The page, its figures and the guide, by their places."""
    known = list(claims(SCALE).values())
    found = reproduce.read(known, held / SCALE)
    text, pictures = page.written(known, found, SCALE, f"../evidence/{SCALE}")
    chosen = guide.filled(GUIDE.read_text(encoding="utf-8"), found)
    return {PAGE: text, GUIDE: chosen, **{held / SCALE / name: drawn for name, drawn in pictures.items()}}


def main() -> None:
    source = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/reproduce") / SCALE
    if not source.is_dir():
        print(f"error: {source} must be a folder that `adapos reproduce` has made, and is none; name another")
        sys.exit(2)
    for study in reproduce.needed(list(claims(SCALE).values())):
        taken(source / study.name, HELD / SCALE / study.name)
    for place, text in written().items():
        files.write(place, text)
        print(place.relative_to(ROOT))


if __name__ == "__main__":
    main()
