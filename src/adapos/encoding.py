"""A positional encoding: five hooks in the order the data meets them, each the identity by default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from adapos.layout import Layout
from adapos.pairs import Pairs


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that an encoding may need."""

    layers: int
    width: int
    heads: int
    kv_heads: int = 0  # 0: as many as heads
    head_width: int = 0  # 0: width / heads

    def __init__(
        self, layers: int, width: int, heads: int, kv_heads: int | None = None, head_width: int | None = None
    ) -> None:
        kv_heads = heads if kv_heads is None else kv_heads
        sizes = {"layers": layers, "width": width, "heads": heads, "kv_heads": kv_heads}
        if head_width is not None:
            sizes["head_width"] = head_width
        for name, size in sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{name} ({size!r}) must be a whole number of at least 1")
        if heads % kv_heads:
            raise ValueError(f"heads ({heads}) must be a multiple of kv_heads ({kv_heads})")
        if head_width is None:
            if width % heads:
                raise ValueError(f"width ({width}) must be a multiple of heads ({heads}), or give head_width")
            head_width = width // heads
        for name, size in (sizes | {"head_width": head_width}).items():
            object.__setattr__(self, name, size)


@dataclass(frozen=True, eq=False)
class Tokens:
    """The new tokens of one layer. k, v and extra are cached; every extra has its tokens on axis 2."""

    x: Tensor  # (B, T, C), what the layer's projections read
    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, T, D)
    v: Tensor  # (B, G, T, E)
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    def but(self, **changes: Any) -> Tokens:
        return replace(self, **changes)


@dataclass(frozen=True, eq=False)
class Keys:
    """All tokens so far, cached ones first."""

    k: Tensor  # (B, G, S, D)
    v: Tensor  # (B, G, S, E)
    extra: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Promises:
    """What an encoding declares of itself; the contract verifies each."""

    relative: bool = True  # a shift of all ids changes nothing
    cacheable: bool = True  # a decoding step equals one pass
    causal_only: bool = False
    longest: int | None = None  # positions lie below this
    because: str = ""  # why something above is not promised

    def __and__(self, other: Promises) -> Promises:
        limits = [limit for limit in (self.longest, other.longest) if limit is not None]
        return Promises(
            relative=self.relative and other.relative,
            cacheable=self.cacheable and other.cacheable,
            causal_only=self.causal_only or other.causal_only,
            longest=min(limits, default=None),
            because="; ".join(reason for reason in (self.because, other.because) if reason),
        )


class PositionalEncoding(nn.Module):
    """One encoding for a whole model, told the layer by an int.

    `x` is (B, T, C), `pos` (B, T) integers, `state` whatever `begin` made. Parameters of the constructor after
    `shape` are kept as attributes of the same names, so that the encoding's spec can be written down again.
    """

    name = ""
    promises = Promises()

    # what an encoding does, so that a composition that makes no sense is refused when it is built
    adds = False  # begin adds to the embeddings
    renumbers = False  # begin replaces the ids
    rotates = False  # tokens turns queries and keys
    unturned = False  # pairs compares queries or keys with vectors of its own, which does not go with turned ones
    biases = False  # pairs holds a bias
    mixes = False  # pairs holds a mix

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    @property
    def travels(self) -> bool:
        """Whether the state changes from layer to layer."""
        base, own = PositionalEncoding, type(self)
        return own.after_attention is not base.after_attention or own.after_mlp is not base.after_mlp

    def beside(self, others: Sequence[PositionalEncoding]) -> None:
        """Told once, when built, which encodings it is composed with."""

    def begin(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Any]:
        """Once, before the first layer."""
        return x, pos, None

    def tokens(self, layer: int, t: Tokens, pos: Tensor, state: Any) -> Tokens:
        """A function of each token alone; what it returns is cached."""
        return t

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        """A function of a query and the keys it sees, described as data."""
        return Pairs()

    def after_attention(self, layer: int, out: Tensor, state: Any) -> tuple[Tensor, Any]:
        """out (B, H, T, E) as attention returned it."""
        return out, state

    def after_mlp(self, layer: int, x: Tensor, y: Tensor, state: Any) -> Any:
        """x entered the MLP, y left it, before its residual."""
        return state


def _any(trait: str) -> Any:
    return property(lambda self: any(getattr(part, trait) for part in self))


