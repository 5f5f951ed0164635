"""attend and explain: which backend is chosen, and the sentences that wrong calls meet."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from adapos import Layout, Pairs, attend, explain
from adapos.kernels import BACKENDS, Call, choose
from adapos.kernels.cpu import library
from adapos.pairs import Cope, DistanceDot, DistanceTable, Fire, Grid, HeadMix, LogDot, Ramp
from cases import PAIRS, Attention, Draw, Sizes, apart, head_mix, table

AT = Sizes(batch=2, heads=4, groups=2, queries=6, keys=6)


def chosen(a: Attention, **settings: float) -> str:
    return choose(Call.checked(a.q, a.k, a.v, a.layout, a.pairs, None, settings.get("dropout", 0.0))).name


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("layout", ["dense", "documents", "one query", "bidirectional"])
def test_something_other_than_the_reference_runs_every_call(name: str, layout: str) -> None:
    a = Attention.make(name, layout)
    assert chosen(a) != "reference"
    with torch.no_grad():
        assert chosen(a) != "reference"


def test_nothing_to_add_is_left_to_sdpa() -> None:
    for dtype, layout in ((torch.float64, "dense"), (torch.float32, "bidirectional"), (torch.float32, "one query")):
        a = Attention.make("nothing", layout, values=8, dtype=dtype)
        assert chosen(a) == "sdpa"
        with torch.no_grad():
            assert chosen(a) == "sdpa"


@pytest.mark.skipif(library.MISSING is not None, reason=str(library.MISSING))
def test_the_native_kernel_is_the_default_on_a_cpu() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for pairs in ("nothing", "table", "ramp", "mix 1 residual", "mix 3 residual"):
            for layout in ("dense", "documents", "window"):
                a = Attention.make(pairs, layout, dtype=dtype)
                assert chosen(a) == "native"
                with torch.no_grad():
                    assert chosen(a) == "native"
    assert chosen(Attention.make("mix 1 residual", "dense", dtype=torch.float64)) == "tiled"


def test_without_the_native_kernel_tiles_run_instead_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "the native kernel was not built: no C++ compiler was found when adapos was installed"
    monkeypatch.setattr(library, "MISSING", reason)
    a = Attention.make("mix 1 residual", "dense", dtype=torch.float32)
    assert ("native", reason) in explain(a.q, a.k, a.v, a.layout, a.pairs)
    assert chosen(a) == "tiled"
    with pytest.raises(ValueError, match=f"backend 'native' cannot run this call: {re.escape(reason)}"):
        attend(a.q, a.k, a.v, a.layout, a.pairs, backend="native")


def test_sizes_of_terms_may_be_symbols_of_a_compiler() -> None:
    a, known = Attention.make("nothing", "dense", dtype=torch.float32), torch.randn(4, 9)
    torch._dynamo.reset()
    torch._dynamo.maybe_mark_dynamic(known, 0)

    def run(known: Tensor) -> Tensor:
        return attend(a.q, a.k, a.v, a.layout, Pairs((DistanceTable(known),)), backend="reference")

    compiled = torch.compile(run, backend="eager", fullgraph=True)
    assert apart(compiled(known), run(known)) < 1e-6


def test_auto_takes_the_first_that_does_not_refuse() -> None:
    for name in ("nothing", "table", "mix 3 residual", "cope"):
        a = Attention.make(name, "documents")
        answers = explain(a.q, a.k, a.v, a.layout, a.pairs)
        assert sorted(backend for backend, _ in answers) == sorted(backend.name for backend in BACKENDS)
        assert chosen(a) == next(backend for backend, reason in answers if reason is None)
        assert ("reference", None) in answers


def test_refusals_say_why() -> None:
    def why(name: str, layout: str, *, grad: bool = True, dropout: float = 0.0) -> str | None:
        a = Attention.make(name, layout)
        with torch.set_grad_enabled(grad):
            return dict(explain(a.q, a.k, a.v, a.layout, a.pairs, dropout=dropout))["sdpa"]

    assert why("mix 1 residual", "dense") == "HeadMix reads scores, and sdpa never shows them"
    assert why("cope", "dense", grad=False) == "Cope reads scores, and sdpa never shows them"
    assert why("ramp", "dense") == "Ramp would be kept for the backward pass, in memory quadratic in length"
    assert why("ramp", "dense", grad=False) is None
    assert "mask of this layout would be kept for the backward pass" in str(why("nothing", "documents"))
    assert why("nothing", "documents", grad=False) is None
    assert "falls back to quadratic memory when it drops attention weights" in str(why("nothing", "dense", dropout=0.1))


def test_a_backend_asked_for_by_name_refuses_rather_than_falls_back() -> None:
    a = Attention.make("mix 1 residual", "dense")
    with pytest.raises(
        ValueError, match="backend 'sdpa' cannot run this call: HeadMix reads scores, and sdpa never shows"
    ):
        attend(a.q, a.k, a.v, a.layout, a.pairs, backend="sdpa")
    with pytest.raises(
        ValueError, match="no backend is called 'flash'; there are auto, native, triton, sdpa, tiled, reference"
    ):
        attend(a.q, a.k, a.v, a.layout, a.pairs, backend="flash")
    nothing: Any = None
    with pytest.raises(ValueError, match="no backend is called None; there are auto, native"):
        attend(a.q, a.k, a.v, a.layout, a.pairs, backend=nothing)


def test_gradients_of_gradients_are_refused_rather_than_wrong() -> None:
    for name in ("mix 1 residual", "mix 3 of ramp"):
        a = Attention.make(name, "dense")
        out = attend(a.q, a.k, a.v, a.layout, a.pairs, backend="tiled")
        (grad,) = torch.autograd.grad(out.square().sum(), a.q, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            grad.sum().backward()


Q, K, V = Draw(1)(2, 4, 6, 8).detach(), Draw(2)(2, 2, 6, 8).detach(), Draw(3)(2, 2, 6, 5).detach()
DENSE = Layout.dense(2, 6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"q": Q[0]}, r"q must have shape \(batch, heads, tokens, width\), not \(4, 6, 8\)"),
        ({"v": V[..., None]}, r"v must have shape \(batch, heads, tokens, width\), not \(2, 2, 6, 5, 1\)"),
        ({"q": Q.numpy()}, "q must be a tensor, not ndarray; torch.as_tensor makes one"),
        ({"v": V.to_sparse()}, "v must be a dense tensor, not one of torch.sparse_coo; make it one"),
        ({"k": K.long()}, "k must be of a floating dtype, not torch.int64"),
        ({"q": Q[:, :, :0]}, r"q of shape \(2, 4, 0, 8\) is empty; every size must be at least 1"),
        ({"q": Q[:0]}, r"q of shape \(0, 4, 6, 8\) is empty"),
        (
            {"k": K.float()},
            "q, k and v must share a dtype, and k is torch.float32 beside q of torch.float64; cast them",
        ),
        ({"v": V.to("meta")}, "q, k and v must be on one device, and v is on meta beside q on cpu; move them"),
        ({"k": K[:1]}, "q, k and v must share a batch, and k has 1 beside q of 2"),
        ({"v": V[:, :1]}, r"k and v must agree in heads and tokens: k has \(2, 6\) and v \(1, 6\)"),
        ({"v": V[:, :, :5]}, r"k and v must agree in heads and tokens: k has \(2, 6\) and v \(2, 5\)"),
        ({"k": K[..., :7]}, "q and k must share a width: q has 8 and k 7"),
        ({"q": Q[:, :3]}, r"heads \(3\) must be a multiple of kv_heads \(2\)"),
        ({"layout": None}, r"layout must be an adapos.Layout, not NoneType; Layout.dense\(batch, length\) makes one"),
        ({"layout": Layout.dense(2, 5)}, "the layout is for batch 2, 5 queries and 5 keys, and q, k have batch 2, 6"),
        ({"layout": Layout.dense(1, 6)}, "the layout is for batch 1, 6 queries and 6 keys, and q, k have batch 2"),
        ({"layout": Layout.dense(2, 6, cached=2)}, "the layout is for batch 2, 6 queries and 8 keys"),
        ({"layout": DENSE.to("meta")}, r"the layout is on meta and q on cpu; call layout.to\('cpu'\)"),
        ({"dropout": 1.0}, r"dropout \(1.0\) must be at least 0 and below 1"),
        ({"dropout": -0.1}, r"dropout \(-0.1\) must be at least 0 and below 1"),
        ({"pairs": None}, r"pairs must be an adapos.Pairs, not NoneType; an encoding's pairs\(\) makes one"),
    ],
)
def test_a_wrong_call_is_answered_with_one_sentence(given: dict[str, Any], message: str) -> None:
    call = {"q": Q, "k": K, "v": V, "layout": DENSE, "pairs": Pairs()} | given
    for function in (attend, explain):
        with pytest.raises(ValueError, match=message):
            function(**call)


def zeros(*size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.float64)


def mixed(**changes: Any) -> HeadMix:
    made = head_mix(Draw(1), AT, kernel=3)
    parts = {
        "w_in": made.w_in,
        "b_in": made.b_in,
        "w_out": made.w_out,
        "b_out": made.b_out,
        "form": made.form,
    } | changes
    return HeadMix(**parts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Pairs((Ramp(zeros(2, 4, 5), zeros(2, 4, 6)),)),
            r"Ramp.q must have shape \(2, 4, 6\), not \(2, 4, 5\)",
        ),
        (lambda: Pairs((Ramp(zeros(2, 4, 6), zeros(4, 6)),)), r"Ramp.k must have shape \(2, 4, 6\), not \(4, 6\)"),
        (lambda: Pairs((DistanceTable(zeros(3, 9)),)), r"DistanceTable.table must have shape \(4, any\), not \(3, 9\)"),
        (
            lambda: Pairs((DistanceDot(zeros(2, 4, 6, 3), zeros(2, 9, 3)),)),
            r"DistanceDot.r must have shape \(4, any, any\)",
        ),
        (lambda: Pairs((Grid(zeros(1, 4, 6, 6)),)), r"Grid.values must have shape \(2, 4, 6, 6\), not \(1, 4, 6, 6\)"),
        (
            lambda: Pairs((LogDot(zeros(2, 4, 5, 3), zeros(2, 2, 6, 3), 0.1),)),
            r"LogDot.q must have shape \(2, 4, 6, any\)",
        ),
        (
            lambda: Pairs((Fire(zeros(), zeros(), zeros(5), zeros(4), zeros(4, 5), zeros(4)),)),
            r"Fire.b1 must have shape \(5\), not \(4,\)",
        ),
        (
            lambda: Pairs((), Cope(zeros(2, 4, 5, 3))),
            r"Cope.logits must have shape \(2, 4, 6, any\), not \(2, 4, 5, 3\)",
        ),
        (
            lambda: Pairs((DistanceTable(zeros(4, 9).to("meta")),)),
            "DistanceTable.table is on meta and q on cpu; move them",
        ),
        (lambda: Pairs((), mixed(b_in=zeros(5))), r"HeadMix.b_in must have shape \(6\), not \(5,\)"),
        (lambda: Pairs((), mixed(w_out=zeros(4, 6, 5))), r"HeadMix.w_out must have shape \(4, 6, 3\), not \(4, 6, 5\)"),
        (
            lambda: Pairs((), mixed()),
            "HeadMix of form 'residual' without a bias reads 4 channels for 4 heads, and w_in has 8",
        ),
        (
            lambda: Pairs((table(Draw(1), AT),), mixed(form="add")),
            "HeadMix of form 'add' with a bias reads 4 channels for 4 heads, and w_in has 8",
        ),
        (
            lambda: Pairs((), mixed(form="bias", w_in=zeros(6, 4, 3))),
            "HeadMix of form 'bias' reads a bias, and these pairs hold none; add one or choose another form",
        ),
        (
            lambda: Pairs((table(Draw(1), AT),), mixed(w_in=zeros(6, 8, 2), w_out=zeros(4, 6, 2))),
            "HeadMix needs an odd kernel, and w_in has 2 taps",
        ),
    ],
)
def test_a_term_that_does_not_fit_is_answered_with_one_sentence(make: Callable[[], Pairs], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attend(Q, K, V, DENSE, make())


@pytest.mark.usefixtures("threads")
def test_making_threads_of_its_own_leaves_the_number_of_torchs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapos.kernels.threads._pool", None)
    torch.set_num_threads(2)
    Attention.make("mix 1 residual", "dense", length=300).run("tiled")
    assert torch.get_num_threads() == 2
    # threads that the caller makes later start from the setting that was made last
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 2


def test_several_threads_may_call_at_once() -> None:
    a = Attention.make("mix 3 residual", "dense", length=150)
    want = a.run("tiled")
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: a.run("tiled"), range(8)):
            assert max(map(apart, found, want)) < 1e-12


@pytest.mark.parametrize("backend", ["native", "tiled"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_a_key_may_be_hidden_by_a_bias_that_is_mixed(kernel: int, causal: bool, backend: str) -> None:
    """Weights that are positive make a logit of -inf of it, also where taps fall off the first key."""
    draw, layout = Draw(), Layout.dense(1, 9, causal=causal)
    q, k, table = draw(1, 2, 9, 8).float(), draw(1, 2, 9, 8).float(), draw(2, 12).detach().float()
    table[:, 5] = -torch.inf
    weights = [draw.positive(6, 4, kernel), draw(6), draw.positive(2, 6, kernel), draw(2)]
    mix = HeadMix(*(x.float() for x in weights), form="residual")
    pairs = Pairs((DistanceTable(table, 3),), mix)
    found, usual = (attend(q, k, k, layout, pairs, backend=name) for name in (backend, "reference"))
    assert usual.isfinite().any()
    assert found.isfinite().equal(usual.isfinite())
    assert (found - usual).nan_to_num(0.0).abs().max() < 1e-5


def test_tensors_that_a_transform_does_not_touch_may_stand_in_it() -> None:
    usual = attend(Q, K, V, DENSE)
    found = torch.func.vmap(lambda by: attend(Q, K, V, DENSE) * by)(torch.arange(3.0).to(Q))
    assert apart(found[2], 2 * usual) < 1e-12
    assert apart(torch.func.grad(lambda by: (attend(Q, K, V, DENSE) * by).sum())(Q.new_ones(())), usual.sum()) < 1e-12
