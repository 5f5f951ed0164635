"""What was measured of a claim, and whether it holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from adapos.bench.report import statistics
from adapos.bench.report.results import SIGNIFICANT, Comparison, Results, Score, finest
from adapos.evidence.study import Unfinished

HOLDS, FAILS, UNTESTABLE = "holds", "does not hold here", "not testable at this scale"
UNITS = {"bits_per_byte": "bits per byte", "accuracy": "share of answers that is right", "exact": "share that is right"}


@dataclass(frozen=True)
class Contrast:
    """One thing against another by the same seeds; `gain` is above 0 where the first is better.

    Infinite where one of the two has no number at all, and no number where some of its seeds have one: there is
    nothing to test then, and `chance` is none.
    """

    better: str
    worse: str
    gain: float  # in bits per byte, or in the share of right answers
    chance: float  # p of a paired test over seeds
    seeds: int
    corrected: float = math.nan  # by Holm, for who reads one contrast of many

    @property
    def held(self) -> bool:
        return self.gain > 0 and (math.isinf(self.gain) or self.chance < SIGNIFICANT)

    @property
    def outcome(self) -> str:
        """Whether it held, or how it did not."""
        if self.held:
            return "yes"
        if math.isnan(self.gain):
            return "diverges in some seeds only"
        return "the other way round" if self.gain < 0 else "could be chance"


@dataclass(frozen=True)
class Finding:
    """`ours` is what was measured, in a sentence."""

    verdict: str
    ours: str
    seeds: int | None = None
    chance: float | None = None  # the greatest p of what the verdict rests on
    contrasts: tuple[Contrast, ...] = field(default=(), repr=False)
    why: str = ""  # it does not hold


def comparison(results: Results, metric: str) -> Comparison:
    found = [each for each in results.comparisons if each.measure.metric == metric]
    if not found:
        raise Unfinished(f"no {metric} was measured; run the claim to its end")
    return found[0]


def score(results: Results, metric: str, encoding: str, at: Sequence[int], weights: Sequence[float] = ()) -> Score:
    """The mean over lengths, for each seed."""
    table = comparison(results, metric)
    found = []
    for length in at:
        here = table.scores.get((encoding, length), Score({}))
        for row in results.failed:
            if row.encoding == encoding and (row.protocol == "training" or row.length == length):
                raise Unfinished(f"{encoding}, seed {row.seed}, failed: {row.note}")
        if not here.by_seed:
            raise Unfinished(f"{encoding!r} was not examined at {length}; run the claim to its end")
        found.append(here)
    shares = [weight / sum(weights) for weight in weights] if weights else [1 / len(at)] * len(at)
    seeds = set.intersection(*(set(each.by_seed) for each in found))
    by_seed = {
        seed: sum(share * each.by_seed[seed] for share, each in zip(shares, found, strict=True))
        for seed in sorted(seeds)
    }
    return Score(by_seed, sum(each.n for each in found))


def compared(
    results: Results, metric: str, pair: tuple[str, str], at: Sequence[int], weights: Sequence[float] = ()
) -> Contrast:
    first, second = (score(results, metric, encoding, at, weights) for encoding in pair)
    lower = comparison(results, metric).measure.lower
    return contrast(*pair, first, second, lower=lower)


def contrast(better: str, worse: str, first: Score, second: Score, *, lower: bool) -> Contrast:
    """By seeds that both were run with."""
    seeds = sorted(set(first.by_seed) & set(second.by_seed))
    if len(seeds) < statistics.NEEDED:
        raise Unfinished(f"{better} and {worse} share {len(seeds)} seeds, and {statistics.NEEDED} are needed")
    lost = [[seed for seed in seeds if not math.isfinite(each.by_seed[seed])] for each in (first, second)]
    if any(lost):
        gain = -math.inf if lost[0] else math.inf if lost[1] == seeds else math.nan
        return Contrast(better, worse, gain, math.nan, len(seeds))
    sign = -1.0 if lower else 1.0
    apart = [sign * (first.by_seed[seed] - second.by_seed[seed]) for seed in seeds]
    chance = statistics.paired(apart, finest(first, second))
    return Contrast(better, worse, sum(apart) / len(apart), chance, len(seeds))


def stated(
    results: Results,
    metric: str,
    encodings: Sequence[str],
    at: Sequence[int],
    weights: Sequence[float] = (),
    what: str = "",
) -> str:
    """The mean of each encoding, in a sentence."""
    means = []
    for encoding in encodings:
        found = score(results, metric, encoding, at, weights)
        means.append(f"{encoding} {'diverged' if found.diverged else f'{found.mean:.3f}'}")
    where = f"{at[0]:,}" if len(at) == 1 else f"{at[0]:,} to {at[-1]:,}"
    weighed = ", each length by its pairs" if weights else ""
    return f"{what or f'{UNITS[metric]} at {where}{weighed}'}: {', '.join(means)}"


def mean_of(scores: Sequence[Score]) -> Score:
    """Of several tasks, for each seed that all have."""
    seeds = set.intersection(*(set(each.by_seed) for each in scores))
    by_seed = {seed: sum(each.by_seed[seed] for each in scores) / len(scores) for seed in sorted(seeds)}
    return Score(by_seed, sum(each.n for each in scores))


def corrected(contrasts: Sequence[Contrast]) -> tuple[Contrast, ...]:
    tested = [each.chance for each in contrasts if not math.isnan(each.chance)]
    chances = iter(statistics.holm(tested))
    return tuple(each if math.isnan(each.chance) else replace(each, corrected=next(chances)) for each in contrasts)


def judged(contrasts: Sequence[Contrast], ours: str) -> Finding:
    """Holds where all contrasts do. As all must, each is tested at the level of the whole."""
    found = corrected(contrasts)
    failing = [each for each in found if not each.held]
    tested = [each.chance for each in failing or found if not math.isnan(each.chance)]
    why = "; ".join(f"{each.better} against {each.worse}: {each.outcome}" for each in failing)
    return Finding(
        FAILS if failing else HOLDS,
        ours,
        min(each.seeds for each in found),
        max(tested) if tested else None,
        found,
        why,
    )
