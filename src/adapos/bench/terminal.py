"""What the terminal shows of a comparison: a bar for the trials and one for the steps of the trial at hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from adapos.bench.plan import Trial
from adapos.numbers import number


class Bars:
    """Bars where stderr is a terminal; else a line when a trial begins."""

    def __init__(self, progress: Progress, trials: int) -> None:
        self.progress = progress
        self.live = not progress.disable
        self.trials = progress.add_task("trials", total=trials, said="", visible=trials > 1)
        self.steps = progress.add_task("", total=None, said="", visible=False)

    def began(self, trial: Trial, step: int) -> None:
        name = f"{trial.encoding}, seed {trial.seed}"
        if not self.live:
            print(f"{name}: {trial.steps - step} of {trial.steps} steps to train", file=sys.stderr)
        self.progress.reset(self.steps, total=trial.steps, completed=step, description=name, visible=True)

    def stepped(self, step: int, loss: float, tokens_per_second: float) -> None:
        said = f"loss {loss:.3f}, {number(tokens_per_second)} tokens/s"
        self.progress.update(self.steps, completed=step, said=said)

    def examined(self, text: str) -> None:
        self.progress.update(self.steps, description="", said=text, visible=True)

    def done(self) -> None:
        self.progress.advance(self.trials)

    def warned(self, sentence: str) -> None:
        self.progress.console.print(Text(f"warning: {sentence}", style="yellow"))


@contextmanager
def bars(trials: int) -> Iterator[Bars]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}", markup=False),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        yield Bars(progress, trials)
