"""The softmax of the rows of one head, and the values that it gathers, key tile by key tile.

top' = max(top, max_j logit)     p = exp(logit - top')     out' = out exp(top - top') + p v     sums likewise

out, top and sums are of M queries and stay in registers; logit is read from what `weigh` wrote, or where nothing mixes
heads made here of q.k and biases:

                 keys first ..         N at a time, up to the last that is seen
               +---------+---------+---------+
    M queries  |  logit -> p v     |         |   --> out (M, E), top, sums
               +---------+---------+---------+
                \\__ part 0 __/ \\__ part 1 __/       few queries of many keys: parts that are put together afterwards

A program is (tile of queries, head, part of a text). A row that sees nothing has sums of 0.
"""

import triton
import triton.language as tl

from adapos.kernels.triton.tile import LENGTHS, LOWEST, UNALIGNED, biased, biases, near, scores, seen, times


@triton.jit(do_not_specialize=[*LENGTHS, "texts", "tall", "parts", "share"], do_not_specialize_on_alignment=UNALIGNED)
def gather(
    out, top, sums, logits, q, k, v, table, q_pos, k_pos, q_doc, k_doc, ramp_q, ramp_k,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token, T, S, R, zero, start, window, text,
    begin, end, first, last, pitch, texts, tall, parts, share, scale, H: tl.constexpr, REPEATS: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, VALUES: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    DOCS: tl.constexpr, TABLE: tl.constexpr, IDS: tl.constexpr, RAMP: tl.constexpr, MIXED: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    local, part = tl.program_id(2) // parts, tl.program_id(2) % parts
    head, b = tl.program_id(1), (text + local).to(tl.int64)
    rows, e = begin + tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, VALUES)
    i, h = start + rows, head + tl.arange(0, 1)
    # of the keys of this part, those that some query of the tile sees
    low, high = first + part * share, tl.minimum(first + (part + 1) * share, last)
    if CAUSAL:
        high = tl.minimum(high, start + tl.minimum(begin + (tl.program_id(0) + 1) * M, end))
    if WINDOW:
        least = (start + begin + tl.program_id(0) * M - window + 1 - low) // N * N
        low += tl.maximum(least, 0)
    greatest = tl.full([M], LOWEST, tl.float32)
    total = tl.zeros([M], tl.float32)
    gathered = tl.zeros([M, VALUES], tl.float32)
    of_v = v + b * v_batch + (head // REPEATS).to(tl.int64) * v_head
    of_logits = logits
    if MIXED:
        of_logits = logits + (local * H + head).to(tl.int64) * (end - begin) * pitch * 16 - first
    for key in range(low, high, N):
        j = key + tl.arange(0, N)
        if MIXED:
            place = of_logits + (rows - begin)[:, None] * pitch * 16 + j[None, :]
            logit = tl.load(place, mask=(rows < end)[:, None] & (j < high)[None, :], other=float("-inf"))
        else:
            found = seen(b, rows, i, j, q_doc, k_doc, T, S, window, CAUSAL, WINDOW, DOCS) & (j < high)[None, :]
            score = scores(
                q, k, (), b, h, rows, j, q_batch, q_head, q_token, k_batch, k_head, k_token, T, S, H, REPEATS, D, DEPTH,
                False, 1, M, N, PRECISION,
            )  # fmt: skip
            bias = biases(
                b, h, rows, i, j, found, table, q_pos, k_pos, ramp_q, ramp_k, T, S, R, zero, H, 1, M, N, TABLE, IDS,
                RAMP,
            )  # fmt: skip
            logit = tl.reshape(biased(score, bias, scale, M, N), [M, N])
            logit = tl.where(found, logit, float("-inf"))
        higher = tl.maximum(greatest, tl.max(logit, 1))
        fade, weight = tl.exp(greatest - higher), tl.exp(logit - higher[:, None])
        total = total * fade + tl.sum(weight, 1)
        there = (j < high)[:, None] & (e < E)[None, :]
        values = tl.load(of_v + j.to(tl.int64)[:, None] * v_token + e[None, :], mask=there, other=0.0)
        gathered = gathered * fade[:, None]
        gathered = times(near(weight.to(values.dtype), PRECISION), near(values, PRECISION), gathered, PRECISION)
        greatest = higher
    if parts == 1:
        gathered = gathered / tl.where(total == 0, 1.0, total)[:, None]
    place = ((part * texts + local).to(tl.int64) * H + head) * tall + rows - begin
    tl.store(out + place[:, None] * E + e[None, :], gathered, mask=(rows < end)[:, None] & (e < E)[None, :])
    tl.store(top + place, greatest, mask=rows < end)
    tl.store(sums + place, total, mask=rows < end)
