"""The page of the report: whole in itself, with every number, and nothing of what was measured taken for markup."""

import json
import math

import pytest
import runs

from adapos import html
from adapos.bench.report import page, words
from adapos.bench.report.results import Results
from pages import Reader

EVIL = "</script><script>alert(1)</script> & <b>bold</b> \"'"


WHOLE = Results(runs.plan(), runs.whole())


@pytest.fixture(scope="module")
def text() -> str:
    return page.page(WHOLE)


@pytest.fixture(scope="module")
def made(text: str) -> Reader:
    return Reader(text)


def test_the_page_asks_nothing_of_the_network(text: str, made: Reader) -> None:
    from plotly.offline import get_plotlyjs

    own = text.replace(get_plotlyjs(), "")
    assert len(own) < len(text) / 2
    assert "http" not in own
    assert "//" not in own.replace("// ", "")
    assert not [tag for tag, _ in made.tags if tag in ("link", "iframe", "img", "object", "embed", "base")]
    assert not [given for _, given in made.tags if {"src", "href", "srcset", "action"} & set(given)]
    assert "url(" not in html.STYLE + page.STYLE


def test_every_figure_has_its_place_and_every_place_its_figure(made: Reader) -> None:
    places = [given["id"] for tag, given in made.tags if tag == "div" and given.get("class") == "plot"]
    assert sorted(made.figures) == sorted(places)
    grids = [name for name in places if "-grid-" in name]
    assert len(grids) == 2 * len(runs.ENCODINGS)
    assert {"text-perplexity-last-64-curves", "cost", "loss", "adaptive_share", "adaptive_variation"} <= set(places)


def test_every_choice_of_the_controls_has_a_figure(made: Reader) -> None:
    selects = [given["data-of"] for tag, given in made.tags if tag == "select"]
    assert selects == ["cost", "cost", "loss", "adaptive_share", "adaptive_variation"]
    lengths = sum(len(each.lengths) for each in WHOLE.comparisons)
    assert set(made.figures["cost"]["choices"]) == {f"{i} {j}" for i in range(lengths) for j in range(2)}


def test_the_answer_stands_first(text: str) -> None:
    body = text.partition("<body>")[2]
    answer = words.answers(WHOLE.comparisons[0], WHOLE)[0]
    assert body.index("<h1>") < body.index(answer) < body.index("<h2>")


def test_axes_fit_the_metric_and_hold_the_points(made: Reader) -> None:
    perplexity = made.figures["text-perplexity-last-64-curves"]
    layout = perplexity["layout"]
    assert (layout["xaxis"]["type"], layout["yaxis"]["type"]) == ("log", "log")
    low, high = layout["yaxis"]["range"]
    values = [y for line in perplexity["data"] for y in line["y"] if y is not None]
    assert low < math.log10(min(values)) <= math.log10(max(values)) < high
    accuracy = made.figures["passkey-digits-5-accuracy-exam-curves"]["layout"]["yaxis"]
    assert (accuracy["type"], accuracy["range"]) == ("linear", [-0.03, 1.03])
    assert layout["shapes"][0]["x0"] == runs.TRAINED


def test_what_diverged_is_a_hole_in_its_line_and_a_word_in_the_table(made: Reader) -> None:
    lines = {line.get("name"): line for line in made.figures["text-perplexity-last-64-curves"]["data"]}
    assert lines["learned(longest=2048)"]["y"][-2:] == [None, None]
    assert made.text["td"].count("diverged") == 4  # of perplexity and of bits a byte
    assert "learned(longest=2048) diverged at 4,096 and 8,192" in made.text["li"]


def test_an_enormous_perplexity_does_not_flatten_the_others() -> None:
    rows = [runs.row("rope", 0, "perplexity", 20.0), runs.row("fire", 0, "perplexity", 1e200)]
    figure = Reader(page.page(Results(runs.plan(), rows))).figures["text-perplexity-last-64-curves"]
    low, high = figure["layout"]["yaxis"]["range"]
    assert high - low < 6


def test_bands_span_the_seeds_and_one_seed_has_none(made: Reader) -> None:
    data = made.figures["text-perplexity-last-64-curves"]["data"]
    band = next(line for line in data if line.get("fill") == "toself")
    held = sorted(
        row.value for row in WHOLE.rows if (row.encoding, row.metric, row.length) == ("rope", "perplexity", 128)
    )
    assert (band["y"][-1], band["y"][0]) == (held[0], held[-1])
    single = Reader(page.page(Results(runs.plan(seeds=[0]), runs.many()))).figures["text-perplexity-last-64-curves"]
    assert not [line for line in single["data"] if "fill" in line]


