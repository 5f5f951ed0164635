"""A comparison from the command line to its rows: resumed, added to, in workers that die, and refused in a sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from adapos.bench import evaluate, rows, speed, train
from adapos.bench.report.results import load
from commands import run

ADAPOS = Path(sys.executable).with_name("adapos")
TINY = ["--task", "copy", "--train-length", "4", "--steps", "6", "--batch", "4", "--examples", "4"]
SHAPE = ["--layers", "2", "--width", "16", "--heads", "2"]


def compare(
    out: Path, *words: str, encodings: str = "rope, kerple + dape", lengths: str = "4,8"
) -> tuple[int, str, str]:
    return run("compare", "--encodings", encodings, "--lengths", lengths, "--out", str(out), *TINY, *SHAPE, *words)


def values(folder: Path) -> dict[object, float]:
    costs = ("tokens_per_second", "seconds", "peak_bytes")
    return {row.key: row.value for row in rows.read(folder / "rows.jsonl") if row.metric not in costs}


def test_a_comparison_trains_examines_and_reports(tmp_path: Path) -> None:
    code, out, _ = compare(tmp_path, "--seeds", "2")
    assert code == 0
    found = rows.read(tmp_path / "rows.jsonl")
    exams = {(row.encoding, row.seed, row.length, row.metric) for row in found if row.protocol == "exam"}
    assert exams == {
        (encoding, seed, length, metric)
        for encoding in ("rope", "kerple + dape")
        for seed in (0, 1)
        for length in (4, 8)
        for metric in ("accuracy", "exact")
    }
    assert out.rstrip().endswith(f"report: {tmp_path / 'report.html'}")
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert json.loads((tmp_path / "plan.json").read_text())["seeds"] == [0, 1]


def test_a_comparison_that_is_done_is_not_done_again_and_can_be_added_to(tmp_path: Path) -> None:
    compare(tmp_path)
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.glob("trials/*/weights.safetensors")}
    size = (tmp_path / "rows.jsonl").stat().st_size
    assert compare(tmp_path)[0] == 0
    assert (tmp_path / "rows.jsonl").stat().st_size == size
    assert compare(tmp_path, encodings="rope, alibi", lengths="4,8,16")[0] == 0
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    found = rows.read(tmp_path / "rows.jsonl")
    timed = [row.encoding for row in found if row.protocol == "side by side"]
    assert sorted(timed) == sorted(["rope", "kerple + dape", "alibi"] * speed.ROUNDS)
    whole = (tmp_path / "rows.jsonl").read_text()
    assert whole.count('"side by side"') == (2 + 3) * speed.ROUNDS  # all again, side by side with the new one
    assert {(row.encoding, row.length) for row in found if row.protocol == "exam"} == {
        (encoding, length) for encoding in ("rope", "kerple + dape", "alibi") for length in (4, 8, 16)
    }


def test_a_trial_that_fails_lets_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advance = train.Trainer.advance

    def poisoned(self: train.Trainer, model: object) -> tuple[float, float]:
        return (float("nan"), 1.0) if self.trial.encoding == "rope" and self.step == 2 else advance(self, model)  # type: ignore[arg-type]

    monkeypatch.setattr(train.Trainer, "advance", poisoned)
    code, out, _ = compare(tmp_path)
    assert code == 0
    (failed,) = [row for row in rows.read(tmp_path / "rows.jsonl") if row.metric == "failed"]
    assert (failed.encoding, failed.note) == ("rope", "the loss is nan at step 3")
    assert {row.encoding for row in rows.read(tmp_path / "rows.jsonl") if row.protocol == "exam"} == {"kerple + dape"}
    assert "rope" in out


def test_training_examining_and_reporting_are_commands_by_themselves(tmp_path: Path) -> None:
    for encoding in ("rope", "kerple + dape"):
        code, out, _ = run(
            "train", "--encoding", encoding, "--lengths", "4,8", "--out", str(tmp_path), *TINY[:-2], *SHAPE
        )
        assert code == 0
        assert out.startswith("trained: ")
    assert not (tmp_path / "rows.jsonl").exists()
    assert run("evaluate", str(tmp_path), "--examples", "4")[0] == 0
    assert run("report", str(tmp_path))[0] == 0
    compare(tmp_path / "whole")
    assert values(tmp_path) == values(tmp_path / "whole")


def test_a_dry_run_says_what_it_will_take_and_writes_nothing(tmp_path: Path) -> None:
    code, out, _ = compare(tmp_path / "run", "--dry-run", "--seeds", "3")
    assert code == 0
    assert "2 encodings x 3 seeds" in out
    assert "in all, from a few steps run here; nothing was written" in out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_in_a_folder_says_what_is_there(tmp_path: Path) -> None:
    compare(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    _, out, _ = compare(tmp_path, "--dry-run", encodings="rope, alibi")
    assert f"2 of 3 trials in {tmp_path} are trained already" in " ".join(out.split())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_another_protocol_is_shown_when_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some words, and more of them. " * 400)
    words = ["--task", "text", "--data", str(tmp_path / "text.txt"), "--scored", "4"]
    _, first, _ = compare(tmp_path / "run", *words, encodings="rope")
    assert "protocol 'last 4 of" in first
    _, second, _ = run("evaluate", str(tmp_path / "run"), "--protocol", "blocks")
    assert "protocol 'blocks of" in second
    assert "protocol 'last" not in second


def test_an_evaluation_that_is_stopped_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("train", "--encoding", "rope", "--lengths", "4,8", "--out", str(tmp_path), *TINY[:-2], *SHAPE)
    read = evaluate.examined

    def stopped(*given: object) -> object:
        if given[3].length == 8:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGINT)
        return read(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(evaluate, "examined", stopped)
        code, _, err = run("evaluate", str(tmp_path))
    assert (code, err.splitlines()[-1]) == (130, "stopped by SIGINT: run the same command again to go on")
    assert {row.length for row in rows.read(tmp_path / "rows.jsonl") if row.protocol == "exam"} == {4}
    assert run("evaluate", str(tmp_path))[0] == 0
    assert {row.length for row in rows.read(tmp_path / "rows.jsonl") if row.protocol == "exam"} == {4, 8}


def test_a_way_of_reading_that_was_there_before_is_shown_again_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some words, and more of them. " * 400)
    words = ["--task", "text", "--data", str(tmp_path / "text.txt"), "--scored", "4"]
    folder = tmp_path / "run"
    _, first, _ = compare(folder, *words, encodings="rope")
    _, second, _ = run("evaluate", str(folder), "--examples", "2")
    assert "protocol 'last 4 of 2 x 8'" in second
    assert not list((folder / "tables").glob("*4-of-4-x-8*"))
    assert "protocol 'last 4 of 4 x 8'" in first
    for again in (compare(folder, *words, encodings="rope"), run("evaluate", str(folder))):
        assert "protocol 'last 4 of 4 x 8'" in again[1]
    assert run("report", str(folder))[1].startswith("text")


def test_training_alone_adds_to_a_folder_however_it_is_read(tmp_path: Path) -> None:
    compare(tmp_path, encodings="rope")
    code, _, err = run("train", "--encoding", "alibi", "--lengths", "4,8", "--out", str(tmp_path), *TINY[:-2], *SHAPE)
    assert code == 0, err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--dtype", "float16"], "float16 needs the scaled gradients of cuda"),
        (["--protocol", "sliding"], "protocol says how text is read, and copy is scored by exams; leave it out"),
        (["--stride", "2"], "stride says how text is read, and copy is scored by exams"),
        (["--task", "text", "--stride", "2"], "stride is of the protocol 'sliding', and it is 'last'"),
        (["--task", "text", "--protocol", "blocks", "--scored", "2"], "scored is of the protocol 'last', and it is"),
        (["--dropout", "1"], "plan: dropout must be below 1"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(tmp_path: Path, words: list[str], sentence: str) -> None:
    code, _, err = compare(tmp_path / "run", *words, encodings="rope")
    assert code == 2
    assert sentence in err
    assert not (tmp_path / "run").exists()


def test_an_evaluation_that_is_refused_leaves_the_plan_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some words, and more of them. " * 400)
    words = ["--task", "text", "--data", str(tmp_path / "text.txt")]
    compare(tmp_path / "run", *words, encodings="rope")
    before = (tmp_path / "run" / "plan.json").read_bytes()
    code, _, err = run("evaluate", str(tmp_path / "run"), "--protocol", "blocks", "--lengths", "6")
    assert code == 2
    assert "only where each divides the longest" in err
    assert (tmp_path / "run" / "plan.json").read_bytes() == before


def test_a_plan_may_name_the_data_and_no_plan_is_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some words, and more of them. " * 400)
    plan = tmp_path / "plan.toml"
    plan.write_text(f'data = "{tmp_path / "text.txt"}"\nencodings = "rope"\nlengths = "4,8"\nsteps = 2\nbatch = 2\n')
    words = ["--train-length", "4", "--examples", "2", *SHAPE]
    code, _, err = run("compare", "--plan", str(plan), "--out", str(tmp_path / "run"), *words)
    assert code == 0, err
    assert "text.txt" in json.loads((tmp_path / "run" / "plan.json").read_text())["task"]
    for content in ("{}", "[]", "null", "5"):
        (tmp_path / "run" / "plan.json").write_text(content)
        for command in ("report", "evaluate"):
            code, _, err = run(command, str(tmp_path / "run"))
            assert (code, len(err.strip().splitlines())) == (2, 1)


def test_a_long_path_of_data_has_a_report(tmp_path: Path) -> None:
    folder = tmp_path / ("a" * 120) / ("b" * 120)
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text("some words, and more of them. " * 400)
    code, _, err = compare(tmp_path / "run", "--task", "text", "--data", str(folder / "text.txt"), encodings="rope")
    assert code == 0, err
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.slow
def test_workers_whose_parent_is_killed_save_and_end(tmp_path: Path) -> None:
    words = ["--encodings", "rope, alibi", "--lengths", "4,8", *TINY, *SHAPE, "--steps", "100000"]
    command = [ADAPOS, "compare", *words, "--workers", "2", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while len(list(tmp_path.glob("trials/*/log.jsonl"))) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    # while they run, another command waits for nothing and fails no trial
    busy = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert busy.returncode == 2, busy.stderr
    assert "is being trained by another process" in busy.stderr
    assert not (tmp_path / "rows.jsonl").exists()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("trials/*/checkpoints/0*"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_workers_side_by_side_give_the_same_rows(tmp_path: Path) -> None:
    compare(tmp_path / "one")
    code, _, err = compare(tmp_path / "two", "--workers", "2")
    assert code == 0, err
    assert values(tmp_path / "one") == values(tmp_path / "two")


def test_a_failure_that_was_mended_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(train.Trainer, "advance", lambda self, model: (float("nan"), 1.0))
        code, _, err = compare(tmp_path, encodings="rope")
    assert (code, err.splitlines()[-1]) == (1, "every trial failed; the report says why")
    assert [row.value for row in rows.read(tmp_path / "rows.jsonl") if row.metric == "failed"] == [1.0]
    assert compare(tmp_path, encodings="rope")[0] == 0
    assert [row.value for row in rows.read(tmp_path / "rows.jsonl") if row.metric == "failed"] == [0.0]


def test_lengths_added_later_score_the_same_tokens_as_all_at_once(tmp_path: Path) -> None:
    words = ["--task", "text", "--data", str(tmp_path / "text.txt"), "--scored", "4"]
    (tmp_path / "text.txt").write_text("".join(f"line {n} of {n * n}. " for n in range(3000)))
    for lengths in ("8,16", "8,16,64"):
        assert compare(tmp_path / "added", *words, encodings="rope", lengths=lengths)[0] == 0
    assert compare(tmp_path / "whole", *words, encodings="rope", lengths="8,16,64")[0] == 0
    added, whole = (
        {
            (c.measure.metric, place): score.mean
            for c in load(tmp_path / name).comparisons
            for place, score in c.scores.items()
        }
        for name in ("added", "whole")
    )
    assert added == whole
    assert len(whole) == 6


def killed_once(process: subprocess.Popen[str], folder: Path, pattern: str) -> str:
    """Wait for a checkpoint, kill a process that goes by the pattern, and return what the command said to the end."""
    killed = False
    while not killed and process.poll() is None:
        time.sleep(0.01)
        if not list(folder.glob("trials/*/checkpoints/0*")):
            continue
        found = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True)
        for pid in found.stdout.split()[:1]:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
                killed = True
    _, err = process.communicate(timeout=300)
    assert killed, err
    assert process.returncode == 0, err
    return err


LONGER = ["--encodings", "rope, kerple + dape", "--lengths", "4,8", *TINY, *SHAPE, "--steps", "400", "--every", "0.05"]


@pytest.mark.slow
def test_a_worker_that_is_killed_is_begun_again_and_nothing_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    words = [ADAPOS, "compare", *LONGER, "--workers", "2", "--out", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        err = killed_once(process, folder, f"adapos.bench.worker {folder} ")
    assert "was ended by signal 9, and is begun again" in err
    assert run("compare", *LONGER, "--out", str(tmp_path / "whole"))[0] == 0
    assert values(folder) == values(tmp_path / "whole")


@pytest.mark.slow
def test_a_worker_of_a_ray_cluster_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    folder = tmp_path / "killed"
    words = [ADAPOS, "compare", *LONGER, "--cluster", "ray", "--out", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        killed_once(process, folder, "ray::by_name")
    assert run("compare", *LONGER, "--out", str(tmp_path / "whole"))[0] == 0
    assert values(folder) == values(tmp_path / "whole")


@pytest.mark.slow
def test_a_comparison_stopped_by_sigterm_saves_and_goes_on(tmp_path: Path) -> None:
    words = ["--encodings", "rope", "--lengths", "4,8", *TINY, *SHAPE, "--steps", "300"]
    with subprocess.Popen(
        [ADAPOS, "compare", *words, "--every", "0.01", "--out", str(tmp_path / "parts")],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not list(tmp_path.glob("parts/trials/*/checkpoints/0*")):
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert err.splitlines()[-1] == "stopped by SIGTERM: run the same command again to go on"
    assert run("compare", *words, "--out", str(tmp_path / "parts"))[0] == 0
    assert run("compare", *words, "--out", str(tmp_path / "whole"))[0] == 0
    assert values(tmp_path / "parts") == values(tmp_path / "whole")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--encodings", "roep"], "no encoding is called 'roep'; did you mean 'rope'? `adapos encodings` lists all"),
        (["--task", "txt"], "no task is called 'txt'; did you mean 'text'? `adapos tasks` lists all"),
        (["--lengths", "8..4"], "lengths: '8..4' must rise; write 4..8"),
        (["--size", "2m"], "plan: size must be one of '300k', '1m', '3m', '10m', '125m', '350m', not '2m'"),
        (["--task", "text", "--data", "/no/where"], "/no/where"),
        (["--task", "copy", "--data", "x"], "copy has no parameter 'data'; leave it out"),
        (["--seeds", "0"], "plan: seeds must name at least one"),
        (["--layers", "0"], "'--layers': it should be greater than or equal to 1, and '0' was given"),
        (["--significance", "0.01"], "significance is tested over seeds, and there is one; give --seeds 3"),
        (["--plan", "no.toml"], "the plan no.toml cannot be read"),
        (["--device", "tpu"], "device 'tpu' is not available on this machine; try 'cpu'"),
        (["--backend", "nativ"], "no backend is called 'nativ'"),
        (["--cluster", "slurm"], "compare: cluster must be one of 'ray', not 'slurm'"),
        (["--baseline", "alibi"], "plan: baseline ('alibi') must be one of the encodings, 'rope'"),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(tmp_path: Path, words: list[str], sentence: str) -> None:
    out = tmp_path / "run"
    defaults = ["--encodings", "rope", "--lengths", "4", "--out", str(out), *TINY, *SHAPE]
    code, _, err = run("compare", *defaults, *words)
    assert code == 2
    assert sentence in err
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1
    assert not out.exists()


def test_data_that_is_too_short_says_how_much_there_is(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short " * 20)
    code, _, err = run(
        "compare",
        "--encodings",
        "rope",
        "--data",
        str(tmp_path / "short.txt"),
        "--lengths",
        "64",
        "--out",
        str(tmp_path / "run"),
    )
    assert code == 2
    assert "holds 10 tokens and length 64 needs 65; give more data or shorter lengths" in err
    assert not (tmp_path / "run").exists()


def test_an_empty_folder_says_what_is_missing(tmp_path: Path) -> None:
    for command in ("evaluate", "report"):
        code, _, err = run(command, str(tmp_path))
        assert code == 2
        assert "holds no plan.json" in err


def test_tasks_are_listed() -> None:
    code, out, _ = run("tasks")
    assert code == 0
    for name in ("text", "copy", "addition", "passkey", "chomsky/parity_check", "s5"):
        assert name in out
