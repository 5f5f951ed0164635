"""Randomized positions: what is drawn, when, and for whom."""

import pytest
import torch
from torch import Tensor

from adapos import build
from adapos.model import Cache
from cases import SHAPE, apart, decoder, packed, text


def ids(pos: Tensor, spec: str = "randomized", *, training: bool = True) -> Tensor:
    encoding = build(spec, SHAPE).train(training)
    return encoding.begin(torch.zeros(*pos.shape, 32), pos)[1]


def test_training_ids_are_sorted_distinct_and_below_factor_times_length() -> None:
    for factor in (1, 4, 10):
        drawn = ids(torch.arange(50).expand(64, -1), f"randomized(factor={factor})")
        assert drawn.dtype == torch.int64
        assert (drawn.diff(dim=1) > 0).all()
        assert drawn.min() >= 0
        assert drawn.max() < factor * 50
    assert torch.equal(ids(torch.arange(50)[None], "randomized(factor=1)"), torch.arange(50)[None])


def test_every_id_is_as_likely_as_any_other() -> None:
    drawn = ids(torch.arange(10).expand(4000, -1))
    often = torch.bincount(drawn.flatten(), minlength=40).double() / 4000
    assert (often - 0.25).abs().max() < 0.05


def test_rows_and_steps_draw_anew() -> None:
    pos = torch.arange(50).expand(2, -1)
    first, second = ids(pos), ids(pos)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, second)


def test_the_seed_decides() -> None:
    pos = torch.arange(50).expand(2, -1)
    torch.manual_seed(3)
    first = ids(pos)
    torch.manual_seed(3)
    assert torch.equal(ids(pos), first)


def test_evaluation_reads_the_ids_as_they_are() -> None:
    pos = torch.arange(50).expand(2, -1)
    assert ids(pos, training=False) is pos


def test_documents_packed_in_one_row_share_the_draw() -> None:
    pos = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4]])
    drawn = ids(pos)[0]
    assert torch.equal(drawn[:3], drawn[4:7])
    assert torch.equal(drawn[:4], drawn[7:11])
    # the longest document is what the range is made for
    assert drawn.max() < 4 * 5


def test_a_training_step_packs_documents_as_it_does_without() -> None:
    model, doc = decoder("randomized(factor=1) + kerple").train(), packed([7, 5])
    plain = decoder("kerple").train()
    plain.encoding.load_state_dict(
        {name.removeprefix("parts.1."): x for name, x in model.encoding.state_dict().items()}
    )
    tokens = text(1, 12)
    assert apart(model(tokens, doc=doc), plain(tokens, doc=doc)) < 1e-12


def test_training_sees_other_ids_wherever_the_part_stands() -> None:
    for spec in ("randomized + rope", "rope + randomized", "sinusoidal + randomized"):
        model, tokens = decoder(spec), text(1, 12)
        with torch.no_grad():
            calm = model(tokens)
            assert apart(model.train()(tokens), calm) > 1e-3
            torch.manual_seed(4)
            first = model(tokens)
            torch.manual_seed(4)
            assert torch.equal(model(tokens), first)


def test_all_parts_read_the_same_drawn_ids() -> None:
    x, pos = torch.zeros(1, 12, 32, dtype=torch.float64), torch.arange(12)[None]
    both = build("sinusoidal + randomized", SHAPE).train()
    y, drawn, _ = both.begin(x, pos)
    assert not torch.equal(drawn, pos)
    assert apart(y, build("sinusoidal", SHAPE).begin(x, drawn)[0]) < 1e-12


def test_a_cache_is_refused_while_training() -> None:
    model = decoder("randomized + rope").train()
    with pytest.raises(ValueError, match=r"cannot decode with a cache: ids are drawn anew .* call .eval\(\) to decode"):
        model(text(1, 4), cache=Cache())
    model.eval()(text(1, 4), cache=Cache())


def test_ids_below_zero_have_no_draw() -> None:
    with pytest.raises(ValueError, match="randomized: positions must be at least 0, and one is -3; shift the ids"):
        ids(torch.tensor([[-3, 0]]))


def test_a_factor_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="randomized: factor must be a whole number of at least 1, not 0"):
        build("randomized(factor=0)", SHAPE)
