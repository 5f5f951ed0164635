"""What attention is made of, against its own weights."""

import pytest
import torch

from adapos.anatomy import Anatomy
from adapos.layout import Layout
from cases import apart, decoder, text


@pytest.mark.parametrize("spec", ["rope", "kerple", "kerple + dape", "fire + dape(kernel=3)", "tape", "cope", "fox"])
def test_the_parts_add_up_to_the_weights_that_the_model_used(spec: str) -> None:
    model, tokens = decoder(spec, backend="reference"), text(1, 30)
    model.eval()
    watched: list[torch.Tensor] = []
    with torch.no_grad():
        model.through(model.embedding(tokens), Layout.dense(1, 30), watched=watched)
    found = Anatomy(model, tokens)
    assert found.layers == len(watched)
    for layer, weights in enumerate(watched):
        rows = found.rows(layer, slice(7, 19))
        assert apart(rows.weights, weights[0, :, 7:19]) < 1e-9
        whole = (rows.score + rows.bias + rows.adaptive).masked_fill(~rows.seen, -torch.inf).softmax(-1)
        assert apart(whole, rows.weights) < 1e-9
        assert bool(rows.adaptive.abs().max() > 1e-3) == any(name in spec for name in ("dape", "cope"))


def test_a_bias_that_f_alone_reads_is_no_part_of_its_own() -> None:
    model = decoder("kerple + dape(form='concat', zero=True)", moved=False)
    rows = Anatomy(model, text(1, 30)).rows(1, slice(0, 30))
    assert not rows.bias.any()
    assert float(rows.adaptive.abs().max()) < 1e-12  # f is zero before training


def test_how_far_heads_look_and_which_way_they_are_pulled() -> None:
    model, tokens = decoder("alibi + dape"), text(1, 90)
    found = Anatomy(model.eval(), tokens)
    every = found.rows(1, slice(0, 90))
    distance = (torch.arange(90)[:, None] - torch.arange(90)).clamp(min=0)
    want = (every.weights * distance).sum(-1)[:, 40:].mean(-1)
    assert apart(found.distances(1, since=40), want) < 1e-9
    one = []
    for i in range(40, 90):
        x = (1.0 + distance[i, : i + 1]).log()
        one.append(((x - x.mean()) * every.adaptive[:, i, : i + 1]).sum(-1) / (x - x.mean()).square().sum())
    assert apart(found.slopes(1, since=40), torch.stack(one).mean(0)) < 1e-6


def test_several_texts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tokens must have shape \(1, length\), not \(2, 8\)"):
        Anatomy(decoder("rope"), text(2, 8))
