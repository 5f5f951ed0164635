"""Attention in tiles of rows x keys, all heads together, for biases of distance and a mix of heads.

With the bias b a table over distance, HeadMix needs only the scores S of a tile, its weights on them, and two
tables made beforehand, in which ordinary autograd carries the gradients on to whatever made b:

    hidden = leaky(W_in S + first)          first  = W_b b + b_in       (W, distance)
    logit  = S + W_out hidden + second      second = b + b_out          (H, distance)

The softmax runs along the keys with a running maximum; the backward pass recomputes each tile.

Within a tile the rows stand in reverse, so that distance falls by one per step right *and* per step down. A
table, written as a line of falling distance, then lies under a tile as a view with strides (1, 1), and the
gradient of the line is the tile summed along its diagonals. A kernel of k taps reads r = k // 2 neighbours
in each of two layers: tiles carry a halo of 2r keys on either side, and shifting a flat tile shifts every row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from adapos.kernels.call import Call
from adapos.kernels.threads import deal, spread
from adapos.layout import PADDING, Layout
from adapos.pairs import SLOPE, DistanceTable, HeadMix, along_keys, wide

ROWS, KEYS = 64, 128  # of a tile
PAIRS = ROWS * KEYS  # short texts share a tile


@dataclass(frozen=True, eq=False)
class Mixing:
    """HeadMix with its bias half taken out: what a tile needs of it, ready to multiply."""

    into: Tensor | None  # (k, W, H); None where only the bias is read
    out: Tensor  # (k, H, W)

    @property
    def reach(self) -> int:
        return self.out.shape[0] // 2


@dataclass(frozen=True, eq=False)
class Tables:
    """Lines of falling distance, furthest first. Where ids are not consecutive they are looked up by id instead."""

    first: Tensor | None  # (W, M)
    second: Tensor | None  # (H, M)
    edges: Tensor | None  # (2r, W, M): `first` at the r outermost keys of either end, where taps fall off
    furthest: int  # the distance at the head of the line

    def columns(self, layout: Layout, batch: slice, rows: slice, keys: slice) -> Tensor:
        """(1, t, s): where each pair of a tile stands on the line, for ids that are not consecutive."""
        q_pos, k_pos = layout.q_pos[batch, rows].flip(1), layout.k_pos[batch, keys]
        last = next(line.shape[1] for line in (self.first, self.second) if line is not None) - 1
        return (self.furthest - q_pos[:, :, None] + k_pos[:, None]).clamp(0, last)


def suits(call: Call) -> bool:
    """Whether these tiles can run the call. Others run by whole rows."""
    pairs, layout = call.pairs, call.layout
    if call.dropout or not all(isinstance(term, DistanceTable) for term in pairs.bias) or len(pairs.bias) > 1:
        return False
    if pairs.mix is None:
        return True
    if not isinstance(pairs.mix, HeadMix):
        return False
    # where taps meet the border of a document the bias half is no table
    return pairs.mix.kernel == 1 or (layout.consecutive and layout.k_doc is None and layout.window is None)


def run(call: Call) -> Tensor:
    mixing, tables = prepared(call)
    tensors = [call.q, call.k, call.v]
    tensors += [x for x in (tables.first, tables.second, tables.edges) if x is not None]
    tensors += [] if mixing is None else [x for x in (mixing.into, mixing.out) if x is not None]
    if call.differentiable:
        out: Tensor = _Tiles.apply(call.layout, call.scale, mixing, tables, *tensors)
    else:
        out, _ = forward(call.layout, call.scale, mixing, tables, *(wide(x) for x in (call.q, call.k, call.v)))
    return out.to(call.v.dtype)


def prepared(call: Call) -> tuple[Mixing | None, Tables]:
    """The tables and weights of a call, by ordinary differentiable operations."""
    layout, mix = call.layout, call.pairs.mix
    assert mix is None or isinstance(mix, HeadMix)
    reach = 0 if mix is None else mix.kernel // 2
    bias, furthest = _line(call, reach)
    if mix is None:
        return None, Tables(None, bias, None, furthest)
    w_in, b_in, w_out, b_out = (wide(x) for x in mix.tensors())
    second = b_out[:, None].expand(-1, 1) if bias is None or mix.form == "concat" else bias + b_out[:, None]
    first, edges = b_in[:, None], None
    into: Tensor | None = w_in[:, : call.heads]
    if bias is not None:
        of_bias = w_in[:, call.heads :] if mix.form in ("residual", "concat") else w_in
        into = None if mix.form == "bias" else into
        first = b_in[:, None] + along_keys(bias[None, :, None], of_bias)[0, :, 0]
        if reach:
            edges = torch.stack([_edge(bias, of_bias, b_in, column) for column in _outermost(reach)])
    length = 1 if bias is None else bias.shape[1]
    if bias is None:
        length = layout.start + layout.queries + layout.keys + 4 * reach
    first, second = first.expand(-1, length).contiguous(), second.expand(-1, length).contiguous()
    ready = None if into is None else into.permute(2, 0, 1).contiguous()
    return Mixing(ready, w_out.permute(2, 0, 1).contiguous()), Tables(first, second, edges, furthest)


def _line(call: Call, reach: int) -> tuple[Tensor | None, int]:
    """The bias of falling distance (H, M), and the distance at its head."""
    layout = call.layout
    furthest = layout.start + layout.queries - 1 + 2 * reach
    if not call.pairs.bias:
        return None, furthest
    term = call.pairs.bias[0]
    assert isinstance(term, DistanceTable)
    table = wide(term.table)
    if not layout.consecutive:
        return table.flip(1), table.shape[1] - 1 - term.zero
    distance = furthest - torch.arange(layout.start + layout.queries + layout.keys + 4 * reach, device=table.device)
    line = table.index_select(1, (distance + term.zero).clamp(0, table.shape[1] - 1))
    if reach and layout.causal:
        # taps on keys ahead read nothing
        line = line * (distance >= 0)
    return line, furthest


def _outermost(reach: int) -> list[int]:
    """The r first keys as 0, 1..., the r last as -1, -2..."""
    return [*range(reach), *range(-1, -reach - 1, -1)]


def _edge(bias: Tensor, weight: Tensor, b_in: Tensor, column: int) -> Tensor:
    """`first` at one of the outermost keys: without the taps that fall off the end."""
    reach = weight.shape[-1] // 2
    offset = torch.arange(-reach, reach + 1, device=weight.device)
    inside = offset >= -column if column >= 0 else offset <= -column - 1
    return b_in[:, None] + along_keys(bias[None, :, None], weight * inside)[0, :, 0]


class _Tiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layout: Layout, scale: float, mixing: Mixing | None, tables: Tables, *tensors: Tensor) -> Tensor:
        q, k, v = (wide(x) for x in tensors[:3])
        out, total = forward(layout, scale, mixing, tables, q, k, v)
        ctx.given = layout, scale, mixing, tables
        ctx.save_for_backward(out, total, *tensors)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        out, total, q, k, v, *_ = ctx.saved_tensors
        found = backward(*ctx.given, wide(q), wide(k), wide(v), out, total, grad)
        kinds = [x.dtype for x in ctx.saved_tensors[2:]]
        return None, None, None, None, *(g.to(kind) for g, kind in zip(found, kinds, strict=True))


@dataclass(frozen=True)
class Job:
    """Some rows of some texts, against all the keys they see."""

    batch: slice
    rows: slice
    keys: slice

    @property
    def pairs(self) -> int:
        return (self.batch.stop - self.batch.start) * (self.rows.stop - self.rows.start) * (self.keys.stop - self.keys.start)


def jobs(layout: Layout, tables: Tables) -> list[Job]:
    apart = not layout.consecutive and (tables.second is not None or tables.first is not None)
    together = 1 if apart else max(1, PAIRS // (min(layout.queries, ROWS) * min(layout.keys, KEYS)))
    found = []
    for text in range(0, layout.batch, together):
        batch = slice(text, min(text + together, layout.batch))
        for begin in range(0, layout.queries, ROWS):
            rows = slice(begin, min(begin + ROWS, layout.queries))
            last = min(layout.start + rows.stop, layout.keys) if layout.causal else layout.keys
            first = 0
            if layout.window is not None:
                first = max(0, layout.start + begin - layout.window + 1)
                last = min(last, layout.start + rows.stop - 1 + layout.window)
            found.append(Job(batch, rows, slice(first, last)))
    return found


class Worker:
    """One thread's view of the problem, and its buffers."""

    def __init__(
        self, layout: Layout, scale: float, mixing: Mixing | None, tables: Tables, q: Tensor, k: Tensor, v: Tensor
    ) -> None:
        self.layout, self.scale, self.mixing, self.tables = layout, scale, mixing, tables
        self.reach = 0 if mixing is None else mixing.reach
        halo = 2 * self.reach
        # zeros past either end, so that the halo of the outermost tiles reads nothing
        self.q, self.k, self.v = q, F.pad(k, (0, 0, halo, halo)) if halo else k, v
        self.looked_up = not layout.consecutive
        self._buffers: dict[str, Tensor] = {}

    def buffer(self, name: str, *size: int) -> Tensor:
        count = math.prod(size)
        have = self._buffers.get(name)
        if have is None or have.numel() < count:
            have = self._buffers[name] = self.q.new_empty(count)
        return have[:count].view(size)

    def queries(self, job: Job, x: Tensor) -> Tensor:
        """(B, H, T, D) -> (n G, N t, D): the rows of a job in reverse, the heads that share a key together."""
        groups = self.k.shape[1]
        return x[job.batch, :, job.rows].flip(2).reshape(-1, x.shape[1] // groups * _size(job.rows), x.shape[-1])

    def tiles(self, job: Job) -> list[slice]:
        return [slice(j, min(j + KEYS, job.keys.stop)) for j in range(job.keys.start, job.keys.stop, KEYS)]

    def seen(self, job: Job, keys: slice, halo: int) -> Tensor | None:
        """(n or 1, 1, t, s + 2 halo): what is visible of a tile; None where all of it is."""
        layout = self.layout
        low, high = layout.start + job.rows.start, layout.start + job.rows.stop - 1
        diagonal = layout.causal and keys.stop - 1 + halo > low
        window = layout.window is not None and (
            high - keys.start + halo >= layout.window or keys.stop - 1 + halo - low >= layout.window
        )
        outside = keys.start < halo or keys.stop + halo > layout.keys
        documents = layout.k_doc is not None and layout.q_doc is not None
        if not (diagonal or window or documents or (halo and outside)):
            return None
        device = self.k.device
        key = torch.arange(keys.start - halo, keys.stop + halo, device=device)
        offset = torch.arange(high, low - 1, -1, device=device)[:, None] - key  # (t, s)
        seen = (key >= 0) & (key < layout.keys)
        seen = seen & (offset >= 0) if layout.causal else seen.expand_as(offset)
        if layout.window is not None:
            seen = seen & (offset.abs() < layout.window)
        seen = seen[None]
        if documents:
            assert layout.k_doc is not None and layout.q_doc is not None and not halo
            k_doc = layout.k_doc[job.batch, None, keys]
            seen = seen & (layout.q_doc[job.batch, job.rows].flip(1)[:, :, None] == k_doc) & (k_doc != PADDING)
        return None if bool(seen.all()) else seen[:, None]

    def under(self, line: Tensor, job: Job, keys: slice, halo: int) -> Tensor:
        """(C, M) -> (C, t, s + 2 halo) or (C, 1, t, s): the table under a tile."""
        if self.looked_up:
            return line[:, self.tables.columns(self.layout, job.batch, job.rows, keys)[0]]
        rows, count = _size(job.rows), _size(keys) + 2 * halo
        return line.as_strided((line.shape[0], rows, count), (line.stride(0), 1, 1), line.storage_offset() + self.head(job, keys, halo))

    def head(self, job: Job, keys: slice, halo: int) -> int:
        """Where on the line the first row and key of a tile stand."""
        return self.tables.furthest - (self.layout.start + job.rows.stop - 1) + keys.start - halo

    def tile(self, job: Job, keys: slice, q: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None, Tensor | None]:
        """Scores, hidden layer, logits of a tile; what is seen of it with its halo and without."""
        texts, rows, halo = _size(job.batch), _size(job.rows), 2 * self.reach
        heads, wide_keys = self.q.shape[1], _size(keys) + 2 * halo
        k = self.k[job.batch].flatten(0, 1)[:, keys.start : keys.stop + 2 * halo]
        score = self.buffer("score", texts, heads, rows, wide_keys)
        torch.bmm(q, k.transpose(1, 2), out=score.view(len(q), -1, wide_keys))
        whole = self.seen(job, keys, halo)
        inner = whole[..., halo : wide_keys - halo] if whole is not None else None
        logit = self.buffer("logit", *score.shape)
        if self.tables.second is None:
            logit.copy_(score)
        else:
            if halo and whole is not None:
                score.masked_fill_(~whole, 0.0)
            torch.add(score, self.under(self.tables.second, job, keys, halo), out=logit)
        hidden = None
        if self.mixing is not None:
            hidden = self.hidden(job, keys, score, whole)
            self.shifted_product(logit, self.mixing.out, hidden)
        logit = logit[..., halo : wide_keys - halo]
        if inner is not None:
            logit.masked_fill_(~inner, -torch.inf)
        return score, hidden, logit, whole, inner

    def hidden(self, job: Job, keys: slice, score: Tensor, whole: Tensor | None) -> Tensor:
        assert self.mixing is not None and self.tables.first is not None
        texts, _, rows, count = score.shape
        width, halo = self.mixing.out.shape[2], 2 * self.reach
        hidden = self.buffer("hidden", texts, width, rows, count)
        hidden.copy_(self.under(self.tables.first, job, keys, halo).unsqueeze(0))
        for edge, column in self.edges(keys):
            head = self.head(job, keys, halo) + column
            hidden[..., column] = edge[:, head : head + rows]
        if self.mixing.into is not None:
            self.shifted_product(hidden, self.mixing.into, score)
        F.leaky_relu_(hidden, SLOPE)
        if halo and whole is not None:
            hidden.masked_fill_(~whole, 0.0)
        return hidden

    def edges(self, keys: slice) -> list[tuple[Tensor, int]]:
        """The edge tables that apply within a tile, each with its column there."""
        if self.tables.edges is None:
            return []
        halo, found = 2 * self.reach, []
        for edge, outermost in zip(self.tables.edges, _outermost(self.reach), strict=True):
            key = outermost if outermost >= 0 else self.layout.keys + outermost
            column = key - (keys.start - halo)
            # in a causal tile no row sees the last keys with neighbours beyond them but through distance
            if 0 <= column < _size(keys) + 2 * halo and (outermost >= 0 or not self.layout.causal):
                found.append((edge, column))
        return found

    def shifted_product(self, into: Tensor, weight: Tensor, x: Tensor) -> None:
        """into[x] += sum over taps of weight[tap] @ x[x + tap - r], on flat tiles."""
        reach = weight.shape[0] // 2
        into, x = into.flatten(2), x.flatten(2)
        count = x.shape[2]
        for tap, w in enumerate(weight):
            shift = tap - reach
            into[..., reach : count - reach].baddbmm_(w.expand(len(x), -1, -1), x[..., reach + shift : count - reach + shift])

    def attend(self, share: list[Job], out: Tensor, total: Tensor) -> None:
        """Fill the rows of a share: the output (B, H, T, E) and the logarithm of each row's sum (B, H, T)."""
        groups, heads, values = self.k.shape[1], self.q.shape[1], self.v.shape[-1]
        for job in share:
            texts, rows = _size(job.batch), _size(job.rows)
            q = self.queries(job, self.q) * self.scale
            v = self.v[job.batch].flatten(0, 1)
            top = q.new_full((texts, heads, rows, 1), -1e30)  # finite: a row may see nothing yet
            sums = torch.zeros_like(top)
            gathered = q.new_zeros(texts * groups, heads // groups * rows, values)
            for keys in self.tiles(job):
                _, _, logit, _, _ = self.tile(job, keys, q)
                higher = torch.maximum(top, logit.amax(-1, keepdim=True))
                weight = self.buffer("weight", *logit.shape)
                torch.sub(logit, higher, out=weight).exp_()
                fade = (top - higher).exp_()
                sums.mul_(fade).add_(weight.sum(-1, keepdim=True))
                gathered.mul_(fade.view(len(q), -1, 1))
                gathered.baddbmm_(weight.view(len(q), -1, _size(keys)), v[:, keys])
                top = higher
            blind = sums == 0
            gathered = gathered.view(texts, heads, rows, values).div_(sums.masked_fill(blind, 1.0))
            out[job.batch, :, job.rows] = gathered.flip(2)
            # a row that sees nothing has infinite weight to share among none: its weights come back as zeros
            total[job.batch, :, job.rows] = (top + sums.log()).masked_fill_(blind, torch.inf)[..., 0].flip(2)

    def differentiate(self, share: list[Job], out: Tensor, total: Tensor, grad: Tensor) -> list[Tensor | None]:
        """The share's part of all gradients: q, k, v, first, second, edges, into, out."""
        halo, tables, mixing = 2 * self.reach, self.tables, self.mixing
        dq, dk, dv = torch.zeros_like(self.q), torch.zeros_like(self.k), torch.zeros_like(self.v)
        # sums over all pairs cancel heavily: in double
        found = [None if x is None else torch.zeros_like(x, dtype=torch.float64) for x in (tables.first, tables.second, tables.edges)]
        first, second, edges = found
        into = None if mixing is None or mixing.into is None else torch.zeros_like(mixing.into, dtype=torch.float64)
        w_out = None if mixing is None else torch.zeros_like(mixing.out, dtype=torch.float64)
        for job in share:
            texts, rows, heads = _size(job.batch), _size(job.rows), self.q.shape[1]
            q = self.queries(job, self.q) * self.scale
            g = self.queries(job, grad)
            weighted = (g * self.queries(job, out)).sum(-1).view(texts, heads, rows, 1)
            sums = total[job.batch, :, job.rows].flip(2)[..., None]
            v, dv_job = self.v[job.batch].flatten(0, 1), dv[job.batch].flatten(0, 1)
            k, dk_job = self.k[job.batch].flatten(0, 1), dk[job.batch].flatten(0, 1)
            dq_job = torch.zeros_like(q)
            for keys in self.tiles(job):
                count = _size(keys)
                score, hidden, logit, whole, _ = self.tile(job, keys, q)
                weight = torch.sub(logit, sums, out=self.buffer("weight", *logit.shape)).exp_()
                flat = weight.view(len(q), -1, count)
                dv_job[:, keys].baddbmm_(flat.transpose(1, 2), g)
                dlogit = self.buffer("dlogit", texts, heads, rows, count)
                torch.bmm(g, v[:, keys].transpose(1, 2), out=dlogit.view(len(q), -1, count))
                dlogit.sub_(weighted).mul_(weight)
                if halo:
                    dlogit = F.pad(dlogit, (halo, halo))
                if second is not None:
                    self.collect(second, dlogit, job, keys)
                if mixing is not None and hidden is not None and first is not None and w_out is not None:
                    self.products(w_out, dlogit, hidden)
                    dhidden = self.buffer("dhidden", *hidden.shape).zero_()
                    self.shifted_back(dhidden, mixing.out, dlogit)
                    torch.ops.aten.leaky_relu_backward.grad_input(dhidden, hidden, SLOPE, True, grad_input=dhidden)
                    if halo and whole is not None:
                        dhidden.masked_fill_(~whole, 0.0)
                    if mixing.into is not None and into is not None:
                        self.products(into, dhidden, score)
                        self.shifted_back(dlogit, mixing.into, dhidden)
                    if edges is not None:
                        self.collect_edges(edges, dhidden, job, keys)
                    self.collect(first, dhidden, job, keys)
                    if halo and whole is not None:
                        dlogit.masked_fill_(~whole, 0.0)
                flat = dlogit.view(len(q), -1, count + 2 * halo)
                near = slice(keys.start, keys.stop + 2 * halo)
                dq_job.baddbmm_(flat, k[:, near])
                dk_job[:, near].baddbmm_(flat.transpose(1, 2), q)
            dq[job.batch, :, job.rows] = dq_job.view(texts, heads, rows, -1).flip(2) * self.scale
        dk = dk[:, :, halo : dk.shape[2] - halo]
        return [dq, dk, dv, *found, into, w_out]

    def products(self, into: Tensor, grad: Tensor, x: Tensor) -> None:
        """The gradient of the weights of shifted_product."""
        reach = into.shape[0] // 2
        grad, x = grad.flatten(2), x.flatten(2)
        count = x.shape[2]
        for tap in range(into.shape[0]):
            shift = tap - reach
            product = torch.bmm(grad[..., reach : count - reach], x[..., reach + shift : count - reach + shift].transpose(1, 2))
            into[tap] += product.sum(0)

    def shifted_back(self, into: Tensor, weight: Tensor, grad: Tensor) -> None:
        """The gradient of the input of shifted_product."""
        reach = weight.shape[0] // 2
        into, grad = into.flatten(2), grad.flatten(2)
        count = grad.shape[2]
        for tap, w in enumerate(weight):
            shift = tap - reach
            into[..., reach + shift : count - reach + shift].baddbmm_(w.t().expand(len(grad), -1, -1), grad[..., reach : count - reach])

    def collect(self, into: Tensor, grad: Tensor, job: Job, keys: slice) -> None:
        """Add the gradient of a tile to the line under it."""
        texts, channels, rows, count = grad.shape
        if self.looked_up:
            columns = self.tables.columns(self.layout, job.batch, job.rows, keys)
            into.index_add_(1, columns.flatten(), grad.sum(0).flatten(1).to(into.dtype))
            return
        # each row one further right than the one above, zeros elsewhere: the columns are the diagonals
        skewed = self.buffer("skewed", channels, rows, rows + count).zero_()
        tile = grad[0] if texts == 1 else grad.sum(0)
        skewed.as_strided((channels, rows, count), (rows * (rows + count), rows + count + 1, 1), skewed.storage_offset()).copy_(tile)
        head = self.head(job, keys, 2 * self.reach)
        into[:, head : head + rows + count - 1] += skewed.sum(1)[:, :-1]

    def collect_edges(self, into: Tensor, grad: Tensor, job: Job, keys: slice) -> None:
        for edge, column in self.edges(keys):
            index = next(i for i, own in enumerate(self.tables.edges if self.tables.edges is not None else ()) if own.data_ptr() == edge.data_ptr())
            head = self.head(job, keys, 2 * self.reach) + column
            into[index][:, head : head + _size(job.rows)] += grad[..., column].sum(0)
            grad[..., column] = 0.0


def forward(
    layout: Layout, scale: float, mixing: Mixing | None, tables: Tables, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    out, total = q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3])

    def work(share: list[Job]) -> None:
        with torch.no_grad():
            Worker(layout, scale, mixing, tables, q, k, v).attend(share, out, total)

    spread(work, deal(jobs(layout, tables), lambda job: job.pairs, q.device))
    return out, total


def backward(
    layout: Layout, scale: float, mixing: Mixing | None, tables: Tables, q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor, grad: Tensor
) -> list[Tensor]:
    def work(share: list[Job]) -> list[Tensor | None]:
        with torch.no_grad():
            return Worker(layout, scale, mixing, tables, q, k, v).differentiate(share, out, total, grad)

    first, *rest = spread(work, deal(jobs(layout, tables), lambda job: job.pairs, q.device))
    found = [x for x in first if x is not None]
    for other in rest:
        for mine, theirs in zip(found, (x for x in other if x is not None), strict=True):
            mine += theirs
    return found


def _size(part: slice) -> int:
    return int(part.stop - part.start)
