"""What is timed is what a model runs, side by side with plain attention. No time is asserted."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import adapos
from adapos import Layout, attend
from adapos.kernels import explain
from adapos.model import Decoder
from adapos.profile import machine, measure, memory, work
from adapos.profile.plan import PLAIN, SIZES, Plan, Size
from adapos.profile.rows import Results

PLAN = Plan(("kerple + dape",), (16,), ("forward",), heads=4, kv_heads=2, head_width=8, repeats=2, memory=False)
MACHINE = machine.Machine("", 1, 1, "", "", "", "", 1e9, 1e9)
SPECS = ["rope", "alibi", "kerple + dape(kernel=3)", "tape", "tape(form='additive')", "fire", "xl", "fox", "cope"]

pytestmark = pytest.mark.usefixtures("one_thread")


def profiled(plan: Plan) -> Results:
    results = Results(MACHINE, plan.settings, plan.command)
    measure.measure(plan, results)
    return results


@pytest.mark.parametrize("spec", SPECS)
def test_the_call_is_the_one_that_a_model_makes(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = work.layer(PLAN.build(spec, "training"), PLAN, 12, training=True)
    asked = []
    monkeypatch.setattr(
        adapos.model.layer, "attend", lambda *given, **more: asked.append(given) or attend(*given, **more)
    )
    Decoder(11, PLAN.shape("training"), spec)(torch.zeros(1, 12, dtype=torch.long))
    q, k, v, layout, pairs = asked[0]
    call = one.call()
    assert [x.shape for x in (call.q, call.k, call.v)] == [x.shape for x in (q, k, v)]
    assert [type(term) for term in call.pairs.terms] == [type(term) for term in pairs.terms]
    assert explain(call.q, call.k, call.v, call.layout, call.pairs) == explain(q, k, v, layout, pairs)


@pytest.mark.parametrize("spec", SPECS)
def test_decoding_asks_the_last_row_of_one_pass(spec: str) -> None:
    whole = work.layer(PLAN.build(spec, "forward"), PLAN, 12, training=False)
    last = work.layer(PLAN.build(spec, "decode"), PLAN, 12, training=False, decoding=True)
    assert last.layout.queries == 1
    assert last.layout.keys == 12
    with torch.no_grad():
        torch.testing.assert_close(last.attend("auto"), whole.attend("auto")[:, :, -1:])


def test_plain_attention_of_one_query_sees_every_key() -> None:
    found = []
    with pytest.MonkeyPatch.context() as patch:
        real = torch.nn.functional.scaled_dot_product_attention
        patch.setattr(work.F, "scaled_dot_product_attention", lambda *q, **more: found.append((q, real(*q, **more))))
        work.attention(PLAN, "decode", PLAIN, 12).once()
    ((q, k, v), out), *_ = found
    torch.testing.assert_close(out, attend(q, k, v, Layout.dense(1, 1, cached=11), backend="reference"))


def test_training_asks_for_every_gradient() -> None:
    asked: list[list[torch.Tensor]] = []
    with pytest.MonkeyPatch.context() as patch:
        real = torch.autograd.grad
        ready = work.attention(PLAN, "training", "kerple + dape", 12)
        patch.setattr(
            work.torch.autograd,
            "grad",
            lambda out, leaves, *given, **more: asked.append(leaves) or real(out, leaves, *given, **more),
        )
        ready.once()
    encoding = PLAN.build("kerple + dape", "training")
    assert len(asked[0]) == 3 + len(list(encoding.parameters()))
    assert all(x.is_leaf for x in asked[0])
    assert all(x.grad is None for x in asked[0])


@pytest.mark.parametrize("what", ["forward", "training", "decode"])
def test_every_measurement_gives_a_row_for_plain_attention_and_each_encoding(what: str) -> None:
    results = profiled(replace(PLAN, what=(what,), encodings=("rope", "kerple + dape"), lengths=(8, 16)))
    assert [(row.what, row.length, row.encoding) for row in results.rows] == [
        (what, length, encoding) for length in (8, 16) for encoding in (PLAIN, "rope", "kerple + dape")
    ]
    for row in results.rows:
        assert row.milliseconds is not None
        assert row.milliseconds > 0
        assert len(row.ratios) == 2
        assert row.ratio_least == min(row.ratios) <= row.ratio <= max(row.ratios) == row.ratio_most
        assert row.flops is not None
        assert row.share_of_peak == pytest.approx(row.flops / row.milliseconds * 1e3 / 1e9)
        assert (row.share_of_bandwidth is None) == (what != "decode")
    assert results.rows[0].ratios == (1.0, 1.0)
    assert results.rows[2].refused["sdpa"] == "HeadMix reads scores, and sdpa never shows them"
    assert results.finished


def test_the_bandwidth_of_decoding_is_that_of_the_cache() -> None:
    plan = replace(PLAN, what=("decode",), encodings=("tape", "fox"), kv_heads=4)
    plain, tape, fox = (work.attention(plan, "decode", spec, 16).cached for spec in (PLAIN, *plan.encodings))
    assert plain == 2 * 4 * 16 * 8 * 4
    assert tape == plain * 3 // 2
    assert fox == plain + 4 * 16 * 4


def test_ratios_are_of_neighbours_in_one_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm-up of both, twice as they are short, then plain and encoding in turn."""
    times = iter([9.0, 9.0, 1.0, 2.0, 10.0, 30.0])
    monkeypatch.setattr(machine, "seconds", lambda *given: next(times))
    plain, row = profiled(PLAN).rows
    assert row.ratios == (2.0, 3.0)
    assert (row.ratio, row.ratio_least, row.ratio_most) == (2.5, 2.0, 3.0)
    assert (plain.milliseconds, row.milliseconds) == (5500.0, 16000.0)
    assert row.spread == pytest.approx(0.4)
    assert row.noisy
    assert not plain.noisy


