"""A trial trained: from its settings to weights and a log, resumed wherever it was stopped.

trials/<name>/
  config.json            the trial, its vocabulary and the checksums of its data and of a pretrained model
  log.jsonl              loss, rate, size of the gradient and speed, as training goes
  checkpoints/           the last few
  weights.safetensors    when it is done, with done.json beside it; failed.json where the loss was no number

Nothing random depends on the past: batches and all else that is drawn come from the seed and the number of the step, so
that a checkpoint need not hold them, and a run that was killed ends with the same bits as one that was not.
"""

from __future__ import annotations

import hashlib
import json
import math
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from adapos import files
from adapos.bench import adaptation, checkpoint, pretrained, tasks
from adapos.bench.boards import BOARDS, Board, Nothing, opened
from adapos.bench.memory import forget_peak, peak
from adapos.bench.plan import Trial
from adapos.bench.processes import Processes, alike, by_accelerate, together, whole
from adapos.bench.signals import Stopped, heard
from adapos.bench.task import IGNORED, Batch, Task
from adapos.kernels import named
from adapos.model import Decoder, parameter_groups
from adapos.registry import one_of
from adapos.sketch import available

JUMP = 0.5  # nats above the mean of what was logged before
BEFORE = 5  # lines of the log that a loss is compared with
LINES = 200  # of the log, about
SHOWN = ("loss", "rate", "norm", "tokens_per_second")  # on a board
PROBE = 128  # tokens that adaptation is measured on
PROBES = 10  # times that adaptation is measured on the way
COSTS = ("tokens_per_second", "seconds", "peak_bytes", "loss")  # what is known of a trial that is done

Parameters = dict[str, nn.Parameter]


@dataclass(frozen=True)
class Setup:
    """How a trial is run; none of it changes what is computed, but for rounding."""

    device: str = "cpu"
    backend: str = "auto"
    accumulate: int = 1  # parts that a batch is computed in
    compiled: bool = False
    recomputed: bool = False  # activations are computed again in the backward pass
    every: float = 60.0  # seconds between checkpoints
    keep: int = 2  # checkpoints
    board: str = "none"
    sharded: bool = False  # over the processes that torchrun started (FSDP2): for models that do not fit one

    def __post_init__(self) -> None:
        if self.accumulate < 1 or self.keep < 1 or not self.every > 0:
            raise ValueError(
                f"accumulate ({self.accumulate}), keep ({self.keep}) and every ({self.every}) must be at least 1, 1 "
                "and above 0"
            )
        available(self.device)
        if self.backend != "auto":
            named(self.backend)
        one_of("run", "board", self.board, BOARDS)


class Watch(Protocol):
    """Who hears how training goes."""

    def began(self, trial: Trial, step: int) -> None: ...

    def stepped(self, step: int, loss: float, tokens_per_second: float) -> None: ...

    def warned(self, sentence: str) -> None: ...


class Quiet:
    def began(self, trial: Trial, step: int) -> None:
        pass

    def stepped(self, step: int, loss: float, tokens_per_second: float) -> None:
        pass

    def warned(self, sentence: str) -> None:
        print(f"warning: {sentence}", file=sys.stderr)


class Failed(Exception):
    """The loss is no number any more: the trial cannot go on, others can."""


def train(
    trial: Trial,
    folder: Path,
    setup: Setup = Setup(),  # noqa: B008 (frozen)
    watch: Watch | None = None,
    task: Task | None = None,
) -> None:
    """Train in `folder`, from its last checkpoint; nothing is done where it is done already.

    `task` is the trial's, where it is there already: to look at its data takes a while.
    """
    task = task or tasks.build(trial.task)
    settle(trial, task, folder)
    if (folder / "done.json").exists():
        return
    fitting(trial.dtype, setup)
    setup = replace(setup, sharded=setup.sharded or by_accelerate().sharded)
    with together(setup.device, sharded=setup.sharded) as processes:
        lock = files.locked(folder / "lock", f"{folder} is being trained by another process; wait until it is done")
        with lock if processes.main else nullcontext():
            Trainer(trial, task, folder, setup, watch or Quiet(), processes).run()


