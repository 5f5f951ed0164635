"""The arithmetic and the bytes of a call of attention, counted by formula.

Counted are the products: a multiplication and an addition are two operations. The softmax, additions of a bias and
rectifiers are not. Only pairs count of which the query sees the key. Of each such pair:

    before the softmax, all heads together
        scores          2 H D
        DistanceDot     2 H D           q_i . r[i - j]
        LogDot          2 H R           z_i . z_j
        Fire            2 W + 2 H W     once for all rows of a batch, which have the same ids
        HeadMix         2 H W k         each of its two layers; the first again for the bias half of its channels,
                                        where the bias is not a table over distance
    after it
        values          2 H E

A bias that is a table over distance costs nothing a pair. The bias half of HeadMix is then a table too: 2 H W k for
each distance. What `pairs()` itself computes, such as the r of `xl`, is counted by torch as it runs.

The backward pass computes what stands before the softmax again, and each product has two gradients: three times what
is before, twice what is after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from adapos.kernels import Call
from adapos.layout import Layout
from adapos.pairs import Bias, Cope, DistanceDot, DistanceTable, Fire, Grid, HeadMix, LogDot, Mix, Ramp


@dataclass(frozen=True)
class Products:
    """Operations of a call: a pair's before and after the softmax, and those of tables, which are made once."""

    before: int
    after: int
    tables: int = 0

    @property
    def forward(self) -> int:
        return self.before + self.after + self.tables

    @property
    def backward(self) -> int:
        return 3 * self.before + 2 * self.after + 2 * self.tables

    def total(self, *, training: bool) -> int:
        return self.forward + self.backward if training else self.forward


def plain(batch: int, heads: int, width: int, layout: Layout) -> Products:
    """Of attention with nothing between the scores and the softmax."""
    pairs = batch * visible(layout)
    return Products(before=2 * heads * width * pairs, after=2 * heads * width * pairs)


def products(call: Call) -> Products | None:
    """Of a call; None where it holds a term that this file does not know."""
    batch, heads, _, width = call.q.shape
    pairs = visible(call.layout)
    terms = [_bias(term, batch, heads) for term in call.pairs.bias]
    mix, table = _mix(call, heads)
    if mix is None or None in terms:
        return None
    before = sum(term for term in terms if term is not None) + batch * (2 * heads * width + mix)
    return Products(before=before * pairs, after=2 * batch * heads * call.v.shape[3] * pairs, tables=table)


def _bias(term: Bias, batch: int, heads: int) -> int | None:
    """Operations a pair, of all rows of the batch together."""
    match term:
        case DistanceTable() | Ramp() | Grid():
            return 0
        case DistanceDot() | LogDot():
            return 2 * batch * heads * term.q.shape[3]
        case Fire():
            return 2 * term.breadth + 2 * heads * term.breadth
    return None


def _mix(call: Call, heads: int) -> tuple[int | None, int]:
    """Operations a pair, and those of the table that the bias half may be."""
    mix: Mix | None = call.pairs.mix
    if mix is None or isinstance(mix, Cope):
        return 0, 0  # gates and interpolation are no products
    if not isinstance(mix, HeadMix):
        return None, 0
    layer = 2 * heads * mix.w_in.shape[0] * mix.kernel
    tables = [term for term in call.pairs.bias if isinstance(term, DistanceTable)]
    whole = bool(call.pairs.bias) and len(tables) == len(call.pairs.bias)
    reads_scores = mix.form != "bias"
    reads_bias = bool(call.pairs.bias) and mix.form != "add"
    a_pair = layer * (1 + reads_scores + (reads_bias and not whole))
    return a_pair, layer * call.layout.span if reads_bias and whole else 0


def visible(layout: Layout) -> int:
    """How many keys the queries of a row see, all together: causal, one document, no window."""
    assert layout.plain
    return layout.queries * layout.start + layout.queries * (layout.queries + 1) // 2


def cached(*tensors: Tensor) -> int:
    """The bytes that a decoding step reads."""
    return sum(x.numel() * x.element_size() for x in tensors)


def counted(run: Callable[[], object]) -> int:
    """The operations of ordinary torch products, as torch counts them."""
    # here, for it loads triton where that is installed
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())
