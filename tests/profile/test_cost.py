"""Arithmetic by formula, against torch's own counter over the reference and against counting pairs one by one."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from adapos import Keys, Layout, Pairs, Shape, attend, build
from adapos.encodings.distance import FirePositions
from adapos.kernels import Call
from adapos.layout import ALL
from adapos.pairs import Bias, Mix
from adapos.profile import cost

H, G, D, C = 4, 2, 6, 24


@pytest.fixture(autouse=True)
def fire_past_its_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it, it is a table."""
    monkeypatch.setattr(FirePositions, "start", 1.0)


def a_call(spec: str, *, batch: int = 1, queries: int, cached: int = 0, values: int = D) -> Call:
    """Without the hooks that act on tokens: only what happens to pairs."""
    shape = Shape(layers=1, width=C, heads=H, kv_heads=G, head_width=D)
    encoding, layout = build(spec, shape), Layout.dense(batch, queries, cached=cached)
    q = torch.randn(batch, H, queries, D, requires_grad=True)
    k = torch.randn(batch, G, queries + cached, D, requires_grad=True)
    v = torch.randn(batch, G, queries + cached, values, requires_grad=True)
    return Call.checked(q, k, v, layout, encoding.pairs(0, q, Keys(k, v), layout), None, 0.0)


def run_by_the_reference(call: Call, *, training: bool) -> int:
    """The products that torch counts."""
    pairs = call.pairs.holding([x.detach().requires_grad_() for x in call.pairs.tensors()])
    with FlopCounterMode(display=False) as counter:
        out = attend(call.q, call.k, call.v, call.layout, pairs, backend="reference")
        if training:
            out.sum().backward()
    return counter.get_total_flops()


def pairs_one_by_one(layout: Layout) -> int:
    seen = layout.visible()[0, 0].tolist()
    return sum(1 for row in seen for key in row if key)


# a lone query sees all keys, so that the full matrix of the reference holds no pair that does not count
@pytest.mark.parametrize("values", [D, 2 * D])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("spec", ["nope", "alibi", "dape", "dape(kernel=3, width=5)", "kerple + dape(form='add')"])
def test_a_lone_query_costs_what_torch_counts(spec: str, batch: int, values: int) -> None:
    call = a_call(spec, batch=batch, queries=1, cached=8, values=values)
    products = cost.products(call)
    assert products is not None
    assert products.forward == run_by_the_reference(call, training=False)
    # the reference keeps what it computed before the softmax, and others compute it again
    assert products.total(training=True) - products.before == run_by_the_reference(call, training=True)


@pytest.mark.parametrize("kernel", [1, 3])
def test_the_bias_half_of_dape_costs_a_product_for_each_distance_only(kernel: int) -> None:
    call = a_call(f"kerple + dape(kernel={kernel}, width=5)", queries=1, cached=8)
    products = cost.products(call)
    assert products is not None
    assert products.tables == 9 * 2 * H * 5 * kernel
    # of one query there are as many pairs as distances
    assert products.forward == run_by_the_reference(call, training=False)
    assert products.total(training=True) - products.before == run_by_the_reference(call, training=True)
    longer = cost.products(a_call(f"kerple + dape(kernel={kernel}, width=5)", queries=9))
    assert longer is not None
    assert longer.tables == products.tables


@pytest.mark.parametrize(("queries", "cached"), [(1, 0), (7, 0), (1, 6), (4, 3)])
def test_only_pairs_that_are_seen_count(queries: int, cached: int) -> None:
    layout = Layout.dense(2, queries, cached=cached)
    assert cost.visible(layout) == pairs_one_by_one(layout)


@pytest.mark.parametrize(
    ("spec", "a_pair"),
    [
        ("nope", 0),
        ("t5", 0),
        ("fire(width=8)", 2 * 8 + 2 * H * 8),
        ("xl", 2 * H * D),
        ("dape(width=8)", 2 * 2 * H * 8),
        ("kerple + dape(width=8)", 2 * 2 * H * 8),
        ("kerple + dape(width=8, kernel=3)", 3 * 2 * 2 * H * 8),
        ("kerple + dape(width=8, form='bias')", 2 * H * 8),
        ("fire(width=8) + dape(width=8)", 2 * 8 + 2 * H * 8 + 3 * 2 * H * 8),
        ("fire(width=8) + dape(width=8, form='bias')", 2 * 8 + 2 * H * 8 + 2 * 2 * H * 8),
        ("cope", 0),
    ],
)
def test_each_term_costs_its_formula_for_each_pair(spec: str, a_pair: int) -> None:
    call = a_call(spec, queries=5)
    products = cost.products(call)
    assert products is not None
    assert products.before == pairs_one_by_one(call.layout) * (2 * H * D + a_pair)
    assert products.after == pairs_one_by_one(call.layout) * 2 * H * D


def test_fire_is_computed_once_for_all_rows_of_a_batch() -> None:
    one, three = (cost.products(a_call("fire", batch=batch, queries=5)) for batch in (1, 3))
    scores = cost.products(a_call("nope", queries=5))
    assert one is not None
    assert three is not None
    assert scores is not None
    assert three.before - one.before == 2 * scores.before


def test_the_plain_count_is_that_of_a_call_with_no_pairs() -> None:
    call = a_call("nope", batch=3, queries=5)
    assert cost.plain(3, H, D, call.layout) == cost.products(call)


@dataclass(frozen=True, eq=False)
class Odd(Bias):
    values: torch.Tensor

    def sizes(self, *given: Any) -> Any:
        return {"values": (None,)}

    def rows(self, layout: Layout, rows: slice = ALL) -> torch.Tensor:
        return self.values[None, :, None, None]


@dataclass(frozen=True, eq=False)
class OddMix(Mix):
    values: torch.Tensor

    def sizes(self, *given: Any) -> Any:
        return {"values": (None,)}


@pytest.mark.parametrize("pairs", [Pairs((Odd(torch.ones(H)),)), Pairs(mix=OddMix(torch.ones(H)))])
def test_a_term_that_is_not_known_is_not_counted(pairs: Pairs) -> None:
    q, k, v = torch.randn(1, H, 3, D), torch.randn(1, G, 3, D), torch.randn(1, G, 3, D)
    assert cost.products(Call.checked(q, k, v, Layout.dense(1, 3), pairs, None, 0.0)) is None


def test_what_the_pairs_of_an_encoding_compute_is_counted_as_it_runs() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    assert cost.counted(lambda: a @ b + 1) == 2 * 3 * 4 * 5


def test_the_cache_is_read_whole() -> None:
    assert cost.cached(torch.zeros(2, 3), torch.zeros(5, dtype=torch.bfloat16)) == 6 * 4 + 5 * 2
