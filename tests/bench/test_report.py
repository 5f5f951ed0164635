"""The report: its verdicts, answers, tables and figures, against the rows they come from."""

import ast
import csv
import io
import json
import math
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import runs
from rich.console import Console

from adapos.bench import report
from adapos.bench.report import charts, figures, screen, statistics, tables, words
from adapos.bench.report.results import Comparison, Results, current, load
from adapos.bench.rows import Row

SOURCE = Path(report.__file__).parents[3]


def perplexities(values: dict[str, Sequence[float]], length: int = 512, **given: Any) -> list[Row]:
    return [
        runs.row(encoding, seed, "perplexity", value, length, **given)
        for encoding, row in values.items()
        for seed, value in enumerate(row)
    ]


def of(found: list[Row], **given: Any) -> Results:
    encodings = list(dict.fromkeys(row.encoding for row in found))
    return Results(runs.plan(**{"encodings": encodings, "seeds": sorted({row.seed for row in found})} | given), found)


def only(found: list[Row], **given: Any) -> Comparison:
    (comparison,) = of(found, **given).comparisons
    return comparison


@pytest.fixture(scope="module")
def whole() -> Results:
    return Results(runs.plan(), runs.whole())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = runs.folder(tmp_path_factory.mktemp("run"), runs.whole())
    report.write(folder)
    return folder


def test_the_report_imports_no_torch() -> None:
    waiting, seen = [Path(report.__file__).parent / "__init__.py", *Path(report.__file__).parent.glob("*.py")], set()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            assert not [name for name in names if name.split(".")[0] == "torch"], file
            for name in names:
                path = SOURCE / Path(*name.split("."))
                # the package itself loads torch for its public names
                if name != "adapos" and name.startswith("adapos"):
                    waiting += [each for each in (path.with_suffix(".py"), path / "__init__.py") if each.exists()]
    assert {"statistics.py", "rows.py", "files.py", "html.py", "plots.py"} <= {file.name for file in seen}


def test_means_and_spreads_are_those_of_the_rows(whole: Results) -> None:
    comparison = whole.comparisons[0]
    for (encoding, length), score in comparison.scores.items():
        held = [row.value for row in comparison.rows if (row.encoding, row.length) == (encoding, length)]
        if all(map(math.isfinite, held)):
            assert score.mean == pytest.approx(np.mean(held))
            assert score.spread == pytest.approx(np.std(held, ddof=1))


def test_a_score_on_a_grid_weighs_each_cell_by_its_count() -> None:
    given = {"task": "passkey", "protocol": "exam"}
    found = [
        runs.row("rope", 0, "accuracy", 1.0, n=30, marks={"depth": 0.0}, **given),
        runs.row("rope", 0, "accuracy", 0.0, n=10, marks={"depth": 1.0}, **given),
    ]
    assert only(found).scores["rope", 512].mean == 0.75


def test_a_verdict_is_of_logarithms_paired_by_seed() -> None:
    base, other = [20.0, 22.0, 25.0], [19.0, 20.8, 23.9]
    comparison = only(perplexities({"rope": base, "fire": other}))
    verdict = comparison.verdicts["fire", 512]
    apart = [math.log(x / y) for x, y in zip(other, base, strict=True)]
    assert verdict.chance == pytest.approx(statistics.paired(apart))
    assert (verdict.word, verdict.pairs, verdict.corrected) == ("better", 3, verdict.chance)
    # unpaired, the seeds differ far more than the encodings
    assert words.tested(comparison.measure, verdict) == f"\N{MINUS SIGN}5.0 %, p = {verdict.chance:.2g}"


def test_seeds_are_paired_by_their_number_and_not_by_their_order() -> None:
    found = perplexities({"rope": [20.0, 30.0, 40.0], "fire": [19.0, 28.5, 38.0]})
    shuffled = [found[0], found[2], found[1], *found[:2:-1]]
    for rows in (found, shuffled):
        assert only(rows).verdicts["fire", 512].difference == pytest.approx(math.log(0.95))


