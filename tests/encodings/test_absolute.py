"""nope, sinusoidal, learned."""

import math

import pytest
import torch

from adapos import Shape, build
from adapos.encodings.absolute import sinusoids
from cases import SHAPE, apart, decoder, encoding, text


def test_no_encoding_sees_the_ids_not_at_all() -> None:
    model, tokens = decoder("nope"), text(2, 12)
    with torch.no_grad():
        assert torch.equal(model(tokens, pos=torch.randint(99, (2, 12))), model(tokens))
    assert list(build("nope", SHAPE).parameters()) == []


def test_sinusoids_are_those_of_the_formula() -> None:
    width, pos = 10, torch.tensor([[0, 1, 7], [5, 1000, 123456]])
    found = sinusoids(pos, width)
    for row in range(2):
        for token in range(3):
            p = int(pos[row, token])
            angles = [p / 10000 ** (2 * m / width) for m in range(width // 2)]
            want = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
            torch.testing.assert_close(found[row, token], want, rtol=0, atol=1e-10)


def test_an_odd_width_has_its_sinusoids() -> None:
    assert sinusoids(torch.arange(3), 7).shape == (3, 7)
    x, _, _ = build("sinusoidal", Shape(layers=1, width=7, heads=1)).begin(torch.zeros(1, 3, 7), torch.arange(3)[None])
    assert x.isfinite().all()


def test_sinusoids_are_added_to_the_embeddings() -> None:
    x, pos = torch.randn(2, 5, 32, dtype=torch.float64), torch.randint(100, (2, 5))
    y, same, state = build("sinusoidal", SHAPE).begin(x, pos)
    assert apart(y - x, sinusoids(pos, 32)) < 1e-12
    assert same is pos
    assert state is None


def test_the_learned_table_is_added_by_id() -> None:
    learned = encoding("learned(longest=9)")
    x, pos = torch.randn(1, 4, 32, dtype=torch.float64), torch.tensor([[8, 0, 3, 3]])
    y, _, _ = learned.begin(x, pos)
    torch.testing.assert_close(y[0] - x[0], learned.table[[8, 0, 3, 3]])
    assert learned.table.shape == (9, 32)


def test_a_position_past_the_learned_table_is_refused_with_its_number() -> None:
    model = decoder("learned(longest=6)")
    model(text(1, 6))
    with pytest.raises(ValueError, match="learned: position 6 is past the table of 6; evaluate up to 6 or choose"):
        model(text(1, 7))
    with pytest.raises(ValueError, match="learned: position 40 is past the table of 6"):
        model(text(1, 2), pos=torch.tensor([[0, 40]]))
    with pytest.raises(ValueError, match="learned: positions must be at least 0, and one is -1; shift the ids"):
        model(text(1, 2), pos=torch.tensor([[-1, 0]]))


def test_the_table_of_a_half_precision_model_is_added_in_its_precision() -> None:
    for spec in ("learned", "sinusoidal"):
        x = torch.zeros(1, 3, 32, dtype=torch.bfloat16)
        assert build(spec, SHAPE).begin(x, torch.arange(3)[None])[0].dtype == torch.bfloat16
