"""A comparison run: every trial trained and examined, one after another, in processes side by side, or on a cluster.

Each trial is run by itself and leaves its rows in `rows.jsonl`, so that a comparison goes on where it was stopped, and
a worker that dies costs what came after its last checkpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from adapos.bench import evaluate, rows, speed, tasks
from adapos.bench import plan as plans
from adapos.bench.plan import Plan, Trial
from adapos.bench.provenance import commit
from adapos.bench.signals import heard, stop
from adapos.bench.terminal import Bars
from adapos.bench.train import Failed, Quiet, Setup, Watch, train

TRIES = 3  # of a trial whose worker dies
# codes of a worker
REFUSED = 2  # it was asked for what cannot be done, and would be again
BUSY = 3  # another process has the trial

Say = Callable[[str], object]


def run(folder: Path, setup: Setup, bars: Bars) -> None:
    """Every trial of a folder's plan, here."""
    plan = plans.load(folder / "plan.json")
    for trial in plan.trials:
        run_trial(folder, plan, trial, setup, bars, bars.examined)
        bars.done()
    compare_speed(folder, setup, bars.examined)


def run_trial(folder: Path, plan: Plan, trial: Trial, setup: Setup, watch: Watch, step: Say) -> None:
    """Train, examine, and keep the rows; what is there already is not done again."""
    place, store = folder / "trials" / trial.name, folder / "rows.jsonl"
    mark, task = commit(), tasks.build(trial.task)
    try:
        train(trial, place, setup, watch, task)
    except Failed as problem:
        rows.append(store, [evaluate.of_failure(trial, task, str(problem), mark)])
        return
    have = {row.key: row for row in rows.read(store) if row.trial == trial.name}
    of_training = evaluate.of_training(trial, task, place, mark)
    failed = evaluate.of_failure(trial, task, "", mark)
    if failed.key in have:  # not any more
        rows.append(store, [replace(failed, value=0.0)])
    if not all(row.key in have for row in of_training):
        rows.append(store, of_training)
    for found in evaluate.evaluate(
        place, plan, have, task, device=setup.device, backend=setup.backend, commit=mark, step=step
    ):
        rows.append(store, found)


def examine(folder: Path, plan: Plan, trial: Trial, task: str, setup: Setup, step: Say) -> None:
    """A trial that is trained, on another task than its own."""
    place, store = folder / "trials" / trial.name, folder / "rows.jsonl"
    have = {row.key: row for row in rows.read(store) if row.trial == trial.name}
    made = tasks.build(task)
    for found in evaluate.evaluate(
        place, plan, have, made, device=setup.device, backend=setup.backend, commit=commit(), step=step, also=task
    ):
        rows.append(store, found)


def compare_speed(folder: Path, setup: Setup, say: Say) -> None:
    """Time all encodings that could be trained; again where one has been added since."""
    plan, store = plans.load(folder / "plan.json"), folder / "rows.jsonl"
    trained = {trial.encoding for trial in plan.trials if (folder / "trials" / trial.name / "done.json").exists()}
    rounds = Counter(row.encoding for row in rows.read(store) if row.protocol == rows.SIDE_BY_SIDE)
    timed = {encoding for encoding, count in rounds.items() if count >= speed.ROUNDS}
    trials = [trial for trial in replace(plan, seeds=plan.seeds[:1]).trials if trial.encoding in trained]
    if len(trained) < 2 or trained <= timed or plan.model:
        return
    try:
        rows.append(store, speed.side_by_side(trials, tasks.build(plan.task), setup, commit(), say))
    except (MemoryError, RuntimeError) as problem:  # the report says the rest
        print(f"warning: speeds were not compared: {evaluate.unable(problem)}", file=sys.stderr)


def side_by_side(folder: Path, setup: Setup, workers: int, say: Say) -> None:
    """Every trial of a folder's plan, and then all timed."""
    in_processes(folder, plans.load(folder / "plan.json").trials, setup, workers, say)
    say("all are timed side by side")
    compare_speed(folder, setup, lambda text: None)


