"""From a trial of the bench to transformers and its tools, and the commands that go there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import adapos.hf as hf
from adapos.bench import train
from adapos.bench.export import byte_tokenizer
from commands import run
from hf import small

SHAPE = ["--layers", "2", "--width", "32", "--heads", "2", "--batch", "4"]


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trial on text that was evaluated."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADAPOS_CACHE", str(folder / "cache"))
        (folder / "text.txt").write_text("some words, and more of them. " * 400)
        words = ["--encodings", "kerple + dape", "--data", str(folder / "text.txt"), "--train-length", "16", *SHAPE]
        words += ["--lengths", "16,32", "--steps", "6", "--examples", "4", "--out", str(folder)]
        assert run("compare", *words)[0] == 0
        (found,) = (folder / "trials").iterdir()
        yield found


@pytest.fixture
def exported(trial: Path, tmp_path: Path) -> Path:
    code, out, _ = run("export", str(trial), str(tmp_path / "model"))
    assert (code, out.strip()) == (0, f"exported: {tmp_path / 'model'}")
    return tmp_path / "model"


def test_an_exported_trial_says_the_same_to_the_bit(trial: Path, exported: Path) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(exported), AutoTokenizer.from_pretrained(exported)
    _, _, decoder = train.load(trial)
    tokens = tokenizer("some words \N{SNOWMAN}", return_tensors="pt")
    assert tokens.input_ids[0].tolist() == list("some words \N{SNOWMAN}".encode())
    with torch.no_grad():
        assert torch.equal(model(**tokens).logits, decoder(tokens.input_ids))
    card = (exported / "README.md").read_text()
    assert "# A decoder with the positional encoding `kerple + dape`" in card
    assert "| 32 | perplexity |" in card


def test_every_byte_is_a_token_and_comes_back() -> None:
    tokenizer = byte_tokenizer()
    text = "".join(map(chr, range(300))) + "\N{GRINNING FACE}"
    ids = tokenizer(text).input_ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_what_cannot_be_exported_says_why(trial: Path, exported: Path, tmp_path: Path) -> None:
    for words, sentence in (
        ((str(tmp_path / "nothing"), str(tmp_path / "x")), "holds no trial"),
        ((str(trial), str(exported)), "must be a new folder or an empty one, and holds something"),
    ):
        code, _, err = run("export", *words)
        assert code == 2
        assert sentence in err
    run(
        "train",
        "--encoding",
        "rope",
        "--task",
        "chomsky/parity_check",
        "--steps",
        "2",
        "--out",
        str(tmp_path / "p"),
        *SHAPE,
    )
    (found,) = (tmp_path / "p" / "trials").iterdir()
    code, _, err = run("export", str(found), str(tmp_path / "x"))
    assert (code, "is read in both directions" in err) == (2, True)
    assert not (tmp_path / "x").exists()


def test_a_model_is_pushed_with_its_card(trial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    seen: list[Any] = []

    class Hub:
        def create_repo(self, name: str, exist_ok: bool) -> None:
            seen.append(name)

        def upload_folder(self, repo_id: str, folder_path: Path) -> str:
            seen.append(sorted(path.name for path in folder_path.iterdir()))
            return "there"

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    code, out, _ = run("export", str(trial), str(tmp_path / "model"), "--push", "owner/name")
    assert (code, seen[0], "README.md" in seen[1], "pushed: there" in out) == (0, "owner/name", True, True)


def test_a_model_is_converted_from_folder_to_folder(tmp_path: Path) -> None:
    base, (tokens, _) = small.model("llama"), small.texts()
    base.save_pretrained(tmp_path / "base")
    # before anybody looks for the model
    code, _, err = run("convert", str(tmp_path / "nowhere"), str(tmp_path / "tape"), "--encoding", "taep")
    assert (code, err.partition("?")[0]) == (2, "error: no encoding is called 'taep'; did you mean 'tape'")
    code, out, err = run("convert", str(tmp_path / "base"), str(tmp_path / "tape"), "--encoding", "tape")
    assert code == 0, err
    assert "is an AdaposLlamaForCausalLM with 'tape'" in out
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "tape").eval()
    with torch.no_grad():
        assert torch.allclose(model(tokens).logits, base(tokens).logits, atol=1e-6)
    for words, sentence in (
        ((str(tmp_path / "tape"), str(tmp_path / "x"), "--encoding", "tape"), "has the encoding 'tape' already"),
        ((str(tmp_path / "none"), str(tmp_path / "x"), "--encoding", "tape"), "cannot be loaded"),
        ((str(tmp_path / "base"), str(tmp_path / "x"), "--encoding", "taep"), "did you mean 'tape'?"),
    ):
        code, _, err = run("convert", *words)
        assert code == 2
        assert sentence in err
        assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_decay_spares_positions(tmp_path: Path) -> None:
    model = hf.convert(small.model("llama"), "tape")
    decayed, kept = hf.parameter_groups(model, 0.1)
    names = {id(x): name for name, x in model.named_parameters()}
    assert not any("encoding" in names[id(x)] or "norm" in names[id(x)] for x in decayed["params"])
    assert sum("encoding" in names[id(x)] for x in kept["params"]) == 4
    assert len(decayed["params"]) + len(kept["params"]) == len(names)


TASK = """
task: capitals
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
"""


@pytest.mark.slow
def test_the_evaluation_harness_runs_a_task_of_ones_own(exported: Path, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    lines = [{"question": f"some {n}", "choices": [" words", " zzz"], "answer": 0} for n in range(4)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "capitals.yaml").write_text(TASK.replace("FILE", str(tmp_path / "test.jsonl")))
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "adapos.hf.harness",
                "--model",
                "hf",
                "--model_args",
                f"pretrained={exported},prefix_token_id=10",
            ),
            *("--tasks", "capitals", "--include_path", str(tmp_path), "--device", "cpu", "--batch_size", "2"),
            *("--output_path", str(tmp_path / "out")),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (found,) = tmp_path.glob("out/**/results*.json")
    assert 0 <= json.loads(found.read_text())["results"]["capitals"]["acc,none"] <= 1
