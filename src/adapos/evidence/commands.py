"""`adapos reproduce`: the papers' claims, run and judged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from adapos.bench import enwik8
from adapos.bench.commands import stoppable
from adapos.bench.report import statistics
from adapos.bench.train import Setup
from adapos.console import Console, in_a_sentence, ruled
from adapos.evidence import reproduce
from adapos.evidence.catalogue import claims, find
from adapos.evidence.finding import FAILS, HOLDS, UNTESTABLE, Finding
from adapos.evidence.studies import SCALES
from adapos.evidence.study import Order, Unfinished
from adapos.registry import one_of

app = typer.Typer()
COLOURS = {HOLDS: "green", FAILS: "red", UNTESTABLE: "yellow"}


@app.command("reproduce")
@in_a_sentence
def reproduce_(
    claim: Annotated[
        str | None, typer.Argument(metavar="CLAIM", help="A claim, all of a paper (dape, tape), beyond, or all.")
    ] = None,
    scale: Annotated[str, typer.Option(help="small, for two cores, or paper, the whole recipe.")] = "small",
    data: Annotated[str | None, typer.Option(help="Text in place of enwik8, or the file of enwik8 itself.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="bytes, or a Hugging Face tokenizer by name or path.")] = None,
    model: Annotated[str | None, typer.Option(help="The pretrained model of tape/finetune, by name or path.")] = None,
    seeds: Annotated[
        int, typer.Option(min=statistics.NEEDED, help="Models of each encoding; more tell smaller differences apart.")
    ] = statistics.NEEDED,
    workers: Annotated[int, typer.Option(min=1, help="Trials at once.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what will be run and what it takes.")] = False,
    out: Annotated[Path, typer.Option(help="The folder of the runs.")] = Path("runs/reproduce"),
) -> None:
    """Run a claim of the papers and judge it; without a name, list them all. Run again, it goes on where it stopped."""
    one_of("reproduce", "scale", scale, SCALES)
    if out.exists() and not out.is_dir():
        raise ValueError(f"out ({out}) must be a folder, and is a file; choose another")
    if claim is None:
        if dry_run:
            raise ValueError("--dry-run is of a claim, and none is named; `adapos reproduce all --dry-run` is of all")
        Console().print(overview(scale, out / scale))
        return
    asked = find(claim, scale)
    needed = reproduce.needed(asked)
    given = {"data": enwik8.called(data) if data is not None else None, "tokenizer": tokenizer}
    of_text = {name: value for name, value in given.items() if value is not None}
    if of_text and not any(study.reads_text for study in needed):
        raise ValueError(
            f"--data and --tokenizer are for claims that read text, and {claim} reads none; leave them out"
        )
    if model is not None and not any(study.pretrained for study in needed):
        raise ValueError(f"--model is for claims of pretrained models, and {claim} is of none; leave it out")
    order = Order(out / scale, Setup(device), workers, lambda text: print(text, file=sys.stderr), of_text, model, seeds)
    # what is missing is said now, not after hours
    for study, encodings in needed.items():
        study.check(order, encodings)
    for study, encodings in needed.items():
        if dry_run:
            print(f"{study.name}:")
            study.foresee(order, encodings)
            continue
        with stoppable():
            study.run(order, encodings)
    if dry_run:
        return
    for each, found in reproduce.findings(asked, reproduce.read(asked, order.folder)):
        Console().print(Text.assemble((each.name, "bold"), ": ", verdict(found)))
        print(f"  paper  {each.paper}\n  ours   {found.ours if isinstance(found, Finding) else found}")
        if isinstance(found, Finding) and found.why:
            print(f"  why    {found.why}")


def verdict(found: Finding | Unfinished) -> Text:
    if isinstance(found, Unfinished):
        return Text("not run", style="dim")
    details = [f"p {found.chance:.2g}"] if found.chance is not None else []
    details += [f"{found.seeds} seeds"] if found.seeds is not None else []
    return Text(found.verdict + (f" ({', '.join(details)})" if details else ""), style=COLOURS[found.verdict])


def overview(scale: str, folder: Path) -> object:
    grid = ruled("claim", "asks", "the paper", "here")
    known = list(claims(scale).values())
    for claim, found in reproduce.findings(known, reproduce.read(known, folder)):
        grid.add_row(Text(claim.name, style="bold"), Text(claim.asks), Text(claim.paper), verdict(found))
    return grid
