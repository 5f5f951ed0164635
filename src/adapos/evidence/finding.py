"""What was measured of a claim, and whether it holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from adapos.bench.report import statistics
from adapos.bench.report.results import SIGNIFICANT, Comparison, Results, Score, finest

GUESSING = 8.0  # bits per byte
HOLDS, FAILS = "holds", "does not hold here"


class Unfinished(ValueError):
    """Too little was run to judge by."""


@dataclass(frozen=True)
class Contrast:
    """One encoding against another by the same seeds; `gain` is above 0 where the first is better."""

    better: str
    worse: str
    length: int
    gain: float  # in bits per byte, or in the share of right answers
    chance: float  # p of a paired test over seeds
    corrected: float = math.nan  # by Holm, over all contrasts of the claim
    seeds: int = 0

    @property
    def held(self) -> bool:
        return self.gain > 0 and self.corrected < SIGNIFICANT


@dataclass(frozen=True)
class Finding:
    """`ours` is what was measured, in a sentence."""

    verdict: str
    ours: str
    seeds: int
    chance: float  # the greatest p of what the verdict rests on
    contrasts: tuple[Contrast, ...] = field(repr=False)


def comparison(results: Results, metric: str) -> Comparison:
    found = [each for each in results.comparisons if each.measure.metric == metric]
    if not found:
        raise Unfinished(f"no {metric} was measured; run the claim to its end")
    return found[0]


def contrast(table: Comparison, better: str, worse: str, length: int) -> Contrast:
    """By seeds that both were run with. Numbers that are not finite count as the worst there is."""
    first, second = (score_at(table, encoding, length) for encoding in (better, worse))
    seeds = sorted(set(first.by_seed) & set(second.by_seed))
    if len(seeds) < statistics.NEEDED:
        raise Unfinished(
            f"{better} and {worse} share {len(seeds)} seeds at {length}, and {statistics.NEEDED} are needed"
        )
    sign = -1.0 if table.measure.lower else 1.0
    apart = [sign * (finite(first.by_seed[seed]) - finite(second.by_seed[seed])) for seed in seeds]
    chance = statistics.paired(apart, finest(first, second))
    return Contrast(better, worse, length, sum(apart) / len(apart), chance, seeds=len(seeds))


def finite(value: float) -> float:
    """A model whose numbers overflow knows as little as one that guesses among all bytes."""
    return value if math.isfinite(value) else GUESSING


def score_at(table: Comparison, encoding: str, length: int) -> Score:
    found = table.scores.get((encoding, length))
    if found is None:
        raise Unfinished(f"{encoding!r} was not examined at {length}; run the claim to its end")
    return found


def corrected(contrasts: Sequence[Contrast]) -> tuple[Contrast, ...]:
    chances = statistics.holm([each.chance for each in contrasts])
    return tuple(replace(each, corrected=chance) for each, chance in zip(contrasts, chances, strict=True))


def judged(contrasts: Sequence[Contrast], ours: str) -> Finding:
    """Holds where all contrasts do."""
    found = corrected(contrasts)
    failing = [each for each in found if not each.held]
    return Finding(
        FAILS if failing else HOLDS,
        ours,
        min(each.seeds for each in found),
        max(each.corrected for each in failing or found),
        found,
    )
