"""alibi, t5, kerple and fire against closed forms and independent transcriptions."""

import math

import pytest
import torch
from torch import Tensor

from adapos import Keys, Layout, Shape, build
from adapos.encodings.distance import slopes
from adapos.pairs import DistanceTable, Fire
from cases import LAYOUTS, SHAPE, Draw, apart, encoding

HEADS = SHAPE.heads


def bias(spec_or_encoding: object, layout: Layout, layer: int = 0, shape: Shape = SHAPE) -> Tensor:
    """(B or 1, H, T, S), in double precision."""
    made = encoding(spec_or_encoding, shape) if isinstance(spec_or_encoding, str) else spec_or_encoding
    draw = Draw(3)
    q = draw(layout.batch, shape.heads, layout.queries, shape.head_width)
    k = draw(layout.batch, shape.kv_heads, layout.keys, shape.head_width)
    total = made.pairs(layer, q, Keys(k, k), layout).added(layout)
    assert total is not None
    return total


def every_pair(layout: Layout, found: Tensor, want: object) -> None:
    """found[b, h, i, j] == want(h, p_i, p_j) for all pairs that are seen."""
    seen, found = layout.visible(), found.expand(layout.batch, -1, -1, -1)
    for b in range(layout.batch):
        for i in range(layout.queries):
            for j in range(layout.keys):
                if not seen[b, 0, i, j]:
                    continue
                for h in range(found.shape[1]):
                    value = want(h, int(layout.q_pos[b, i]), int(layout.k_pos[b, j]))  # type: ignore[operator]
                    assert float(found[b, h, i, j]) == pytest.approx(value, abs=1e-11)


SOME = [
    "dense",
    "some queries",
    "bidirectional",
    "shuffled ids",
    "bidirectional shuffled ids",
    "negative ids",
    "documents",
]


def test_slopes_of_a_power_of_two_are_a_geometric_series() -> None:
    assert slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert slopes(16) == pytest.approx([2 ** (-n / 2) for n in range(1, 17)])
    assert slopes(1) == [1 / 256]
    assert slopes(2) == [1 / 16, 1 / 256]


def test_slopes_of_other_numbers_interleave_those_of_the_next_power() -> None:
    first, between = [2.0**-n for n in range(1, 9)], [2 ** (-n / 2) for n in range(1, 17, 2)]
    assert slopes(12) == pytest.approx([*first, *between[:4]])
    assert slopes(12)[8:] == pytest.approx([0.70710678, 0.35355339, 0.17677670, 0.08838835])
    assert slopes(3) == pytest.approx([1 / 16, 1 / 256, 1 / 4])
    for heads in range(1, 40):
        assert len(set(slopes(heads))) == heads
        assert all(0 < slope < 1 for slope in slopes(heads))


@torch.no_grad()
@pytest.mark.parametrize("layout", SOME)
@pytest.mark.parametrize("heads", [4, 12])
def test_alibi_falls_with_distance_by_its_slopes(layout: str, heads: int) -> None:
    where, shape = LAYOUTS[layout](2, 9), Shape(layers=1, width=48, heads=heads)
    every_pair(where, bias("alibi", where, shape=shape), lambda h, i, j: -slopes(heads)[h] * abs(i - j))


def test_learned_slopes_start_as_the_fixed_ones_in_every_layer() -> None:
    learned = build("alibi(learned=True)", Shape(layers=3, width=48, heads=12))
    assert learned.slope.shape == (3, 12)
    assert learned.slope.requires_grad
    torch.testing.assert_close(learned.slope.detach(), torch.tensor(slopes(12)).expand(3, -1))
    assert list(build("alibi", SHAPE).parameters()) == []


def transcribed_bucket(distance: int, buckets: int, furthest: int, *, causal: bool) -> int:
    """T5's formula in whole numbers: a logarithm is never rounded."""
    first = 0
    if not causal:
        buckets //= 2
        first = buckets if distance < 0 else 0
        distance = abs(distance)
    distance = max(distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    rest = buckets - exact
    # the largest m with log(distance / exact) / log(furthest / exact) * rest >= m
    m = 0
    while distance**rest * exact ** (m + 1) >= furthest ** (m + 1) * exact**rest:
        m += 1
    return first + min(exact + m, buckets - 1)


@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (32, 512), (8, 20), (4, 3), (64, 1000), (16, 9)])
@pytest.mark.parametrize("causal", [True, False])
def test_buckets_are_those_of_the_formula_in_whole_numbers(buckets: int, furthest: int, causal: bool) -> None:
    t5 = build(f"t5(buckets={buckets}, furthest={furthest})", SHAPE)
    distances = torch.arange(-2 * furthest, 3 * furthest)
    want = [transcribed_bucket(int(d), buckets, furthest, causal=causal) for d in distances]
    assert t5.bucket(distances, causal=causal).tolist() == want
    assert min(want) >= 0
    assert max(want) < buckets


