"""Models of transformers on the command line: export and convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from adapos import files
from adapos.console import in_a_sentence

app = typer.Typer()


def hugging_face() -> Any:
    """adapos.hf, which needs transformers and is not loaded before it is asked for."""
    try:
        import adapos.hf
    except ImportError as problem:
        raise ValueError(f'this needs transformers ({problem}): pip install "adapos[hf]"') from None
    return adapos.hf


@app.command("export")
@in_a_sentence
def export_(
    trial: Annotated[Path, typer.Argument(help="The folder of a trained trial, runs/x/trials/y.")],
    to: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    push: Annotated[str | None, typer.Option(help="Upload it to the Hugging Face hub too, as OWNER/NAME.")] = None,
) -> None:
    """Write a trial as a model that transformers loads, with a card of what was measured."""
    hugging_face()
    from adapos.bench.export import export

    export(trial, to)
    print(f"exported: {to}")
    if push is not None:
        from huggingface_hub import HfApi

        api = HfApi()
        try:
            api.create_repo(push, exist_ok=True)
            print(f"pushed: {api.upload_folder(repo_id=push, folder_path=to)}")
        except Exception as problem:  # of the network, the hub and the account: of any kind
            reason = str(problem).strip().partition("\n")[0]
            raise ValueError(f"{to} is there, and cannot be pushed to {push}: {reason}") from None


@app.command("convert")
@in_a_sentence
def convert_(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A model of transformers, by name or folder.")],
    to: Annotated[Path, typer.Argument(metavar="DST", help="A new folder.")],
    encoding: Annotated[str, typer.Option(help="The encoding to put into it, such as 'tape'.")],
) -> None:
    """Put an encoding into a pretrained model; `tape` and `rope + dape(zero=True)` change nothing until trained."""
    hf = hugging_face()
    model, tokenizer = hf.pretrained(source)
    hf.convert(model, encoding)
    with files.folder_beside(to) as place:
        model.save_pretrained(place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
    print(f"converted: {to} is an {type(model).__name__} with {encoding!r}")
