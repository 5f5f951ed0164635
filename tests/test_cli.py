"""The command line as a user meets it: what is printed, what goes to stderr, and the exit code."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import adapos
from adapos import cli, contract, table
from adapos.kernels import BACKENDS, Call
from adapos.kernels.cpu.library import MISSING
from adapos.registry import REGISTRY
from adapos.sketch import Size, sketch

pytestmark = pytest.mark.usefixtures("registry")

GOOD = '''
import adapos
from adapos.pairs import DistanceTable


@adapos.register("fading")
class Fading(adapos.PositionalEncoding):
    """bias[h, i, j] = -|i - j| / 10"""

    biases = True

    def pairs(self, layer, q, keys, layout):
        far = layout.distances().abs().to(q.dtype)
        return adapos.Pairs((DistanceTable((-far / 10).expand(q.shape[1], -1), zero=layout.ahead),))
'''

FUTURE = '''
import adapos
from adapos.pairs import Ramp


@adapos.register("prophet")
class Prophet(adapos.PositionalEncoding):
    """Compares each key with the mean of all keys, the ones to come among them."""

    def pairs(self, layer, q, keys, layout):
        k = keys.k.repeat_interleave(q.shape[1] // keys.k.shape[1], 1)
        return adapos.Pairs((Ramp(q[..., 0] * 0, (k * k.mean(2, keepdim=True)).sum(-1)),))
'''

OFFSET = '''
import torch
import adapos
from adapos.pairs import Grid


@adapos.register("forgetful")
class Forgetful(adapos.PositionalEncoding):
    """Counts queries from 0, as if nothing were cached."""

    def pairs(self, layer, q, keys, layout):
        far = torch.arange(layout.queries)[:, None] - torch.arange(layout.keys)
        return adapos.Pairs((Grid((-far.abs().to(q.dtype)).expand(*q.shape[:2], -1, -1)),))
'''

RELATIVE = '''
import adapos
from adapos.pairs import Ramp


@adapos.register("anchored")
class Anchored(adapos.PositionalEncoding):
    """Reads the ids of keys as they are, and promises to be relative."""

    def pairs(self, layer, q, keys, layout):
        bias = (layout.k_pos.to(q.dtype) / 10).sin()[:, None].expand(-1, q.shape[1], -1)
        return adapos.Pairs((Ramp(q[..., 0] * 0, bias),))
'''

GRADIENT = """
import torch
import adapos
from adapos.pairs import DistanceTable


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


@adapos.register("steep")
class Steep(adapos.PositionalEncoding):
    def __init__(self, shape):
        super().__init__(shape)
        self.slope = torch.nn.Parameter(torch.ones(shape.heads))

    def pairs(self, layer, q, keys, layout):
        far = layout.distances().abs().to(q.dtype)
        return adapos.Pairs((DistanceTable(-Doubled.apply(self.slope)[:, None] * far, zero=layout.ahead),))
