"""`adapos explore` and `adapos figures`: positions seen in an app, on a page and in figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adapos import files
from adapos.console import in_a_sentence
from adapos.explore import page, pictures, shelf
from adapos.explore.pictures import Picture
from adapos.explore.reading import Reading, checked
from adapos.explore.shelf import Kept
from adapos.svg import captioned

app = typer.Typer()

DRAWN = 'class="adapos"'  # stands in what adapos draws
CAPTIONED = 'class="caption"'  # in a figure
OWN = {f"{name}.svg" for name in (*pictures.NAMES, *(f"{name}-{at}" for name in pictures.EACH for at in (1, 2)))}

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

        exploring.serve(kept, other, typed(given, text), port)
        return
    page.check(static, page.MARK)
    readings = [Reading(each.label, each.load(), given) for each in kept]
    beside = None if other is None else Reading(other.label, other.load(), given)
    files.write(static, page.page(readings, beside))
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
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} must be a folder, and is none; choose another --out")
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
    write(out, pictures.everything(readings, layer, head, query))


def write(folder: Path, found: list[Picture]) -> None:
    """All or nothing, but for a full disk; figures of an earlier run that are not among these are removed."""
    drawn = {folder / f"{picture.name}.svg": captioned(picture.svg) for picture in found if picture.svg}
    for path in drawn:
        page.check(path, DRAWN)
    for path, svg in drawn.items():
        files.write(path, svg)
        print(path)
    for path in sorted({folder / name for name in OWN} - drawn.keys()):
        if path.is_file() and CAPTIONED in path.read_text(encoding="utf-8", errors="replace"):
            path.unlink()
            print(f"removed {path}, of an earlier run")
    for picture in found:
        if not picture.svg:
            print(f"no {picture.name}.svg: {picture.caption}")


def read(path: Path) -> bytes:
    if not path.is_file():
        wrong = f"{path} is not a file" if path.exists() else f"there is no file {path}"
        raise ValueError(f"{wrong}; give one that holds the text")
    return path.read_bytes()


def typed(given: bytes, path: Path | None) -> str:
    """As it stands in a box of the app, which has no bytes that are not of a letter."""
    try:
        return given.decode()
    except UnicodeDecodeError as problem:
        raise ValueError(
            f"the app reads UTF-8, and {path} is not, at byte {problem.start}; save it as UTF-8, or give --static "
            "OUT.html, which reads any bytes, as `adapos figures` does"
        ) from None


def apart(other: Kept, kept: list[Kept]) -> Kept:
    """By a label that no other has."""
    if any(each.label == other.label and each.folder.resolve() != other.folder.resolve() for each in kept):
        return Kept(f"{other.label} ({other.folder.name})", other.folder)
    return other
