"""`adapos profile` as a user meets it."""

import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from adapos import cli
from adapos.profile import machine, measure, page, rows, work
from adapos.profile.plan import PLAIN, Plan
from adapos.profile.rows import Results

TINY = ["--lengths", "16,32", "--heads", "2", "--head-width", "8", "--repeats", "2", "--threads", "1", "--no-memory"]
SPECS = ["rope", "kerple + dape(kernel=3)", "tape"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, 80 columns, and a machine whose peak is quick to measure."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr(machine, "SIDE", 64)
    monkeypatch.setattr(machine, "COPIED", 2**16)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["profile", *TINY, *arguments])


def test_it_prints_a_table_for_each_measurement_and_saves_three_files(place: Path) -> None:
    result = run("--encodings", ", ".join(SPECS))
    assert result.exit_code == 0, result.output
    titles = [line for line in result.stdout.splitlines() if line.startswith(("forward:", "training:", "decode:"))]
    assert [title.split(":")[0] for title in titles] == ["forward", "training", "decode"]
    assert "sdpa refuses kerple + dape(kernel=3): HeadMix reads scores" in " ".join(result.stdout.split())
    assert "saved in profile: profile.json, profile.csv, profile.html" in result.stdout
    assert sorted(path.name for path in (place / "profile").iterdir()) == [
        "profile.csv",
        "profile.html",
        "profile.json",
    ]
    results = rows.Results.from_json((place / "profile" / "profile.json").read_text())
    assert results.finished
    assert [(row.what, row.length, row.encoding) for row in results.rows] == [
        (what, length, spec)
        for what in ("forward", "training", "decode")
        for length in (16, 32)
        for spec in (PLAIN, *SPECS)
    ]
    assert rows.rows_of_csv((place / "profile" / "profile.csv").read_text()) == results.rows


def test_what_is_piped_is_plain_and_fits_80_columns() -> None:
    result = run("--encodings", "tape(form='additive') + dape(kernel=3)", "--what", "forward,decode")
    assert "\x1b" not in result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "encoding" in result.stdout


def test_a_model_says_its_parameters_and_tokens_a_second() -> None:
    result = run("--what", "model", "--encodings", "rope", "--lengths", "8", "--size", "10m")
    assert result.exit_code == 0, result.output
    assert "10.4 M parameters" in " ".join(result.stdout.split())
    assert "tokens/s" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_an_encoding_that_cannot_run_is_said_and_the_others_are_measured() -> None:
    result = run("--encodings", "learned(longest=20), rope", "--what", "forward")
    assert result.exit_code == 0
    assert "learned(longest=20) at 32 tokens: learned: position 31 is past the table of 20" in " ".join(
        result.stdout.split()
    )
    assert result.stdout.count("not run") == 1


def test_where_no_encoding_can_run_it_says_why_and_ends_with_2_and_an_earlier_profile_stays(place: Path) -> None:
    assert run("--encodings", "rope", "--what", "forward").exit_code == 0
    earlier = (place / "profile" / "profile.json").read_bytes()
    result = run("--encodings", "alibi, kerple + dape", "--what", "training", "--backend", "sdpa")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: no encoding could run (alibi at 16, 32 tokens: backend 'sdpa' cannot run this call: DistanceTable "
        "would be kept for the backward pass, in memory quadratic in length; choose another, or 'auto'; 1 more above)\n"
    )
    assert result.stdout.count(" not run") == 4
    assert "saved" not in result.stdout
    assert (place / "profile" / "profile.json").read_bytes() == earlier
    alone = run("--encodings", "learned(longest=4)", "--what", "forward", "--lengths", "16")
    assert alone.exit_code == 2
    assert alone.stderr.startswith(
        "error: no encoding could run (learned(longest=4) at 16 tokens: learned: position 15"
    )
    assert "more above" not in alone.stderr


