"""The bench on the command line: tasks, train, evaluate, compare and report."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from adapos import files, registry
from adapos.bench import compare as comparing
from adapos.bench import forecast, report, rows, tasks, terminal
from adapos.bench import plan as plans
from adapos.bench.boards import BOARDS
from adapos.bench.plan import Plan
from adapos.bench.signals import Stopped, heard, stop
from adapos.bench.task import Task as Task_
from adapos.bench.train import Failed, Setup, facts, fitting, train
from adapos.console import Console, in_a_sentence, ruled
from adapos.numbers import large
from adapos.specs import lengths as read_lengths
from adapos.specs import specs as read_specs

app = typer.Typer()

# settings of a plan; where one is not given, the plan's file or its default decides
Task = Annotated[
    str | None, typer.Option("--task", help=f"What to train on, {Plan.task} unless given; `adapos tasks` lists all.")
]
TrainLength = Annotated[
    int | None, typer.Option(help=f"The longest text while training; {Plan.train_length} unless given.")
]
Lengths = Annotated[str | None, typer.Option(help="Lengths to examine: numbers, and doublings such as 128..8192.")]
Size = Annotated[str | None, typer.Option(help=f"The decoder: {', '.join(plans.SIZES)}; {Plan.size} unless given.")]
Layers = Annotated[int | None, typer.Option(min=1, help="In place of the size's.")]
Width = Annotated[int | None, typer.Option(min=1, help="In place of the size's.")]
Heads = Annotated[int | None, typer.Option(min=1, help="In place of the size's.")]
KvHeads = Annotated[int | None, typer.Option(min=1, help="Key/value heads; as many as heads unless given.")]
Steps = Annotated[int | None, typer.Option(help=f"Steps of training; {Plan.steps} unless given.")]
Batch = Annotated[int | None, typer.Option(help=f"Texts a step; {Plan.batch} unless given.")]
Rate = Annotated[float | None, typer.Option(help=f"The greatest learning rate; {Plan.rate} unless given.")]
WarmUp = Annotated[
    float | None, typer.Option(help=f"Share of the steps in which the rate rises; {Plan.warm_up} unless given.")
]
Decay = Annotated[float | None, typer.Option(help=f"Weight decay; {Plan.decay} unless given.")]
Clip = Annotated[float | None, typer.Option(help=f"The greatest size of a gradient; {Plan.clip} unless given.")]
Dropout = Annotated[float | None, typer.Option(help="Of attention weights.")]
Dtype = Annotated[str | None, typer.Option(help=f"Numbers of matrix products: {', '.join(plans.DTYPES)}.")]
Data = Annotated[
    str | None, typer.Option(help="Text: stdlib, enwik8, a file or folder, or hf:NAME for a Hugging Face dataset.")
]
Field = Annotated[str | None, typer.Option(help="The field of JSON lines or tables that holds the text.")]
Tokenizer = Annotated[str | None, typer.Option(help="bytes, or a Hugging Face tokenizer by name or path.")]
Documents = Annotated[str | None, typer.Option(help="joined, or apart: whether texts see what stands before them.")]
Limit = Annotated[int | None, typer.Option(help="Bytes of text to read at most; all unless given.")]
Protocol = Annotated[
    str | None, typer.Option(help=f"How text is read: {', '.join(plans.PROTOCOLS)}; {Plan.protocol} unless given.")
]
Scored = Annotated[int | None, typer.Option(min=1, help="Tokens of each text that are scored by the protocol `last`.")]
Stride = Annotated[int | None, typer.Option(min=1, help="Of the protocol `sliding`.")]
Examples = Annotated[
    int | None, typer.Option(help=f"Texts, or exams at each place of a grid; {Plan.examples} unless given.")
]
Baseline = Annotated[str | None, typer.Option(help="The encoding that others are tested against.")]
Significance = Annotated[float | None, typer.Option(help="The greatest p of a difference that counts.")]
PlanFile = Annotated[Path | None, typer.Option("--plan", help="Settings in a .toml, .yaml or .json file.")]
# how it is run
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Backend = Annotated[str, typer.Option(help="auto, or the backend that is to run all encodings.")]
Accumulate = Annotated[int, typer.Option(help="Parts that a batch is computed in.")]
Compiled = Annotated[bool, typer.Option("--compile", help="Compile the model with torch.compile.")]
Recomputed = Annotated[bool, typer.Option("--recompute", help="Compute activations again in the backward pass.")]
Every = Annotated[float, typer.Option(help="Seconds between checkpoints.")]
Keep = Annotated[int, typer.Option(help="Checkpoints to keep.")]
Board = Annotated[str, typer.Option(help=f"Where curves are shown besides the log: {', '.join(BOARDS)}.")]
Sharded = Annotated[bool, typer.Option("--shard", help="Spread the model over the processes of torchrun (FSDP2).")]
Out = Annotated[Path, typer.Option(help="The folder of the run.")]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a run.")]


@app.command("tasks")
@in_a_sentence
def list_tasks() -> None:
    """List every task: its parameters and what it asks."""
    grid = ruled("task", "what it asks", "scored by")
    for name, cls in tasks.TASKS.items():
        title = Text(name, style="bold")
        for parameter, default in tasks.parameters(cls).items():
            title.append(f"\n{parameter}={default!r}", style="not bold dim")
        grid.add_row(title, Text(" ".join((cls.__doc__ or "").split("\n\n")[0].split())), cls.metric)
    Console().print(grid)


@app.command()
@in_a_sentence
def compare(
    encodings: Annotated[str | None, typer.Option(help="Encodings, separated by commas.")] = None,
    task: Task = None,
    train_length: TrainLength = None,
    lengths: Lengths = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds, 0, 1, 2...; one unless given.")] = None,
    size: Size = None,
    layers: Layers = None,
    width: Width = None,
    heads: Heads = None,
    kv_heads: KvHeads = None,
    steps: Steps = None,
    batch: Batch = None,
    rate: Rate = None,
    warm_up: WarmUp = None,
    decay: Decay = None,
    clip: Clip = None,
    dropout: Dropout = None,
    dtype: Dtype = None,
    data: Data = None,
    field: Field = None,
    tokenizer: Tokenizer = None,
    documents: Documents = None,
    limit: Limit = None,
    protocol: Protocol = None,
    scored: Scored = None,
    stride: Stride = None,
    examples: Examples = None,
    baseline: Baseline = None,
    significance: Significance = None,
    plan: PlanFile = None,
    device: Device = "cpu",
    backend: Backend = "auto",
    accumulate: Accumulate = 1,
    compiled: Compiled = False,
    recomputed: Recomputed = False,
    every: Every = 60.0,
    keep: Keep = 2,
    board: Board = "none",
    sharded: Sharded = False,
    workers: Annotated[int, typer.Option(min=1, help="Trials at once, in processes of their own.")] = 1,
    cluster: Annotated[str | None, typer.Option(help="ray, or ray://ADDRESS: run the trials there.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and what it will take, and stop.")] = False,
    out: Out = Path("runs/first"),
) -> None:
    """Train every encoding alike, examine each by length, and report which is best, and what it costs."""
    given = settings_of(locals()) | {
        "encodings": None if encodings is None else read_specs(encodings),
        "lengths": None if lengths is None else read_lengths(lengths),
        "seeds": None if seeds is None else tuple(range(seeds)),
        "task": described(task, plan, data=data, field=field, tokenizer=tokenizer, documents=documents, limit=limit),
    }
    asked = planned(plan, given, {"encodings": "rope, alibi, kerple, kerple + dape, tape", "lengths": "128..1024"})
    setup = Setup(device, backend, accumulate, compiled, recomputed, every, keep, board, sharded)
    fitting(asked.dtype, setup)
    if cluster is not None:
        registry.one_of("compare", "cluster", cluster.partition("://")[0], ("ray",))
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("compare starts its own processes; give torchrun `adapos train`, then run `adapos evaluate`")
    asked = plans.merged(asked.checked(), out)
    if dry_run:
        foresee(asked, setup, out)
        return
    files.folder(out)
    asked = plans.settle(asked, out)
    carry_out(out, asked, setup, workers, cluster)
    finish(out, asked.protocol)
    failed = [row for row in rows.read(out / "rows.jsonl") if row.metric == "failed" and row.protocol == "training"]
    if len([row for row in failed if row.value]) == len(asked.trials):
        print("every trial failed; the report says why", file=sys.stderr)
        raise typer.Exit(1)


def first_process() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def carry_out(folder: Path, plan: Plan, setup: Setup, workers: int, cluster: str | None) -> None:
    def say(text: str) -> None:
        print(text, file=sys.stderr)

    with stoppable():
        if cluster is not None:
            comparing.on_cluster(folder, setup, cluster if "://" in cluster else None, say)
        elif workers > 1:
            comparing.side_by_side(folder, setup, workers, say)
        else:
            with terminal.bars(len(plan.trials)) as bars:
                comparing.run(folder, setup, bars)


@contextmanager
def stoppable() -> Iterator[None]:
    """A signal ends what runs here, in a sentence and with its own exit code."""
    try:
        with heard(stop):
            yield
    except Stopped as problem:
        print(problem, file=sys.stderr)
        raise typer.Exit(128 + problem.number) from None


@app.command("train")
@in_a_sentence
def train_(
    encoding: Annotated[str, typer.Option(help="The encoding, such as 'kerple + dape'.")],
    seed: Annotated[int, typer.Option(help="Of the weights, the data and all else that is drawn.")] = 0,
    task: Task = None,
    train_length: TrainLength = None,
    lengths: Lengths = None,
    size: Size = None,
    layers: Layers = None,
    width: Width = None,
    heads: Heads = None,
    kv_heads: KvHeads = None,
    steps: Steps = None,
    batch: Batch = None,
    rate: Rate = None,
    warm_up: WarmUp = None,
    decay: Decay = None,
    clip: Clip = None,
    dropout: Dropout = None,
    dtype: Dtype = None,
    data: Data = None,
    field: Field = None,
    tokenizer: Tokenizer = None,
    documents: Documents = None,
    limit: Limit = None,
    plan: PlanFile = None,
    device: Device = "cpu",
    backend: Backend = "auto",
    accumulate: Accumulate = 1,
    compiled: Compiled = False,
    recomputed: Recomputed = False,
    every: Every = 60.0,
    keep: Keep = 2,
    board: Board = "none",
    sharded: Sharded = False,
    out: Out = Path("runs/first"),
) -> None:
    """Train one encoding; run again, it goes on where it was stopped. `adapos evaluate` examines it."""
    given = settings_of(locals()) | {
        "encodings": (" ".join(encoding.split()),),
        "seeds": (seed,),
        "lengths": None if lengths is None else read_lengths(lengths),
        "task": described(task, plan, data=data, field=field, tokenizer=tokenizer, documents=documents, limit=limit),
    }
    asked = planned(plan, given, {})
    train_trials(asked, Setup(device, backend, accumulate, compiled, recomputed, every, keep, board, sharded), out)


def train_trials(plan: Plan, setup: Setup, out: Path) -> None:
    """Every trial of a plan, here, and no more than that."""
    if (out / "plan.json").exists():  # training does not ask how the folder is read
        there = plans.load(out / "plan.json")
        plan = replace(plan, **{name: getattr(there, name) for name in ("protocol", "scored", "stride", "examples")})
    plan, trials = plan.checked(), plan.trials
    plans.merged(plan, out)
    fitting(plan.dtype, setup)
    files.folder(out)
    plans.settle(plan, out)
    with stoppable(), terminal.bars(len(trials)) as bars:
        for trial in trials:
            folder = out / "trials" / trial.name
            try:
                train(trial, folder, setup, bars)
            except Failed as problem:
                print(f"failed: {problem}; its state is kept in {folder}", file=sys.stderr)
                raise typer.Exit(1) from None
            bars.done()
            if first_process():
                print(f"{'trained' if facts(folder)['tokens'] else 'nothing to train'}: {folder}")


@app.command("evaluate")
@in_a_sentence
def evaluate_(
    folder: Folder,
    lengths: Annotated[str | None, typer.Option(help="Further lengths, such as 128..8192.")] = None,
    protocol: Protocol = None,
    scored: Scored = None,
    stride: Stride = None,
    examples: Examples = None,
    also: Annotated[str | None, typer.Option(help="Another task to examine on, such as passkey.")] = None,
    device: Device = "cpu",
    backend: Backend = "auto",
) -> None:
    """Examine the trained trials of a run at every length of its plan, and at others if asked."""
    given = settings_of({"protocol": protocol, "scored": scored, "stride": stride, "examples": examples})
    plan = plans.load(folder / "plan.json")
    pointless(given, tasks.read(plan.task)[0], protocol or plan.protocol)
    if lengths is not None:
        more = replace(plan, lengths=tuple(sorted({*plan.lengths, *read_lengths(lengths)}))).checked()
        replace(more, **given)  # what makes no sense is refused before anything is written
        plan = plans.settle(more, folder)
    plan = replace(plan, **given)
    if not plan.lengths:
        raise ValueError(f"the plan of {folder} names no lengths; give some, such as --lengths 128..1024")
    trained = [trial for trial in plan.trials if (folder / "trials" / trial.name / "done.json").exists()]
    if not trained:
        raise ValueError(f"{folder} holds no trained trial; run `adapos train` or `adapos compare` to the end first")
    setup = Setup(device, backend)
    other = None if also is None else another(also, plan)
    with stoppable(), terminal.bars(len(trained)) as bars:
        for trial in trained:
            comparing.run_trial(folder, plan, trial, setup, bars, bars.examined)
            if other is not None:
                comparing.examine(folder, plan, trial, other, setup, bars.examined)
            bars.done()
        comparing.compare_speed(folder, setup, bars.examined)
    finish(folder, plan.protocol)


def another(task: str, plan: Plan) -> str:
    """Another task, in the tokens of the plan's own where it does not name others."""
    cls, given = tasks.read(task)
    own = tasks.read(plan.task)[1].get("tokenizer")
    more = {"tokenizer": own} if own and "tokenizer" in tasks.parameters(cls) and "tokenizer" not in given else {}
    found = tasks.normal(task, **more)
    if found == plan.task:
        raise ValueError(f"{task} is the task of the plan, which is examined anyway; name another, or leave it out")
    tasks.build(found).check(plan.lengths[0], plan.lengths)
    return found