def fitting(dtype: str, setup: Setup) -> None:
    """Refuse numbers that cannot be trained in, or that accelerate was not asked for."""
    if dtype == "float16" and setup.device != "cuda":
        raise ValueError("float16 needs the scaled gradients of cuda; train in bfloat16 or float32 here")
    launched = by_accelerate()
    if launched.dtype not in (None, dtype):
        raise ValueError(
            f"accelerate was asked for {launched.dtype}, and the trial is in {dtype}; give adapos --dtype "
            f"{launched.dtype}, or accelerate --mixed_precision no"
        )


def settle(trial: Trial, task: Task, folder: Path) -> None:
    """Write what the trial is, or see that the folder holds the same: other data would be another trial."""
    config = {
        "trial": asdict(trial),
        "vocabulary": task.vocabulary,
        "task_version": task.version,
        "data": task.checksum,
    }
    if trial.model:
        config["model"] = pretrained.checksum(trial.model)
    path = folder / "config.json"
    held = files.read(path, *config) if path.exists() else None
    # what failed before its first step binds nobody
    begun = held is not None and (held["trial"] != config["trial"] or (folder / "log.jsonl").exists())
    if held is not None and begun:
        for name in config:
            if held[name] != config[name]:
                raise ValueError(f"{folder} was begun with another {name.replace('_', ' ')}; choose another folder")
    elif held != config:
        files.write(path, json.dumps(config, indent=1) + "\n")


