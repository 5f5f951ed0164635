"""How results are said: in the terminal, in tables and on the page."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from itertools import groupby
from statistics import median

from adapos.bench.report import statistics
from adapos.bench.report.results import NEAR, Comparison, Measure, Results, Score, Verdict
from adapos.bench.rows import way
from adapos.numbers import listed, number, share

LITTLE = 0.01  # an adaptive part below this share of the static one is as good as none
MINUS = "\N{MINUS SIGN}"
NOTHING = "\N{EN DASH}"
NEARLY = share(NEAR).replace(" ", "\N{NO-BREAK SPACE}")


def named(measure: Measure) -> str:
    """bits per byte"""
    return {"exact": "exact answers"}.get(measure.metric, measure.metric.replace("_", " "))


def title(measure: Measure) -> str:
    """text: perplexity, protocol 'last 256'"""
    return f"{measure.task}: {named(measure)}, {protocol(measure)}"


def protocol(measure: Measure) -> str:
    return "in exams" if measure.protocol == "exam" else f"protocol {measure.protocol!r}"


def direction(measure: Measure) -> str:
    return "lower is better" if measure.lower else "higher is better"


def digits(measure: Measure, value: float) -> int:
    """Behind the point: four that matter of a perplexity, three of all else."""
    if not measure.logarithmic:
        return 3
    return max(0, 3 - max(0, math.floor(math.log10(value)))) if value > 0 else 3


def value(measure: Measure, x: float, like: float | None = None) -> str:
    """With as many digits as another number has."""
    if x >= 1e6:
        return f"{x:.2e}"
    return f"{x:,.{digits(measure, x if like is None else like)}f}"


def mean(measure: Measure, score: Score | None) -> str:
    if score is None:
        return NOTHING
    if score.diverged:
        return "diverged" if score.diverged == len(score.values) else f"diverged ({of(score.diverged, score)})"
    return value(measure, score.mean)


def spread(measure: Measure, score: Score | None) -> str:
    """± 0.08, or nothing for one seed."""
    if score is None or score.spread is None:
        return ""
    return f"\N{PLUS-MINUS SIGN} {value(measure, score.spread, score.mean)}"


def of(count: int, score: Score) -> str:
    return f"{count} of {len(score.values)} seeds"


def chance(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def tested(measure: Measure, verdict: Verdict) -> str:
    """'-3.2 %, p = 0.02' of a perplexity, '+0.041, p = 0.02' of a share."""
    if verdict.difference is None or verdict.corrected is None:
        return ""
    x = verdict.difference
    said = f"{100 * math.expm1(x):+,.1f} %" if measure.logarithmic else f"{x:+.3f}"
    return f"{said.replace('-', MINUS)}, {chance(verdict.corrected)}"


def verdict(verdict: Verdict) -> str:
    if verdict.word == "too few seeds":
        return f"too few seeds: {verdict.pairs} of {statistics.NEEDED} needed"
    return verdict.word


def span(lengths: list[int]) -> str:
    if len(lengths) == 1:
        return f"Length {lengths[0]:,}"
    return f"Lengths {lengths[0]:,} to {lengths[-1]:,}"


def answers(comparison: Comparison, results: Results) -> list[str]:
    """Which encoding is best, and which the cheapest nearly as good: a sentence for each range of lengths."""
    found = []
    choices = {
        length: (comparison.best(length), results.cheapest(comparison.near(length))) for length in comparison.lengths
    }
    for choice, group in groupby(comparison.lengths, key=choices.__getitem__):
        found.append(f"{span(lengths := list(group))}: {answer(comparison, results, lengths, *choice)}")
    return found


def answer(comparison: Comparison, results: Results, lengths: list[int], best: list[str], cheapest: list[str]) -> str:
    measure = comparison.measure
    if not best:
        return "every encoding diverged."
    means = [comparison.scores[best[0], length].mean for length in lengths]
    if not measure.lower and max(means) == 0:
        return "no encoding gets any right."
    ends = list(dict.fromkeys(value(measure, x) for x in (min(means), max(means))))
    found = f"{named(measure)} {' to '.join(ends)}"
    if len(comparison.encodings) == 1:
        return f"{best[0]} has {found}."
    said = f"{listed(best, 4)} {'is best' if len(best) == 1 else 'are equally good'} ({found})"
    if not cheapest:
        return f"{said}."
    cheaper = [encoding for encoding in cheapest if all(results.beats(encoding, each) for each in best)]
    if cheaper:
        times = [median(results.faster(encoding, each)) for encoding in cheaper for each in best]
        are, train = ("is", "trains") if len(cheaper) == 1 else ("are", "train")
        ends = list(dict.fromkeys(number(x) for x in (min(times), max(times))))
        faster = f"{train} {' to '.join(ends)} times as fast"
        return f"{said}; the cheapest within {NEARLY} {are} {listed(cheaper, 4)}, which {faster}."
    if len(best) == 1:
        return f"{said}, and none within {NEARLY} of it is measurably cheaper."
    cheap = results.cheapest(best)
    if len(cheap) == len(best):
        return f"{said}, and none is measurably cheaper."
    return f"{said}, and {listed(cheap, 4)} {'is' if len(cheap) == 1 else 'are'} the cheapest of them."


def faster(encoding: str, results: Results) -> str:
    """'0.92 [0.88, 0.95]' of the baseline's speed."""
    ratios = results.faster(encoding, results.baseline or "")
    if encoding == results.baseline or not ratios:
        return NOTHING
    return f"{number(median(ratios))} [{number(min(ratios))}, {number(max(ratios))}]"


