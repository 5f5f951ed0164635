"""What TAPE (arXiv 2501.00712) claims."""

from __future__ import annotations

from adapos.evidence.dape import SHORT, of_text

SOURCE = "2501.00712"

CLAIMS = (
    of_text(
        "tape/perplexity",
        f"Does TAPE from scratch extrapolate, trained at {SHORT}?",
        "not claimed; result files in the history of its code say that it does not (1,024 to 4,096: 26.26 to 164.13)",
        SOURCE,
        [("tape", "alibi"), ("tape", "rope")],
    ),
    of_text(
        "tape/ablation",
        "Do both updates matter, in attention and in the MLP?",
        "perplexity at the trained length: neither 57.2, MLP 58.4, attention 57.6, both 52.2",
        SOURCE,
        [("tape", "rope"), ("tape", "tape(attention=False)"), ("tape", "tape(mlp=False)")],
        at=SHORT,
    ),
)
