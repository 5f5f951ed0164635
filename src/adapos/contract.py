"""The contract that no encoding escapes: `check("kerple + dape")`, or an encoding of your own.

Promises are measured in double precision, but for those of lower ones, inside a small decoder whose weights are large
enough for positions to matter, and whose positional parameters are moved off their starting values, so that nothing
hides behind a zero.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from adapos.encoding import Keys, PositionalEncoding, Promises, Shape, Tokens
from adapos.kernels import BACKENDS
from adapos.kernels.call import Backend, Call
from adapos.kernels.reference import Reference
from adapos.kernels.tiled import Tiled
from adapos.layout import PADDING, Layout, count
from adapos.model.cache import Cache
from adapos.model.decoder import Decoder
from adapos.model.layer import begun
from adapos.registry import build, label, spec

EXACT = 1e-9
LENGTHS = (1, 7, 63, 64, 65, 200)
VOCABULARY = 31
Output = tuple[Tensor, list[Tensor]]  # and gradients of all that went in


@dataclass(frozen=True)
class Finding:
    """One promise, how far the encoding is from it, and the verdict."""

    promise: str
    meaning: str
    verdict: str  # held, broken or exempt
    error: float = 0.0
    limit: float = EXACT
    note: str = ""


@dataclass(frozen=True)
class Report:
    encoding: str
    findings: tuple[Finding, ...] = field(default_factory=tuple)

    @property
    def ok(self) -> bool:
        return not self.broken

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the promises that do not hold."""
        return tuple(finding.promise for finding in self.findings if finding.verdict == "broken")

    def __bool__(self) -> bool:
        return self.ok

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __str__(self) -> str:
        lines = [self.encoding]
        for f in self.findings:
            error = "" if f.verdict == "exempt" else f"{f.error:.1e} (limit {f.limit:.0e})"
            lines.append(f"  {f.promise:<14} {f.verdict:<7} {error:<24} {f.note or f.meaning}".rstrip())
        return "\n".join(lines)


class Exempt(Exception):
    """The encoding declares that it does not promise this, with its reason."""


