"""What DAPE (arXiv 2405.14722) and DAPE V2 (arXiv 2410.04798) claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from adapos.bench.report.results import Results
from adapos.evidence.claim import Claim, Judge
from adapos.evidence.finding import Finding, comparison, contrast, judged, score_at
from adapos.evidence.study import Study

ONE, TWO = "2405.14722", "2410.04798"
SHORT, LONG = 128, 8192  # trained at, and examined at

# 125M parameters, Adam, 6e-4 to 6e-5 after 1 % of warm-up, 50,000 steps of 256 texts of GPT-2's tokens
PAPER = {
    "size": "125m",
    "steps": 50_000,
    "batch": 256,
    "rate": 6e-4,
    "warm_up": 0.01,
    "floor": 0.1,
    "decay": 0.1,
    "clip": 1.0,
    "dtype": "bfloat16",
    "examples": 500,
}
TEXT = Study(
    "text",
    small={
        "task": "text(data='enwik8')",
        "train_length": SHORT,
        "lengths": f"{SHORT}..{LONG}",
        "size": "300k",
        "steps": 800,
        "batch": 16,
        "rate": 3e-3,
        "scored": 64,
        "examples": 12,
    },
    paper={
        **PAPER,
        "task": "text(data='enwik8', tokenizer='gpt2')",
        "train_length": SHORT,
        "lengths": f"{SHORT}..{LONG}",
        "scored": 128,
    },
)

BIASES = ("t5", "alibi", "kerple", "fire")
STATIC = (
    "nope",
    "rope",
    f"rope(schedule='yarn', factor={LONG / SHORT}, trained={SHORT}, late=True)",
    "randomized + rope",
    *BIASES,
    "cope",
    "fox",
)
ADAPTIVE = ("dape", "dape(kernel=3)")
BASE, ADAPTED = "kerple", "kerple + dape"


def by_text(pairs: Sequence[tuple[str, str]], length: int) -> Judge:
    """The first of each pair must be better than the second at a length."""

    def judge(found: Mapping[str, Results]) -> Finding:
        table = comparison(found[TEXT.name], "bits_per_byte")
        means = (f"{encoding} {score_at(table, encoding, length).mean:.3f}" for encoding in named(pairs))
        return judged(
            [contrast(table, *pair, length) for pair in pairs], f"bits per byte at {length:,}: {', '.join(means)}"
        )

    return judge


def of_text(
    name: str, asks: str, paper: str, source: str, pairs: Sequence[tuple[str, str]], *, at: int = LONG
) -> Claim:
    """A claim of pairs, for which the encodings in them are run."""
    return Claim(name, asks, paper, source, ((TEXT, named(pairs)),), by_text(pairs, at))


def named(pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Every encoding of these pairs, once."""
    return tuple(dict.fromkeys(encoding for better, worse in pairs for encoding in (worse, better)))


def over(bases: Sequence[str], how: str = "dape") -> list[tuple[str, str]]:
    return [(f"{base} + {how}", base) for base in bases]


def against(how: Sequence[str], worse: str) -> list[tuple[str, str]]:
    return [(f"{BASE} + {each}", worse) for each in how]


EXTRAPOLATION = of_text(
    "dape/extrapolation",
    f"Does DAPE hold at {LONG:,} tokens what its static base loses, trained at {SHORT}?",
    "perplexity at 8,192, arXiv, trained at 128: kerple 31.93, with DAPE 5.00; alibi 5.85, with DAPE 5.67",
    ONE,
    over(BIASES),
)
CLAIMS = (
    # all others that the paper compares with are run too
    replace(EXTRAPOLATION, runs=((TEXT, (*STATIC, *(f"{base} + {how}" for how in ADAPTIVE for base in BIASES))),)),
    of_text(
        "dape/trained-length",
        "Is DAPE better already at the length it was trained at?",
        "perplexity at 512, arXiv, trained at 512: kerple 4.57, with DAPE 4.49, with V2 4.44",
        TWO,
        over(BIASES),
        at=SHORT,
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
        over((*BIASES, "nope", "rope")),
    ),
    of_text(
        "dape/width",
        "Is a width of 4 enough?",
        "any width does; perplexity at 8,192, trained at 128: alibi 5.85, with DAPE of width 4 5.67",
        ONE,
        against(("dape(width=4)", "dape(width=16)", "dape", "dape(width=64)"), BASE),
    ),
    of_text(
        "dape/kernel",
        "Is f that reaches over neighbouring keys (V2) better than f at each pair?",
        "perplexity at 8,192, trained at 128: k=1 4.97, k=3 4.60, k=5 4.57, k=7 4.57",
        TWO,
        against(("dape(kernel=3)", "dape(kernel=5)", "dape(kernel=7)"), ADAPTED),
    ),
)
