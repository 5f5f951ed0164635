"""What is measured of a text, against dense computations and formulas, over every encoding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adapos.explore import pictures, reading
from adapos.explore.reading import Reading, shuffled
from adapos.layout import Layout
from adapos.registry import names
from cases import SHAPE, VOCABULARY, apart, decoder

pytestmark = pytest.mark.usefixtures("one_thread")

COMPOSED = [
    "randomized + rope",
    "kerple + dape",
    "kerple + dape(kernel=3)",
    "dape(kernel=3)",
    "rope + fox",
    "tape(form='additive')",
    "tape + dape",
    "tape(form='additive') + rope",
    "randomized + tape",
    "learned(longest=90) + alibi",
    "rope(schedule='dynamic', factor=2.0, trained=16)",
]
SPECS = [*names(), *COMPOSED]
STATIC = ["t5", "alibi", "kerple", "fire"]


def text(length: int) -> bytes:
    return bytes(np.random.default_rng(3).integers(1, VOCABULARY, length).astype(np.uint8))


def read(spec: str, length: int = 70, *, moved: bool = True) -> Reading:
    return Reading(spec, decoder(spec, moved=moved), text(length))


@pytest.mark.parametrize("spec", SPECS)
def test_the_parts_of_a_row_add_up_to_the_attention_of_the_model(spec: str) -> None:
    found = read(spec)
    model = decoder(spec, backend="reference")
    watched: list[torch.Tensor] = []
    tokens = torch.tensor([list(found.text)])
    with torch.no_grad():
        model.through(model.embedding(tokens), Layout.dense(1, 70), watched=watched)
    for layer in range(SHAPE.layers):
        for query in (0, 33, 69):
            row = found.row(layer, 2, query)
            logit = torch.from_numpy(row.score + row.bias + row.adaptive)
            assert apart(logit.softmax(-1), torch.from_numpy(row.weights)) < 1e-9
            assert apart(torch.from_numpy(row.weights), watched[layer][0, 2, query, : query + 1]) < 1e-9


@pytest.mark.parametrize("spec", SPECS)
def test_every_encoding_is_drawn_or_said(spec: str) -> None:
    found = pictures.everything([read(spec)], 1, 3, 41)
    assert [picture.name for picture in found if not picture.name.startswith("moved")] == [
        *("scores", "bias", "adaptive", "attention", "text", "distance", "rollout", "heads", "products"),
    ]
    assert {picture.name for picture in found} <= set(pictures.NAMES)
    for picture in found:
        assert picture.caption.strip().endswith((".", "”."))
        assert "nan" not in picture.svg
        assert "inf" not in picture.svg.replace("in-", "")
    drawn = {picture.name for picture in found if picture.svg}
    assert drawn >= {"scores", "attention", "text", "rollout", "heads"}
    model = decoder(spec).encoding
    assert ("bias" in drawn) == model.biases or spec in ("xl", "fox", "cable")
    assert ("adaptive" in drawn) == model.mixes
    assert ("products" in drawn) == ("moved" in drawn) == model.travels
    assert ("distance" in drawn) == bool({"bias", "adaptive"} & drawn)


@pytest.mark.parametrize("spec", ["rope", "kerple + dape(kernel=3)", "fox", "tape + dape"])
def test_rollout_is_the_dense_product(spec: str) -> None:
    found = read(spec, 150)  # more than two blocks of rows
    whole = torch.eye(150, dtype=torch.float64)
    for layer in range(SHAPE.layers):
        dense = found.anatomy.rows(layer, slice(0, 150)).weights.double().mean(0)
        whole = (0.5 * dense + 0.5 * torch.eye(150, dtype=torch.float64)) @ whole
    queries = [0, 77, 149, 64]
    for query, row in zip(queries, found.rollout(queries), strict=True):
        assert row.shape == (query + 1,)
        assert apart(torch.from_numpy(row), whole[query, : query + 1]) < 1e-12
        assert row.sum() == pytest.approx(1.0, abs=1e-12)
    # one by one they are the same
    assert np.allclose(read(spec, 150).rollout([77])[0], found.rolled[77], atol=1e-13)


@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_products_of_an_untrained_tape_are_those_of_rope_at_every_layer(base: float) -> None:
    found = read(f"tape(base={base})", 60, moved=False)
    half = SHAPE.head_width // 2
    frequency = base ** (-np.arange(half) / half)
    want = np.cos(np.arange(60)[:, None] * frequency).mean(1)
    assert found.turns
    assert len(found.products) == SHAPE.layers
    for layer in found.products:
        assert np.abs(layer - want).max() < 1e-12


def test_products_of_a_trained_tape_leave_those_of_rope_after_the_first_layer() -> None:
    found = read("tape", 60)
    assert np.abs(found.products[0] - read("tape", 60, moved=False).products[0]).max() < 1e-12
    assert np.abs(found.products[1] - found.products[0]).max() > 1e-3


@pytest.mark.parametrize("spec", STATIC)
def test_what_a_static_encoding_adds_is_the_same_for_a_shuffle(spec: str) -> None:
    found = read(spec)
    here, there = found.added(0)
    assert all(np.array_equal(a.mean, b.mean) for a, b in zip(here, there, strict=True))
    assert not found.reads_text
    assert f"{spec}: the two coincide." in pictures.of_distance([found], 0, 1).caption


@pytest.mark.parametrize("spec", ["kerple + dape", "dape(kernel=3)", "cope", "fox", "tape(form='additive')"])
def test_what_an_adaptive_encoding_adds_is_not(spec: str) -> None:
    found = read(spec)
    assert f"{spec}: the two differ" in pictures.of_distance([found], 1, 1).caption
    assert found.reads_text == (spec in ("fox", "tape(form='additive')"))


def test_means_by_distance_are_those_of_the_dense_rows() -> None:
    found = read("kerple + dape", 50)
    rows = found.anatomy.rows(1, slice(0, 50))
    added = (rows.bias + rows.adaptive)[2]
    for distance in (0, 1, 17, 49):
        along = added.diagonal(-distance)
        spread = found.added(1)[0][2]
        got = [spread.mean[distance], spread.low[distance], spread.high[distance]]
        assert got == pytest.approx([float(along.mean()), float(along.min()), float(along.max())], abs=1e-12)
    assert torch.from_numpy(found.looks_back[1]).allclose(found.anatomy.distances(1), atol=1e-12)


def test_a_long_text_is_measured_on_a_bounded_sample_that_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SAMPLED", 10)
    found = read("kerple", 95)
    assert found.sample == [8, 18, 27, 37, 46, 56, 65, 75, 84, 94]
    assert "Means over 10 queries, evenly spaced among 95." in pictures.of_heads([found]).caption
    assert np.isfinite(found.looks_back).all()


def test_the_shuffle_has_the_same_bytes_in_another_order() -> None:
    given = text(80)
    assert shuffled(given) == shuffled(given) != given
    assert sorted(shuffled(given)) == sorted(given)


def test_texts_that_cannot_be_shown_are_refused() -> None:
    model = decoder("rope")
    with pytest.raises(ValueError, match="the text is empty; type or paste some"):
        Reading("rope", model, b" \n\t")
    with pytest.raises(ValueError, match="the text is 4,097 bytes long, and at most 4,096 are shown"):
        Reading("rope", model, b"\x05" * 4097)
    with pytest.raises(ValueError, match="learned: position 59 is past the table of 40"):
        read("learned(longest=40)", 60)


def test_one_byte_is_a_text() -> None:
    for spec in ("rope", "kerple + dape", "tape"):
        found = pictures.everything([Reading(spec, decoder(spec), b"\x05")], 0, 0, 0)
        said = {picture.name: picture.caption for picture in found if not picture.svg}
        assert all("nan" not in picture.svg for picture in found)
        assert said["products"] == ("A text of one byte has no distances." if spec == "tape" else said["products"])