class Subject:
    """The encoding under test, built as often as a check needs it."""

    def __init__(self, make: Callable[[Shape], PositionalEncoding], shape: Shape, *, fixed: bool) -> None:
        self.make, self.shape, self.fixed = make, shape, fixed
        self.promises: Promises = self.encoding(shape).eval().promises

    def encoding(self, shape: Shape) -> PositionalEncoding:
        torch.manual_seed(0)
        encoding = self.make(shape).double()
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.add_(0.1 * torch.rand_like(parameter) + 0.05)
        return encoding

    def decoder(self, *, groups: int | None = None, backend: str = "auto") -> Decoder:
        shape = self.shape
        if groups is not None and groups != shape.kv_heads:
            shape = Shape(shape.layers, shape.width, shape.heads, groups, shape.head_width)
        encoding = self.encoding(shape)
        torch.manual_seed(1)
        decoder = Decoder(VOCABULARY, shape, encoding, backend=backend).double().eval()
        with torch.no_grad():
            for name, parameter in decoder.named_parameters():
                if not name.startswith("encoding.") and parameter.ndim > 1:
                    parameter.normal_(std=1.5 / math.sqrt(parameter.shape[-1]))
        return decoder

    @property
    def groups(self) -> list[int]:
        heads = self.shape.heads
        return [self.shape.kv_heads] if self.fixed else sorted({1, max(1, heads // 2), heads})

    def room(self, length: int) -> int:
        """`length`, or less where the encoding declares a limit."""
        longest = self.promises.longest
        return length if longest is None else min(length, longest)


def check(
    encoding: str | PositionalEncoding | type[PositionalEncoding] | Callable[[Shape], PositionalEncoding],
) -> Report:
    """Put an encoding through the contract: a spec, a class, a function of a Shape, or one already built."""
    with torch.random.fork_rng(devices=[]):
        name, subject = _subject(encoding, Shape(layers=2, width=32, heads=4))
        return Report(name, tuple(_judged(subject, promise) for promise in CHECKS))


def _subject(encoding: Any, shape: Shape) -> tuple[str, Subject]:
    if isinstance(encoding, str):
        name = encoding
        return name, Subject(lambda shape: build(name, shape), shape, fixed=False)
    if isinstance(encoding, PositionalEncoding):
        built = encoding
        name = label(built)
        return name, Subject(lambda _: copy.deepcopy(built), built.shape, fixed=True)
    if callable(encoding):
        name = getattr(encoding, "name", "") or getattr(encoding, "__name__", repr(encoding))
        return name, Subject(encoding, shape, fixed=False)
    given = type(encoding).__name__
    raise ValueError(f"check takes a spec, an encoding, its class or a function of a Shape, not {given}")


def _judged(subject: Subject, promise: Callable[[Subject], float]) -> Finding:
    name = promise.__name__.strip("_")
    meaning = " ".join((promise.__doc__ or "").split())
    limit = LIMITS.get(name, EXACT)
    try:
        error = promise(subject)
    except Exempt as reason:
        return Finding(name, meaning, "exempt", note=str(reason))
    except Exception as problem:  # an encoding under test may fail in any way, and the table says how
        return Finding(name, meaning, "broken", math.inf, limit, f"{type(problem).__name__}: {problem}")
    return Finding(name, meaning, "held" if error <= limit else "broken", error, limit)


def _apart(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape or not bool(a.isfinite().all() and b.isfinite().all()):
        return math.inf
    return float(((a - b).abs().max() / b.abs().max().clamp(min=1.0)).detach())


def _text(batch: int, length: int, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (batch, length), generator=generator)


def _jumps(tokens: Tensor, below: int) -> Tensor:
    """Ids that rise by 1 to 3 from different starts."""
    generator = torch.Generator().manual_seed(3)
    steps = torch.randint(1, 4, tokens.shape, generator=generator)
    return (steps.cumsum(1) + torch.arange(len(tokens))[:, None]).clamp(max=below - 1)


@torch.no_grad()
def _in_chunks(decoder: Decoder, tokens: Tensor, pos: Tensor | None = None, window: int | None = None) -> Tensor:
    parts: list[Tensor] = []
    cache, sizes, begin = Cache(), (7, 1, 1, 20, 3), 0
    while begin < tokens.shape[1]:
        end = min(begin + sizes[len(parts) % len(sizes)], tokens.shape[1])
        parts.append(
            decoder(tokens[:, begin:end], pos=None if pos is None else pos[:, begin:end], cache=cache, window=window)
        )
        begin = end
    return torch.cat(parts, dim=1)


def _cacheable(subject: Subject) -> None:
    if not subject.promises.cacheable:
        raise Exempt(f"not cacheable: {subject.promises.because}")


def decoding(subject: Subject) -> float:
    """decoding in uneven chunks equals one pass, with a window too"""
    if not subject.promises.cacheable:
        try:
            _in_chunks(subject.decoder(), _text(1, 8))
        except ValueError as refused:
            raise Exempt(str(refused)) from None
        raise AssertionError("it is declared not cacheable, and decoding with a cache was not refused")
    decoder, tokens = subject.decoder(), _text(2, subject.room(70))
    with torch.no_grad():
        windowed = _apart(_in_chunks(decoder, tokens, window=9), decoder(tokens, window=9))
        return max(windowed, _apart(_in_chunks(decoder, tokens), decoder(tokens)))


def ids(subject: Subject) -> float:
    """ids that jump or fall, decoded with a cache or each row alone, equal one pass"""
    _cacheable(subject)
    decoder, tokens = subject.decoder(), _text(2, subject.room(40))
    rising = _jumps(tokens, subject.promises.longest or 2**30)
    falling = rising.flip(1) if subject.promises.longest is not None else -rising
    worst = 0.0
    with torch.no_grad():
        for pos in (rising, falling):
            together = decoder(tokens, pos=pos)
            alone = torch.cat([decoder(tokens[row], pos=pos[row]) for row in (slice(0, 1), slice(1, 2))])
            worst = max(worst, _apart(_in_chunks(decoder, tokens, pos), together), _apart(alone, together))
    return worst


def groups(subject: Subject) -> float:
    """1, H/2 and H key/value heads all decode as in one pass"""
    _cacheable(subject)
    worst = 0.0
    for number in subject.groups:
        decoder, tokens = subject.decoder(groups=number), _text(2, subject.room(40))
        with torch.no_grad():
            worst = max(worst, _apart(_in_chunks(decoder, tokens), decoder(tokens)))
    return worst


def future(subject: Subject) -> float:
    """later tokens, other or absent, change nothing, while training either"""
    decoder, tokens = subject.decoder(), _text(1, subject.room(400))
    half = max(1, tokens.shape[1] // 2)
    other = tokens.clone()
    other[:, half:] = (other[:, half:] + 1) % VOCABULARY
    worst = 0.0
    with torch.no_grad():
        for training in (False, True):
            decoder.train(training)
            torch.manual_seed(7)
            whole = decoder(tokens)[:, :half]
            torch.manual_seed(7)  # what is random while training is drawn alike
            worst = max(worst, _apart(decoder(other)[:, :half], whole))
            if subject.promises.cacheable and not training:
                worst = max(worst, _apart(decoder(tokens[:, :half]), whole))
    return worst


def padding(subject: Subject) -> float:
    """padding on the left or on the right changes nothing"""
    decoder, length = subject.decoder(), subject.room(30)
    tokens, short = _text(2, length), max(1, length // 3)
    worst = 0.0
    with torch.no_grad():
        alone = [decoder(tokens[:1]), decoder(tokens[1:, :short])]
        for left in (True, False):
            kept = slice(length - short, length) if left else slice(0, short)
            batch, doc = tokens.clone(), torch.zeros_like(tokens)
            batch[1, kept] = tokens[1, :short]
            doc[1] = PADDING
            doc[1, kept] = 0
            together = decoder(batch, doc=doc)
            worst = max(worst, _apart(together[:1], alone[0]), _apart(together[1:, kept], alone[1]))
    return worst


def packing(subject: Subject) -> float:
    """documents packed in one row equal the same documents apart"""
    _cacheable(subject)
    decoder, sizes = subject.decoder(), [subject.room(size) for size in (13, 1, 24)]
    tokens = _text(1, sum(sizes))
    doc = torch.cat([torch.full((1, size), number) for number, size in enumerate(sizes)], dim=1)
    with torch.no_grad():
        packed = decoder(tokens, doc=doc).split(sizes, dim=1)
        return max(_apart(own, decoder(part)) for own, part in zip(packed, tokens.split(sizes, dim=1), strict=True))


def relative(subject: Subject) -> float:
    """a shift of all ids changes nothing, exactly where `relative` is promised"""
    longest = subject.promises.longest or 2**30
    length, shift = min(40, max(1, longest - 1)), min(1000, max(1, longest - 41))
    decoder, tokens = subject.decoder(), _text(2, length)
    pos = torch.arange(length).expand(2, -1)
    with torch.no_grad():
        moved = _apart(decoder(tokens, pos=pos + shift), decoder(tokens, pos=pos))
    if subject.promises.relative:
        return moved
    if moved <= EXACT:
        raise AssertionError("`relative` is not promised, and yet a shift of ids changes nothing: promise it")
    raise Exempt(f"not relative: {subject.promises.because}")


def bidirectional(subject: Subject) -> float:
    """without causality backends agree and documents are apart, or the encoding refuses"""
    tokens = _text(2, subject.room(40))
    if subject.promises.causal_only:
        try:
            subject.decoder()(tokens, causal=False)
        except ValueError as refused:
            raise Exempt(str(refused)) from None
        raise AssertionError("it is declared causal only, and causal=False was not refused")
    with torch.no_grad():
        specified, chosen = subject.decoder(backend="reference"), subject.decoder(backend="tiled")
        worst = _apart(chosen(tokens, causal=False), specified(tokens, causal=False))
        if subject.promises.cacheable:
            half = max(1, tokens.shape[1] // 2)
            doc = torch.arange(tokens.shape[1]).ge(half).long().expand_as(tokens)
            packed = chosen(tokens, doc=doc, causal=False)[:, :half]
            worst = max(worst, _apart(packed, chosen(tokens[:, :half], causal=False)))
        return worst


def lengths(subject: Subject) -> float:
    """the backend chosen equals the reference at lengths 1, 7, 63, 64, 65 and 200"""
    worst = 0.0
    specified, chosen = subject.decoder(backend="reference"), subject.decoder()
    with torch.no_grad():
        for length in LENGTHS:
            tokens = _text(1, subject.room(length))
            worst = max(worst, _apart(chosen(tokens), specified(tokens)))
    return worst


@dataclass(frozen=True)
class _Layer:
    """One attention call of the encoding, with everything a gradient can be asked of."""

    call: Call
    inputs: list[Tensor]

    @classmethod
    def of(
        cls,
        subject: Subject,
        layout: Layout,
        *,
        seed: int = 4,
        values: torch.dtype = torch.float64,
        dtype: torch.dtype = torch.float64,
    ) -> _Layer:
        """In `dtype`, of numbers that `values` can tell."""
        shape, encoding = subject.shape, subject.encoding(subject.shape).to(values).to(dtype).eval()
        generator = torch.Generator().manual_seed(seed)

        def draw(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator, dtype=values).to(dtype).requires_grad_()

        tokens, keys = layout.queries, layout.keys
        if tokens != keys:
            raise AssertionError("a layer is checked over tokens that are queries and keys at once")
        x = draw(layout.batch, keys, shape.width)
        q, k, v = (
            draw(layout.batch, heads, keys, shape.head_width) for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
        )
        begun_x, layout, state = begun(encoding, x, layout)
        t = encoding.tokens(0, Tokens(begun_x, q, k, v), layout.q_pos, state)
        pairs = encoding.pairs(0, t.q, Keys(t.k, t.v, t.extra), layout)
        call = Call.checked(t.q, t.k, t.v, layout, pairs, None, 0.0)
        return cls(call, [x, q, k, v, *encoding.parameters()])

    def run(self, backend: Backend, grad: Tensor) -> Output:
        out = backend(self.call)
        found = torch.autograd.grad(out, self.inputs, grad, retain_graph=True, allow_unused=True)
        return out, [torch.zeros_like(x) if g is None else g for x, g in zip(self.inputs, found, strict=True)]


def _documents(length: int) -> Tensor:
    """Two rows: one packs documents, one is padded on the left and on the right."""
    doc = torch.zeros(2, length, dtype=torch.long)
    doc[0] = torch.arange(length) * 3 // length
    doc[1, : length // 4] = PADDING
    doc[1, length - length // 8 :] = PADDING
    return doc


def backends(subject: Subject) -> float:
    """every backend that computes in double equals the reference, output and all gradients, over packed, padded and
    dense rows"""
    worst = 0.0
    for length in (1, 65, 130):
        length = subject.room(length)
        doc = _documents(length)
        pos = count(doc)
        for layout in (Layout.dense(2, length), Layout(pos, pos, doc, doc)):
            layer = _Layer.of(subject, layout)
            grad = torch.randn(layer.call.q.shape[:3] + layer.call.v.shape[-1:], dtype=torch.float64)
            specified = layer.run(Reference(), grad)
            # once more with few rows a tile, or a term that ignores which rows are asked for would go unnoticed
            for backend in (*BACKENDS, Tiled(scores=2**12)):
                if backend.refuses(layer.call) is not None:
                    continue
                out, found = layer.run(backend, grad)
                worst = max(worst, _apart(out, specified[0]), *map(_apart, found, specified[1]))
    return worst


def single(subject: Subject) -> float:
    """in float32 every backend keeps half of the digits, output and all gradients, or errs at most twice as the
    reference, in units of that"""
    length = subject.room(65)
    doc = _documents(length)
    pos = count(doc)
    worst = 0.0
    for layout in (Layout.dense(2, length), Layout(pos, pos, doc, doc)):
        # rounding may carry what a rectifier reads across its kink, which is nobody's error: one of three draws will do
        errors = []
        for seed in (4, 5, 6):
            layer, exact = (
                _Layer.of(subject, layout, seed=seed, values=torch.float32, dtype=dtype)
                for dtype in (torch.float32, torch.float64)
            )
            grad = torch.randn(layer.call.q.shape[:3] + layer.call.v.shape[-1:])
            truth, usual = exact.run(Reference(), grad.double()), layer.run(Reference(), grad)
            able = [backend for backend in BACKENDS if backend.refuses(layer.call) is None]
            errors.append(max(_beside(layer.run(backend, grad), usual, truth) for backend in able))
            if errors[-1] <= 1:
                break
        worst = max(worst, min(errors))
    return worst


@torch.no_grad()
def _beside(found: Output, usual: Output, truth: Output) -> float:
    """The worst error in units of twice the usual one and half of the digits; of what is no number, infinite."""
    half = torch.finfo(torch.float32).eps ** 0.5
    worst = 0.0
    for x, plain, true in zip(*((out, *gradients) for out, gradients in (found, usual, truth)), strict=True):
        size = true.norm().clamp(min=1.0)
        # the whole of it, for a single number may be unlucky
        error, usually = (float((y.double() - true).norm() / size) for y in (x, plain))
        worst = max(worst, error / (2 * usually + half) if math.isfinite(error) else math.inf)
    return worst


def blind(subject: Subject) -> float:
    """a query that sees nothing gets zeros, and its gradients are finite"""
    length = subject.room(20)
    doc = _documents(length)
    doc[1, 0] = PADDING
    pos = count(doc)
    layer = _Layer.of(subject, Layout(pos, pos, doc, doc))
    worst = 0.0
    for backend in BACKENDS:
        if backend.refuses(layer.call) is not None:
            continue
        out, found = layer.run(
            backend, torch.ones(layer.call.q.shape[:3] + layer.call.v.shape[-1:], dtype=torch.float64)
        )
        dead = out.detach().transpose(1, 2)[doc == PADDING]
        finite = all(bool(g.isfinite().all()) for g in found)
        worst = max(worst, float(dead.abs().max()) if finite and bool(dead.isfinite().all()) else math.inf)
    return worst


def gradients(subject: Subject) -> float:
    """gradients equal finite differences along random directions"""
    decoder, tokens = subject.decoder(), _text(1, subject.room(24))
    parameters = [p for p in decoder.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(*tokens.shape, VOCABULARY, generator=generator, dtype=torch.float64)
    found = torch.autograd.grad((decoder(tokens) * weight).sum(), parameters, allow_unused=True)
    names = [name for name, p in decoder.named_parameters() if p.requires_grad]
    worst = 0.0
    for positional in (True, False):
        moving = [i for i, name in enumerate(names) if name.startswith("encoding.") == positional]
        if not moving:
            continue
        along = {i: torch.randn(parameters[i].shape, generator=generator, dtype=torch.float64) for i in moving}
        told = sum(float((g * along[i]).sum()) for i in moving if (g := found[i]) is not None)
        errors = []
        # a difference across a kink of a rectifier is no derivative: one of three steps will do
        for step in (1e-6, 1e-7, 1e-8):
            values = []
            with torch.no_grad():
                for sign in (1.0, -1.0):
                    for i in moving:
                        parameters[i].add_(along[i], alpha=sign * step)
                    values.append(float((decoder(tokens) * weight).sum()))
                    for i in moving:
                        parameters[i].sub_(along[i], alpha=sign * step)
            measured = (values[0] - values[1]) / (2 * step)
            errors.append(abs(told - measured) / max(1.0, abs(measured)))
        worst = max(worst, min(errors))
    return worst


def longest(subject: Subject) -> float:
    """ids have no upper limit, or the one declared is enforced"""
    decoder, tokens = subject.decoder(), _text(1, min(8, subject.promises.longest or 8))
    limit = subject.promises.longest
    pos = torch.arange(tokens.shape[1])[None]
    with torch.no_grad():
        if limit is None:
            return 0.0 if bool(decoder(tokens, pos=pos + 100_000).isfinite().all()) else math.inf
        decoder(tokens, pos=pos + limit - tokens.shape[1])
        try:
            decoder(tokens, pos=pos + limit)
        except ValueError as refused:
            raise Exempt(str(refused)) from None
    raise AssertionError(f"positions are declared to lie below {limit}, and position {limit} was not refused")


def precision(subject: Subject) -> float:
    """float32, bfloat16 and float16 stay finite and keep half of the digits that they have, in units of that"""
    tokens = _text(2, subject.room(40))
    # far apart, where half precision cannot tell distances from one another
    step = 37 if subject.promises.longest is None else 1
    pos = step * torch.arange(tokens.shape[1]).expand_as(tokens)
    double = subject.decoder()
    worst = 0.0
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        model = copy.deepcopy(double).to(kind)
        exact = copy.deepcopy(model).double()  # the same rounded weights
        with torch.no_grad():
            out = model(tokens, pos=pos)
            if out.dtype != kind:
                raise AssertionError(f"a {kind} model returned {out.dtype}")
            wanted = exact(tokens, pos=pos)
            # the whole of it, for a single number may be unlucky; a NaN is infinitely far
            error = float((out.double() - wanted).norm() / wanted.norm()) / torch.finfo(kind).eps ** 0.5
            worst = max(worst, error if math.isfinite(error) else math.inf)
    return worst


def repeatable(subject: Subject) -> float:
    """evaluating twice gives the same bits"""
    decoder, tokens = subject.decoder(), _text(2, subject.room(40))
    with torch.no_grad():
        first, second = decoder(tokens), decoder(tokens)
    return 0.0 if torch.equal(first, second) else max(_apart(first, second), 1.0)


def round_trip(subject: Subject) -> float:
    """the spec and the state dict rebuild the same encoding"""
    decoder, tokens = subject.decoder(), _text(1, subject.room(30))
    if not decoder.encoding.name and not hasattr(decoder.encoding, "parts"):
        raise Exempt("it has no name: put @adapos.register above the class to give it a spec")
    text = spec(decoder.encoding)
    torch.manual_seed(6)
    again = build(text, decoder.shape).double()
    if spec(again) != text:
        raise AssertionError(f"the spec {text!r} builds an encoding that calls itself {spec(again)!r}")
    again.load_state_dict(decoder.encoding.state_dict())
    with torch.no_grad():
        expected = decoder(tokens)
        decoder.encoding = again.eval()
        return _apart(decoder(tokens), expected)


CHECKS: tuple[Callable[[Subject], float], ...] = (
    decoding,
    ids,
    groups,
    future,
    padding,
    packing,
    relative,
    bidirectional,
    lengths,
    backends,
    single,
    blind,
    gradients,
    longest,
    precision,
    repeatable,
    round_trip,
)
LIMITS = {"single": 1.0, "gradients": 1e-5, "precision": 1.0}
