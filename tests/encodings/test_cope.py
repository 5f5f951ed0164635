"""CoPE against a naive loop."""

import math

import pytest
import torch

from adapos import Keys, build
from cases import LAYOUTS, SHAPE, Draw, decoder, encoding, text


@torch.no_grad()
@pytest.mark.parametrize("layout", ["dense", "some queries", "documents", "interleaved documents", "window"])
@pytest.mark.parametrize("positions", [2, 4, 64])
def test_positions_are_counted_by_gates_and_interpolated(layout: str, positions: int) -> None:
    where, cope, draw = LAYOUTS[layout](2, 9), encoding(f"cope(positions={positions})"), Draw(1)
    q, k = draw(2, 4, where.queries, 8), draw(2, 4, 9, 8)
    score = q @ k.transpose(-1, -2) / math.sqrt(8)
    found = cope.pairs(1, q, Keys(k, k), where).rows(score, where)
    seen = where.visible()
    for b in range(2):
        for h in range(4):
            for i in range(where.queries):
                embedded = (q[b, h, i] @ cope.table[1]).tolist()
                position = 0.0
                for j in reversed(range(9)):
                    if not seen[b, 0, i, j]:
                        assert float(found[b, h, i, j]) == -math.inf
                        continue
                    position = position + 1 / (1 + math.exp(-float(score[b, h, i, j])))
                    cut = min(position, positions - 1)
                    low, high = embedded[math.floor(cut)], embedded[math.ceil(cut)]
                    want = float(score[b, h, i, j]) + low + (high - low) * (cut - math.floor(cut))
                    assert float(found[b, h, i, j]) == pytest.approx(want, abs=1e-11)


def test_it_starts_as_no_encoding_and_learns() -> None:
    model, tokens = decoder("cope", moved=False), text(2, 12)
    plain = decoder("nope")
    torch.testing.assert_close(model(tokens), plain(tokens), rtol=0, atol=1e-12)
    model(tokens)[..., 0].sum().backward()
    assert all((g != 0).any() for g in model.encoding.table.grad)


def test_fewer_than_two_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="cope: positions must be a whole number of at least 2, not 1"):
        build("cope(positions=1)", SHAPE)
