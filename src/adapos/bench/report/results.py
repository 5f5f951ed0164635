"""What a run found: its rows, gathered into scores by encoding and length, verdicts and costs."""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from adapos.bench import rows
from adapos.bench.report import statistics
from adapos.bench.rows import SIDE_BY_SIDE, Row, way
from adapos.bench.saved import saved_plan

LOWER = ("perplexity", "bits_per_byte")  # is better; all other measures are shares, from 0 to 1
BESIDE = ("position", "adaptation", "training", "evaluation", SIDE_BY_SIDE)  # protocols that measure no quality
COSTS = ("tokens_per_second", "peak_bytes", "seconds")
NEAR = 0.01  # as good as the best, for the choice of the cheapest
LITTLE = 0.03  # as fast as another, whatever the rounds say
SIGNIFICANT = 0.05  # the greatest p of a difference that counts, unless the plan says another
NEEDED = ("baseline", "size", "batch", "command")  # of a plan: no row says them


@dataclass(frozen=True)
class Measure:
    """What quality is, and how it was read."""

    task: str
    metric: str
    protocol: str

    @property
    def lower(self) -> bool:
        return self.metric in LOWER

    @property
    def logarithmic(self) -> bool:
        return self.metric == "perplexity"

    @property
    def name(self) -> str:
        """For files."""
        said = f"{self.task} {self.metric} {self.protocol}"
        name = re.sub(r"[^a-z0-9_.-]+", "-", said.lower()).strip("-")
        # the names of files have an end
        return name if len(name) <= 120 else f"{name[:100]}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Score:
    """One number for each seed."""

    by_seed: Mapping[int, float]
    n: int = 0  # numbers that each is a mean of, where it is a share of so many

    @cached_property
    def values(self) -> list[float]:
        return list(self.by_seed.values())

    @property
    def diverged(self) -> int:
        """How many seeds have no finite number."""
        return sum(not math.isfinite(value) for value in self.values)

    @cached_property
    def mean(self) -> float:
        return math.nan if self.diverged else float(np.mean(self.values))

    @cached_property
    def spread(self) -> float | None:
        """The standard deviation over seeds."""
        return None if self.diverged or len(self.values) < 2 else float(np.std(self.values, ddof=1))

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


@dataclass(frozen=True)
class Verdict:
    """Of a paired test over seeds against the baseline."""

    word: str
    pairs: int = 0
    difference: float | None = None  # of logarithms where the measure is logarithmic
    chance: float | None = None  # p of this test alone
    corrected: float | None = None  # p by Holm, over all tests of the table


@dataclass(frozen=True)
class Cost:
    encoding: str
    parameters: int
    positional: int
    backend: str
    training: Mapping[str, Score]  # by the name of the cost


@dataclass(frozen=True)
class Comparison:
    """Every encoding at every length by one measure."""

    measure: Measure
    version: int
    train_length: int
    encodings: list[str]
    lengths: list[int]
    scores: Mapping[tuple[str, int], Score]
    verdicts: Mapping[tuple[str, int], Verdict]
    rows: list[Row] = field(repr=False)

    def ranked(self, length: int) -> list[tuple[str, float]]:
        """Encodings with their means, the best first; none that diverged, or that has fewer seeds than others."""
        there = {encoding: self.scores.get((encoding, length)) for encoding in self.encodings}
        most = max((len(score.values) for score in there.values() if score), default=0)
        found = [
            (encoding, score.mean)
            for encoding, score in there.items()
            if score and not score.diverged and len(score.values) == most
        ]
        return sorted(found, key=lambda pair: pair[1], reverse=not self.measure.lower)

    def best(self, length: int) -> list[str]:
        """More than one where they are equal."""
        ranked = self.ranked(length)
        return [encoding for encoding, mean in ranked if mean == ranked[0][1]]

    def near(self, length: int) -> list[str]:
        """Those as good as the best but for a hundredth."""
        ranked = self.ranked(length)
        if not ranked:
            return []
        least = ranked[0][1] * (1 + NEAR if self.measure.lower else 1 - NEAR)
        return [encoding for encoding, mean in ranked if (mean <= least if self.measure.lower else mean >= least)]


