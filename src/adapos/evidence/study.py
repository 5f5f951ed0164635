"""What claims are read from. Claims that need the same runs share them, and with them their baselines.

FOLDER/text/    a study: a run of the bench, or what was measured of the models of one
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapos.bench import compare, plan, report, rows, tasks
from adapos.bench.commands import foresee
from adapos.bench.plan import Plan
from adapos.bench.report import results, statistics
from adapos.bench.report.results import BESIDE, Results
from adapos.bench.train import Setup
from adapos.specs import lengths


class Unfinished(ValueError):
    """Too little was run to judge by."""


@dataclass(frozen=True)
class Order:
    """How studies are carried out."""

    folder: Path
    setup: Setup
    workers: int
    say: compare.Say
    of_text: Mapping[str, Any] = field(default_factory=dict)  # parameters of the task text that a user has chosen
    model: str | None = None  # in place of a study's pretrained one
    seeds: int = statistics.NEEDED


@dataclass(frozen=True, eq=False)
class Study(ABC):
    name: str  # of its folder

    @property
    def reads_text(self) -> bool:
        """Whether a user's data can take the place of its own."""
        return False

    @property
    def pretrained(self) -> bool:
        """Whether a user's model can take the place of its own."""
        return False

    @property
    def rests_on(self) -> Study | None:
        """The study whose models it measures."""
        return None

    @abstractmethod
    def check(self, order: Order, encodings: Sequence[str]) -> None:
        """Raise ValueError where something is missing that it needs."""

    @abstractmethod
    def run(self, order: Order, encodings: Sequence[str]) -> None:
        """Do what is missing, beside what the folder holds for other claims."""

    @abstractmethod
    def foresee(self, order: Order, encodings: Sequence[str]) -> None:
        """Print what a run would take, and write nothing."""

    @abstractmethod
    def read(self, folder: Path) -> Any:
        """What the study's folder holds; `Unfinished` where that is nothing."""


@dataclass(frozen=True, eq=False)
class Training(Study):
    """Models trained and examined by the bench: settings of a plan, but for its encodings and seeds."""

    settings: Mapping[str, Any]

    @property
    def train_length(self) -> int:
        return int(self.settings["train_length"])

    @property
    def batch(self) -> int:
        return int(self.settings["batch"])

    @property
    def lengths(self) -> tuple[int, ...]:
        return lengths(self.settings["lengths"])

    @property
    def unseen(self) -> tuple[int, ...]:
        return tuple(length for length in self.lengths if length > self.train_length)

    @property
    def reads_text(self) -> bool:
        return tasks.read(tasks.normal(self.settings["task"]))[0].name == "text"

    @property
    def pretrained(self) -> bool:
        return "model" in self.settings

    def plan(self, encodings: Sequence[str], order: Order) -> Plan:
        settings: dict[str, Any] = {**self.settings, "lengths": self.lengths}
        of_text = order.of_text
        if self.pretrained:
            settings["model"] = order.model or settings["model"]
            of_text = {**of_text, "tokenizer": settings["model"]}
        if self.reads_text:
            settings["task"] = tasks.normal(settings["task"], **of_text)
        return Plan(encodings=tuple(encodings), seeds=tuple(range(order.seeds)), **settings)

    def check(self, order: Order, encodings: Sequence[str]) -> None:
        plan.merged(self.plan(encodings, order).checked(), order.folder / self.name)

    def run(self, order: Order, encodings: Sequence[str]) -> None:
        asked, folder = self.plan(encodings, order).checked(), order.folder / self.name
        plan.settle(asked, folder)
        examined: dict[str, set[int]] = {}
        for row in rows.read(folder / "rows.jsonl"):
            if row.protocol not in BESIDE:
                examined.setdefault(row.trial, set()).add(row.length)
        # processes take seconds to begin, also where there is nothing to do
        left = [trial for trial in asked.trials if not examined.get(trial.name, set()) >= set(asked.lengths)]
        if not left:
            return
        compare.in_processes(folder, left, order.setup, order.workers, order.say)
        try:
            report.write(folder)
        except ImportError as problem:
            order.say(f"warning: {problem}")

    def foresee(self, order: Order, encodings: Sequence[str]) -> None:
        foresee(self.plan(encodings, order), order.setup, order.folder / self.name)

    def read(self, folder: Path) -> Results:
        if not rows.read(folder / self.name / "rows.jsonl"):
            raise Unfinished(f"nothing of {self.name} was run")
        try:
            return results.load(folder / self.name)
        except ValueError as problem:
            raise Unfinished(str(problem)) from None