@app.command("report")
@in_a_sentence
def report_(folder: Folder) -> None:
    """Write tables, figures and report.html from the rows of a run."""
    plans.load(folder / "plan.json")
    finish(folder)


def finish(folder: Path, protocol: str = "") -> None:
    Console().print(report.terminal(folder, protocol))
    try:
        print(f"report: {report.write(folder)}")
    except ImportError as problem:  # tables and figures are there
        print(f"warning: {problem}", file=sys.stderr)


def settings_of(options: dict[str, Any]) -> dict[str, Any]:
    """Those options of a command that are settings of a plan and were given."""
    names = {each.name for each in fields(Plan)}
    return {name: value for name, value in options.items() if name in names and value is not None}


def planned(path: Path | None, given: dict[str, Any], usual: dict[str, str]) -> Plan:
    """Flags before the plan's file, the file before what is usual."""
    settings: dict[str, Any] = {
        name: (read_specs if name == "encodings" else read_lengths)(text) for name, text in usual.items()
    }
    if path is not None:
        held = plans.from_file(path)
        for name, reader in (("encodings", read_specs), ("lengths", read_lengths)):
            if isinstance(held.get(name), str):
                held[name] = reader(held[name])
        if isinstance(held.get("seeds"), int) and not isinstance(held["seeds"], bool):
            held["seeds"] = tuple(range(held["seeds"]))
        # parameters of the task, as the flags have them
        own = {name: held.pop(name) for name in plans.OF_TASK if name in held}
        if own:
            held["task"] = tasks.normal(held.get("task", Plan.task), **own)
        settings |= held
    settings |= {name: value for name, value in given.items() if value is not None}
    read = tasks.read(tasks.normal(settings.get("task", Plan.task)))[0]
    pointless(settings, read, settings.get("protocol", Plan.protocol))
    if "significance" in settings and len(settings.get("seeds", (0,))) < 2:
        raise ValueError("significance is tested over seeds, and there is one; give --seeds 3, or leave it out")
    command = shlex.join(["adapos", *sys.argv[1:]])
    # a path may hold bytes that are no text
    return Plan(**settings | {"command": command.encode(errors="backslashreplace").decode()})