def in_processes(folder: Path, trials: Sequence[Trial], setup: Setup, workers: int, say: Say) -> None:
    """Trials in processes of their own, so many at a time, which share the cores."""
    with heard(stop):
        _in_processes(folder, trials, setup, workers, say)


def _in_processes(folder: Path, trials: Sequence[Trial], setup: Setup, workers: int, say: Say) -> None:
    waiting = [(trial, 1) for trial in trials]
    running: dict[subprocess.Popen[bytes], tuple[Trial, int]] = {}
    threads = max(1, (os.cpu_count() or 1) // workers)
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                trial, tried = waiting.pop(0)
                say(f"{trial.encoding}, seed {trial.seed}: begins")
                running[start(folder, trial, setup, threads)] = (trial, tried)
            time.sleep(0.1)
            for process in [each for each in running if each.poll() is not None]:
                trial, tried = running.pop(process)
                if process.returncode == 0:
                    say(f"{trial.encoding}, seed {trial.seed}: done")
                elif process.returncode == BUSY:
                    raise ValueError(last_words(folder, trial).removeprefix("error: "))
                elif tried < TRIES and process.returncode != REFUSED:
                    say(f"{trial.encoding}, seed {trial.seed}: {died(process.returncode)}, and is begun again")
                    waiting.insert(0, (trial, tried + 1))
                else:
                    why = f"its worker {died(process.returncode)}: {last_words(folder, trial)}"
                    give_up(folder, trial, why)
                    say(f"{trial.encoding}, seed {trial.seed}: given up")
    finally:
        for process in running:
            process.terminate()  # it saves what it has done
        for process in running:
            process.wait()


def start(folder: Path, trial: Trial, setup: Setup, threads: int) -> subprocess.Popen[bytes]:
    place = folder / "trials" / trial.name
    place.mkdir(parents=True, exist_ok=True)
    with open(place / "output.txt", "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "adapos.bench.worker", str(folder), trial.name, json.dumps(asdict(setup))],
            stdout=output,
            stderr=output,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            start_new_session=True,  # a signal of the terminal reaches it through its parent alone
        )


def died(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"


def last_words(folder: Path, trial: Trial) -> str:
    lines = (folder / "trials" / trial.name / "output.txt").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def give_up(folder: Path, trial: Trial, reason: str) -> None:
    failed = evaluate.of_failure(trial, tasks.build(trial.task), reason, commit())
    rows.append(folder / "rows.jsonl", [failed])


def on_cluster(folder: Path, setup: Setup, address: str | None, say: Say) -> None:
    """Trials on a Ray cluster, which must see the folder under the same name. A worker that dies is replaced."""
    try:
        import ray
    except ImportError:
        raise ValueError('a cluster needs ray: pip install "adapos[cluster]"') from None
    plan = plans.load(folder / "plan.json")
    ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
    task: Any = ray.remote(max_retries=TRIES, retry_exceptions=False)(by_name)
    pending = {task.remote(str(folder.resolve()), trial.name, asdict(setup)): trial for trial in plan.trials}
    try:
        while pending:
            (ready, *_), _ = ray.wait(list(pending))
            trial = pending.pop(ready)
            try:
                ray.get(ready)
                say(f"{trial.encoding}, seed {trial.seed}: done")
            except ray.exceptions.RayError as problem:
                give_up(folder, trial, str(problem).strip().splitlines()[-1])
                say(f"{trial.encoding}, seed {trial.seed}: given up")
        say("all are timed side by side")
        ray.get(ray.remote(max_retries=TRIES)(speed_by_name).remote(str(folder.resolve()), asdict(setup)))
    finally:
        for left in pending:
            ray.cancel(left)


def speed_by_name(folder: str, setup: dict[str, Any]) -> None:
    compare_speed(Path(folder), Setup(**setup), lambda text: None)


def by_name(folder: str, name: str, setup: dict[str, Any]) -> None:
    """One trial of a folder, for workers."""
    place = Path(folder)
    plan = plans.load(place / "plan.json")
    (trial,) = [each for each in plan.trials if each.name == name]
    run_trial(place, plan, trial, Setup(**setup), Quiet(), lambda text: None)