def test_more_is_better_for_accuracy_and_less_for_perplexity() -> None:
    values = {"rope": [0.5, 0.52, 0.51], "fire": [0.7, 0.72, 0.72], "cope": [0.3, 0.32, 0.32]}
    rows = perplexities(values)
    exams = [replace(row, metric="accuracy", protocol="exam", n=64) for row in rows]
    assert [only(rows).verdicts[name, 512].word for name in ("fire", "cope")] == ["worse", "better"]
    assert [only(exams).verdicts[name, 512].word for name in ("fire", "cope")] == ["better", "worse"]
    assert (only(rows).best(512), only(exams).best(512)) == (["cope"], ["fire"])


def test_many_comparisons_make_each_of_them_harder() -> None:
    values = {"rope": [20.0, 20.2, 20.4], "fire": [19.8, 20.02, 20.19]}
    alone = only(perplexities(values)).verdicts["fire", 512]
    assert alone.word == "better"
    values |= {f"other{i}": [20.0 + i, 20.0 - i, 20.5] for i in range(1, 13)}
    among = only(perplexities(values)).verdicts["fire", 512]
    assert among.chance == alone.chance
    assert among.corrected == pytest.approx(13 * (alone.chance or 0))
    assert only(perplexities(values), significance=0.02).verdicts["fire", 512].word == "not significant"
    assert only(perplexities(values), significance=0.03).verdicts["fire", 512].word == "better"


def test_significance_is_the_plans() -> None:
    rows = perplexities({"rope": [20.0, 20.2, 20.4], "fire": [19.8, 20.02, 20.19]})
    assert only(rows, significance=1e-6).verdicts["fire", 512].word == "not significant"


def test_too_few_seeds_says_how_many_are_needed() -> None:
    verdict = only(perplexities({"rope": [20.0], "fire": [19.0]})).verdicts["fire", 512]
    assert words.verdict(verdict) == "too few seeds: 1 of 3 needed"
    assert verdict.corrected is None
    assert "run once" in words.caution(of(perplexities({"rope": [20.0], "fire": [19.0]})))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_diverged_is_said_and_neither_tested_nor_best(value: float) -> None:
    rows = perplexities({"rope": [20.0, 21.0], "fire": [1.0, value], "cope": [19.0, 20.0]})
    comparison = only(rows)
    assert comparison.verdicts["fire", 512].word == "diverged"
    assert words.mean(comparison.measure, comparison.scores["fire", 512]) == "diverged (1 of 2 seeds)"
    assert comparison.best(512) == ["cope"]
    assert words.diverged(comparison) == ["fire diverged at 512"]
    against = only(rows, baseline="fire")
    assert {verdict.word for verdict in against.verdicts.values()} == {"baseline diverged"}


def test_without_a_baseline_nothing_is_tested() -> None:
    results = of(perplexities({"rope": [20.0, 21.0, 22.0], "fire": [19.0, 20.0, 21.0]}), baseline=None)
    assert results.comparisons[0].verdicts == {}
    assert "No baseline" in words.caution(results)


def test_an_order_that_may_be_chance_is_called_so() -> None:
    near = of(perplexities({"rope": [20.0, 21.0, 22.0], "fire": [20.5, 20.5, 21.9]}))
    assert words.caution(near) == "No difference from rope is significant: the order may be chance."
    apart = of(perplexities({"rope": [20.0, 20.2, 20.4], "fire": [19.0, 19.21, 19.39]}))
    assert words.caution(apart) == ""


def choice(speeds: dict[str, list[float]], values: dict[int, dict[str, float]]) -> list[str]:
    rows = [row for length, each in values.items() for row in perplexities({k: [v] for k, v in each.items()}, length)]
    rows += [row for name, each in speeds.items() for row in runs.side_by_side(name, each)]
    results = of(rows)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in words.answers(results.comparisons[0], results)]