def caution(results: Results, protocol: str = "") -> str:
    """What to say where nothing could be tested, or nothing differs enough; or nothing."""
    if not results.comparisons:
        return ""
    if len(results.seeds) < statistics.NEEDED:
        times = "once" if len(results.seeds) == 1 else "twice"
        return f"Each encoding was run {times}: differences may be chance, and only more seeds can tell."
    if results.baseline is None:
        return "No baseline was named, so no difference is tested."
    verdicts = [each.word for comparison in results.main(protocol) for each in comparison.verdicts.values()]
    if verdicts and not {"better", "worse"} & set(verdicts):
        return f"No difference from {results.baseline} is significant: the order may be chance."
    return ""


def caption(comparison: Comparison, results: Results) -> str:
    """What the table says and how it was tested."""
    measure, seeds = comparison.measure, len(results.seeds)
    said = f"{named(measure).capitalize()}, {direction(measure)}: the mean"
    said += f" and standard deviation over {seeds} seeds" if seeds > 1 else " of one seed"
    said += f", trained at length {comparison.train_length:,}; the best at each length is bold."
    if results.baseline is not None and seeds > 1:
        tests = sum(verdict.corrected is not None for verdict in comparison.verdicts.values())
        kind = "logarithms of perplexity" if measure.logarithmic else named(measure)
        said += (
            f" Verdicts are against {results.baseline}: a two-sided t-test of {kind}, paired by seed, with Holm's "
            f"correction over {tests} comparisons; significant below p = {results.significance:g}."
        )
    return said


def fewer(comparison: Comparison, results: Results) -> list[str]:
    """Where the test part holds fewer stretches than were asked for."""
    found = re.search(r" of (\d+) x (\d+)$", comparison.measure.protocol)
    asked = results.plan.get("examples", 0)
    if found is None or int(found[1]) >= asked or way(comparison.measure) != results.plan.get("protocol"):
        return []
    return [f"The test part holds {found[1]} stretches of {int(found[2]):,} tokens, fewer than the {asked} asked for."]


def incomplete(comparison: Comparison, results: Results) -> list[str]:
    """Places that have fewer seeds than the plan, each encoding once."""
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for encoding in comparison.encodings:
        for length in comparison.lengths:
            score = comparison.scores.get((encoding, length))
            seeds = len(score.values) if score else 0
            if seeds < len(results.seeds):
                found[encoding, seeds].append(length)
    return [
        f"{encoding}: {seeds} of {len(results.seeds)} seeds at {span(lengths).lower()}"
        for (encoding, seeds), lengths in found.items()
    ]


def diverged(comparison: Comparison) -> list[str]:
    found = []
    for encoding in comparison.encodings:
        at = [length for length in comparison.lengths if _diverged(comparison.scores.get((encoding, length)))]
        if at:
            found.append(f"{encoding} diverged at {listed([f'{length:,}' for length in at])}")
    return found


def _diverged(score: Score | None) -> bool:
    return score is not None and score.diverged > 0


def like_their_base(results: Results) -> list[str]:
    """Encodings whose adaptive part stays small in every layer."""
    small: dict[str, bool] = {}
    for row in results.of("adaptive_share", "adaptation"):
        small[row.encoding] = small.get(row.encoding, True) and row.value < LITTLE
    return [encoding for encoding in results.encodings if small.get(encoding)]


def adaptation(results: Results) -> str:
    found = like_their_base(results)
    if not found:
        return f"Every adaptive encoding adds at least {share(LITTLE)} of its static bias in some layer."
    behave = "behaves like its base" if len(found) == 1 else "behave like their bases"
    return f"{listed(found)} {behave}: in no layer is the adaptive part {share(LITTLE)} of the static bias."


def failures(results: Results) -> list[str]:
    """What could not be trained, or not be evaluated at a length."""
    return [
        f"{row.encoding}, seed {row.seed}{'' if row.protocol == 'training' else f' at length {row.length:,}'} "
        f"({row.trial}): {row.note or 'no reason given'}"
        for row in results.failed
    ]


def jumps(results: Results) -> list[str]:
    return [f"{row.encoding}, seed {row.seed} ({row.trial}): {row.note}" for row in results.of("jumps", "training")]