def test_what_broke_is_warned_of_and_the_rest_is_measured(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = work.attention

    def attention(plan: Plan, what: str, spec: str, length: int) -> work.Work:
        if spec == "alibi":
            raise KeyError("a kernel")
        return real(plan, what, spec, length)

    monkeypatch.setattr(work, "attention", attention)
    monkeypatch.setattr(measure, "NOISE", 1e9)
    result = run("--encodings", "alibi, rope", "--what", "forward")
    assert result.exit_code == 0
    assert result.stderr == (
        "warning: 2 of 6 measurements failed; the notes below the tables say why, and profile.json has their "
        "tracebacks\n"
    )
    assert "alibi at 16, 32 tokens: KeyError: 'a kernel'" in result.stdout
    failures = json.loads((place / "profile" / "profile.json").read_text())["failures"]
    assert list(failures) == ["forward, 16 tokens: alibi", "forward, 32 tokens: alibi"]
    assert all("in attention" in trace for trace in failures.values())


def test_a_lost_gpu_ends_the_run_with_what_took_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, running = work.attention, [True]

    def attention(plan: Plan, what: str, spec: str, length: int) -> work.Work:
        def once() -> None:
            if spec == "alibi" and length == 32:
                running[0] = False
            if not running[0]:
                raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

        return replace(real(plan, what, spec, length), once=once)

    monkeypatch.setattr(work, "attention", attention)
    monkeypatch.setattr(Plan, "on_gpu", True)
    monkeypatch.setattr(machine, "answers", lambda device: running[0])
    result = run("--encodings", "rope, alibi, kerple", "--what", "forward,training", "--repeats", "1")
    assert result.exit_code == 2
    assert result.stderr.endswith(
        "error: the GPU was lost, and the rest could not be measured (forward, 32 tokens: alibi: CUDA error: an "
        "illegal memory access was encountered)\n"
    )
    held = json.loads((place / "profile" / "profile.json").read_text())
    assert [row["encoding"] for row in held["rows"] if row["milliseconds"]] == ["plain", "rope", "alibi", "kerple"]
    assert list(held["failures"]) == ["forward, 32 tokens: alibi"]
    assert not held["finished"]
    page = (place / "profile" / "profile.html").read_text(encoding="utf-8")
    assert "The GPU was lost, and the rest could not be measured (forward, 32 tokens: alibi: CUDA error" in page
    assert "Interrupted: the rest" not in page


def test_a_profile_names_the_commit_that_made_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "commit", lambda: "0.1.0+0123456789")
    assert run("--encodings", "rope", "--what", "forward").exit_code == 0
    assert json.loads((place / "profile" / "profile.json").read_text())["machine"]["adapos"] == "0.1.0+0123456789"


def test_a_noisy_machine_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "NOISE", -1.0)
    result = run("--encodings", "rope, alibi", "--what", "forward")
    assert result.exit_code == 0
    assert result.stderr.startswith(
        "warning: 4 of 4 ratios spread over more than 15 %, or were timed once: the machine"
    )
    monkeypatch.setattr(measure, "NOISE", 1e9)
    assert run("--encodings", "rope", "--what", "forward").stderr == ""


def test_a_single_repeat_tells_nothing_of_the_noise_and_is_marked() -> None:
    result = run("--encodings", "rope", "--what", "forward", "--repeats", "1")
    assert result.exit_code == 0
    assert "] ?" in result.stdout
    assert result.stderr.startswith("warning: 2 of 2 ratios")


def test_a_narrow_terminal_cuts_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    result = run("--encodings", "kerple + dape(kernel=3)", "--what", "forward")
    assert "16 tokens" in result.stdout
    assert "dape(kernel=3)" in result.stdout
    assert "\u2026" not in result.stdout


