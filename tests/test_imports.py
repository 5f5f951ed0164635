"""Imports go one way, `import adapos` is light, and no file outgrows a reader."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "adapos"
FILES = sorted(SOURCE.rglob("*.py"))

# what each part may import of the others; a part may always import from itself
ALLOWED = {
    "layout": set(),
    "hints": set(),
    "pairs": {"layout"},
    "encoding": {"layout", "pairs"},
    "registry": {"encoding", "hints"},
    "encodings": {"layout", "pairs", "encoding", "registry"},
    "kernels": {"layout", "pairs", "hints"},
    "model": {"layout", "pairs", "encoding", "registry", "kernels"},
}
LOWER = set(ALLOWED)
ABOVE = {"evidence", "explore"}
HEAVY = ("transformers", "triton", "plotly", "gradio", "datasets", "ray")


def part(module: str) -> str:
    """adapos.kernels.tiled -> kernels"""
    return module.split(".")[1] if "." in module else ""


def imported(file: Path) -> set[str]:
    """The parts of adapos that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name} imports relatively; write the whole name"
            module = node.module or ""
            found |= {f"{module}.{alias.name}" for alias in node.names} if module == "adapos" else {module}
    return {part(name) for name in found if name == "adapos" or name.startswith("adapos.")}


def own(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_go_one_way(file: Path) -> None:
    name = own(file)
    if name in ALLOWED:
        assert imported(file) <= ALLOWED[name] | {name}
    elif name in ("bench", *ABOVE):  # which stand above the bench, and beside one another
        assert not imported(file) & {"cli", *(ABOVE - {name})}
    elif name not in ("cli", "models", "__main__"):
        # what stands above the model may be read by the command line, and by nothing below
        assert "cli" not in imported(file)
        assert "bench" not in imported(file) or name == "__init__"


def test_nothing_below_knows_what_stands_above() -> None:
    parts = {own(file) for file in FILES} - {"__init__"}
    assert parts >= LOWER
    for file in FILES:
        if own(file) in LOWER:
            assert not imported(file) & (parts - LOWER), file


def test_only_the_command_line_and_the_claims_know_the_profile() -> None:
    assert {own(file) for file in FILES if "profile" in imported(file)} <= {"profile", "cli", "evidence"}


def test_backends_and_encodings_never_import_one_another() -> None:
    for file in FILES:
        if own(file) == "kernels":
            assert not imported(file) & {"encodings", "encoding", "registry", "model"}, file
        if own(file) == "encodings":
            assert not imported(file) & {"kernels", "model"}, file


def test_importing_adapos_loads_nothing_heavy() -> None:
    code = f"import sys, adapos, adapos.model, adapos.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_adapos_prints_and_warns_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import adapos"], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_can_be_read_in_one_sitting(file: Path) -> None:
    text = file.read_text()
    lines = text.splitlines()
    assert len(lines) < 1000
    if own(file) == "encodings":
        assert len(lines) < 200
    banner = re.compile(r"^\s*#\s*([-=*#~+_.])\1{3,}")
    assert [line for line in lines if banner.match(line)] == []
    assert re.match(r'"""[A-Za-z`]', text), "a file opens by saying what it is"


def test_every_public_name_is_documented() -> None:
    import adapos

    assert [name for name in adapos.__all__ if not (getattr(adapos, name).__doc__ or "").strip()] == []
