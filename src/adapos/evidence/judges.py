"""How claims are judged that are more than pairs of encodings on one task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from adapos.bench.report.results import Score
from adapos.bench.rows import Row
from adapos.evidence.claim import Found, Pair, named
from adapos.evidence.cost import Timing
from adapos.evidence.finding import (
    FAILS,
    HOLDS,
    UNITS,
    UNTESTABLE,
    Finding,
    contrast,
    judged,
    mean_of,
    score,
    stated,
)
from adapos.evidence.probe import Probe
from adapos.evidence.study import Training, Unfinished

LEARNED = 0.2  # of the room above guessing, at the trained length: what is not learned cannot be carried further


def formal_languages(
    studies: Mapping[str, tuple[Training, float]], others: Sequence[str], pairs: Sequence[Pair], found: Found
) -> Finding:
    """By the mean over unseen lengths of all tasks that any encoding has learned; each with what guessing gives."""
    encodings, said = (*others, *named(pairs)), []
    carried: list[dict[str, Score]] = []
    for task, (study, guessed) in studies.items():
        results = found[study.name]
        seen = max(score(results, "accuracy", each, (study.train_length,)).mean for each in encodings)
        if seen < guessed + LEARNED * (1 - guessed):
            said.append(f"{task} is not learned")
            continue
        said.append(stated(results, "accuracy", encodings, study.unseen, what=task))
        carried.append({each: score(results, "accuracy", each, study.unseen) for each in encodings})
    ours = f"{UNITS['accuracy']} at unseen lengths: {'; '.join(said)}"
    if not carried:
        return Finding(UNTESTABLE, ours)
    means = {each: mean_of([task[each] for task in carried]) for each in encodings}
    return judged([contrast(*pair, *(means[each] for each in pair), lower=False) for pair in pairs], ours)


def costs(timings: Sequence[Timing], more: Mapping[str, float], found: Found) -> Finding:
    """Holds where no median is above the ratio of operations."""
    said, above = [], []
    for timing in timings:
        rows = {(row.what, row.encoding, row.length): row for row in found[timing.name].rows}
        for what in timing.what:
            for encoding in more:
                for length in timing.lengths:
                    row = rows.get((what, encoding, length))
                    if row is None or row.ratio is None:
                        why = f": {row.note}" if row is not None and row.note else ""
                        raise Unfinished(f"{encoding!r} was not timed at {length}, {timing.name}, {what}{why}")
                    if row.ratio > more[encoding]:
                        above.append(f"{encoding} {row.ratio:.2f} at {length:,}, {timing.name} {what}")
            last = [row for row in rows.values() if row.what == what and row.length == timing.lengths[-1]]
            named = (f"{row.encoding} {row.ratio:.2f}{' (noisy)' if row.noisy else ''}" for row in last if row.ratio)
            said.append(f"{timing.name} {what} {', '.join(named)}")
    ours = f"time beside plain attention: {'; '.join(said)}"
    return Finding(FAILS if above else HOLDS, ours, why="; ".join(above))


def near_and_far(probe: Probe, text: Training, base: str, adapted: str, found: Found) -> Finding:
    """Heads are chosen by half of the texts and measured on the others, or the extremes would be chance."""
    rows: list[Row] = found[probe.name]
    slopes: dict[int, dict[tuple[float, float], dict[float, float]]] = {}
    for row in rows:
        if row.metric == "slope" and row.encoding == adapted:
            head = row.marks["layer"], row.marks["head"]
            slopes.setdefault(row.seed, {}).setdefault(head, {})[row.marks["half"]] = row.value
    reach = {
        name: [row.value for row in rows if row.metric == "mean_distance" and row.encoding == name]
        for name in (base, adapted)
    }
    if not slopes or not all(reach.values()):
        raise Unfinished("heads of both encodings must be measured; run the claim to its end")
    finite(rows)
    ordered = {seed: sorted(heads.values(), key=lambda halves: halves[0.0]) for seed, heads in slopes.items()}
    near, far = (Score({seed: heads[at][1.0] for seed, heads in ordered.items()}) for at in (0, -1))
    every = [value for heads in ordered.values() for halves in heads for value in halves.values()]
    moved = [row.value for row in found[text.name].of("adaptive_variation", "adaptation") if row.encoding == adapted]
    if not moved:
        raise Unfinished(f"how much of {adapted!r} adapts was not measured; run the claim to its end")
    ours = (
        f"slope of f by log distance in texts of {probe.length}: least {near.mean:.2f}, greatest {far.mean:.2f}, above "
        f"0 in {sum(slope > 0 for slope in every) / len(every):.0%} of heads; mean attended distance by head: "
        f"{', '.join(f'{name} {min(values):.0f} to {max(values):.0f}' for name, values in reach.items())}; "
        f"{sum(moved) / len(moved):.0%} of what f adds differs between texts at the same place"
    )
    flat = Score(dict.fromkeys(slopes, 0.0))
    return judged(
        [
            contrast("a head pushed away", "none", far, flat, lower=False),
            contrast("a head pulled closer", "none", near, flat, lower=True),
        ],
        ours,
    )


def steady(probe: Probe, pairs: Sequence[Pair], others: Sequence[str], found: Found) -> Finding:
    """By how much of attention moves, the mean over layers, when ids start later and when tokens are put before."""
    rows: list[Row] = found[probe.name]
    finite(rows)
    ways = ("shifted", "prepended")

    def moved(what: str, encoding: str) -> Score:
        by_seed: dict[int, list[float]] = {}
        for row in rows:
            if row.metric == what and row.encoding == encoding:
                by_seed.setdefault(row.seed, []).append(row.value)
        if not by_seed:
            raise Unfinished(f"{encoding!r} was not measured; run the claim to its end")
        return Score({seed: sum(values) / len(values) for seed, values in by_seed.items()})

    said = [
        f"{what} {way}: "
        + ", ".join(f"{each} {moved(f'{what}_{way}', each).mean:.1e}" for each in (*named(pairs), *others))
        for way in ways
        for what in ("attention", "products")
    ]
    contrasts = [
        contrast(f"{pair[0]}, {way}", pair[1], *(moved(f"attention_{way}", each) for each in pair), lower=True)
        for way in ways
        for pair in pairs
    ]
    return judged(contrasts, f"share of attention that moves, and change of products of states; {'; '.join(said)}")


def finite(rows: Sequence[Row]) -> None:
    for row in rows:
        if not math.isfinite(row.value):
            raise Unfinished(f"{row.metric} of {row.encoding!r}, seed {row.seed}, is {row.value}, which says nothing")