@dataclass(frozen=True)
class Results:
    plan: Mapping[str, Any]
    rows: list[Row] = field(repr=False)

    @cached_property
    def encodings(self) -> list[str]:
        return list(dict.fromkeys([*self.plan.get("encodings", ()), *(row.encoding for row in self.rows)]))

    @cached_property
    def seeds(self) -> list[int]:
        return sorted({*self.plan.get("seeds", ()), *(row.seed for row in self.rows)})

    @property
    def baseline(self) -> str | None:
        return self.plan["baseline"]

    @property
    def significance(self) -> float:
        given = self.plan.get("significance")
        return SIGNIFICANT if given is None else given

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.metric == "failed" and row.value]

    def of(self, metric: str, protocol: str) -> list[Row]:
        return [row for row in self.rows if row.metric == metric and row.protocol == protocol]

    def main(self, protocol: str = "") -> list[Comparison]:
        """By the first measure of each task by a protocol, or by the plan's, or else by its first."""
        found: dict[str, Comparison] = {}
        wanted = protocol or self.plan.get("protocol", "")
        for each in sorted(self.comparisons, key=lambda each: way(each.measure) != wanted):
            found.setdefault(each.measure.task, each)
        return [each for each in self.comparisons if each in found.values()]

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """The plan's own task first."""
        groups: dict[Measure, list[Row]] = defaultdict(list)
        for row in self.rows:
            if row.protocol not in BESIDE:
                groups[Measure(row.task, row.metric, row.protocol)].append(row)
        task = self.plan.get("task")
        order = sorted(groups, key=lambda measure: measure.task != task)
        return [self._compare(measure, groups[measure]) for measure in order]

    def _compare(self, measure: Measure, found: list[Row]) -> Comparison:
        cells: dict[tuple[str, int], dict[int, list[tuple[float, int]]]] = defaultdict(lambda: defaultdict(list))
        for row in found:
            cells[row.encoding, row.length][row.seed].append((row.value, row.n))
        scores = {}
        for place, by_seed in cells.items():
            n = 0 if measure.lower else min(sum(n for _, n in values) for values in by_seed.values())
            scores[place] = Score({seed: weighed(values) for seed, values in by_seed.items()}, n)
        lengths = sorted({length for _, length in scores})
        return Comparison(
            measure,
            found[0].version,
            found[0].train_length,
            self.encodings,
            lengths,
            scores,
            verdicts(measure, scores, self.baseline, self.significance),
            found,
        )

    @cached_property
    def costs(self) -> dict[str, Cost]:
        training: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        last: dict[str, Row] = {}
        backends: dict[str, set[str]] = defaultdict(set)
        for row in self.rows:
            if row.metric in COSTS and row.protocol == "training":
                training[row.encoding][row.metric][row.seed] = row.value
            if row.parameters:
                last[row.encoding] = row
            if row.backend:
                backends[row.encoding].add(row.backend)
        return {
            encoding: Cost(
                encoding,
                last[encoding].parameters,
                last[encoding].positional,
                ", ".join(sorted(backends[encoding])),
                {name: Score(by_seed) for name, by_seed in training[encoding].items()},
            )
            for encoding in self.encodings
            if encoding in last
        }

    @cached_property
    def rounds(self) -> dict[str, dict[float, float]]:
        """Tokens a second of each encoding in each round, where they were timed side by side."""
        found: dict[str, dict[float, float]] = defaultdict(dict)
        for row in self.of("tokens_per_second", SIDE_BY_SIDE):
            found[row.encoding][row.marks["round"]] = row.value
        return found

    def faster(self, encoding: str, other: str) -> list[float]:
        """How many times as fast, in each round that both were in."""
        ours, theirs = self.rounds.get(encoding, {}), self.rounds.get(other, {})
        return [speed / theirs[number] for number, speed in ours.items() if number in theirs]

    def cheapest(self, encodings: list[str]) -> list[str]:
        """All that no other beats in every round; none where one of them was not timed."""
        if not encodings or not all(encoding in self.rounds for encoding in encodings):
            return []
        return [one for one in encodings if not any(self.beats(other, one) for other in encodings)]

    def beats(self, encoding: str, other: str) -> bool:
        """Whether it trains faster in every round, and by more than a little."""
        ratios = self.faster(encoding, other)
        return bool(ratios) and min(ratios) > 1 and median(ratios) >= 1 + LITTLE

    def spent(self, name: str) -> dict[str, float]:
        """One of the costs by encoding; none that was not measured."""
        means = {each.encoding: each.training[name].mean for each in self.costs.values() if name in each.training}
        if name == "tokens_per_second":
            means |= {encoding: median(speeds.values()) for encoding, speeds in self.rounds.items()}
        return {encoding: mean for encoding, mean in means.items() if mean > 0}

    def speed(self, encoding: str) -> float | None:
        """Tokens a second in training: side by side, where that was measured."""
        return self.spent("tokens_per_second").get(encoding)