def test_short_runs_are_repeated_within_one_timing_as_often_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    def seconds(run: object, device: str, count: int = 1) -> float:
        counts.append(count)
        return 0.001

    monkeypatch.setattr(machine, "seconds", seconds)
    profiled(PLAN)
    warm, timed = counts[:4], counts[4:]
    assert warm == [1] * 4
    assert len(set(timed)) == 1
    assert timed[0] * 0.001 >= measure.SHORT


def test_no_timing_waits_long_for_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    warm = iter([1e-6, 1e-6, 0.1, 0.1])
    monkeypatch.setattr(machine, "seconds", lambda run, device, count=1: counts.append(count) or next(warm, 1.0))
    profiled(PLAN)
    assert counts[-1] * 0.1 <= measure.LONG + 0.1


@pytest.mark.parametrize(
    ("changes", "spec", "note"),
    [
        ({"what": ("forward",)}, "learned(longest=4)", "learned: position 15 is past the table of 4"),
        ({"what": ("decode",)}, "rope(schedule='dynamic', factor=2.0, trained=8)", "cannot decode with a cache"),
        ({"what": ("training",), "backend": "sdpa"}, "kerple", "backend 'sdpa' cannot run this call: DistanceTable"),
    ],
)
def test_an_encoding_that_cannot_run_gives_a_row_that_says_why(
    changes: dict[str, object], spec: str, note: str
) -> None:
    plain, row, other = profiled(replace(PLAN, encodings=(spec, "rope"), **changes)).rows
    assert note in row.note
    assert (row.milliseconds, row.ratio, row.backend) == (None, None, None)
    assert other.milliseconds is not None
    assert plain.milliseconds is not None


def test_memory_that_runs_out_gives_a_row_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    real = work.attention

    def attention(plan: Plan, what: str, spec: str, length: int) -> work.Work:
        def fail() -> None:
            raise RuntimeError("not enough memory\nsome trace")

        found = real(plan, what, spec, length)
        return replace(found, once=fail) if spec == PLAIN else found

    monkeypatch.setattr(work, "attention", attention)
    results = profiled(PLAN)
    plain, row = results.rows
    assert plain.note == "not enough memory"
    assert results.failures[plain.name].endswith("RuntimeError: not enough memory\nsome trace\n")
    # without plain attention there is a time and no ratio
    assert row.milliseconds is not None
    assert (row.ratio, row.ratios, row.noisy) == (None, (), False)


def test_a_refusal_is_no_failure() -> None:
    results = profiled(replace(PLAN, backend="sdpa"))
    (row,) = results.rows
    assert "HeadMix reads scores" in row.note
    assert results.failures == {}
    assert not results.telling


def test_threads_are_set_while_measuring_and_put_back() -> None:
    seen = []
    with measure.threads(2):
        seen.append(torch.get_num_threads())
    assert [*seen, torch.get_num_threads()] == [2, 1]


