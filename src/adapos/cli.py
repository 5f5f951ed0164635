"""The command line: parse, call, print. What a user got wrong is one line on stderr and exit code 2."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from contextlib import suppress
from enum import StrEnum
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.text import Text

from adapos import models, registry, table
from adapos.bench import commands
from adapos.bench.provenance import commit
from adapos.bench.signals import heard
from adapos.console import Commands, Console, in_a_sentence, refuse, ruled
from adapos.contract import Report, check
from adapos.encoding import PositionalEncoding, Shape
from adapos.evidence import commands as evidence
from adapos.explore import commands as explore
from adapos.kernels import Call, ranked
from adapos.profile import measure, page, plan, rows, terminal, words
from adapos.sketch import Size, sketch
from adapos.specs import lengths as read_lengths
from adapos.specs import specs

COLOURS = {"held": "green", "exempt": "yellow", "broken": "bold red", "chosen": "green", "refuses": "yellow"}

app = typer.Typer(
    name="adapos",
    cls=Commands,
    help="Positional encodings that read the data, and every static one they are measured against.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(commands.app)
app.add_typer(models.app)
app.add_typer(evidence.app)
app.add_typer(explore.app)


class Dtype(StrEnum):
    float64 = "float64"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


def main() -> None:
    app()


def show_version(asked: bool) -> None:
    if asked:
        print(f"adapos {version_of('adapos')}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
@in_a_sentence
def encodings(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table, as in the README.")] = False,
) -> None:
    """List every encoding: its parameters, what it does, its paper and what it promises."""
    if markdown:
        print(table.markdown())
        return
    grid = ruled("encoding", "what it does", "arXiv", "promises")
    for row in table.rows():
        name = Text(row.names, style="bold")
        if row.parameters:
            name.append("\n" + row.defaults.replace(", ", "\n"), style="not bold dim")
        grid.add_row(name, Text(row.does), "\n".join(row.papers), row.promised.replace(", ", "\n"))
    Console().print(grid)


@app.command()
@in_a_sentence
def kernels(
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="An encoding, such as 'kerple + dape(kernel=3)'.")],
    length: Annotated[int, typer.Option(max=2**40, help="Tokens in the text.")] = 2048,
    batch: Annotated[int, typer.Option(max=2**20, help="Texts at once.")] = 1,
    heads: Annotated[int, typer.Option(max=2**16, help="Query heads.")] = 12,
    kv_heads: Annotated[int | None, typer.Option(help="Key/value heads; as many as heads unless given.")] = None,
    head_width: Annotated[int, typer.Option(max=2**16, help="Width of a head.")] = 64,
    dtype: Annotated[Dtype, typer.Option(help="Type of the numbers.")] = Dtype.float32,
    device: Annotated[str, typer.Option(help="Where the tensors are: cpu, cuda...")] = "cpu",
    training: Annotated[bool, typer.Option("--training/--inference", help="With gradients or without.")] = True,
    bidirectional: Annotated[bool, typer.Option("--bidirectional", help="Every token sees every other.")] = False,
) -> None:
    """Say which backend runs an encoding, and why the others do not."""
    # two layers: a state that travels has somewhere to go
    shape = Shape(layers=2, width=max(1, heads * head_width), heads=heads, kv_heads=kv_heads, head_width=head_width)
    size = Size(batch, length, getattr(torch, dtype.value), device, not bidirectional)
    with torch.set_grad_enabled(training):
        call = sketch(built(spec, shape).train(training), size)
        answers = [(backend.name, backend.refuses(call)) for backend in ranked(call)]
    out = Console()
    out.print(Text(described(spec, call, training)))
    grid = ruled("backend", "answer", "why")
    chosen = next(name for name, reason in answers if reason is None)
    for name, reason in answers:
        answer = "refuses" if reason else "chosen" if name == chosen else "can run"
        why = reason or ("the best that can run it" if name == chosen else "")
        grid.add_row(name, Text(answer, style=COLOURS.get(answer, "")), Text(why))
    out.print(grid)


def built(spec: str, shape: Shape) -> PositionalEncoding:
    try:
        return registry.build(spec, shape)
    except RuntimeError as problem:  # a table too large for the memory
        raise ValueError(f"{spec!r} cannot be built: {in_words(problem)}") from None


@app.command()
@in_a_sentence
def profile(
    encodings: Annotated[
        str, typer.Option(help="Encodings, separated by commas.")
    ] = "rope, alibi, kerple, kerple + dape, kerple + dape(kernel=3), tape",
    lengths: Annotated[str, typer.Option(help="Tokens: numbers, and doublings such as 512..8192.")] = "512..8192",
    what: Annotated[
        str, typer.Option(help=f"Some of {', '.join(plan.MEASUREMENTS)}, separated by commas.")
    ] = "forward,training,decode",
    heads: Annotated[int, typer.Option(max=2**16, help="Query heads.")] = 12,
    kv_heads: Annotated[int | None, typer.Option(help="Key/value heads; as many as heads unless given.")] = None,
    head_width: Annotated[int, typer.Option(max=2**16, help="Width of a head.")] = 64,
    batch: Annotated[int, typer.Option(max=2**20, help="Texts at once.")] = 1,
    dtype: Annotated[Dtype, typer.Option(help="Type of the numbers.")] = Dtype.float32,
    device: Annotated[str, typer.Option(help="Where to run: cpu or cuda.")] = "cpu",
    threads: Annotated[
        int | None, typer.Option(max=2**12, help="Threads; as many as torch takes unless given.")
    ] = None,
    repeats: Annotated[int, typer.Option(max=10**6, help="Timings of each, after one that is not counted.")] = 5,
    backend: Annotated[str, typer.Option(help="auto, or the backend that is to run all encodings.")] = "auto",
    size: Annotated[str, typer.Option(help=f"The decoder of --what model: {', '.join(plan.SIZES)}.")] = "10m",
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Measure memory too, in a process for each.")
    ] = True,
    out: Annotated[
        str,
        typer.Option(
            help="Folder for profile.json, profile.csv and profile.html, which replace those of an earlier run."
        ),
    ] = "profile",
) -> None:
    """Measure what encodings cost on this machine, beside plain attention: time, memory and arithmetic."""
    asked = plan.Plan(
        encodings=specs(encodings),
        lengths=read_lengths(lengths),
        what=plan.measurements(what),
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        head_width=head_width,
        batch=batch,
        dtype=dtype.value,
        device=device,
        threads=torch.get_num_threads() if threads is None else threads,
        repeats=repeats,
        backend=backend,
        size=size,
        memory=memory,
        out=out,
    )
    saved = ["profile.json", "profile.csv"]
    with rows.Folder(out) as folder:
        with terminal.bar(measure.steps(asked)) as step:
            results = measure.begun(asked, commit())
            # what has been measured is shown and saved all the same
            with heard(signal.default_int_handler), suppress(KeyboardInterrupt):
                measure.measure(asked, results, step=step, keep=folder.keep)
        if results.telling:  # before anything is printed: whoever reads that may have heard enough
            try:
                with heard(lambda *_: None):  # those who ask for an end twice
                    folder.write("profile.html", page.page(results))
                saved.append("profile.html")
            except ImportError as problem:
                print(f"warning: {problem}", file=sys.stderr)
    if results.rows:
        terminal.show(results)
    if results.telling:
        print(f"saved in {out}: {', '.join(saved)}")
    for warning in filter(None, (words.failures(results), words.warning(results))):
        print(f"warning: {warning}", file=sys.stderr)
    if results.lost:
        refuse(words.ended(results) + folder.spared())
    if not results.finished:
        print(words.ended(results) + folder.spared(), file=sys.stderr)
        raise typer.Exit(130)
    if why := words.nothing(results):
        refuse(why)


@app.command("check")
@in_a_sentence
def check_(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A spec, or a .py file with encodings of your own.")],
) -> None:
    """Measure every promise of an encoding. Exit code 1 if one is broken."""
    path = Path(target) if is_file(target) else None
    reports = []
    for name in [target] if path is None else registered_by(path):
        with Console(stderr=True).status(Text(f"checking {name}")):
            reports.append(checked(name, path))
        show(reports[-1])
    if not all(reports):
        raise typer.Exit(1)


def is_file(target: str) -> bool:
    return target.endswith(".py") or (os.sep in target and Path(target).exists())


def registered_by(path: Path) -> list[str]:
    """The names that a file newly registers."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}" if not path.exists() else f"{path} is not a file")
    known = dict(registry.REGISTRY)
    # a name that no real module has, whatever the file is called
    module_spec = importlib.util.spec_from_file_location(f"adapos_check_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise ValueError(f"{path} must be a Python file, ending in .py")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    # files beside it can be imported, as when Python runs it
    sys.path.insert(0, str(path.resolve().parent))
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:
        raise ValueError(f"{path} does not import: {in_words(problem)}{where(problem, module_spec.origin)}") from None
    names = [name for name, cls in registry.REGISTRY.items() if known.get(name) is not cls]
    if not names:
        raise ValueError(f'{path} registers no encoding; put @adapos.register("its_name") above the class')
    return names


def in_words(problem: BaseException) -> str:
    said = problem.msg if isinstance(problem, SyntaxError) else str(problem)
    return f"{type(problem).__name__}: {said}" if said else type(problem).__name__


def where(problem: BaseException, file: str | None) -> str:
    """The last line of the file on the way to the problem."""
    line = problem.lineno if isinstance(problem, SyntaxError) and problem.filename == file else None
    step = problem.__traceback__
    while step is not None:
        line = step.tb_lineno if step.tb_frame.f_code.co_filename == file else line
        step = step.tb_next
    return "" if line is None else f" (line {line})"


def checked(name: str, path: Path | None) -> Report:
    try:
        return check(name)
    except Exception as problem:  # a constructor may fail in any way
        if path is None and isinstance(problem, ValueError):
            raise
        origin = "" if path is None else f"{path}: "
        raise ValueError(f"{origin}{name!r} cannot be built: {in_words(problem)}") from None


def show(report: Report) -> None:
    out = Console()
    out.print(Text(report.encoding, style="bold"))
    grid = ruled("promise", "error", "limit", "verdict", "note")
    for finding in report:
        measured = ("", "") if finding.verdict == "exempt" else (f"{finding.error:.1e}", f"{finding.limit:.0e}")
        verdict = Text(finding.verdict, style=COLOURS[finding.verdict])
        grid.add_row(finding.promise, *measured, verdict, Text(finding.note or finding.meaning))
    out.print(grid)
    verdicts = [finding.verdict for finding in report]
    counted = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in COLOURS if verdict in verdicts)
    out.print(Text(f"{counted}: {', '.join(report.broken)}" if report.broken else counted))


def described(spec: str, call: Call, training: bool) -> str:
    batch, heads, length, width = call.q.shape
    shared = "" if call.groups == heads else f" over {call.groups} key/value heads"
    terms = ", ".join(type(term).__name__ for term in call.pairs.terms) or "nothing"
    return (
        f"{spec}: {'training' if training else 'inference'}, {'causal' if call.layout.causal else 'bidirectional'}, "
        f"batch {batch}, length {length}, {heads} heads of {width}{shared}, {str(call.q.dtype).removeprefix('torch.')} "
        f"on {call.q.device}\nbetween the scores and the softmax: {terms}"
    )


if __name__ == "__main__":
    main()