def test_without_plotly_all_but_the_page_is_saved(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    monkeypatch.setattr(measure, "NOISE", 1e9)
    result = run("--encodings", "rope", "--what", "forward")
    assert result.exit_code == 0
    assert result.stderr == "warning: the page is not made without plotly: pip install 'adapos[bench]'\n"
    assert sorted(path.name for path in (place / "profile").iterdir()) == ["profile.csv", "profile.json"]
    assert "profile.html" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--encodings", "rope, kerpel"], "no encoding is called 'kerpel'; did you mean 'kerple'?"),
        (["--encodings", "dape(kernal=3)"], "dape has no parameter 'kernal'; did you mean 'kernel'?"),
        (["--encodings", "rope + tape"], "rope and tape both rotate queries and keys"),
        (["--lengths", "0"], "lengths must lie from 1 to 4194304, and 0 does not"),
        (["--lengths", "-4"], "lengths must lie from 1 to 4194304, and -4 does not"),
        (["--lengths", "64..16"], "lengths: '64..16' must rise; write 16..64"),
        (["--lengths", "long"], "lengths must be whole numbers such as 512,1000"),
        (["--what", "speed"], "what must be some of forward, training, decode, model, and 'speed' is none of them"),
        (["--kv-heads", "3"], "heads (2) must be a multiple of kv_heads (3)"),
        (["--backend", "fast"], "no backend is called 'fast'; there are auto, "),
        (
            ["--batch", str(2**20), "--head-width", str(2**16), "--lengths", "4194304", "--heads", str(2**16)],
            "a batch of",
        ),
        (["--size", "1b"], "profile: size must be one of '10m', '125m', '350m', not '1b'"),
        (["--device", "nowhere"], "device 'nowhere' is not available on this machine; try 'cpu'"),
        (["--device", "cudaa"], "no device is called 'cudaa'; did you mean 'cuda'?"),
        (["--device", "gpu:1"], "no device is called 'gpu:1'; did you mean 'cuda:1'?"),
        (["--out", ""], "out must name a folder, and '' names none; write . for this one"),
        (["--out", "taken"], "out (taken) must be a folder, and cannot be made one: File exists; choose another"),
    ],
)
def test_what_makes_no_sense_is_one_line_before_anything_is_measured(
    arguments: list[str], sentence: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "taken").write_text("")
    monkeypatch.setattr(measure, "begun", lambda *given: pytest.fail("something was measured"))
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {sentence}")
    assert not (place / "profile").exists()


@pytest.mark.parametrize(("option", "value"), [("--dtype", "int8"), ("--heads", "many"), ("--threads", "9" * 9)])
def test_values_that_no_option_can_have_end_with_2(option: str, value: str) -> None:
    result = run(option, value)
    assert result.exit_code == 2
    assert option in result.stderr


