"""The claims as a page: one table of verdicts, and below it what each rests on. Rows alone make it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from adapos.bench.report import figures, tables, words
from adapos.bench.report.results import Comparison, Results
from adapos.bench.rows import Row
from adapos.evidence.claim import Claim, Found
from adapos.evidence.cost import Timing
from adapos.evidence.finding import Contrast, Finding
from adapos.evidence.images import Digits
from adapos.evidence.probe import NAMES, Probe
from adapos.evidence.reproduce import findings
from adapos.evidence.study import Study, Training
from adapos.numbers import large, number
from adapos.plots import Axis, looks
from adapos.profile.rows import Results as Profile
from adapos.svg import Plot

PAPERS = "https://arxiv.org/abs"
METRICS = ("bits_per_byte", "accuracy", "exact")
INTRODUCTION = """# Evidence

What the papers claim, measured. `adapos reproduce` lists the claims, `adapos reproduce CLAIM` runs one and judges it,
and this page is made from the rows in [evidence](../evidence), by `python tools/evidence.py`.

A claim is a set of pairs: this encoding must be better than that one. All encodings are trained on the same batches
from the same weights. A claim **holds** where every pair differs as it says with p < 0.05, by a two-sided t-test that
is paired by seed; p is the greatest of them, and as all must hold, it needs no correction. Else the claim **does not
hold here**: some pair is the other way round, or could be chance, and p is the greatest among those. That may say
something of the claim, or of models as small as these, and with three seeds what could be chance is not shown to be
none. Exams are few, and the same for every seed: p speaks of these exams, and ± of seeds, not of other texts. What no
encoding learns is **not testable at this scale**. The models are small, because two cores trained them: what holds here
may fail at the papers' scale, and the other way round. `--scale paper` runs the papers' recipes on GPUs, on enwik8
where their own text is not public; nobody has done so yet. Text is enwik8, in bytes, unless a claim says another. Each
study's folder has its plan, with the file of weights where a model was pretrained; a row has the commit that made it,
with `-changed` behind it where files of the project were not as committed.
"""


def written(claims: Sequence[Claim], held: Found, scale: str, where: str) -> tuple[str, dict[str, str]]:
    """The page of the claims that can be judged by what was read, and its figures by their names in the folder `where`,
    which the page links to."""
    judged = dict(findings(claims, held))
    found = {claim: each for claim, each in judged.items() if isinstance(each, Finding)}
    lines, pictures = [INTRODUCTION, table(found, held, scale)], {}
    if missing := {claim: each for claim, each in judged.items() if claim not in found}:
        lines += [
            "Not judged yet:\n",
            *(f"- {claim.name}: {tables.escape_markdown(str(each))}" for claim, each in missing.items()),
            "",
        ]
    for claim, each in found.items():
        drawn = drawings(claim, held)
        lines += section(claim, each, held, scale, [f"{where}/{name}" for name in drawn])
        pictures.update(drawn)
    return "\n".join(lines).rstrip() + "\n", pictures


def table(found: Mapping[Claim, Finding], held: Found, scale: str) -> str:
    heads = ["claim", "the paper", "here", "scale", "seeds", "p", "verdict", "command"]
    lines = [
        [
            f"[{claim.name}](#{anchor(claim)})",
            tables.escape_markdown(claim.paper),
            tables.escape_markdown(each.ours),
            tables.escape_markdown(
                "; ".join(dict.fromkeys(sized(study, held[study.name]) for study, _ in claim.needs))
            ),
            words.NOTHING if each.seeds is None else str(each.seeds),
            words.NOTHING if each.chance is None else chance(each.chance),
            f"**{each.verdict}**{tables.escape_markdown(because(each))}",
            f"`{command(claim, scale)}`",
        ]
        for claim, each in found.items()
    ]
    return tables.lined(heads, ["---"] * len(heads), lines)


def section(claim: Claim, found: Finding, held: Found, scale: str, pictures: Sequence[str]) -> Iterator[str]:
    source = f" ([arXiv {claim.source}]({PAPERS}/{claim.source}))" if claim.source else ""
    yield f"## {claim.name}\n"
    verdict = f"**{found.verdict.capitalize()}**{tables.escape_markdown(because(found))}."
    yield f"{tables.escape_markdown(claim.asks)}{source} {verdict}\n"
    if found.contrasts:
        yield contrasts(found.contrasts)
    for study, encodings in claim.needs:
        yield from shown(study, held[study.name], encodings)
    for place in pictures:
        yield f"![{claim.name}]({place})\n"
    yield f"    {command(claim, scale)}\n"


def contrasts(found: Sequence[Contrast]) -> str:
    heads = ["better", "than", "by", "p", "p by Holm", ""]
    lines = [
        [
            tables.escape_markdown(each.better),
            tables.escape_markdown(each.worse),
            f"{each.gain:+.3g}" if math.isfinite(each.gain) else "diverged",
            chance(each.chance),
            chance(each.corrected),
            each.outcome,
        ]
        for each in found
    ]
    return tables.lined(heads, ["---", "---", "---:", "---:", "---:", "---"], lines)


def shown(study: Study, held: Any, encodings: Sequence[str]) -> Iterator[str]:
    """The numbers that a claim reads from a study."""
    if isinstance(held, Results):
        for comparison in compared(held, encodings):
            heads, lines = tables.quality(comparison, tables.MARKDOWN)
            yield tables.markdown(heads, lines, tables.quality_caption(comparison, held))
    elif isinstance(held, Profile):
        yield timed(held, study.name)
    elif isinstance(study, Probe):
        yield measured(held, study)


def compared(held: Results, encodings: Sequence[str]) -> list[Comparison]:
    """By one measure, these encodings alone."""
    for metric in METRICS:
        found = [each for each in held.comparisons if each.measure.metric == metric]
        if found:
            names = [name for name in held.encodings if name in encodings]
            return [replace(each, encodings=names) for each in found[:1]]
    return []


def timed(held: Profile, name: str) -> str:
    parts = []
    for what in dict.fromkeys(row.what for row in held.rows):
        rows = [row for row in held.rows if row.what == what]
        lengths = sorted({row.length for row in rows})
        lines = []
        for encoding in dict.fromkeys(row.encoding for row in rows):
            at = {row.length: row for row in rows if row.encoding == encoding}
            ratios = [f"{x:.2f}" if (x := at[length].ratio) is not None else words.NOTHING for length in lengths]
            extra = at[lengths[-1]].extra_memory
            lines.append(
                [
                    tables.escape_markdown(encoding),
                    *ratios,
                    words.NOTHING if extra is None else f"{number(extra / 2**20)}",
                ]
            )
        heads = ["encoding", *(f"{length:,}" for length in lengths), f"MiB at {lengths[-1]:,}"]
        caption = f"{name}: {what}, time beside plain attention by length, medians; memory beyond inputs and outputs."
        parts.append(tables.markdown(heads, lines, caption))
    return "\n".join(parts)


def measured(rows: Sequence[Row], study: Probe) -> str:
    """The mean over seeds, and over all marks but the layer."""
    layers = sorted({row.marks["layer"] for row in rows})
    lines = []
    for metric in dict.fromkeys(row.metric for row in rows):
        for encoding in dict.fromkeys(row.encoding for row in rows if row.metric == metric):
            line = [NAMES[metric], tables.escape_markdown(encoding)]
            for layer in layers:
                here = [
                    row.value
                    for row in rows
                    if (row.metric, row.encoding, row.marks["layer"]) == (metric, encoding, layer)
                ]
                line.append(f"{sum(here) / len(here):.3g} ({min(here):.2g} to {max(here):.2g})")
            lines.append(line)
    heads = ["measure", "encoding", *(f"layer {layer:.0f}" for layer in layers)]
    return tables.markdown(heads, lines, f"Texts of {study.length} tokens: the mean, and the least and the greatest.")


def drawings(claim: Claim, read: Found) -> dict[str, str]:
    """The figures of a claim by their names."""
    found = {}
    probed = any(isinstance(study, Probe) for study, _ in claim.needs)
    for study, encodings in claim.needs:
        held, name = read[study.name], f"figures/{anchor(claim)}-{study.name}"
        if isinstance(study, Probe):
            for metric in dict.fromkeys(row.metric for row in held):
                drawn = dots([row for row in held if row.metric == metric], NAMES[metric])
                found[f"{name}-{metric.replace('_', '-')}.svg"] = drawn
        elif isinstance(held, Results) and not probed:
            for comparison in compared(held, encodings):
                found[f"{name}.svg"] = figures.curves(comparison)
                if drawn := figures.heat_maps(comparison):
                    found[f"{name}-by-place.svg"] = drawn
    return found


def dots(rows: Sequence[Row], title: str) -> str:
    """A mark for each number, layer by layer, those of each encoding on a line of their own."""
    look = looks(list(dict.fromkeys(row.encoding for row in rows)))
    layers = int(max(row.marks["layer"] for row in rows)) + 1
    across = Axis.linear([row.value for row in rows], zero=True)
    up = Axis(layers - 0.4, -0.6, tuple(range(layers)))  # the first layer on top
    plot = Plot(title, across, up, (title, "layer"))
    for at, (encoding, each) in enumerate(look.items()):
        shift = 0.5 * ((at + 0.5) / len(look) - 0.5)
        for row in rows:
            if row.encoding == encoding:
                plot.mark(row.value, row.marks["layer"] + shift, each, 1.8)
    return plot.svg(look)


def sized(study: Study, held: Any) -> str:
    """How large the models were, and how much they were trained."""
    if isinstance(study, Timing):
        return f"{study.heads} heads of {study.head_width}"
    row = next(row for row in (held.rows if isinstance(held, Results) else held) if row.parameters)
    trained = study.of if isinstance(study, Probe) else study
    assert isinstance(trained, Training | Digits)
    unit = "images" if isinstance(trained, Digits) else "texts"
    return f"{large(row.parameters)} parameters, {row.steps:,} steps of {trained.batch} {unit}"


def because(found: Finding) -> str:
    return f": {found.why}" if found.why else ""


def chance(p: float) -> str:
    if math.isnan(p):
        return words.NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.2g}"


def command(claim: Claim, scale: str) -> str:
    return f"adapos reproduce {claim.name} --scale {scale}"


def anchor(claim: Claim) -> str:
    """As GitHub and MkDocs make it of a heading."""
    return claim.name.replace("/", "")
