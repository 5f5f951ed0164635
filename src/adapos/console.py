"""What all commands share: how they refuse, and how their tables look."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec, TypeVar

import typer
from rich import box
from rich.table import Table

from adapos.resident import exhausted

P = ParamSpec("P")
R = TypeVar("R")


def in_a_sentence(command: Callable[P, R]) -> Callable[P, R]:
    """What the library says of bad input, without a traceback."""

    @wraps(command)
    def careful(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except ValueError as problem:
            refuse(str(problem))
        except BrokenPipeError:  # whoever read has heard enough
            sys.stdout = None
            raise typer.Exit(141) from None
        except OSError as problem:  # a full disk, a folder that went away
            where = f" ({problem.filename})" if problem.filename else ""
            refuse(f"{problem.strerror or problem}{where}")
        except (MemoryError, RuntimeError) as problem:
            if not exhausted(problem):
                raise
            refuse(f"there is not memory enough for this ({str(problem) or 'none left'}); ask for less")
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return careful


def refuse(sentence: str) -> NoReturn:
    print(f"error: {' '.join(sentence.split())}", file=sys.stderr)
    raise typer.Exit(2)


def ruled(*columns: str) -> Table:
    grid = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    for column in columns:
        grid.add_column(column, overflow="fold")
    return grid
