"""Statistics of the report, against published tables, closed forms and other ways to the same number."""

import itertools
import math

import numpy as np
import pytest

from adapos.bench.report import statistics

# two-sided 5 % and 1 % points of Student's t, as printed in tables
TABLE = [(1, 12.706, 63.657), (2, 4.303, 9.925), (3, 3.182, 5.841), (4, 2.776, 4.604), (9, 2.262, 3.250)]
TABLE += [(30, 2.042, 2.750), (120, 1.980, 2.617)]


@pytest.mark.parametrize(("freedom", "five", "one"), TABLE)
def test_tails_are_those_of_printed_tables(freedom: int, five: float, one: float) -> None:
    assert statistics.tail(five, freedom) == pytest.approx(0.05, rel=1e-3)
    assert statistics.tail(-one, freedom) == pytest.approx(0.01, rel=2e-3)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 4.0, 60.0, 1e4])
def test_tails_of_one_and_two_degrees_have_closed_forms(t: float) -> None:
    assert statistics.tail(t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-9, abs=1e-13)
    assert statistics.tail(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-6, abs=1e-14)


@pytest.mark.parametrize("freedom", [1, 2, 5, 40])
@pytest.mark.parametrize("t", [0.2, 1.5, 3.0])
def test_tails_are_the_integral_of_the_density(freedom: int, t: float) -> None:
    x, step = np.linspace(0, t, 20_001, retstep=True)
    scale = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    density = scale * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    inside = step * (density.sum() - (density[0] + density[-1]) / 2)
    assert statistics.tail(t, freedom) == pytest.approx(1 - 2 * inside, abs=1e-8)


def test_the_beta_function_is_symmetric_and_ends_at_0_and_1() -> None:
    for x, a, b in itertools.product((0.0, 0.01, 0.3, 0.5, 0.9, 1.0), (0.5, 1.0, 7.5), (0.5, 2.0)):
        assert statistics.beta(x, a, b) == pytest.approx(1 - statistics.beta(1 - x, b, a), abs=1e-12)
    assert statistics.beta(0.3, 1.0, 2.0) == pytest.approx(1 - 0.7**2)


def test_a_paired_test_agrees_with_permuted_signs() -> None:
    x = np.random.default_rng(3).normal(0.35, 1.0, 14)
    signs = np.array(list(itertools.product((-1, 1), repeat=len(x))))
    permuted = np.abs((signs * x).mean(1)) >= abs(x.mean()) - 1e-12
    assert statistics.paired(x.tolist()) == pytest.approx(permuted.mean(), abs=0.02)


def test_a_paired_test_by_hand() -> None:
    # mean 2, deviation 1, so t = 2 sqrt(3) with two degrees of freedom
    assert statistics.paired([1.0, 2.0, 3.0]) == pytest.approx(1 - math.sqrt(12 / 14))


def test_equal_differences_are_certain_and_none_is_no_difference() -> None:
    assert statistics.paired([0.5, 0.5]) == 0.5
    assert statistics.paired([0.5] * 6) == 2 / 64
    assert statistics.paired([1.0, 1.0, 1.0], finest=0.01) < 0.001
    assert statistics.paired([0.02, 0.02, 0.02], finest=0.02) > 0.05
    assert statistics.paired([0.5 - 0.4, 0.4 - 0.3, 0.3 - 0.2]) == 0.25  # but for rounding the same
    assert statistics.paired([0.0, 0.0, 0.0]) == 1.0


def test_holm_by_hand() -> None:
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.6, 0.5]) == [1.0, 1.0]
    assert statistics.holm([0.02]) == [0.02]
    assert statistics.holm([]) == []
