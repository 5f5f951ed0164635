"""The table of docs/choose.md: every encoding that read text, what it reaches and what it costs. Rows alone make it."""

from __future__ import annotations

import math
import re

from adapos.bench.report import statistics, tables, words
from adapos.bench.report.results import Results, Score
from adapos.evidence.claim import Found
from adapos.evidence.page import compared
from adapos.evidence.studies import COST, SMALL, TEXT
from adapos.profile.rows import Results as Profile

PLACE = re.compile(r"(?<=<!-- ranking -->\n).*(?=<!-- /ranking -->)", flags=re.DOTALL)


def filled(page: str, held: Found) -> str:
    """The page with its table as the rows have it, or as it is where nothing was examined."""
    text, timed = held[TEXT[SMALL].name], held[COST[0].name]
    if not isinstance(text, Results) or not compared(text, text.encodings):
        return page
    if PLACE.search(page) is None:
        raise ValueError("the page must hold the marks <!-- ranking --> and <!-- /ranking -->; add them")
    return PLACE.sub(lambda _: ranking(text, timed if isinstance(timed, Profile) else None), page)


def ranking(text: Results, timed: Profile | None) -> str:
    """The best at the longest length first, with the time of a training step of attention beside plain attention's.

    Encodings that were run with fewer seeds than a verdict needs are left out, where others were not.
    """
    (comparison,) = compared(text, text.encodings)
    measure, lengths = comparison.measure, comparison.lengths
    scores = {name: comparison.scores.get((name, lengths[-1]), Score({})) for name in comparison.encodings}
    least = min(statistics.NEEDED, max(len(score.values) for score in scores.values()))
    ranked = sorted(
        (name for name, score in scores.items() if len(score.values) >= least),
        key=lambda name: math.inf if scores[name].diverged else scores[name].mean,
    )
    shown = sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})
    steps = [row for row in timed.rows if row.what == "training"] if timed is not None else []
    longest = max((row.length for row in steps), default=0)
    times = {row.encoding: row.ratio for row in steps if row.length == longest}
    lines = []
    for name in ranked:
        cells = [comparison.scores.get((name, length)) for length in shown]
        said = [f"{words.mean(measure, cell)} {words.spread(measure, cell)}".strip() for cell in cells]
        time = times.get(name)
        lines.append([tables.escape_markdown(name), *said, words.NOTHING if time is None else f"{time:.2f}"])
    heads = ["encoding", *(f"{length:,}" for length in shown), "time"]
    seeds = sorted({len(scores[name].values) for name in ranked})
    count = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"{seeds[0]}"
    over = f"the mean and standard deviation over {count} seeds" if seeds != [1] else "one seed"
    caption = (
        f"{words.named(measure).capitalize()}, {words.direction(measure)}, by tokens of context: {over}, trained at "
        f"length {comparison.train_length:,}."
    )
    if times:
        caption += f" Time is that of a training step of attention at {longest:,} tokens, beside plain attention."
    return tables.markdown(heads, lines, caption)
