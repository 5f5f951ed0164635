"""The decoder: its hooks, its weights, its ids and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from adapos import Keys, Layout, Pairs, PositionalEncoding, Shape, Tokens, build
from adapos.model import Cache, Decoder
from adapos.model.layer import begun
from cases import SHAPE, VOCABULARY, apart, decoder, packed, text


class Diary(PositionalEncoding):
    """Writes down what it is called with."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.calls: list[tuple[Any, ...]] = []

    def begin(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Any]:
        self.calls.append(("begin", tuple(x.shape), pos.tolist()))
        return x, pos, 0

    def tokens(self, layer: int, t: Tokens, pos: Tensor, state: Any) -> Tokens:
        self.calls.append(("tokens", layer, tuple(t.q.shape), tuple(t.k.shape), state))
        return t.but(extra={"own": t.v})

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        self.calls.append(("pairs", layer, tuple(q.shape), tuple(keys.k.shape), tuple(keys.extra["own"].shape)))
        return Pairs()

    def after_attention(self, layer: int, out: Tensor, state: Any) -> tuple[Tensor, Any]:
        self.calls.append(("after_attention", layer, tuple(out.shape), state))
        return out, state + 1

    def after_mlp(self, layer: int, x: Tensor, y: Tensor, state: Any) -> Any:
        self.calls.append(("after_mlp", layer, tuple(x.shape), tuple(y.shape), state))
        return state + 1


def test_the_hooks_are_called_in_their_order_with_all_tokens_so_far() -> None:
    shape = Shape(layers=2, width=32, heads=4, kv_heads=2)
    diary = Diary(shape)
    model, cache = Decoder(VOCABULARY, shape, diary), Cache()
    model(text(1, 5), cache=cache)
    diary.calls.clear()
    model(text(1, 3), cache=cache)
    layers = [
        [
            ("tokens", layer, (1, 4, 3, 8), (1, 2, 3, 8), 2 * layer),
            ("pairs", layer, (1, 4, 3, 8), (1, 2, 8, 8), (1, 2, 8, 8)),
            ("after_attention", layer, (1, 4, 3, 8), 2 * layer),
            ("after_mlp", layer, (1, 3, 32), (1, 3, 32), 2 * layer + 1),
        ]
        for layer in (0, 1)
    ]
    assert diary.calls == [("begin", (1, 3, 32), [[5, 6, 7]]), *layers[0], *layers[1]]


