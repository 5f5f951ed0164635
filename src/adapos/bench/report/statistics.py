"""Whether a difference could be chance: a paired t-test, and Holm's correction for many of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

ROUNDING = 1e-9
NEEDED = 3  # pairs: two differences may agree by chance


def paired(differences: Sequence[float], finest: float = 0.0) -> float:
    """The two-sided p of a t-test that these differences, two or more, have a mean of zero.

    `finest` is the spread that rounding alone gives them; they are not taken to have less. Where they have none at
    all, only their sign tells.
    """
    x = np.asarray(differences, dtype=np.float64)
    error = max(float(x.std(ddof=1)), finest) / math.sqrt(len(x))
    mean = float(x.mean())
    if error <= ROUNDING * abs(mean):
        return min(1.0, 2.0 ** (1 - len(x))) if mean else 1.0
    return tail(mean / error, len(x) - 1)


def tail(t: float, freedom: int) -> float:
    """The chance that Student's t with so many degrees of freedom lies further from 0 than this, on either side."""
    return beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - beta(1 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(scale) / (a * fraction(x, a, b))


def fraction(x: float, a: float, b: float, terms: int = 500) -> float:
    """1 + d1 x / (1 + d2 x / (1 + ...)), whose inverse is the beta function's continued fraction, from its end on."""
    value = 1.0
    for i in range(terms, 0, -1):
        m = i // 2
        if i % 2:
            d = -(a + m) * (a + b + m) / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + d * x / value
    return value


def holm(chances: Sequence[float]) -> list[float]:
    """Each p as large as it must be for all verdicts together to err no oftener than one of them would."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    found = [0.0] * len(chances)
    most = 0.0
    for rank, at in enumerate(order):
        most = max(most, min(1.0, (len(chances) - rank) * chances[at]))
        found[at] = most
    return found
