"""dape: its parameters, its forms against naive formulas, and that it starts at its base."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from adapos import Keys, Layout, Shape, build
from cases import LAYOUTS, SHAPE, Draw, apart, decoder, encoding, part, text

PAPER = Shape(layers=12, width=768, heads=12)


def count(spec: str, shape: Shape) -> int:
    return sum(x.numel() for x in part(build(spec, shape), "dape").parameters())


def test_the_parameters_are_as_many_as_the_paper_says() -> None:
    assert count("kerple + dape", PAPER) == 12 * 1196
    assert count("kerple + dape(kernel=3)", PAPER) == 12 * 3500
    # h channels in place of 2h
    for spec in ("dape", "rope + dape", *(f"kerple + dape(form={form!r})" for form in ("add", "scores", "bias"))):
        assert count(spec, PAPER) == 12 * (12 * 32 + 32 + 32 * 12 + 12)
    assert count("kerple + dape(form='concat', width=5)", PAPER) == 12 * (24 * 5 + 5 + 5 * 12 + 12)


@torch.no_grad()
def test_weights_start_in_the_range_of_pytorchs_own_layers() -> None:
    for kernel in (1, 3):
        dape = part(build(f"kerple + dape(kernel={kernel})", PAPER), "dape")
        conv_in, conv_out = torch.nn.Conv2d(24, 32, (1, kernel)), torch.nn.Conv2d(32, 12, (1, kernel))
        for own, usual in ((dape.w_in, conv_in.weight), (dape.b_in, conv_in.bias), (dape.w_out, conv_out.weight)):
            assert float(own.abs().max()) == pytest.approx(float(usual.abs().max()), rel=0.15)
        assert dape.b_out.abs().max() > 0


def naive(spec: str, score: Tensor, layout: Layout, bias: Tensor | None, dape: torch.nn.Module, layer: int) -> Tensor:
    """DAPE as its papers write it: an MLP at each pair, or two convolutions along the keys, unseen pairs zeroed."""
    unseen = ~layout.visible()
    form, kernel = dape.form, dape.kernel
    w_in, b_in, w_out, b_out = (x[layer] for x in (dape.w_in, dape.b_in, dape.w_out, dape.b_out))
    score = score.masked_fill(unseen, 0.0)
    bias = None if bias is None else bias.expand_as(score).masked_fill(unseen, 0.0)
    if bias is None:
        channels, static = score, score
    else:
        channels = {
            "residual": torch.cat([score, bias], dim=1),
            "concat": torch.cat([score, bias], dim=1),
            "add": score + bias,
            "scores": score,
            "bias": bias,
        }[form]
        static = score if form == "concat" else score + bias
    if kernel == 1:
        hidden = F.leaky_relu(F.linear(channels.movedim(1, -1), w_in[..., 0], b_in), 0.01)
        return static + F.linear(hidden, w_out[..., 0], b_out).movedim(-1, 1)
    pad = (0, kernel // 2)
    hidden = F.leaky_relu(F.conv2d(channels, w_in[:, :, None], b_in, padding=pad), 0.01).masked_fill(unseen, 0.0)
    return static + F.conv2d(hidden, w_out[:, :, None], b_out, padding=pad)


@pytest.mark.parametrize("layout", ["dense", "some queries", "bidirectional", "documents", "window"])
@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
@pytest.mark.parametrize("form", ["residual", "concat", "add", "scores", "bias", "none"])
def test_forms_are_those_of_the_papers(form: str, kernel: int, layout: str) -> None:
    spec = f"dape(kernel={kernel})" if form == "none" else f"alibi + dape(kernel={kernel}, form='{form}')"
    made, where, draw = encoding(spec), LAYOUTS[layout](2, 12), Draw(1)
    q, k = draw(2, 4, where.queries, 8), draw(2, 4, 12, 8)
    score = draw(2, 4, where.queries, 12)
    pairs = made.pairs(1, q, Keys(k, k), where)
    seen = where.visible()
    want = naive(spec, score, where, pairs.added(where), part(made, "dape"), 1)
    assert apart(pairs.rows(score, where).masked_fill(~seen, 0.0), want.masked_fill(~seen, 0.0)) < 1e-12


BASES = ["nope", "rope", "alibi", "kerple", "t5", "fire", "xl", "fox", "tape"]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("kernel", [1, 3])
def test_starting_at_zero_it_equals_its_base_to_the_bit_and_learns(base: str, kernel: int) -> None:
    tokens, spec = text(2, 20), f"{base} + dape(zero=True, kernel={kernel})"
    model = decoder(spec, moved=False, backend="reference")
    plain = decoder(base, moved=False, backend="reference")
    plain.encoding.load_state_dict(part(model.encoding, base).state_dict())
    assert torch.equal(model(tokens), plain(tokens))
    (model(tokens) * Draw(2)(2, 20, 31)).sum().backward()
    dape = part(model.encoding, "dape")
    assert all((g != 0).any() for g in dape.w_out.grad)
    assert not dape.w_out.any()
    assert not dape.b_out.any()
    assert dape.w_in.any()


def test_without_zero_it_does_not_equal_its_base() -> None:
    tokens = text(1, 20)
    assert apart(decoder("alibi + dape", moved=False)(tokens), decoder("alibi")(tokens)) > 1e-3


def test_the_mix_reads_the_sum_of_all_biases() -> None:
    both = encoding("kerple + alibi + dape")
    where, draw = Layout.dense(1, 8), Draw(1)
    q, score = draw(1, 4, 8, 8), draw(1, 4, 8, 8)
    pairs = both.pairs(0, q, Keys(q, q), where)
    total = part(both, "kerple").pairs(0, q, Keys(q, q), where).added(where)
    total = total + part(both, "alibi").pairs(0, q, Keys(q, q), where).added(where)
    want, seen = naive("", score, where, total, part(both, "dape"), 0), where.visible()
    assert apart(pairs.rows(score, where).masked_fill(~seen, 0.0), want.masked_fill(~seen, 0.0)) < 1e-12


def test_the_order_of_the_parts_does_not_matter() -> None:
    tokens = text(1, 15)
    first, second = decoder("kerple + dape"), decoder("dape + kerple")
    for name in ("kerple", "dape"):
        part(second.encoding, name).load_state_dict(part(first.encoding, name).state_dict())
    assert torch.equal(first(tokens), second(tokens))


def test_cape_is_its_first_name() -> None:
    assert type(build("cape(kernel=3)", SHAPE)) is type(build("dape", SHAPE))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dape(kernel=2)", r"dape: kernel \(2\) must be odd, so that it has a centre"),
        ("dape(kernel=0)", "dape: kernel must be a whole number of at least 1, not 0"),
        ("dape(width=0)", "dape: width must be a whole number of at least 1, not 0"),
        ("dape(form='residul')", "dape: form must be one of .*, not 'residul'; did you mean 'residual'"),
        ("dape(zero=0)", "dape: zero must be True or False, not 0"),
        ("dape(form='bias')", "dape: form='bias' reads the bias of an encoding beside it, and there is none; write"),
        ("rope + dape(form='bias')", "dape: form='bias' reads the bias of an encoding beside it, and there is none"),
        ("dape + cope", "dape and cope both mix scores; an encoding may hold only one of them"),
        ("dape + cape", "dape and dape both mix scores"),
    ],
)
def test_settings_and_neighbours_that_make_no_sense_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(spec, SHAPE)
