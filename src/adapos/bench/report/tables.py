"""The tables as CSV, Markdown and LaTeX: quality by encoding and length, and what each encoding costs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from adapos.bench.report import words
from adapos.bench.report.results import Comparison, Cost, Results
from adapos.numbers import number

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "'": r"\textquotesingle{}",
    '"': "''",
    words.MINUS: "$-$",
    words.NOTHING: "--",
    "±": r"$\pm$",
} | {letter: "\\" + letter for letter in "&%$#_{}"}
QUALITY = (
    *("task", "version", "metric", "protocol", "train_length", "encoding", "length", "mean", "spread", "seeds"),
    *("diverged", "baseline", "pairs", "difference", "p", "p_holm", "verdict"),
)
COST = ("encoding", "parameters", "positional parameters", "tokens/s", "x baseline", "peak MiB", "seconds", "backend")
COST_CAPTION = (
    "Parameters, and what training cost: means over seeds. Where encodings were timed side by side, tokens/s is the "
    "median over rounds, and x baseline the median [least, most] of the ratios in each round. Peak memory on a cpu is "
    "that of the whole process."
)
COST_CSV = ("encoding", "parameters", "positional", "tokens_per_second", "peak_bytes", "seconds", "backend")


def files(results: Results) -> dict[str, str]:
    """The text of each file by its name."""
    found = {}
    for comparison in results.comparisons:
        name = comparison.measure.name
        found[f"{name}.csv"] = quality_csv(comparison, results)
        for ending, table, style in (("md", markdown, MARKDOWN), ("tex", latex, LATEX)):
            heads, lines = quality(comparison, style)
            found[f"{name}.{ending}"] = table(heads, lines, quality_caption(comparison, results))
    found["cost.csv"] = as_csv(COST_CSV, [cost_numbers(each, results) for each in results.costs.values()])
    for ending, table, style in (("md", markdown, MARKDOWN), ("tex", latex, LATEX)):
        lines = [[style.text(cell) for cell in cost(each, results)] for each in results.costs.values()]
        found[f"cost.{ending}"] = table([style.text(head) for head in COST], lines, COST_CAPTION)
    return found


def as_csv(heads: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(heads)
    table.writerows(["" if cell is None else cell for cell in line] for line in lines)
    return text.getvalue()


def quality_csv(comparison: Comparison, results: Results) -> str:
    """Tidy: a line for each encoding and length."""
    measure = comparison.measure
    lines: list[list[object]] = []
    for encoding in comparison.encodings:
        for length in comparison.lengths:
            score = comparison.scores.get((encoding, length))
            if score is None:
                continue
            verdict = comparison.verdicts.get((encoding, length))
            tested = (
                [verdict.pairs, verdict.difference, verdict.chance, verdict.corrected, verdict.word]
                if verdict
                else [None] * 5
            )
            lines.append(
                [
                    *(measure.task, comparison.version, measure.metric, measure.protocol, comparison.train_length),
                    *(encoding, length, score.mean, score.spread, len(score.values), score.diverged),
                    *(results.baseline, *tested),
                ]
            )
    return as_csv(QUALITY, lines)


class Style(NamedTuple):
    """How a kind of text says what a cell holds."""

    text: Callable[[str], str]  # escapes
    bold: str
    marks: dict[str, str]  # of verdicts


def quality(comparison: Comparison, style: Style) -> tuple[list[str], list[list[str]]]:
    """A line for each encoding, a column for each length; marks for what is significant."""
    measure = comparison.measure
    # where all are equal none is best
    best = {
        length: names if len(names) < len(comparison.encodings) else []
        for length in comparison.lengths
        for names in (comparison.best(length),)
    }
    lines = []
    for encoding in comparison.encodings:
        line = [style.text(encoding)]
        for length in comparison.lengths:
            score = comparison.scores.get((encoding, length))
            said = style.text(words.mean(measure, score))
            said = style.bold.format(said) if encoding in best[length] else said
            spread = words.spread(measure, score)
            verdict = comparison.verdicts.get((encoding, length))
            mark = style.marks.get(verdict.word, "") if verdict else ""
            line.append(f"{said} {style.text(spread)}".strip() + mark)
        lines.append(line)
    return ["encoding", *(style.text(f"{length:,}") for length in comparison.lengths)], lines


def quality_caption(comparison: Comparison, results: Results) -> str:
    said = f"{words.title(comparison.measure)}. {words.caption(comparison, results)}"
    return f"{said} + is better and - is worse than the baseline." if comparison.verdicts else said


def cost(cost: Cost, results: Results) -> list[str]:
    peak, seconds = (cost.training.get(name) for name in ("peak_bytes", "seconds"))
    speed = results.speed(cost.encoding)
    return [
        cost.encoding,
        f"{cost.parameters:,}",
        f"{cost.positional:,}",
        number(speed) if speed else words.NOTHING,
        words.faster(cost.encoding, results),
        number(peak.mean / 2**20) if peak else words.NOTHING,
        number(seconds.mean) if seconds else words.NOTHING,
        cost.backend,
    ]


def cost_numbers(cost: Cost, results: Results) -> list[object]:
    means = [results.spent(name).get(cost.encoding) for name in COST_CSV[3:6]]
    return [cost.encoding, cost.parameters, cost.positional, *means, cost.backend]


def escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", text)


def escape_latex(text: str) -> str:
    return "".join(SPECIAL.get(letter, letter) for letter in text)


MARKDOWN = Style(escape_markdown, "**{}**", {"better": " (+)", "worse": " (-)"})
LATEX = Style(escape_latex, r"\textbf{{{}}}", {"better": r"$^{+}$", "worse": r"$^{-}$"})


def markdown(heads: list[str], lines: list[list[str]], caption: str) -> str:
    table = lined(heads, ["---", *["---:"] * (len(heads) - 1)], lines)
    return f"{table}\n{escape_markdown(caption)}\n"


def lined(heads: list[str], rule: list[str], lines: list[list[str]]) -> str:
    """A table in Markdown, alone."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, rule, *lines))


def latex(heads: list[str], lines: list[list[str]], caption: str) -> str:
    """For the package booktabs; textcomp has the straight quotes of specs."""
    body = "".join(f"    {' & '.join(line)} \\\\\n" for line in lines)
    return (
        "\\begin{table}\n  \\centering\n"
        f"  \\caption{{{escape_latex(caption)}}}\n"
        f"  \\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}\n    \\toprule\n"
        f"    {' & '.join(heads)} \\\\\n    \\midrule\n{body}    \\bottomrule\n"
        "  \\end{tabular}\n\\end{table}\n"
    )
