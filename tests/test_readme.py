"""The README is true: its examples run as printed, and its table, its output and its tree are the real ones."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import adapos
from adapos import cli, contract
from adapos.kernels.cpu.library import MISSING
from written import ROOT, blocks, prints, typed

README = (ROOT / "README.md").read_text(encoding="utf-8")
ADAPOS = Path(sys.executable).with_name("adapos")


PYTHON = [block.text for block in blocks(README, "python")]
CONSOLE = dict(shown for block in blocks(README, "console") for shown in typed(block.text))

pytestmark = pytest.mark.usefixtures("eighty_columns")


def encoding_of_ones_own() -> str:
    (found,) = [code for code in PYTHON if "@adapos.register" in code]
    return found


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("code", PYTHON)
def test_examples_run_as_printed(code: str) -> None:
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


def test_the_first_example_is_short_and_makes_what_it_says() -> None:
    first = PYTHON[0]
    assert len(first.splitlines()) < 20
    names: dict[str, object] = {}
    exec(compile(first, "README.md", "exec"), names)
    for name in ("out", "longer"):
        (claimed,) = re.findall(rf"^{name} = .*?#.*?, (\(.*\))$", first, flags=re.MULTILINE)
        assert str(tuple(names[name].shape)) == claimed  # type: ignore[attr-defined]


@pytest.mark.usefixtures("registry")
def test_the_encoding_of_ones_own_composes() -> None:
    exec(compile(encoding_of_ones_own(), "README.md", "exec"), {"__name__": "readme"})
    (composed,) = re.findall(r'`adapos\.build\("(gaussian.*?)", shape\)`', README)
    assert adapos.spec(adapos.build(composed, adapos.Shape(layers=1, width=8, heads=2))) == composed


def test_the_table_of_encodings_is_the_generated_one() -> None:
    (shown,) = re.findall(r"<!-- encodings -->\n(.*)<!-- /encodings -->", README, flags=re.DOTALL)
    assert shown == CliRunner().invoke(cli.app, ["encodings", "--markdown"]).stdout


@pytest.mark.skipif(MISSING is not None, reason="the README shows a machine with the native kernel")
def test_kernels_prints_what_the_readme_shows() -> None:
    arguments = ["kernels", "kerple + dape(kernel=3)", "--length", "2048"]
    shown = CONSOLE['adapos kernels "kerple + dape(kernel=3)" --length 2048']
    assert prints(CliRunner().invoke(cli.app, arguments).stdout, shown)


def test_profile_prints_what_the_readme_shows_but_for_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    encodings = "alibi, kerple, t5, kerple + dape, kerple + dape(kernel=3), tape"
    options = "--what forward,training --no-memory --threads 2"
    shown = CONSOLE[f'adapos profile {options} --encodings "{encodings}"'][1:]  # the first line stands for others
    small = ["--lengths", "16", "--repeats", "3", *options.replace("forward,", "").split(), "--encodings", encodings]
    out = [line.rstrip() for line in CliRunner().invoke(cli.app, ["profile", *small]).stdout.splitlines()]
    assert out[:2] == shown[:2]
    (columns,), (said,) = ([line.split() for line in lines if line.startswith("encoding")] for lines in (shown, out))
    assert columns == said
    rows = shown[shown.index("2048 tokens") + 1 :]
    rows = rows[: rows.index("...")]
    names = " ".join(re.split("  +", line)[0] for line in rows)
    held = json.loads((tmp_path / "profile" / "profile.json").read_text())["rows"]
    assert names == " ".join(row["encoding"] for row in held)


def test_encodings_prints_what_the_readme_shows() -> None:
    assert prints(CliRunner().invoke(cli.app, ["encodings"]).stdout, CONSOLE["adapos encodings"])


@pytest.mark.slow
def test_check_prints_what_the_readme_shows_but_for_rounding(tmp_path: Path) -> None:
    (tmp_path / "my_encoding.py").write_text(encoding_of_ones_own())
    command = [ADAPOS, "check", "my_encoding.py"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert prints(result.stdout, CONSOLE["adapos check my_encoding.py"])


def test_check_shows_as_many_promises_as_there_are() -> None:
    assert CONSOLE["adapos check my_encoding.py"][-1] == f"{len(contract.CHECKS)} held"


def tree() -> dict[str, str]:
    """The paths of the tree section, each with its line of explanation; folders end with a slash."""
    _, section = README.split("## The tree\n")
    found, folders = {}, [""]
    for line in section.strip().removeprefix("```").removesuffix("```").strip("\n").splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name, _, about = line.strip().partition(" ")
        path = folders[depth] + name
        folders[depth + 1 :] = [path] if name.endswith("/") else []
        found[path] = about.strip()
    return found


def test_every_path_of_the_tree_exists() -> None:
    listed = tree()
    assert [path for path in listed if not (ROOT / path).exists()] == []
    assert [path for path in listed if path.endswith("/") != (ROOT / path).is_dir()] == []


def test_every_file_of_the_package_is_in_the_tree_with_a_line() -> None:
    found = (path for path in (ROOT / "src").rglob("*") if path.is_file() and path.suffix != ".pyc")
    found = (path for path in found if path.parent.suffix != ".egg-info")
    files = (path for path in found if path.stem.split(".")[0] != "_native")  # made at install
    listed = tree()
    assert sorted(path.relative_to(ROOT).as_posix() for path in files) == sorted(
        p for p in listed if p.startswith("src/") and not p.endswith("/")
    )
    assert [path for path, about in listed.items() if not about and not path.endswith("/")] == []


def test_links_to_files_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
