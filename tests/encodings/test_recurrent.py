"""Transformer-XL's relative encoding against a naive double loop."""

import math

import pytest
import torch

from adapos import Keys, Shape
from cases import LAYOUTS, Draw, apart, encoding


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(
    "layout", ["dense", "some queries", "bidirectional", "bidirectional shuffled ids", "ids that jump", "documents"]
)
def test_scores_are_those_of_a_double_loop(layout: str, kv_heads: int) -> None:
    shape = Shape(layers=2, width=12, heads=4, kv_heads=kv_heads, head_width=6)
    xl, where, draw = encoding("xl", shape), LAYOUTS[layout](2, 7), Draw(1)
    q, k = draw(2, 4, where.queries, 6), draw(2, kv_heads, where.keys, 6)
    found = xl.pairs(1, q, Keys(k, k), where).added(where)
    seen, want = where.visible(), torch.zeros(2, 4, where.queries, where.keys, dtype=torch.float64)
    for b in range(2):
        for i in range(where.queries):
            for j in range(where.keys):
                far = int(where.q_pos[b, i] - where.k_pos[b, j])
                angles = [far / 10000 ** (2 * m / 12) for m in range(6)]
                r = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
                for h in range(4):
                    key, compared = k[b, h * kv_heads // 4, j], xl.w_r[1, h] @ r
                    content = xl.u[1, h] @ key
                    position = (q[b, h, i] + xl.v[1, h]) @ compared
                    want[b, h, i, j] = ((content + position) / math.sqrt(6)).detach()
    assert apart(found.masked_fill(~seen, 0.0), want.masked_fill(~seen, 0.0)) < 1e-12


def test_all_its_parameters_learn() -> None:
    xl, where, draw = encoding("xl"), LAYOUTS["dense"](1, 9), Draw(1)
    q, k = draw(1, 4, 9, 8), draw(1, 4, 9, 8)
    total = (xl.pairs(0, q, Keys(k, k), where).added(where) * draw(1, 4, 9, 9)).sum()
    assert all((g[0] != 0).any() for g in torch.autograd.grad(total, list(xl.parameters())))
