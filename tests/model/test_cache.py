"""Decoding with a cache: chunks, padding, documents, cropping, selecting, and what a failure leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from adapos import Shape
from adapos.model import Cache, Decoder
from cases import SHAPE, apart, decoder, packed, text

SPECS = [
    "rope",
    "kerple",
    "kerple + dape(kernel=3)",
    "rope + fox",
    "tape",
    "tape(form='additive') + dape",
    "cope",
    "xl",
]


@torch.no_grad()
def chunked(
    model: Decoder, tokens: Tensor, sizes: Sequence[int], cache: Cache | None = None, **ids: Tensor | None
) -> Tensor:
    """The logits of tokens decoded in parts of these sizes."""
    cache, parts, begin = Cache() if cache is None else cache, [], 0
    for size in sizes:
        here = slice(begin, begin + size)
        own = {name: None if x is None else x[:, here] for name, x in ids.items()}
        parts.append(model(tokens[:, here], cache=cache, **own))
        begin += size
    assert begin == tokens.shape[1]
    return torch.cat(parts, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("sizes", [[1] * 20, [20], [19, 1], [1, 19], [7, 1, 5, 7]], ids=str)
def test_decoding_in_any_chunks_equals_one_pass(spec: str, sizes: list[int]) -> None:
    model, tokens = decoder(spec), text(2, 20)
    assert apart(chunked(model, tokens, sizes), model(tokens)) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_decoding_while_gradients_are_recorded_equals_one_pass(spec: str) -> None:
    model, tokens = decoder(spec), text(1, 12)
    with torch.enable_grad():
        cache = Cache()
        parts = [model(tokens[:, here], cache=cache) for here in (slice(0, 5), slice(5, 6), slice(6, 12))]
        found = torch.autograd.grad(torch.cat(parts, 1)[..., 0].sum(), list(model.parameters()), allow_unused=True)
        want = torch.autograd.grad(model(tokens)[..., 0].sum(), list(model.parameters()), allow_unused=True)
    for a, b in zip(found, want, strict=True):
        assert (a is None) == (b is None)
        assert a is None or apart(a, b) < 1e-11


@torch.no_grad()
def test_what_was_cached_with_gradients_serves_without_and_the_other_way_round() -> None:
    model, tokens = decoder("kerple + dape"), text(1, 12)
    want = model(tokens)
    for first in (True, False):
        cache, parts = Cache(), []
        for index, here in enumerate((slice(0, 4), slice(4, 8), slice(8, 9), slice(9, 12))):
            with torch.set_grad_enabled(first == (index % 2 == 0)):
                parts.append(model(tokens[:, here], cache=cache))
        assert apart(torch.cat(parts, 1), want) < 1e-12


def test_what_was_cached_in_inference_mode_serves_outside_of_it() -> None:
    model, tokens = decoder("rope"), text(1, 8)
    cache = Cache()
    with torch.inference_mode():
        parts = [model(tokens[:, :3], cache=cache), model(tokens[:, 3:4], cache=cache)]
    with torch.no_grad():
        parts += [model(tokens[:, index : index + 1], cache=cache) for index in range(4, 8)]
        assert apart(torch.cat([part.clone() for part in parts], 1), model(tokens)) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_left_padded_rows_decode_as_if_they_were_alone(spec: str) -> None:
    model = decoder(spec)
    short, long = text(1, 5, seed=3), text(1, 9, seed=4)
    tokens = torch.cat([torch.cat([torch.zeros(1, 4, dtype=torch.long), short], dim=1), long])
    doc = torch.zeros(2, 9, dtype=torch.long)
    doc[0, :4] = -1
    cache = Cache()
    first = chunked(model, tokens, [6, 3], cache, doc=doc)
    # no ids and no documents given: each row goes on where it is
    more = text(2, 4, seed=5)
    then = chunked(model, more, [1, 3], cache)
    for row, own in enumerate((short, long)):
        alone = model(torch.cat([own, more[row : row + 1]], dim=1))
        together = torch.cat([first[row : row + 1, 9 - own.shape[1] :], then[row : row + 1]], dim=1)
        assert apart(together, alone) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_documents_packed_behind_one_another_decode_as_in_one_pass(spec: str) -> None:
    model, tokens = decoder(spec), text(2, 15)
    for sizes in ([4, 5, 6], [15], [1, -3, 11]):
        doc = packed(sizes, batch=2)
        assert apart(chunked(model, tokens, [6, 1, 1, 7], doc=doc), model(tokens, doc=doc)) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("number", [0, 1, 7])
def test_one_document_may_have_any_number(number: int) -> None:
    model, tokens = decoder("kerple"), text(2, 10)
    doc = torch.full((2, 10), number)
    assert apart(chunked(model, tokens, [4, 1, 5], doc=doc), model(tokens)) < 1e-12


@torch.no_grad()
def test_a_new_document_may_begin_after_a_first_pass_without_any() -> None:
    model, tokens = decoder("kerple"), text(1, 10)
    cache = Cache()
    first = model(tokens[:, :4], cache=cache)
    second = model(tokens[:, 4:], cache=cache, doc=torch.ones(1, 6, dtype=torch.long))
    assert apart(first, model(tokens[:, :4])) < 1e-12
    assert apart(second, model(tokens[:, 4:])) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("doc", [[0, 0, 1, 1], [1, 1, 0, 0], [3, -1, 0, 0], [5, 5, 2, -1]])
def test_a_row_goes_on_with_its_last_document(doc: list[int]) -> None:
    model, tokens = decoder("kerple"), text(1, 7)
    last = [number for number in doc if number != -1][-1]
    cache = Cache()
    model(tokens[:, :4], doc=torch.tensor([doc]), cache=cache)
    found = model(tokens[:, 4:], cache=cache)
    want = model(tokens, doc=torch.tensor([doc + [last] * 3]))[:, 4:]
    assert apart(found, want) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_ids_of_ones_own_decode_as_in_one_pass_and_are_gone_on_from(spec: str) -> None:
    model, tokens = decoder(spec), text(1, 12)
    pos = torch.tensor([[3, 5, 5, 9, 2, 30, 31, 32, 33, 34, 35, 36]])
    assert apart(chunked(model, tokens, [3, 1, 8], pos=pos), model(tokens, pos=pos)) < 1e-12
    cache = Cache()
    first = model(tokens[:, :6], pos=pos[:, :6], cache=cache)
    then = chunked(model, tokens[:, 6:], [1, 5], cache)
    assert apart(torch.cat([first, then], dim=1), model(tokens, pos=pos)) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("window", [1, 3, 50])
def test_a_window_slides_over_the_cache(window: int) -> None:
    model, tokens = decoder("kerple + dape"), text(2, 12)
    cache = Cache()
    parts = [model(tokens[:, here], cache=cache, window=window) for here in (slice(0, 5), slice(5, 6), slice(6, 12))]
    assert apart(torch.cat(parts, 1), model(tokens, window=window)) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_a_cropped_cache_has_forgotten(spec: str) -> None:
    model, tokens, other = decoder(spec), text(2, 12), text(2, 6, seed=9)
    cache = Cache()
    chunked(model, tokens, [5, 7], cache)
    cache.crop(6)
    assert cache.length == len(cache) == 6
    found = chunked(model, other, [1, 5], cache)
    assert apart(found, model(torch.cat([tokens[:, :6], other], 1))[:, 6:]) < 1e-12


@torch.no_grad()
def test_cropping_padded_rows_forgets_their_documents_too() -> None:
    model, tokens = decoder("kerple"), text(2, 8)
    doc = torch.tensor([[-1, -1, 0, 0, 0, 0, 1, 1], [0] * 8])
    cache = Cache()
    model(tokens, doc=doc, cache=cache)
    cache.crop(5)
    assert apart(model(tokens[:, 5:], doc=doc[:, 5:], cache=cache), model(tokens, doc=doc)[:, 5:]) < 1e-12


@torch.no_grad()
def test_a_cache_cropped_to_nothing_is_new() -> None:
    model, cache = decoder("kerple"), Cache()
    model(text(2, 5), cache=cache, pos=torch.arange(5).expand(2, -1) * 3)
    cache.crop(0)
    assert (cache.length, cache.bytes) == (0, 0)
    assert apart(model(text(3, 4), cache=cache), model(text(3, 4))) < 1e-12


def test_a_cache_cannot_be_cropped_to_more_than_it_holds() -> None:
    cache = Cache()
    decoder("rope")(text(1, 3), cache=cache)
    for length in (4, -1):
        with pytest.raises(ValueError, match=f"the cache holds 3 tokens and cannot be cropped to {length}"):
            cache.crop(length)


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("padded", [False, True])
def test_selected_rows_go_on_in_their_new_order(spec: str, padded: bool) -> None:
    model, tokens, rows = decoder(spec), text(3, 7), torch.tensor([2, 0, 0, 1])
    doc = torch.zeros(3, 7, dtype=torch.long)
    if padded:
        doc[1, :3] = -1
    cache = Cache()
    model(tokens, doc=doc if padded else None, cache=cache)
    cache.select(rows)
    more = text(4, 5, seed=8)
    found = chunked(model, more, [2, 3], cache)
    going_on = torch.zeros(4, 5, dtype=torch.long)
    want = model(torch.cat([tokens[rows], more], 1), doc=torch.cat([doc[rows], going_on], 1))[:, 7:]
    assert apart(found, want) < 1e-12


class Failing:
    """Makes the second block fail once, after the first has written to the cache."""

    def __init__(self, model: Decoder, patch: pytest.MonkeyPatch) -> None:
        self.model, self.patch = model, patch

    def fails(self, *args: Any, **settings: Any) -> None:
        def broken(*_: Any) -> Any:
            raise RuntimeError("out of memory")

        with self.patch.context() as patch:
            patch.setattr(self.model.blocks[1], "forward", broken)
            with pytest.raises(RuntimeError, match="out of memory"):
                self.model(*args, **settings)


@torch.no_grad()
@pytest.mark.parametrize("spec", SPECS)
def test_a_failure_midway_leaves_the_cache_as_it_was(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens, cache = decoder(spec), text(2, 12), Cache()
    first = model(tokens[:, :5], cache=cache)
    kept = cache.bytes
    Failing(model, monkeypatch).fails(text(2, 9, seed=7), cache=cache)
    assert (cache.length, cache.bytes) == (5, kept)
    # fewer tokens, then more than failed
    parts = [model(tokens[:, 5:7], cache=cache), model(tokens[:, 7:], cache=cache)]
    assert apart(torch.cat([first, *parts], 1), model(tokens)) < 1e-12


@torch.no_grad()
def test_a_first_pass_that_fails_leaves_the_cache_new(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache = decoder("rope"), Cache()
    Failing(model, monkeypatch).fails(text(2, 9), cache=cache)
    assert (cache.length, cache.bytes) == (0, 0)
    for batch in (2, 3):
        again = Cache() if batch == 3 else cache
        assert apart(model(text(batch, 4), cache=again), model(text(batch, 4))) < 1e-12
    cache = Cache()
    Failing(model, monkeypatch).fails(text(2, 9), cache=cache)
    assert apart(model(text(3, 4), cache=cache), model(text(3, 4))) < 1e-12


@torch.no_grad()
def test_a_token_refused_by_the_encoding_leaves_the_cache_as_it_was() -> None:
    model, cache, tokens = decoder("learned(longest=6)"), Cache(), text(1, 6)
    model(tokens[:, :5], cache=cache)
    with pytest.raises(ValueError, match="position 6 is past the table of 6"):
        model(text(1, 2), cache=cache)
    assert apart(model(tokens[:, 5:], cache=cache), model(tokens)[:, 5:]) < 1e-12


@torch.no_grad()
def test_a_step_copies_its_own_tokens_only() -> None:
    """Buffers grow by doubling: most steps write into what is there."""
    model, cache, moves, where = decoder("rope"), Cache(), 0, 0
    for token in text(1, 64).T:
        model(token[None], cache=cache)
        here = cache.tensors[0]["k"].data_ptr()
        moves, where = moves + (here != where), here
    assert moves <= 8


@torch.no_grad()
def test_the_cache_knows_what_it_holds() -> None:
    shape = Shape(layers=2, width=32, heads=4, kv_heads=2)
    model, cache = decoder("rope + fox", shape), Cache()
    model(text(3, 7), cache=cache)
    assert len(cache) == cache.length == 7
    assert set(cache.tensors) == {0, 1}
    assert {name: tuple(x.shape) for name, x in cache.tensors[1].items()} == {
        "k": (3, 2, 7, 8),
        "v": (3, 2, 7, 8),
        "extra.fox": (3, 4, 7),
    }
    assert cache.bytes == 2 * 8 * 3 * 7 * (2 * 8 + 2 * 8 + 4)


def test_what_does_not_fit_the_cache_is_refused() -> None:
    model, cache = decoder("rope"), Cache()
    model(text(2, 3), cache=cache)
    with pytest.raises(ValueError, match="the cache holds a batch of 2 and the new tokens are 3; start a new Cache"):
        model(text(3, 1), cache=cache)
    with pytest.raises(
        ValueError, match=r"the cache holds k as .* torch.float64 .* torch.float32 .*; start a new Cache"
    ):
        decoder("rope").float()(text(2, 1), cache=cache)
    with pytest.raises(ValueError, match=r"the cache holds k, v and the layer now gives k, v, extra\.fox; start a new"):
        decoder("fox")(text(2, 1), cache=cache)
    with pytest.raises(ValueError, match="a cache is for causal attention: with causal=False earlier tokens would see"):
        model(text(2, 1), cache=cache, causal=False)
    assert cache.length == 3


def test_an_encoding_of_ones_own_that_is_not_cacheable_is_refused_with_its_reason() -> None:
    """Also where it has no spec."""
    from adapos import PositionalEncoding, Promises

    class Uncacheable(PositionalEncoding):
        promises = Promises(cacheable=False, because="it looks back and forth")

    model = decoder(Uncacheable(SHAPE))
    with pytest.raises(ValueError, match="cannot decode with a cache: it looks back and forth"):
        model(text(1, 3), cache=Cache())


@pytest.mark.parametrize("rows", [torch.tensor([True, False]), torch.tensor([0.0]), torch.tensor([], dtype=torch.long)])
def test_rows_to_keep_are_given_by_number(rows: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="rows must be the numbers of the rows to keep"):
        Cache().select(rows)
