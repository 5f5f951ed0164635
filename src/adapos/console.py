"""What all commands share: how they refuse, and how their tables look."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

import rich.console
import typer
from rich import box
from rich.table import Table
from typer.core import TyperGroup

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
    say(sentence)
    raise typer.Exit(2)


def say(sentence: str) -> None:
    with suppress(BrokenPipeError):  # where nobody reads it the exit code says it
        print(f"error: {' '.join(sentence.split())}", file=sys.stderr)


class Commands(TyperGroup):
    """What the command line itself does not know is one sentence, too."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **settings: Any) -> Any:
        @in_a_sentence
        def run() -> Any:
            code = super(Commands, self).main(args, *more, **{**settings, "standalone_mode": False})
            if sys.stdout is not None:
                sys.stdout.flush()  # while it can still be said that it failed
            return code

        try:
            code = run()
        except typer.Exit as ended:
            code = ended.exit_code
        except SystemExit:  # of the help, which nobody has read to its end
            code = 141
            sys.stdout = None
        except Exception as problem:
            # errors of usage are of a click that typer takes or brings, as its version is
            if not hasattr(problem, "format_message"):
                raise
            # an empty command line has been answered by the help
            if given := sys.argv[1:] if args is None else args:
                say(unknown(problem, given))
            code = problem.exit_code  # type: ignore[attr-defined]
        sys.exit(code or 0)


def unknown(problem: Any, given: Sequence[str]) -> str:
    """What must hold, what was given, and where to read more."""
    said = problem.format_message().strip().rstrip(".")
    for theirs, ours in (("Value error, ", ""), (": Input should", ": it should"), (". Did you", "; did you")):
        said = said.replace(theirs, ours)
    options = getattr(getattr(problem, "param", None), "opts", ())
    values = []
    for word, after in zip(given, [*given[1:], None], strict=True):
        name, equals, attached = word.partition("=")
        if name in options:
            values.append(attached if equals else after)
    # of those that an option is given the last counts
    if values and values[-1] is not None and repr(values[-1]) not in said:
        said += f", and {values[-1]!r} was given"
    # that of an option without a value is not told
    command = f"adapos {given[0]}" if problem.ctx is None else problem.ctx.command_path
    return f"{said[:1].lower()}{said[1:]}; see `{command} --help`"


class Console(rich.console.Console):
    """For which nobody who reads along is no error of its own: `in_a_sentence` knows what to do."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def ruled(*columns: str) -> Table:
    grid = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
    for column in columns:
        grid.add_column(column, overflow="fold")
    return grid
