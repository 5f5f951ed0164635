"""Whether an encoding adapts: what it does to scores that no table over distance could do.

What an encoding adds to the scores of a layer is split into a static part, the mean of its bias over texts, and the
rest, A. A row's constant is taken out of both, for no softmax sees it. `share` is the size of A beside that of the
static part (of the scores, where nothing is static), and `variation` how much of A differs between texts at the same
place. For a state that travels, A is what the layers have added to it, and the state it started as is the static part.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from adapos.anatomy import heard, scores
from adapos.encoding import Keys
from adapos.layout import Layout
from adapos.model import Decoder
from adapos.pairs import Pairs

ROUNDING = 1e-5


@dataclass(frozen=True)
class Adaptation:
    layer: int
    share: float
    variation: float


@torch.no_grad()
def measure(model: Decoder, tokens: Tensor, doc: Tensor | None = None, *, causal: bool = True) -> list[Adaptation]:
    """Of each layer, over a few short texts (B, T); empty where the encoding is static."""
    training = model.training
    model.eval()
    with heard(model.encoding) as found:
        model(tokens, doc=doc, causal=causal, last=1)
    model.train(training)
    layers = []
    for index, (q, keys, layout, pairs) in found.pairs.items():
        adaptive, static = parts(q, keys, layout, pairs)
        if index and model.encoding.travels:
            began, now = found.states[0], found.states[index]
            moved = [(here - start).flatten(1) for start, here in zip(began, now, strict=True)]
            adaptive = torch.cat([adaptive, *moved], dim=1)
            static = torch.cat([static, *(start.flatten(1) for start in began)], dim=1)
        size, beside = rms(adaptive), rms(static)
        # what is left of a static encoding is rounding
        if size > ROUNDING * beside:
            layers.append(Adaptation(index, size / beside, rms(adaptive - adaptive.mean(0)) / size))
        elif pairs.mix is not None or model.encoding.travels:
            layers.append(Adaptation(index, 0.0, 0.0))
    return layers


def parts(q: Tensor, keys: Keys, layout: Layout, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """The adaptive and the static part of each text, (B, numbers)."""
    seen = layout.visible()
    shared = seen.all(0, keepdim=True)  # by the same query of every text
    score = scores(q, keys).masked_fill(~seen, 0.0)
    bias = pairs.added(layout)
    bias = torch.zeros_like(score) if bias is None else bias.expand_as(score).masked_fill(~seen, 0.0)
    static = bias.mean(0, keepdim=True).expand_as(bias)
    read = bias.to(score.dtype) if pairs.bias else None
    logit = score + bias if pairs.mix is None else pairs.mix.rows(score, read, seen)
    added = static if pairs.mix is None or pairs.mix.adds else 0.0
    adaptive = centred(logit - score - added, shared)
    return adaptive.flatten(1), centred(static if pairs.bias else score, shared).flatten(1)


def centred(x: Tensor, seen: Tensor) -> Tensor:
    """Without the mean over the keys that a row sees."""
    x = x.masked_fill(~seen, 0.0)
    return (x - x.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)).masked_fill(~seen, 0.0)


def rms(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())
