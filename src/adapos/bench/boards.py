"""Where curves of training are shown while it goes on: TensorBoard or trackio, besides the log that is always there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from adapos.bench.plan import Trial

BOARDS = ("none", "tensorboard", "trackio")


class Board(Protocol):
    def write(self, step: int, numbers: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Nothing:
    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        pass

    def close(self) -> None:
        pass


class Tensorboard:
    def __init__(self, folder: Path, begun: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError("the board needs tensorboard: pip install tensorboard; or leave --board out") from None
        # what was shown of steps that are done again goes
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=begun + 1)

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Trackio:
    def __init__(self, trial: Trial) -> None:
        try:
            import trackio
        except ImportError:
            raise ValueError("the board needs trackio: pip install trackio; or leave --board out") from None
        self.run: Any = trackio.init(project="adapos", name=trial.name, config=asdict(trial), resume="allow")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self.run.log(dict(numbers), step=step)

    def close(self) -> None:
        self.run.finish()


def opened(kind: str, folder: Path, trial: Trial, begun: int) -> Board:
    if kind == "tensorboard":
        return Tensorboard(folder, begun)
    return Trackio(trial) if kind == "trackio" else Nothing()
