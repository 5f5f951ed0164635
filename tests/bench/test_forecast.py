"""What a plan will take is reckoned from parts of it, where it is too large to be tried."""

from __future__ import annotations

from typing import Any

import pytest

from adapos.bench import forecast, tasks
from adapos.bench.plan import Plan, Trial
from adapos.bench.train import Setup

PLAN = Plan(encodings=("rope",), task="copy", train_length=16, batch=64, layers=1, width=16, heads=2)


@pytest.mark.parametrize(
    ("tokens", "tried"), [(10_000, [64]), (300, [9, 4]), (1, [1])], ids=["whole", "from two parts", "from one text"]
)
def test_a_step_is_reckoned_from_smaller_ones(tokens: int, tried: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []

    def timed(trial: Trial, *_: Any) -> tuple[float, int]:
        heard.append(trial.batch)
        return (0.0 if tokens == 1 else 2.0) + 0.5 * trial.batch, 1000 * trial.batch

    monkeypatch.setattr(forecast, "timed", timed)
    task = tasks.build(PLAN.task)
    taken, memory = forecast.step(PLAN.trials[0], Setup(), task, tokens)
    assert heard == tried
    assert (taken, memory) == (pytest.approx((0.0 if tokens == 1 else 2.0) + 0.5 * 64), 64_000)


def test_a_model_that_takes_more_is_tried_on_less(monkeypatch: pytest.MonkeyPatch) -> None:
    task = tasks.build(PLAN.task)
    model = forecast.decoder(PLAN.trials[0], task)
    operations = 2 * sum(x.numel() for x in model.parameters())
    monkeypatch.setitem(forecast.AFFORDED, "cpu", 40 * operations)
    pace = forecast.Pace(model, "cpu")
    assert pace.afforded == 40
    assert pace.seconds(4096) > pace.seconds(2048) > 0
    assert sorted(pace.known) == [16, 32]  # timed once, for both
    pace.seconds(1)
    assert sorted(pace.known) == [1, 2, 16, 32]
