"""What no paper has asked."""

from __future__ import annotations

from adapos.evidence.claim import Claim, Found, named, of_pairs, over
from adapos.evidence.finding import UNTESTABLE, Finding, compared, judged, score, stated
from adapos.evidence.studies import DIGITS, TEXT

IMAGES = over(("plane", "aimed"))
BESIDE = ("nope", "rope", "kerple", "kerple + dape")
LEARNED = 0.9  # of digits in images of the size of training, or nothing can be said of larger ones


def claims(scale: str) -> tuple[Claim, ...]:
    text = TEXT[scale]
    return (
        of_pairs(
            "beyond/two",
            "Are two adaptations better than one?",
            "not asked",
            "",
            text,
            "bits_per_byte",
            [("tape + dape", "tape"), ("tape + dape", "rope + dape"), ("fox + dape", "fox")],
            (text.lengths[-1],),
        ),
        Claim(
            "beyond/images",
            "Does DAPE carry over to distances in two dimensions, trained on small images and tested on larger ones?",
            "not asked",
            "",
            ((DIGITS, (*BESIDE, *named(IMAGES))),),
            images,
        ),
    )


def images(found: Found) -> Finding:
    results, (trained, *larger) = found[DIGITS.name], DIGITS.lengths
    what = (
        f"share of digits told right in images of {larger[0]} to {larger[-1]} patches, trained at {trained}; plane and "
        "aimed know rows and columns"
    )
    ours = stated(results, "accuracy", results.encodings, larger, what=what)
    seen = max(score(results, "accuracy", each, (trained,)).mean for each in results.encodings)
    if seen < LEARNED:
        return Finding(UNTESTABLE, f"the best is {seen:.3f} in images of the size of training; {ours}")
    return judged([compared(results, "accuracy", pair, larger) for pair in IMAGES], ours)
