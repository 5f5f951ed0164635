"""Claims carried out: what each needs is trained and examined by the bench, and then judged.

FOLDER/small/text/    a run of the bench for each study, which claims share
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adapos.bench import compare, plan
from adapos.bench.plan import Plan
from adapos.bench.report import results
from adapos.bench.report.results import Results
from adapos.bench.train import Setup
from adapos.evidence.claim import Claim
from adapos.evidence.finding import Finding

Say = Callable[[str], object]


def plans(claims: Sequence[Claim], scale: str, of_text: Mapping[str, Any]) -> dict[str, Plan]:
    """What must be run for these claims, by study."""
    needed: dict[str, dict[str, None]] = {}
    studies = {}
    for claim in claims:
        for study, encodings in claim.runs:
            studies[study.name] = study
            needed.setdefault(study.name, {}).update(dict.fromkeys(encodings))
    return {name: studies[name].plan(scale, tuple(needed[name]), of_text) for name in studies}


def run(folder: Path, asked: Plan, setup: Setup, workers: int, say: Say) -> None:
    """Train and examine what is asked for, beside what the folder holds for other claims."""
    there = plan.settle(asked.checked(), folder)
    wanted = {trial.name for trial in asked.trials}
    trials = [trial for trial in there.trials if trial.name in wanted]
    compare.in_processes(folder, trials, setup, workers, say)


def read(claim: Claim, folder: Path) -> Finding:
    """Judge a claim by what was run."""
    found: dict[str, Results] = {study.name: results.load(folder / study.name) for study, _ in claim.runs}
    return claim.judge(found)
