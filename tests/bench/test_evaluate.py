"""Evaluation: every protocol against a plain loop, exams as they were asked, rows that say where they came from."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from adapos.bench import evaluate, tasks, train
from adapos.bench.plan import Plan
from adapos.bench.rows import Row
from adapos.bench.task import IGNORED, Batch
from adapos.encoding import Keys, Shape
from adapos.kernels import Call, choose
from adapos.layout import Layout
from adapos.model import Decoder
from adapos.pairs import DistanceTable
from adapos.sketch import Size

LENGTHS = (8, 16, 40)
TINY = {"train_length": 8, "batch": 4, "steps": 3, "layers": 2, "width": 16, "heads": 2, "examples": 5}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    for index in range(40):
        (folder / f"{index}.txt").write_text(f"the text of number {index} says that {index * index} is a square. " * 9)
    return str(folder)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPOS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def plan(data: str, **settings: object) -> Plan:
    task = f"text(data={data!r})"
    return Plan(**{"encodings": ("kerple + dape",), "task": task, "lengths": LENGTHS} | TINY | settings)  # type: ignore[arg-type]


def trained(asked: Plan, folder: Path) -> Path:
    (trial,) = asked.trials
    train.train(trial, folder)
    return folder


def rows_of(asked: Plan, folder: Path) -> list[Row]:
    return [row for found in evaluate.evaluate(trained(asked, folder), asked, {}) for row in found]


def losses(model: Decoder, tokens: np.ndarray) -> np.ndarray:
    """Of each token but the first of one row, in float64 of float32 logits, by a plain pass."""
    row = torch.from_numpy(tokens)
    with torch.no_grad():
        return F.cross_entropy(model(row[None, :-1])[0].double(), row[1:], reduction="none").numpy()


def expected(protocol: str, model: Decoder, stretch: np.ndarray, length: int, scored: int, stride: int) -> np.ndarray:
    if protocol == "last":
        return losses(model, stretch[-length - 1 :])[-scored:]
    longest = len(stretch) - 1
    if protocol == "blocks":
        starts = range(0, longest - length + 1, length)
        return np.concatenate([losses(model, stretch[begin : begin + length + 1]) for begin in starts])
    found = list(losses(model, stretch[: length + 1]))
    while len(found) < longest:
        end = min(len(found) + stride, longest)
        found += list(losses(model, stretch[end - length : end + 1])[-(end - len(found)) :])
    return np.array(found)


@pytest.mark.parametrize(
    ("protocol", "label", "settings"),
    [
        ("last", "last 4 of 5 x 40", {}),
        ("last", "last 7 of 5 x 40", {"scored": 7}),
        ("blocks", "blocks of 5 x 40", {"lengths": (8, 20, 40)}),
        ("sliding", "sliding 3 of 5 x 40", {"stride": 3}),
    ],
)
def test_a_protocol_scores_what_a_plain_loop_scores(
    tmp_path: Path, data: str, protocol: str, label: str, settings: dict[str, Any]
) -> None:
    asked = plan(data, protocol=protocol, **settings)
    rows = rows_of(asked, tmp_path)
    _, task, model = train.load(tmp_path)
    stretches = task.windows("test", LENGTHS[-1], 5)  # type: ignore[attr-defined]
    for length in asked.lengths:
        each = [expected(protocol, model, stretch, length, asked.targets, asked.stride) for stretch in stretches.tokens]
        means = [float(found.mean()) for found in each]
        mean, error = np.mean(means), np.std(means, ddof=1) / math.sqrt(len(means))
        perplexity, bits = (
            next(row for row in rows if (row.length, row.metric) == (length, metric))
            for metric in ("perplexity", "bits_per_byte")
        )
        assert perplexity.protocol == bits.protocol == label
        assert perplexity.value == pytest.approx(math.exp(mean), rel=1e-5)
        assert perplexity.error == pytest.approx(math.exp(mean) * error, rel=1e-3)
        assert bits.value == pytest.approx(mean / math.log(2), rel=1e-5)
        assert perplexity.n == sum(found.size for found in each)


def test_every_length_scores_the_same_tokens(data: str, tmp_path: Path) -> None:
    asked = plan(data)
    _, task, model = train.load(trained(asked, tmp_path))
    reading = evaluate.Reading(model, task, asked, "cpu")  # type: ignore[arg-type]
    read: list[torch.Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            evaluate.Reading, "of", lambda self, tokens, scored: read.append(tokens[:, -scored:]) or np.ones((1, 1))
        )  # type: ignore[func-returns-value]
        for length in LENGTHS:
            reading.losses(length)
    assert torch.equal(read[0], read[1])
    assert torch.equal(read[1], read[2][:, -4:])  # the longest is read for the loss by position too
    assert read[0].shape[1] == 4  # half of the shortest length


def test_k_is_256_or_half_of_the_shortest_length(data: str) -> None:
    assert plan(data, lengths=(512, 1024)).targets == 256
    assert plan(data, lengths=(128, 8192)).targets == 64
    assert plan(data, lengths=(128,), scored=128).targets == 128
    with pytest.raises(ValueError, match=r"scored \(129\) must not be more than the shortest length, 128"):
        plan(data, lengths=(128,), scored=129)


def test_the_loss_by_position_is_that_of_one_pass(tmp_path: Path, data: str) -> None:
    rows = [row for row in rows_of(plan(data), tmp_path) if row.protocol == "position"]
    _, task, model = train.load(tmp_path)
    stretches = task.windows("test", LENGTHS[-1], 5).tokens  # type: ignore[attr-defined]
    whole = np.stack([losses(model, stretch) for stretch in stretches])
    places = [int(row.marks["position"]) for row in rows] + [LENGTHS[-1]]
    assert places[0] == 0
    for row, begin, end in zip(rows, places, places[1:], strict=False):
        assert row.value == pytest.approx(whole[:, begin:end].mean(), rel=1e-5)
    assert sum(row.n for row in rows) == whole.size


def test_rows_that_are_there_are_not_made_again(tmp_path: Path, data: str) -> None:
    asked = plan(data)
    first = rows_of(asked, tmp_path)
    have = {row.key: row for row in first if row.length != 16}
    again = [row for found in evaluate.evaluate(tmp_path, asked, have) for row in found]
    assert {row.length for row in again} == {16}
    assert {(row.metric, row.value) for row in again} == {(row.metric, row.value) for row in first if row.length == 16}


def test_a_row_says_where_it_came_from(tmp_path: Path, data: str) -> None:
    asked = plan(data)
    (trial,) = asked.trials
    row = rows_of(asked, tmp_path)[0]
    assert (row.trial, row.encoding, row.seed) == (trial.name, "kerple + dape", 0)
    assert (row.task, row.train_length, row.steps) == (asked.task, 8, 3)
    assert row.tokens == 3 * 4 * 8
    assert row.parameters > row.positional > 0
    assert row.backend in ("native", "tiled")
    assert row.seconds is not None
    assert row.tokens_per_second is not None


def test_a_length_that_an_encoding_cannot_read_is_a_row_with_the_reason(tmp_path: Path, data: str) -> None:
    rows = rows_of(plan(data, encodings=("learned(longest=16)",)), tmp_path)
    (failed,) = [row for row in rows if row.metric == "failed"]
    assert failed.length == 40
    assert "learned: position 39 is past the table of 16" in failed.note
    assert {row.length for row in rows if row.metric == "perplexity"} == {8, 16}


class Parrot(torch.nn.Module):
    """Says what it is told to, whatever it reads."""

    vocabulary = 16

    def __init__(self, answers: dict[bytes, np.ndarray]) -> None:
        super().__init__()
        self.answers, self.prompts = answers, list[np.ndarray]()

    def generate(self, tokens: torch.Tensor, new: int, *, doc: torch.Tensor | None = None) -> torch.Tensor:
        rows = []
        for index, row in enumerate(tokens.numpy()):
            prompt = row if doc is None else row[doc[index].numpy() >= 0]
            self.prompts.append(prompt)
            answer = self.answers.get(prompt.tobytes(), np.zeros(0, np.int64))
            rows.append(np.concatenate([row, answer, np.zeros(new, np.int64)])[: len(row) + new])
        return torch.from_numpy(np.stack(rows))


def test_answers_are_written_after_prompts_of_unequal_lengths() -> None:
    _ = IGNORED
    batch = Batch(
        tokens=np.array([[1, 2, 3, 4, 5, 0], [6, 7, 0, 0, 0, 0], [1, 2, 3, 9, 9, 0]]),
        targets=np.array([[_, _, 4, 5, _, _], [_, 8, 9, 10, _, _], [_, _, _, 3, _, _]]),
    )
    parrot = Parrot(
        {
            np.array([1, 2, 3]).tobytes(): np.array([4, 5]),
            np.array([6, 7]).tobytes(): np.array([8, 9, 11]),
            np.array([1, 2, 3, 9]).tobytes(): np.array([3, 15, 15]),
        }
    )
    wanted, said = evaluate.written(parrot, tasks.build("copy"), batch, "cpu")  # type: ignore[arg-type]
    assert wanted.tolist() == [[4, 5, _], [8, 9, 10], [3, _, _]]
    assert evaluate.exact(wanted, said).tolist() == [1.0, 0.0, 1.0]
    assert [prompt.tolist() for prompt in parrot.prompts] == [[1, 2, 3], [6, 7], [1, 2, 3, 9]]


@pytest.mark.parametrize("task", ["copy", "addition", "chomsky/parity_check", "s5"])
def test_exams_are_the_same_for_every_trial_and_scored_at_every_length(tmp_path: Path, task: str) -> None:
    asked = Plan(encodings=("alibi", "kerple"), task=task, lengths=(2, 3), **TINY)  # type: ignore[arg-type]
    seen: list[bytes] = []
    found: list[Row] = []
    with pytest.MonkeyPatch.context() as patch:
        made = evaluate.exam
        patch.setattr(evaluate, "exam", lambda *words: seen.append((made(*words)).tokens.tobytes()) or made(*words))  # type: ignore[func-returns-value]
        for trial in asked.trials:
            train.train(trial, tmp_path / trial.name)
            for rows in evaluate.evaluate(tmp_path / trial.name, asked, {}):
                found += rows
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]
    assert {row.length for row in found} == {2, 3}
    assert {row.protocol for row in found} == {"exam"}
    assert all(0 <= row.value <= 1 and row.n == 5 for row in found)
    assert "exact" in {row.metric for row in found}


def test_a_model_that_knows_the_task_passes_and_one_that_does_not_fails(tmp_path: Path) -> None:
    settings = TINY | {"steps": 300, "batch": 32, "rate": 3e-3, "width": 32, "examples": 50}
    asked = Plan(encodings=("alibi",), task="copy(alphabet=3)", lengths=(1, 30), **settings)  # type: ignore[arg-type]
    rows = [row for row in rows_of(asked, tmp_path) if row.metric == "accuracy"]
    short, far = (next(row.value for row in rows if row.length == length) for length in (1, 30))
    assert short > 0.95
    assert far < short


def test_cost_and_adaptation_of_training_are_rows_too(tmp_path: Path, data: str) -> None:
    asked = plan(data)
    (trial,) = asked.trials
    folder = trained(asked, tmp_path)
    rows = evaluate.of_training(trial, tasks.build(trial.task), folder, "here")
    held = {row.metric: row for row in rows if row.protocol == "training"}
    facts = train.facts(folder)
    assert held.keys() == {"tokens_per_second", "seconds", "peak_bytes", "loss"}
    assert held["peak_bytes"].value == facts["peak_bytes"]
    layers = [row for row in rows if row.metric == "adaptive_share"]
    assert [row.marks["layer"] for row in layers] == [0.0, 1.0]
    assert all(row.value > 0 for row in layers)


def test_a_failed_trial_is_a_row_with_the_reason() -> None:
    (trial,) = Plan(encodings=("rope",), task="copy", **TINY).trials  # type: ignore[arg-type]
    row = evaluate.of_failure(trial, tasks.build("copy"), "the loss is nan at step 3", "here")
    assert (row.metric, row.value, row.note) == ("failed", 1.0, "the loss is nan at step 3")


def test_another_number_of_exams_is_another_exam(tmp_path: Path) -> None:
    asked = plan("", encodings=("rope",), task="copy", lengths=(4,), examples=5)
    (trial,) = asked.trials
    train.train(trial, tmp_path)
    have = {row.key: row for rows in evaluate.evaluate(tmp_path, asked, {}) for row in rows}
    assert not list(evaluate.evaluate(tmp_path, asked, have))
    again = [row for rows in evaluate.evaluate(tmp_path, replace(asked, examples=7), have) for row in rows]
    assert {row.n for row in again} == {7}
    assert {row.key for row in again} == set(have)


def test_a_failure_is_taken_back_where_the_rows_are_there(tmp_path: Path, data: str) -> None:
    asked = plan(data)
    have = {row.key: row for row in rows_of(asked, tmp_path)}
    one = next(iter(have.values()))
    failed = replace(one, protocol="evaluation", metric="failed", value=1.0, length=asked.lengths[0], marks={})
    (taken_back,) = [row for rows in evaluate.evaluate(tmp_path, asked, have | {failed.key: failed}) for row in rows]
    assert (taken_back.key, taken_back.value) == (failed.key, 0.0)
    # and what was read already is not refused for a backend that could not read it
    assert not [row for rows in evaluate.evaluate(tmp_path, asked, have, backend="sdpa") for row in rows]


def test_the_backend_of_a_row_is_that_of_the_trained_encoding() -> None:
    model, size = Decoder(16, Shape(layers=1, width=16, heads=2), "fire"), Size(1, 40, torch.float32, "cpu", True)
    for threshold in (512.0, 4.0):
        model.encoding.multiplier.data.fill_(threshold / model.encoding.start)
        with torch.no_grad():
            q, layout = torch.randn(1, 2, 40, 8), Layout.dense(1, 40)
            pairs = model.encoding.pairs(0, q, Keys(q, q), layout)
            ran = choose(Call.checked(q, q, q, layout, pairs, None, 0.0)).name
        assert evaluate.backend_of(model, size, "auto") == ran
        assert isinstance(pairs.bias[0], DistanceTable) == (threshold > 40)
