"""A pretrained model trained and examined by the bench: the original, adapters and encodings side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import adapos.hf
from adapos.bench import pretrained, rows, train
from adapos.bench.export import byte_tokenizer
from commands import run
from hf import small

peft = pytest.importorskip("peft")

METHODS = ([], ["--encoding", "tape"], ["--lora", "4"], ["--encoding", "rope + dape(zero=True)", "--lora", "2"])
PLAIN = {"rope_type": "default", "rope_theta": 5000.0}
STRETCHED = "rope(schedule='linear', factor=2.0)"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small model that reads bytes, and text to train it on."""
    monkeypatch.setenv("ADAPOS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    small.model("llama", vocab_size=256, rope_parameters=PLAIN).save_pretrained(tmp_path / "model")
    byte_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text("some words, and more of them. " * 400)
    return str(tmp_path / "model")


def finetune(model: str, *words: str, steps: int = 4, out: str = "run") -> tuple[int, str, str]:
    how = ["--data", "text.txt", "--length", "64", "--steps", str(steps), "--batch", "2", "--examples", "3"]
    return run("finetune", model, *how, "--lengths", "64,128", "--rate", "1e-3", "--out", out, *words)


def test_methods_are_trained_and_examined_side_by_side(model: str, tmp_path: Path) -> None:
    for words in (*METHODS, ["--encoding", STRETCHED]):
        code, _, err = finetune(model, *words)
        assert code == 0, err
    code, out, err = run("evaluate", "run", "--also", "passkey")
    assert code == 0, err
    found = rows.read(tmp_path / "run" / "rows.jsonl")
    names = {"original", "tape", "lora(rank=4)", "rope + dape(zero=True) + lora(rank=2)", STRETCHED}
    assert {row.encoding for row in found if row.metric == "perplexity"} == names
    assert {row.encoding for row in found if row.task.startswith("passkey")} == names
    assert "original" in out
    loss = {row.encoding: row.value for row in found if (row.metric, row.length) == ("perplexity", 64)}
    assert loss["lora(rank=4)"] < loss["original"]
    for folder in (tmp_path / "run" / "trials").iterdir():
        held = json.loads((folder / "config.json").read_text())["trial"]["encoding"]
        trained = train.facts(folder)
        assert (trained["positional"] > 0) == ("tape" in held or "dape" in held)
        # an adapter, not a model
        size = (folder / "weights.safetensors").stat().st_size
        assert size < (tmp_path / "model" / "model.safetensors").stat().st_size / 2


def test_training_that_was_stopped_goes_on_to_the_same_bits(model: str, tmp_path: Path) -> None:
    finetune(model, "--encoding", "tape", steps=6, out="whole")
    stop = train.Trainer.note
    with pytest.MonkeyPatch.context() as patch:

        def stopping(self: train.Trainer, loss: float, norm: float) -> None:
            stop(self, loss, norm)
            if self.step == 3:
                self.stopping = True

        patch.setattr(train.Trainer, "note", stopping)
        assert finetune(model, "--encoding", "tape", steps=6, out="parts")[0] == 143
    assert finetune(model, "--encoding", "tape", steps=6, out="parts")[0] == 0
    one, two = (sorted(Path(name).glob("trials/tape*/weights.safetensors")) for name in ("whole", "parts"))
    assert one[0].read_bytes() == two[0].read_bytes()


@pytest.mark.parametrize("words", [*METHODS[1:], ["--encoding", STRETCHED]], ids=" ".join)
def test_what_was_trained_is_handed_out_as_an_adapter(model: str, tmp_path: Path, words: list[str]) -> None:
    assert finetune(model, *words)[0] == 0
    (folder,) = [each for each in (tmp_path / "run" / "trials").iterdir() if not each.name.startswith("original")]
    assert run("export", str(folder), "adapter")[0] == 0
    assert {path.name for path in Path("adapter").iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    card = Path("adapter/README.md").read_text()
    assert "PeftModel.from_pretrained" in card
    assert ("not trained" in card) == (STRETCHED in words)
    again = peft.PeftModel.from_pretrained(adapos.hf.pretrained(model)[0], "adapter").eval()
    _, _, trained = train.load(folder)
    tokens = torch.randint(256, (2, 12))
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, trained(tokens))


def test_a_model_that_was_changed_is_not_taken_for_what_it_was(model: str, tmp_path: Path) -> None:
    finetune(model, "--encoding", "tape")
    small.model("llama", vocab_size=256, rope_parameters=PLAIN, initializer_range=0.05).save_pretrained(model)
    pretrained.checksum.cache_clear()
    code, _, err = finetune(model, "--encoding", "tape")
    assert (code, "was begun with another model; choose another folder" in err) == (2, True)
    (folder,) = (tmp_path / "run" / "trials").glob("tape*")
    with pytest.raises(ValueError, match=r"is not the model that .* was trained in; put that one back"):
        train.load(folder)


def test_a_start_that_failed_binds_nobody(model: str) -> None:
    weights = Path(model) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:1000])
    assert finetune(model, "--encoding", "tape")[0] == 2
    weights.write_bytes(whole)
    pretrained.checksum.cache_clear()
    assert finetune(model, "--encoding", "tape")[0] == 0


def test_only_what_is_adapted_moves(model: str) -> None:
    made = pretrained.Pretrained(model, pretrained.Method("tape"), 256)
    assert {name.split(".")[-1] for name in train.trained(made)} == {"w_p", "w_1", "w_x", "w_2"}
    tokens = torch.randint(256, (2, 12))
    base = pretrained.Pretrained(model, pretrained.Method(), 256)
    assert not train.trained(base)
    with torch.no_grad():
        assert torch.allclose(made(tokens), base(tokens), atol=1e-6)
        doc = torch.zeros_like(tokens)
        doc[:, 7:] = 1
        apart = torch.cat([base(tokens[:, :7]), base(tokens[:, 7:])], dim=1)
        assert torch.allclose(base(tokens, doc=doc), apart, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--encoding", "taep"], "no encoding is called 'taep'; did you mean 'tape'?"),
        (["--encoding", "original + tape"], "'original' is the model as it is, and stands alone"),
        (["--encoding", "sinusoidal"], "'sinusoidal' adds to the embeddings"),
        (["--data", "nowhere"], "nowhere"),
        (["--encoding", "rope(schedule='yarn', factor=2.0)"], "needs the trained length"),
    ],
)
def test_what_makes_no_sense_is_refused(model: str, words: list[str], sentence: str) -> None:
    code, _, err = finetune(model, *words, out="refused")
    assert code == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    code, _, err = run("finetune", str(tmp_path / "none"), "--encoding", "tape", "--out", str(tmp_path / "run"))
    assert (code, "cannot be loaded" in err) == (2, True)
    assert not (tmp_path / "run").exists()


def test_methods_are_written_as_encodings_are() -> None:
    config = small.model("qwen2").config
    for text in ("original", "tape", "lora(rank=8)", "tape + lora(rank=4)", "rope(base=77.0) + dape(zero=True)"):
        assert str(pretrained.method(text, config)) == text
    assert str(pretrained.method("lora", config)) == "lora(rank=8)"
    with pytest.raises(ValueError, match="lora: rank must be a whole number of at least 1, not 0"):
        pretrained.method("lora(rank=0)", config)
