"""What was measured of a claim, and whether it holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from adapos.bench.report import statistics
from adapos.bench.report.results import SIGNIFICANT, Comparison, Results, Score

GUESSING = 8.0  # bits per byte
HOLDS, FAILS, OPEN = "holds", "does not hold here", "not testable at this scale"


@dataclass(frozen=True)
class Contrast:
    """One encoding against another by the same seeds; `gain` is above 0 where the first is better."""

    better: str
    worse: str
    length: int
    values: tuple[float, float]  # means over seeds
    gain: float  # in bits per byte, or in the share of right answers
    chance: float  # p of a paired test over seeds
    corrected: float = math.nan  # by Holm, over all contrasts of the claim
    seeds: int = 0

    @property
    def held(self) -> bool:
        return self.gain > 0 and self.corrected < SIGNIFICANT

    @property
    def reversed(self) -> bool:
        return self.gain < 0 and self.corrected < SIGNIFICANT


@dataclass(frozen=True)
class Finding:
    """`ours` is what was measured, in a sentence."""

    verdict: str
    ours: str
    seeds: int
    chance: float | None = None  # the greatest p of what the verdict rests on
    contrasts: tuple[Contrast, ...] = field(default=(), repr=False)


def comparison(results: Results, metric: str) -> Comparison:
    found = [each for each in results.comparisons if each.measure.metric == metric]
    if not found:
        raise ValueError(f"no {metric} was measured; run the claim to its end")
    return found[0]


def contrast(table: Comparison, better: str, worse: str, length: int) -> Contrast:
    """By seeds that both were run with. Numbers that are not finite count as the worst there is."""
    first, second = (score_at(table, encoding, length) for encoding in (better, worse))
    seeds = sorted(set(first.by_seed) & set(second.by_seed))
    if len(seeds) < statistics.NEEDED:
        raise ValueError(
            f"{better} and {worse} share {len(seeds)} seeds at {length}, and {statistics.NEEDED} are needed"
        )
    sign = -1.0 if table.measure.lower else 1.0
    apart = [sign * (finite(first.by_seed[seed]) - finite(second.by_seed[seed])) for seed in seeds]
    finest = min(first.n, second.n)
    chance = statistics.paired(apart, math.sqrt(1 / 6) / finest if finest else 0.0)
    gain = sum(apart) / len(apart)
    return Contrast(better, worse, length, (first.mean, second.mean), gain, chance, seeds=len(seeds))


def finite(value: float) -> float:
    """A model whose numbers overflow knows as little as one that guesses among all bytes."""
    return value if math.isfinite(value) else GUESSING


def mean_over(table: Comparison, lengths: Sequence[int]) -> Comparison:
    """The table with one length, 0, at which each score is the mean over these."""
    scores: dict[tuple[str, int], Score] = {}
    for encoding in table.encodings:
        there = [table.scores[encoding, length] for length in lengths if (encoding, length) in table.scores]
        if len(there) < len(lengths):
            continue
        seeds = set.intersection(*(set(score.by_seed) for score in there))
        means = {seed: sum(score.by_seed[seed] for score in there) / len(there) for seed in sorted(seeds)}
        scores[encoding, 0] = Score(means, sum(score.n for score in there))
    return replace(table, scores=scores, lengths=[0], verdicts={})


def score_at(table: Comparison, encoding: str, length: int) -> Score:
    found = table.scores.get((encoding, length))
    if found is None:
        raise ValueError(f"{encoding!r} was not examined at {length}; run the claim to its end")
    return found


def corrected(contrasts: Sequence[Contrast]) -> tuple[Contrast, ...]:
    chances = statistics.holm([each.chance for each in contrasts])
    return tuple(replace(each, corrected=chance) for each, chance in zip(contrasts, chances, strict=True))


def judged(contrasts: Sequence[Contrast], ours: str, *, needed: int | None = None) -> Finding:
    """Holds where all contrasts do, or as many as are needed."""
    found = corrected(contrasts)
    held = [each for each in found if each.held]
    needed = len(found) if needed is None else needed
    resting = held if len(held) >= needed else [each for each in found if not each.held]
    return Finding(
        HOLDS if len(held) >= needed else FAILS,
        ours,
        min(each.seeds for each in found),
        max((each.corrected for each in resting), default=None),
        found,
    )


def listed(found: Mapping[str, float], digits: int = 3) -> str:
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in found.items())
