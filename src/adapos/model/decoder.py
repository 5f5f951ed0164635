"""A decoder in one sitting: pre-norm blocks that call the five hooks of an encoding and know nothing of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from adapos.encoding import PositionalEncoding, Shape
from adapos.layout import PADDING, Layout
from adapos.model.cache import Cache
from adapos.model.layer import Attention, allowed, begun, placed
from adapos.registry import at_least, build, label, one_of


class Swiglu(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(width, hidden, bias=False),
            nn.Linear(width, hidden, bias=False),
            nn.Linear(hidden, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Gelu(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, shape: Shape, index: int, hidden: int, mlp: str, backend: str, dropout: float) -> None:
        super().__init__()
        self.index = index
        self.before_attention = nn.RMSNorm(shape.width, eps=1e-5)
        self.attention = Attention(shape, index, backend, dropout)
        self.before_mlp = nn.RMSNorm(shape.width, eps=1e-5)
        self.mlp = Swiglu(shape.width, hidden) if mlp == "swiglu" else Gelu(shape.width, hidden)

    def forward(
        self,
        x: Tensor,
        encoding: PositionalEncoding,
        layout: Layout,
        state: Any,
        cache: Cache | None,
        watched: list[Tensor] | None = None,
    ) -> tuple[Tensor, Any]:
        y, state = self.attention(self.before_attention(x), encoding, layout, state, cache, watched)
        x = x + y
        h = self.before_mlp(x)
        y = self.mlp(h)
        with torch.autocast(x.device.type, enabled=False):
            state = encoding.after_mlp(self.index, h, y, state)
        return x + y, state


class Decoder(nn.Module):
    """logits = decoder(tokens), (B, T) -> (B, T, vocabulary).

    `hidden` is the width of the MLP (8/3 of the width for swiglu, 4 times for gelu). Without a `head`, only what it
    would read can be asked for. All positional parameters are under `encoding.*`. Where `recomputes` is set, the
    backward pass computes each block again rather than keep what it computed.
    """

    recomputes = False

    def __init__(
        self,
        vocabulary: int,
        shape: Shape,
        encoding: str | PositionalEncoding = "rope",
        *,
        hidden: int | None = None,
        mlp: str = "swiglu",
        head: bool = True,
        tied: bool = True,
        dropout: float = 0.0,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        one_of("Decoder", "mlp", mlp, ("swiglu", "gelu"))
        at_least("Decoder", "vocabulary", vocabulary, 1)
        if not isinstance(shape, Shape):
            raise ValueError(f"Decoder: shape must be an adapos.Shape, not {type(shape).__name__}")
        if hidden is not None:
            at_least("Decoder", "hidden", hidden, 1)
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"Decoder: dropout ({dropout}) must be at least 0 and below 1")
        if hidden is None:
            hidden = 4 * shape.width if mlp == "gelu" else 8 * ((8 * shape.width // 3 + 7) // 8)
        self.shape, self.vocabulary = shape, vocabulary
        self.embedding = nn.Embedding(vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape, i, hidden, mlp, backend, dropout) for i in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)
        if head:
            self.head = nn.Linear(shape.width, vocabulary, bias=False)
        self.apply(self._start)
        for name, weight in self.named_parameters():
            # what is added to the stream shrinks with the number of additions
            if name.endswith(("attention.out.weight", "mlp.down.weight")):
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5)
        if head and tied:
            self.head.weight = self.embedding.weight
        # last, so that encodings drawing more or fewer random numbers leave all other weights as they are
        self.encoding = build(encoding, shape) if isinstance(encoding, str) else encoding
        if self.encoding.shape != shape:
            raise ValueError(
                f"the encoding was built for {self.encoding.shape} and the decoder is {shape}; build it for the same"
            )

    def forward(
        self,
        tokens: Tensor,
        *,
        pos: Tensor | None = None,
        doc: Tensor | None = None,
        cache: Cache | None = None,
        causal: bool = True,
        window: int | None = None,
        last: int | None = None,
    ) -> Tensor:
        """`pos` (B, T) are ids of your own, `doc` (B, T) the document of each token, -1 for padding.

        With a cache the tokens follow those in it. Without ids each document counts 0, 1, 2... `last` asks for the
        logits of so many last tokens alone.
        """
        x = self.hidden(tokens, pos=pos, doc=doc, cache=cache, causal=causal, window=window)
        return self.head(x if last is None else x[:, -last:])

    def hidden(
        self,
        tokens: Tensor,
        *,
        pos: Tensor | None = None,
        doc: Tensor | None = None,
        cache: Cache | None = None,
        causal: bool = True,
        window: int | None = None,
    ) -> Tensor:
        """What the head makes logits of, (B, T, width): for long texts logits take more memory than all else."""
        self.check(tokens, pos, doc)
        layout = placed(tokens.shape, pos, doc, cache, device=tokens.device, causal=causal, window=window)
        return self.through(self.embedding(tokens.long()), layout, cache)

    def through(
        self,
        x: Tensor,
        layout: Layout,
        cache: Cache | None = None,
        seen: list[Tensor] | None = None,
        watched: list[Tensor] | None = None,
    ) -> Tensor:
        """From embeddings (B, T, width) to what the head reads.

        `seen` is given what enters each block, `watched` the weights of its attention, (B, H, T, S).
        """
        allowed(self.encoding, layout, cache)
        x, layout, state = begun(self.encoding, x, layout)
        for block in self.blocks:
            if seen is not None:
                seen.append(x)
            # computed again, a block would put its tokens into the cache, or its weights into the list, again
            if self.recomputes and torch.is_grad_enabled() and cache is None and watched is None:
                x, state = checkpoint(block, x, self.encoding, layout, state, None, use_reentrant=False)
            else:
                x, state = block(x, self.encoding, layout, state, cache, watched)
        if cache is not None:
            cache.commit(layout)
        return self.norm(x)

    def check(self, tokens: Tensor, pos: Tensor | None, doc: Tensor | None) -> None:
        """Refuse what no embedding could read, with a better sentence than its own."""
        home = self.embedding.weight.device
        for name, ids in (("tokens", tokens), ("pos", pos), ("doc", doc)):
            if ids is not None and not isinstance(ids, Tensor):
                raise ValueError(f"{name} must be a tensor, not a {type(ids).__name__}")
            if ids is not None and ids.device != home:
                raise ValueError(f"{name} is on {ids.device} and the decoder on {home}; move them to one device")
        if tokens.ndim != 2 or 0 in tokens.shape:
            raise ValueError(
                f"tokens must have shape (batch, length) with at least one of each, not {tuple(tokens.shape)}"
            )
        if tokens.is_floating_point() or tokens.dtype == torch.bool:
            raise ValueError(f"tokens must be integers, not {tokens.dtype}")
        # a compiled graph cannot ask for numbers; there the embedding says it, less well
        readable = home.type == "cpu" and not torch.compiler.is_compiling()
        if readable and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.vocabulary:
            low, high = int(tokens.min()), int(tokens.max())
            raise ValueError(f"tokens must lie from 0 to {self.vocabulary - 1}, and they go from {low} to {high}")
        for name, ids in (("pos", pos), ("doc", doc)):
            if ids is not None and ids.shape != tokens.shape:
                raise ValueError(f"{name} must have the shape of tokens, {tuple(tokens.shape)}, not {tuple(ids.shape)}")

    @torch.no_grad()
    def generate(self, tokens: Tensor, new: int, *, doc: Tensor | None = None, temperature: float = 0.0) -> Tensor:
        """`tokens` (B, T) and `new` more, decoded with a cache, greedily at temperature 0. `doc` is -1 at padding."""
        at_least("generate", "new", new, 0)
        at_least("generate", "temperature", temperature, 0.0, whole=False)
        if doc is not None and bool((doc[:, -1] == PADDING).any()):
            raise ValueError(
                "a prompt must end in a token to go on from, and some end in padding; pad them on the left"
            )
        cache = Cache()
        logits = self(tokens, doc=doc, cache=cache, last=1)[:, -1]
        for step in range(new):
            if temperature > 0:
                # from the greatest down, or a small temperature overflows
                chosen = torch.multinomial(((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1), 1)
            else:
                chosen = logits.argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, chosen], dim=1)
            if step < new - 1:
                logits = self(chosen, cache=cache)[:, -1]
        return tokens

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def extra_repr(self) -> str:
        return f"encoding={label(self.encoding)!r}"