def pointless(given: dict[str, Any], task: type[Task_], protocol: str) -> None:
    """Refuse settings that would do nothing."""
    for name, of in (("protocol", None), ("scored", "last"), ("stride", "sliding")):
        if not given.get(name):
            continue
        if not task.protocols and given[name] != getattr(Plan, name):
            raise ValueError(f"{name} says how text is read, and {task.name} is scored by exams; leave it out")
        if of is not None and protocol != of:
            raise ValueError(f"{name} is of the protocol {of!r}, and it is {protocol!r}; leave one of them out")


def described(task: str | None, path: Path | None, **given: str | int | None) -> str | None:
    """The task's spec, with the flags that are parameters of it."""
    there = {name: value for name, value in given.items() if value is not None}
    if not there:
        return task
    held = plans.from_file(path) if path is not None and task is None else {}
    own = {name: held[name] for name in plans.OF_TASK if name in held}
    return tasks.normal(task or held.get("task", Plan.task), **own | there)


def foresee(plan: Plan, setup: Setup, folder: Path) -> None:
    out = Console()
    shape = plan.shape
    seeds = len(plan.seeds)
    out.print(
        Text(
            f"{plan.task}, trained at {plan.train_length}: {counted(len(plan.encodings), 'encoding')} x "
            f"{counted(seeds, 'seed')}\n"
            f"{shape.layers} layers of {shape.width}, {shape.heads} heads; {plan.steps} steps of {plan.batch} texts; "
            f"examined at {', '.join(map(str, plan.lengths))}"
            + (f" by {plan.protocol}" if tasks.read(plan.task)[0].protocols else "")
            + f", {plan.examples} texts each"
        )
    )
    left = [trial.encoding for trial in plan.trials if not (folder / "trials" / trial.name / "done.json").exists()]
    if len(left) < len(plan.trials):
        out.print(Text(f"{len(plan.trials) - len(left)} of {len(plan.trials)} trials in {folder} are trained already"))
    grid = ruled("encoding", "train", "examine", "memory")
    total = 0.0
    for each in forecast.forecast(plan, setup):
        grid.add_row(each.encoding, spell(each.training), spell(each.reading), f"{large(each.memory)}B")
        total += left.count(each.encoding) * each.training + seeds * each.reading
    out.print(grid)
    out.print(Text(f"about {spell(total)} in all, from a few steps run here; nothing was written"))


def counted(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"


def spell(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