def test_answers_name_the_best_and_the_cheapest_near_it_by_ranges_of_lengths() -> None:
    speeds = {"rope": [300.0, 330.0, 150.0], "fire": [200.0, 201.0, 99.0], "cope": [100.0, 110.0, 60.0]}
    near, far = {"rope": 20.1, "fire": 30.0, "cope": 20.0}, {"rope": 90.0, "fire": 21.0, "cope": 25.0}
    assert choice(speeds, {64: near, 128: near, 256: far}) == [
        "Lengths 64 to 128: cope is best (perplexity 20.00); the cheapest within 1 % is rope, which trains "
        "3.00 times as fast.",
        "Length 256: fire is best (perplexity 21.00), and none within 1 % of it is measurably cheaper.",
    ]


def test_what_is_not_faster_in_every_round_is_not_called_cheaper() -> None:
    values = {64: {"rope": 20.1, "fire": 20.1, "cope": 20.0}}
    noisy = {"rope": [130.0, 99.0, 140.0], "fire": [90.0, 91.0, 92.0], "cope": [100.0, 100.0, 101.0]}
    assert choice(noisy, values) == [
        "Length 64: cope is best (perplexity 20.00), and none within 1 % of it is measurably cheaper."
    ]
    tied = {"rope": [130.0, 119.0, 140.0], "fire": [120.0, 121.0, 125.0], "cope": [100.0, 100.0, 100.0]}
    assert choice(tied, values) == [
        "Length 64: cope is best (perplexity 20.00); the cheapest within 1 % are rope and fire, which train 1.21 to "
        "1.30 times as fast."
    ]


def test_who_is_cheaper_is_asked_of_every_pair() -> None:
    values = {64: {"rope": 20.1, "fire": 20.0, "cope": 20.1}}
    fast, best = [10.0, 10.0, 10.0, 1.0, 1.0], [8.0] * 5
    assert choice({"rope": fast, "fire": best, "cope": [9.0] * 5}, values) == [
        "Length 64: fire is best (perplexity 20.00); the cheapest within 1 % is cope, which trains 1.12 times as fast."
    ]
    assert choice({"rope": [10.0] * 5, "fire": [9.0] * 5, "cope": [5.0, 5.0, 5.0, 5.0, 11.0]}, values) == [
        "Length 64: fire is best (perplexity 20.00); the cheapest within 1 % is rope, which trains 1.11 times as fast."
    ]
    little = {"rope": [1.02, 1.02, 1.02], "fire": [1.0, 1.0, 1.0], "cope": [1.0, 1.0, 1.0]}
    assert choice(little, values)[0].endswith("and none within 1 % of it is measurably cheaper.")


def test_a_reading_that_is_not_whole_does_not_hide_one_that_is() -> None:
    rows = perplexities({"rope": [20.0], "fire": [21.0]})
    more = [replace(row, protocol="last 64 of 4 x 2048", value=99.0) for row in rows]
    assert {row.value for row in current([*rows, more[0]])} == {20.0, 21.0}
    assert {row.value for row in current([*rows, *more])} == {99.0}
    assert {row.value for row in current([*more, *rows])} == {20.0, 21.0}


def test_the_best_is_one_of_those_that_were_trained_as_often() -> None:
    rows = perplexities({"rope": [20.0], "fire": [21.0, 22.0, 23.0], "cope": [22.0, 23.0, 24.0]})
    results = of(rows)
    assert results.comparisons[0].best(512) == ["fire"]
    console = Console(width=110, file=io.StringIO())
    console.print(screen.shown(results))
    assert "rope: 1 of 3 seeds at length 512" in console.file.getvalue()  # type: ignore[attr-defined]


def test_fewer_stretches_than_asked_for_are_named() -> None:
    rows = [replace(row, protocol="last 64 of 2 x 512") for row in perplexities({"rope": [20.0]})]
    results = Results(runs.plan(examples=4), rows)
    assert words.fewer(results.comparisons[0], results) == [
        "The test part holds 2 stretches of 512 tokens, fewer than the 4 asked for."
    ]


def test_one_encoding_is_not_called_the_best() -> None:
    assert choice({}, {64: {"rope": 20.1}}) == ["Length 64: rope has perplexity 20.10."]


def test_answers_without_costs_leave_the_cheapest_out() -> None:
    assert choice({"rope": [300.0]}, {64: {"rope": 20.1, "cope": 20.0}}) == [
        "Length 64: cope is best (perplexity 20.00)."
    ]


def test_answers_say_ties_and_failures_of_all() -> None:
    speeds = {"rope": [300.0], "cope": [100.0]}
    tied, lost = {"rope": 20.0, "cope": 20.0}, {"rope": math.nan, "cope": math.inf}
    assert choice(speeds, {64: tied, 128: lost}) == [
        "Length 64: rope and cope are equally good (perplexity 20.00), and rope is the cheapest of them.",
        "Length 128: every encoding diverged.",
    ]
    nothing = of([replace(row, metric="exact", protocol="exam") for row in perplexities({"rope": [0.0]})])
    assert words.answers(nothing.comparisons[0], nothing) == ["Length 512: no encoding gets any right."]


def test_encodings_that_do_not_adapt_are_named(whole: Results) -> None:
    assert words.like_their_base(whole) == ["tape(form='additive')"]
    assert words.adaptation(whole).startswith("tape(form='additive') behaves like its base")
    row = runs.row("cope", 0, "adaptive_share", math.nan, protocol="adaptation", marks={"layer": 0.0})
    assert words.like_their_base(of([row])) == []
    one_layer = [replace(row, value=value, marks={"layer": at}) for at, value in enumerate((0.02, 0.001))]
    assert words.like_their_base(of(one_layer)) == []


def test_failures_say_who_where_and_why(whole: Results) -> None:
    assert words.failures(whole) == [
        "alibi, seed 1 at length 8,192 (alibi-1-0f3a91c2): alibi: 8192 tokens are too many for this machine",
        "tape(form='additive'), seed 2 (tape-form-additive--2-0f3a91c2): the loss was NaN at step 812; <lower> the "
        "rate & try again",
    ]
    assert "tape(form='additive'): 2 of 3 seeds at lengths 128 to 8,192" in words.incomplete(
        whole.comparisons[0], whole
    )


def test_the_csv_has_the_numbers_of_the_rows(written: Path, whole: Results) -> None:
    lines = list(csv.DictReader(io.StringIO((written / "tables" / "text-perplexity-last-64.csv").read_text())))
    comparison = whole.comparisons[0]
    assert len(lines) == len(comparison.scores)
    for line in lines:
        place = line["encoding"], int(line["length"])
        score = comparison.scores[place]
        assert float(line["mean"]) == score.mean or score.diverged == int(line["diverged"]) > 0
        assert line["verdict"] == (comparison.verdicts[place].word if place in comparison.verdicts else "")
    costs = list(csv.DictReader(io.StringIO((written / "tables" / "cost.csv").read_text())))
    assert [line["encoding"] for line in costs] == list(runs.ENCODINGS)
    speeds = [row.value for row in whole.rows if (row.encoding, row.protocol) == ("kerple", "side by side")]
    assert float(costs[2]["tokens_per_second"]) == pytest.approx(np.median(speeds))


def test_markdown_and_latex_have_a_line_for_each_encoding_and_a_column_for_each_length(written: Path) -> None:
    stem = written / "tables" / "text-perplexity-last-64"
    marked = [
        line.split("|")[1:-1] for line in stem.with_suffix(".md").read_text().splitlines() if line.startswith("|")
    ]
    assert {len(line) for line in marked} == {1 + len(runs.LENGTHS)}
    assert [line[0].strip() for line in marked[2:]] == list(runs.ENCODINGS)
    assert marked[5][1].strip().startswith("**27.45** ± ")
    text = stem.with_suffix(".tex").read_text()
    body = text.partition("\\midrule\n")[2].partition("    \\bottomrule")[0].splitlines()
    assert [line.count("&") for line in body] == [len(runs.LENGTHS)] * len(runs.ENCODINGS)
    assert body[3].strip().startswith(r"kerple + dape(kernel=3) & \textbf{27.45} $\pm$ ")
    assert all(line.endswith(r"\\") for line in body)
    assert text.count("{") == text.count("}")