@pytest.mark.parametrize("mlp", ["swiglu", "gelu"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_every_kind_of_decoder_trains(mlp: str, tied: bool, kv_heads: int) -> None:
    shape = Shape(layers=2, width=32, heads=4, kv_heads=kv_heads)
    torch.manual_seed(0)
    model = Decoder(VOCABULARY, shape, "kerple + dape(kernel=3)", mlp=mlp, tied=tied, dropout=0.1)
    assert (model.head.weight is model.embedding.weight) == tied
    tokens, optimizer = text(4, 16), torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_the_block_is_a_pre_norm_transformer() -> None:
    """Written once more, in plain PyTorch."""
    import torch.nn.functional as F

    model, tokens = decoder("nope"), text(2, 9)
    with torch.no_grad():
        x = model.embedding.weight[tokens]
        for block in model.blocks:
            h = F.rms_norm(x, (32,), block.before_attention.weight, 1e-5)
            q, k, v = (
                F.linear(h, p.weight).view(2, 9, 4, 8).transpose(1, 2)
                for p in (block.attention.q, block.attention.k, block.attention.v)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 9, 32)
            x = x + F.linear(y, block.attention.out.weight)
            h = F.rms_norm(x, (32,), block.before_mlp.weight, 1e-5)
            gate = F.silu(F.linear(h, block.mlp.gate.weight)) * F.linear(h, block.mlp.up.weight)
            x = x + F.linear(gate, block.mlp.down.weight)
        want = F.linear(F.rms_norm(x, (32,), model.norm.weight, 1e-5), model.head.weight)
        assert apart(model(tokens), want) < 1e-12


def test_what_is_added_to_the_stream_starts_smaller_in_a_deeper_model() -> None:
    for layers in (2, 8):
        model = Decoder(VOCABULARY, Shape(layers=layers, width=128, heads=4), "rope")
        for name, weight in model.named_parameters():
            if weight.ndim == 2:
                added = name.endswith(("attention.out.weight", "mlp.down.weight"))
                want = 0.02 / (2 * layers) ** 0.5 if added else 0.02
                assert float(weight.detach().std()) == pytest.approx(want, rel=0.1), name


def test_encodings_leave_all_other_weights_as_they_are() -> None:
    """So that a difference between two trained models is the encoding's."""
    found = []
    for spec in ("nope", "kerple + dape", "tape", "learned"):
        torch.manual_seed(7)
        found.append(Decoder(VOCABULARY, SHAPE, spec).state_dict())
    for other in found[1:]:
        for name, x in found[0].items():
            assert torch.equal(other[name], x), name
        assert all(name.startswith("encoding.") for name in other.keys() - found[0].keys())


@torch.no_grad()
def test_without_ids_each_document_counts_from_zero() -> None:
    model, tokens = decoder("learned(longest=8)"), text(1, 15)
    doc = packed([8, -2, 5])
    pos = torch.tensor([[*range(8), 0, 0, *range(5)]])
    assert torch.equal(model(tokens, doc=doc), model(tokens, doc=doc, pos=pos))


@torch.no_grad()
@pytest.mark.parametrize("spec", ["rope", "kerple + dape(kernel=3)", "fox", "cable", "cope", "tape"])
def test_another_document_is_never_felt_even_between_ones_own_tokens(spec: str) -> None:
    model, tokens, doc = decoder(spec), text(1, 8), torch.tensor([[0, 1, 0, 0, 1, 1, 0, 1]])
    other = torch.where(doc == 1, (tokens + 1) % VOCABULARY, tokens)
    mine = doc[0] == 0
    assert apart(model(other, doc=doc)[:, mine], model(tokens, doc=doc)[:, mine]) < 1e-12


@torch.no_grad()
@pytest.mark.parametrize("spec", ["rope", "kerple + dape", "fox", "cope", "tape"])
def test_padding_amid_a_document_is_as_if_it_were_not_there(spec: str) -> None:
    model, tokens, doc = decoder(spec), text(1, 8), torch.tensor([[0, 0, 0, -1, 0, 0, -1, 0]])
    kept = doc[0] == 0
    assert apart(model(tokens, doc=doc)[:, kept], model(tokens[:, kept])) < 1e-12


@torch.no_grad()
def test_a_padded_row_alone_is_finite() -> None:
    for spec in ("rope", "kerple + dape(kernel=3)", "tape", "cope", "fox"):
        model, doc = decoder(spec), torch.full((1, 6), -1)
        assert model(text(1, 6), doc=doc).isfinite().all()
        model.float()
        with torch.enable_grad():
            model(text(1, 6), doc=doc).sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@torch.no_grad()
def test_a_bidirectional_model_reads_what_comes_later() -> None:
    tokens = text(1, 9)
    other = tokens.clone()
    other[0, -1] = (other[0, -1] + 1) % VOCABULARY
    model = decoder("t5")
    assert apart(model(other)[:, :-1], model(tokens)[:, :-1]) == 0
    assert apart(model(other, causal=False)[:, 0], model(tokens, causal=False)[:, 0]) > 1e-4


@torch.no_grad()
def test_generating_greedily_is_taking_the_best_token_again_and_again() -> None:
    for spec in ("rope", "kerple + dape(kernel=3)", "tape", "learned(longest=11)"):
        model, tokens = decoder(spec), text(2, 5)
        found = model.generate(tokens, 7)
        assert found.shape == (2, 12)
        for _ in range(7):
            tokens = torch.cat([tokens, model(tokens)[:, -1].argmax(-1, keepdim=True)], dim=1)
        assert torch.equal(found, tokens)
        assert torch.equal(model.generate(text(2, 5), 0), text(2, 5))


@torch.no_grad()
def test_generating_from_left_padded_rows_is_generating_from_each_alone() -> None:
    model = decoder("kerple + dape")
    short, long = text(1, 4, seed=3), text(1, 7, seed=4)
    tokens = torch.cat([torch.cat([torch.zeros(1, 3, dtype=torch.long), short], 1), long])
    doc = torch.zeros(2, 7, dtype=torch.long)
    doc[0, :3] = -1
    found = model.generate(tokens, 6, doc=doc)
    assert torch.equal(found[:1, 3:], model.generate(short, 6))
    assert torch.equal(found[1:], model.generate(long, 6))


def test_generating_behind_padding_is_refused() -> None:
    """The last column must be a token, or there is nothing to go on from."""
    doc = torch.tensor([[0, 0, 0, -1]])
    with pytest.raises(ValueError, match="left"):
        decoder("rope").generate(text(1, 4), 2, doc=doc)


@torch.no_grad()
def test_generating_at_a_temperature_follows_the_seed_and_the_odds() -> None:
    model, tokens = decoder("rope"), text(1, 5).expand(4000, -1)
    torch.manual_seed(1)
    first = model.generate(tokens, 1, temperature=0.7)[:, -1]
    torch.manual_seed(1)
    assert torch.equal(model.generate(tokens, 1, temperature=0.7)[:, -1], first)
    odds = (model(tokens[:1])[0, -1] / 0.7).softmax(-1)
    often = torch.bincount(first, minlength=VOCABULARY) / 4000
    assert (often - odds).abs().max() < 0.04


def test_the_model_of_an_encoding_without_a_spec_can_be_printed() -> None:
    class Own(PositionalEncoding):
        pass

    assert "Own" in repr(Decoder(VOCABULARY, SHAPE, Own(SHAPE)))
    assert "encoding='kerple + dape'" in repr(Decoder(VOCABULARY, SHAPE, "kerple + dape"))


@pytest.mark.parametrize(
    "spec", ["rope", "cope", "fox", "xl", "kerple + dape(kernel=3)", "tape", "tape(form='additive')"]
)
def test_a_model_runs_under_autocast(spec: str) -> None:
    model, tokens = decoder(spec).float(), text(2, 12)
    with torch.no_grad():
        exact = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        out = model(tokens)
    out.float().sum().backward()
    assert apart(out, exact) < 0.15
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.encoding.parameters())


def test_activation_checkpointing_changes_nothing() -> None:
    from torch.utils.checkpoint import checkpoint

    model, tokens = decoder("kerple + dape(kernel=3)"), text(2, 12)

    def run(*, again: bool) -> list[Tensor]:
        x, layout, state = begun(model.encoding, model.embedding(tokens), Layout.dense(2, 12))
        for block in model.blocks:
            args = (x, model.encoding, layout, state, None)
            x, state = checkpoint(block, *args, use_reentrant=False) if again else block(*args)
        return list(
            torch.autograd.grad(x.square().sum(), [p for p in model.parameters() if p is not model.norm.weight])
        )

    for a, b in zip(run(again=True), run(again=False), strict=True):
        assert apart(a, b) < 1e-12


def test_a_model_is_saved_and_loaded_with_its_positions() -> None:
    model, again = decoder("kerple + dape"), decoder("kerple + dape", moved=False)
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(again(text(1, 9)), model(text(1, 9)))


TOKENS = text(2, 4)


@pytest.mark.parametrize(
    ("tokens", "settings", "message"),
    [
        (TOKENS[:, :0], {}, r"tokens must have shape \(batch, length\) with at least one of each, not \(2, 0\)"),
        (TOKENS[:0], {}, r"tokens must have shape \(batch, length\) with at least one of each, not \(0, 4\)"),
        (TOKENS[0], {}, r"tokens must have shape \(batch, length\) with at least one of each, not \(4,\)"),
        (TOKENS[None], {}, r"tokens must have shape .* not \(1, 2, 4\)"),
        (TOKENS.float(), {}, "tokens must be integers, not torch.float32"),
        (TOKENS > 0, {}, "tokens must be integers, not torch.bool"),
        (TOKENS, {"pos": TOKENS[:, :3]}, r"pos must have the shape of tokens, \(2, 4\), not \(2, 3\)"),
        (TOKENS, {"pos": TOKENS[0]}, r"pos must have the shape of tokens, \(2, 4\), not \(4,\)"),
        (TOKENS, {"doc": TOKENS[:1]}, r"doc must have the shape of tokens, \(2, 4\), not \(1, 4\)"),
        (
            TOKENS,
            {"pos": TOKENS.float()},
            "q_pos must hold integers, not torch.float32; positions and documents are whole, cast",
        ),
        (TOKENS, {"doc": TOKENS.double()}, "doc must hold integers, not torch.float64"),
        (TOKENS, {"pos": TOKENS.float(), "cache": Cache()}, "q_pos must hold integers, not torch.float32"),
        (TOKENS, {"window": 0}, r"window \(0\) must be a whole number of at least 1: a query sees itself"),
        (
            TOKENS,
            {"pos": TOKENS, "doc": TOKENS.to("meta")},
            "doc is on meta and the decoder on cpu; move them to one device",
        ),
        (TOKENS, {"pos": TOKENS.to("meta")}, "meta.*cpu|cpu.*meta"),
        (TOKENS.to("meta"), {}, "meta.*cpu|cpu.*meta"),
    ],
)
def test_what_the_decoder_cannot_read_is_refused(tokens: Tensor, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoder("rope")(tokens, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocabulary": 0}, r"vocabulary must be a whole number of at least 1, not 0"),
        ({"mlp": "swigly"}, "Decoder: mlp must be one of 'swiglu', 'gelu', not 'swigly'; did you mean 'swiglu'"),
        ({"encoding": "kerpel"}, "no encoding is called 'kerpel'; did you mean 'kerple'"),
        (
            {"encoding": build("kerple", Shape(layers=3, width=32, heads=4))},
            r"the encoding was built for Shape\(layers=3, .*\) and the decoder is Shape\(layers=2, .*\); build it",
        ),
    ],
)
def test_a_decoder_that_cannot_be_built_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Decoder(**({"vocabulary": VOCABULARY, "shape": SHAPE} | settings))


def test_a_backend_that_cannot_run_the_model_is_refused_and_never_replaced() -> None:
    with pytest.raises(ValueError, match="backend 'sdpa' cannot run this call: HeadMix reads scores, and sdpa never"):
        decoder("kerple + dape", backend="sdpa")(text(1, 4))
    with pytest.raises(
        ValueError,
        match=r"no backend is called 'tield'; did you mean 'tiled'\? there are auto, native, triton, sdpa, tiled, ref",
    ):
        decoder("kerple + dape", backend="tield")
    with pytest.raises(ValueError, match=r"new must be a whole number of at least 0, not -1"):
        decoder("rope").generate(text(1, 4), -1)
