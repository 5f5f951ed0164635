"""Training: the same start and data for every encoding, and the same bits however often it was stopped."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from adapos import files
from adapos.bench import checkpoint, tasks, train
from adapos.bench.plan import Plan, Trial
from adapos.bench.signals import Stopped
from adapos.bench.train import Failed, Quiet, Setup

TINY = {"task": "copy", "train_length": 6, "batch": 8, "layers": 2, "width": 16, "heads": 2}


def trial(encoding: str = "kerple + dape", **settings: object) -> Trial:
    (made,) = Plan(encodings=(encoding,), **TINY | {"steps": 12} | settings).trials  # type: ignore[arg-type]
    return made


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "weights.safetensors")


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("encoding", ["kerple + dape", "tape", "learned", "randomized + rope"])
def test_every_encoding_starts_from_the_same_other_weights(encoding: str) -> None:
    task = tasks.build("copy")
    ours, plain = (train.decoder(trial(spec), task).state_dict() for spec in (encoding, "nope"))
    assert {name for name in ours if not name.startswith("encoding.")} == set(plain)
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


def test_every_encoding_reads_the_same_batches_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: dict[str, list[np.ndarray]] = {}

    def spy(model: torch.nn.Module, batch: train.Batch, *rest: object) -> torch.Tensor:
        read[str(model.encoding.name)].append(batch.tokens)  # type: ignore[union-attr]
        return losses(model, batch, *rest)  # type: ignore[arg-type]

    losses = train.losses
    monkeypatch.setattr(train, "losses", spy)
    for encoding in ("rope", "kerple"):
        read[encoding] = []
        train.train(trial(encoding), tmp_path / encoding)
    assert len(read["rope"]) == 12
    assert all(np.array_equal(a, b) for a, b in zip(read["rope"], read["kerple"], strict=True))
    assert len({tokens.tobytes() for tokens in read["rope"]}) == 12


def test_another_seed_has_other_weights_and_other_batches() -> None:
    task = tasks.build("copy")
    first, second = (train.decoder(trial(seeds=(seed,)), task).embedding.weight for seed in (0, 1))
    assert not torch.equal(first, second)
    batches = [task.batch(train.generator(seed, 3), 4, 6).tokens for seed in (0, 1)]
    assert batches[0].shape != batches[1].shape or not np.array_equal(*batches)


def test_a_model_learns_and_the_log_tells_how(tmp_path: Path) -> None:
    train.train(trial(steps=150, rate=1e-2), tmp_path)
    log = train.lines(tmp_path / "log.jsonl")
    assert [line["step"] for line in log] == list(range(1, 151))
    assert log[-1]["loss"] < 0.8 * log[0]["loss"]
    done = train.facts(tmp_path)
    read = (tasks.build("copy").batch(train.generator(0, step), 8, 6).tokens.size for step in range(150))
    assert done["tokens"] == sum(read)
    assert done["parameters"] > done["positional"] > 0
    assert [layer["layer"] for layer in done["adaptation"]] == [0, 1]
    assert [line["step"] for line in log if "adaptation" in line] == list(range(15, 151, 15))


class Interrupting(Quiet):
    """Sends a signal after a step."""

    def __init__(self, at: int, number: int = signal.SIGTERM) -> None:
        self.at, self.number, self.warnings = at, number, list[str]()

    def stepped(self, step: int, loss: float, tokens_per_second: float) -> None:
        if step == self.at:
            os.kill(os.getpid(), self.number)

    def warned(self, sentence: str) -> None:
        self.warnings.append(sentence)


@pytest.mark.parametrize("encoding", ["kerple + dape", "tape", "randomized + rope"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_stopped_by_a_signal_ends_with_the_same_bits(tmp_path: Path, encoding: str, number: int) -> None:
    asked = trial(encoding, dropout=0.1)
    train.train(asked, tmp_path / "whole")
    for at in (5, 9):
        with pytest.raises(Stopped, match=r"stopped by SIG(TERM|INT): run the same command again to go on"):
            train.train(asked, tmp_path / "parts", watch=Interrupting(at, number))
        assert not (tmp_path / "parts" / "done.json").exists()
    train.train(asked, tmp_path / "parts")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    logs = [train.lines(tmp_path / name / "log.jsonl") for name in ("whole", "parts")]
    assert [line["loss"] for line in logs[0]] == [line["loss"] for line in logs[1]]


KILLED = """
import sys
from dataclasses import replace
from pathlib import Path
import json, torch
from adapos.bench.plan import Trial
from adapos.bench.train import Setup, train
torch.set_num_threads(1)
print("ready", flush=True)
train(Trial(**json.loads(sys.argv[1])), Path(sys.argv[2]), Setup(every=1e-9))
"""


@pytest.mark.slow
def test_a_run_killed_at_any_moment_ends_with_the_same_bits(tmp_path: Path, one_thread: None) -> None:
    asked = trial(steps=150)
    train.train(asked, tmp_path / "whole")
    folder, rng, kills = tmp_path / "killed", np.random.default_rng(0), 0
    for _ in range(40):
        words = [sys.executable, "-c", KILLED, json.dumps(asdict(asked)), str(folder)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            process.stdout.readline()
            if kills < 4:
                # somewhere among the first checkpoints after those that are there
                while not checkpoint.places(folder / "checkpoints") and process.poll() is None:
                    time.sleep(0.002)
                time.sleep(rng.uniform(0.0, 0.5))
                process.kill()
            process.wait()
        kills += process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
    assert kills >= 2, "the run was over before it could be killed"
    assert same(weights(tmp_path / "whole"), weights(folder))
    assert [line["step"] for line in train.lines(folder / "log.jsonl")] == list(range(1, 151))


def test_a_signal_in_the_last_step_is_not_lost(tmp_path: Path) -> None:
    asked = trial()
    with pytest.raises(Stopped):
        train.train(asked, tmp_path, watch=Interrupting(asked.steps))
    assert (tmp_path / "done.json").exists()


@pytest.mark.parametrize("content", ["[]", "null", "{}", '{"step": 3, "sha256": {}}'])
def test_a_state_that_is_not_what_was_written_is_found(tmp_path: Path, content: str) -> None:
    asked = trial()
    stopped_at(tmp_path, asked, 4, 8)
    _, last = checkpoint.places(tmp_path / "checkpoints")
    (last / "state.json").write_text(content)
    watch = Interrupting(99)
    train.train(asked, tmp_path, watch=watch)
    assert "is damaged" in watch.warnings[0]


def test_a_step_that_was_changed_is_found(tmp_path: Path) -> None:
    stopped_at(tmp_path, trial(), 4)
    (place,) = checkpoint.places(tmp_path / "checkpoints")
    state = json.loads((place / "state.json").read_text())
    (place / "state.json").write_text(json.dumps(state | {"step": 3}))
    warned: list[str] = []
    assert checkpoint.latest(tmp_path / "checkpoints", warned.append) is None
    assert "the checksum of state.json is not what was written" in warned[0]


@pytest.mark.parametrize("content", ["", "{}", "[]", "null"])
@pytest.mark.parametrize("name", ["config.json", "done.json"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    train.train(trial(), tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{name} is damaged: "):
        train.load(tmp_path)


def test_lines_of_a_log_that_are_damaged_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('5\n{}\nnull\n{"step": 1}\n{"step": 2, "loss": 3.0}\n{"st')
    assert train.lines(tmp_path / "log.jsonl") == [{"step": 2, "loss": 3.0}]


def stopped_at(folder: Path, asked: Trial, *steps: int) -> None:
    for step in steps:
        with pytest.raises(Stopped):
            train.train(asked, folder, watch=Interrupting(step))


@pytest.mark.parametrize("damage", ["truncated", "changed", "without its state", "with half a state"])
def test_a_damaged_checkpoint_is_found_and_the_one_before_it_used(tmp_path: Path, damage: str) -> None:
    asked = trial()
    train.train(asked, tmp_path / "whole")
    folder = tmp_path / "damaged"
    stopped_at(folder, asked, 4, 8)
    last = checkpoint.places(folder / "checkpoints")[-1]
    data = (last / "model.safetensors").read_bytes()
    if damage == "truncated":
        (last / "model.safetensors").write_bytes(data[:-7])
    elif damage == "changed":
        (last / "model.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "without its state":
        (last / "state.json").unlink()
    else:
        (last / "state.json").write_text('{"step": 8, "sha2')
    watch = Interrupting(99)
    train.train(asked, folder, watch=watch)
    (warning,) = watch.warnings
    assert warning.startswith(f"the checkpoint {last} is damaged (")
    assert warning.endswith("the one before it is used")
    assert same(weights(tmp_path / "whole"), weights(folder))


def test_a_full_disk_is_one_sentence_and_leaves_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = trial()
    train.train(asked, tmp_path / "whole")
    folder = tmp_path / "full"
    stopped_at(folder, asked, 4)
    before = checkpoint.places(folder / "checkpoints")

    def full(path: Path, data: bytes) -> None:
        path.write_bytes(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write", full)
        with pytest.raises(
            ValueError, match=r"a checkpoint cannot be written to .*: No space left on device; .* make room"
        ):
            train.train(asked, folder, Setup(every=1e-9))
    assert list((folder / "checkpoints").iterdir()) == before
    train.train(asked, folder)
    assert same(weights(tmp_path / "whole"), weights(folder))


def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    train.train(trial(), tmp_path, Setup(every=1e-9, keep=3))
    assert [path.name for path in checkpoint.places(tmp_path / "checkpoints")] == ["00000010", "00000011", "00000012"]


def test_a_loss_that_is_no_number_fails_the_trial_and_keeps_its_state(tmp_path: Path) -> None:
    asked = trial("rope", rate=1e30, clip=1e30, steps=40)
    with pytest.raises(Failed, match=r"the loss is (nan|inf) at step \d+"):
        train.train(asked, tmp_path)
    failed = json.loads((tmp_path / "failed.json").read_text())
    assert failed["reason"].startswith("the loss is ")
    assert checkpoint.places(tmp_path / "checkpoints")[-1].name == f"{failed['step']:08d}"
    assert not (tmp_path / "done.json").exists()


def test_a_trial_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    train.train(trial(), tmp_path)
    before = (tmp_path / "weights.safetensors").stat().st_mtime_ns
    train.train(trial(), tmp_path)
    assert (tmp_path / "weights.safetensors").stat().st_mtime_ns == before


def test_a_folder_of_another_trial_is_refused(tmp_path: Path) -> None:
    train.train(trial(), tmp_path)
    (tmp_path / "done.json").unlink()
    with pytest.raises(ValueError, match=r"was begun with another trial; choose another folder"):
        train.train(trial("rope"), tmp_path)


def test_a_batch_in_parts_gives_the_same_losses(tmp_path: Path) -> None:
    for parts in (1, 3):
        train.train(trial(), tmp_path / str(parts), Setup(accumulate=parts))
    whole, cut = ([line["loss"] for line in train.lines(tmp_path / name / "log.jsonl")] for name in ("1", "3"))
    assert cut == pytest.approx(whole, rel=1e-5)


def test_recomputing_activations_changes_nothing(tmp_path: Path) -> None:
    for name, recomputed in (("kept", False), ("again", True)):
        train.train(trial("tape"), tmp_path / name, Setup(recomputed=recomputed))
    assert same(weights(tmp_path / "kept"), weights(tmp_path / "again"))


def test_half_precision_trains(tmp_path: Path) -> None:
    train.train(trial(dtype="bfloat16"), tmp_path)
    assert all(x.dtype == torch.float32 for x in weights(tmp_path).values())
    assert math.isfinite(train.facts(tmp_path)["loss"])


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
ACCELERATE = (*(sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "2", "--num_machines", "1"),)
ACCELERATE += ("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")
FSDP2 = ("--use_fsdp", "--fsdp_version", "2")


def in_two(launcher: tuple[str, ...], asked: Trial, folder: Path, setup: str) -> None:
    code = folder.with_suffix(".py")
    code.write_text(KILLED.replace("Setup(every=1e-9)", setup))
    done = subprocess.run(
        [*launcher, str(code), json.dumps(asdict(asked)), str(folder)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in train.lines(folder / "log.jsonl")]


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("encoding", ["kerple + dape", "tape"])
def test_two_processes_give_the_losses_of_one_and_go_on_where_they_were(
    tmp_path: Path, encoding: str, sharded: bool
) -> None:
    asked, two = trial(encoding), tmp_path / "two"
    train.train(asked, tmp_path / "one")
    setup = f"Setup(every=1e-9, keep=6, accumulate=2, sharded={sharded})"
    in_two(TORCHRUN, asked, two, setup)
    assert losses(two) == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
    for name, x in weights(tmp_path / "one").items():
        assert torch.allclose(x, weights(two)[name], atol=1e-4), name
    whole = weights(two)
    for last in checkpoint.places(two / "checkpoints")[-4:]:
        shutil.rmtree(last)
    (two / "done.json").unlink()
    in_two(TORCHRUN, asked, two, setup)
    assert same(weights(two), whole)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [("--multi_gpu",), FSDP2], ids=["ddp", "fsdp2"])
def test_accelerate_starts_processes_too(tmp_path: Path, kind: tuple[str, ...]) -> None:
    pytest.importorskip("accelerate")
    train.train(trial(), tmp_path / "one")
    in_two((*ACCELERATE, *kind), trial(), tmp_path / "two", "Setup()")
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


def test_precision_is_the_trials_whatever_accelerate_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(ValueError, match=r"accelerate was asked for bfloat16, and the trial is in float32"):
        train.train(trial(), tmp_path)
    train.train(trial(dtype="bfloat16"), tmp_path / "half")


def test_the_rate_rises_in_a_line_and_falls_in_a_cosine() -> None:
    asked = trial(steps=100, rate=1.0, warm_up=0.1, floor=0.2)
    rates = [train.rate(asked, step) for step in range(100)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert max(rates) == 1.0
    assert rates[55] == pytest.approx(0.6, abs=1e-9)
    assert rates[-1] == pytest.approx(0.2, abs=1e-3)
    assert all(a >= b for a, b in pairwise(rates[9:]))


def test_what_is_positional_or_no_matrix_does_not_decay() -> None:
    model = train.decoder(trial(), tasks.build("copy"))
    decayed, kept = train.optimizer(model, trial()).param_groups
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    names = {id(x): name for name, x in model.named_parameters()}
    free = {names[id(x)] for x in kept["params"]}
    assert {name for name in names.values() if "encoding." in name or "norm" in name} <= free
    assert all(x.ndim > 1 for x in decayed["params"])
    assert len(decayed["params"]) + len(kept["params"]) == len(names)


def test_a_jump_of_the_loss_is_named() -> None:
    log = [{"step": step, "loss": loss} for step, loss in enumerate([3, 2.5, 2, 1.8, 1.7, 1.6, 2.6, 1.5, 1.4], 1)]
    assert train.jumps(log) == [7]
    assert train.jumps(log[:6]) == []


def test_settings_of_a_run_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"accumulate \(0\), keep \(2\) and every \(60.0\) must be at least 1"):
        Setup(accumulate=0)


def test_trials_that_differ_have_other_names() -> None:
    made = trial()
    others = [replace(made, **{name: value}) for name, value in (("seed", 1), ("rate", 0.1), ("task", "reverse"))]
    assert len({each.name for each in (made, *others)}) == 4
    assert made.name.startswith("kerple-dape-0-")


def test_curves_are_written_for_tensorboard_and_go_on_after_a_stop(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    asked = trial()
    with pytest.raises(Stopped):
        train.train(asked, tmp_path, Setup(board="tensorboard"), Interrupting(5))
    train.train(asked, tmp_path, Setup(board="tensorboard"))
    shown = reading.EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()
    assert [event.step for event in shown.Scalars("loss")] == list(range(1, 13))


def test_a_board_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ValueError, match=r"the board needs trackio: pip install trackio; or leave --board out"):
        train.train(trial(), tmp_path, Setup(board="trackio"))
    with pytest.raises(ValueError, match=r"board must be one of 'none', 'tensorboard', 'trackio', not 'wandb'"):
        Setup(board="wandb")


def test_a_folder_that_another_process_trains_in_is_left_to_it(tmp_path: Path) -> None:
    with (
        files.locked(tmp_path / "lock", "taken"),
        pytest.raises(ValueError, match=r"is being trained by another process; wait until it is done"),
    ):
        train.train(trial(), tmp_path)
    train.train(trial(), tmp_path)


def test_a_trial_that_is_done_is_not_taken_for_one_of_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train.train(trial(), tmp_path)
    monkeypatch.setattr(tasks.find("copy"), "checksum", "another")
    with pytest.raises(ValueError, match=r"was begun with another data; choose another folder"):
        train.train(trial(), tmp_path)


def test_half_precision_that_needs_scaling_is_refused_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"float16 needs the scaled gradients of cuda; train in bfloat16 or float32"):
        train.train(trial(dtype="float16"), tmp_path)


def test_a_damaged_checkpoint_does_not_push_out_those_that_are_whole(tmp_path: Path) -> None:
    asked = trial(steps=30)
    stopped_at(tmp_path, asked, 10, 20)
    last = checkpoint.places(tmp_path / "checkpoints")[-1]
    (last / "state.json").unlink()
    with pytest.raises(Stopped):
        train.train(asked, tmp_path, Setup(keep=1), Interrupting(13))
    (left,) = checkpoint.places(tmp_path / "checkpoints")
    assert int(left.name) < int(last.name)
    assert checkpoint.latest(tmp_path / "checkpoints", print) is not None


def test_a_gradient_that_is_no_number_fails_the_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train.nn.utils, "clip_grad_norm_", lambda parameters, most: torch.tensor(math.inf))
    with pytest.raises(Failed, match="the loss is nan at step 1"):
        train.train(trial(), tmp_path)


def test_weights_that_were_changed_are_not_taken_for_the_trained_ones(tmp_path: Path) -> None:
    train.train(trial(), tmp_path)
    path = tmp_path / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"the weights in .* are not those that were trained"):
        train.load(tmp_path)


@pytest.mark.parametrize("steps", [12, 37, 450, 1999])
def test_adaptation_is_measured_about_ten_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    made = train.Trainer(trial(steps=steps), tasks.build("copy"), tmp_path, Setup(), Quiet(), train.Processes())
    monkeypatch.setattr(train.Trainer, "adaptation", lambda self: [])
    for step in range(1, steps + 1):
        made.step, made.seconds = step, 1.0
        made.note(1.0, 1.0)
    assert 10 <= len([line for line in train.lines(tmp_path / "log.jsonl") if "adaptation" in line]) <= 12
