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
    for name, text in tables.files(results).items():
        files.write(folder / "tables" / name, text)
    for name, text in figures.files(results).items():
        files.write(folder / "figures" / name, text)
    files.write(folder / "report.html", page.page(results))
    return folder / "report.html"


def terminal(folder: Path, protocol: str = "") -> RenderableType:
    """The main table and its answer, to be printed by rich; that of a protocol of text, if one is named."""
    return screen.shown(load(folder), protocol)
