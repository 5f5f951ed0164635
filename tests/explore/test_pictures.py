"""The pictures: valid SVG, two models told apart, long rows in columns, and a text byte by byte."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from adapos import Shape
from adapos.explore import pictures
from adapos.explore.pictures import by_distance, by_place, groups
from adapos.explore.reading import Reading, Spread
from adapos.explore.strip import ACROSS, lines, signs, strip
from adapos.plots import COLOURS, DASHES
from adapos.svg import captioned
from cases import SHAPE, VOCABULARY, decoder

pytestmark = pytest.mark.usefixtures("one_thread")
SVG = "{http://www.w3.org/2000/svg}"


def read(spec: str, length: int = 70, **given: object) -> Reading:
    text = bytes(np.random.default_rng(3).integers(1, VOCABULARY, length).astype(np.uint8))
    return Reading(spec, decoder(spec, **given), text)  # type: ignore[arg-type]


def words(svg: str) -> set[str]:
    return {each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}text")}


def test_every_picture_is_svg_with_named_axes_and_units() -> None:
    for picture in pictures.everything([read("kerple + dape"), read("tape")], 1, 0, 69):
        if picture.svg:
            root = ElementTree.fromstring(picture.svg)
            assert root.find(f"{SVG}title") is not None
            said = words(picture.svg)
            if not picture.name.startswith("text"):
                assert any("bytes" in each for each in said), picture.name
                assert any(each in said for each in ("layer", "mean cosine", "change of the mean cosine")) or any(
                    "nats" in each or "of 1" in each or "share" in each for each in said
                ), picture.name


def test_two_models_have_each_a_colour_and_a_dash_and_a_name() -> None:
    both = [read("kerple + dape"), read("alibi")]
    found = {picture.name: picture for picture in pictures.everything(both, 0, 0, 69)}
    lines = list(ElementTree.fromstring(found["attention"].svg).iter(f"{SVG}polyline"))
    assert [(line.get("stroke"), line.get("stroke-dasharray")) for line in lines] == [
        (COLOURS[0], DASHES["solid"]),
        (COLOURS[1], DASHES["dash"]),
    ]
    assert words(found["attention"].svg) >= {"kerple + dape", "alibi"}
    assert "alibi has no adaptive term" in found["adaptive"].caption
    assert "alibi" not in words(found["adaptive"].svg)
    assert {"text-1", "text-2", "products-1", "products-2"} <= set(found)
    # the bands and lines of this text and of its shuffle, of both
    assert len(list(ElementTree.fromstring(found["distance"].svg).iter(f"{SVG}polyline"))) == 4


def test_a_model_without_that_head_is_named() -> None:
    small = read("rope", shape=Shape(layers=1, width=16, heads=2))
    found = {picture.name: picture for picture in pictures.everything([read("kerple"), small], 1, 3, 69)}
    assert "rope has no such head: its last layer is 0, its last head 1." in found["scores"].caption
    assert len(list(ElementTree.fromstring(found["scores"].svg).iter(f"{SVG}polyline"))) == 1


def test_a_picture_changes_with_its_head_layer_and_query() -> None:
    found = read("kerple + dape")
    drawn = {pictures.of_row([found], *chosen)[3].svg for chosen in ((0, 0, 69), (0, 1, 69), (1, 0, 69), (0, 0, 60))}
    assert len(drawn) == 4


def test_many_keys_are_put_into_columns_with_their_extremes() -> None:
    values = np.random.default_rng(0).normal(size=4096)
    found = by_place(values, 400)
    assert len(found.at) == 373  # of 11 keys each
    assert found.line[5] == pytest.approx(values[55:66].mean())
    assert (found.low[5], found.high[5]) == (values[55:66].min(), values[55:66].max())
    assert found.line[-1] == pytest.approx(values[4092:].mean())
    peaks = by_place(values, 400, peaks=True)
    assert peaks.line[5] == peaks.high[5] == found.high[5]
    few = by_place(values[:30], 400)
    assert np.array_equal(few.line, values[:30])
    assert np.array_equal(few.low, few.high)


def tops(svg: str) -> tuple[float, float]:
    """The highest points of the line and of the band."""
    root = ElementTree.fromstring(svg)
    kinds = (root.findall(f".//{SVG}{kind}") for kind in ("polyline", "polygon"))
    line, band = (each.get("points", "").split() for (each,) in kinds)
    return tuple(min(float(point.split(",")[1]) for point in points) for points in (line, band))  # type: ignore[return-value]


def test_lines_of_what_adds_up_to_one_go_through_the_greatest_of_each_column() -> None:
    found = read("rope")
    row = {picture.name: picture for picture in pictures.of_row([found], 0, 0, 69, 10)}
    for picture in (row["attention"], pictures.of_rollout([found], 69, 10)):
        line, band = tops(picture.svg)
        assert line == band
        assert "Lines go through the greatest of each 7 keys, bands go down to the least." in picture.caption
    line, band = tops(row["scores"].svg)
    assert line > band
    assert "Lines are means of 7 keys, bands go from their least to their most." in row["scores"].caption


def test_captions_of_means_by_distance_say_what_they_are_over() -> None:
    both = pictures.of_distance([read("kerple", 300)], 0, 0), pictures.of_products([read("tape", 300)])[0]
    for picture in both:
        assert (
            "At each distance it is the mean over those of 128 queries, evenly spaced among 300, that reach so far "
            "back; distance 0, the query itself, is left out. Far distances are drawn together" in picture.caption
        )
    few = pictures.of_distance([read("kerple", 3)], 0, 0).caption
    assert "the mean over those of all 3 queries that reach so far back; distance 0" in few
    assert "together" not in few


def test_every_picture_says_of_what_it_is_in_its_title_its_description_and_its_file() -> None:
    found = {each.name: each for each in pictures.everything([read("kerple + dape"), read("tape")], 1, 0, 69)}
    for picture in found.values():
        if picture.svg:
            root = ElementTree.fromstring(picture.svg)
            assert root.findtext(f"{SVG}desc") == picture.caption
            title = root.findtext(f"{SVG}title") or ""
            assert title.startswith(("kerple + dape: ", "tape: ", "kerple + dape and tape: "))
            assert re.fullmatch("[a-z0-9-]+", picture.saved)
    assert found["attention"].saved == "attention-kerple-dape-tape-layer-1-head-0-query-69"
    assert found["text-2"].saved == "text-tape-layer-1-head-0-query-69"
    assert found["rollout"].saved == "rollout-kerple-dape-tape-query-69"
    assert found["products-2"].saved == "products-tape"
    saved = [picture.saved for picture in found.values() if picture.svg]
    assert len(set(saved)) == len(saved)
    long = read("rope(schedule='dynamic', factor=2.0, trained=16)")
    assert pictures.of_heads([long]).saved == "heads-rope-schedule-dynamic-factor-2-0-tra"


def test_a_figure_has_its_caption_below_it() -> None:
    for picture in pictures.everything([read("kerple + dape")], 1, 0, 69):
        if picture.svg:
            before, after = (ElementTree.fromstring(svg) for svg in (picture.svg, captioned(picture.svg)))
            *_, group = after.iter(f"{SVG}g")
            said = " ".join(each.text or "" for each in group)
            assert said == f"{before.findtext(f'{SVG}title')}. {picture.caption}"
            bottoms = [float(each.get("y", "")) for each in group]
            assert bottoms == sorted(set(bottoms))
            assert float(before.get("height", "")) < bottoms[0]
            assert bottoms[-1] < float(after.get("height", ""))
            assert (after.get("viewBox") or "").split()[-1] == after.get("height")


def test_marks_of_heads_have_their_numbers_where_there_is_room() -> None:
    def numbers(svg: str) -> list[str]:
        texts = ElementTree.fromstring(svg).iter(f"{SVG}text")
        return sorted(",".join(each.text or "" for each in texts if each.get("font-size")).split(","))

    few = pictures.of_heads([read("rope")], 1, 2)
    assert numbers(few.svg) == sorted([*"0123"] * SHAPE.layers)
    assert "One mark for each head, with its number" in few.caption
    many = pictures.of_heads([read("rope", shape=Shape(layers=1, width=48, heads=12))])
    assert numbers(many.svg) == [""]
    assert "One mark for each head, which says its number when pointed at." in many.caption


def test_numbers_of_marks_that_are_close_stand_together() -> None:
    assert groups([200.0, 20.0, 100.0]) == [[1], [2], [0]]
    assert groups([20.0, 110.0, 24.0, 100.0]) == [[0, 2], [3, 1]]
    assert groups([50.0, 50.0, 50.0]) == [[0, 1, 2]]


def test_the_head_that_is_chosen_has_a_ring() -> None:
    def rings(svg: str) -> list[tuple[str | None, str | None]]:
        circles = ElementTree.fromstring(svg).iter(f"{SVG}circle")
        return [(each.get("data-ring"), each.get("visibility")) for each in circles if each.get("fill") == "none"]

    found = read("rope")
    assert rings(pictures.of_heads([found], 1, 2).svg) == [(None, None)]
    every = [(f"{layer} {head}", "hidden") for layer in range(found.layers) for head in range(found.heads)]
    assert rings(pictures.of_heads([found]).svg) == every


def test_distances_are_put_into_columns_that_grow() -> None:
    values = np.arange(1000.0)
    found = by_distance(Spread(values, values, values), 60)
    assert found.at[0] == found.line[0] == 1
    assert np.allclose(found.at, found.line)
    assert found.high[-1] == 999
    assert np.all(np.diff(found.high - found.low) >= -1)


def test_bytes_are_shown_as_what_they_are() -> None:
    assert signs("a b\n\té\x00".encode()) == ["a", "\u00a0", "b", "↵", "⇥", "é", "\u00a0", "·"]
    assert signs("é".encode()[1:] + b"z") == ["·", "z"]
    assert signs("🙂x".encode()) == ["🙂", *["\u00a0"] * 3, "x"]


def test_the_text_is_shaded_by_attention() -> None:
    found = read("rope", 60)
    found.text = b"<&>\"'" + b"abcdefghij" * 5 + "é🙂".encode()[:5]
    weights = np.zeros(50)
    weights[[3, 40]] = 0.2, 0.8
    caption, drawn = strip(found, weights, 49, COLOURS[0], "what is attended")
    root = ElementTree.fromstring(drawn)
    shades = [each.get("fill-opacity") for each in root.iter(f"{SVG}rect") if each.get("fill") == COLOURS[0]]
    assert shades == ["0.38", "0.75"]
    assert "The most attended is byte 40 (80 %)" in caption
    assert "100 % of it falls on what is shown" in caption
    assert re.search("&lt;&amp;&gt;", drawn)


@pytest.mark.parametrize("query", [0, 3, 200, 307, 400, 999])
def test_the_query_and_the_most_attended_byte_are_always_shown_once(query: int) -> None:
    for best in {0, query // 7, query // 2, query}:
        found = lines(1000, query, best)
        shown = [at for begin, end in found for at in range(begin, end)]
        assert {query, best} <= set(shown)
        assert shown == sorted(set(shown))
        assert shown[-1] < 1000
        assert all(0 < end - begin <= ACROSS for begin, end in found)
