"""From the rows of a run to its report: a page, tables and figures. Nothing here needs torch."""

from __future__ import annotations

from pathlib import Path

from rich.console import RenderableType

from adapos import files
from adapos.bench.report import figures, page, screen, tables
from adapos.bench.report.results import load


def write(folder: Path) -> Path:
    """Make `report.html`, `tables/` and `figures/` in the folder of a run, and return the page's path.

    Tables and figures are made first: they need no plotly, and an ImportError says how to install it for the page.
    """
    results = load(folder)
    for place, made in (("tables", tables.files(results)), ("figures", figures.files(results))):
        for name, text in made.items():
            files.write(folder / place / name, text)
        for old in (folder / place).glob("*.*"):  # of results that are not shown any more
            if old.name not in made and old.suffix in (".csv", ".md", ".tex", ".svg"):
                old.unlink()
    files.write(folder / "report.html", page.page(results))
    return folder / "report.html"


def terminal(folder: Path, protocol: str = "") -> RenderableType:
    """The main table and its answer, to be printed by rich; that of a protocol of text, if one is named."""
    return screen.shown(load(folder), protocol)
