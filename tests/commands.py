"""The command line, as tests call it."""

from __future__ import annotations

from typer.testing import CliRunner

from adapos import cli


def run(*words: str) -> tuple[int, str, str]:
    """The exit code, what was said, and what was said of errors. An exception that no user should meet is raised."""
    result = CliRunner().invoke(cli.app, [*words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr
