"""Shapes, promises, the default hooks, and composition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from adapos import Compose, Keys, Layout, Pairs, PositionalEncoding, Promises, Shape, Tokens, build
from cases import SHAPE, Draw


def test_a_shape_fills_in_what_is_left_out() -> None:
    shape = Shape(layers=2, width=64, heads=8)
    assert (shape.kv_heads, shape.head_width) == (8, 8)
    assert Shape(2, 64, 8) == shape == Shape(layers=2, width=64, heads=8, kv_heads=8, head_width=8)
    assert hash(Shape(2, 64, 8)) == hash(shape)
    assert Shape(2, 65, 8, head_width=10).head_width == 10
    assert Shape(2, 64, 8, 2) != shape


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"heads": 7}, r"width \(64\) must be a multiple of heads \(7\), or give head_width"),
        ({"kv_heads": 3}, r"heads \(8\) must be a multiple of kv_heads \(3\)"),
        ({"layers": 0}, r"layers \(0\) must be a whole number of at least 1"),
        ({"width": -64}, r"width \(-64\) must be a whole number of at least 1"),
        ({"heads": 8.0}, r"heads \(8.0\) must be a whole number of at least 1"),
        ({"heads": True}, r"heads \(True\) must be a whole number"),
        ({"kv_heads": 0}, r"kv_heads \(0\) must be a whole number of at least 1"),
        ({"head_width": 0}, r"head_width \(0\) must be a whole number of at least 1"),
    ],
)
def test_a_shape_that_does_not_divide_is_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Shape(**({"layers": 2, "width": 64, "heads": 8} | sizes))


def test_every_default_hook_is_the_identity() -> None:
    encoding, draw = PositionalEncoding(SHAPE), Draw(1)
    x, pos, q = draw(1, 3, 32), torch.arange(3)[None], draw(1, 4, 3, 8)
    assert encoding.begin(x, pos) == (x, pos, None)
    t = Tokens(x, q, q, q)
    assert encoding.tokens(0, t, pos, None) is t
    pairs = encoding.pairs(0, q, Keys(q, q), Layout.dense(1, 3))
    assert pairs.terms == ()
    assert encoding.after_attention(0, q, "state") == (q, "state")
    assert encoding.after_mlp(0, x, x, "state") == "state"
    assert not encoding.travels
    assert encoding.promises == Promises()


def test_promises_of_a_composition_are_those_that_all_parts_keep() -> None:
    limited = Promises(relative=False, longest=64, because="a table")
    causal = Promises(causal_only=True, longest=100, because="gates")
    both = limited & causal
    assert both == Promises(relative=False, causal_only=True, longest=64, because="a table; gates")
    assert both & Promises() == both
    assert (Promises(cacheable=False) & Promises()).cacheable is False
    composed = build("learned(longest=64) + fox + dape", SHAPE).promises
    assert (composed.relative, composed.causal_only, composed.longest, composed.cacheable) == (False, True, 64, True)


def test_a_composition_does_what_any_of_its_parts_does() -> None:
    rope, mixed, travelling = (build(spec, SHAPE) for spec in ("rope + kerple", "randomized + dape", "nope + tape"))
    assert (rope.rotates, rope.biases, rope.mixes, rope.renumbers, rope.travels) == (True, True, False, False, False)
    assert (mixed.rotates, mixed.biases, mixed.mixes, mixed.renumbers) == (False, False, True, True)
    assert travelling.travels
    additive = build("nope + tape(form='additive')", SHAPE)
    assert (additive.rotates, additive.biases, additive.travels) == (False, True, True)


class Spy(PositionalEncoding):
    """Writes down which hook it was called by, with which state."""

    def __init__(self, shape: Shape, label: str, diary: list[tuple[Any, ...]]) -> None:
        super().__init__(shape)
        self.name, self.label, self.diary = label, label, diary

    def begin(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Any]:
        self.diary.append(("begin", self.label))
        return x + 1, pos, f"state of {self.label}"

    def tokens(self, layer: int, t: Tokens, pos: Tensor, state: Any) -> Tokens:
        self.diary.append(("tokens", self.label, state))
        return t.but(extra={**t.extra, self.label: t.x})

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        self.diary.append(("pairs", self.label))
        return Pairs()

    def after_attention(self, layer: int, out: Tensor, state: Any) -> tuple[Tensor, Any]:
        self.diary.append(("after_attention", self.label, state))
        return out + 1, f"{state}'"

    def after_mlp(self, layer: int, x: Tensor, y: Tensor, state: Any) -> Any:
        self.diary.append(("after_mlp", self.label, state))
        return f"{state}''"


def test_a_composition_calls_the_hooks_of_its_parts_in_turn_each_with_its_own_state() -> None:
    diary: list[tuple[Any, ...]] = []
    both = Compose([Spy(SHAPE, "a", diary), Spy(SHAPE, "b", diary)])
    x, pos, q = torch.zeros(1, 3, 32), torch.arange(3)[None], torch.zeros(1, 4, 3, 8)
    moved, _, state = both.begin(x, pos)
    assert torch.equal(moved, x + 2)
    t = both.tokens(0, Tokens(x, q, q, q), pos, state)
    assert set(t.extra) == {"a", "b"}
    both.pairs(0, q, Keys(q, q), Layout.dense(1, 3))
    out, state = both.after_attention(0, q, state)
    assert torch.equal(out, q + 2)
    assert both.after_mlp(0, x, x, state) == ["state of a'''", "state of b'''"]
    assert diary == [
        ("begin", "a"),
        ("begin", "b"),
        ("tokens", "a", "state of a"),
        ("tokens", "b", "state of b"),
        ("pairs", "a"),
        ("pairs", "b"),
        ("after_attention", "a", "state of a"),
        ("after_attention", "b", "state of b"),
        ("after_mlp", "a", "state of a'"),
        ("after_mlp", "b", "state of b'"),
    ]


def test_a_state_given_to_a_composition_is_not_written_into() -> None:
    both = Compose([Spy(SHAPE, "a", []), Spy(SHAPE, "b", [])])
    state = ["one", "two"]
    both.after_attention(0, torch.zeros(1, 4, 3, 8), state)
    assert state == ["one", "two"]


def test_parts_are_told_once_whom_they_stand_beside() -> None:
    class Asking(PositionalEncoding):
        name = "asking"

        def beside(self, others: Any) -> None:
            self.others = [other.name for other in others]

    asking = Asking(SHAPE)
    Compose([build("kerple", SHAPE), asking, build("rope", SHAPE)])
    assert asking.others == ["kerple", "rope"]


def test_tokens_are_changed_by_making_new_ones() -> None:
    q = torch.zeros(1, 4, 3, 8)
    t = Tokens(torch.zeros(1, 3, 32), q, q, q)
    changed = t.but(k=q + 1)
    assert torch.equal(t.k, q)
    assert changed.q is q
    assert torch.equal(changed.k, q + 1)