def test_names_are_escaped_in_every_kind_of_table() -> None:
    name = r"a_b|c & 50% <x> \d{1} *e*"
    found = tables.files(of(perplexities({name: [20.0, 21.0]}), baseline=None))
    assert (
        r"a\_b\textbar{}c \& 50\% \textless{}x\textgreater{} \textbackslash{}d\{1\}"
        in found["text-perplexity-last-64.tex"]
    )
    assert r"a\_b\|c & 50% \<x\> \\d\{1\} \*e\*" in found["text-perplexity-last-64.md"]
    assert next(csv.DictReader(io.StringIO(found["text-perplexity-last-64.csv"])))["encoding"] == name


@pytest.mark.parametrize("found", [runs.whole(), runs.many()], ids=["whole", "many"])
def test_figures_are_valid_vector_text_with_every_encoding_inside(found: list[Row]) -> None:
    results = of(found, baseline=None)
    drawn = figures.files(results)
    gridded = [each for each in results.comparisons if any(row.marks for row in each.rows)]
    assert len(drawn) == len(results.comparisons) + len(gridded)
    for name, text in drawn.items():
        root = ElementTree.fromstring(text)
        said = {each.text for each in root.iter("{http://www.w3.org/2000/svg}text")}
        assert {row.encoding for row in found} <= said
        assert ("trained" in said) == (not name.endswith("-by-place.svg"))
        assert "nan" not in text
        assert "inf" not in text
        width, height = float(root.attrib["width"]), float(root.attrib["height"])
        for each in root.iter():
            for name, most in (("x", width), ("cx", width), ("y", height), ("cy", height)):
                assert 0 <= float(each.attrib.get(name, 0)) <= most


def test_a_heat_map_shades_every_place_by_its_mean() -> None:
    rows = [
        replace(row, marks={"depth": depth})
        for depth, share in ((0.0, 0.0), (1.0, 1.0))
        for row in [runs.row("rope", 0, "exact", share, 64)]
    ]
    root = ElementTree.fromstring(figures.heat_maps(only(rows, baseline=None)))
    cells = [each for each in root.iter("{http://www.w3.org/2000/svg}rect") if len(each)]
    assert [(each.attrib["fill"], each[0].text) for each in cells] == [
        ("#00224e", "length 64, depth 0: 0.00"),
        ("#fee838", "length 64, depth 1: 1.00"),
    ]
    assert figures.shade(("#000000", "#ff0000", "#ffffff"), 0.75) == "#ff8080"
    assert figures.heat_maps(only(perplexities({"rope": [20.0]}), baseline=None)) == ""


def test_a_curve_breaks_where_it_diverged_and_its_band_spans_the_seeds() -> None:
    rows = [
        *perplexities({"rope": [20.0, 22.0]}, 64),
        *perplexities({"rope": [math.inf, 22.0]}, 128),
        *perplexities({"rope": [30.0, 33.0]}, 256),
    ]
    root = ElementTree.fromstring(figures.curves(only(rows, baseline=None)))
    lines = list(root.iter("{http://www.w3.org/2000/svg}polyline"))
    assert [len(each.attrib["points"].split()) for each in lines] == [1, 1]
    band = next(root.iter("{http://www.w3.org/2000/svg}polygon")).attrib["points"].split()
    (_, high), (_, low) = (tuple(map(float, point.split(","))) for point in band)
    (_, mean) = map(float, lines[0].attrib["points"].split(","))
    assert high < mean < low


def test_everything_is_written_and_nothing_half(written: Path) -> None:
    names = {str(path.relative_to(written)) for path in written.rglob("*") if path.is_file()}
    kinds = {"text-perplexity-last-64", "text-bits_per_byte-last-64", "addition-exact-exam"}
    kinds.add("passkey-digits-5-accuracy-exam")
    expected = {f"tables/{name}.{ending}" for name in (*kinds, "cost") for ending in ("csv", "md", "tex")}
    expected |= {f"figures/{name}.svg" for name in kinds} | {"report.html", "plan.json", "rows.jsonl"}
    expected |= {f"figures/{name}-by-place.svg" for name in kinds if not name.startswith("text")}
    assert names == expected


