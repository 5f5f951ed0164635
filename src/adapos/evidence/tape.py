"""What TAPE (arXiv 2501.00712) claims."""

from __future__ import annotations

from functools import partial

from adapos.evidence.claim import Claim, of_pairs
from adapos.evidence.judges import steady
from adapos.evidence.studies import ADDITION, LONGER, PASSKEY, PRETRAINED, SHIFTS, SMALL, STATE

SOURCE = "2501.00712"
ENTRIES = "tape(mixing='entries')"
INTERPOLATED = "rope(schedule='linear', factor=2.0)"


def claims(scale: str) -> tuple[Claim, ...]:
    text, addition, passkey, state = (studies[scale] for studies in (LONGER, ADDITION, PASSKEY, STATE))
    pretrained = PRETRAINED[scale]
    heads, of_swaps = (6, " with swaps of neighbours") if scale == SMALL else (12, "")
    tokens = 3 * addition.train_length + 3
    late = f"tape(schedule='yarn', factor=2.0, trained={tokens}, late=True)"
    return (
        of_pairs(
            "tape/addition",
            f"Is TAPE more often right in sums of numbers up to {addition.lengths[-1]} digits, trained to "
            f"{addition.train_length}?",
            "exact match over all pairs of digits, trained to 40, to 80: rope 26.32, randomized 26.56, nope 22.45, "
            "fire 26.98, TAPE 32.82, with YaRN 33.92",
            SOURCE,
            addition,
            "exact",
            [("tape", each) for each in ("rope", "randomized + rope", "nope", "fire")],
            addition.lengths,
            weights=[2 * length - 1 for length in addition.lengths],
            also=(late,),
            learned=0.5,
        ),
        of_pairs(
            "tape/passkey",
            f"Does TAPE find a number in texts longer than the {passkey.train_length:,} tokens of training, more often "
            "than others do and than not?",
            "fine-tuned, at trained lengths: 1.0 from 1,000 to 8,000 but 0.95 at 7,000; longer ones were not tested",
            SOURCE,
            passkey,
            "exact",
            [("tape", each) for each in ("rope", "alibi", "kerple + dape")],
            passkey.unseen,
            also=("nope",),
            learned=0.5,
            reached=0.5,
        ),
        of_pairs(
            "tape/perplexity",
            f"Is TAPE from scratch better than rope and alibi at {text.lengths[-1]:,} tokens, trained at "
            f"{text.train_length:,}?",
            "not claimed; result files in the history of its code say that it does not (1,024 to 4,096: 26.26 to "
            "164.13)",
            SOURCE,
            text,
            "bits_per_byte",
            [("tape", "alibi"), ("tape", "rope")],
            text.lengths[-1:],
        ),
        of_pairs(
            "tape/ablation",
            "Do both updates matter, in attention and in the MLP, and that they are equivariant?",
            "perplexity at the trained length: neither 57.2, MLP 58.4, attention 57.6, both 52.2; not equivariant "
            "54.1; inner width 1 x heads 53.6, 16 x heads 53.0",
            SOURCE,
            text,
            "bits_per_byte",
            [("tape", each) for each in ("rope", "tape(attention=False)", "tape(mlp=False)", ENTRIES)],
            (text.train_length,),
            also=tuple(f"tape(width={times * heads})" for times in (1, 16)),
        ),
        Claim(
            "tape/shift",
            "Does a shift of ids, or of the text, move attention less where updates are equivariant than where not?",
            "figures of attention and of position dot products by layer, ids from 3 on or three tokens before",
            SOURCE,
            ((SHIFTS[scale], ("tape", ENTRIES, "rope")),),
            partial(steady, SHIFTS[scale], [("tape", ENTRIES)], ["rope"]),
        ),
        of_pairs(
            "tape/finetune",
            "Is a pretrained model with TAPE better after equal steps than with LoRA?",
            "perplexity at 8,192, PG19, Llama 2 7B after 1,000 steps: LoRA 8.199, LongLoRA 8.645, theta scaling 7.999, "
            "TAPE 7.063",
            SOURCE,
            pretrained,
            "bits_per_byte",
            [("tape", "lora(rank=8)"), ("tape", f"{INTERPOLATED} + lora(rank=8)")],
            pretrained.lengths[-1:],
            also=("original",),
        ),
        of_pairs(
            "tape/state",
            f"Does TAPE track state, in the word problem of S5{of_swaps}, further than static encodings do, trained on "
            f"{state.train_length} elements?",
            "not asked of TAPE; attention of a fixed depth is held to be unable",
            SOURCE,
            state,
            "accuracy",
            [("tape", "rope"), ("tape", "alibi")],
            state.unseen,
            also=("fox", "kerple + dape"),
            learned=0.5,
        ),
    )
