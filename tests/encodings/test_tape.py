"""tape: it starts as rope, its updates against naive formulas, and its symmetries."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import adapos
from adapos import Layout, Shape, build
from adapos.encodings.tape import Tape
from adapos.model import Cache, Decoder
from adapos.model.layer import begun
from cases import SHAPE, Draw, apart, decoder, encoding, text

DEEP = Shape(layers=3, width=32, heads=4)
SHARED = Shape(layers=3, width=32, heads=4, kv_heads=2)
VARIANTS = ["tape", "tape(mixing='scale')", "tape(attention=False)", "tape(mlp=False)", "tape(width=3)"]
ADDITIVE = ["tape(form='additive')", "tape(form='additive', mixing='scale')"]
YARN = "schedule='yarn', factor=4.0, trained=16"


@torch.no_grad()
def states(
    model: Decoder, x: Tensor, layout: Layout, turn: Any = lambda state: state
) -> tuple[list[Tensor], list[Tensor]]:
    """What each block puts out, and the state behind it; `turn` changes the state that the first one gets."""
    x, layout, state = begun(model.encoding, x, layout)
    state, outputs, found = turn(state), [], []
    for block in model.blocks:
        x, state = block(x, model.encoding, layout, state, None)
        outputs.append(x)
        found.append(state)
    return outputs, found


def as_complex(state: Tensor) -> Tensor:
    return torch.complex(*state.chunk(2, dim=-1))


def as_real(state: Tensor) -> Tensor:
    return torch.cat([state.real, state.imag], dim=-1)


@pytest.mark.parametrize(
    "shape", [DEEP, SHARED, Shape(layers=1, width=32, heads=4)], ids=["heads", "shared", "one layer"]
)
@pytest.mark.parametrize("settings", ["", YARN, "schedule='ntk', factor=4.0", "base=500.0"])
@pytest.mark.parametrize("variant", ["", "mixing='scale'", "mixing='entries'", "attention=False", "mlp=False"])
def test_it_starts_as_rope(variant: str, settings: str, shape: Shape) -> None:
    tokens = text(2, 30)
    tape = decoder(f"tape({', '.join(filter(None, (variant, settings)))})", shape, moved=False)
    rope = decoder(f"rope({settings})", shape)
    for causal in (True, False):
        assert float((tape(tokens, causal=causal) - rope(tokens, causal=causal)).detach().abs().max()) < 1e-12


@pytest.mark.parametrize("variant", ["tape", "tape(mixing='scale')", "tape(mixing='entries')", *ADDITIVE])
def test_what_starts_at_zero_gets_a_gradient_at_once(variant: str) -> None:
    model, tokens = decoder(variant, SHARED, moved=False), text(2, 20)
    (model(tokens) * Draw(2)(2, 20, 31)).sum().backward()
    for parameter in (model.encoding.w_p, model.encoding.w_2):
        assert not parameter.any()
        assert all((g.abs() > 1e-9).any() for g in parameter.grad)


def test_after_one_step_everything_learns() -> None:
    model, tokens = decoder("tape", SHARED), text(2, 20)
    (model(tokens) * Draw(2)(2, 20, 31)).sum().backward()
    assert all((g != 0).any() for p in model.encoding.parameters() for g in p.grad)


def test_its_parameters_are_as_many_as_the_paper_says_but_for_the_last_layer() -> None:
    """The update of the last layer would be read by nobody."""
    tape = build("tape", Shape(layers=12, width=768, heads=12))
    per_layer = 48 * 768 + 48 * 12 + 12 * 48 + 12 * 12
    assert sum(x.numel() for x in tape.parameters()) == 11 * per_layer
    assert tape.w_1.shape[1] == 4 * 12
    scale = build("tape(mixing='scale', mlp=False)", Shape(layers=12, width=768, heads=12))
    assert sum(x.numel() for x in scale.parameters()) == 11 * 12


@pytest.mark.parametrize("shape", [DEEP, SHARED], ids=["heads", "shared"])
@pytest.mark.parametrize("spec", [*VARIANTS, *ADDITIVE])
def test_updates_are_those_of_the_formulas(spec: str, shape: Shape) -> None:
    model, tokens = decoder(spec, shape), text(2, 9)
    tape, layout, repeats = model.encoding, Layout.dense(2, 9), shape.heads // shape.kv_heads
    assert isinstance(tape, Tape)
    with torch.no_grad():
        x = model.embedding(tokens)
        _, found = states(model, x, layout)
        _, _, z = begun(tape, x, layout)
        z = as_complex(z)
        for index, block in enumerate(model.blocks):
            h = block.before_attention(x)
            q, k, v = (
                p(h).unflatten(-1, (-1, 8)).transpose(1, 2)
                for p in (block.attention.q, block.attention.k, block.attention.v)
            )
            wide_z = z.repeat_interleave(repeats, 1)
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
            if tape.form == "rotary":
                turned = [as_real(as_complex(t) * wide_z) for t in (q, k)]
                logit = turned[0] @ turned[1].transpose(-1, -2) / math.sqrt(8)
            else:
                dot = (wide_z @ wide_z.conj().transpose(-1, -2)).real
                logit = q @ k.transpose(-1, -2) / math.sqrt(8) + dot.clamp(min=tape.floor).log()
            weight = logit.masked_fill(~layout.visible(), -math.inf).softmax(-1)
            out = (weight @ v).transpose(1, 2).flatten(2)
            x = x + block.attention.out(out)
            seen = torch.einsum("bhij,bhjm->bhim", weight.to(z.dtype), wide_z)
            if tape.attention and index < 2:
                if tape.mixing == "heads":
                    mixing = tape.w_p[index]
                else:
                    mixing = torch.zeros(shape.kv_heads, shape.heads, dtype=torch.float64)
                    for head in range(shape.heads):
                        mixing[head // repeats, head] = tape.w_p[index, head]
                z = z + torch.einsum("gh,bhim->bgim", mixing.to(z.dtype), seen)
            y = block.mlp(block.before_mlp(x))
            x = x + y
            if tape.mlp and index < 2:
                gate = torch.nn.functional.silu(y @ tape.w_x[index].T)  # (B, T, I)
                inner = torch.einsum("ig,bgtm->bitm", tape.w_1[index].to(z.dtype), z)
                z = z + torch.einsum("gi,bti,bitm->bgtm", tape.w_2[index].to(z.dtype), gate.to(z.dtype), inner)
            assert apart(found[index], as_real(z)) < 1e-10
        assert apart(model(tokens), model.head(model.norm(x))) < 1e-10


@pytest.mark.parametrize("shape", [DEEP, SHARED], ids=["heads", "shared"])
def test_entries_that_are_all_mixed_alike_are_mixed_by_heads(shape: Shape) -> None:
    own, alike, tokens = decoder("tape(mixing='entries')", shape), decoder("tape", shape), text(2, 9)
    assert not adapos.build("tape(mixing='entries')", shape).promises.relative
    with torch.no_grad():
        assert apart(own(tokens), alike(tokens)) > 1e-3
        for name in ("w_p", "w_1", "w_2"):
            getattr(own.encoding, name).copy_(getattr(alike.encoding, name)[:, None].expand(-1, 8, -1, -1))
        own.encoding.w_x.copy_(alike.encoding.w_x)
        assert apart(own(tokens), alike(tokens)) < 1e-10


@torch.no_grad()
@pytest.mark.parametrize("spec", [*VARIANTS, *ADDITIVE, f"tape({YARN})", "tape + alibi"])
def test_tokens_shuffled_with_their_ids_are_the_same_tokens(spec: str) -> None:
    model, tokens, order = decoder(spec, SHARED), text(2, 20), Draw(3).order(20)
    pos = torch.arange(20).expand(2, -1)
    straight = model(tokens, pos=pos, causal=False)
    shuffled = model(tokens[:, order], pos=pos[:, order], causal=False)
    assert apart(shuffled, straight[:, order]) < 1e-11
    # and the ids matter
    assert apart(model(tokens[:, order], pos=pos, causal=False), straight[:, order]) > 1e-3


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("spec", VARIANTS)
def test_turning_all_states_alike_changes_no_output_and_turns_all_states(spec: str, causal: bool) -> None:
    model, layout = decoder(spec, SHARED), Layout.dense(2, 15, causal=causal)
    x = model.embedding(text(2, 15)).detach()
    # another angle for each frequency, one and the same for all tokens and heads
    turn = torch.polar(torch.ones(4).double(), Draw(4)(4).detach())
    outputs, found = states(model, x, layout)
    again, turned = states(model, x, layout, lambda z: as_real(as_complex(z) * turn))
    for before, after in zip(outputs, again, strict=True):
        assert apart(after, before) < 1e-11
    for before, after in zip(found, turned, strict=True):
        assert apart(after, as_real(as_complex(before) * turn)) < 1e-11
    assert apart(turned[-1], found[-1]) > 1e-2


@pytest.mark.parametrize("spec", ADDITIVE)
def test_any_orthogonal_map_of_additive_states_changes_no_output(spec: str) -> None:
    model, layout = decoder(spec, SHARED), Layout.dense(2, 15)
    x = model.embedding(text(2, 15)).detach()
    orthogonal = torch.linalg.qr(Draw(5)(8, 8).detach()).Q
    if torch.linalg.det(orthogonal) > 0:
        orthogonal[0] *= -1  # with a reflection in it
    outputs, found = states(model, x, layout)
    again, turned = states(model, x, layout, lambda z: z @ orthogonal)
    for before, after in zip(outputs + [z @ orthogonal for z in found], again + turned, strict=True):
        assert apart(after, before) < 1e-11


@pytest.mark.parametrize("spec", [*VARIANTS, f"tape({YARN})"])
def test_state_rotates_with_a_shift_of_ids(spec: str) -> None:
    model, shift = decoder(spec, SHARED), 37
    x, pos = model.embedding(text(2, 15)).detach(), torch.arange(15).expand(2, -1)
    outputs, found = states(model, x, Layout(pos, pos))
    again, shifted = states(model, x, Layout(pos + shift, pos + shift))
    frequency, _ = model.encoding.angles.frequencies(pos)
    turn = torch.polar(torch.ones(4).double(), shift * frequency)
    for before, after in zip(outputs, again, strict=True):
        assert apart(after, before) < 1e-11
    for before, after in zip(found, shifted, strict=True):
        assert apart(after, as_real(as_complex(before) * turn)) < 1e-11


def test_additive_products_depend_on_distance_and_never_fall_below_the_floor() -> None:
    tape = encoding("tape(form='additive')", Shape(layers=1, width=128, heads=2))
    pos = torch.tensor([[0, 1, 5, 100, 3000, 90000]])
    z = tape.begin(torch.zeros(1, 6, 128).double(), pos)[2][0, 0]
    product, angles = z @ z.T, tape.angles.frequencies(pos)[0]
    for i in range(6):
        for j in range(6):
            far = float(pos[0, i] - pos[0, j])
            want = (1 + float((far * angles[1:]).cos().mean())) / 2 + tape.floor
            assert float(product[i, j]) == pytest.approx(want, abs=1e-9)
    assert product.min() >= tape.floor


def test_yarn_makes_it_another_encoding() -> None:
    tokens = text(1, 40)
    assert apart(decoder(f"tape({YARN})")(tokens), decoder("tape")(tokens)) > 1e-3


def test_a_state_takes_as_many_numbers_as_a_key_and_rides_only_where_it_is_read() -> None:
    cache = Cache()
    with torch.no_grad():
        decoder("tape", SHARED)(text(1, 6), cache=cache)
    assert [layer["v"].shape[-1] for layer in cache.tensors.values()] == [16, 16, 8]
    assert [layer["k"].shape[1:] for layer in cache.tensors.values()] == [(2, 6, 8)] * 3


def test_states_are_kept_in_single_precision_in_a_half_precision_model() -> None:
    model = decoder("tape", SHARED).bfloat16()
    x = model.embedding(text(1, 6)).detach()
    _, found = states(model, x, Layout.dense(1, 6))
    assert all(state.dtype == torch.float32 for state in found)


class MixesFrequencies(Tape):
    """An ablation of the paper: the update also mixes the frequencies of a head."""

    def after_mlp(self, layer: int, x: Tensor, y: Tensor, state: Tensor) -> Tensor:
        state = super().after_mlp(layer, x, y, state)
        return state if layer == self.shape.layers - 1 else state + 0.5 * state.roll(1, dims=-1)


class ReadsItsState(Tape):
    """Another: the outputs are told the state itself, not only how two states lie to one another."""

    def after_attention(self, layer: int, out: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        out, state = super().after_attention(layer, out, state)
        return out + 0.1 * state.repeat_interleave(self.shape.heads // self.shape.kv_heads, 1), state


@pytest.mark.parametrize("broken", [MixesFrequencies, ReadsItsState])
def test_an_update_that_breaks_the_symmetry_is_caught(broken: type[Tape]) -> None:
    report = adapos.check(lambda shape: broken(shape))
    assert "relative" in report.broken, f"\n{report}"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "tape(mixing='head')",
            "tape: mixing must be one of 'heads', 'scale', 'entries', not 'head'; did you mean 'heads'",
        ),
        ("tape(form='rotatory')", "tape: form must be one of .* did you mean 'rotary'"),
        ("tape(width=0)", "tape: width must be a whole number of at least 1, not 0"),
        ("tape(attention=1)", "tape: attention must be True or False, not 1"),
        ("tape(mlp='no')", "tape: mlp must be True or False, not 'no'"),
        ("tape + rope", "tape and rope both rotate queries and keys; an encoding may hold only one of them"),
        ("tape + xpos", "tape and xpos both rotate"),
    ],
)
def test_settings_and_neighbours_that_make_no_sense_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(spec, SHAPE)
