"""Attention in tiles of rows x keys, all heads together, for biases of distance, ramps and a mix of heads.

With the bias b a table over distance, HeadMix needs only the scores S of a tile, its weights on them, and two
tables made beforehand, through which ordinary autograd carries the gradients on to whatever made b:

    hidden = leaky(W_in S + first)          first  = W_b b + b_in       (W, distance)
    logit  = S + W_out hidden + second      second = b + b_out          (H, distance)

A ramp is added up tile by tile, for its halves are far larger than their sum.

The softmax runs along the keys with a running maximum; the backward pass recomputes each tile.

Within a tile the rows stand in reverse, so that distance falls by one per step right *and* per step down. A
table, written as a line of falling distance, then lies under a tile as a view with strides (1, 1), and the
gradient of the line is the tile summed along its diagonals. A kernel of k taps reads r = k // 2 neighbours
in each of two layers: tiles carry a halo of 2r keys on either side, and shifting a flat tile shifts every row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from adapos.kernels.call import Call
from adapos.kernels.threads import spread
from adapos.layout import PADDING, Layout
from adapos.pairs import SLOPE, DistanceTable, HeadMix, Ramp, along_keys, wide

ROWS, KEYS = 128, 256  # of a tile
PAIRS = ROWS * KEYS  # few rows take more keys, and short texts share a tile


@dataclass(frozen=True, eq=False)
class Problem:
    """What the tiles compute with. Tensors are in at least float32; those that do not apply are None."""

    layout: Layout
    scale: float
    reach: int  # r
    furthest: int  # the distance at the head of a line
    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, G, S, D)
    v: Tensor  # (B, G, S, E)
    first: Tensor | None = None  # (W, M), a line of falling distance
    second: Tensor | None = None  # (H, M)
    edges: Tensor | None = None  # (., W, M): `first` at the outermost keys, where taps fall off
    ramp_q: Tensor | None = None  # (B, H, T)
    ramp_k: Tensor | None = None  # (B, H, S)
    ramp_added: bool = True  # to the logits
    w_ramp: Tensor | None = None  # (1, W, H)
    w_in: Tensor | None = None  # (k, W, H)
    w_out: Tensor | None = None  # (k, H, W)

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: x for field in fields(self) if isinstance(x := getattr(self, field.name), Tensor)}

    @property
    def halo(self) -> int:
        return 2 * self.reach


def suits(call: Call) -> bool:
    """Whether these tiles can run the call. Others run by whole rows."""
    pairs, layout = call.pairs, call.layout
    tables = sum(isinstance(term, DistanceTable) for term in pairs.bias)
    ramps = sum(isinstance(term, Ramp) for term in pairs.bias)
    if call.dropout or tables > 1 or ramps > 1 or tables + ramps < len(pairs.bias):
        return False
    if pairs.mix is None:
        return True
    if not isinstance(pairs.mix, HeadMix):
        return False
    if pairs.mix.kernel == 1:
        return True
    # where taps meet the border of a document, or both ends of a very short text, the bias half is no table
    whole = layout.consecutive and layout.k_doc is None and layout.window is None
    return whole and not ramps and layout.keys > pairs.mix.kernel


def run(call: Call) -> Tensor:
    problem = prepared(call)
    if call.differentiable:
        tensors = problem.tensors()
        out: Tensor = _Tiles.apply(problem, tuple(tensors), *tensors.values())
    else:
        out, _, _ = forward(problem)
    return out.to(call.v.dtype)


def prepared(call: Call) -> Problem:
    """The tables and weights of a call, by ordinary differentiable operations."""
    layout, mix = call.layout, call.pairs.mix
    assert mix is None or isinstance(mix, HeadMix)
    reach = 0 if mix is None else mix.kernel // 2
    bias, furthest = _line(call, reach)
    q, k, v = (wide(x) for x in (call.q, call.k, call.v))
    kind = q.dtype
    ramp = next((term for term in call.pairs.bias if isinstance(term, Ramp)), None)
    problem = Problem(layout, call.scale, reach, furthest, q, k, v, second=bias)
    if ramp is not None:
        # in their own width: the halves are far larger than their sum
        problem = replace(problem, ramp_q=wide(ramp.q), ramp_k=wide(ramp.k))
    if mix is None:
        return problem
    mix = mix.holding([x.to(kind) for x in mix.tensors()])
    b_in, w_out, (of_score, of_bias) = mix.b_in, mix.w_out, mix.halves(call.heads)
    first, second, edges = b_in[:, None], mix.b_out[:, None], None
    length = _length(layout, reach) if bias is None else bias.shape[1]
    if bias is not None:
        first = first + along_keys(bias[None, :, None], of_bias)[0, :, 0]
        second = second + bias if mix.adds else second
        if reach:
            edges = torch.stack([_edge(bias, of_bias, b_in, column) for column in _outermost(layout, reach)])
    return replace(
        problem,
        ramp_added=mix.adds,
        w_ramp=None if ramp is None else of_bias.permute(2, 0, 1).contiguous(),
        first=first.expand(-1, length).contiguous(),
        second=second.expand(-1, length).contiguous(),
        edges=edges,
        w_in=None if of_score is None else of_score.permute(2, 0, 1).contiguous(),
        w_out=w_out.permute(2, 0, 1).contiguous(),
    )


def _length(layout: Layout, reach: int) -> int:
    """The length of a line: from the last query and the first key to the first query and the last key, with halos."""
    ahead = min(layout.queries, ROWS) if layout.causal else layout.keys
    return layout.start + layout.queries + ahead + 4 * reach


def _line(call: Call, reach: int) -> tuple[Tensor | None, int]:
    """The bias of falling distance (H, M), and the distance at its head."""
    layout = call.layout
    furthest = layout.start + layout.queries - 1 + 2 * reach
    term = next((term for term in call.pairs.bias if isinstance(term, DistanceTable)), None)
    if term is None:
        return None, furthest
    table = term.table.to(wide(call.q).dtype)
    if not layout.consecutive:
        # looked up by id
        return table.flip(1), table.shape[1] - 1 - term.zero
    distance = furthest - torch.arange(_length(layout, reach), device=table.device)
    line = table.index_select(1, (distance + term.zero).clamp(0, table.shape[1] - 1))
    if reach and layout.causal:
        # taps on keys ahead read nothing
        line = line.masked_fill(distance < 0, 0.0)
    return line, furthest


def _outermost(layout: Layout, reach: int) -> list[int]:
    """The r first keys as 0, 1..., the r last as -1, -2...; in a causal row keys end by distance instead."""
    return [*range(reach), *([] if layout.causal else range(-1, -reach - 1, -1))]


def _edge(bias: Tensor, weight: Tensor, b_in: Tensor, column: int) -> Tensor:
    """`first` at one of the outermost keys: without the taps that fall off the end."""
    reach, length = weight.shape[-1] // 2, bias.shape[1]
    taps = range(reach - column, 2 * reach + 1) if column >= 0 else range(reach - column)
    # not by weights of zero, which would make NaN of a bias of -inf
    near = F.pad(bias, (reach, reach))
    return b_in[:, None] + sum(weight[..., tap] @ near[:, tap : tap + length] for tap in taps)


class _Tiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, problem: Problem, names: tuple[str, ...], *tensors: Tensor) -> Tensor:
        out, top, sums = forward(problem)
        # tensors are kept by autograd alone, or they would keep the graph that made them
        nothing: dict[str, Any] = dict.fromkeys(names)
        ctx.names, ctx.problem = names, replace(problem, **nothing)
        ctx.save_for_backward(out, top, sums, *tensors)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        out, top, sums, *tensors = ctx.saved_tensors
        problem = replace(ctx.problem, **dict(zip(ctx.names, tensors, strict=True)))
        found = backward(problem, out, top, sums, grad)
        return None, None, *(found[name].to(x.dtype) for name, x in zip(ctx.names, tensors, strict=True))


@dataclass(frozen=True)
class Job:
    """Some rows of some texts, against all the keys they see."""

    batch: slice
    rows: slice
    keys: slice

    @property
    def pairs(self) -> int:
        return _size(self.batch) * _size(self.rows) * _size(self.keys)

    def tiles(self) -> list[slice]:
        step = max(KEYS, PAIRS // (_size(self.batch) * _size(self.rows)))
        return [slice(j, min(j + step, self.keys.stop)) for j in range(self.keys.start, self.keys.stop, step)]


def jobs(problem: Problem) -> list[Job]:
    layout = problem.layout
    looked_up = not layout.consecutive and problem.second is not None
    together = 1 if looked_up else max(1, PAIRS // (min(layout.queries, ROWS) * layout.keys))
    found = []
    for text in range(0, layout.batch, together):
        batch = slice(text, min(text + together, layout.batch))
        for begin in range(0, layout.queries, ROWS):
            rows = slice(begin, min(begin + ROWS, layout.queries))
            first, last = 0, layout.keys
            if layout.causal:
                last = min(last, layout.start + rows.stop)
            if layout.window is not None:
                first = max(first, layout.start + begin - layout.window + 1)
                last = min(last, layout.start + rows.stop - 1 + layout.window)
            found.append(Job(batch, rows, slice(first, last)))
    return found


@dataclass(frozen=True, eq=False)
class Tile:
    """Scores and hidden layer (n, ., t, s with its halo), logits (n, H, t, s), and what is seen; None: everything."""

    score: Tensor
    ramp: Tensor | None
    hidden: Tensor | None
    logit: Tensor
    seen: Tensor | None


class Worker:
    """One thread's hands on a problem: its buffers, and the tiles it fills."""

    def __init__(self, problem: Problem) -> None:
        self.p, self.layout = problem, problem.layout
        self.heads, self.groups = problem.q.shape[1], problem.k.shape[1]
        self.looked_up = not problem.layout.consecutive
        self._buffers: dict[str, Tensor] = {}
        self._skewed: dict[int, Tensor] = {}

    def attend(self, share: list[Job], out: Tensor, tops: Tensor, totals: Tensor) -> None:
        """Fill the rows of a share: the output (B, H, T, E), greatest logits and sums (B, H, T)."""
        for job in share:
            q, v = self.rows(job, self.p.q) * self.p.scale, self.flat(job, self.p.v)
            # finite, for a row may see nothing yet
            top = q.new_full((_size(job.batch), self.heads, _size(job.rows), 1), torch.finfo(q.dtype).min)
            sums = torch.zeros_like(top)
            gathered = q.new_zeros(*q.shape[:2], v.shape[-1])
            for keys in job.tiles():
                logit = self.tile(job, keys, q).logit
                higher = torch.maximum(top, logit.amax(-1, keepdim=True))
                weight = torch.sub(logit, higher, out=self.buffer("weight", *logit.shape)).exp_()
                fade = (top - higher).exp_()
                sums.mul_(fade).add_(weight.sum(-1, keepdim=True))
                gathered.mul_(fade.view(len(q), -1, 1))
                gathered.baddbmm_(weight.view(len(q), -1, _size(keys)), v[:, keys])
                top = higher
            blind = sums == 0
            gathered = gathered.view(*top.shape[:3], -1).div_(sums.masked_fill(blind, 1.0))
            out[job.batch, :, job.rows] = gathered.flip(2)
            tops[job.batch, :, job.rows] = top[..., 0].flip(2)
            totals[job.batch, :, job.rows] = sums[..., 0].flip(2)

    def differentiate(
        self, share: list[Job], out: Tensor, tops: Tensor, totals: Tensor, grad: Tensor, q_found: Tensor
    ) -> dict[str, Tensor]:
        """The share's part of all gradients, by the names of the tensors; its rows of the gradient of q are filled."""
        p, halo = self.p, self.p.halo
        # sums over all pairs cancel heavily: in double
        kinds = {
            name: x.dtype if name in ("k", "v") else torch.float64 for name, x in p.tensors().items() if name != "q"
        }
        # contiguous, whatever the strides of the tensors themselves: jobs add to views of these
        found = {name: p.q.new_zeros(getattr(p, name).shape, dtype=kind) for name, kind in kinds.items()}
        for job in share:
            each = (_size(job.batch), self.heads, _size(job.rows), 1)
            top, sums = (x[job.batch, :, job.rows].flip(2).view(each) for x in (tops, totals))
            # weights are exp(logit - top) / sums: the division goes into the gradient, once for all tiles of the row
            share_of = torch.where(sums == 0, 0.0, 1 / sums)
            q, g = self.rows(job, p.q) * p.scale, self.rows(job, grad)
            g = g * share_of.view(len(g), -1, 1)
            k, v = self.flat(job, p.k), self.flat(job, p.v)
            dk, dv, dq = self.flat(job, found["k"]), self.flat(job, found["v"]), torch.zeros_like(q)
            weighted = (g * self.rows(job, out)).sum(-1).view(each)
            for keys in job.tiles():
                tile = self.tile(job, keys, q)
                weight = torch.sub(tile.logit, top, out=self.buffer("weight", *tile.logit.shape)).exp_()
                flat = weight.view(len(q), -1, _size(keys))
                dv[:, keys].baddbmm_(flat.transpose(1, 2), g)
                dlogit = self.buffer("dlogit", *weight.shape)
                torch.bmm(g, v[:, keys].transpose(1, 2), out=dlogit.view_as(flat))
                dlogit.sub_(weighted).mul_(weight)
                if tile.seen is not None:
                    # what is not seen gets nothing from a row whose loss is no number
                    dlogit.masked_fill_(~tile.seen[..., halo : halo + _size(keys)], 0.0)
                if halo:
                    dlogit = F.pad(dlogit, (halo, halo))
                dscore = self.through_mix(found, tile, dlogit, job, keys)
                near = slice(keys.start, keys.stop + 2 * halo)
                flat = dscore.view(len(q), -1, dscore.shape[-1])
                dq.baddbmm_(flat, k[:, near])
                dk[:, near].baddbmm_(flat.transpose(1, 2), q)
            q_found[job.batch, :, job.rows] = dq.view(*each[:3], -1).flip(2) * p.scale
        return found

    def tile(self, job: Job, keys: slice, q: Tensor) -> Tile:
        p, halo = self.p, self.p.halo
        count = _size(keys) + 2 * halo
        k = self.flat(job, p.k)[:, keys.start : keys.stop + 2 * halo]
        score = self.buffer("score", _size(job.batch), self.heads, _size(job.rows), count)
        torch.bmm(q, k.transpose(1, 2), out=score.view(len(q), -1, count))
        seen = self.seen(job, keys)
        if halo and seen is not None:
            score.masked_fill_(~seen, 0.0)
        logit = self.buffer("logit", *score.shape)
        if p.second is None:
            logit.copy_(score)
        else:
            torch.add(score, self.under(p.second, job, keys), out=logit)
        ramp = self.ramp(job, keys)
        if ramp is not None and p.ramp_added:
            logit.add_(ramp)
        hidden = None
        if p.w_out is not None:
            hidden = self.hidden(job, keys, score, ramp, seen)
            shifted_product(logit, p.w_out, hidden)
        logit = logit[..., halo : count - halo]
        if seen is not None:
            logit.masked_fill_(~seen[..., halo : count - halo], -torch.inf)
        return Tile(score, ramp, hidden, logit, seen)

    def hidden(self, job: Job, keys: slice, score: Tensor, ramp: Tensor | None, seen: Tensor | None) -> Tensor:
        p = self.p
        assert p.first is not None
        hidden = self.buffer("hidden", score.shape[0], p.first.shape[0], *score.shape[2:])
        hidden.copy_(self.under(p.first, job, keys))
        for edge, column, line in self.edges(job, keys):
            assert p.edges is not None
            hidden[..., column] = p.edges[edge][:, line]
        if ramp is not None and p.w_ramp is not None:
            shifted_product(hidden, p.w_ramp, ramp)
        if p.w_in is not None:
            shifted_product(hidden, p.w_in, score)
        F.leaky_relu_(hidden, SLOPE)
        if p.halo and seen is not None:
            # again, or decoding differs from one pass
            hidden.masked_fill_(~seen, 0.0)
        return hidden

    def through_mix(self, found: dict[str, Tensor], tile: Tile, dlogit: Tensor, job: Job, keys: slice) -> Tensor:
        """From the gradient of the logits to that of the scores, which takes its place."""
        p, hidden = self.p, tile.hidden
        if p.second is not None:
            self.collect(found["second"], dlogit, job, keys)
        if p.w_out is None or hidden is None:
            self.collect_ramp(found, dlogit, job, keys)
            return dlogit
        shifted_weights(found["w_out"], dlogit, hidden)
        dhidden = shifted_back(self.buffer("dhidden", *hidden.shape), p.w_out, dlogit, fresh=True)
        torch.ops.aten.leaky_relu_backward.grad_input(dhidden, hidden, SLOPE, True, grad_input=dhidden)
        if p.halo and tile.seen is not None:
            dhidden.masked_fill_(~tile.seen, 0.0)
        if tile.ramp is not None and p.w_ramp is not None:
            shifted_weights(found["w_ramp"], dhidden, tile.ramp)
            dramp = self.buffer("dramp", *tile.ramp.shape)
            if p.ramp_added:
                dramp.copy_(dlogit)
            shifted_back(dramp, p.w_ramp, dhidden, fresh=not p.ramp_added)
            self.collect_ramp(found, dramp, job, keys)
        if p.w_in is not None:
            shifted_weights(found["w_in"], dhidden, tile.score)
            shifted_back(dlogit, p.w_in, dhidden)
        for edge, column, line in self.edges(job, keys):
            found["edges"][edge][:, line] += dhidden[..., column].sum(0)
            dhidden[..., column] = 0.0
        self.collect(found["first"], dhidden, job, keys)
        if p.halo and tile.seen is not None:
            dlogit.masked_fill_(~tile.seen, 0.0)
        return dlogit

    def seen(self, job: Job, keys: slice) -> Tensor | None:
        """(n or 1, 1, t, s with its halo): what is visible of a tile; None where all of it is."""
        layout, halo = self.layout, self.p.halo
        low, high = layout.start + job.rows.start, layout.start + job.rows.stop - 1
        left, right = keys.start - halo, keys.stop - 1 + halo
        whole = left >= 0 and right < layout.keys and not (layout.causal and right > low)
        if layout.window is not None:
            whole = whole and high - left < layout.window and right - low < layout.window
        if whole and layout.k_doc is None:
            return None
        key = torch.arange(left, right + 1, device=layout.k_pos.device)
        offset = torch.arange(high, low - 1, -1, device=key.device)[:, None] - key  # (t, s)
        seen = (key >= 0) & (key < layout.keys) & ((offset >= 0) | (not layout.causal))
        if layout.window is not None:
            seen = seen & (offset.abs() < layout.window)
        seen = seen[None]
        if layout.k_doc is not None and layout.q_doc is not None:
            k_doc = layout.k_doc[job.batch, None, keys]
            seen = seen & (layout.q_doc[job.batch, job.rows].flip(1)[:, :, None] == k_doc) & (k_doc != PADDING)
        return None if bool(seen.all()) else seen[:, None]

    def under(self, line: Tensor, job: Job, keys: slice) -> Tensor:
        """(C, M) -> (C, t, s with its halo): the table under a tile."""
        if self.looked_up:
            return line[:, self.columns(line, job, keys)]
        size = (line.shape[0], _size(job.rows), _size(keys) + 2 * self.p.halo)
        return line.as_strided(size, (line.stride(0), 1, 1), line.storage_offset() + self.head(job, keys))

    def collect(self, into: Tensor, grad: Tensor, job: Job, keys: slice) -> None:
        """Add the gradient of a tile (n, C, t, s) to the line under it."""
        tile = grad[0] if len(grad) == 1 else grad.sum(0)
        if self.looked_up:
            into.index_add_(1, self.columns(into, job, keys).flatten(), tile.flatten(1).to(into.dtype))
            return
        channels, rows, count = tile.shape
        skewed = self._skewed.get(channels)
        if skewed is None or skewed.shape != (channels, rows, rows + count):
            skewed = self._skewed[channels] = tile.new_zeros(channels, rows, rows + count)
        # each row one further right than the one above; what lies outside is never written and stays zero
        skewed.as_strided((channels, rows, count), (rows * (rows + count), rows + count + 1, 1)).copy_(tile)
        head = self.head(job, keys)
        into[:, head : head + rows + count - 1] += skewed.sum(1)[:, :-1]

    def ramp(self, job: Job, keys: slice) -> Tensor | None:
        """(n, H, t, s)"""
        if self.p.ramp_q is None or self.p.ramp_k is None:
            return None
        q, k = self.p.ramp_q[job.batch, :, job.rows].flip(2)[..., None], self.p.ramp_k[job.batch, :, None, keys]
        return torch.add(q, k, out=self.buffer("ramp", *q.shape[:3], k.shape[3]))

    def collect_ramp(self, found: dict[str, Tensor], grad: Tensor, job: Job, keys: slice) -> None:
        if self.p.ramp_q is not None:
            found["ramp_q"][job.batch, :, job.rows] += grad.sum(3).flip(2)
            found["ramp_k"][job.batch, :, keys] += grad.sum(2)

    def head(self, job: Job, keys: slice) -> int:
        """Where on a line the first row and key of a tile stand."""
        return self.p.furthest - (self.layout.start + job.rows.stop - 1) + keys.start - self.p.halo

    def columns(self, line: Tensor, job: Job, keys: slice) -> Tensor:
        """(t, s): where on a line each pair of a tile stands, by id. Such a job has one text."""
        q_pos, k_pos = self.layout.q_pos[job.batch.start, job.rows].flip(0), self.layout.k_pos[job.batch.start, keys]
        return (self.p.furthest - q_pos[:, None] + k_pos).clamp(0, line.shape[1] - 1)

    def edges(self, job: Job, keys: slice) -> Iterator[tuple[int, int, slice]]:
        """The edge tables that apply in a tile: which, at which column, and the part of the line under it."""
        if self.p.edges is None:
            return
        for edge, outermost in enumerate(_outermost(self.layout, self.p.reach)):
            column = outermost % self.layout.keys - keys.start + self.p.halo
            if 0 <= column < _size(keys) + 2 * self.p.halo:
                begin = self.head(job, keys) + column
                yield edge, column, slice(begin, begin + _size(job.rows))

    def rows(self, job: Job, x: Tensor) -> Tensor:
        """(B, H, T, D) -> (n G, N t, D): the rows of a job in reverse, heads that share a key together."""
        rows = x[job.batch, :, job.rows].flip(2)
        return rows.reshape(-1, self.heads // self.groups * _size(job.rows), x.shape[-1])

    def flat(self, job: Job, x: Tensor) -> Tensor:
        """(B, G, S, D) -> (n G, S, D), a view"""
        part = x[job.batch]
        return part.view(-1, *part.shape[2:])

    def buffer(self, name: str, *size: int) -> Tensor:
        count = math.prod(size)
        have = self._buffers.get(name)
        if have is None or have.numel() < count:
            have = self._buffers[name] = self.p.q.new_empty(count)
        return have[:count].view(size)


def shifted_product(into: Tensor, weight: Tensor, x: Tensor) -> None:
    """into[:, j] += sum over taps of weight[tap] @ x[:, j + tap - r], on flat tiles."""
    into, x = into.flatten(2), x.flatten(2)
    for w, here, there in _taps(weight, x):
        into[..., here].baddbmm_(w.expand(len(x), -1, -1), x[..., there])


def shifted_back(into: Tensor, weight: Tensor, grad: Tensor, *, fresh: bool = False) -> Tensor:
    """The gradient of x in shifted_product, added to `into`, or written where that is fresh."""
    flat, grad = into.flatten(2), grad.flatten(2)
    once = fresh and len(weight) == 1
    if fresh and not once:
        flat.zero_()
    for w, here, there in _taps(weight, grad):
        flat[..., there].baddbmm_(w.t().expand(len(grad), -1, -1), grad[..., here], beta=0 if once else 1)
    return into


def shifted_weights(into: Tensor, grad: Tensor, x: Tensor) -> None:
    """The gradient of the weights of shifted_product, added to `into`."""
    grad, x = grad.flatten(2), x.flatten(2)
    for total, here, there in _taps(into, x):
        total += torch.bmm(grad[..., here], x[..., there].transpose(1, 2)).sum(0)


def _taps(weight: Tensor, x: Tensor) -> Iterator[tuple[Tensor, slice, slice]]:
    """Each tap's weights, with the places it writes and the places it reads on a flat tile."""
    reach, count = len(weight) // 2, x.shape[2]
    for tap, w in enumerate(weight):
        yield w, slice(reach, count - reach), slice(tap, count - 2 * reach + tap)


def forward(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """The output (B, H, T, E), and of each row (B, H, T) the greatest logit and the sum of exp(logit - greatest)."""
    q, v = problem.q, problem.v
    out, top, sums = q.new_empty(*q.shape[:3], v.shape[-1]), q.new_empty(q.shape[:3]), q.new_empty(q.shape[:3])
    ready = _ready(problem)

    def work(share: list[Job]) -> None:
        with torch.no_grad():
            Worker(ready).attend(share, out, top, sums)

    spread(work, jobs(problem), lambda job: job.pairs, q.device)
    return out, top, sums


def backward(problem: Problem, out: Tensor, top: Tensor, sums: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """The gradients of all tensors of the problem, by name."""
    ready, q = _ready(problem), torch.empty_like(problem.q)

    def work(share: list[Job]) -> dict[str, Tensor]:
        with torch.no_grad():
            return Worker(ready).differentiate(share, out, top, sums, grad, q)

    found, *rest = spread(work, jobs(problem), lambda job: job.pairs, grad.device)
    for other in rest:
        for name, x in found.items():
            x += other[name]
    k = found["k"][:, :, problem.halo : problem.halo + problem.layout.keys]
    return found | {"q": q, "k": k}


def _ready(problem: Problem) -> Problem:
    """With k and v contiguous, and zeros past either end of the keys for the halo of the outermost tiles to read."""
    k = F.pad(problem.k.detach(), (0, 0, problem.halo, problem.halo))
    return replace(problem, k=k.contiguous(), v=problem.v.detach().contiguous())


def _size(part: slice) -> int:
    return int(part.stop - part.start)