class Several(PositionalEncoding):
    """Encodings that act as one, which does what any of them does and promises what all of them promise."""

    parts: nn.ModuleList

    adds, renumbers, rotates, biases, mixes = map(_any, ("adds", "renumbers", "rotates", "biases", "mixes"))
    travels = _any("travels")

    def __iter__(self) -> Iterator[PositionalEncoding]:
        return iter(self.parts)  # type: ignore[arg-type]

    @property
    def promises(self) -> Promises:  # type: ignore[override]
        first, *rest = [part.promises for part in self]
        for promises in rest:
            first = first & promises
        return first


class Compose(Several):
    """`a + b`: runs the hooks of its parts in turn and adds their pairs."""

    def __init__(self, parts: Sequence[PositionalEncoding]) -> None:
        super().__init__(parts[0].shape)
        self.parts = nn.ModuleList(parts)
        for trait, doing in (
            ("rotates", "rotate queries and keys"),
            ("mixes", "mix scores"),
            ("renumbers", "renumber tokens"),
        ):
            names = [part.name for part in parts if getattr(part, trait)]
            if len(names) > 1:
                raise ValueError(f"{' and '.join(names)} both {doing}; an encoding may hold only one of them")
        turning = next((part.name for part in parts if part.rotates), None)
        for part in parts:
            if turning is not None and part.unturned:
                raise ValueError(
                    f"{part.name} compares queries or keys with vectors of its own, and {turning} turns them; "
                    "keep one of the two"
                )
            if [other.name for other in parts].count(part.name) > 1:
                raise ValueError(f"{part.name} appears twice; name it once")
        for part in parts:
            part.beside([other for other in parts if other is not part])

    def begin(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Any]:
        state: dict[int, Any] = {}
        # new ids first, wherever the part stands: the others must all read the same
        for index, part in sorted(enumerate(self), key=lambda item: not item[1].renumbers):
            x, pos, state[index] = part.begin(x, pos)
        return x, pos, [state[index] for index in range(len(state))]

    def tokens(self, layer: int, t: Tokens, pos: Tensor, state: Any) -> Tokens:
        for part, own in zip(self, state, strict=True):
            t = part.tokens(layer, t, pos, own)
        return t

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        total = Pairs()
        for part in self:
            total = total + part.pairs(layer, q, keys, layout)
        return total

    def after_attention(self, layer: int, out: Tensor, state: Any) -> tuple[Tensor, Any]:
        state = list(state)
        for index, part in enumerate(self):
            out, state[index] = part.after_attention(layer, out, state[index])
        return out, state

    def after_mlp(self, layer: int, x: Tensor, y: Tensor, state: Any) -> Any:
        return [part.after_mlp(layer, x, y, own) for part, own in zip(self, state, strict=True)]


class Layered(Several):
    """An encoding for each layer, by number into `parts`: layers that share a part share what it learns and carries."""

    def __init__(self, parts: Sequence[PositionalEncoding], layers: Sequence[int]) -> None:
        super().__init__(parts[0].shape)
        if len(layers) != self.shape.layers:
            raise ValueError(f"there are {self.shape.layers} layers and encodings for {len(layers)}; name one for each")
        for part in parts:
            if part.adds or part.renumbers:
                raise ValueError(
                    f"{part.name} acts before the first layer, on all of them; it cannot be the encoding of some"
                )
        self.parts, self.layers = nn.ModuleList(parts), tuple(layers)

    def _of(self, layer: int) -> PositionalEncoding:
        return self.parts[self.layers[layer]]  # type: ignore[return-value]

    def begin(self, x: Tensor, pos: Tensor) -> tuple[Tensor, Tensor, Any]:
        return x, pos, [part.begin(x, pos)[2] for part in self]

    def tokens(self, layer: int, t: Tokens, pos: Tensor, state: Any) -> Tokens:
        return self._of(layer).tokens(layer, t, pos, state[self.layers[layer]])

    def pairs(self, layer: int, q: Tensor, keys: Keys, layout: Layout) -> Pairs:
        return self._of(layer).pairs(layer, q, keys, layout)

    def after_attention(self, layer: int, out: Tensor, state: Any) -> tuple[Tensor, Any]:
        state, here = list(state), self.layers[layer]
        out, state[here] = self._of(layer).after_attention(layer, out, state[here])
        return out, state

    def after_mlp(self, layer: int, x: Tensor, y: Tensor, state: Any) -> Any:
        state, here = list(state), self.layers[layer]
        state[here] = self._of(layer).after_mlp(layer, x, y, state[here])
        return state
