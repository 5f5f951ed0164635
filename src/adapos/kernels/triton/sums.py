"""Gradients that are sums over all pairs, of tables, ramps and the matrices of a mix.

They are added chunk by chunk in double and in one order, so that they are the same from run to run.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from adapos.kernels.triton.launch import tally
from adapos.kernels.triton.problem import Problem
from adapos.kernels.triton.sizes import Chunk

SUMMED = ("table", "ramp_q", "ramp_k", "w_score", "w_bias", "b_in", "w_out")
BITS = 62  # of a sum in whole numbers


class Sums:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        tensors = {name: x for name in SUMMED if (x := getattr(problem, name)) is not None}
        self.found = {name: torch.zeros(x.shape, dtype=torch.float64, device=x.device) for name, x in tensors.items()}

    def of_matrices(self, partial: Mapping[str, Tensor]) -> None:
        """Add what each program wrote, (programs, ...), of matrices that are padded."""
        for name, each in partial.items():
            total = self.found[name]
            total += each.sum(0, dtype=torch.float64)[tuple(slice(size) for size in total.shape)]

    def of_biases(self, grad: Tensor, chunk: Chunk, where: Mapping[str, int]) -> None:
        """Add the gradient (n, H, t, .) of the biases of a chunk, its keys first, then what does not count."""
        keys, rows, texts = len(chunk.keys), slice(chunk.rows.start, chunk.rows.stop), chunk.texts
        if "ramp_q" in self.found:
            each = slice(texts.start, texts.stop)
            self.found["ramp_q"][each, :, rows] = grad[..., :keys].sum(-1)
            of_keys = self.found["ramp_k"][each, :, chunk.keys.start : chunk.keys.stop]
            of_keys += grad[..., :keys].sum(2)
        if "table" in self.found:
            if self.problem.k_pos is None:
                self._by_diagonals(grad, chunk, where)
            else:
                self._by_ids(grad[..., :keys], chunk)

    def _by_diagonals(self, grad: Tensor, chunk: Chunk, where: Mapping[str, int]) -> None:
        table, zero = self.found["table"], self.problem.zero
        # rising distance, from that of the first query and the last key on
        line = tally(chunk, grad, H=self.problem.heads, **where)  # (H, keys + rows - 1)
        least = self.problem.start + chunk.rows.start - (chunk.keys.stop - 1) + zero
        # distances that the table knows; others have its first or its last column
        length, columns = line.shape[1], table.shape[1]
        begin, end = min(max(0, -least), length), max(min(length, columns - least), 0)
        table[:, 0] += line[:, :begin].sum(1)
        table[:, -1] += line[:, end:].sum(1)
        if begin < end:
            table[:, least + begin : least + end] += line[:, begin:end]

    def _by_ids(self, grad: Tensor, chunk: Chunk) -> None:
        """In whole numbers, whose sum does not depend on the order, as that of inf and NaN does not."""
        table, problem = self.found["table"], self.problem
        assert problem.q_pos is not None and problem.k_pos is not None
        texts = slice(chunk.texts.start, chunk.texts.stop)
        q_pos, k_pos = problem.q_pos[texts, chunk.rows.start : chunk.rows.stop], problem.k_pos[texts]
        apart = q_pos[:, :, None] - k_pos[:, None, chunk.keys.start : chunk.keys.stop]
        column = (apart + problem.zero).clamp(0, table.shape[1] - 1).flatten()  # (n t s)
        for head, line in enumerate(table):
            each = grad[:, head].double().flatten()
            finite = each.isfinite()
            line.scatter_add_(0, column, each.masked_fill(finite, 0.0))
            each = each.masked_fill(~finite, 0.0)
            unit = each.abs().amax().clamp(min=torch.finfo(torch.float32).tiny) * len(each) / 2**BITS
            total = torch.zeros(len(line), dtype=torch.int64, device=line.device)
            total.scatter_add_(0, column, (each / unit).round().long())
            line += total * unit
