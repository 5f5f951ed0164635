"""The docs are true: every block of code is run or checked, and the site is whole and needs no network."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from adapos import cli, contract, registry
from adapos.encoding import PositionalEncoding
from adapos.kernels.cpu.library import MISSING
from pages import Reader
from written import (
    ROOT,
    Block,
    blocks,
    check_command,
    inline,
    is_command,
    lines,
    options,
    prints,
    typed,
)

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
README = ROOT / "README.md"
# what is run; the rest of the commands take minutes, or need data or the network
RUN = ("encodings", "kernels", "check", "tasks")
WIDEST = 86  # that fits beside the menus
SLOW = ("own.md", "models.md")
FOREIGN = {"--use_fsdp", "--cpu", "--compare"}  # of accelerate, and of tools/resources.py
LANGUAGES = {
    "python": "run, and what it prints is compared",
    "console": "run, and what it prints is compared; or the README's",
    "": "indented: commands, each of which is checked",
    "text": "no code: a formula or a diagram",
    "bibtex": "compared with CITATION.cff",
}

pytestmark = pytest.mark.usefixtures("eighty_columns")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def quick(arguments: list[str]) -> bool:
    return arguments[0] in RUN or arguments == ["reproduce"]


def of_readme() -> list[str]:
    return [block.text for block in blocks(README.read_text(encoding="utf-8"), "console")]


class Session:
    """A reader who does all that a page says, from its top, in a folder of their own."""

    def __init__(self, name: str) -> None:
        self.names: dict[str, Any] = {"__name__": "page"}
        self.name = name

    def python(self, block: Block) -> None:
        where = f"{self.name}:{block.line}"
        if block.title is not None:
            Path(block.title).write_text(block.text)
            importlib.import_module(block.title.removesuffix(".py"))
            return
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block.text, where, "exec"), self.names)
        shown = re.findall(r"^.*# > ?(.*)$", block.text, flags=re.MULTILINE)
        assert prints(out.getvalue(), shown), f"{where} prints\n{out.getvalue()}"
        for name, size in re.findall(r"^(\w+) = .*# .*?(\(\d+(?:, ?\d+)*,?\))$", block.text, flags=re.MULTILINE):
            made = self.names[name]
            assert str(tuple(made.shape)) == size, f"{where}: {name} is {tuple(made.shape)}, not {size}"

    def console(self, block: Block) -> None:
        for command, shown in typed(block.text):
            check_command(command)
            first, *arguments = shlex.split(command)
            if first != "adapos" or not quick(arguments):
                assert not shown or block.text in of_readme(), f"{self.name}:{block.line} shows what no test has seen"
                continue
            if arguments[0] == "kernels" and MISSING is not None:
                continue  # the page shows a machine with the native kernel
            # a process of its own would know none of the encodings that the page has imported
            with pytest.MonkeyPatch.context() as fresh:
                fresh.setattr(registry, "REGISTRY", {k: v for k, v in registry.REGISTRY.items() if shipped(v)})
                out = CliRunner().invoke(cli.app, arguments).output
            assert prints(out, shown), f"{self.name}:{block.line}: {command} prints\n{out}"


def shipped(encoding: type[PositionalEncoding]) -> bool:
    return encoding.__module__.startswith("adapos.encodings")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty one, whose Python files can be imported, and are forgotten after."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if (file := getattr(sys.modules[name], "__file__", None)) and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.usefixtures("registry", "folder")
@pytest.mark.parametrize(
    "name", [pytest.param(p.name, marks=pytest.mark.slow if p.name in SLOW else ()) for p in PAGES]
)
def test_a_page_does_what_it_shows(name: str) -> None:
    session = Session(name)
    for block in blocks(page(name)):
        if block.language == "python":
            session.python(block)
        elif block.language == "console":
            session.console(block)


@pytest.mark.parametrize("name", [p.name for p in PAGES])
def test_no_block_of_a_page_escapes(name: str) -> None:
    for block in blocks(page(name)):
        where = f"{name}:{block.line}"
        assert block.language in LANGUAGES, f"{where}: no test reads {block.language!r}"
        if block.language == "text":
            assert not [line for line in block.text.splitlines() if is_command(line.strip())], f"{where} holds commands"
        if block.language == "bibtex":
            assert name == "cite.md", where
        assert [line for line in block.text.splitlines() if len(line) > WIDEST] == [], f"{where} is cut off in the site"
        assert block.title is None or (block.language == "python" and block.title.endswith(".py")), where


@pytest.mark.parametrize("path", [*PAGES, README, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_every_command_that_is_named_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    # encodings that the page itself has a reader write
    own = re.findall(r'@(?:adapos\.)?register\("(\w+)"\)', text)
    named = [
        line
        for block in blocks(text)
        if block.language == "" or (path == ROOT / "CONTRIBUTING.md" and block.language != "python")
        for line in lines(block.text)
    ]
    for line in named:
        if not any(re.search(rf"\b{name}\b", line) for name in own):
            check_command(line)
    for code in inline(text):
        if is_command(code):
            check_command(code, mentioned=True)


@pytest.mark.parametrize("path", [*PAGES, README], ids=lambda path: path.name)
def test_every_option_that_is_named_is_there(path: Path) -> None:
    known = options() | FOREIGN
    named = {
        word for code in inline(path.read_text(encoding="utf-8")) for word in re.findall(r"(?<!\S)--[a-z_-]+", code)
    }
    assert named <= known


@pytest.mark.parametrize(
    "line",
    [
        "adapos compair",
        "adapos compare --encoding rope",
        "adapos compare --encodings 'rope, kerpel'",
        "adapos compare --task tekst",
        "adapos compare --lengths 512-1024",
        "adapos check",
        "adapos reproduce dape/extrapolate",
        "torchrun --nproc-per-node 2 -m adapos train --encodin tape",
        "make demos",
        'pip install ".[benches]"',
        "pip install adapos",
        "python tools/evidences.py",
        "python benchmarks/training.py --repeat 25",
        "python -m adapos.hf.harnes",
        "curl somewhere",
    ],
)
def test_a_command_that_is_not_there_is_noticed(line: str) -> None:
    with pytest.raises(BaseException, match=r".") as raised:
        check_command(line)
    assert not isinstance(raised.value, SystemExit | KeyboardInterrupt)


@pytest.mark.parametrize(
    ("out", "shown", "same"),
    [
        ("a\nb\n", ["a", "b"], True),
        ("a\nb\n", ["a"], False),
        ("a\nb\nc\n", ["a", "...", "c"], True),
        ("a\nb\nc\n", ["a", "..."], True),
        ("a\nb\nc\n", ["...", "b"], False),
        ("a\nb\nc\nd\ne\n", ["...", "b", "c", "...", "e"], True),
        ("a\nb\nc\nd\ne\n", ["...", "b", "d", "...", "e"], False),
        ("error 1.5e-15  \n", ["error 3.2e-16"], True),
        ("error 1.5\n", ["error 3.2"], False),
        ("", ["a"], False),
        ("a\n", ["a", "...", "a"], False),
    ],
)
def test_dots_stand_for_lines_and_rounding_may_differ(out: str, shown: list[str], same: bool) -> None:
    assert prints(out, shown) == same


@pytest.mark.usefixtures("registry", "folder")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```python\n1 / 0\n```", ZeroDivisionError),
        ("```python\nprint(1)\n# > 2\n```", AssertionError),
        ("```python\nprint(1)\n```", AssertionError),
        ("```python\nimport torch\nx = torch.ones(2, 3)  # (3, 2)\n```", AssertionError),
        ("```console\n$ adapos kernels nope --length 8\nnothing\n```", AssertionError),
        ("```console\n$ adapos compare\nthe best is ours\n```", AssertionError),
    ],
)
def test_a_page_that_is_wrong_is_noticed(text: str, problem: type[Exception]) -> None:
    (block,) = blocks(text)
    session = Session("wrong.md")
    with pytest.raises(problem):
        getattr(session, block.language)(block)


def test_a_block_of_an_unknown_language_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "page", lambda name: "```rust\nfn main() {}\n```")
    with pytest.raises(AssertionError, match="no test reads 'rust'"):
        test_no_block_of_a_page_escapes("index.md")


def test_the_table_of_encodings_is_the_generated_one() -> None:
    (shown,) = re.findall(r"<!-- encodings -->\n(.*)<!-- /encodings -->", page("encodings.md"), flags=re.DOTALL)
    assert shown == CliRunner().invoke(cli.app, ["encodings", "--markdown"]).stdout


def test_the_hooks_that_are_listed_are_those_there_are() -> None:
    (listed,) = [block.text for block in blocks(page("architecture.md"), "python") if "class Hooks" in block.text]
    names: dict[str, Any] = {}
    exec(listed, names)
    hooks = {name: hook for name, hook in vars(names["Hooks"]).items() if not name.startswith("_")}
    assert list(hooks) == ["begin", "tokens", "pairs", "after_attention", "after_mlp"]
    for name, hook in hooks.items():
        own, real = (
            each.__code__.co_varnames[: each.__code__.co_argcount] for each in (hook, getattr(PositionalEncoding, name))
        )
        assert own == real
        assert f"`{name}({', '.join(real[1:])})`" in page("own.md")


def test_as_many_promises_are_shown_as_there_are() -> None:
    (shown,) = [block.text for block in blocks(page("own.md"), "console") if "seasonal.py" in block.text]
    assert shown.splitlines()[-1] == f"{len(contract.CHECKS)} held"
    assert [line.split()[0] for line in shown.splitlines() if " held " in line] == [f.__name__ for f in contract.CHECKS]


def test_what_is_cited_is_what_the_citation_file_says() -> None:
    held = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    entries = [" ".join(block.text.split()) for block in blocks(page("cite.md"), "bibtex")]
    assert len(entries) == 1 + len(held["references"])
    for entry, cited in zip(entries, [held, *held["references"]], strict=True):
        people = [
            f"{who['family-names']}, {who['given-names']}" if "family-names" in who else f"{{{who['name']}}}"
            for who in cited["authors"]
        ]
        expected = {"title": cited["title"], "author": " and ".join(people)}
        expected |= {key: cited[key] for key in ("version", "license", "year", "volume", "doi") if key in cited}
        if "collection-title" in cited:
            expected["booktitle"] = cited["collection-title"]
        if "start" in cited:
            expected["pages"] = f"{cited['start']}--{cited['end']}"
        if "identifiers" in cited:
            expected |= {"eprint": cited["identifiers"][0]["value"].removeprefix("arXiv:"), "archiveprefix": "arXiv"}
        found = dict(re.findall(r"(\w+) = \{(.*?)\}(?=,? \w+ = |,? \}$)", entry))
        assert found == {key: str(value) for key, value in expected.items()}


def built(config: Path, to: Path) -> list[Path]:
    """The pages of the site, made offline and without a warning."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", to]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(to.glob("*.html"))


