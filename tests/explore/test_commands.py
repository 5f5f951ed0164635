"""The commands as a user meets them: pages and figures written, and one sentence where something is wrong."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from shelved import trial

from adapos.explore import app, commands, page, shelf
from commands import run as adapos
from pages import Reader

pytestmark = pytest.mark.usefixtures("one_thread")
FIGURES = ["scores", "bias", "adaptive", "attention", "text", "distance", "rollout", "heads"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("for price in prices: total += price; return total, prices")
    return path


def refused(*words: object) -> str:
    code, said, problem = adapos(*map(str, words))
    assert code == 2
    assert said == ""
    assert problem.startswith("error: ")
    assert problem.count("\n") == 1
    return problem


def held(path: Path) -> dict[str, dict[str, str]]:
    packed = "".join(Reader(path.read_text()).text["packed"])
    found: dict[str, dict[str, str]] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return found


def test_figures_are_written_and_named(run: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, _ = adapos("figures", str(run / "trials" / "c"), "--text", str(text), "--out", str(out))
    assert code == 0
    assert said.splitlines()[:-1] == [str(out / f"{name}.svg") for name in FIGURES]
    assert said.splitlines()[-1].startswith("no products.svg: kerple + dape has none: no state")
    assert sorted(path.name for path in out.iterdir()) == sorted(f"{name}.svg" for name in FIGURES)
    for path in out.iterdir():
        ElementTree.fromstring(path.read_text())
    # again, in place of its own
    assert adapos("figures", str(run / "trials" / "c"), "--text", str(text), "--out", str(out))[0] == 0


def test_figures_are_of_the_head_that_is_asked_for(run: Path, text: Path, tmp_path: Path) -> None:
    def drawn(*options: str) -> str:
        folder = tmp_path / "-".join(options)
        words = ["figures", str(run / "trials" / "d"), "--text", str(text), "--out", str(folder), *options]
        assert adapos(*words)[0] == 0
        return (folder / "attention.svg").read_text()

    chosen = [("--layer", "0"), ("--layer", "1"), ("--head", "1"), ("--query", "12")]
    assert len({drawn(*options) for options in chosen}) == 4
    assert "tape: attention, layer 2, head 0, query 12" in drawn("--query", "12")
    assert (tmp_path / "--query-12" / "products.svg").exists()


def test_figures_beside_another_model(run: Path, text: Path, tmp_path: Path) -> None:
    words = ["figures", str(run / "trials" / "c"), "--against", str(run / "trials" / "a"), "--text", str(text)]
    code, said, _ = adapos(*words, "--out", str(tmp_path / "out"))
    assert code == 0
    assert "text-2.svg" in said
    assert "rope" in (tmp_path / "out" / "attention.svg").read_text()


def test_figures_of_an_earlier_run_go_and_all_else_stays(run: Path, text: Path, tmp_path: Path) -> None:
    out, one = tmp_path / "out", ["figures", str(run / "trials" / "c"), "--text", str(text)]
    assert adapos(*one, "--against", str(run / "trials" / "d"), "--out", str(out))[0] == 0
    assert {path.name for path in out.iterdir()} <= commands.OWN
    drawn = (out / "attention.svg").read_text()
    mine = {"products.svg": '<svg class="adapos"/>', "attention-1.svg": drawn, "other.svg": drawn}
    for name, content in mine.items():
        (out / name).write_text(content)
    code, said, _ = adapos(*one, "--out", str(out))
    assert code == 0
    for name in ("moved-2", "products-2", "text-1", "text-2"):
        assert f"removed {out / name}.svg, of an earlier run\n" in said
    assert sorted(path.name for path in out.iterdir()) == sorted([*(f"{name}.svg" for name in FIGURES), *mine])
    assert [(out / name).read_text() for name in mine] == list(mine.values())


def test_no_figure_is_written_where_one_cannot_be(run: Path, text: Path, tmp_path: Path) -> None:
    one = ("figures", run / "trials" / "c", "--text", text, "--out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "heads.svg").write_text("<svg/>")
    assert "heads.svg exists and was not made by adapos; remove it or choose" in refused(*one, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["heads.svg"]
    assert "text.txt must be a folder, and is none; choose another --out" in refused(*one, text)


def test_the_page_holds_every_picture_that_can_be_chosen(run: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    code, said, _ = adapos("explore", str(run), "--text", str(text), "--static", str(out))
    assert code == 0
    assert said.startswith(f"page: {out} (")
    found = held(out)
    assert len(found["row"]) == 4 * 3 * 4 * page.QUERIES
    assert len(set(found["row"].values())) == len(found["row"])
    assert len(found["distance"]) == 4 * 3 * 4
    assert [len(found[name]) for name in ("products", "heads", "rollout")] == [4, 4, 4 * page.QUERIES]
    assert "rope has no bias: its positions turn queries and keys." in found["row"]["0 0 0 0"]
    read = Reader(out.read_text())
    assert not [tag for tag, given in read.tags if given.get("src") or tag == "link"]
    assert out.stat().st_size < 5e6
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]
    # made again, it is the same
    before = out.read_bytes()
    assert adapos("explore", str(run), "--text", str(text), "--static", str(out))[0] == 0
    assert out.read_bytes() == before


def test_a_model_with_many_heads_has_fewer_queries_on_the_page(run: Path, text: Path, tmp_path: Path) -> None:
    folder = trial(tmp_path / "many", "alibi", layers=8, heads=32, width=64, kv_heads=32)
    out = tmp_path / "page.html"
    assert adapos("explore", str(folder), "--text", str(text), "--static", str(out))[0] == 0
    assert {key.split()[-1] for key in held(out)["row"]} == {"0", "1"}


def test_a_page_is_written_in_place_of_a_page_alone(
    run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "Reading", None)  # nothing is computed before it is refused
    other = tmp_path / "thesis.html"
    other.write_text("<p>years of work")
    said = refused("explore", run / "trials" / "a", "--static", other)
    assert "thesis.html exists and was not made by adapos; remove it or choose another name" in said
    assert other.read_text() == "<p>years of work"
    assert "is a folder; give the name of a file" in refused("explore", run / "trials" / "a", "--static", tmp_path)
    said = refused("explore", run / "trials" / "a", "--static", text / "page.html")
    assert f"page.html cannot be written, for {text} is not a folder; choose another name" in said


def test_folders_that_hold_nothing_to_explore(
    run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "runs/demo holds no trained models; run `make demo`, or give the folder" in refused("explore")
    assert "there is no folder nowhere; give the folder of a trial" in refused("explore", "nowhere")
    assert "text.txt is a file; give the folder of a trial or of a comparison" in refused("explore", text)
    (tmp_path / "empty").mkdir()
    said = refused("explore", "empty")
    assert "empty holds no trial that is trained to its end, and no config.json of one; give the folder" in said
    assert "holds 4 models, and one is to be drawn; give one of" in refused("figures", run, "--text", text)
    assert "holds 4 models" in refused("explore", run / "trials" / "a", "--against", run)
    adding = trial(tmp_path / "adding", "rope", "addition")
    assert "was trained on addition; what is explored must read bytes of text" in refused("explore", adding)
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text('{"model_type": "llama"}')
    assert "hub holds a model of transformers" in refused("explore", "hub")
    (tmp_path / "hub" / "config.json").write_text('{"trial": {"seed": 1}}')
    assert "is damaged: its trial lacks encoding, task" in refused("explore", "hub")
    (adding / "config.json").write_text("{")
    assert "is damaged" in refused("explore", adding)
    unfinished = trial(tmp_path / "unfinished", "rope")
    (unfinished / "done.json").unlink()
    page = tmp_path / "page.html"
    assert "unfinished is not trained to its end" in refused("explore", unfinished, "--static", page)
    assert not page.exists()


def test_a_damaged_trial_is_one_sentence(text: Path, tmp_path: Path) -> None:
    def damaged(name: str, **settings: object) -> str:
        folder = trial(tmp_path / name, "kerple")
        held = json.loads((folder / "config.json").read_text())
        held["trial"] |= settings
        (folder / "config.json").write_text(json.dumps(held))
        return refused("figures", folder, "--text", text, "--out", tmp_path / "out")

    said = damaged("heads", heads=8, kv_heads=8)
    assert "config.json is not what" in said
    assert "the weights do not fit the model: encoding.p is of (3, 4), not (3, 8); put that one back" in said
    assert "are missing or unknown; put that one back" in damaged("layers", layers=2)
    assert "config.json is damaged, its settings are not those of a trial: " in damaged("odd", depth=2)
    lost = trial(tmp_path / "lost", "rope")
    (lost / "weights.safetensors").unlink()
    said = refused("figures", lost, "--text", text)
    assert "lost has lost its weights.safetensors; put it back, or remove its done.json to train on" in said


def test_without_a_folder_the_demo_is_explored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        trial(Path(f"runs/demo/trials/rope-{seed}"), "rope", seed=seed)
    trial(Path("runs/demo/trials/alibi-0"), "alibi")
    assert [each.label for each in shelf.found(None)] == ["alibi", "rope, seed 0", "rope, seed 1"]


def test_texts_and_choices_that_make_no_sense(run: Path, text: Path, tmp_path: Path) -> None:
    one = run / "trials" / "c"
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "long.txt").write_text("a" * 5000)
    assert "none.txt; give one that holds the text" in refused("figures", one, "--text", tmp_path / "none.txt")
    assert "is not a file; give one that holds the text" in refused("figures", one, "--text", tmp_path)
    assert "the text is empty" in refused("explore", one, "--text", tmp_path / "empty.txt")
    assert "the text is 5,000 bytes long" in refused("explore", one, "--text", tmp_path / "long.txt")
    for name, value, last in (("layer", 3, 2), ("head", -1, 3), ("query", 900, 56)):
        said = refused("figures", one, "--text", text, f"--{name}={value}")
        assert f"{name} must lie from 0 to {last}, not {value}" in said


def test_a_text_may_be_any_bytes(run: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.bin").write_bytes(bytes(range(256)))
    words = ["figures", str(run / "trials" / "c"), "--text", str(tmp_path / "odd.bin"), "--out", str(tmp_path / "out")]
    assert adapos(*words)[0] == 0
    ElementTree.fromstring((tmp_path / "out" / "text.svg").read_text())


def test_the_app_refuses_bytes_that_are_no_text(run: Path, tmp_path: Path) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("un café".encode("latin-1"))
    said = refused("explore", run, "--text", latin)
    assert f"the app reads UTF-8, and {latin} is not, at byte 6; save it as UTF-8, or give --static OUT.html" in said
    out = tmp_path / "page.html"
    assert adapos("explore", str(run / "trials" / "a"), "--text", str(latin), "--static", str(out))[0] == 0
    assert "one text of 7 bytes, each of them a token" in out.read_text()


def test_one_byte_is_one_token(run: Path, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("x")
    out = tmp_path / "page.html"
    words = ["explore", str(run / "trials" / "a"), "--text", str(tmp_path / "one.txt"), "--static", str(out)]
    assert adapos(*words)[0] == 0
    assert "one text of 1 byte, one token." in out.read_text()


def test_the_app_without_gradio_is_one_sentence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    said = refused("explore", run)
    assert "the app needs gradio: pip install 'adapos[explore]'; --static OUT.html writes a page without it" in said
    assert said.strip().removeprefix("error: ") == app.MISSING


def test_a_port_that_is_taken_is_one_sentence(run: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refused("explore", run, "--port", port)
    assert said == f"error: port {port} cannot be had (Address already in use); give another --port\n"


def test_the_page_and_the_figures_need_neither_gradio_nor_plotly(run: Path, text: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['gradio'] = sys.modules['plotly'] = None; from adapos.cli import app; "
        f"app(['explore', {str(run / 'trials' / 'a')!r}, '--text', {str(text)!r}, '--static', 'page.html'])"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "page.html").exists()


def test_models_that_read_the_data_come_first(tmp_path: Path) -> None:
    for name in ("alibi", "kerple + dape"):
        trial(tmp_path / "trials" / name, name)
    assert [each.label for each in shelf.found(tmp_path)] == ["alibi", "kerple + dape"]
    done = tmp_path / "trials" / "kerple + dape" / "done.json"
    facts = json.loads(done.read_text()) | {"adaptation": [{"layer": 0, "share": 1.0, "variation": 0.1}]}
    done.write_text(json.dumps(facts))
    assert [each.label for each in shelf.found(tmp_path)] == ["kerple + dape", "alibi"]
