"""`adapos reproduce`: the papers' claims, run and judged."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from adapos.bench import enwik8
from adapos.bench.commands import foresee, stoppable
from adapos.bench.train import Setup
from adapos.console import in_a_sentence, ruled
from adapos.evidence import reproduce
from adapos.evidence.catalogue import CLAIMS, find
from adapos.evidence.finding import FAILS, HOLDS, Finding, Unfinished
from adapos.evidence.study import SCALES
from adapos.registry import one_of

app = typer.Typer()
COLOURS = {HOLDS: "green", FAILS: "red"}


@app.command("reproduce")
@in_a_sentence
def reproduce_(
    claim: Annotated[
        str | None, typer.Argument(metavar="CLAIM", help="A claim, all of a paper (dape, tape), or all.")
    ] = None,
    scale: Annotated[str, typer.Option(help="small, for two cores, or paper, the whole recipe.")] = "small",
    data: Annotated[str | None, typer.Option(help="Text in place of enwik8, or the file of enwik8 itself.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="bytes, or a Hugging Face tokenizer by name or path.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials at once.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what will be run and what it takes.")] = False,
    out: Annotated[Path, typer.Option(help="The folder of the runs.")] = Path("runs/reproduce"),
) -> None:
    """Run a claim of the papers and judge it; without a name, list them all. Run again, it goes on where it stopped."""
    one_of("reproduce", "scale", scale, SCALES)
    if claim is None:
        Console().print(overview(out / scale))
        return
    claims = find(claim)
    given = {"data": enwik8.called(data) if data is not None else None, "tokenizer": tokenizer}
    of_text = {name: value for name, value in given.items() if value is not None}
    setup = Setup(device)
    for name, plan in reproduce.plans(claims, scale, of_text).items():
        if dry_run:
            print(f"{name}:")
            foresee(plan, setup, out / scale / name)
            continue
        with stoppable():
            reproduce.run(out / scale / name, plan, setup, workers, lambda text: print(text, file=sys.stderr))
    if dry_run:
        return
    runs = reproduce.read(claims, out / scale)
    for each in claims:
        found = reproduce.judge(each, runs)
        Console().print(Text.assemble((each.name, "bold"), ": ", verdict(found)))
        print(f"  paper  {each.paper}\n  ours   {found.ours}")


def verdict(found: Finding) -> Text:
    return Text(f"{found.verdict} (p {found.chance:.2g}, {found.seeds} seeds)", style=COLOURS[found.verdict])


def overview(folder: Path) -> object:
    grid = ruled("claim", "asks", "the paper", "here")
    runs = reproduce.read(list(CLAIMS.values()), folder)
    for claim in CLAIMS.values():
        try:
            said = verdict(reproduce.judge(claim, runs))
        except Unfinished:
            said = Text("not run", style="dim")
        grid.add_row(Text(claim.name, style="bold"), Text(claim.asks), Text(claim.paper), said)
    return grid
