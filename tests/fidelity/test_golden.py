"""The numbers of the released modules, in float64: logits, outputs and all gradients within 1e-9.

FIRE's within 2e-6: the release takes logarithms of distances in float32, where processors differ in the last bit.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from adapos import Keys, Layout, PositionalEncoding, Shape, attend, build
from adapos.pairs import Pairs

GOLDEN = Path(__file__).parent / "golden"
HEADS, WIDTH = 4, 8
MIXED = {"mlp2.0.weight": "w_in", "mlp2.0.bias": "b_in", "mlp2.2.weight": "w_out", "mlp2.2.bias": "b_out"}
RECTIFIED = {"mlp.0.weight": "w1", "mlp.0.bias": "b1", "mlp.2.weight": "w2", "mlp.2.bias": "b2"}
NAMES = {
    "kerple": {"bias_p": "p", "bias_a": "a"},
    "fire": {"c": "c", "L_multiplier": "multiplier", **RECTIFIED},
    "cope": {"pos_emb": "table"},
    "dape": MIXED,
    "dape2": MIXED,
}
SPECS = {
    "alibi": "alibi",
    "kerple": "kerple",
    "fire": "fire(width=6)",
    "cope": "cope(positions=8)",
    "dape-nope": "dape(width=6)",
    "dape-alibi": "alibi + dape(width=6)",
    "dape-kerple": "kerple + dape(width=6)",
    "dape-fire": "fire(width=6) + dape(width=6)",
    "dape2-alibi": "alibi + dape(width=6, kernel=3)",
    "dape2-kerple": "kerple + dape(width=6, kernel=3)",
    "dape2-fire": "fire(width=6) + dape(width=6, kernel=3)",
}


def part(encoding: PositionalEncoding, name: str) -> PositionalEncoding:
    return next(p for p in getattr(encoding, "parts", [encoding]) if p.name == name)


def loaded(file: str) -> tuple[PositionalEncoding, dict[str, Tensor], dict[str, Tensor]]:
    """The encoding with the released parameters, the golden tensors, and our parameters by their released names."""
    golden = load_file(GOLDEN / f"{file}.safetensors")
    encoding = build(SPECS[file], Shape(layers=1, width=HEADS * WIDTH, heads=HEADS)).double()
    ours: dict[str, Tensor] = {}
    method, _, base = file.partition("-")
    for family in {method, base} & NAMES.keys():
        owner = part(encoding, "dape" if family == "dape2" else family)
        for released, own in NAMES[family].items():
            parameter = getattr(owner, own)
            parameter.data = golden[f"param.{released}"].reshape(parameter.shape).clone()
            ours[released] = parameter
    if "fire" in (method, base):
        fire = part(encoding, "fire")
        fire.start = float(golden["param.init_L"])
        fire.slope = 0.01 if method != "fire" else 0.0  # the release rectifies with a leak inside DAPE
    return encoding, golden, ours


@pytest.mark.parametrize("backend", ["reference", "tiled"])
@pytest.mark.parametrize("file", SPECS)
def test_logits_outputs_and_gradients_are_those_of_the_release(file: str, backend: str) -> None:
    encoding, golden, ours = loaded(file)
    q, k, v = (golden[name].clone().requires_grad_() for name in "qkv")
    layout = Layout.dense(2, 12)
    pairs = encoding.pairs(0, q, Keys(k, v), layout)
    logits = Pairs.rows(pairs, q @ k.transpose(-1, -2) * WIDTH**-0.5, layout)
    bound = 2e-6 if "fire" in file else 1e-9
    torch.testing.assert_close(logits.masked_fill(logits.isinf(), 0.0), golden["logits"], rtol=0, atol=bound)
    out = attend(q, k, v, layout, pairs, backend=backend)
    torch.testing.assert_close(out, golden["out"], rtol=0, atol=bound)
    out.backward(golden["grad_out"])
    for name, x in (("grad_q", q), ("grad_k", k), ("grad_v", v)):
        torch.testing.assert_close(x.grad, golden[name], rtol=0, atol=bound)
    for released, parameter in ours.items():
        want = golden[f"grad.param.{released}"].reshape(parameter.shape)
        torch.testing.assert_close(parameter.grad, want, rtol=0, atol=bound)


def test_every_golden_file_is_used() -> None:
    assert {file.stem for file in GOLDEN.glob("*.safetensors")} == {*SPECS, "tape"}


def test_tape_layers_are_those_of_the_release() -> None:
    """To 1e-5 only: the release computes norms and softmax in float32."""
    from adapos.model import Decoder

    golden = load_file(GOLDEN / "tape.safetensors")
    inner, width = golden["param.0.pe.up_proj.weight"].shape[0], golden["x"].shape[-1]
    # the update of a last layer is read by nobody, so ours has none: a third layer makes the second's visible
    shape = Shape(layers=3, width=width, heads=HEADS)
    hidden = golden["param.0.mlp.up_proj.weight"].shape[0]
    decoder = Decoder(2, shape, f"tape(width={inner}, mixing='scale')", hidden=hidden).double()
    tape = decoder.encoding
    for index in (0, 1):
        block = decoder.blocks[index]
        own = {
            "input_layernorm": block.before_attention,
            "post_attention_layernorm": block.before_mlp,
            "self_attn.q_proj": block.attention.q,
            "self_attn.k_proj": block.attention.k,
            "self_attn.v_proj": block.attention.v,
            "self_attn.o_proj": block.attention.out,
            "mlp.gate_proj": block.mlp.gate,
            "mlp.up_proj": block.mlp.up,
            "mlp.down_proj": block.mlp.down,
        }
        for released, module in own.items():
            module.weight.data = golden[f"param.{index}.{released}.weight"]
        tape.w_p.data[index] = golden[f"param.{index}.post_attention_linear.weight"].sum(1)
        tape.w_1.data[index] = golden[f"param.{index}.pe.up_proj.weight"]
        tape.w_x.data[index] = golden[f"param.{index}.pe.x_proj.weight"]
        tape.w_2.data[index] = golden[f"param.{index}.pe.down_proj.weight"]
    half = slice(0, WIDTH // 2)
    state = torch.cat([golden["cos0"][..., half], golden["sin0"][..., half]], dim=-1)
    x, layout = golden["x"], Layout.dense(2, 12)
    for index in (0, 1):
        x, state = decoder.blocks[index](x, tape, layout, state, None)
        torch.testing.assert_close(x, golden[f"layer{index}.hidden"], rtol=0, atol=1e-5)
        want = torch.cat([golden[f"layer{index}.cos"][..., half], golden[f"layer{index}.sin"][..., half]], dim=-1)
        torch.testing.assert_close(state, want, rtol=0, atol=1e-5)
