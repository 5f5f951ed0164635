"""What is timed: attention as a layer calls it, plain attention beside it, and a whole decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from adapos.encoding import Keys, PositionalEncoding, Tokens
from adapos.kernels import Call, attend, choose, ranked
from adapos.layout import Layout
from adapos.model import Cache, Decoder
from adapos.model.layer import allowed, begun
from adapos.pairs import Pairs
from adapos.profile import cost
from adapos.profile.plan import PLAIN, SIZES, Plan


@dataclass(frozen=True, eq=False)
class Work:
    """One encoding, ready to be run, and what is known of it before it has run."""

    once: Callable[[], object]
    backend: str
    refused: dict[str, str] = field(default_factory=dict)
    flops: int | None = None
    cached: int | None = None  # bytes that a decoding step reads
    parameters: int | None = None


def maker(plan: Plan, what: str, length: int) -> Callable[[str], Work]:
    """Makes the work of any encoding for one measurement and length; decoders share their weights."""
    if what == "model":
        steps = Steps(plan, length)
        return steps.work
    return lambda spec: attention(plan, what, spec, length)


def attention(plan: Plan, what: str, spec: str, length: int) -> Work:
    if spec == PLAIN:
        return plain(plan, what, length)
    training, decoding = what == "training", what == "decode"
    one = layer(plan.build(spec, what), plan, length, training=training, decoding=decoding)
    with torch.set_grad_enabled(training):
        call = one.call()
        backend, refused = answers(call, plan.backend)
        flops = one.flops(training=training)
    read = cost.cached(call.k, call.v, *one.tokens.extra.values()) if decoding else None

    def attended() -> Tensor:
        return one.attend(plan.backend)

    once = differentiated(attended, one.leaves) if training else unrecorded(attended)
    return Work(once, backend, refused, flops, read)


def plain(plan: Plan, what: str, length: int) -> Work:
    """torch's attention of the same sizes."""
    training, decoding = what == "training", what == "decode"
    torch.manual_seed(0)
    q, k, v = drawn(plan, plan.heads, 1 if decoding else length), *(drawn(plan, plan.kv_heads, length) for _ in "kv")
    for x in (q, k, v):
        x.requires_grad_(training)

    def attended() -> Tensor:
        # a lone query is the last token: it sees every key, and torch would align it with the first
        return F.scaled_dot_product_attention(q, k, v, is_causal=not decoding, enable_gqa=plan.heads != plan.kv_heads)

    layout = Layout.dense(1, q.shape[2], cached=length - q.shape[2])
    flops = cost.plain(plan.batch, plan.heads, plan.head_width, layout).total(training=training)
    once = differentiated(attended, (q, k, v)) if training else unrecorded(attended)
    backend = f"torch {kernel(q, k, v, causal=not decoding)}" if q.is_cuda else "torch"
    return Work(once, backend, {}, flops, cost.cached(k, v) if decoding else None)


def kernel(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> str:
    """Which of torch's kernels runs plain attention: flash, efficient, cudnn or math."""
    chosen = torch._fused_sdp_choice(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])
    return SDPBackend(chosen).name.lower().removesuffix("_attention")


@dataclass(frozen=True, eq=False)
class Layer:
    """The attention of one layer of a model, with what stands before it done: `pairs` and attention are to come."""

    encoding: PositionalEncoding
    index: int
    tokens: Tokens  # q of the queries; k, v and extra of all tokens
    layout: Layout

    def pairs(self) -> Pairs:
        t = self.tokens
        return self.encoding.pairs(self.index, t.q, Keys(t.k, t.v, t.extra), self.layout)

    def attend(self, backend: str) -> Tensor:
        t = self.tokens
        return attend(t.q, t.k, t.v, self.layout, self.pairs(), backend=backend)

    def call(self) -> Call:
        t = self.tokens
        return Call.checked(t.q, t.k, t.v, self.layout, self.pairs(), None, 0.0)

    @property
    def leaves(self) -> list[Tensor]:
        """What gradients are asked for."""
        t = self.tokens
        return [x for x in (t.q, t.k, t.v, *t.extra.values(), *self.encoding.parameters()) if x.requires_grad]

    def flops(self, *, training: bool) -> int | None:
        products = cost.products(self.call())
        if products is None:
            return None

        def prepared() -> None:
            made = [x for x in self.pairs().tensors() if x.requires_grad]
            if training and made:
                torch.autograd.grad(made, self.leaves, [torch.zeros_like(x) for x in made], allow_unused=True)

        return products.total(training=training) + cost.counted(prepared)


def layer(
    encoding: PositionalEncoding, plan: Plan, length: int, *, index: int = 0, training: bool, decoding: bool = False
) -> Layer:
    """With random tokens. For decoding the last of them asks, and the others are cached."""
    shape = encoding.shape
    torch.manual_seed(0)
    layout = Layout.dense(plan.batch, length, device=plan.device)
    allowed(encoding, layout, Cache() if decoding else None)
    with torch.no_grad():
        x = torch.randn(plan.batch, length, shape.width, dtype=plan.type, device=plan.device)
        x, layout, state = begun(encoding, x, layout)
        q, k, v = (
            drawn(plan, heads, length, shape.head_width) for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
        )
        t = encoding.tokens(index, Tokens(x, q, k, v), layout.q_pos, state)
    if decoding:
        layout = Layout.dense(plan.batch, 1, cached=length - 1, device=plan.device)
        t = replace(t, q=t.q[:, :, -1:].contiguous())
    if training:
        extra = {name: leaf(x) for name, x in t.extra.items()}
        t = replace(t, q=leaf(t.q), k=leaf(t.k), v=leaf(t.v), extra=extra)
    return Layer(encoding, index, t, layout)


def drawn(plan: Plan, heads: int, length: int, width: int | None = None) -> Tensor:
    return torch.randn(plan.batch, heads, length, width or plan.head_width, dtype=plan.type, device=plan.device)


def leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_(x.is_floating_point())


def answers(call: Call, backend: str) -> tuple[str, dict[str, str]]:
    """Who runs the call, and why others do not."""
    chosen = choose(call, backend).name
    return chosen, {other.name: reason for other in ranked(call) if (reason := other.refuses(call)) is not None}


def unrecorded(run: Callable[[], Tensor]) -> Callable[[], object]:
    def once() -> None:
        with torch.no_grad():
            run()

    return once


def differentiated(run: Callable[[], Tensor], leaves: Sequence[Tensor]) -> Callable[[], object]:
    """Forward and backward; gradients are returned and dropped, so none has to be cleared."""
    like: list[Tensor] = []

    def once() -> None:
        with torch.enable_grad():
            out = run()
            if not like:
                like.append(torch.randn_like(out))
            torch.autograd.grad(out, leaves, like[0], allow_unused=True)

    return once


class Steps:
    """Training steps, without the optimizer, of one decoder that is given each encoding in turn."""

    def __init__(self, plan: Plan, length: int) -> None:
        self.plan, self.length = plan, length
        size = SIZES[plan.size]
        torch.manual_seed(0)
        self.decoder = Decoder(size.vocabulary, size.shape, "nope").to(plan.device, plan.type)
        self.text = torch.randint(size.vocabulary, (plan.batch, length + 1), device=plan.device)

    def work(self, spec: str) -> Work:
        # plain attention whatever the backend that was asked for
        name, backend = ("nope", "sdpa") if spec == PLAIN else (spec, self.plan.backend)
        encoding = self.plan.build(name, "model")
        first = layer(encoding, self.plan, self.length, training=True)
        with torch.enable_grad():
            chosen, refused = answers(first.call(), backend)
        self.hold(encoding, backend)
        leaves = [x for x in self.decoder.parameters() if x.requires_grad]
        parameters = sum(x.numel() for x in leaves)

        def once() -> None:
            self.hold(encoding, backend)
            with torch.enable_grad():
                logits = self.decoder(self.text[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), self.text[:, 1:].flatten())
                torch.autograd.grad(loss, leaves, allow_unused=True)

        return Work(once, chosen, refused, self.flops(encoding), None, parameters)

    def hold(self, encoding: PositionalEncoding, backend: str) -> None:
        self.decoder.encoding = encoding
        for block in self.decoder.blocks:
            block.attention.backend = backend  # type: ignore[union-attr]

    def flops(self, encoding: PositionalEncoding) -> int | None:
        """Of linear layers, thrice for their two gradients, and of attention; what is done to single tokens is not."""
        weights = sum(x.weight.numel() for x in self.decoder.modules() if isinstance(x, nn.Linear))
        total = 3 * 2 * weights * self.plan.batch * self.length
        layers = encoding.shape.layers
        # a state need not ride through the last layer, so it may differ from the others
        for index, times in ((0, layers - 1), (layers - 1, 1)):
            with torch.enable_grad():
                found = layer(encoding, self.plan, self.length, index=index, training=True).flops(training=True)
            if found is None:
                return None
            total += times * found
        return total
