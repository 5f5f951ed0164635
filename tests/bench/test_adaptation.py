"""Adaptation: zero for what is static, and what it should be where it can be said by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from adapos.bench.adaptation import measure
from adapos.encoding import Shape
from adapos.model import Decoder

SHAPE = Shape(layers=3, width=32, heads=4)


def model(spec: str) -> Decoder:
    torch.manual_seed(0)
    return Decoder(64, SHAPE, spec)


def texts(count: int = 4) -> torch.Tensor:
    return torch.randint(64, (count, 24), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("spec", ["nope", "rope", "kerple", "alibi", "t5", "fire", "sinusoidal"])
def test_what_is_static_does_not_adapt(spec: str) -> None:
    assert measure(model(spec), texts(3)) == []


@pytest.mark.parametrize("spec", ["kerple + dape", "kerple + dape(kernel=3)", "dape", "fox", "cable", "fox + dape"])
def test_what_reads_the_data_adapts_in_every_layer(spec: str) -> None:
    found = measure(model(spec), texts())
    assert [layer.layer for layer in found] == [0, 1, 2]
    assert all(layer.share > 0.01 and 0 < layer.variation <= 1 for layer in found)


def test_an_update_that_is_zero_behaves_like_its_base() -> None:
    for spec in ("kerple + dape(zero=True)", "tape"):
        assert [(layer.share, layer.variation) for layer in measure(model(spec), texts())] == [(0.0, 0.0)] * 3


def test_texts_that_are_the_same_do_not_vary() -> None:
    found = measure(model("kerple + dape"), texts(1).expand(4, -1))
    assert all(layer.share > 0.01 and layer.variation < 1e-5 for layer in found)


def test_a_constant_of_a_row_is_no_adaptation() -> None:
    made = model("kerple + dape(zero=True)")
    nn.init.constant_(made.encoding.parts[1].b_out, 3.0)  # type: ignore[union-attr, operator, index]
    assert all(layer.share < 1e-5 for layer in measure(made, texts()))


def test_the_share_grows_with_the_update() -> None:
    shares = []
    for size in (0.01, 0.02):
        made = model("tape")
        for layer in made.encoding.w_p:  # type: ignore[union-attr]
            nn.init.constant_(layer, size)
        shares.append(measure(made, texts())[1].share)
    assert shares[1] == pytest.approx(2 * shares[0], rel=1e-3)


def test_measuring_leaves_the_model_as_it_was() -> None:
    made = model("kerple + dape").train()
    before = made(texts())
    measure(made, texts())
    assert made.training
    assert torch.equal(made(texts()), before)
    assert "pairs" not in made.encoding.__dict__