def finest(one: Score, other: Score) -> float:
    """The spread that rounding gives their differences: two shares of n are each rounded to a nth."""
    n = min(one.n, other.n)
    return math.sqrt(1 / 6) / n if n else 0.0


def weighed(values: list[tuple[float, int]]) -> float:
    """The mean of all numbers that these are means of."""
    return sum(value * n for value, n in values) / sum(n for _, n in values)


def verdicts(
    measure: Measure, scores: Mapping[tuple[str, int], Score], baseline: str | None, significance: float
) -> dict[tuple[str, int], Verdict]:
    """Of every place in the table but the baseline's own."""
    found: dict[tuple[str, int], Verdict] = {}
    tests: dict[tuple[str, int], tuple[list[float], float]] = {}
    for (encoding, length), score in scores.items():
        if baseline is None or encoding == baseline:
            continue
        against = scores.get((baseline, length), Score({}))
        shared = sorted(set(score.by_seed) & set(against.by_seed))
        if score.diverged or against.diverged:
            found[encoding, length] = Verdict("diverged" if score.diverged else "baseline diverged", len(shared))
        elif len(shared) < statistics.NEEDED:
            found[encoding, length] = Verdict("too few seeds", len(shared))
        else:
            pairs = [(score.by_seed[seed], against.by_seed[seed]) for seed in shared]
            apart = [math.log(x / y) if measure.logarithmic else x - y for x, y in pairs]
            tests[encoding, length] = (apart, statistics.paired(apart, finest(score, against)))
    corrected = statistics.holm([chance for _, chance in tests.values()])
    for (place, (apart, chance)), held in zip(tests.items(), corrected, strict=True):
        difference = sum(apart) / len(apart)
        word = "better" if (difference < 0) == measure.lower else "worse"
        found[place] = Verdict(word if held < significance else "not significant", len(apart), difference, chance, held)
    return found


def load(folder: Path) -> Results:
    path = folder / "plan.json"
    plan = saved_plan(path)
    missing = [name for name in NEEDED if not isinstance(plan, dict) or name not in plan]
    if missing:
        raise ValueError(f"{path} must say what no row says, and lacks {', '.join(missing)}; make it again")
    found = rows.read(folder / "rows.jsonl")
    if not found:
        raise ValueError(f"{folder} holds no results in rows.jsonl; `adapos compare --out {folder}` makes them")
    return Results(plan, current(found))


def current(found: list[Row]) -> list[Row]:
    """Of each protocol of text one way that it was read, for other stretches are other tokens: that of the most trials,
    and of those the last."""
    trials: dict[tuple[str, str], dict[tuple[str, int], set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in found:
        variants = trials[row.task, way(row)]
        kept = variants.pop(variant(row), set())
        variants[variant(row)] = {*kept, row.trial}
    shown = {}
    for place, variants in trials.items():
        most = max(map(len, variants.values()))
        shown[place] = next(mark for mark in reversed(variants) if len(variants[mark]) == most)
    return [row for row in found if shown[row.task, way(row)] == variant(row)]


def variant(row: Row) -> tuple[str, int]:
    """What tells ways of reading apart."""
    return row.protocol, row.length if row.protocol == "position" else 0
