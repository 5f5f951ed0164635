"""Where tokens are, which keys a query sees, and what is measured of the ids."""

import dataclasses

import pytest
import torch
from torch import Tensor

from adapos import Layout
from adapos.layout import count
from cases import LAYOUTS, Draw, packed


def seen_by_loop(layout: Layout) -> Tensor:
    found = torch.zeros(layout.batch, 1, layout.queries, layout.keys, dtype=torch.bool)
    for b in range(layout.batch):
        for i in range(layout.queries):
            for j in range(layout.keys):
                offset = layout.start + i - j
                near = layout.window is None or abs(offset) < layout.window
                past = offset >= 0 or not layout.causal
                same = True
                if layout.q_doc is not None and layout.k_doc is not None:
                    same = int(layout.q_doc[b, i]) == int(layout.k_doc[b, j]) != -1
                found[b, 0, i, j] = near and past and same
    return found


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("length", [1, 2, 11])
def test_a_query_sees_the_past_of_its_own_document_within_the_window(name: str, length: int) -> None:
    layout = LAYOUTS[name](3, length)
    seen = seen_by_loop(layout)
    assert torch.equal(layout.visible(), seen)
    rows = slice(layout.queries // 2, layout.queries)
    assert torch.equal(layout.visible(rows), seen[:, :, rows])
    keys = max(1, layout.keys // 2)
    assert torch.equal(layout.first(keys).visible(rows), seen[:, :, rows, :keys])


@pytest.mark.parametrize("name", LAYOUTS)
def test_distance_is_the_difference_of_ids(name: str) -> None:
    layout = LAYOUTS[name](3, 11)
    want = layout.q_pos[:, None, :, None] - layout.k_pos[:, None, None, :]
    assert torch.equal(layout.distance(), want)
    rows = slice(0, max(1, layout.queries // 2))
    assert torch.equal(layout.first(5).distance(rows), want[:, :, rows, :5])
    assert not layout.distance().is_floating_point()


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("length", [1, 2, 11])
def test_what_is_measured_covers_every_pair_that_is_seen(name: str, length: int) -> None:
    layout = LAYOUTS[name](3, length)
    distance, seen = layout.distance(), layout.visible()
    if seen.any():
        assert int(distance[seen].max()) < layout.span
        assert int((-distance[seen]).max()) <= layout.ahead
    assert layout.last == int(layout.q_pos.max())
    known = layout.distances()
    assert torch.equal(known, torch.arange(-layout.ahead, layout.span))
    assert set(distance[seen].tolist()) <= set(known.tolist())
    cut = layout.distances(3)
    assert cut.min() >= -3
    assert cut.max() <= 3
    assert set(distance[seen].clamp(-3, 3).tolist()) <= set(cut.tolist())
    index = torch.arange(layout.start, layout.start + layout.queries)[:, None] - torch.arange(layout.keys)
    if layout.consecutive:
        assert torch.equal(distance[seen], index.expand_as(distance)[seen])


CONSECUTIVE = {
    "dense",
    "one query",
    "some queries",
    "queries amid the keys",
    "bidirectional",
    "window",
    "window of one",
    "bidirectional window",
    "documents",
    "bidirectional documents",
    "documents in a window",
    "restarting documents",
    "last queries of documents",
    "nothing to see",
    "negative ids",
}


def test_ids_that_follow_one_another_are_known_to() -> None:
    assert {name for name, make in LAYOUTS.items() if make(3, 11).consecutive} == CONSECUTIVE


@pytest.mark.parametrize("settings", [{}, {"causal": False}, {"window": 3}, {"cached": 4}])
def test_a_dense_layout_is_what_measuring_its_ids_finds(settings: dict[str, int]) -> None:
    dense = Layout.dense(2, 6, **settings)  # type: ignore[arg-type]
    ids = {"q_pos": dense.q_pos, "k_pos": dense.k_pos}
    measured = Layout(**ids, causal=dense.causal, window=dense.window)
    for field in dataclasses.fields(Layout):
        if field.name not in ("q_pos", "k_pos"):
            assert getattr(dense, field.name) == getattr(measured, field.name), field.name
    assert (dense.batch, dense.queries, dense.keys) == (2, 6, 6 + settings.get("cached", 0))


def test_only_a_causal_document_without_padding_or_window_is_plain() -> None:
    assert Layout.dense(1, 4).plain
    assert Layout.dense(1, 4, cached=3).plain
    assert not Layout.dense(1, 4, causal=False).plain
    assert not Layout.dense(1, 4, window=2).plain
    pos, doc = torch.arange(4)[None], packed([2, 2])
    assert not Layout(pos, pos, doc, doc).plain
    assert not Layout(pos, pos, packed([3, -1]), packed([3, -1])).plain


@pytest.mark.parametrize("number", [0, 5])
def test_documents_that_are_all_one_are_no_documents(number: int) -> None:
    pos, doc = torch.arange(4).expand(2, -1), torch.full((2, 4), number)
    layout = Layout(pos, pos, doc, doc)
    assert layout.plain
    assert layout.visible().sum() == 2 * 10
    # one for each row is as good
    assert Layout(pos, pos, doc + torch.arange(2)[:, None], doc + torch.arange(2)[:, None]).plain


def test_all_padding_stays_padding() -> None:
    pos, doc = torch.arange(4)[None], torch.full((1, 4), -1)
    assert not Layout(pos, pos, doc, doc).visible().any()


def test_a_window_sees_as_many_keys_as_it_says() -> None:
    assert Layout.dense(1, 9, window=3).visible()[0, 0].sum(-1).tolist() == [1, 2, 3, 3, 3, 3, 3, 3, 3]
    assert Layout.dense(1, 5, window=2, causal=False).visible()[0, 0].sum(-1).tolist() == [2, 3, 3, 3, 2]


@pytest.mark.parametrize("kind", [torch.int16, torch.int32, torch.uint8, torch.int8])
def test_ids_of_any_integer_type_are_the_same_ids(kind: torch.dtype) -> None:
    pos = torch.tensor([[5, 3, 9, 100, 0]])
    small, usual = Layout(pos.to(kind), pos.to(kind), causal=False), Layout(pos, pos, causal=False)
    assert torch.equal(small.distance(), usual.distance())
    assert (small.span, small.ahead) == (usual.span, usual.ahead)


def test_cropping_the_keys_leaves_the_queries_where_they_are() -> None:
    layout = LAYOUTS["documents"](3, 11)
    cropped = layout.first(4)
    assert (cropped.keys, cropped.queries, cropped.start) == (4, 11, 0)
    assert cropped.k_doc is not None
    assert cropped.k_doc.shape == (3, 4)
    assert layout.first(11) is layout


def test_a_layout_moves_as_a_whole() -> None:
    layout = LAYOUTS["documents"](3, 11)
    moved = layout.to("meta")
    assert {x.device.type for x in (moved.q_pos, moved.k_pos, moved.q_doc, moved.k_doc)} == {"meta"}
    for name in ("span", "ahead", "last", "consecutive"):
        assert getattr(moved, name) == getattr(layout, name)


def test_a_layout_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Layout.dense(1, 4).causal = False  # type: ignore[misc]


def test_each_document_counts_from_zero() -> None:
    doc = torch.tensor([[0, 0, 1, 1, 1, 4], [-1, -1, 0, 0, -1, -1], [2, 0, 2, 0, 2, -1], [3, 3, 3, 3, 3, 3]])
    want = [[0, 1, 0, 1, 2, 0], [0, 0, 0, 1, 0, 0], [0, 0, 1, 1, 2, 0], [0, 1, 2, 3, 4, 5]]
    assert count(doc).tolist() == want


def test_counting_equals_a_loop() -> None:
    doc = Draw(1).integers(-1, 3, 4, 30)
    for row, found in zip(doc.tolist(), count(doc).tolist(), strict=True):
        so_far: dict[int, int] = {}
        for number, position in zip(row, found, strict=True):
            assert position == (0 if number == -1 else so_far.get(number, 0))
            so_far[number] = so_far.get(number, 0) + 1


POS = torch.arange(4)[None]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"q_pos": POS.float()},
            "q_pos must hold integers, not torch.float32; positions and documents are whole, cast with",
        ),
        ({"k_pos": POS.double()}, "k_pos must hold integers, not torch.float64"),
        ({"q_pos": POS.bool()}, "q_pos must hold integers, not torch.bool"),
        ({"q_doc": POS, "k_doc": POS.float()}, "k_doc must hold integers, not torch.float32"),
        ({"q_pos": POS[0]}, r"q_pos must have shape \(batch, tokens\), not \(4,\)"),
        ({"k_pos": POS[..., None]}, r"k_pos must have shape \(batch, tokens\), not \(1, 4, 1\)"),
        ({"q_pos": POS[:, :0]}, r"q_pos of shape \(1, 0\) is empty; batch and length must be at least 1"),
        ({"k_pos": POS[:0], "q_pos": POS[:0]}, r"q_pos of shape \(0, 4\) is empty"),
        ({"k_pos": POS.to("meta")}, "k_pos is on meta and q_pos on cpu; move them to one device"),
        ({"k_pos": POS.expand(2, -1)}, "k_pos has batch 2 and q_pos 1; they must agree"),
        ({"q_doc": POS}, "q_doc and k_doc come together: give both or neither"),
        ({"k_doc": POS}, "q_doc and k_doc come together: give both or neither"),
        ({"q_doc": POS[:, :3], "k_doc": POS}, r"q_doc has shape \(1, 3\) and its positions \(1, 4\); they must agree"),
        ({"q_doc": POS, "k_doc": POS[:, :3]}, r"k_doc has shape \(1, 3\) and its positions \(1, 4\)"),
        ({"k_pos": POS[:, :3]}, r"there are more queries \(4\) than keys \(3\); every query is also a key"),
        ({"window": 0}, r"window \(0\) must be a whole number of at least 1: a query sees itself"),
        ({"start": 1}, r"start \(1\) must place 4 queries among 4 keys: it lies between 0 and 0"),
        ({"start": 4, "q_pos": POS[:, :1]}, r"start \(4\) must place 1 queries among 4 keys: it lies between 0 and 3"),
    ],
)
def test_what_is_no_layout_is_refused(given: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout(**({"q_pos": POS, "k_pos": POS} | given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "length", "settings", "message"),
    [
        (0, 4, {}, r"batch \(0\) and length \(4\) must be at least 1; there is nothing to attend to"),
        (2, 0, {}, r"batch \(2\) and length \(0\) must be at least 1"),
        (1, 1, {"cached": -1}, r"cached \(-1\) must be at least 0"),
        (1, 1, {"window": -1}, r"window \(-1\) must be a whole number of at least 1"),
    ],
)
def test_an_empty_dense_layout_is_refused(batch: int, length: int, settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Layout.dense(batch, length, **settings)  # type: ignore[arg-type]
