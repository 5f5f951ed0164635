"""How results are said, in the terminal and on the page."""

from __future__ import annotations

from adapos.numbers import large, number, share
from adapos.profile.plan import MEASUREMENTS, PLAIN
from adapos.profile.rows import NOISE, Results, Row


def memory(row: Row) -> str:
    """In MiB."""
    if row.extra_memory is None:
        return ""
    return f"{row.extra_memory / 2**20:,.1f}" if row.extra_memory < 100 * 2**20 else f"{row.extra_memory / 2**20:,.0f}"


def ratio(row: Row) -> str:
    """1.69 [1.54, 1.80], marked where repeats lie too far apart."""
    if row.ratio is None or row.ratio_least is None or row.ratio_most is None or row.encoding == PLAIN:
        return ""
    mark = " ?" if row.noisy else ""
    return f"{number(row.ratio)} [{number(row.ratio_least)}, {number(row.ratio_most)}]{mark}"


def title(what: str, results: Results) -> str:
    """forward: one call of attention without gradients, batch 1, 12 heads of 64, float32 on cpu"""
    set_to = results.settings
    if what == "model":
        counted = next((row.parameters for row in results.rows if row.parameters and row.encoding == PLAIN), None)
        sizes = f"size {set_to['size']}" + (f" ({large(counted)} parameters)" if counted else "")
    else:
        shared = f" over {set_to['kv_heads']}" if set_to["kv_heads"] != set_to["heads"] else ""
        sizes = f"{set_to['heads']} heads{shared} of {set_to['head_width']}"
    threads = results.machine.threads
    on_cpu = f"{threads} thread{'s' * (threads > 1)}"
    where = on_cpu if set_to["device"] in ("cpu", "cpu:0") else f"{set_to['device']} ({results.machine.processor})"
    return f"{what}: {MEASUREMENTS[what]}, batch {set_to['batch']}, {sizes}, {set_to['dtype']}, {where}"


def caption(what: str, results: Results) -> str:
    """What the columns mean."""
    repeats = results.settings["repeats"]
    times = "1 repeat" if repeats == 1 else f"{repeats} repeats"
    against = {
        "model": "the same decoder with nope and torch's attention",
        "decode": "torch's attention of one query over the same keys",
    }.get(what, "torch's causal attention of the same sizes")
    half = "the middle half of the repeats spans" if repeats >= 5 else "the repeats span"
    said = (
        f"plain is {against}; x plain is the median [least, most] of {times} run side by side, with a ? "
        f"where {half} more than {share(NOISE)} of the median. "
    )
    peaks = results.machine
    if what == "decode":
        return said + (
            f"peak is the bytes of the cache a second beside a copy's {large(peaks.bytes_per_second)}B, and may "
            "pass 100 % where the processor's own cache holds them."
        )
    return said + f"peak is the FLOP a second beside those of a product of matrices, {large(peaks.flops_per_second)}."


def of_peak(row: Row) -> str:
    return share(row.share_of_bandwidth if row.what == "decode" else row.share_of_peak)


def refusals(rows: list[Row]) -> list[str]:
    """'sdpa refuses kerple, alibi: ...', each reason once."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for backend, reason in row.refused.items():
            named = found.setdefault((backend, reason), [])
            if row.encoding not in named:
                named.append(row.encoding)
    return [f"{backend} refuses {', '.join(named)}: {reason}" for (backend, reason), named in found.items()]


def notes(rows: list[Row]) -> list[str]:
    """'learned at 4096 tokens: ...', each note once with all its lengths and the encodings that share them."""
    lengths: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        if row.note:
            lengths.setdefault((row.encoding, row.note), {})[str(row.length)] = None
    found: dict[tuple[str, str], list[str]] = {}
    for (encoding, note), at in lengths.items():
        found.setdefault((", ".join(at), note), []).append(encoding)
    return [f"{', '.join(named)} at {at} tokens: {note}" for (at, note), named in found.items()]


def nothing(results: Results) -> str:
    """Why none of the encodings could run, by the first; nothing where one could."""
    rows = [row for row in results.rows if row.encoding != PLAIN]
    if any(row.milliseconds is not None for row in rows):
        return ""
    first, *others = notes(rows)
    more = f"; {len(others)} more above" if others else ""
    return f"no encoding could run ({first.rstrip('.')}{more})"


def ended(results: Results) -> str:
    """Why there is less than was asked for, or nothing."""
    if results.lost:
        return f"the GPU was lost, and the rest could not be measured ({results.lost.rstrip('.')})"
    return "" if results.finished else "interrupted: the rest was not measured"


def failures(results: Results) -> str:
    """What to say of measurements that broke, or nothing."""
    broke = sum(row.milliseconds is None and row.name in results.failures for row in results.rows)
    if not broke:
        return ""
    return (
        f"{broke} of {len(results.rows)} measurements failed; the notes below the tables say why, and profile.json has "
        "their tracebacks"
    )


def warning(results: Results) -> str:
    """What to say of a noisy machine, or nothing."""
    ratios = [row for row in results.rows if row.ratio is not None and row.encoding != PLAIN]
    noisy = sum(row.noisy for row in ratios)
    if not noisy:
        return ""
    return (
        f"{noisy} of {len(ratios)} ratios spread over more than {share(NOISE)}, or were timed once: the machine is too "
        "busy to tell them exactly; end other programs or give more --repeats"
    )