def test_buckets_known_by_heart() -> None:
    t5 = build("t5", SHAPE)
    distances = torch.tensor([0, 1, 15, 16, 17, 19, 31, 32, 64, 127, 128, 5000])
    assert t5.bucket(distances, causal=True).tolist() == [0, 1, 15, 16, 16, 17, 21, 21, 26, 31, 31, 31]
    # keys ahead have the upper half
    both = torch.tensor([0, 1, 7, 8, 127, -1, -7, -8, -127, -5000])
    assert t5.bucket(both, causal=False).tolist() == [0, 1, 7, 8, 15, 17, 23, 24, 31, 31]


@torch.no_grad()
@pytest.mark.parametrize("layout", [*SOME, "window", "bidirectional window"])
def test_t5_reads_its_table_by_bucket(layout: str) -> None:
    where, t5 = LAYOUTS[layout](2, 12), encoding("t5(buckets=8, furthest=7)")

    def want(h: int, i: int, j: int) -> float:
        return float(t5.table[h, transcribed_bucket(i - j, 8, 7, causal=where.causal)])

    every_pair(where, bias(t5, where), want)


def test_t5_shares_its_table_among_the_layers() -> None:
    where, t5 = Layout.dense(1, 9), encoding("t5")
    assert torch.equal(bias(t5, where, layer=0), bias(t5, where, layer=1))
    assert sum(x.numel() for x in t5.parameters()) == 4 * 32


@torch.no_grad()
@pytest.mark.parametrize("layout", SOME)
@pytest.mark.parametrize("layer", [0, 1])
def test_kerple_is_its_logarithm_or_its_power(layout: str, layer: int) -> None:
    where = LAYOUTS[layout](2, 9)
    log, power = encoding("kerple"), encoding("kerple(form='power')")
    for kerple in (log, power):
        kerple.p.data.clamp_(0.2, 1.8)

    def logarithm(h: int, i: int, j: int) -> float:
        return -float(log.p[layer, h]) * math.log(1 + float(log.a[layer, h]) * abs(i - j))

    every_pair(where, bias(log, where, layer), logarithm)
    every_pair(
        where,
        bias(power, where, layer),
        lambda h, i, j: -float(power.a[layer, h]) * abs(i - j) ** float(power.p[layer, h]),
    )


def test_kerple_starts_within_its_ranges() -> None:
    kerple = build("kerple", Shape(layers=50, width=80, heads=40))
    assert 0 <= kerple.p.min() < 0.02 < 1.98 < kerple.p.max() <= 2
    assert 0 <= kerple.a.min() < 0.01 < 0.99 < kerple.a.max() <= 1


@pytest.mark.parametrize("form", ["log", "power"])
def test_kerple_never_falls_below_its_floors_and_can_come_back(form: str) -> None:
    where, kerple = Layout.dense(1, 9), encoding(f"kerple(form='{form}')")
    kerple.p.data.fill_(-3.0)
    kerple.a.data.fill_(-0.5)
    below = bias(kerple, where)
    kerple.p.data.fill_(0.01)
    kerple.a.data.fill_(0.01)
    torch.testing.assert_close(below, bias(kerple, where))
    assert (below[0, :, 8, :8] < 0).all()
    kerple.p.data.fill_(-3.0)
    for parameter in torch.autograd.grad(bias(kerple, where)[0, :, -1].sum(), [kerple.p, kerple.a]):
        assert (parameter[0] != 0).all()


def test_the_power_of_kerple_is_at_most_two() -> None:
    where, kerple = Layout.dense(1, 9), encoding("kerple(form='power')")
    kerple.p.data.fill_(5.0)
    above = bias(kerple, where)
    kerple.p.data.fill_(2.0)
    torch.testing.assert_close(above, bias(kerple, where))


