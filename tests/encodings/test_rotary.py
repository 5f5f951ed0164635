"""rope against complex multiplication, its schedules against transformers, xpos against its formula."""

import math

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from adapos import PositionalEncoding, Shape, Tokens, build
from cases import SHAPE, apart, decoder, text

SHAPES = {64: Shape(layers=1, width=128, heads=2), 8: Shape(layers=1, width=16, heads=2)}


def turned(encoding: PositionalEncoding, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys as the encoding turns them at these ids."""
    x = q.new_zeros(*pos.shape, encoding.shape.width)
    x, pos, state = encoding.begin(x, pos)
    t = encoding.tokens(0, Tokens(x, q, k, k), pos, state)
    return t.q, t.k


def as_complex(x: Tensor) -> Tensor:
    return torch.complex(*x.chunk(2, dim=-1))


def drawn(shape: Shape, tokens: int = 7, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    size = (2, shape.heads, tokens, shape.head_width)
    return torch.randn(size, dtype=dtype), torch.randn(size, dtype=dtype)


@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_rope_multiplies_complex_numbers(base: float) -> None:
    q, k = drawn(SHAPE)
    pos = torch.tensor([[0, 1, 2, 50, 50, 3, 999], [7, 6, 5, 4, 3, 2, 100000]])
    frequency = torch.tensor([base ** (-2 * m / 8) for m in range(4)], dtype=torch.float64)
    turn = torch.polar(torch.ones(()).double(), pos[:, None, :, None] * frequency)
    found = turned(build(f"rope(base={base})", SHAPE), q, k, pos)
    for x, y in zip((q, k), found, strict=True):
        want = as_complex(x) * turn
        torch.testing.assert_close(as_complex(y), want, rtol=0, atol=1e-10)


def test_a_score_depends_on_distance_alone() -> None:
    q, k = (x[:, :, :1].expand(-1, -1, 7, -1) for x in drawn(SHAPE))
    q, k = turned(build("rope", SHAPE), q, k, torch.arange(7).expand(2, -1))
    score = q @ k.transpose(-1, -2)
    for offset in range(-6, 7):
        diagonal = score.diagonal(offset, -2, -1)
        torch.testing.assert_close(diagonal, diagonal[..., :1].expand_as(diagonal), rtol=0, atol=1e-12)


def config(width: int, kind: str, **settings: float) -> LlamaConfig:
    parameters = {"rope_type": kind, "rope_theta": 10000.0, **settings}
    return LlamaConfig(
        hidden_size=2 * width,
        num_attention_heads=2,
        head_dim=width,
        max_position_embeddings=2048,
        rope_parameters=parameters,
    )


def frequencies(spec: str, width: int, length: int = 1) -> tuple[Tensor, float]:
    found, size = build(spec, SHAPES[width]).angles.frequencies(torch.arange(length)[None])
    return found.reshape(-1, width // 2)[0], size


@pytest.mark.parametrize("width", [8, 64])
@pytest.mark.parametrize("factor", [1.0, 2.0, 8.0, 32.0])
def test_linear_is_that_of_transformers(width: int, factor: float) -> None:
    want, size = ROPE_INIT_FUNCTIONS["linear"](config(width, "linear", factor=factor), "cpu")
    found, own = frequencies(f"rope(schedule='linear', factor={factor})", width)
    torch.testing.assert_close(found.float(), want, rtol=1e-6, atol=0)
    assert own == size == 1.0


@pytest.mark.parametrize("width", [8, 64])
@pytest.mark.parametrize("factor", [1.0, 2.0, 8.0, 32.0])
@pytest.mark.parametrize("trained", [16, 2048])
def test_yarn_is_that_of_transformers(width: int, factor: float, trained: int) -> None:
    settings = {"factor": factor, "original_max_position_embeddings": trained}
    want, size = ROPE_INIT_FUNCTIONS["yarn"](config(width, "yarn", **settings), "cpu")
    found, own = frequencies(f"rope(schedule='yarn', factor={factor}, trained={trained})", width)
    torch.testing.assert_close(found.float(), want, rtol=1e-5, atol=1e-9)
    assert own == pytest.approx(size)


@pytest.mark.parametrize("width", [8, 64])
@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("length", [5, 2048, 2049, 5000])
def test_dynamic_is_that_of_transformers(width: int, factor: float, length: int) -> None:
    want, size = ROPE_INIT_FUNCTIONS["dynamic"](config(width, "dynamic", factor=factor), "cpu", seq_len=length)
    found, own = frequencies(f"rope(schedule='dynamic', factor={factor}, trained=2048)", width, length)
    torch.testing.assert_close(found.float(), want, rtol=1e-5, atol=1e-9)
    assert own == size == 1.0


@pytest.mark.parametrize("width", [8, 64])
@pytest.mark.parametrize("factor", [1.0, 2.0, 8.0])
def test_ntk_is_the_dynamic_schedule_of_transformers_at_its_factor(width: int, factor: float) -> None:
    length = int(factor * 2048)
    want, _ = ROPE_INIT_FUNCTIONS["dynamic"](config(width, "dynamic", factor=1.0), "cpu", seq_len=length)
    found, _ = frequencies(f"rope(schedule='ntk', factor={factor})", width)
    torch.testing.assert_close(found.float(), want, rtol=1e-5, atol=1e-9)


def test_yarn_enlarges_queries_and_keys() -> None:
    q, k = drawn(SHAPE)
    pos = torch.arange(7).expand(2, -1)
    found = turned(build("rope(schedule='yarn', factor=4.0, trained=16)", SHAPE), q, k, pos)
    for x, y in zip((q, k), found, strict=True):
        want = (0.1 * math.log(4) + 1) * x.norm(dim=-1)
        torch.testing.assert_close(y.norm(dim=-1), want)


def test_each_row_of_a_batch_has_its_own_dynamic_length() -> None:
    model = decoder("rope(schedule='dynamic', factor=2.0, trained=8)")
    tokens = text(1, 12).expand(2, -1)
    pos = torch.stack([torch.arange(12), torch.arange(12) * 3])
    with torch.no_grad():
        together = model(tokens, pos=pos)
        for row in (0, 1):
            assert apart(together[row : row + 1], model(tokens[:1], pos=pos[row : row + 1])) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spec", ["rope", "tape", "rope(schedule='yarn', factor=4.0, trained=2048)"])
def test_angles_stay_precise_at_position_100000(spec: str, dtype: torch.dtype) -> None:
    """The distance between two far tokens is known as well as between two near ones."""
    shape = SHAPES[64]
    encoding = build(spec, shape)
    q, k = drawn(shape, dtype=dtype)
    steps = torch.tensor([0, 1, 2, 3, 10, 100, 1000]).expand(2, -1)

    def scores(pos: Tensor, kind: torch.dtype) -> Tensor:
        x = torch.zeros(2, 7, shape.width, dtype=kind)
        _, _, state = encoding.begin(x, pos)
        t = encoding.tokens(0, Tokens(x, q.to(kind), k.to(kind), k.to(kind)), pos, state)
        return t.q.double() @ t.k.double().transpose(-1, -2)

    exact = scores(steps, torch.float64)
    near, far = (float((scores(steps + shift, dtype) - exact).abs().max()) for shift in (0, 100_000))
    assert far <= 3 * near + 1e-5
    assert far <= 60 * torch.finfo(dtype).eps


def test_xpos_decays_as_its_formula_says() -> None:
    """Queries by z^(p / 512), keys by its inverse, from whichever id is counted as the first."""
    width, pos = 8, torch.tensor([[0, 1, 30, 700, 701, 2000, 513], [0, 1, 2, 3, 4, 5, 6]])
    q, k = drawn(SHAPE)
    rope, xpos = (turned(build(spec, SHAPE), q, k, pos) for spec in ("rope", "xpos"))
    shrunk, grown = (as_complex(own) / as_complex(plain) for own, plain in zip(xpos, rope, strict=True))
    torch.testing.assert_close(shrunk * grown, torch.ones_like(shrunk))
    zeta = torch.tensor([(2 * m / width + 0.4) / 1.4 for m in range(width // 2)], dtype=torch.float64)
    decay = zeta ** (pos[:, None, :, None] / 512)
    torch.testing.assert_close(shrunk / shrunk[:, :, :1], decay.expand_as(shrunk).to(shrunk.dtype))


def test_far_pairs_fade_under_xpos() -> None:
    ones = torch.ones(1, 4, 1500, 8, dtype=torch.float64)
    q, k = turned(build("xpos", SHAPE), ones, ones, torch.arange(1500)[None])
    far, near = (q[0, 0, -1] @ k[0, 0, -1 - back] for back in (1400, 0))
    assert abs(far) < 0.5 * near


def test_positions_that_xpos_cannot_hold_are_refused() -> None:
    model = decoder("xpos")
    for first, last in ((0, 50_000), (-6_000, 0)):
        message = rf"xpos: positions must lie between -6000 and 50000, .* and they go from {first} to {last}; stay"
        with pytest.raises(ValueError, match=message):
            model(text(1, 2), pos=torch.tensor([[first, last]]))
    with pytest.raises(ValueError, match=r"between -800 and 4800, where its decay fits into torch\.float16"):
        model.half()(text(1, 2), pos=torch.tensor([[0, 4800]]))


def test_xpos_stays_finite_up_to_its_limits_in_every_precision() -> None:
    limits = {torch.float32: (-5_999, 49_999), torch.bfloat16: (-5_999, 49_999), torch.float16: (-799, 4_799)}
    for dtype, ends in limits.items():
        for end in ends:
            q, k = drawn(SHAPE, dtype=dtype)
            pos = (torch.arange(7) + end - 6 * (end > 0)).expand(2, -1)
            q, k = turned(build("xpos", SHAPE), q, k, pos)
            assert q.isfinite().all()
            assert k.isfinite().all()
            assert (q.float() @ k.float().transpose(-1, -2)).isfinite().all()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rope(schedule='yran')", "rope: schedule must be one of 'none', .*, not 'yran'; did you mean 'yarn'"),
        ("rope(factor=2.0)", r"rope: factor \(2.0\) does nothing without a schedule; name one of linear, ntk"),
        ("rope(schedule='linear', factor=0.5)", "rope: factor must be a number of at least 1.0, not 0.5"),
        ("rope(schedule='yarn', factor=4.0)", "rope: schedule 'yarn' needs the trained length, as in rope"),
        ("rope(schedule='dynamic', factor=4.0)", "rope: schedule 'dynamic' needs the trained length"),
        ("tape(schedule='yarn', factor=4.0)", "tape: schedule 'yarn' needs the trained length, as in tape"),
        ("rope(schedule='yarn', factor=4.0, trained=0)", "rope: trained must be a whole number of at least 1, not 0"),
        ("rope(base=1.0)", "rope: base must be a number above 1, not 1.0"),
        ("rope(base='10000')", "rope: base must be a number above 1, not '10000'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(spec, SHAPE)


@pytest.mark.parametrize("name", ["rope", "xpos", "tape"])
def test_an_odd_head_width_cannot_be_turned(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}: head_width \(5\) must be even, for it turns pairs"):
        build(name, Shape(layers=1, width=10, heads=2))


def test_ntk_needs_two_frequencies() -> None:
    with pytest.raises(ValueError, match="rope: schedule 'ntk' needs a head_width of at least 4, not 2"):
        build("rope(schedule='ntk', factor=2.0)", Shape(layers=1, width=4, heads=2))


def test_a_cache_is_refused_where_keys_depend_on_the_total_length() -> None:
    from adapos.model import Cache

    model = decoder("rope(schedule='dynamic', factor=2.0, trained=8)")
    with pytest.raises(
        ValueError, match="cannot decode with a cache: the dynamic schedule turns every key by an angle"
    ):
        model(text(1, 4), cache=Cache())
    with pytest.raises(ValueError, match="cannot decode with a cache"):
        model.generate(text(1, 4), 2)


@pytest.mark.parametrize("name", ["rope", "tape"])
def test_a_late_schedule_is_for_evaluation_only(name: str) -> None:
    how = "schedule='yarn', factor=8.0, trained=16"
    tokens = text(1, 20)
    late, early, plain = (decoder(spec) for spec in (f"{name}({how}, late=True)", f"{name}({how})", name))
    assert torch.equal(late.train()(tokens), plain.train()(tokens))
    assert torch.equal(late.eval()(tokens), early.eval()(tokens))
    with pytest.raises(ValueError, match="late does nothing without a schedule"):
        build(f"{name}(late=True)", SHAPE)
