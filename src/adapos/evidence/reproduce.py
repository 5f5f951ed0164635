"""Claims carried out: what each needs is trained and examined by the bench, and then judged.

FOLDER/small/text/    a run of the bench for each study, which claims share
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adapos.bench import compare, plan
from adapos.bench.plan import Plan
from adapos.bench.report import results
from adapos.bench.report.results import Results
from adapos.bench.train import Setup
from adapos.evidence.claim import Claim
from adapos.evidence.finding import Finding, Unfinished


def plans(claims: Sequence[Claim], scale: str, of_text: Mapping[str, Any]) -> dict[str, Plan]:
    """What must be run for these claims, by study."""
    needed: dict[str, dict[str, None]] = {}
    studies = {}
    for claim in claims:
        for study, encodings in claim.runs:
            studies[study.name] = study
            needed.setdefault(study.name, {}).update(dict.fromkeys(encodings))
    return {name: studies[name].plan(scale, tuple(needed[name]), of_text) for name in studies}


def run(folder: Path, asked: Plan, setup: Setup, workers: int, say: compare.Say) -> None:
    """Train and examine what is asked for, beside what the folder holds for other claims."""
    plan.settle(asked.checked(), folder)
    compare.in_processes(folder, asked.trials, setup, workers, say)


def read(claims: Sequence[Claim], folder: Path) -> dict[str, Results]:
    """What was run for these claims, by study; nothing of those that were not begun."""
    names = {study.name for claim in claims for study, _ in claim.runs}
    return {name: results.load(folder / name) for name in names if (folder / name / "rows.jsonl").exists()}


def judge(claim: Claim, found: Mapping[str, Results]) -> Finding:
    missing = [study.name for study, _ in claim.runs if study.name not in found]
    if missing:
        raise Unfinished(f"{claim.name} needs the run {missing[0]}, which was not begun")
    return claim.judge(found)
