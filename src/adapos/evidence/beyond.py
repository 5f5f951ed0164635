"""What no paper has asked."""

from __future__ import annotations

from adapos.evidence.claim import Claim, Found, of_pairs, over
from adapos.evidence.finding import Finding, compared, judged, stated
from adapos.evidence.studies import DIGITS, TEXT

IMAGES = over(("plane", "kerple"))


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
            ((DIGITS, ("nope", "rope", *(each for pair in IMAGES for each in reversed(pair)))),),
            images,
        ),
    )


def images(found: Found) -> Finding:
    results, larger = found[DIGITS.name], tuple(side for side in DIGITS.sides if side > DIGITS.sides[0])
    return judged(
        [compared(results, "accuracy", pair, larger) for pair in IMAGES],
        stated(results, "accuracy", results.encodings, larger, what="share of digits told right, larger images"),
    )
