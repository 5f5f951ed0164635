"""Times side by side: each repeat runs plain attention and then every encoding, and a ratio is of one repeat."""

from __future__ import annotations

import math
import re
import statistics
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from adapos.profile import machine
from adapos.profile.memory import extra
from adapos.profile.plan import PLAIN, Plan
from adapos.profile.rows import NOISE, Results, Row, named, spread
from adapos.profile.work import Work, maker

SHORT = 0.02  # seconds: shorter runs are repeated within one timing
LONG = 0.4  # seconds that the slowest may take for that
PTXAS = re.compile(r"^ptxas .*\b(error|fatal) :")

Say = Callable[[str], object]


class Lost(Exception):
    """A GPU that answers nothing any more, as after an illegal access to its memory."""


def begun(plan: Plan, adapos: str | None = None) -> Results:
    """Results without rows: the machine, with its measured peaks. `adapos` is its version, where more is known."""
    with threads(plan.threads):
        return Results(machine.measured(plan.type, plan.device, adapos), plan.settings, plan.command)


def measure(
    plan: Plan, results: Results, *, step: Say = lambda text: None, keep: Callable[[Results], object] = lambda r: None
) -> None:
    """Fill in the rows. `step` hears of each run before it begins, `keep` of each group of rows that is done.

    When it is interrupted, or the GPU is lost, rows of the repeats that are whole are still added and kept.
    """
    with threads(plan.threads):
        for what, length in plan.groups:
            group = Group(plan, what, length, step)
            try:
                group.run()
            except Lost as problem:
                results.lost = str(problem)
                return
            finally:
                results.rows += group.rows(results.machine)
                results.failures |= group.failures
                results.tiles = machine.tiles()
                if results.telling:  # or an earlier profile would make way for nothing
                    keep(results)
    results.finished = True
    if results.telling:
        keep(results)


def steps(plan: Plan) -> int:
    """How often `step` is called."""
    works = 1 + len(plan.encodings)
    return len(plan.what) * len(plan.lengths) * works * (1 + plan.repeats + plan.memory)


class Group:
    """Plain attention and every encoding, for one measurement and length."""

    def __init__(self, plan: Plan, what: str, length: int, step: Say) -> None:
        self.plan, self.what, self.length, self.step = plan, what, length, step
        self.works: dict[str, Work] = {}
        self.notes: dict[str, str] = {}
        self.failures: dict[str, str] = {}  # tracebacks, by the names of rows
        self.times: list[dict[str, float]] = []  # of each whole repeat
        self.memory: dict[str, int] = {}

    def run(self) -> None:
        count = self.warm()
        if self.plan.backend != "auto" and not self.failures and set(self.works) == {PLAIN}:
            return  # the backend refuses all that was to be compared
        for _ in range(self.plan.repeats):
            found = {}
            for spec in (PLAIN, *self.plan.encodings):
                self.say(spec)
                if spec in self.works:
                    try:
                        found[spec] = machine.seconds(self.works[spec].once, self.plan.device, count)
                    except Exception as problem:  # it did run once, and memory may be short by now
                        self.fail(spec, problem)
                        del self.works[spec]
            self.times.append(found)
        for spec in (PLAIN, *self.plan.encodings) if self.plan.memory else ():
            self.say(spec, "memory of ")
            if spec in self.works:
                try:
                    self.memory[spec] = extra(self.plan, self.what, spec, self.length, self.works[spec])
                except Exception as problem:
                    self.fail(spec, problem, "memory was not measured: ")

    def warm(self) -> int:
        """Make and run each once; what cannot run is noted. Returns how many runs make one timing."""
        make: Callable[[str], Work] | None = None
        quick: dict[str, float] = {}
        for spec in (PLAIN, *self.plan.encodings):
            self.say(spec)
            try:
                make = make or maker(self.plan, self.what, self.length)
                work = make(spec)
                took = machine.seconds(work.once, self.plan.device)
                # a first run is slower than those after it, by far where kernels are compiled in it
                again = took <= SHORT or self.plan.on_gpu
                quick[spec] = machine.seconds(work.once, self.plan.device) if again else took
                self.works[spec] = work
            except Exception as problem:  # a compiler's may be of any kind
                self.fail(spec, problem)
        if not quick:
            return 1
        wanted = SHORT / max(quick.get(PLAIN, min(quick.values())), 1e-7)
        return max(1, math.ceil(min(wanted, LONG / max(quick.values()))))

    def fail(self, spec: str, problem: Exception, about: str = "") -> None:
        self.notes[spec] = about + sentence(problem)
        if isinstance(problem, torch.OutOfMemoryError):  # a GPU's
            self.notes[spec] = f"{self.notes[spec].rstrip('.')}; ask for shorter --lengths or a smaller --batch"
        if not isinstance(problem, ValueError):  # which is a refusal, and says all there is
            self.failures[named(self.what, self.length, spec)] = "".join(traceback.format_exception(problem))
            if self.plan.on_gpu and not machine.answers(self.plan.device):
                raise Lost(f"{named(self.what, self.length, spec)}: {self.notes[spec]}") from problem

    def say(self, spec: str, about: str = "") -> None:
        self.step(named(self.what, self.length, about + spec))

    def rows(self, peaks: machine.Machine) -> list[Row]:
        """Of what has been measured so far, or has been found not to run."""
        found = []
        for spec in (PLAIN, *self.plan.encodings):
            work, times = self.works.get(spec), [each[spec] for each in self.times if spec in each]
            if work is not None and times:
                found.append(self.row(spec, work, times, peaks))
            elif spec in self.notes:
                found.append(Row(self.what, spec, self.length, note=self.notes[spec]))
        return found

    def row(self, spec: str, work: Work, times: list[float], peaks: machine.Machine) -> Row:
        took = statistics.median(times)
        ratios = tuple(each[spec] / each[PLAIN] for each in self.times if PLAIN in each)
        apart = spread(ratios)
        return Row(
            self.what,
            spec,
            self.length,
            backend=work.backend,
            milliseconds=1e3 * took,
            ratio=statistics.median(ratios) if ratios else None,
            ratio_least=min(ratios, default=None),
            ratio_most=max(ratios, default=None),
            spread=apart,
            # one timing tells nothing of the noise
            noisy=spec != PLAIN and bool(ratios) and (apart is None or apart > NOISE),
            ratios=ratios,
            extra_memory=self.memory.get(spec),
            flops=work.flops,
            share_of_peak=None if work.flops is None else work.flops / took / peaks.flops_per_second,
            share_of_bandwidth=None if work.cached is None else work.cached / took / peaks.bytes_per_second,
            tokens_per_second=self.plan.batch * self.length / took if self.what == "model" else None,
            parameters=work.parameters,
            refused=work.refused,
            note=self.notes.get(spec, ""),
        )


def sentence(problem: BaseException) -> str:
    """The line that says what went wrong, and of which kind it is where that is not torch's or a refusal.

    torch's first line says it, and a trace follows. Triton begins with an excerpt of the kernel, or with where it was
    called from, and has the words in `error_message` of the innermost error; among those of ptxas is its own line.
    """
    inner = problem
    while hasattr(inner, "error_message") and inner.__cause__ is not None:
        inner = inner.__cause__
    said = getattr(inner, "error_message", None) or str(inner)
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    told = next(iter([line for line in lines if PTXAS.search(line)] or lines), type(inner).__name__)
    kind = type(problem).__name__
    return told if told == kind or isinstance(problem, ValueError | RuntimeError) else f"{kind}: {told}"


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
