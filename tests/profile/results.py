"""Results as if they had been measured, for the tests that only read them."""

from adapos.profile.machine import Machine
from adapos.profile.plan import PLAIN, Plan
from adapos.profile.rows import Results, Row

SPECS = ("kerple", "tape(form='additive') + dape", "learned(longest=32)")
PLAN = Plan(SPECS, (16, 64), ("training", "decode", "model"), heads=2, kv_heads=2, head_width=8, repeats=3)
MACHINE = Machine("A <Processor> & more", 2, 2, "Linux 6", "3.11", "2.13", "0.1.0", 1e11, 1e10)


def measured(what: str, encoding: str, length: int, ratio: float, refused: dict[str, str] | None = None) -> Row:
    return Row(
        what,
        encoding,
        length,
        backend="tiled",
        milliseconds=ratio * length / 7,
        ratio=ratio,
        ratio_least=ratio * 0.9,
        ratio_most=ratio * 1.1,
        spread=0.2,
        noisy=encoding != PLAIN,
        ratios=(ratio * 0.9, ratio, ratio * 1.1),
        extra_memory=length * 2**14,
        flops=length**2 * 1000,
        share_of_peak=0.25,
        share_of_bandwidth=1.25 if what == "decode" else None,
        tokens_per_second=length / 3 if what == "model" else None,
        parameters=10_400_000 if what == "model" else None,
        refused=refused or {},
    )


def all_rows() -> list[Row]:
    found = []
    for what in PLAN.what:
        for length in PLAN.lengths:
            found.append(measured(what, PLAIN, length, 1.0))
            found.append(measured(what, SPECS[0], length, 1.7, {"sdpa": "DistanceTable would be kept"}))
            found.append(measured(what, SPECS[1], length, 3.3, {"sdpa": "HeadMix reads scores"}))
            note = 'learned: position 63 is past the "table", <b>so</b> & on'
            found.append(
                Row(what, SPECS[2], length, note=note) if length > 32 else measured(what, SPECS[2], length, 1.1)
            )
    return found


RESULTS = Results(
    MACHINE,
    PLAN.settings | {k: list(getattr(PLAN, k)) for k in ("encodings", "lengths", "what")},
    PLAN.command,
    all_rows(),
    True,
)
