"""TAPE: positions that travel through the layers. Zhu et al. 2025, arXiv 2501.00712, section 4."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adapos.encoding import Keys, PositionalEncoding, Promises, Shape, Tokens
from adapos.encodings.rotary import Schedule, turned
from adapos.layout import Layout
from adapos.pairs import LogDot, Pairs, grouped, wide
from adapos.registry import at_least, one_of, register, true_or_false


@register("tape")
class Tape(PositionalEncoding):
    """z <- z + W_p sum_j A_ij z_j after attention, z <- z + W_2 diag(silu(W_x y)) W_1 z after the MLP.

    The state z of a token is one complex number per key/value head and frequency, at first that of RoPE. All
    updates mix heads and nothing else, so a shift of ids or any rotation of the states commutes with them.
    rotary: queries and keys are turned by z. additive: logit = q.k / sqrt(D) + log(z_i . z_j), z at first
    a feature map whose products are positive and depend on distance alone.

    W_p and W_2 start at zero: at first the model is its static instance. The update of the last layer would
    be read by nobody, so there is none. `attention` and `mlp` switch the two updates, `width` is the rows of W_1
    (4 x heads). `mixing="scale"` is the per-head scale of the released code in place of W_p; `mixing="entries"` has
    W_p, W_1 and W_2 of its own for every real and imaginary part, so that nothing commutes, for comparison.
    """

    floor = 1e-4  # of z_i . z_j under the logarithm

    def __init__(
        self,
        shape: Shape,
        width: int | None = None,
        attention: bool = True,
        mlp: bool = True,
        mixing: str = "heads",
        form: str = "rotary",
        base: float = 10000.0,
        schedule: str = "none",
        factor: float = 1.0,
        trained: int | None = None,
        late: bool = False,
    ) -> None:
        super().__init__(shape)
        if width is not None:
            at_least(self.name, "width", width, 1)
        true_or_false(self.name, "attention", attention)
        true_or_false(self.name, "mlp", mlp)
        one_of(self.name, "mixing", mixing, ("heads", "scale", "entries"))
        one_of(self.name, "form", form, ("rotary", "additive"))
        self.width, self.attention, self.mlp, self.mixing, self.form = width, attention, mlp, mixing, form
        self.base, self.schedule, self.factor, self.trained, self.late = base, schedule, factor, trained, late
        self.angles = Schedule(self.name, shape.head_width, base, schedule, factor, trained, late)
        if form == "additive" and shape.head_width < 4:
            raise ValueError(f"tape: form='additive' needs a head_width of at least 4, not {shape.head_width}")
        updates, heads, groups, inner = shape.layers - 1, shape.heads, shape.kv_heads, width or 4 * shape.heads
        entries = (shape.head_width,) if mixing == "entries" else ()
        if attention:
            size = (heads,) if mixing == "scale" else (*entries, groups, heads)
            self.w_p = nn.Parameter(torch.zeros(updates, *size))
        if mlp:
            bound = 1 / math.sqrt(groups)
            self.w_1 = nn.Parameter(torch.empty(updates, *entries, inner, groups).uniform_(-bound, bound))
            bound = 1 / math.sqrt(shape.width)
            self.w_x = nn.Parameter(torch.empty(updates, inner, shape.width).uniform_(-bound, bound))
            self.w_2 = nn.Parameter(torch.zeros(updates, *entries, groups, inner))

    @property
    def promises(self) -> Promises:  # type: ignore[override]
        if self.mixing != "entries":
            return self.angles.promises
        reason = "mixing='entries' does not commute with the turn of a state by which ids are shifted"
        return self.angles.promises & Promises(relative=False, because=reason)

    @property
    def rotates(self) -> bool:  # type: ignore[override]
        return self.form == "rotary"

    @property
    def biases(self) -> bool:  # type: ignore[override]
        return self.form == "additive"

    def begin(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Any]:
        # an additive state is no turn, and has no size to share with queries and keys
        turn = self.angles.turn(pos, x, sized=self.form == "rotary", training=self.training)
        state = torch.cat(turn, dim=-1)  # (B, T, D): real parts, then imaginary
        if self.form == "additive":
            state = self._features(state)
        return x, pos, state[:, None].expand(-1, self.shape.kv_heads, -1, -1)  # (B, G, T, D)

    def _features(self, state: Tensor) -> Tensor:
        """z_i . z_j = (1 + mean over m > 0 of cos((p_i - p_j) w_m)) / 2 + floor: never below the floor."""
        half = self.shape.head_width // 2
        size = state.new_full((half,), math.sqrt(0.5 / max(half - 1, 1)))
        real, imaginary = state.chunk(2, dim=-1)
        real, imaginary = real * size, imaginary * size
        constant = torch.full_like(real[..., :1], math.sqrt(0.5 + self.floor))
        return torch.cat([constant, real[..., 1:], torch.zeros_like(constant), imaginary[..., 1:]], dim=-1)

    def _carries(self, layer: int) -> bool:
        """Whether the states ride through this layer's attention as columns beside the values."""
        return self.form == "additive" or (self.attention and layer < self.shape.layers - 1)

    def tokens(self, layer: int, t: Tokens, pos: Tensor, state: Tensor) -> Tokens:
        if self._carries(layer):
            t = t.but(v=torch.cat([t.v, state.to(t.v.dtype)], dim=-1))
        if self.form == "additive":
            return t
        cos, sin = state.chunk(2, dim=-1)  # (B, G, T, D / 2)
        repeats = self.shape.heads // self.shape.kv_heads
        q = turned(t.q, cos.repeat_interleave(repeats, 1), sin.repeat_interleave(repeats, 1))
        return t.but(q=q, k=turned(t.k, cos, sin))

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        if self.form == "rotary":
            return Pairs()
        state = keys.v[..., -self.shape.head_width :]  # (B, G, S, D)
        own = state[:, :, layout.start : layout.start + layout.queries]
        own = own.repeat_interleave(self.shape.heads // self.shape.kv_heads, 1)
        return Pairs((LogDot(own, state, self.floor),))

    def after_attention(self, layer: int, out: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if not self._carries(layer):
            return out, state
        out, seen = out.split([out.shape[-1] - self.shape.head_width, self.shape.head_width], dim=-1)
        if not self.attention or layer == self.shape.layers - 1:
            return out, state
        w_p, seen = wide(self.w_p[layer]), wide(seen)  # seen (B, H, T, D)
        if self.mixing == "scale":
            moved = grouped(w_p[:, None, None] * seen, self.shape.kv_heads).sum(2)
        else:
            moved = torch.einsum("dgh,bhtd->bgtd" if self.mixing == "entries" else "gh,bhtd->bgtd", w_p, seen)
        return out, state + moved

    def after_mlp(self, layer: int, x: Tensor, y: Tensor, state: Tensor) -> Tensor:
        if not self.mlp or layer == self.shape.layers - 1:
            return state
        w_1, w_x, w_2 = (wide(w[layer]) for w in (self.w_1, self.w_x, self.w_2))
        gate = F.silu(F.linear(wide(y), w_x))  # (B, T, I)
        if self.mixing == "entries":
            inner = torch.einsum("bti,dif,bftd->btid", gate, w_1, state)
            return state + torch.einsum("dgi,btid->bgtd", w_2, inner)
        # the (G, G) matrix of each token first: far fewer products than widening the state to I rows
        both = torch.einsum("gi,if->igf", w_2, w_1).flatten(1)
        mixing = (gate @ both).unflatten(-1, w_2.shape[:1] * 2)  # (B, T, G, G)
        return state + torch.einsum("btgf,bftd->bgtd", mixing, state)