@pytest.fixture
def terminal() -> Iterator[None]:
    """One that may go away, though whoever runs the tests may have had hangups ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_saves_the_repeats_that_are_whole(
    number: signal.Signals, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def say(group: measure.Group, spec: str, about: str = "") -> None:
        said.append(f"{group.length} {spec}")
        # two to warm up and two repeats of two at 16 tokens; at 32 the last of all
        if len(said) == 12:
            signal.raise_signal(number)

    monkeypatch.setattr(measure.Group, "say", say)
    result = run("--encodings", "rope", "--what", "forward,decode")
    assert said[-1] == "32 rope"
    assert result.exit_code == 130
    assert result.stderr.endswith("interrupted: the rest was not measured\n")
    held = json.loads((place / "profile" / "profile.json").read_text())
    assert not held["finished"]
    assert [(row["length"], row["encoding"], len(row["ratios"])) for row in held["rows"]] == [
        (16, PLAIN, 2),
        (16, "rope", 2),
        (32, PLAIN, 1),
        (32, "rope", 1),
    ]
    assert (place / "profile" / "profile.html").exists()


@pytest.mark.usefixtures("terminal")
def test_a_run_that_ignores_hangups_goes_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    monkeypatch.setattr(measure.Group, "say", lambda *given: signal.raise_signal(signal.SIGHUP))
    assert run("--encodings", "rope", "--what", "forward").exit_code == 0
    assert json.loads((place / "profile" / "profile.json").read_text())["finished"]


def test_a_run_interrupted_at_once_leaves_an_earlier_profile_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--encodings", "rope", "--what", "forward").exit_code == 0
    before = (place / "profile" / "profile.json").read_text()

    def stop(*given: object) -> None:
        raise KeyboardInterrupt

    for at in ("begun", "maker"):
        with monkeypatch.context() as patch:
            patch.setattr(measure, at, stop)
            assert run("--encodings", "rope", "--what", "forward").exit_code == 130
            assert run("--encodings", "rope", "--what", "forward", "--out", "none").exit_code == 130
    assert (place / "profile" / "profile.json").read_text() == before
    assert not (place / "none").exists()


def interrupted(monkeypatch: pytest.MonkeyPatch, encoding: str) -> Result:
    """A run that Ctrl-C ends at the second of its two lengths."""
    real = measure.Group.say

    def stopped(group: measure.Group, spec: str, about: str = "") -> None:
        real(group, spec, about)
        if group.length == 32:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(measure.Group, "say", stopped)
        result = run("--encodings", encoding, "--what", "forward")
    assert result.exit_code == 130
    return result


def test_a_whole_profile_makes_way_for_another_whole_one_only(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, earlier = place / "profile", "profile-earlier.json"
    assert run("--encodings", "rope", "--what", "forward").exit_code == 0
    first = (folder / "profile.json").read_text()
    for _ in range(2):
        result = interrupted(monkeypatch, "alibi")
        said = f"interrupted: the rest was not measured; the whole profile that was here before is profile/{earlier}\n"
        assert result.stderr.endswith(said)
        assert (folder / earlier).read_text() == first
        assert "alibi" in (folder / "profile.json").read_text()
    assert run("--encodings", "alibi", "--what", "forward").exit_code == 0
    assert {path.name for path in folder.iterdir()} == {"profile.json", "profile.csv", "profile.html"}


@pytest.mark.parametrize("held", ["null", "5", "[]", "{}", '"words"', "no json", "[" * 200_000])
def test_what_is_no_profile_is_none_that_waits(place: Path, monkeypatch: pytest.MonkeyPatch, held: str) -> None:
    folder = place / "profile"
    folder.mkdir()
    for name in ("profile.json", "profile-earlier.json"):
        (folder / name).write_text(held)
    result = interrupted(monkeypatch, "rope")
    assert json.loads((folder / "profile.json").read_text())["rows"]
    assert result.stderr.endswith("interrupted: the rest was not measured\n")
    assert run("--encodings", "rope", "--what", "forward").exit_code == 0
    assert (folder / "profile-earlier.json").read_text() == held


def test_a_whole_profile_of_another_version_waits_too(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place / "profile" / "profile.json"
    assert run("--encodings", "rope", "--what", "forward").exit_code == 0
    held = json.dumps(json.loads(path.read_text()) | {"format": 2, "colour": "blue"})
    path.write_text(held)
    interrupted(monkeypatch, "alibi")
    assert path.with_name("profile-earlier.json").read_text() == held


def test_a_run_that_is_killed_leaves_no_page_of_an_earlier_one(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(results: Results) -> str:
        raise AssertionError

    assert run("--encodings", "rope", "--what", "forward").exit_code == 0
    monkeypatch.setattr(page, "page", killed)
    run("--encodings", "alibi", "--what", "forward")
    assert {path.name for path in (place / "profile").iterdir()} == {"profile.json", "profile.csv"}


def test_who_asks_for_an_end_twice_gets_a_whole_page(monkeypatch: pytest.MonkeyPatch) -> None:
    real = page.page

    def asked_again(results: Results) -> str:
        signal.raise_signal(signal.SIGINT)
        return real(results)

    monkeypatch.setattr(page, "page", asked_again)
    assert run("--encodings", "rope", "--what", "forward").exit_code == 0
    assert Path("profile/profile.html").read_text(encoding="utf-8").endswith("</html>\n")
