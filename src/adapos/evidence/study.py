"""The runs that claims are read from. Claims that need the same training share one, and with it their baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapos.bench import tasks
from adapos.bench.plan import Plan
from adapos.specs import lengths

SCALES = ("small", "paper")


@dataclass(frozen=True)
class Study:
    """Settings of a plan, but for its encodings and seeds, by scale."""

    name: str
    small: Mapping[str, Any]
    paper: Mapping[str, Any]
    seeds: int = 3

    def plan(self, scale: str, encodings: Sequence[str], of_text: Mapping[str, Any]) -> Plan:
        """`of_text` are parameters of the task text, such as data, that a user has chosen."""
        settings: dict[str, Any] = {**(self.small if scale == "small" else self.paper)}
        task = settings["task"]
        if tasks.read(tasks.normal(task))[0].name == "text":
            settings["task"] = tasks.normal(task, **of_text)
        settings["lengths"] = lengths(settings["lengths"])
        return Plan(encodings=tuple(encodings), seeds=tuple(range(self.seeds)), **settings)
