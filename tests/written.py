"""A page in Markdown as tests read it: its blocks of code, what they are said to print, and the commands it names."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from markdown_it import MarkdownIt

from adapos import cli, registry
from adapos.bench import tasks
from adapos.encoding import Shape
from adapos.evidence import catalogue
from adapos.specs import lengths, specs

ROOT = Path(__file__).parent.parent
COMMANDS = ("adapos", "pip", "make", "python", "python3", "torchrun", "accelerate", "git", "mkdocs")
ELLIPSIS = "..."
NAMELESS = "no language"


@dataclass(frozen=True)
class Block:
    """`language` is empty where the block is indented. A `title` names the file that the reader is to save it as."""

    language: str
    title: str | None
    text: str
    line: int


def parsed(markdown: str) -> Any:
    return MarkdownIt("commonmark").enable("table").parse(markdown)


def blocks(markdown: str, language: str | None = None) -> list[Block]:
    """Every block of code, in order, or those in one language."""
    found = []
    for token in parsed(markdown):
        if token.type in ("fence", "code_block"):
            name, _, rest = token.info.strip().partition(" ")
            title = re.fullmatch(r'title="(.*)"', rest.strip())
            if rest and title is None:
                raise ValueError(f"line {token.map[0] + 1}: a block says {rest!r}, and only a title is known")
            if token.type == "fence" and not name:
                name = NAMELESS
            found.append(Block(name, title[1] if title else None, token.content, token.map[0] + 1))
    return [block for block in found if language in (None, block.language)]


def inline(markdown: str) -> list[str]:
    """Code between backticks, in prose and tables."""
    return [
        child.content for token in parsed(markdown) for child in token.children or () if child.type == "code_inline"
    ]


def typed(console: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a console block, each with the lines that are printed below it."""
    command, shown = "", []
    for line in console.splitlines():
        if command.endswith("\\"):
            command = command[:-1] + line.strip()
        elif line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], []
        elif not command:
            raise ValueError(f"a console block begins with `$ ` and a command, not with {line!r}")
        else:
            shown.append(line)
    yield command, shown


def without_numbers(line: str) -> str:
    """Errors of rounding differ from machine to machine."""
    return re.sub(r"\d\.\de[+-]\d+", "#", line.rstrip())


def prints(out: str, shown: Sequence[str]) -> bool:
    """Whether `out` is what is shown, where a line of dots stands for any others, and rounding may differ."""
    said = [without_numbers(line) for line in out.rstrip("\n").splitlines()]
    parts: list[list[str]] = [[]]
    for line in shown:
        if line.strip() == ELLIPSIS:
            parts.append([])
        else:
            parts[-1].append(without_numbers(line))
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return said == first
    if said[: len(first)] != first or (last and said[len(first) :][-len(last) :] != last):
        return False
    rest = said[len(first) : len(said) - len(last)]
    for part in parts[1:-1]:
        places = [at for at in range(len(rest) - len(part) + 1) if rest[at : at + len(part)] == part]
        if not places:
            return False
        rest = rest[places[0] + len(part) :]
    return True


def lines(shell: str) -> list[str]:
    """Commands of a shell, one a line unless a backslash joins them, without comments."""
    joined = re.sub(r"\\\n\s*", "", shell).splitlines()
    return [line.strip() for line in joined if line.strip() and not line.strip().startswith("#")]


def is_command(line: str) -> bool:
    return line.split(" ")[0].removeprefix(".venv/bin/") in COMMANDS


def check_command(line: str, *, mentioned: bool = False) -> None:
    """See that all that a line of a shell names is there. A command that is only `mentioned` may lack arguments."""
    first, *words = [word for word in shlex.split(line, comments=True) if word != ELLIPSIS]
    first = first.removeprefix(".venv/bin/")
    if mentioned and not words:
        return
    if first == "adapos":
        check_adapos(words, mentioned=mentioned)
    elif first in ("torchrun", "accelerate"):
        if mentioned and "-m" not in words:
            return
        at = words.index("-m")
        assert words[at + 1] == "adapos", f"{line!r} starts {words[at + 1]!r}"
        check_adapos(words[at + 2 :])
    elif first in ("python", "python3"):
        check_python(words)
    elif first == "make":
        (targets,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        missing = set(words) - set(targets.split())
        assert not missing, f"{line!r}: the Makefile has no target {missing}"
    elif first == "pip":
        check_pip(words)
    elif first == "mkdocs":
        assert words[:1] in (["build"], ["serve"]), line
    else:
        raise AssertionError(f"{line!r} is no command that can be checked; there are {', '.join(COMMANDS)}")


def check_python(words: Sequence[str]) -> None:
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]) is not None, f"there is no module {words[1]}"
        if words[1] == "adapos":
            check_adapos(words[2:])
        return
    script = ROOT / words[0]
    assert script.is_file(), f"there is no file {words[0]}"
    unknown = [word for word in words[1:] if word.startswith("--") and f'"{word}"' not in script.read_text()]
    assert not unknown, f"{words[0]} has no option {unknown}"


def check_pip(words: Sequence[str]) -> None:
    command, *wanted = words
    assert command == "install", f"pip {command}"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in wanted:
        if word in ("-e", "--editable"):
            continue
        found = re.fullmatch(r"\.(?:\[([\w,]+)\])?", word)
        assert found, f"pip install {word}: adapos is installed from a clone, as '.' or '.[extra]'"
        unknown = set((found[1] or "").split(",")) - {"", *extras}
        assert not unknown, f"pyproject.toml has no extra {unknown}"


def check_adapos(words: Sequence[str], *, mentioned: bool = False) -> None:
    """Parse a command line as adapos does, without running it; then build what it names."""
    if list(words) in ([], ["--version"], ["--help"]):
        return
    group: Any = typer.main.get_command(cli.app)
    with group.make_context("adapos", ["--help"], resilient_parsing=True) as top:
        command = group.get_command(top, words[0])
        assert command is not None, f"adapos has no command {words[0]!r}"
        if mentioned and len(words) == 1:
            return
        with command.make_context(words[0], list(words[1:]), parent=top) as context:
            check_named({name: value for name, value in context.params.items() if isinstance(value, str)})


def options() -> set[str]:
    """Every option of every command."""
    group: Any = typer.main.get_command(cli.app)
    commands = [group, *group.commands.values()]
    return {
        word for command in commands for option in command.params for word in (*option.opts, *option.secondary_opts)
    }


def check_named(given: dict[str, str]) -> None:
    shape = Shape(layers=2, width=64, heads=4)
    # words in capitals stand for what a reader has, as do files of their own
    given = {name: value for name, value in given.items() if not (value.isupper() or value.endswith(".py"))}
    for name in ("encoding", "encodings", "spec", "baseline", "target"):
        for spec in specs(given[name]) if name in given else ():
            registry.build(spec, shape)
    if "task" in given:
        tasks.read(tasks.normal(given["task"]))
    if "lengths" in given:
        lengths(given["lengths"])
    if "claim" in given:
        catalogue.find(given["claim"], given["scale"])
