"""A trial of the bench as a folder that transformers or PEFT loads: configuration, weights, tokenizer and a card of
what was measured.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from adapos import files
from adapos.bench import rows, tasks, train
from adapos.bench.plan import Trial
from adapos.bench.pretrained import ORIGINAL
from adapos.bench.report import words
from adapos.bench.report.results import BESIDE, Measure, weighed
from adapos.bench.rows import Row
from adapos.bench.task import Task
from adapos.hf.config import AdaposConfig
from adapos.hf.model import AdaposForCausalLM
from adapos.hf.pretrained import without_bars

END = "<|end|>"


def export(folder: Path, to: Path) -> None:
    """Write `to`, whole or not at all: a model, or the adapter of a pretrained one."""
    trial, task, model = train.load(folder)
    written: Any = adapter(trial, model) if trial.model else decoder(trial, task, model)
    with files.folder_beside(to) as place, without_bars():
        written.save_pretrained(place)
        if not trial.model and (reader := tokenizer(trial.task)) is not None:
            reader.save_pretrained(place)
        found = rows.read(folder.parent.parent / "rows.jsonl")
        said = card(trial, found, trained=train.facts(folder)["tokens"] > 0)
        (place / "README.md").write_text(said, encoding="utf-8")


def adapter(trial: Trial, model: Any) -> Any:
    """What was trained inside a pretrained model."""
    if trial.encoding == ORIGINAL:
        raise ValueError(f"this trial is {trial.model} as it is; export one that was trained")
    (config,) = model.model.peft_config.values()
    config.base_model_name_or_path = trial.model
    return model.model


def decoder(trial: Trial, task: Task, model: Any) -> AdaposForCausalLM:
    if not task.causal:
        raise ValueError(f"{trial.task} is read in both directions, and a causal language model cannot be made of it")
    config = AdaposConfig(
        vocab_size=task.vocabulary,
        encoding=trial.encoding,
        hidden_size=trial.width,
        num_hidden_layers=trial.layers,
        num_attention_heads=trial.heads,
        num_key_value_heads=trial.kv_heads,
        intermediate_size=model.blocks[0].mlp.up.out_features,
        attention_dropout=trial.dropout,
    )
    made = AdaposForCausalLM(config)
    made.model.decoder.load_state_dict(
        {name: x for name, x in model.state_dict().items() if not name.startswith("head.")}
    )
    return made


def tokenizer(task: str) -> Any:
    """Of a trial on text; other tasks have none."""
    cls, given = tasks.read(task)
    if cls.name != "text":
        return None
    name = given.get("tokenizer", "bytes")
    return AutoTokenizer.from_pretrained(name) if name != "bytes" else byte_tokenizer()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Token 0 to 255 is a byte of UTF-8, but for the last, which no text holds: it ends and pads texts."""
    letters = dict(zip([*byte_order()[:-1], END], range(256), strict=True))
    made = Tokenizer(models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )


def byte_order() -> list[str]:
    """The letter that stands for each byte: itself where it can be seen, else one from 256 on, as in byte-level BPE."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]


def card(trial: Trial, found: list[Row], *, trained: bool) -> str:
    """What the model is, and what the bench measured of it."""
    own = [row for row in found if row.trial == trial.name]
    how = f"on `{trial.task}` at length {trial.train_length:,}: {trial.steps:,} steps of {trial.batch} texts"
    how = f"trained with adapos {how}, seed {trial.seed}" if trained else "not trained, for nothing of it can be"
    lines = [*(of_adapter(trial, how) if trial.model else of_decoder(trial, how)), ""]
    # one number a length, where a task has several places, such as depths
    places: dict[tuple[Measure, int], list[Row]] = defaultdict(list)
    for row in own:
        if row.protocol not in BESIDE:
            places[Measure(row.task, row.metric, row.protocol), row.length].append(row)
    if places:
        lines += ["| length | measure | value | standard error | protocol |", "|---:|---|---:|---:|---|"]
        for (measure, length), there in sorted(places.items(), key=lambda item: (item[0][0].name, item[0][1])):
            value = weighed([(row.value, row.n) for row in there])
            error = there[0].error if len(there) == 1 else None
            said = words.value(measure, error, value) if error is not None else ""
            cells = (f"{length:,}", words.named(measure), words.value(measure, value), said, measure.protocol)
            lines.append(f"| {' | '.join(cells)} |")
    else:
        lines.append("It has not been evaluated yet.")
    return "\n".join(lines) + "\n"


def of_decoder(trial: Trial, how: str) -> list[str]:
    return [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [adapos, positional-encoding]",
        "---",
        "",
        f"# A decoder with the positional encoding `{trial.encoding}`",
        "",
        f"{trial.layers} layers of {trial.width}, {trial.heads} heads, {how}.",
        "",
        "```python",
        "import adapos.hf",
        "from transformers import AutoModelForCausalLM",
        "",
        'model = AutoModelForCausalLM.from_pretrained("THIS MODEL")',
        "```",
    ]


def of_adapter(trial: Trial, how: str) -> list[str]:
    name = Path(trial.model).name
    # a hub knows models by owner and name
    base = [] if Path(trial.model).exists() else [f"base_model: {trial.model}"]
    return [
        "---",
        "library_name: peft",
        *base,
        "tags: [adapos, positional-encoding]",
        "---",
        "",
        f"# `{trial.encoding}` inside {name}",
        "",
        f"An adapter, {how}; all else of {name} is as it was.",
        "",
        "```python",
        "import adapos.hf.peft",
        "from peft import PeftModel",
        "",
        f'model, tokenizer = adapos.hf.pretrained("{trial.model if base else name}")',
        'model = PeftModel.from_pretrained(model, "THIS ADAPTER")',
        "```",
    ]