def test_the_terminal_shows_the_answer_and_the_table(written: Path) -> None:
    console = Console(width=110, file=io.StringIO())
    console.print(report.terminal(written))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "kerple + dape(kernel=3) is best (perplexity 20.60 to 27.45)" in said
    assert re.search(r"^rope +28.40 +26.14 +24.04 ", said, re.MULTILINE)
    assert "diverged" in said
    assert "failed: alibi, seed 1 at length 8,192" in said


def test_a_cost_of_zero_was_not_measured_and_is_not_drawn() -> None:
    rows = perplexities({"rope": [20.0], "fire": [19.0]})
    rows += [runs.row(name, 0, "peak_bytes", 0.0, protocol="training") for name in ("rope", "fire")]
    results = of([*rows, runs.row("rope", 0, "tokens_per_second", 100.0, protocol="training")])
    chart = charts.cost(results)
    assert chart is not None
    assert chart.controls["cost"] == ["tokens a second in training"]
    assert [line["name"] for line in chart.figure["choices"]["0 0"]["data"]] == ["rope"]


def test_the_plans_own_task_comes_first() -> None:
    rows = perplexities({"rope": [20.0]}, task="other") + perplexities({"rope": [20.0]})
    assert [each.measure.task for each in of(rows).comparisons] == ["text", "other"]


def test_a_folder_without_a_plan_or_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no plan.json; `adapos compare --out .*` makes one"):
        report.write(tmp_path)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(ValueError, match=r"plan.json cannot be read as a plan: "):
        report.write(tmp_path)
    (tmp_path / "plan.json").write_text('{"baseline": null, "size": "1m"}')
    with pytest.raises(ValueError, match=r"must say what no row says, and lacks batch, command; make it again"):
        report.write(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(runs.plan()))
    with pytest.raises(ValueError, match=r"holds no results in rows.jsonl; `adapos compare --out .*` makes them"):
        report.write(tmp_path)


def test_a_place_for_tables_that_is_a_file_is_refused(tmp_path: Path) -> None:
    runs.folder(tmp_path, perplexities({"rope": [20.0]}))
    (tmp_path / "tables").write_text("")
    with pytest.raises(
        ValueError, match=r"tables must be a folder, and cannot be made one: File exists; choose another"
    ):
        report.write(tmp_path)


def test_what_rows_say_need_not_be_in_the_plan(tmp_path: Path) -> None:
    runs.folder(tmp_path, perplexities({"rope": [20.0, 21.0], "fire": [19.0, 20.0]}))
    plan = runs.plan()
    for name in ("task", "encodings", "seeds", "train_length", "lengths", "protocol", "steps", "significance"):
        del plan[name]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    results = load(tmp_path)
    assert (results.encodings, results.seeds, results.significance) == (["rope", "fire"], [0, 1], 0.05)
    assert report.write(tmp_path) == tmp_path / "report.html"


def test_without_plotly_tables_and_figures_are_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    runs.folder(tmp_path, perplexities({"rope": [20.0]}))
    with pytest.raises(ImportError, match=r"pip install 'adapos\[bench\]'"):
        report.write(tmp_path)
    assert (tmp_path / "tables" / "cost.csv").exists()
    assert (tmp_path / "figures" / "text-perplexity-last-64.svg").exists()


def test_ten_thousand_rows_take_a_few_seconds(tmp_path: Path) -> None:
    rows = [
        runs.row("rope" if at % 2 else "fire", seed, "loss", 3.0, protocol="position", marks={"position": float(at)})
        for at in range(2500)
        for seed in range(4)
    ]
    runs.folder(tmp_path, rows + perplexities({"rope": [20.0], "fire": [19.0]}))
    began = time.process_time()
    report.write(tmp_path)
    assert time.process_time() - began < 5
