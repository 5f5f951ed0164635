"""What the loss says of the logits of a tile of one head, by the softmax of its rows.

w = exp(logit - top)       p = w / sum of w       dp = dout v'       dlogit = p (dp - delta)       delta = sum of p dp

Sums are over the keys of a row. A first pass finds the top of each tile, its sum of w and its mean of dp (SUMMED), of
the very products that p and dlogit are made of: what `gather` found, and dout and out, are rounded otherwise, and where
one key has all the weight there would be nothing but rounding. logit is read from what `weigh` wrote again and dlogit
put in its place; where nothing mixes heads it is made here, and dlogit is what the loss says of score and bias alike.
p, and with it the gradient of the score, is written for matrix products with the texts: dv = p' dout, dq = dS k, dk =
dS' q.

                  N keys
                +---------+
     M queries  |  logit  |--> p ----> chunk of queries x keys, as wide as the texts' numbers
                |   dp    |--> dlogit > the same, in float32
                +---------+             the first pass: (tiles of keys, heads of texts, queries), top, sum, mean

A program is (tile of keys, tile of queries, head of a text).
"""

import triton
import triton.language as tl

from adapos.kernels.triton.tile import LENGTHS, LOWEST, UNALIGNED, biased, biases, near, scores, seen, times


@triton.jit(do_not_specialize=LENGTHS, do_not_specialize_on_alignment=UNALIGNED)
def differentiate(
    logits, weights, d_scores, of_tops, of_weights, of_means, d_out, top, shares, delta, stretch, q, k, v, table,
    q_pos, k_pos, q_doc, k_doc, ramp_q, ramp_k, q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head,
    v_token, T, S, R, zero, start, window, text, begin, end, first, last, pitch, scale, H: tl.constexpr,
    REPEATS: tl.constexpr, D: tl.constexpr, E: tl.constexpr, VALUES: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, DOCS: tl.constexpr, TABLE: tl.constexpr, IDS: tl.constexpr, RAMP: tl.constexpr,
    MIXED: tl.constexpr, KEPT: tl.constexpr, SUMMED: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    head, local = tl.program_id(2) % H, tl.program_id(2) // H
    b, h = (text + local).to(tl.int64), head + tl.arange(0, 1)
    rows, j = begin + tl.program_id(1) * M + tl.arange(0, M), first + tl.program_id(0) * N + tl.arange(0, N)
    i, there = start + rows, (rows < end)[:, None] & (j < last)[None, :]
    place = tl.program_id(2).to(tl.int64) * (end - begin) * pitch * 16
    place = place + (rows - begin)[:, None] * pitch * 16 + (j - first)[None, :]
    if MIXED:
        logit = tl.load(logits + place, mask=there, other=float("-inf"))
    else:
        found = seen(b, rows, i, j, q_doc, k_doc, T, S, window, CAUSAL, WINDOW, DOCS) & there
        score = scores(
            q, k, (), b, h, rows, j, q_batch, q_head, q_token, k_batch, k_head, k_token, T, S, H, REPEATS, D, DEPTH,
            False, 1, M, N, PRECISION,
        )  # fmt: skip
        bias = biases(
            b, h, rows, i, j, found, table, q_pos, k_pos, ramp_q, ramp_k, T, S, R, zero, H, 1, M, N, TABLE, IDS, RAMP
        )
        logit = tl.where(found, tl.reshape(biased(score, bias, scale, M, N), [M, N]), float("-inf"))
    row = (b * H + head) * T + rows
    inside = rows < end
    d_weight = tl.zeros([M, N], tl.float32)
    of_v = v + b * v_batch + (head // REPEATS).to(tl.int64) * v_head + j.to(tl.int64)[None, :] * v_token
    for value in range(0, VALUES, DEPTH):
        e = value + tl.arange(0, DEPTH)
        grad = tl.load(d_out + row[:, None] * E + e[None, :], mask=inside[:, None] & (e < E)[None, :], other=0.0)
        values = tl.load(of_v + e[:, None], mask=(j < last)[None, :] & (e < E)[:, None], other=0.0)
        d_weight = times(near(grad, PRECISION), near(values, PRECISION), d_weight, PRECISION)
    line = tl.program_id(2).to(tl.int64) * (end - begin) + rows - begin
    if SUMMED:
        highest = tl.maximum(tl.max(logit, 1), LOWEST)
        weight = tl.exp(logit - highest[:, None])
        line += tl.program_id(0) * tl.num_programs(2).to(tl.int64) * (end - begin)
        total = tl.sum(weight, 1)
        # the mean of a tile: what weighs nothing beside another tile must not overflow in its own
        share = 1 / tl.where(total == 0, 1.0, total)
        tl.store(of_tops + line, highest, mask=inside)
        tl.store(of_weights + line, total, mask=inside)
        tl.store(of_means + line, tl.sum(weight * share[:, None] * d_weight, 1), mask=inside)
    else:
        weight = tl.exp(logit - tl.load(top + line, mask=inside, other=0.0)[:, None])
        weight = weight * tl.load(shares + line, mask=inside, other=0.0)[:, None]
        d_logit = weight * (d_weight - tl.load(delta + line, mask=inside, other=0.0)[:, None])
        # what is not seen gets nothing from a row whose loss is no number
        d_logit = tl.where(logit == float("-inf"), 0.0, d_logit)
        kind = weights.dtype.element_ty
        tl.store(weights + place, weight.to(kind), mask=there)
        if KEPT:
            tl.store(logits + place, d_logit, mask=there)
        if not MIXED:
            tl.store(d_scores + place, (d_logit * tl.load(stretch)).to(kind), mask=there)