@torch.no_grad()
@pytest.mark.parametrize("layout", SOME)
@pytest.mark.parametrize("threshold", [512.0, 3.0])
def test_fire_is_its_network_of_a_ratio(layout: str, threshold: float) -> None:
    where, fire = LAYOUTS[layout](2, 9), encoding("fire(width=5)")
    fire.start = threshold
    c, multiplier = float(fire.c[1]), float(fire.multiplier[1])
    w1, b1, w2, b2 = (x[1].tolist() for x in (fire.w1, fire.b1, fire.w2, fire.b2))

    def psi(x: float) -> float:
        return math.log(1 + abs(c * x))

    def want(h: int, i: int, j: int) -> float:
        ratio = psi(abs(i - j)) / (psi(max(i, abs(multiplier * threshold))) + 1e-6)
        hidden = [max(w * ratio + b, 0.0) for w, b in zip(w1, b1, strict=True)]
        return sum(w * x for w, x in zip(w2[h], hidden, strict=True)) + b2[h]

    every_pair(where, bias(fire, where, layer=1), want)


@pytest.mark.parametrize("layout", SOME)
def test_fire_is_a_table_while_all_ids_lie_below_its_threshold(layout: str) -> None:
    where, fire = LAYOUTS[layout](2, 9), encoding("fire(width=5)")
    highest = max(where.last, where.span, where.ahead)
    q, keys = Draw(3)(2, HEADS, where.queries, 6), Keys(*Draw(3)(2, 2, SHAPE.kv_heads, 9, 6))
    for threshold, kind in ((highest, Fire), (highest + 0.5, DistanceTable)):
        fire.multiplier.data.fill_(-threshold / fire.start)
        assert isinstance(fire.pairs(1, q, keys, where).bias[0], kind)


@pytest.mark.parametrize("layout", SOME)
def test_fire_as_a_table_has_the_same_gradients(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, fire = LAYOUTS[layout](2, 9), encoding("fire(width=5)")

    def gradients() -> list[Tensor]:
        total = bias(fire, where, layer=1).expand(2, -1, -1, -1)
        return list(torch.autograd.grad((total * Draw(4)(*total.shape) * where.visible()).sum(), fire.parameters()))

    as_table = gradients()
    monkeypatch.setattr(type(fire), "_within", lambda *_: False)
    torch.testing.assert_close(as_table, gradients(), rtol=1e-10, atol=1e-12)
    assert all((g[1] != 0).any() for g in as_table)


def test_fire_learns_everything_it_has() -> None:
    where, fire = Layout.dense(1, 30), encoding("fire")
    fire.start = 10.0
    found = torch.autograd.grad((bias(fire, where) * Draw(4)(1, 4, 30, 30)).sum(), list(fire.parameters()))
    assert all((g[0] != 0).any() for g in found)
    assert [name for name, _ in fire.named_parameters()] == ["c", "multiplier", "w1", "b1", "w2", "b2"]


@pytest.mark.parametrize("spec", ["alibi", "t5", "kerple", "kerple(form='power')", "fire", "xl"])
def test_biases_of_a_half_precision_model_are_computed_in_single(spec: str) -> None:
    """bfloat16 tells only 897 distances apart among 0..8191."""
    where = Layout.dense(1, 1, cached=8000)
    made = build(spec, SHAPE).bfloat16()
    q, k = torch.randn(1, 4, 1, 8).bfloat16(), torch.randn(1, 4, 8001, 8).bfloat16()
    half = made.pairs(0, q, Keys(k, k), where).added(where)
    assert half.dtype == torch.float32
    made = made.double()
    exact = made.pairs(0, q.double(), Keys(k.double(), k.double()), where).added(where)
    assert apart(half, exact) < 1e-4
    if spec != "t5":
        assert len(half[0, 0, 0].unique()) > 4000


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("t5(buckets=31)", r"t5: buckets \(31\) must be even: bidirectional layouts split them in two"),
        ("t5(buckets=2)", "t5: buckets must be a whole number of at least 4, not 2"),
        ("t5(buckets=32, furthest=16)", "t5: furthest must be a whole number of at least 17, not 16"),
        ("kerple(form='lof')", "kerple: form must be one of 'log', 'power', not 'lof'; did you mean 'log'"),
        ("alibi(learned=1)", "alibi: learned must be True or False, not 1"),
        ("fire(width=0)", "fire: width must be a whole number of at least 1, not 0"),
        ("fire(width=2.5)", "fire: width must be a whole number of at least 1, not 2.5"),
    ],
)
def test_settings_that_make_no_sense_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(spec, SHAPE)


@pytest.mark.parametrize("spec", ["alibi", "kerple", "xl"])
def test_ids_too_far_apart_for_a_table_are_refused(spec: str) -> None:
    pos = torch.tensor([[0, 2**40]])
    with pytest.raises(ValueError, match="a table of distances reaches up to 4194304, and these ids are up to"):
        bias(spec, Layout(pos, pos))
    assert bias("t5", Layout(pos, pos)).isfinite().all()
