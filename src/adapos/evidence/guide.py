"""The table of docs/choose.md: every encoding that read text, what it reaches and what it costs. Rows alone make it."""

from __future__ import annotations

import math
import re

from adapos.bench.report import tables, words
from adapos.bench.report.results import Results
from adapos.evidence.claim import Found
from adapos.evidence.page import compared
from adapos.evidence.studies import COST, SMALL, TEXT
from adapos.profile.rows import Results as Profile

PLACE = re.compile(r"(?<=<!-- ranking -->\n).*(?=<!-- /ranking -->)", flags=re.DOTALL)


def filled(page: str, held: Found) -> str:
    """The page with its table as the rows have it, or as it is where none were read."""
    text, timed = held[TEXT[SMALL].name], held[COST[0].name]
    if not isinstance(text, Results):
        return page
    if PLACE.search(page) is None:
        raise ValueError("the page must hold the marks <!-- ranking --> and <!-- /ranking -->; add them")
    return PLACE.sub(lambda _: ranking(text, timed if isinstance(timed, Profile) else None), page)


def ranking(text: Results, timed: Profile | None) -> str:
    """The best at the longest length first, with the time of a training step of attention beside plain attention's."""
    (comparison,) = compared(text, text.encodings)
    measure, lengths = comparison.measure, comparison.lengths
    shown = sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})
    steps = [row for row in timed.rows if row.what == "training"] if timed is not None else []
    longest = max((row.length for row in steps), default=0)
    times = {row.encoding: row.ratio for row in steps if row.length == longest}
    means = {
        encoding: math.inf if score is None or score.diverged else score.mean
        for encoding in comparison.encodings
        for score in (comparison.scores.get((encoding, lengths[-1])),)
    }
    lines = []
    for encoding in sorted(means, key=means.__getitem__):
        scores = [comparison.scores.get((encoding, length)) for length in shown]
        said = [f"{words.mean(measure, score)} {words.spread(measure, score)}".strip() for score in scores]
        time = times.get(encoding)
        lines.append([tables.escape_markdown(encoding), *said, words.NOTHING if time is None else f"{time:.2f}"])
    heads = ["encoding", *(f"{length:,}" for length in shown), "time"]
    caption = (
        f"{words.named(measure).capitalize()}, {words.direction(measure)}, by tokens of context: the mean and standard "
        f"deviation over {len(text.seeds)} seeds, trained at length {comparison.train_length:,}."
    )
    if times:
        caption += f" Time is that of a training step of attention at {longest:,} tokens, beside plain attention."
    return tables.markdown(heads, lines, caption)
