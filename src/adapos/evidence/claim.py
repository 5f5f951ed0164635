"""A claim: what a paper says, what is run for it, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adapos.evidence.finding import FAILS, UNTESTABLE, Finding, compared, judged, score, stated
from adapos.evidence.study import Study, Training

Found = Mapping[str, Any]  # what studies hold, by their names
Judge = Callable[[Found], Finding]
Pair = tuple[str, str]  # what must be better, and than what


@dataclass(frozen=True)
class Claim:
    name: str  # paper/what
    asks: str
    paper: str  # its figures, quoted
    source: str  # arXiv
    needs: tuple[tuple[Study, tuple[str, ...]], ...]  # encodings of each study
    judge: Judge


def of_pairs(
    name: str,
    asks: str,
    paper: str,
    source: str,
    study: Training,
    metric: str,
    pairs: Sequence[Pair],
    at: Sequence[int],
    *,
    weights: Sequence[float] = (),
    also: Sequence[str] = (),
    learned: float | None = None,
    reached: float | None = None,
) -> Claim:
    """Each pair must differ as it says, by the mean over the lengths `at`. `also` are run for comparison.

    `learned` is what the best must reach at the trained length, or nothing can be said of others; `reached` is what
    the better of each pair must reach at the lengths `at`, for a little more than nothing is not much.
    """
    encodings = tuple(dict.fromkeys((*named(pairs), *also)))

    def judge(found: Found) -> Finding:
        results = found[study.name]
        ours = stated(results, metric, named(pairs), at, weights)
        if learned is not None:
            seen = max(score(results, metric, each, (study.train_length,)).mean for each in encodings)
            if seen < learned:
                return Finding(UNTESTABLE, f"the best is {seen:.3f} at {study.train_length}; {ours}")
        finding = judged([compared(results, metric, pair, at, weights) for pair in pairs], ours)
        if reached is None:
            return finding
        means = {better: score(results, metric, better, at, weights).mean for better, _ in pairs}
        short = [f"{better} reaches {mean:.3f} of {reached}" for better, mean in means.items() if mean < reached]
        if not short:
            return finding
        return replace(finding, verdict=FAILS, why="; ".join([*short, finding.why]).removesuffix("; "))

    return Claim(name, asks, paper, source, ((study, encodings),), judge)


def named(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Every encoding of these pairs, once."""
    return tuple(dict.fromkeys(encoding for better, worse in pairs for encoding in (worse, better)))


def over(bases: Sequence[str], how: str = "dape") -> list[Pair]:
    return [(f"{base} + {how}", base) for base in bases]
