"""What breaks while it is measured, a compiler most of all, is noted and ends no run."""

import ast
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from adapos.profile import machine, measure, work
from adapos.profile.plan import Plan
from adapos.profile.rows import Results

PLAN = Plan(("kerple + dape",), (16,), ("forward",), heads=4, kv_heads=2, head_width=8, repeats=2, memory=False)
MACHINE = machine.Machine("", 1, 1, "", "", "", "", 1e9, 1e9)

pytestmark = pytest.mark.usefixtures("one_thread")

COMPILER = pytest.importorskip("triton.compiler.errors")
RUNTIME = pytest.importorskip("triton.runtime.errors")
SOURCE = "def kernel(x):\n    return tl.dot(x, x)\n"
LINE = ast.parse(SOURCE).body[0].body[0]
PTXAS = """Internal Triton PTX codegen error
`ptxas` stderr:
ptxas /tmp/a.ptx, line 7; error   : Feature 'wgmma' not supported on .target 'sm_80'
ptxas fatal   : Ptx assembly aborted due to errors

Repro command: ptxas -lineinfo /tmp/a.ptx
"""


def profiled(plan: Plan) -> Results:
    results = Results(MACHINE, plan.settings, plan.command)
    measure.measure(plan, results)
    return results


def caused(*problems: Exception) -> Exception:
    """The first, each raised from the next."""
    for outer, inner in pairwise(problems):
        outer.__cause__ = inner
    return problems[0]


FAILURES = [
    (RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA"), "CUDA error: out of memory"),
    (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore"),
        "CUDA out of memory. Tried to allocate 2.00 GiB; ask for shorter --lengths or a smaller --batch",
    ),
    (COMPILER.CompilationError(SOURCE, LINE, "no  such type\nmore"), "CompilationError: no such type"),
    (
        caused(
            COMPILER.CompilationError(SOURCE, LINE, None),
            COMPILER.CompilationError(SOURCE, LINE, "shapes differ"),
            AssertionError("shapes differ"),
        ),
        "CompilationError: shapes differ",
    ),
    (caused(COMPILER.CompilationError(SOURCE, LINE, ""), AssertionError()), "CompilationError: AssertionError"),
    (
        RUNTIME.PTXASError(PTXAS),
        "PTXASError: ptxas /tmp/a.ptx, line 7; error : Feature 'wgmma' not supported on .target 'sm_80'",
    ),
    (
        RUNTIME.OutOfResources(180224, 101376, "shared memory"),
        "OutOfResources: out of resource: shared memory, Required: 180224, Hardware limit: 101376. Reducing block "
        "sizes or `num_stages` may help.",
    ),
    (KeyError("H"), "KeyError: 'H'"),
    (AssertionError(), "AssertionError"),
]


@pytest.mark.parametrize(("problem", "note"), FAILURES, ids=[note.split(":")[0] for _, note in FAILURES])
def test_what_breaks_ends_no_run_and_its_line_that_tells_most_is_the_note(
    problem: Exception, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = work.attention

    def attention(plan: Plan, what: str, spec: str, length: int) -> work.Work:
        def fail() -> None:
            raise problem

        found = real(plan, what, spec, length)
        return replace(found, once=fail) if spec == "alibi" else found

    monkeypatch.setattr(work, "attention", attention)
    results = profiled(replace(PLAN, encodings=("alibi", "rope")))
    _, row, other = results.rows
    assert (row.note, row.milliseconds) == (note, None)
    assert type(problem).__name__ in results.failures[row.name]
    assert other.milliseconds is not None
    assert results.finished


def test_what_breaks_after_the_first_run_is_noted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def seconds(run: object, device: str, count: int = 1) -> float:
        runs.append(run)
        if len(runs) == 6:  # two to warm up of each, plain attention, and it
            raise RUNTIME.OutOfResources(2, 1, "registers")
        return 1e-3

    monkeypatch.setattr(machine, "seconds", seconds)
    results = profiled(PLAN)
    assert [row.note.partition(",")[0] for row in results.rows] == ["", "OutOfResources: out of resource: registers"]
    assert list(results.failures) == [results.rows[1].name]
