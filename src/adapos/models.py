"""Models of transformers on the command line: export, convert and finetune."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from adapos import files, registry
from adapos.console import in_a_sentence
from adapos.specs import lengths as read_lengths

app = typer.Typer()


def hugging_face() -> Any:
    """adapos.hf, which needs transformers and is not loaded before it is asked for."""
    try:
        import adapos.hf
    except ImportError as problem:
        raise ValueError(f'this needs transformers ({problem}): pip install "adapos[hf]"') from None
    return adapos.hf


def known(encoding: str, *others: str) -> None:
    """Refuse names of no encoding before a model is loaded, which may take long."""
    for name, _ in registry.parse(encoding):
        if name not in others:
            registry.find(name)


@app.command("export")
@in_a_sentence
def export_(
    trial: Annotated[Path, typer.Argument(help="The folder of a trained trial, runs/x/trials/y.")],
    to: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    push: Annotated[str | None, typer.Option(help="Upload it to the Hugging Face hub too, as OWNER/NAME.")] = None,
) -> None:
    """Write a trial as a model that transformers loads, or one of `finetune` as an adapter of PEFT, with a card of what
    was measured."""
    hugging_face()
    from adapos.bench.export import export

    export(trial, to)
    print(f"exported: {to}")
    if push is not None:
        from huggingface_hub import HfApi

        from adapos.hf.pretrained import reason

        api = HfApi()
        try:
            api.create_repo(push, exist_ok=True)
            print(f"pushed: {api.upload_folder(repo_id=push, folder_path=to)}")
        except Exception as problem:  # of the network, the hub and the account: of any kind
            raise ValueError(f"{to} is there, and cannot be pushed to {push}: {reason(problem)}") from None


@app.command("convert")
@in_a_sentence
def convert_(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A model of transformers, by name or folder.")],
    to: Annotated[Path, typer.Argument(metavar="DST", help="A new folder.")],
    encoding: Annotated[str, typer.Option(help="The encoding to put into it, such as 'tape'.")],
) -> None:
    """Put an encoding into a pretrained model; `tape` and `rope + dape(zero=True)` change nothing until trained."""
    hf = hugging_face()
    from adapos.hf.pretrained import without_bars

    known(encoding)
    model, tokenizer = hf.pretrained(source)
    hf.convert(model, encoding)
    with files.folder_beside(to) as place, without_bars():
        model.save_pretrained(place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
    print(f"converted: {to} is an {type(model).__name__} with {encoding!r}")


@app.command()
@in_a_sentence
def finetune(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model of transformers, by name or folder.")],
    encoding: Annotated[
        str | None, typer.Option(help="The encoding to train inside it; its own positions unless given.")
    ] = None,
    lora: Annotated[int, typer.Option(min=0, help="The rank of low-rank updates to train as well; 0 for none.")] = 0,
    data: Annotated[
        str, typer.Option(help="Text: stdlib, enwik8, a file or folder, or hf:NAME for a Hugging Face dataset.")
    ] = "stdlib",
    field: Annotated[str, typer.Option(help="The field of JSON lines or tables that holds the text.")] = "text",
    limit: Annotated[int, typer.Option(help="Bytes of text to read at most; 0 for all.")] = 0,
    length: Annotated[int, typer.Option(help="Tokens of a text while training.")] = 512,
    lengths: Annotated[str, typer.Option(help="Lengths to examine, such as 512..4096.")] = "",
    steps: Annotated[int, typer.Option(help="Steps of training.")] = 200,
    batch: Annotated[int, typer.Option(help="Texts a step.")] = 4,
    rate: Annotated[float, typer.Option(help="The greatest learning rate.")] = 1e-4,
    examples: Annotated[int, typer.Option(help="Texts that are read at each length.")] = 16,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    accumulate: Annotated[int, typer.Option(help="Parts that a batch is computed in.")] = 1,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute activations again in the backward pass.")
    ] = False,
    every: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0,
    out: Annotated[Path, typer.Option(help="The folder of the run.")] = Path("runs/finetune"),
) -> None:
    """Train an encoding, low-rank updates or both inside a pretrained model; run again, it goes on where it stopped.

    Other encodings can be trained into the same folder. `adapos evaluate FOLDER --also passkey` then examines them all,
    and the model as it was, side by side.
    """
    hugging_face()
    from adapos.bench import pretrained, tasks
    from adapos.bench.commands import train_trials
    from adapos.bench.plan import Plan
    from adapos.bench.train import Setup

    if encoding is not None:
        known(encoding, pretrained.ORIGINAL, pretrained.LORA)
    done = pretrained.Method(encoding, lora)
    task = tasks.normal("text", data=data, field=field, limit=limit, tokenizer=model)
    plan = Plan(
        encodings=tuple(dict.fromkeys((pretrained.ORIGINAL, str(done)))),
        lengths=read_lengths(lengths) if lengths else (length,),
        task=task,
        train_length=length,
        seeds=(seed,),
        model=model,
        steps=steps,
        batch=batch,
        rate=rate,
        decay=0.0,
        examples=examples,
        command=shlex.join(["adapos", *sys.argv[1:]]),
    )
    setup = Setup(device, accumulate=accumulate, recomputed=recompute, every=every)
    train_trials(plan, setup, out)