def test_each_step_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, said = replace(PLAN, what=("forward", "decode"), lengths=(8, 16), memory=True), []
    monkeypatch.setattr(measure, "extra", lambda *given: 1)
    measure.measure(plan, Results(MACHINE, plan.settings, plan.command), step=said.append)
    assert len(said) == measure.steps(plan)
    assert said[0] == "forward, 8 tokens: plain"
    assert said[-1] == "decode, 16 tokens: memory of kerple + dape"


def test_a_model_is_measured_with_its_parameters_tokens_and_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    size = Size(50, adapos.Shape(layers=3, width=16, heads=2))
    monkeypatch.setitem(SIZES, "10m", size)
    plain, rope, tape = profiled(replace(PLAN, what=("model",), encodings=("rope", "tape"), batch=2)).rows
    decoder = Decoder(50, size.shape, "tape")
    assert tape.parameters == sum(x.numel() for x in decoder.parameters())
    assert (
        plain.parameters == rope.parameters == tape.parameters - sum(x.numel() for x in decoder.encoding.parameters())
    )
    assert rope.tokens_per_second == pytest.approx(2 * 16 / rope.milliseconds * 1e3)
    linear = sum(m.weight.numel() for m in decoder.modules() if isinstance(m, torch.nn.Linear))
    pairs, heads, width = 2 * 16 * 17 // 2, 2, 8
    assert plain.flops == rope.flops == 6 * linear * 32 + 3 * pairs * heads * 14 * width
    # states ride through all layers but the last
    assert tape.flops == plain.flops + 2 * pairs * heads * 6 * width
    assert plain.backend == "sdpa"


def test_memory_is_that_of_a_process_which_does_nothing_else() -> None:
    plan = replace(PLAN, heads=8, kv_heads=8, head_width=32)
    found = memory.extra(plan, "forward", PLAIN, 2048, work.attention(plan, "forward", PLAIN, 2048))
    # the output at least, and less than the full matrix
    assert 2048 * 8 * 32 * 4 <= found < 8 * 2048**2 * 4


def test_memory_that_cannot_be_measured_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = work.attention(PLAN, "forward", PLAIN, 8)
    with pytest.raises(RuntimeError, match="ValueError: no encoding is called 'kerpel'"):
        memory.extra(PLAN, "forward", "kerpel", 8, ready)
    monkeypatch.setattr(memory, "STATUS", memory.STATUS / "nowhere")
    with pytest.raises(RuntimeError, match="read from /proc, which this system does not have"):
        memory.extra(PLAN, "forward", PLAIN, 8, ready)


