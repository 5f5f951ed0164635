"""`adapos explore` and `adapos figures`: positions seen in an app, on a page and in figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adapos.console import in_a_sentence
from adapos.explore import page, pictures, shelf
from adapos.explore.reading import Reading, checked
from adapos.explore.shelf import Kept

app = typer.Typer()

# what is read where nothing is given: names and numbers that come again
SAMPLE = b'''def total(prices, taxes):
    """The sum of all prices, each with its tax."""
    found = 0.0
    for price, tax in zip(prices, taxes):
        found += price * (1.0 + tax)
    return found


def largest(prices):
    """The price that no other price is above."""
    found = prices[0]
    for price in prices[1:]:
        if price > found:
            found = price
    return found


print(total([3.0, 4.0], [0.1, 0.2]), largest([3.0, 4.0]))
'''

Against = Annotated[Path | None, typer.Option(help="The folder of a trial to compare with, on the same text.")]


@app.command()
@in_a_sentence
def explore(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="The folder of a trial or of a comparison; runs/demo unless given."),
    ] = None,
    against: Against = None,
    text: Annotated[Path | None, typer.Option(help="A file with the text; a small program unless given.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Of the app; the first free from 7860 on.")] = None,
    static: Annotated[Path | None, typer.Option(help="Write one page that needs no server, and stop.")] = None,
) -> None:
    """See what attention makes of positions in a text of your own: an app on this machine, or one page."""
    kept = shelf.found(model)
    other = None if against is None else apart(shelf.chosen(shelf.found(against), against), kept)
    given = checked(SAMPLE if text is None else read(text))
    if static is None:
        from adapos.explore import app as exploring

        exploring.serve(kept, other, given, port)
        return
    readings = [Reading(each.label, each.load(), given) for each in kept]
    beside = None if other is None else Reading(other.label, other.load(), given)
    page.write(static, page.page(readings, beside), page.MARK)
    print(f"page: {static} ({static.stat().st_size / 2**20:.1f} MiB)")


@app.command()
@in_a_sentence
def figures(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="The folder of a trial.")],
    text: Annotated[Path, typer.Option(help="A file with the text.")],
    layer: Annotated[int | None, typer.Option(help="From 0; the last unless given.")] = None,
    head: Annotated[int, typer.Option(help="From 0.")] = 0,
    query: Annotated[int | None, typer.Option(help="The byte that looks, from 0; the last unless given.")] = None,
    against: Against = None,
    out: Annotated[Path, typer.Option(help="The folder of the figures.")] = Path("figures"),
) -> None:
    """Write what attention makes of positions in a text as SVG files, for papers."""
    kept = shelf.chosen(shelf.found(checkpoint), checkpoint)
    other = None if against is None else apart(shelf.chosen(shelf.found(against), against), [kept])
    given = checked(read(text))
    readings = [Reading(each.label, each.load(), given) for each in (kept, other) if each is not None]
    first = readings[0]
    layer = first.layers - 1 if layer is None else layer
    query = first.length - 1 if query is None else query
    for name, value, count in (
        ("layer", layer, first.layers),
        ("head", head, first.heads),
        ("query", query, first.length),
    ):
        if not 0 <= value < count:
            raise ValueError(f"{name} must lie from 0 to {count - 1}, not {value}")
    for picture in pictures.everything(readings, layer, head, query):
        if picture.svg:
            path = out / f"{picture.name}.svg"
            page.write(path, picture.svg, 'class="adapos"')
            print(path)
        else:
            print(f"no {picture.name}.svg: {picture.caption}")


def read(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"there is no file {path}" if not path.exists() else f"{path} is not a file")
    return path.read_bytes()


def apart(other: Kept, kept: list[Kept]) -> Kept:
    """By a label that no other has."""
    if any(each.label == other.label and each.folder.resolve() != other.folder.resolve() for each in kept):
        return Kept(f"{other.label} ({other.folder.name})", other.folder)
    return other
