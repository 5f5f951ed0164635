"""The main table and its answer, for the command line."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from adapos.bench.report import words
from adapos.bench.report.results import Comparison, Results

STYLES = {"better": "green", "worse": "red"}


def shown(results: Results, protocol: str = "") -> RenderableType:
    parts: list[RenderableType] = []
    for comparison in results.main(protocol):
        parts.append(Text(words.title(comparison.measure), style="bold"))
        parts += [Text(line) for line in words.answers(comparison, results)]
        parts += [table(comparison), Text(words.caption(comparison, results), style="dim"), Text()]
        notes = [*words.fewer(comparison, results), *words.incomplete(comparison, results)]
        parts += [Text(line, style="yellow") for line in notes]
    parts += [Text(line, style="yellow") for line in filter(None, [words.caution(results, protocol)])]
    parts += [Text(f"failed: {line}", style="red") for line in words.failures(results)]
    return Group(*parts)


def table(comparison: Comparison) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("encoding", overflow="fold", min_width=14)
    for length in comparison.lengths:
        grid.add_column(f"{length:,}", justify="right")
    for encoding in comparison.encodings:
        grid.add_row(Text(encoding), *(cell(comparison, encoding, length) for length in comparison.lengths))
    return grid


def cell(comparison: Comparison, encoding: str, length: int) -> Text:
    """The mean over its spread; green or red where it is significantly better or worse, and said so."""
    score, verdict = comparison.scores.get((encoding, length)), comparison.verdicts.get((encoding, length))
    word = verdict.word if verdict and verdict.word in STYLES else ""
    bold = "bold" if encoding in comparison.best(length) else ""
    found = Text(words.mean(comparison.measure, score), style=bold, justify="right")
    for line, style in ((words.spread(comparison.measure, score), "dim"), (word, STYLES.get(word, ""))):
        if line:
            found.append(f"\n{line}", style=style)
    return found