class Trainer:
    def __init__(
        self, trial: Trial, task: Task, folder: Path, setup: Setup, watch: Watch, processes: Processes
    ) -> None:
        self.trial, self.task, self.folder, self.setup = trial, task, folder, setup
        self.watch, self.processes = watch, processes
        together = processes.count * setup.accumulate
        if processes.count > 1 and trial.batch % together:
            raise ValueError(
                f"batch ({trial.batch}) must be a multiple of {together}, the processes times the parts of a batch"
            )
        self.model = decoder(trial, self.task, setup.backend).to(setup.device)
        self.model.recomputes = setup.recomputed
        self.joined = processes.joined(self.model, sharded=setup.sharded)
        # those that the optimizer has; a sharded model shows others while it computes
        self.parameters = trained(self.model)
        self.optimizer = optimizer(self.model, trial)
        self.scaler = torch.amp.GradScaler(setup.device, enabled=trial.dtype == "float16" and setup.device == "cuda")
        self.step, self.seconds, self.tokens = 0, 0.0, 0
        self.heard: list[float] = []  # losses since the last line of the log
        self.signalled = 0  # the signal that this process was sent
        self.saved = time.monotonic()
        # what all processes have agreed on
        self.stopping = self.saving = False
        self.board: Board = Nothing()

    def run(self) -> None:
        self.restore()
        model = self.ready()
        if self.processes.main and self.parameters:
            self.watch.began(self.trial, self.step)
        if self.processes.main:
            self.board = opened(self.setup.board, self.folder, self.trial, self.step)
        forget_peak(self.setup.device)
        with heard(self.asked), closing(self.board):
            while self.step < self.trial.steps and self.parameters:
                began = time.perf_counter()
                loss, norm = self.advance(model)
                self.seconds += time.perf_counter() - began
                self.note(loss, norm)
                if not math.isfinite(loss):
                    self.fail(loss)
                if self.stopping or self.saving:
                    self.save()
                if self.stopping:
                    raise Stopped(self.signalled or signal.SIGTERM)
        self.finish()
        if self.signalled:  # in the last step
            raise Stopped(self.signalled)

    def ready(self) -> Any:
        """The model to call."""
        self.model.train()
        return torch.compile(self.joined) if self.setup.compiled else self.joined

    def restore(self) -> None:
        found = checkpoint.latest(self.folder / "checkpoints", self.watch.warned)
        if found is not None:
            load_weights(self.parameters, found.tensors["model"])
            load_moments(self.parameters, self.optimizer, found.tensors["optimizer"])
            self.step, self.seconds, self.tokens = found.step, found.facts["seconds"], found.facts["tokens"]
            self.heard = found.facts["heard"]
            self.scaler.load_state_dict(found.facts["scaler"])
        if self.processes.main:
            log = self.folder / "log.jsonl"
            # lines of steps that will be done again
            kept = [line for line in lines(log) if line["step"] <= self.step and math.isfinite(line["loss"])]
            files.write(log, "".join(json.dumps(line) + "\n" for line in kept))

    def save(self) -> None:
        tensors = {"model": weights(self.parameters), "optimizer": moments(self.parameters, self.optimizer)}
        if self.processes.main:
            facts = {
                "seconds": self.seconds,
                "tokens": self.tokens,
                "heard": self.heard,
                "scaler": self.scaler.state_dict(),
            }
            checkpoint.keep(self.folder / "checkpoints", self.step, tensors, facts, last=self.setup.keep)
        self.processes.wait()
        self.saved = time.monotonic()

    def advance(self, model: nn.Module) -> tuple[float, float]:
        """One step: the loss of the whole batch, and the size of its gradient before it is clipped."""
        trial = self.trial
        for group in self.optimizer.param_groups:
            group["lr"] = rate(trial, self.step)
        batch = self.task.batch(generator(trial.seed, self.step), trial.batch, trial.train_length)
        # what dropout and encodings draw: the same whatever was drawn before
        torch.manual_seed(int(generator(trial.seed, self.step, 1, self.processes.rank).integers(2**62)))
        asked = int((batch.targets != IGNORED).sum())
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), dtype=torch.float64)
        parts = list(split(batch.rows(self.processes.rows), self.setup.accumulate))
        for index, part in enumerate(parts):
            with exchanging(self.joined, index == len(parts) - 1):
                loss = losses(model, part, self.task, self.setup.device, trial.dtype).sum() / asked
                # gradients of several processes are averaged, and the losses are parts of one mean
                self.scaler.scale(loss * self.processes.count).backward()
            total += loss.detach().cpu()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), trial.clip)
        due = self.processes.main and time.monotonic() - self.saved > self.setup.every
        wishes = torch.tensor([bool(self.signalled), due], dtype=torch.float64)
        value, stopping, saving = self.processes.summed(torch.cat([total[None], wishes])).tolist()
        self.stopping, self.saving = stopping > 0, saving > 0
        self.tokens += batch.tokens.size
        size = float(whole(norm))
        # a scaler passes over such a step by itself
        if not math.isfinite(size) and not self.scaler.is_enabled():
            value = math.nan
        if math.isfinite(value):
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.step += 1
        return value, size

    def note(self, loss: float, norm: float) -> None:
        self.heard.append(loss)
        speed = self.tokens / max(self.seconds, 1e-9)
        if self.processes.main:
            self.watch.stepped(self.step, loss, speed)
        probing = self.step % max(1, self.trial.steps // PROBES) == 0
        due = probing or self.step % max(1, self.trial.steps // LINES) == 0 or self.step == self.trial.steps
        if not due and math.isfinite(loss):
            return
        line: dict[str, Any] = {
            "step": self.step,
            "loss": sum(self.heard) / len(self.heard),
            "rate": rate(self.trial, self.step - 1),
            "norm": norm,
            "tokens_per_second": speed,
            "seconds": self.seconds,
        }
        if probing and math.isfinite(loss):
            line["adaptation"] = [asdict(layer) for layer in self.adaptation()]
        if self.processes.main:
            with open(self.folder / "log.jsonl", "a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
            self.board.write(self.step, {name: line[name] for name in SHOWN})
        self.heard = []

    def adaptation(self) -> list[adaptation.Adaptation]:
        """On a few texts that are the same at every step."""
        if not isinstance(self.model, Decoder):
            return []
        batch = self.task.batch(generator(self.trial.seed, 0, 2), 4, self.trial.train_length)
        tokens, _, doc = tensors(batch, self.setup.device)
        doc = None if doc is None else doc[:, :PROBE]
        return adaptation.measure(self.model, tokens[:, :PROBE], doc, causal=self.task.causal)

    def fail(self, loss: float) -> None:
        self.save()
        reason = f"the loss is {loss} at step {self.step + 1}"
        if self.processes.main:
            files.write(self.folder / "failed.json", json.dumps({"step": self.step, "reason": reason}) + "\n")
        if self.signalled:
            raise Stopped(self.signalled)
        raise Failed(reason)

    def finish(self) -> None:
        held, layers = weights(self.parameters), self.adaptation()
        if not self.processes.main:
            return
        log = lines(self.folder / "log.jsonl")
        sizes = {name: x.numel() for name, x in self.model.named_parameters()}
        data = save(held)
        facts = {
            "sha256": hashlib.sha256(data).hexdigest(),
            "loss": log[-1]["loss"] if log else math.nan,
            "seconds": self.seconds,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens / self.seconds if self.seconds else 0.0,
            "peak_bytes": peak(self.setup.device),
            "parameters": sum(sizes.values()),
            "positional": sum(size for name, size in sizes.items() if "encoding" in name),
            "jumps": jumps(log),
            "adaptation": [asdict(layer) for layer in layers],
        }
        files.write(self.folder / "weights.safetensors", data)
        (self.folder / "failed.json").unlink(missing_ok=True)
        files.write(self.folder / "done.json", json.dumps(facts, indent=1) + "\n")

    def asked(self, number: int, frame: Any) -> None:
        """A signal asks for an end after the next step; a second one of the keyboard ends at once."""
        if self.signalled == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signalled = self.signalled or number


def decoder(trial: Trial, task: Task, backend: str = "auto") -> Decoder:
    """The model before its first step. Weights that are not the encoding's are the same for every encoding."""
    torch.manual_seed(trial.seed)
    if trial.model:
        done = pretrained.method(trial.encoding, pretrained.configuration(trial.model))
        model: Any = pretrained.Pretrained(trial.model, done, task.vocabulary)
        return model
    return Decoder(task.vocabulary, trial.shape, trial.encoding, dropout=trial.dropout, backend=backend)


def load(folder: Path, backend: str = "auto", task: Task | None = None) -> tuple[Trial, Task, Decoder]:
    """A trial that is done; `task` is its own, where it is there already."""
    path = folder / "config.json"
    if not path.exists():
        raise ValueError(f"{folder} holds no trial: it has no config.json")
    if '"model_type"' in path.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"{folder} holds no trial, but a model of transformers")
    held = files.read(path, "trial")
    try:
        trial = Trial(**held["trial"])
    except TypeError as problem:
        raise ValueError(f"{path} is damaged, its settings are not those of a trial: {problem}") from None
    if trial.model and held.get("model") != pretrained.checksum(trial.model):
        raise ValueError(f"{trial.model} is not the model that {folder} was trained in; put that one back")
    task = task or tasks.build(trial.task)
    model = decoder(trial, task, backend)
    if not (folder / "done.json").exists():
        raise ValueError(f"{folder} is not trained to its end; run its command again")
    if not (folder / "weights.safetensors").exists():
        raise ValueError(f"{folder} has lost its weights.safetensors; put it back, or remove its done.json to train on")
    data = (folder / "weights.safetensors").read_bytes()
    if hashlib.sha256(data).hexdigest() != facts(folder)["sha256"]:
        raise ValueError(f"the weights in {folder} are not those that were trained; remove its done.json to train on")
    try:
        load_weights(trained(model), from_bytes(data))
    except ValueError as problem:
        raise ValueError(f"{path} is not what {folder} was trained by: {problem}; put that one back") from None
    return trial, task, model.eval()


def facts(folder: Path) -> dict[str, Any]:
    """What is known of a trial that is done."""
    known = (*COSTS, "sha256", "tokens", "parameters", "positional", "jumps", "adaptation")
    return files.read(folder / "done.json", *known)


def losses(model: nn.Module, batch: Batch, task: Task, device: str, dtype: str) -> Tensor:
    """(B, T), zero where nothing is asked."""
    tokens, targets, doc = tensors(batch, device)
    with torch.autocast(device, dtype=getattr(torch, dtype)) if dtype != "float32" else nullcontext():
        logits = model(tokens, doc=doc, causal=task.causal)
    found = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
    return found.view_as(targets)


def tensors(batch: Batch, device: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tokens, targets and documents where the model is."""
    doc = None if batch.doc is None else torch.from_numpy(batch.doc).to(device)
    return torch.from_numpy(batch.tokens).to(device), torch.from_numpy(batch.targets).to(device), doc


def generator(*numbers: int) -> np.random.Generator:
    return np.random.default_rng(numbers)


def split(batch: Batch, parts: int) -> Iterator[Batch]:
    size = math.ceil(len(batch.tokens) / parts)
    for begin in range(0, len(batch.tokens), size):
        yield batch.rows(slice(begin, begin + size))


def exchanging(model: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Gradients are exchanged between processes with the last part of a batch."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
    return model.no_sync() if isinstance(model, DistributedDataParallel) and not last else nullcontext()


def rate(trial: Trial, step: int) -> float:
    """Up in a line, down in a cosine to the floor."""
    rising = max(1, round(trial.warm_up * trial.steps))
    if step < rising:
        return trial.rate * (step + 1) / rising
    done = (step - rising) / max(1, trial.steps - rising)
    return trial.rate * (trial.floor + (1 - trial.floor) * (1 + math.cos(math.pi * done)) / 2)


def optimizer(model: nn.Module, trial: Trial) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameter_groups(model, trial.decay), lr=trial.rate, betas=(0.9, 0.95))


def trained(model: nn.Module) -> Parameters:
    """Those that are; of a pretrained model a few."""
    return {name: x for name, x in model.named_parameters() if x.requires_grad}


def weights(parameters: Parameters) -> dict[str, Tensor]:
    """Each tensor once: a head that shares its weights with the embedding is left out."""
    return {name: whole(x.detach()) for name, x in parameters.items()}


def load_weights(parameters: Parameters, held: dict[str, Tensor]) -> None:
    if parameters.keys() != held.keys():
        odd = ", ".join(sorted(parameters.keys() ^ held.keys()))
        raise ValueError(f"the weights do not fit the model: {odd} are missing or unknown")
    for name, x in parameters.items():
        if held[name].shape != x.shape:
            sizes = f"{tuple(held[name].shape)}, not {tuple(x.shape)}"
            raise ValueError(f"the weights do not fit the model: {name} is of {sizes}")
    with torch.no_grad():
        for name, x in parameters.items():
            x.copy_(alike(held[name], x))


def moments(parameters: Parameters, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What AdamW remembers of each parameter."""
    return {
        f"{name}/{key}": whole(value)
        for name, x in parameters.items()
        for key, value in optimizer.state.get(x, {}).items()
    }


def load_moments(parameters: Parameters, optimizer: torch.optim.Optimizer, held: dict[str, Tensor]) -> None:
    for label, value in sorted(held.items(), key=lambda item: item[0]):  # in one order in every process
        name, _, key = label.rpartition("/")
        x = parameters[name]
        # the count of steps stays where AdamW keeps it
        optimizer.state[x][key] = value if key == "step" else alike(value, x)


def lines(log: Path) -> list[dict[str, Any]]:
    """Those that are whole."""
    found = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else ():
        try:
            held = json.loads(line)
        except ValueError:
            continue
        if isinstance(held, dict) and all(isinstance(held.get(name), int | float) for name in ("step", "loss")):
            found.append(held)
    return found


def jumps(log: list[dict[str, Any]]) -> list[int]:
    """The steps at which the loss stood far above what it had been."""
    found = []
    for index in range(BEFORE, len(log)):
        before = statistics.fmean(line["loss"] for line in log[index - BEFORE : index])
        if log[index]["loss"] > before + JUMP:
            found.append(log[index]["step"])
    return found