@pytest.mark.parametrize(
    ("problem", "said"),
    [(RuntimeError("no room\nsome trace"), "no room"), (KeyError("a kernel"), "KeyError: 'a kernel'")],
)
def test_memory_that_was_not_measured_leaves_the_times(
    problem: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> int:
        raise problem

    monkeypatch.setattr(measure, "extra", fail)
    for row in profiled(replace(PLAN, memory=True)).rows:
        assert row.note == f"memory was not measured: {said}"
        assert row.milliseconds is not None


def test_the_machine_is_described_and_has_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SIDE", 64)
    monkeypatch.setattr(machine, "COPIED", 2**16)
    for kind in (torch.float32, torch.bfloat16):
        found = machine.measured(kind, "cpu")
        assert found.processor
        assert found.threads == 1
        assert found.flops_per_second > 0
        assert found.bytes_per_second > 0


def test_the_machine_tells_the_commit_and_the_environment_where_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SIDE", 64)
    monkeypatch.setattr(machine, "COPIED", 2**16)
    for name in machine.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ADAPOS_TRITON_ATOMIC", "1")
    found = measure.begun(PLAN, "0.1.0+abcdef").machine
    assert found.adapos == "0.1.0+abcdef"
    assert found.environment == {"ADAPOS_TRITON_ATOMIC": "1"}
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    again = measure.begun(PLAN).machine
    assert again.adapos == machine.version("adapos")
    assert set(again.environment) == {"ADAPOS_TRITON_ATOMIC", "TRITON_INTERPRET"}


A100 = {"major": 8, "minor": 0, "total_memory": 80 * 2**30, "multi_processor_count": 108}


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU of which torch tells as little as it may."""
    card = SimpleNamespace(**A100)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(machine, "driver", lambda: None)
    monkeypatch.setattr(machine, "triton", lambda: "3.3.0")
    return card


def test_a_gpu_is_described_by_what_torch_tells_of_it(cards: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    least = {
        "capability": "8.0",
        "memory": "80 GiB",
        "multiprocessors": "108",
        "cuda": "12.8",
        "triton": "3.3.0",
        "products of float32": "exact",
    }
    assert machine.gpu("cuda") == least
    cards.L2_cache_size, cards.shared_memory_per_block_optin = 40 * 2**20, 163 * 2**10
    monkeypatch.setattr(machine, "driver", lambda: "550.54.15")
    monkeypatch.setattr(machine, "tf32", lambda: True)
    assert machine.gpu("cuda:0") == least | {
        "second cache": "40 MiB",
        "shared memory of a program": "163 KiB",
        "driver": "550.54.15",
        "products of float32": "TF32",
    }


def test_a_gpu_of_amd_is_described_by_its_architecture(cards: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.3")
    monkeypatch.setattr(machine, "driver", lambda: pytest.fail("nvidia-smi knows nothing of it"))
    cards.gcnArchName = "gfx942:sramecc+"
    found = machine.gpu("cuda")
    assert (found["architecture"], found["hip"]) == ("gfx942:sramecc+", "6.3")


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        (subprocess.CompletedProcess([], 0, "550.54.15\n550.54.15\n"), "550.54.15"),
        (subprocess.CompletedProcess([], 0, ""), None),
        (FileNotFoundError("nvidia-smi"), None),
        (subprocess.CalledProcessError(9, "nvidia-smi"), None),
        (subprocess.TimeoutExpired("nvidia-smi", 30), None),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_the_driver_is_told_where_nvidia_smi_tells_it(
    answer: object, version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], **more: object) -> object:
        assert command[0] == "nvidia-smi"
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(machine.subprocess, "run", run)
    assert machine.driver() == version


def test_the_version_of_triton_is_found_under_whatever_name_it_was_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    assert machine.triton() == machine.version("triton")
    monkeypatch.setattr(machine, "packages_distributions", lambda: {"triton": ["pytorch-triton-rocm"]})
    monkeypatch.setattr(machine, "version", {"pytorch-triton-rocm": "3.3"}.__getitem__)
    assert machine.triton() == "pytorch-triton-rocm 3.3"
    monkeypatch.setattr(machine, "packages_distributions", dict)
    assert machine.triton() == "unknown"
    monkeypatch.setattr(machine, "VERSION", None)
    assert machine.triton() == "none"


def test_the_tiles_that_the_tuner_chose_are_kept_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    from adapos.kernels.triton import launch

    taken = {"q": torch.zeros(1, dtype=torch.bfloat16), "begin": 0, "end": 64, "first": 0, "last": 64}
    kind = launch.WEIGH.kind(taken | {"H": 12, "D": 64, "TAPS": 3, "RAMP": False, "PRECISION": "tf32"})
    config = triton.Config({"M": 16, "N": 32}, num_warps=8, num_stages=1)
    larger = triton.Config({"M": 64, "N": 32}, num_warps=8, num_stages=1)
    monkeypatch.setattr(launch, "CHOSEN", {kind: config})
    monkeypatch.setattr(launch, "TRIED", {kind: {config: [0.2, 0.1, 0.3], larger: [math.inf] * 3}})
    results = Results.from_json(profiled(PLAN).to_json())
    assert results.tiles == [
        {
            "kernel": "weigh",
            "work": 1,
            "types": {"q": "bfloat16"},
            "settings": {"H": 12, "D": 64, "TAPS": 3, "RAMP": False, "PRECISION": "tf32"},
            "tile": {"M": 16, "N": 32, "warps": 8, "stages": 1},
            "tried": [
                {"M": 16, "N": 32, "warps": 8, "stages": 1, "milliseconds": [0.2, 0.1, 0.3]},
                {"M": 64, "N": 32, "warps": 8, "stages": 1, "milliseconds": [None] * 3},
            ],
        }
    ]


def test_no_tiles_are_kept_where_the_kernels_have_not_been_loaded() -> None:
    code = (
        "import json, sys; from adapos.profile import machine; "
        "print(json.dumps([machine.tiles(), 'triton' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], False]


def test_plain_attention_on_a_gpu_says_which_kernel_runs_it() -> None:
    q = torch.randn(1, 4, 16, 8)
    assert work.kernel(q, q[:, :2], q[:, :2], causal=True) in ("flash", "math", "efficient", "cudnn")
