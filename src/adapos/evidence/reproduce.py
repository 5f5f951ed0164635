"""Claims carried out: what they need is run, and then they are judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from adapos.evidence.claim import Claim, Found
from adapos.evidence.finding import Finding
from adapos.evidence.study import Study, Unfinished


def needed(claims: Sequence[Claim]) -> dict[Study, tuple[str, ...]]:
    """What must be run for these claims, in this order: encodings of each study."""
    found: dict[str, tuple[Study, dict[str, None]]] = {}
    for claim in claims:
        for study, encodings in claim.needs:
            for each in (study.rests_on, study):
                if each is not None:
                    found.setdefault(each.name, (each, {}))[1].update(dict.fromkeys(encodings))
    return {study: tuple(encodings) for study, encodings in found.values()}


def read(claims: Sequence[Claim], folder: Path) -> dict[str, Any]:
    """What a folder holds of what these claims need, by the names of studies, each read once."""
    held: dict[str, Any] = {}
    for study in needed(claims):
        try:
            held[study.name] = study.read(folder)
        except Unfinished as problem:
            held[study.name] = problem
    return held


def findings(claims: Sequence[Claim], held: Found) -> Iterator[tuple[Claim, Finding | Unfinished]]:
    """Each claim judged by what was read."""
    for claim in claims:
        missing = [held[study.name] for study, _ in claim.needs if isinstance(held[study.name], Unfinished)]
        try:
            yield claim, missing[0] if missing else claim.judge(held)
        except Unfinished as problem:
            yield claim, problem
