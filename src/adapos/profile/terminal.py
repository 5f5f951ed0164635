"""What the terminal shows: a bar on stderr while measuring, then a table for each measurement."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from adapos.console import Console
from adapos.numbers import large, number
from adapos.profile import words
from adapos.profile.plan import PLAIN
from adapos.profile.rows import Results, Row

NARROWEST = 80


@contextmanager
def bar(steps: int) -> Iterator[Callable[[str], None]]:
    """Nothing where stderr is not a terminal."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    console = Console(stderr=True)
    # drawn at each step only: a thread that draws would be timed too
    with Progress(
        *columns, console=console, transient=True, auto_refresh=False, disable=not sys.stderr.isatty()
    ) as progress:
        task = progress.add_task("the machine's peak", total=steps)
        began = False

        def step(text: str) -> None:
            nonlocal began
            progress.update(task, description=text, advance=int(began), refresh=True)
            began = True

        yield step


def show(results: Results) -> None:
    out = Console()
    # a narrow terminal may break lines, but must not cut numbers
    out.width = max(out.width, NARROWEST)
    for what in results.settings["what"]:
        rows = [row for row in results.rows if row.what == what]
        if not rows:
            continue
        out.print(Text(words.title(what, results), style="bold"))
        out.print(table(what, rows))
        for line in (words.caption(what, results), *words.notes(rows), *words.refusals(rows)):
            out.print(Text(line, style="dim"))
        out.print()


def table(what: str, rows: list[Row]) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("encoding", overflow="fold", min_width=14)
    for name in ("ms", "x plain", "MiB", "FLOP", "peak", *(["tokens/s"] if what == "model" else []), "backend"):
        grid.add_column(name, justify="left" if name == "backend" else "right", no_wrap=True)
    last = None
    for row in rows:
        if row.length != last:
            if last is not None:
                grid.add_section()
            grid.add_row(Text(f"{row.length} tokens", style="bold"))
        grid.add_row(*cells(row))
        last = row.length
    return grid


def cells(row: Row) -> list[str | Text]:
    name = Text(row.encoding, style="dim" if row.encoding == PLAIN else "")
    if row.milliseconds is None:
        return [name, "not run"]
    beside = words.ratio(row)
    if row.what == "model":  # one column more than others, in the width of a terminal
        beside = beside.replace(" [", "\n[")
    found: list[str | Text] = [
        name,
        number(row.milliseconds),
        Text(beside, style="yellow" if row.noisy else ""),
        words.memory(row),
        "?" if row.flops is None else large(row.flops),
        words.of_peak(row),
    ]
    if row.tokens_per_second is not None:
        found.append(number(row.tokens_per_second))
    return [*found, row.backend or ""]
