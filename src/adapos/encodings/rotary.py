"""Rotary encodings. RoPE: Su et al. 2021, arXiv 2104.09864, eq. 14; xPos: Sun et al. 2022, arXiv 2212.10554, eq. 12."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from adapos.encoding import PositionalEncoding, Promises, Shape, Tokens
from adapos.encodings.absolute import precise
from adapos.pairs import wide
from adapos.registry import at_least, one_of, register, true_or_false

SCHEDULES = ("none", "linear", "ntk", "dynamic", "yarn")


class Schedule:
    """The angle of each frequency at each id, and how a schedule stretches it past the trained length.

    linear: position interpolation, arXiv 2306.15595; ntk and dynamic: the base grows with the factor, or with
    the length at hand; yarn: high frequencies stay, low ones are interpolated, arXiv 2309.00071. `late`: in
    evaluation only, after training without it.
    """

    def __init__(
        self,
        name: str,
        width: int,
        base: float,
        schedule: str,
        factor: float,
        trained: int | None,
        late: bool = False,
    ) -> None:
        if width % 2:
            raise ValueError(f"{name}: head_width ({width}) must be even, for it turns pairs of numbers")
        one_of(name, "schedule", schedule, SCHEDULES)
        at_least(name, "factor", factor, 1.0, whole=False)
        if isinstance(base, bool) or not isinstance(base, int | float) or not base > 1:
            raise ValueError(f"{name}: base must be a number above 1, not {base!r}")
        if trained is not None:
            at_least(name, "trained", trained, 1)
        elif schedule in ("dynamic", "yarn"):
            raise ValueError(
                f"{name}: schedule {schedule!r} needs the trained length, as in "
                f"{name}(schedule={schedule!r}, factor=4.0, trained=2048)"
            )
        if schedule == "none" and factor != 1.0:
            raise ValueError(
                f"{name}: factor ({factor}) does nothing without a schedule; name one of {', '.join(SCHEDULES[1:])}"
            )
        if schedule == "none" and trained is not None:
            raise ValueError(
                f"{name}: trained ({trained}) does nothing without a schedule; name one of {', '.join(SCHEDULES[1:])}"
            )
        true_or_false(name, "late", late)
        if schedule == "none" and late:
            raise ValueError(f"{name}: late does nothing without a schedule; name one of {', '.join(SCHEDULES[1:])}")
        if schedule in ("ntk", "dynamic") and width < 4:
            raise ValueError(f"{name}: schedule {schedule!r} needs a head_width of at least 4, not {width}")
        self.width, self.base, self.schedule, self.factor = width, float(base), schedule, float(factor)
        self.trained, self.late = trained, late

    @property
    def promises(self) -> Promises:
        if self.schedule != "dynamic":
            return Promises()
        reason = "the dynamic schedule turns every key by an angle that depends on the total length"
        return Promises(cacheable=False, relative=False, because=reason)

    def turn(self, pos: Tensor, like: Tensor, *, sized: bool = True, training: bool = False) -> tuple[Tensor, Tensor]:
        """(B, T) -> cos and sin, (B, T, D / 2) in the working precision of `like`, of the schedule's size or of 1."""
        frequency, size = self.frequencies(pos, plain=self.late and training)
        size = size if sized else 1.0
        angle = precise(pos)[..., None] * frequency
        return (size * angle.cos()).to(wide(like).dtype), (size * angle.sin()).to(wide(like).dtype)

    def frequencies(self, pos: Tensor, *, plain: bool = False) -> tuple[Tensor, float]:
        """(D / 2,), or (B, 1, D / 2) where they depend on the length of each row; and the size of a turned vector."""
        half = precise(torch.arange(0, self.width, 2, device=pos.device)) / self.width
        own = self.base**-half
        schedule = "none" if plain else self.schedule
        if schedule == "linear":
            return own / self.factor, 1.0
        if schedule == "ntk":
            return (self.base * self.factor ** (self.width / (self.width - 2))) ** -half, 1.0
        if schedule == "dynamic":
            assert self.trained is not None
            length = (pos.amax(1) + 1).clamp(min=self.trained)  # (B,)
            grown = self.factor * precise(length) / self.trained - (self.factor - 1)
            base = self.base * grown ** (self.width / (self.width - 2))
            return base[:, None, None] ** -half, 1.0
        if schedule == "yarn":
            return self._yarn(own), 0.1 * math.log(self.factor) + 1.0
        return own, 1.0

    def _yarn(self, plain: Tensor) -> Tensor:
        assert self.trained is not None

        def dimension(turns: float) -> float:
            """The (fractional) index of the frequency that turns so often within the trained length."""
            assert self.trained is not None
            return self.width * math.log(self.trained / (turns * 2 * math.pi)) / (2 * math.log(self.base))

        low, high = max(math.floor(dimension(32.0)), 0), min(math.ceil(dimension(1.0)), self.width - 1)
        index = torch.arange(self.width // 2, dtype=plain.dtype, device=plain.device)
        interpolated = ((index - low) / max(high - low, 0.001)).clamp(0, 1)
        return plain / self.factor * interpolated + plain * (1 - interpolated)


@register("rope")
class Rope(PositionalEncoding):
    """q_m, k_m <- e^(i p w_m) q_m, k_m for each pair m of numbers, w_m = base^(-2m / D); pairs are (m, m + D / 2).

    `schedule` stretches the angles by `factor` for texts longer than `trained`, where `late` in evaluation only.
    """

    rotates = True

    def __init__(
        self,
        shape: Shape,
        base: float = 10000.0,
        schedule: str = "none",
        factor: float = 1.0,
        trained: int | None = None,
        late: bool = False,
    ) -> None:
        super().__init__(shape)
        self.base, self.schedule, self.factor, self.trained, self.late = base, schedule, factor, trained, late
        self.angles = Schedule(self.name, shape.head_width, base, schedule, factor, trained, late)

    @property
    def promises(self) -> Promises:  # type: ignore[override]
        return self.angles.promises

    def begin(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Any]:
        return x, pos, self.angles.turn(pos, x, training=self.training)

    def tokens(self, layer: int, t: Tokens, pos: Tensor, state: Any) -> Tokens:
        cos, sin = (part[:, None] for part in state)  # (B, 1, T, D / 2)
        return t.but(q=turned(t.q, cos, sin), k=turned(t.k, cos, sin))


@register("xpos")
class Xpos(PositionalEncoding):
    """RoPE whose queries shrink and keys grow by z_m^(p / 512), z_m = (2m / D + 0.4) / 1.4, so that far pairs fade.

    The powers leave the range of a floating point number at some id; counting from a centre doubles the room.
    """

    rotates = True
    promises = Promises(longest=50_000, because="past it z^(p / 512) leaves the range of float32")

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.angles = Schedule(self.name, shape.head_width, 10000.0, "none", 1.0, None)

    def begin(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Any]:
        where = x.device.type
        kind = torch.get_autocast_dtype(where) if torch.is_autocast_enabled(where) else x.dtype
        centre, reach = (2_000, 2_800) if kind == torch.float16 else (22_000, 28_000)
        low, high = int(pos.min()), int(pos.max())
        if low <= centre - reach or high >= centre + reach:
            raise ValueError(
                f"xpos: positions must lie between {centre - reach} and {centre + reach}, where its decay fits into "
                f"{kind}, and they go from {low} to {high}; stay within or choose rope"
            )
        cos, sin = self.angles.turn(pos, x)
        half = precise(torch.arange(0, self.angles.width, 2, device=x.device)) / self.angles.width
        decay = ((half + 0.4) / 1.4) ** (precise(pos - centre)[..., None] / 512)
        return x, pos, (cos, sin, decay.to(cos.dtype))

    def tokens(self, layer: int, t: Tokens, pos: Tensor, state: Any) -> Tokens:
        cos, sin, decay = (part[:, None] for part in state)
        return t.but(q=turned(t.q, cos * decay, sin * decay), k=turned(t.k, cos / decay, sin / decay))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, H, T, D) as D / 2 complex numbers [real; imaginary], times cos + i sin (B, H or 1, T, D / 2)."""
    real, imaginary = wide(x).chunk(2, dim=-1)
    return torch.cat([real * cos - imaginary * sin, imaginary * cos + real * sin], dim=-1).to(x.dtype)
