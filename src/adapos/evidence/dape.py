"""What DAPE (arXiv 2405.14722) and DAPE V2 (arXiv 2410.04798) claim."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from adapos.evidence.claim import Claim, Pair, named, of_pairs, over
from adapos.evidence.judges import costs, formal_languages, near_and_far
from adapos.evidence.studies import CHOMSKY, COST, PATTERNS, SMALL, TEXT
from adapos.evidence.study import Training

ONE, TWO = "2405.14722", "2410.04798"
BIASES = ("t5", "alibi", "kerple", "fire")
CLAIMED = ("alibi", "kerple", "fire")  # of these; over t5 it was not tried
BASE, ADAPTED = "kerple", "kerple + dape"
TURNED = ("rope", "randomized + rope")
TIMED = ("rope", "t5", "alibi", "kerple", "kerple + dape", "kerple + dape(kernel=3)", "tape")
MORE = {"kerple + dape": 1.75, "kerple + dape(kernel=3)": 3.25}  # operations, beside those of plain attention


def claims(scale: str) -> tuple[Claim, ...]:
    text = TEXT[scale]
    trained, longest = text.train_length, text.lengths[-1]
    languages = over(("alibi", "kerple"), "dape" if scale == SMALL else "dape(width=64)")

    def of_text(
        name: str,
        asks: str,
        paper: str,
        source: str,
        pairs: Sequence[Pair],
        at: int = longest,
        also: Sequence[str] = (),
    ) -> Claim:
        return of_pairs(name, asks, paper, source, text, "bits_per_byte", pairs, (at,), also=also)

    return (
        of_text(
            "dape/extrapolation",
            f"Is DAPE better than its static base at {longest:,} tokens, trained at {trained}?",
            "perplexity at 8,192, arXiv, trained at 128: kerple 31.93, with DAPE 5.00; alibi 5.85, with DAPE 5.67; "
            "trained at 512: fire diverges, with DAPE 5.71",
            ONE,
            over(CLAIMED),
            also=(*static(text), "t5 + dape", *(f"{base} + dape(kernel=3)" for base in BIASES)),
        ),
        of_text(
            "dape/trained-length",
            "Is DAPE better already at the length it was trained at?",
            "perplexity at 512, arXiv, trained at 512: kerple 4.57, with DAPE 4.49, with V2 4.44",
            TWO,
            over(CLAIMED),
            at=trained,
            also=("t5", "t5 + dape"),
        ),
        of_text(
            "dape/variants",
            "Is S + B + f([S; B]) better than the other ways to put f in?",
            "perplexity at 8,192, trained at 128: residual 5.00, concat 5.03, add 5.17",
            ONE,
            [(ADAPTED, f"{BASE} + dape(form='{form}')") for form in ("concat", "add")],
        ),
        of_text(
            "dape/inputs",
            "Must f read both scores and biases?",
            "f([S; B]) better than f(B) better than none; f(S) beside a bias was not tried",
            ONE,
            [
                (ADAPTED, f"{BASE} + dape(form='scores')"),
                (ADAPTED, f"{BASE} + dape(form='bias')"),
                (f"{BASE} + dape(form='bias')", BASE),
            ],
        ),
        of_text(
            "dape/bases",
            "On which base is DAPE worth it?",
            "better on alibi, kerple and fire, and as S + f(S) on nope and rope",
            ONE,
            over((*CLAIMED, "nope", "rope")),
            also=("t5", "t5 + dape"),
        ),
        of_text(
            "dape/width",
            "Is f better than none at any width, 4 to 64?",
            "perplexity at 8,192, trained at 128: alibi 5.85, with DAPE of width 4 5.67; kerple 31.93, of width 32 "
            "5.00",
            ONE,
            [(f"{BASE} + {how}", BASE) for how in ("dape(width=4)", "dape(width=16)", "dape", "dape(width=64)")],
        ),
        of_text(
            "dape/kernel",
            "Is f that reaches over neighbouring keys (V2) better than f at each pair?",
            "perplexity at 8,192, trained at 128: k=1 4.97, k=3 4.60, k=5 4.57, k=7 4.57",
            TWO,
            [(f"{BASE} + dape(kernel={kernel})", ADAPTED) for kernel in (3, 5, 7)],
        ),
        Claim(
            "dape/chomsky",
            "Does DAPE carry formal languages to longer strings than its static base does?",
            "best on 10 of the 11 tasks in which order matters, trained at 40, to 500; bucket sort 99.38 with alibi",
            ONE,
            tuple((study, (*TURNED, *named(languages))) for study, _ in CHOMSKY[scale].values()),
            partial(formal_languages, CHOMSKY[scale], TURNED, languages),
        ),
        Claim(
            "dape/cost",
            "Does it cost no more than its arithmetic?",
            "f is 75 % of attention's operations at 125M and 225 % with k=3; others found V2 to train 3 times slower",
            ONE,
            tuple((timing, TIMED) for timing in COST),
            partial(costs, COST, MORE),
        ),
        Claim(
            "dape/patterns",
            "Does f make some heads look near and others far, and does it move with the text?",
            "figure 1: of the last of 8,192 queries, some heads are local and some anti-local",
            ONE,
            ((PATTERNS[scale], (BASE, ADAPTED)), (text, (BASE, ADAPTED))),
            partial(near_and_far, PATTERNS[scale], text, BASE, ADAPTED),
        ),
    )


def static(text: Training) -> tuple[str, ...]:
    """All that the papers compare with."""
    times = text.lengths[-1] / text.train_length
    yarn = f"rope(schedule='yarn', factor={times}, trained={text.train_length}, late=True)"
    return ("nope", "rope", yarn, "randomized + rope", *BIASES, "cope", "fox")
