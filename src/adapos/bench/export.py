"""A trial of the bench as a folder that transformers loads: configuration, weights, tokenizer and a card of what was
measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from adapos import files
from adapos.bench import rows, tasks, train
from adapos.bench.plan import Trial
from adapos.bench.report import words
from adapos.bench.report.results import BESIDE, Measure
from adapos.bench.rows import Row
from adapos.hf.config import AdaposConfig
from adapos.hf.model import AdaposForCausalLM


def export(folder: Path, to: Path) -> None:
    """Write `to`, whole or not at all."""
    trial, task, decoder = train.load(folder)
    if trial.model:
        raise ValueError(f"{folder} holds an adapter of {trial.model}, not a model; only decoders of ours are exported")
    if not task.causal:
        raise ValueError(f"{trial.task} is read in both directions, and a causal language model cannot be made of it")
    block: Any = decoder.blocks[0]
    config = AdaposConfig(
        vocab_size=task.vocabulary,
        encoding=trial.encoding,
        hidden_size=trial.width,
        num_hidden_layers=trial.layers,
        num_attention_heads=trial.heads,
        num_key_value_heads=trial.kv_heads,
        intermediate_size=block.mlp.up.out_features,
        attention_dropout=trial.dropout,
    )
    model = AdaposForCausalLM(config)
    held = {name: x for name, x in decoder.state_dict().items() if not name.startswith("head.")}
    model.model.decoder.load_state_dict(held)
    with files.folder_beside(to) as place:
        model.save_pretrained(place)
        if (reader := tokenizer(trial.task)) is not None:
            reader.save_pretrained(place)
        (place / "README.md").write_text(card(trial, rows.read(folder.parent.parent / "rows.jsonl")), encoding="utf-8")


def tokenizer(task: str) -> Any:
    """Of a trial on text; other tasks have none."""
    cls, given = tasks.read(task)
    if cls.name != "text":
        return None
    name = given.get("tokenizer", "bytes")
    return AutoTokenizer.from_pretrained(name) if name != "bytes" else byte_tokenizer()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Token 0 to 255 is a byte of UTF-8."""
    letters = dict(zip(byte_order(), range(256), strict=True))
    made = Tokenizer(models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False)


def byte_order() -> list[str]:
    """The letter that stands for each byte: itself where it can be seen, else one from 256 on, as in byte-level BPE."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]


def card(trial: Trial, found: list[Row]) -> str:
    """What the model is, and what the bench measured of it."""
    own = [row for row in found if row.trial == trial.name]
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [adapos, positional-encoding]",
        "---",
        "",
        f"# A decoder with the positional encoding `{trial.encoding}`",
        "",
        f"{trial.layers} layers of {trial.width}, {trial.heads} heads, trained with adapos on `{trial.task}` at length "
        f"{trial.train_length:,}: {trial.steps:,} steps of {trial.batch} texts, seed {trial.seed}.",
        "",
        "```python",
        "import adapos.hf",
        "from transformers import AutoModelForCausalLM",
        "",
        'model = AutoModelForCausalLM.from_pretrained("THIS MODEL")',
        "```",
        "",
    ]
    measured = [row for row in own if row.protocol not in BESIDE and not row.marks]
    if measured:
        lines += ["| length | measure | value | standard error | protocol |", "|---:|---|---:|---:|---|"]
        for row in sorted(measured, key=lambda row: (row.metric, row.protocol, row.length)):
            measure = Measure(row.task, row.metric, row.protocol)
            error = words.value(measure, row.error, row.value) if row.error is not None else ""
            cells = (f"{row.length:,}", words.named(measure), words.value(measure, row.value), error, row.protocol)
            lines.append(f"| {' | '.join(cells)} |")
    else:
        lines.append("It has not been evaluated yet.")
    return "\n".join(lines) + "\n"
