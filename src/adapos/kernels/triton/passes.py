"""Both passes over a call, chunk of queries by chunk.

forward     weigh -> logits    gather -> out, and of each row its greatest logit and its sum of exp(logit - greatest)
backward    weigh -> logits    differentiate -> p, dlogit    unmix -> dS, dB    learn -> sums for the matrices

What is linear then, dq = dS k, dk = dS' q, dv = p' dout and sums of dB for ramps, torch does; `tally` for tables. Where
nothing mixes heads there are neither `weigh` nor `unmix` and `learn`.

dS and dout are as wide as the texts' numbers. float16 knows none below 6e-8, so that they are stretched there by a
power of two, as far as that makes no product overflow, and the products are shrunk again. They are never shrunk
beforehand: what is small in one text may stand beside something large in another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from adapos.kernels.triton import sizes, told
from adapos.kernels.triton.launch import differentiate, gather, learn, summed, unmix, weigh
from adapos.kernels.triton.problem import Problem, of_chunk
from adapos.kernels.triton.sizes import Chunk
from adapos.kernels.triton.sums import Sums

# sums for matrices are added in place: less memory, and last digits that differ from run to run
ATOMIC = told("ADAPOS_TRITON_ATOMIC")
LARGEST = 2.0**15  # in float16, of what is stretched


class Buffers:
    """Memory for (texts, heads, queries, keys) of one chunk after the other."""

    def __init__(self, problem: Problem, chunks: Sequence[Chunk]) -> None:
        self.device, self.heads = problem.q.device, problem.heads
        self.pitch = sizes.whole(max(len(chunk.keys) for chunk in chunks))
        self.rows = self.heads * max(len(chunk.texts) * len(chunk.rows) for chunk in chunks)
        self.held: dict[str, Tensor] = {}

    def of(self, name: str, chunk: Chunk, dtype: torch.dtype = torch.float32) -> Tensor:
        """(n, H, t, .), the same from chunk to chunk."""
        if name not in self.held:
            self.held[name] = torch.empty(self.rows * self.pitch, dtype=dtype, device=self.device)
        shape = (len(chunk.texts), self.heads, len(chunk.rows))
        rows = self.held[name][: shape[0] * shape[1] * shape[2] * self.pitch]
        return rows.view(*shape, self.pitch)


def forward(problem: Problem) -> tuple[Tensor, Tensor]:
    """The output (B, H, T, E), and each row's greatest logit and its sum of exp(logit - greatest), (2, B, H, T)."""
    batch, heads, queries, _ = problem.q.shape
    width = problem.v.shape[3]
    out = problem.q.new_empty((batch, heads, queries, width), dtype=torch.float32)
    ends = problem.q.new_empty((2, batch, heads, queries), dtype=torch.float32)
    of_pairs, of_values, of_mix = problem.of_pairs(), problem.of_values(), problem.of_mix()
    # where nothing mixes heads, nothing is in memory
    chunks = problem.chunks(heads if problem.mixed else 0)
    buffers = Buffers(problem, chunks)
    for chunk in chunks:
        where, logits = of_chunk(chunk, buffers.pitch), None
        if problem.mixed:
            logits = buffers.of("logits", chunk)
            weigh(chunk, logits=logits, kept=None, KEPT=False, **of_pairs, **of_mix, **where)
        texts, rows = (slice(part.start, part.stop) for part in (chunk.texts, chunk.rows))
        found, found_ends, tall = out[texts, :, rows], ends[:, texts, :, rows], queries
        count = sizes.parts(chunk, heads)
        if count > 1:
            tall = len(chunk.rows)
            found = out.new_empty((count, len(chunk.texts), heads, tall, width))
            found_ends = ends.new_empty((2, *found.shape[:-1]))
        gather(
            chunk, out=found, top=found_ends[0], sums=found_ends[1], logits=logits, **of_pairs, **of_values, **where,
            texts=len(chunk.texts), tall=tall, parts=count, share=-(-len(chunk.keys) // count),
        )  # fmt: skip
        if count > 1:
            out[texts, :, rows], ends[:, texts, :, rows] = joined(found, *found_ends)
    return out, ends


def joined(out: Tensor, top: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """The parts of the keys put together: the output of each row, and its greatest logit and its sum."""
    greatest = top.amax(0)
    fade = (top - greatest).exp()
    total = (sums * fade).sum(0)
    gathered = (out * fade[..., None]).sum(0) / total.masked_fill(total == 0, 1.0)[..., None]
    return gathered, torch.stack([greatest, total])


def stretched(problem: Problem, grad: Tensor, sums: Tensor, rows: int) -> Tensor:
    """By how much the gradients of scores are stretched, for sums over so many rows; of what only float16 needs."""
    q, k, v = problem.q, problem.k, problem.v
    if q.dtype != torch.float16:
        return q.new_ones(1, dtype=torch.float32)
    of_grad, of_v, of_k, of_q = (
        torch.linalg.vector_norm(x.nan_to_num(0.0, 0.0, 0.0), ord=norm, dim=-1, dtype=torch.float32).amax()
        for x, norm in ((grad, 2), (v, 2), (k, math.inf), (q.masked_fill((sums == 0)[..., None], 0), math.inf))
    )
    # the sum over keys of |p (dp - sum of p dp)|, and how much of it a mix makes
    bound = 2 * of_grad * of_v * abs(problem.scale)
    if problem.w_score is not None and problem.w_out is not None:
        taps = len(problem.w_out)
        through = torch.linalg.vector_norm(problem.w_score) * torch.linalg.vector_norm(problem.w_out)
        bound = bound * (1 + taps * problem.heads**0.5 * through.nan_to_num(0.0, 0.0))
    # its products with k, and with q for all rows and heads that share a head of keys
    times = torch.maximum(of_k, rows * (problem.heads // k.shape[1]) * of_q).clamp(min=1)
    room = LARGEST / bound
    # shrunk for its own sake alone: products of a chunk that overflow are float16's own, as those of torch
    by = torch.minimum(room, (room / times).clamp(min=1)).log2().floor().clamp(-64, 64).exp2()
    return torch.where(bound > 0, by, 1.0).reshape(1)


def lifted(grad: Tensor, rows: int) -> tuple[Tensor, Tensor | float]:
    """The gradient of the output stretched for sums over so many rows, each weighed 1 at most, and by how much."""
    if grad.dtype != torch.float16:
        return grad, 1.0
    most = rows * torch.linalg.vector_norm(grad.nan_to_num(0.0, 0.0, 0.0), ord=math.inf, dtype=torch.float32)
    by = torch.where(most > 0, (LARGEST / most).clamp(min=1).log2().floor().exp2(), 1.0).reshape(1)
    return (grad * by).to(grad.dtype), by


def backward(problem: Problem, grad: Tensor, ends: Tensor) -> dict[str, Tensor]:
    """The gradients of all tensors of the problem but ids and documents, by name."""
    q, k, v = problem.q, problem.k, problem.v
    _, sums = ends
    # what the loss says of rows that see no key is nothing, whatever it is
    grad = grad.to(v.dtype).masked_fill((sums == 0)[..., None], 0.0).contiguous()
    of_pairs, of_values, of_mix = problem.of_pairs(), problem.of_values(), problem.of_mix()
    chunks = problem.chunks(problem.heads, summed(of_mix) if problem.mixed else 0)
    buffers = Buffers(problem, chunks)
    d_q = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    d_k, d_v = (torch.zeros(x.shape, dtype=torch.float32, device=x.device) for x in (k, v))
    tallest = max(len(chunk.rows) for chunk in chunks)
    by = stretched(problem, grad, sums, tallest)
    stretch = problem.scale * by
    high_grad, lift = lifted(grad, tallest * problem.heads // v.shape[1])
    total, atomic = Sums(problem), ATOMIC and not torch.are_deterministic_algorithms_enabled()
    for chunk in chunks:
        where = of_chunk(chunk, buffers.pitch)
        kept = problem.mixed or problem.biased
        logits = d_biases = buffers.of("logits", chunk) if kept else None
        weights, d_scores = buffers.of("weights", chunk, v.dtype), buffers.of("d_scores", chunk, q.dtype)
        if problem.mixed:
            scores = buffers.of("scores", chunk)
            weigh(chunk, logits=logits, kept=scores, KEPT=True, **of_pairs, **of_mix, **where)
        differentiate(
            chunk, logits=logits, weights=weights, d_scores=d_scores, d_out=grad, stretch=stretch, **of_pairs,
            **of_values, **where, KEPT=kept,
        )  # fmt: skip
        if problem.mixed:
            d_biases = buffers.of("d_biases", chunk) if problem.biased else None
            of_tiles = {"scores": scores, "d_logits": logits, **of_pairs, **of_mix, **where}
            unmix(chunk, d_scores=d_scores, d_biases=d_biases, stretch=stretch, **of_tiles)
            for partial in learn(chunk, atomic=atomic, **of_tiles):
                total.of_matrices(partial)
        texts, rows, keys = (slice(part.start, part.stop) for part in (chunk.texts, chunk.rows, chunk.keys))
        seen, moved = (_of_groups(x, k)[..., : len(chunk.keys)] for x in (weights, d_scores))
        d_q[texts, :, rows] = (moved @ k[texts, :, keys]).view(d_q[texts, :, rows].shape)
        d_k[texts, :, keys] += moved.mT @ _of_groups(q[texts, :, rows], k)
        d_v[texts, :, keys] += seen.mT @ _of_groups(high_grad[texts, :, rows], k)
        if problem.biased and d_biases is not None:
            total.of_biases(d_biases, chunk, where)
    return {"q": (d_q / by).to(q.dtype), "k": (d_k / by).to(k.dtype), "v": (d_v / lift).to(v.dtype), **total.found}


def _of_groups(x: Tensor, k: Tensor) -> Tensor:
    """(n, H, t, .) -> (n, G, H / G x t, .): rows of all heads that share a head of keys."""
    return x.unflatten(1, (k.shape[1], -1)).flatten(2, 3)
