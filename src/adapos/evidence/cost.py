"""What attention costs with an encoding, beside plain attention, as `adapos profile` measures it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from adapos.evidence.study import Order, Study, Unfinished
from adapos.profile import measure
from adapos.profile.plan import Plan
from adapos.profile.rows import Folder, Results


@dataclass(frozen=True, eq=False)
class Timing(Study):
    heads: int
    head_width: int
    lengths: tuple[int, ...]
    what: tuple[str, ...] = ("forward", "training")
    threads: int = 2
    memory: bool = True

    def plan(self, order: Order, encodings: Sequence[str]) -> Plan:
        return Plan(
            encodings=tuple(encodings),
            lengths=self.lengths,
            what=self.what,
            heads=self.heads,
            kv_heads=self.heads,
            head_width=self.head_width,
            device=order.setup.device,
            threads=self.threads,
            memory=self.memory,
            out=str(order.folder / self.name),
        )

    def check(self, order: Order, encodings: Sequence[str]) -> None:
        self.plan(order, encodings)

    def run(self, order: Order, encodings: Sequence[str]) -> None:
        plan = self.plan(order, encodings)
        if self.finished(order.folder, plan):
            return
        results, folder = measure.begun(plan), Folder(plan.out)
        measure.measure(plan, results, step=order.say, keep=folder.keep)

    def finished(self, folder: Path, plan: Plan) -> bool:
        try:
            held = self.read(folder)
        except Unfinished:
            return False
        before = replace(Plan(**held.settings), encodings=plan.encodings, out=plan.out)
        return before == plan and set(plan.encodings) <= {row.encoding for row in held.rows}

    def foresee(self, order: Order, encodings: Sequence[str]) -> None:
        plan = self.plan(order, encodings)
        print(f"{measure.steps(plan)} timings side by side: {plan.command}")

    def read(self, folder: Path) -> Results:
        path = folder / self.name / "profile.json"
        if path.exists():
            try:
                found = Results.from_json(path.read_text(encoding="utf-8"))
            except (ValueError, KeyError, TypeError):
                raise Unfinished(f"{self.name}/profile.json is damaged; remove it and run the claim again") from None
            if found.finished:
                return found
        raise Unfinished(f"{self.name} was not measured to its end")
