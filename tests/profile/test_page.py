"""The page: whole in itself, with every encoding, and nothing of what was measured taken for markup."""

import math
import sys
from dataclasses import replace

import pytest
from results import RESULTS, SPECS

from adapos import html, numbers, plots
from adapos.profile import page, words
from adapos.profile.plan import PLAIN
from pages import Reader


@pytest.fixture(scope="module")
def made() -> Reader:
    return Reader(page.page(RESULTS))


def test_the_page_asks_nothing_of_the_network(made: Reader) -> None:
    assert not [tag for tag, _ in made.tags if tag in ("link", "iframe", "img", "object", "embed", "base")]
    assert not [given for _, given in made.tags if {"src", "href", "srcset", "action"} & set(given)]
    assert "@import" not in html.STYLE
    assert "url(" not in html.STYLE
    assert any("Plotly" in text for text in made.text["script"])


def test_the_page_has_every_encoding_in_its_keys_tables_and_plots(made: Reader) -> None:
    for spec in (PLAIN, *SPECS):
        assert spec in made.text["td"]
    drawn = {(name, line["name"]) for name, figure in made.figures.items() for line in figure["data"]}  # type: ignore[attr-defined]
    assert drawn == {(name, spec) for name in made.figures for spec in (PLAIN, *SPECS)}
    assert list(made.figures) == [
        f"{what}-{kind}" for what in RESULTS.settings["what"] for kind in ("time", "ratio", "memory")
    ]
    assert set(made.figures) <= {given.get("id") for tag, given in made.tags if tag == "div"}


def test_both_axes_of_every_plot_are_logarithmic_and_all_points_lie_inside(made: Reader) -> None:
    for figure in made.figures.values():
        layout, lines = figure["layout"], figure["data"]
        assert (layout["xaxis"]["type"], layout["yaxis"]["type"]) == ("log", "log")  # type: ignore[index, call-overload]
        low, high = layout["yaxis"]["range"]  # type: ignore[index, call-overload]
        points = [math.log10(y) for line in lines for y in line["y"]]  # type: ignore[attr-defined]
        assert low < min(points) <= max(points) < high
        assert [tick for tick in layout["yaxis"]["tickvals"] if low <= math.log10(tick) <= high]  # type: ignore[index, call-overload]


def test_what_was_not_run_has_a_row_that_says_why_and_no_point(made: Reader) -> None:
    notes = [text for text in made.text["td"] if text.startswith("not run: learned: position 63 is past")]
    assert len(notes) == len(RESULTS.settings["what"])
    lines = made.figures["training-time"]["data"]
    assert {line["name"]: line["x"] for line in lines}[SPECS[2]] == [16]  # type: ignore[attr-defined]


def test_words_are_never_taken_for_markup(made: Reader) -> None:
    assert not [tag for tag, _ in made.tags if tag == "b"]
    assert not [tag for tag, _ in made.tags if tag == "processor"]
    evil = replace(RESULTS.rows[1], encoding="</script><script>alert(1)</script>")
    results = replace(RESULTS, rows=[RESULTS.rows[0], evil], settings=RESULTS.settings | {"encodings": [evil.encoding]})
    scripts = [given for tag, given in Reader(page.page(results)).tags if tag == "script"]
    assert len(scripts) == 3


def test_the_page_names_the_machine_the_command_and_the_refusals(made: Reader) -> None:
    assert RESULTS.command in made.text["pre"]
    assert any("A <Processor> & more" in text for text in made.text["dd"])
    assert f"sdpa refuses {SPECS[0]}: DistanceTable would be kept" in made.text["li"]


def test_the_page_and_the_titles_name_the_gpu(made: Reader) -> None:
    assert not {"GPU", "environment"} & set(made.text["dt"])
    machine = replace(
        RESULTS.machine,
        processor="A100",
        gpu={"capability": "8.0", "driver": "550"},
        environment={"TRITON_INTERPRET": "0"},
    )
    results = replace(RESULTS, machine=machine, settings=RESULTS.settings | {"device": "cuda"})
    facts = Reader(page.page(results)).text["dd"]
    assert "capability 8.0, driver 550" in facts
    assert "TRITON_INTERPRET=0" in facts
    assert words.title("decode", results).endswith(", cuda (A100)")
    assert words.title("decode", RESULTS).endswith(", 2 threads")


def test_the_page_says_when_the_run_was_interrupted_or_noisy(made: Reader) -> None:
    said = " ".join(made.text["p"])
    assert words.warning(RESULTS) in said
    assert "Interrupted: the rest was not measured" not in said
    assert "Interrupted: the rest was not measured" in " ".join(
        Reader(page.page(replace(RESULTS, finished=False))).text["p"]
    )


def test_without_plotly_the_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ImportError, match=r"pip install 'adapos\[bench\]'"):
        page.page(RESULTS)


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.01), (0.003, 0.0031), (1.0, 7.0), (0.02, 900.0), (1e-3, 1e6), (9.9, 10.1)]
)
def test_there_are_a_few_ticks_in_any_range(low: float, high: float) -> None:
    inside = [tick for tick in plots.ticks(low, high) if low / 1.25 <= tick <= high * 1.25]
    assert 1 <= len(inside) <= 10


def test_numbers_have_three_digits_that_matter() -> None:
    assert [numbers.number(x) for x in (0.01234, 0.1234, 1.234, 9.999, 12.34, 123.4, 12345.6)] == [
        "0.0123",
        "0.123",
        "1.23",
        "10.0",
        "12.3",
        "123",
        "12,346",
    ]
    assert [numbers.large(x) for x in (7, 1500, 2.5e9, 3e16)] == ["7", "1.50 k", "2.50 G", "30.0 P"]
    assert [numbers.share(x) for x in (None, 0.004, 0.254, 1.2)] == ["", "0.4 %", "25 %", "120 %"]