"""


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever terminal the tests are run from."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def refused(*arguments: str) -> str:
    """The one line on stderr of a call that ends with exit code 2."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Writes my_encoding.py in the current directory, and says what it is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "adapos_check_my_encoding", raising=False)

    def put(text: str, name: str = "my_encoding.py") -> str:
        Path(name).write_text(text)
        return name

    return put


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Leaves only these promises to measure, for the time it saves."""

    def only(*promises: str) -> None:
        monkeypatch.setattr(contract, "CHECKS", tuple(c for c in contract.CHECKS if c.__name__ in promises))

    return only


def test_version_is_that_of_the_package() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"adapos {version('adapos')}\n")


def test_help_names_every_command() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert all(command in result.stdout for command in ("encodings", "kernels", "profile", "check"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("", None),
        ("encoding", "no such command 'encoding'; did you mean 'encodings'[?]; see `adapos --help`"),
        ("kernels", "missing argument 'SPEC'; see `adapos kernels --help`"),
        ("kernels rope --lenght 3", "--lenght .*--length.*; see `adapos kernels --help`"),
        ("kernels rope --length", "'--length' requires an argument; see `adapos kernels --help`"),
        ("kernels rope --heads many", "'--heads': .*integer.*'many'.*; see `adapos kernels --help`"),
        (
            "kernels rope --heads 2 --heads 70000",
            "it should be less than or equal to 65536, and '70000' was given; see `adapos kernels --help`",
        ),
        ("kernels rope --heads=70000", "'--heads': .*65536.*'70000'.*; see `adapos kernels --help`"),
        ("profile --dtype fp16", "'--dtype': .*'fp16' is not one of 'float64', .*; see `adapos profile --help`"),
    ],
)
def test_what_the_command_line_does_not_know_is_one_sentence(arguments: str, says: str | None) -> None:
    result = run(*arguments.split())
    assert result.exit_code == 2
    if says is None:
        assert "Usage" in result.output
    else:
        assert result.stdout == ""
        assert re.fullmatch(f"error: [^\n]*{says}\n", result.stderr)


def test_encodings_lists_every_encoding_with_parameters_paper_and_promises() -> None:
    result = run("encodings")
    assert result.exit_code == 0
    words = result.stdout.split()
    for row in table.rows():
        assert row.name in [word.strip(",") for word in words]
        assert set(row.papers) <= set(words)
        assert all(f"{name}={value!r}" in words for name, value in row.parameters.items())
    assert "dape, cape" in result.stdout
    assert "ids below 2048" in result.stdout


def test_output_that_is_piped_is_plain_and_fits_80_columns(measured: Callable[..., None]) -> None:
    measured("future", "round_trip")
    for arguments in (["encodings"], ["kernels", "kerple + dape(kernel=3)"], ["check", "alibi"]):
        result = run(*arguments)
        assert result.exit_code == 0
        assert "\x1b" not in result.stdout
        assert max(map(len, result.stdout.splitlines())) <= 80


def test_markdown_has_a_row_for_each_encoding_and_no_stray_bars() -> None:
    result = run("encodings", "--markdown")
    lines = result.stdout.splitlines()
    assert len(lines) == len(REGISTRY) + 2
    assert all(line.replace(r"\|", "").count("|") == 6 for line in lines)
    assert lines[2].startswith("| `nope` |")


def test_every_encoding_says_what_it_does_and_names_its_paper() -> None:
    papers = {row.name: row.papers for row in table.rows()}
    assert all(papers.values())
    assert (papers["rope"], papers["xpos"]) == (("2104.09864",), ("2212.10554",))
    assert papers["dape"] == ("2405.14722", "2410.04798")
    assert all(row.does and not row.does.endswith(".") for row in table.rows())


def test_the_first_sentence_ends_at_a_full_stop_and_not_at_a_product() -> None:
    assert table.first_sentence("bias = q . k + 0.5.\n    Some et al. 2020.") == "bias = q . k + 0.5"
    assert table.first_sentence("") == ""


def test_a_class_without_docstrings_has_a_row_too() -> None:
    @adapos.register("bare")
    class Bare(adapos.PositionalEncoding):
        promises = adapos.Promises(relative=False, cacheable=False)

    Bare.__module__ = "no_such_module"
    row = table.row(Bare)
    assert (row.does, row.papers, row.promised) == ("", (), "none")


def answers(*arguments: str) -> dict[str, tuple[str, str]]:
    """What each backend answers: chosen, can run or refuses, and why."""
    result = run("kernels", *arguments)
    assert result.exit_code == 0, result.stderr
    found = {}
    for line in result.stdout.splitlines():
        name, _, rest = line.partition(" ")
        for answer in ("chosen", "can run", "refuses"):
            if rest.strip().startswith(answer):
                found[name] = (answer, rest.strip().removeprefix(answer).strip())
    assert sorted(found) == sorted(backend.name for backend in BACKENDS)
    return found


def test_kernels_says_who_runs_it_and_why_others_do_not() -> None:
    found = answers("kerple + dape(kernel=3)", "--length", "2048")
    assert found["sdpa"] == ("refuses", "HeadMix reads scores, and sdpa never shows them")
    assert found["native" if MISSING is None else "tiled"][0] == "chosen"
    assert found["reference"][0] == "can run"


def test_kernels_tells_training_from_inference() -> None:
    assert answers("kerple")["sdpa"][0] == "refuses"
    assert answers("kerple", "--inference")["sdpa"][0] == "can run"
    assert answers("rope", "--inference", "--bidirectional")["sdpa"][0] == "chosen"


def test_kernels_lists_the_best_first() -> None:
    assert next(iter(answers("kerple", "--inference").items()))[1][0] == "chosen"
    assert next(iter(answers("rope", "--bidirectional"))) == "sdpa"


def test_kernels_says_what_it_was_asked() -> None:
    settings = (
        "--length 600 --batch 2 --heads 8 --kv-heads 2 --head-width 32 --dtype bfloat16 --inference --bidirectional"
    )
    result = run("kernels", "fire", *settings.split())
    said = " ".join(result.stdout.split())
    assert (
        "fire: inference, bidirectional, batch 2, length 600, 8 heads of 32 over 2 key/value heads, bfloat16 on cpu"
        in said
    )
    assert "between the scores and the softmax: Fire" in said


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("spec", [*REGISTRY, "tape(form='additive') + dape", "randomized + rope"])
def test_a_sketch_gets_the_answers_of_the_real_call(spec: str, training: bool) -> None:
    shape = adapos.Shape(layers=2, width=32, heads=4, kv_heads=2)
    asked: list[Call] = []
    with torch.set_grad_enabled(training):
        sketched = sketch(adapos.build(spec, shape).train(training), Size(2, 40, torch.float32, "cpu", True))
        model = adapos.model.Decoder(11, shape, spec).train(training)
        with pytest.MonkeyPatch.context() as patch:
            checked = Call.checked
            patch.setattr(Call, "checked", lambda *given: asked.append(checked(*given)) or asked[-1])
            model(torch.zeros(2, 40, dtype=torch.long))
        real = asked[0]
        assert [b.refuses(sketched) for b in BACKENDS] == [b.refuses(real) for b in BACKENDS]
        assert sketched.differentiable == real.differentiable == training
    for name in ("q", "k", "v"):
        mine, theirs = getattr(sketched, name), getattr(real, name)
        assert (mine.shape, mine.dtype, mine.device) == (theirs.shape, theirs.dtype, theirs.device)
    assert [type(term) for term in sketched.pairs.terms] == [type(term) for term in real.pairs.terms]
    assert [x.shape for x in sketched.pairs.tensors()] == [x.shape for x in real.pairs.tensors()]


@pytest.mark.parametrize("spec", ["kerple + dape(kernel=3)", "rope", "xl", "fox", "tape", "sinusoidal + cope"])
def test_a_million_tokens_cost_no_more_than_ten(spec: str) -> None:
    began = time.process_time()
    answers(spec, "--length", "1000000")
    assert time.process_time() - began < 5.0


def test_a_sketch_that_must_be_real_has_a_limit() -> None:
    line = refused("kernels", "randomized", "--length", "1000000")
    assert line.startswith("'randomized' reads numbers, so its tensors must be real")
    longest = int(line.rsplit(" ", 1)[1])
    assert 100_000 < longest < 1_000_000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["kerpel"], "no encoding is called 'kerpel'; did you mean 'kerple'? `adapos encodings` lists all"),
        (["dape(kernal=3)"], "dape has no parameter 'kernal'; did you mean 'kernel'? it knows: width=32"),
        (["kerple +"], "the spec 'kerple +' does not parse; write it like 'kerple + dape(kernel=3)'"),
        (["rope + tape"], "rope and tape both rotate queries and keys"),
        (["rope", "--length", "0"], "batch (1) and length (0) must be at least 1"),
        (["rope", "--kv-heads", "5"], "heads (12) must be a multiple of kv_heads (5)"),
        (["rope", "--heads", "0"], "heads (0) must be a whole number of at least 1"),
        (["rope", "--head-width", "63"], "rope: head_width (63) must be even"),
        (["rope", "--device", "nowhere"], "device 'nowhere' is not available on this machine; try 'cpu', or 'cuda'"),
        (["rope", "--device", "cudaa"], "no device is called 'cudaa'; did you mean 'cuda'?"),
        (["rope", "--device", "gpu"], "no device is called 'gpu'; did you mean 'cuda'?"),
        (["rope", "--device", "cuda:x"], "device 'cuda:x' must end in the number of a GPU, as 'cuda:0' does"),
        (["rope", "--device", "cuda:"], "device 'cuda:' must end in the number of a GPU, as 'cuda:0' does"),
        (["rope", "--device", "cpu:3"], "device 'cpu:3' has a number, and there is one CPU; write 'cpu'"),
        (["kerple", "--length", str(2**40), "--batch", str(2**20)], "a batch of 1048576 with length 1099511627776 and"),
        (["rope", "--device", "hpu"], "device 'hpu' is not available on this machine; try 'cpu'"),
        (["fox", "--bidirectional"], "'fox' is for causal attention only: gates are cumulated"),
        (["learned", "--length", "5000"], "'learned' takes ids below 2048, and length 5000 goes past them"),
        (["learned(longest=1000000000000000)"], "'learned(longest=1000000000000000)' cannot be built: RuntimeError"),
    ],
)
def test_kernels_says_in_a_line_what_is_wrong(arguments: list[str], sentence: str) -> None:
    assert refused("kernels", *arguments).startswith(sentence)


@pytest.mark.parametrize(
    ("device", "built", "count", "said", "sentence"),
    [
        (
            "cuda",
            None,
            0,
            "",
            r"'cuda' is a GPU, and this torch \(.*\) is built for CPUs alone; install .* or try 'cpu'",
        ),
        ("cuda", "12.8", 0, "No driver.\nMore", r"and torch sees none on this machine \(No driver\); try 'cpu'"),
        ("cuda:7", "12.8", 1, "invalid", "'cuda:7' is not on this machine, of which torch sees cuda:0; choose"),
        (
            "cuda:7",
            "12.8",
            4,
            "invalid",
            "'cuda:7' is not on this machine, of which torch sees cuda:0 to cuda:3; choose",
        ),
        ("cuda", "12.8", 1, "no kernel image", r"'cuda' is there and cannot be used \(no kernel image\); try another"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_refused_in_a_sentence(
    device: str, built: str | None, count: int, said: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **more: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(torch, "ones", fail)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    for command in (["kernels", "rope"], ["profile"]):
        assert re.search(sentence, refused(*command, "--device", device))


def test_the_page_of_kernels_has_a_row_for_every_backend() -> None:
    text = (Path(__file__).parent.parent / "docs" / "kernels.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)
    assert sorted(named) == sorted(backend.name for backend in BACKENDS)
    assert f"one of {('four', 'five', 'six')[len(named) - 4]} backends" in text


@pytest.mark.parametrize(("option", "value"), [("--dtype", "int8"), ("--length", "9" * 30), ("--batch", "many")])
def test_kernels_refuses_values_that_no_call_can_have(option: str, value: str) -> None:
    result = run("kernels", "rope", option, value)
    assert result.exit_code == 2
    assert option in result.stderr


def test_check_prints_promise_error_limit_verdict_and_note(measured: Callable[..., None]) -> None:
    measured("future", "bidirectional", "longest")
    result = run("check", "fox")
    assert result.exit_code == 0
    name, header, _, *lines, summary = result.stdout.splitlines()
    assert (name, summary) == ("fox", "2 held, 1 exempt")
    assert header.split() == ["promise", "error", "limit", "verdict", "note"]
    rows = {line.split()[0]: line.split()[1:] for line in lines if not line.startswith(" ")}
    assert list(rows) == ["future", "bidirectional", "longest"]
    assert float(rows["future"][0]) <= float(rows["future"][1]) == 1e-9
    assert rows["future"][2] == "held"
    assert rows["bidirectional"][0] == "exempt"
    assert "gates are cumulated from the past to the present" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("text", "name", "broken"),
    [
        (FUTURE, "prophet", "future"),
        (OFFSET, "forgetful", "decoding"),
        (RELATIVE, "anchored", "relative"),
        (GRADIENT, "steep", "gradients"),
    ],
)
def test_check_catches_a_broken_encoding_by_name(
    text: str, name: str, broken: str, write: Callable[[str], str], measured: Callable[..., None]
) -> None:
    measured(broken, "repeatable")
    result = run("check", write(text))
    assert (result.exit_code, result.stderr) == (1, "")
    title, *_, summary = result.stdout.splitlines()
    assert (title, summary) == (name, f"1 held, 1 broken: {broken}")
    (line,) = [line for line in result.stdout.splitlines() if line.startswith(broken)]
    _, error, limit, verdict, *_ = line.split()
    assert float(error) > float(limit)
    assert verdict == "broken"


def test_check_names_what_is_broken_after_what_is_exempt(
    write: Callable[[str], str], measured: Callable[..., None]
) -> None:
    measured("future", "bidirectional")
    declared = "adapos.PositionalEncoding):\n    promises = adapos.Promises(causal_only=True, because='it is')\n"
    result = run("check", write(FUTURE.replace("adapos.PositionalEncoding):\n", declared)))
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "1 exempt, 1 broken: future"


@pytest.mark.parametrize(
    "text", [GOOD, f"from dataclasses import dataclass\nimport beside\n{GOOD}\n@dataclass\nclass Kept:\n    x: int\n"]
)
def test_check_of_a_good_file_ends_with_0(text: str, write: Callable[..., str], measured: Callable[..., None]) -> None:
    measured("future", "relative", "round_trip")
    write("", "beside.py")
    result = run("check", write(text))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == "fading"
    assert result.stdout.splitlines()[-1] == "3 held"


def test_check_measures_every_encoding_that_a_file_registers(
    write: Callable[[str], str], measured: Callable[..., None]
) -> None:
    measured("relative")
    result = run("check", write(GOOD + RELATIVE))
    assert result.exit_code == 1
    assert [line for line in result.stdout.splitlines() if line in ("fading", "anchored")] == ["fading", "anchored"]
    assert "1 held" in result.stdout.splitlines()
    assert "1 broken: relative" in result.stdout.splitlines()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import adapos\n", 'registers no encoding; put @adapos.register("its_name") above the class'),
        ("\nclass Broken(:\n", "does not import: SyntaxError: invalid syntax (line 2)"),
        ("import torch\n\nx = undefined\n", "does not import: NameError: name 'undefined' is not defined (line 3)"),
        ("import no_such_module\n", "does not import: ModuleNotFoundError: No module named 'no_such_module' (line 1)"),
        ("import sys\nsys.exit(3)\n", "does not import: SystemExit: 3 (line 2)"),
        (GOOD.replace("fading", "rope"), "does not import: ValueError: the name 'rope' is taken by"),
        (GOOD.replace('"fading"', ""), "does not import: TypeError: register() missing 1 required positional"),
        ("def fail():\n    assert False\n\nfail()\n", "does not import: AssertionError (line 2)"),
    ],
)
def test_check_says_in_a_line_what_is_wrong_with_a_file(text: str, sentence: str, write: Callable[[str], str]) -> None:
    assert refused("check", write(text)).startswith(f"my_encoding.py {sentence}")


@pytest.mark.parametrize("problem", ["ValueError('too\\nmany heads')", "KeyError('head')"])
def test_check_says_that_an_encoding_cannot_be_built(problem: str, write: Callable[[str], str]) -> None:
    file = write(GOOD.replace("    biases = True", f"    def __init__(self, shape):\n        raise {problem}"))
    assert refused("check", file).startswith(f"my_encoding.py: 'fading' cannot be built: {problem.split('(')[0]}: ")


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("nowhere.py", "there is no file nowhere.py"),
        ("folder.py", "folder.py is not a file"),
        ("./notes.txt", "notes.txt must be a Python file, ending in .py"),
        ("kerpel", "no encoding is called 'kerpel'; did you mean 'kerple'?"),
        ("cope + dape", "cope and dape both mix scores"),
        ("", "a spec names encodings, such as 'kerple + dape(kernel=3)'; '' names none"),
    ],
)
def test_check_says_in_a_line_what_is_wrong_with_its_target(
    target: str, sentence: str, write: Callable[..., str]
) -> None:
    write("words", "notes.txt")
    Path("folder.py").mkdir()
    assert refused("check", target).startswith(sentence)


def test_an_interrupt_ends_with_130_and_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "check", interrupted)
    result = run("check", "rope")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")


ADAPOS = Path(sys.executable).with_name("adapos")


@pytest.mark.slow
def test_the_installed_command_checks_a_good_file(write: Callable[[str], str]) -> None:
    result = subprocess.run([ADAPOS, "check", write(GOOD)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == f"{len(contract.CHECKS)} held"
    assert "Traceback" not in result.stderr


def test_the_installed_command_ends_with_2_and_one_line() -> None:
    result = subprocess.run([ADAPOS, "kernels", "kerpel"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert (
        result.stderr == "error: no encoding is called 'kerpel'; did you mean 'kerple'? `adapos encodings` lists all\n"
    )


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals differ")
def test_the_installed_command_dies_of_an_interrupt_in_silence(write: Callable[[str], str]) -> None:
    file = write("print('here', flush=True)\nimport time\ntime.sleep(60)\n")
    with subprocess.Popen(
        [ADAPOS, "check", file],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell that runs the tests in the background has them ignore interrupts
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals differ")
def test_an_interrupt_while_the_library_is_loaded_ends_it_in_silence(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("print('loading', flush=True)\nimport time\ntime.sleep(60)\n")
    with subprocess.Popen(
        [ADAPOS, "encodings"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (-signal.SIGINT, "", "")


def test_the_cpu_has_two_names() -> None:
    assert run("kernels", "kerple + dape", "--device", "cpu:0").stdout == run("kernels", "kerple + dape").stdout


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals differ")
def test_what_nobody_reads_is_no_broken_promise(write: Callable[[str], str]) -> None:
    """`adapos check ... | head`: 1 would say that one is broken."""
    file = write(GOOD)
    with subprocess.Popen([ADAPOS, "check", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert (process.wait(timeout=60), process.stderr.read()) == (141, b"")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file is full")
@pytest.mark.parametrize("command", ["--help", "--version", "kernels --help", "kernels rope"])
def test_what_cannot_be_said_is_told_by_the_exit_code(command: str) -> None:
    with open("/dev/full", "wb") as full:
        told = subprocess.run([ADAPOS, *command.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (told.returncode, told.stderr) == (2, "error: No space left on device\n")
    with subprocess.Popen([ADAPOS, *command.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert (process.wait(timeout=60), process.stderr.read()) == (141, b"")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="pipes differ")
def test_a_refusal_that_nobody_reads_is_one() -> None:
    with subprocess.Popen([ADAPOS, "kernels", "kerpel"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.close()
        assert process.wait(timeout=60) == 2


@pytest.mark.slow
def test_the_command_line_loads_no_optional_package() -> None:
    optional = ["transformers", "peft", "accelerate", "datasets", "plotly", "gradio", "ray", "triton", "lm_eval"]
    code = f"import sys, json, adapos.cli; print(json.dumps([m for m in {optional} if m in sys.modules]))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == []
