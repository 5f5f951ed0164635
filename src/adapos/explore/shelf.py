"""The models to choose from: trained trials of the bench, found in folders and loaded when they are asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from adapos import files
from adapos.bench import tasks
from adapos.bench.tasks.text import Text
from adapos.bench.tokenizer import Bytes
from adapos.bench.train import facts, load
from adapos.model import Decoder

DEMO = Path("runs/demo")


@dataclass(frozen=True)
class Kept:
    """A trained model that reads bytes, by the name of its encoding."""

    label: str
    folder: Path

    def load(self) -> Decoder:
        return load(self.folder)[2]


def found(folder: Path | None) -> list[Kept]:
    """The models of a trial's folder, of a comparison's, or of the demo's where none is given."""
    if folder is None and not trials(DEMO):
        raise ValueError(
            f"{DEMO} holds no trained models; run `make demo`, or give the folder of a trial or of a comparison"
        )
    folder = DEMO if folder is None else folder
    if not folder.is_dir():
        wrong = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise ValueError(f"{wrong}; give the folder of a trial or of a comparison")
    places = [folder] if (folder / "config.json").exists() else trials(folder)
    if not places:
        raise ValueError(
            f"{folder} holds no trial that is trained to its end, and no config.json of one; give the folder of a "
            "trial or of a comparison"
        )
    settings = [readable(place) for place in places]
    times = Counter(encoding for encoding, _ in settings)
    return [
        Kept(encoding if times[encoding] == 1 else f"{encoding}, seed {seed}", place)
        for place, (encoding, seed) in zip(places, settings, strict=True)
    ]


def trials(folder: Path) -> list[Path]:
    """Those of a comparison that are done, first those whose encoding reads the data."""
    places = (path.parent for path in (folder / "trials").glob("*/done.json"))
    return sorted(places, key=lambda place: (not facts(place)["adaptation"], place))


def readable(folder: Path) -> tuple[str, int]:
    """The encoding and the seed of a trial, which must be a decoder of bytes."""
    path = folder / "config.json"
    if not path.exists():
        raise ValueError(f"{folder} holds no trial: it has no config.json; put it back, or remove the folder")
    if '"model_type"' in path.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"{folder} holds a model of transformers; give the folder of a trial of the bench")
    held = files.read(path, "trial")["trial"]
    missing = [name for name in ("encoding", "seed", "task") if not isinstance(held, dict) or name not in held]
    if missing:
        raise ValueError(f"{path} is damaged: its trial lacks {', '.join(missing)}; put back what it was trained by")
    if held.get("model"):
        raise ValueError(f"{folder} holds a pretrained model; what is explored are decoders that the bench trained")
    task = tasks.build(held["task"])
    if not isinstance(task, Text) or not isinstance(task.reader, Bytes):
        raise ValueError(
            f"{folder} was trained on {held['task']}; what is explored must read bytes of text (the task 'text', "
            "tokenizer 'bytes')"
        )
    return str(held["encoding"]), int(held["seed"])


def chosen(kept: list[Kept], folder: Path) -> Kept:
    """The one model of a folder."""
    if len(kept) > 1:
        listed = ", ".join(str(each.folder) for each in kept)
        raise ValueError(f"{folder} holds {len(kept)} models, and one is to be drawn; give one of {listed}")
    return kept[0]