def test_grids_hold_the_means_of_their_places(made: Reader) -> None:
    heat = made.figures["passkey-digits-5-accuracy-exam-grid-0"]["data"][0]
    assert (heat["x"], heat["y"]) == (["256", "512", "1,024", "2,048", "4,096"], ["0", "0.25", "0.5", "0.75", "1"])
    held = [row.value for row in WHOLE.rows if (row.encoding, row.length, row.marks) == ("rope", 2048, {"depth": 0.75})]
    assert len(held) == 3
    assert heat["z"][3][3] == pytest.approx(sum(held) / 3)
    held = [row.value for row in WHOLE.rows if (row.encoding, row.length, row.marks) == ("rope", 2048, {"depth": 0.5})]
    assert heat["z"][2][3] == pytest.approx(sum(held) / 3)


def test_a_grid_of_many_digits_is_told_by_the_stretches_between_lengths(made: Reader) -> None:
    heat = made.figures["addition-exact-exam-grid-0"]["data"][0]
    assert heat["x"] == heat["y"] == ["1–5", "6–10", "11–20", "21–40"]  # noqa: RUF001
    held = [
        row.value
        for row in WHOLE.rows
        if (row.encoding, row.task) == ("rope", "addition")
        and 10 < row.marks["first"] <= 20
        and 20 < row.marks["second"] <= 40
    ]
    assert len(held) > 2
    assert heat["z"][3][2] == pytest.approx(sum(held) / len(held))
    assert heat["z"][3][1] is None


def test_loss_by_position_is_the_mean_over_seeds_and_not_the_loss_of_training(made: Reader) -> None:
    line = made.figures["loss"]["choices"]["0"]["data"][0]
    assert (line["name"], line["x"][:3]) == ("rope", [1, 4, 16])
    held = [row.value for row in WHOLE.rows if row.encoding == "rope" and row.marks == {"position": 15.0}]
    assert line["y"][2] == pytest.approx(sum(held) / len(held))


def test_failures_jumps_parameters_and_settings_are_named(made: Reader, text: str) -> None:
    assert any("the loss was NaN at step 812; <lower> the rate & try again" in said for said in made.text["li"])
    assert any("the loss jumped at step 77" in said for said in made.text["li"])
    assert runs.plan()["command"] in made.text["pre"]
    for fact in ("f03249201bc", "10m", "4000", "text, version 3; addition, version 1; passkey(digits=5), version 3"):
        assert fact in made.text["dd"]
    assert "10,400,000" in made.text["td"]
    assert "not significant" in text


def test_words_are_never_taken_for_markup() -> None:
    rows = [row for row in runs.whole() if row.encoding in ("rope", "kerple + dape(kernel=3)")]
    rows = [
        type(row)(**{**vars(row), "encoding": EVIL if row.encoding != "rope" else "rope", "task": EVIL, "note": EVIL})
        for row in rows
    ]
    given = {"encodings": [EVIL, "rope"], "task": EVIL, "command": EVIL, "size": EVIL}
    made = Reader(page.page(Results(runs.plan(**given), rows)))
    assert len([tag for tag, _ in made.tags if tag == "script"]) == 3
    assert EVIL in made.text["span"]
    assert EVIL in "".join(made.text["td"])
    assert EVIL in made.text["pre"]
    bold = "".join(made.text.get("b", ()))
    assert "bold" not in bold
    names = {line.get("name") for figure in made.figures.values() for line in figure.get("data", ())}
    # plotly reads tags, and shows these as they are
    assert html.plain(EVIL) in names
    assert not [name for name in names if name and "<" in name]


def test_data_in_a_page_cannot_end_its_script() -> None:
    assert "<" not in html.held({"name": EVIL})
    assert json.loads(html.held({"name": EVIL})) == {"name": EVIL}


def test_a_run_in_which_all_failed_has_a_page_that_says_so() -> None:
    rows = [runs.row("rope", 0, "failed", 1.0, protocol="training", parameters=0, note="out of memory")]
    made = Reader(page.page(Results(runs.plan(encodings=["rope"], lengths=[]), rows)))
    assert any("No encoding has been measured" in said for said in made.text["p"])
    assert any("out of memory" in said for said in made.text["li"])