def test_the_site_is_whole_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    made = built(ROOT / "mkdocs.yml", tmp_path)
    assert {path.stem for path in made} == {path.stem for path in PAGES} | {"404"}
    assert (tmp_path / "search" / "search_index.json").exists()
    for path in made:
        tags = Reader(path.read_text(encoding="utf-8")).tags
        loaded = [
            values.get("src") or values.get("href") or ""
            for tag, values in tags
            if tag in ("script", "img", "iframe", "source", "video")
            or (tag == "link" and values.get("rel") != "canonical")
        ]
        assert loaded
        assert [link for link in loaded if re.match(r"(https?:)?//", link)] == []


def test_every_page_is_in_the_menu_and_in_the_tree_of_the_readme() -> None:
    menu = re.findall(r"^\s+- .*: ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert sorted(menu) == [path.name for path in PAGES]
    tree = re.findall(r"^docs/([\w-]+\.md) +\S", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(tree) == [path.name for path in PAGES]


def test_figures_are_in_the_site_and_links_out_of_the_docs_are_words(tmp_path: Path) -> None:
    figure = tmp_path / "evidence" / "small" / "figures" / "x.svg"
    figure.parent.mkdir(parents=True)
    figure.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(
        "# Evidence\n\n![curves](../evidence/small/figures/x.svg)\n\n[it](../evidence/small/figures/x.svg) is made from"
        " the rows in [evidence](../evidence), and [this](index.md) is the page\n\n"
        "| a |\n|---|\n| 1.18 [1.05, 1.34] |\n"
    )
    config = {"site_name": "small", "hooks": [str(ROOT / "tools" / "site.py")], "use_directory_urls": False}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config))
    (made,) = [path for path in built(tmp_path / "mkdocs.yml", tmp_path / "site") if path.stem == "index"]
    text = made.read_text()
    assert (made.parent / "evidence" / "small" / "figures" / "x.svg").read_text() == figure.read_text()
    assert "<td>1.18 [1.05,&nbsp;1.34]</td>" in text or "<td>1.18 [1.05,\u00a01.34]</td>" in text
    assert 'src="evidence/small/figures/x.svg"' in text
    assert '<a href="evidence/small/figures/x.svg">it</a> is made from the rows in evidence, and' in text


def test_a_figure_that_is_not_there_stops_the_site(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Evidence\n\n![curves](../evidence/small/figures/x.svg)\n")
    config = {"site_name": "small", "hooks": [str(ROOT / "tools" / "site.py")]}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config))
    with pytest.raises(AssertionError, match=r"x\.svg"):
        built(tmp_path / "mkdocs.yml", tmp_path / "site")
