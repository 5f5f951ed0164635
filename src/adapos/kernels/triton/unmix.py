"""What the loss says of the scores and biases of a tile, all heads in one program, from what it says of their logits.

hidden = leaky(W_s * S + W_b * B + b_in)                             made again, of scores that `weigh` kept
d hidden = W_o' * dlogit, times the slope of the rectifier           taps of dlogit are read from the chunk
dS = dlogit + W_s' * d hidden      dB = dlogit + W_b' * d hidden     taps of d hidden are moved along by tl.gather

As in `weigh` the outermost 2r keys of a tile on either side are there for taps alone:

    |<- 2r ->|<------ N - 4r keys that are written ------>|<- 2r ->|       BLOCK channels of the hidden layer at a time

A program is (tile of keys, SPAN queries, M at a time, text of the chunk).
"""

import triton
import triton.language as tl

from adapos.kernels.triton.tile import (
    LENGTHS,
    along_keys,
    biases,
    hidden,
    keys,
    matrices,
    near,
    places,
    read,
    seen,
    times,
    watching,
)


@triton.jit(do_not_specialize=LENGTHS)
def unmix(
    scores, d_logits, d_scores, d_biases, table, q_pos, k_pos, q_doc, k_doc, ramp_q, ramp_k, w_score, w_bias, b_in,
    w_out, T, S, R, zero, start, window, text, begin, end, first, last, pitch, scale, slope, H: tl.constexpr,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    DOCS: tl.constexpr, TABLE: tl.constexpr, IDS: tl.constexpr, RAMP: tl.constexpr, SCORED: tl.constexpr,
    BIASED: tl.constexpr, ADDED: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    reach: tl.constexpr = TAPS // 2
    blocks: tl.constexpr = CHANNELS // BLOCK
    kind = d_scores.dtype.element_ty
    local = tl.program_id(2)
    b, h = (text + local).to(tl.int64), tl.arange(0, HEADS)
    j, owned = keys(tl.program_id(0), first, last, 2 * reach, N)
    skipped = local.to(tl.int64) * H * (end - begin) * pitch * 16
    scores += skipped
    d_logits += skipped
    d_scores += skipped
    if BIASED:
        d_biases += skipped
    low = begin + tl.program_id(1) * SPAN
    high = tl.minimum(low + SPAN, end)
    low_seen, high_seen = watching(low, high, b, j, q_doc, k_doc, T, S, start, window, CAUSAL, WINDOW, DOCS, SPAN, M)
    for row in range(low, high, M):
        if (row < low_seen) | (row >= high_seen):
            place, there = places(h, row + tl.arange(0, M), j, begin, end, first, pitch, H)
            mine = there & owned[None, None, :]
            tl.store(d_scores + place, tl.zeros([HEADS, M, N], kind), mask=mine)
            if BIASED:
                tl.store(d_biases + place, tl.zeros([HEADS, M, N], tl.float32), mask=mine)
    of_score, of_bias, to_score, to_bias = (), (), (), ()
    if SCORED:
        of_score = matrices(w_score, BLOCK, HEADS, HEADS, 1, blocks, BLOCK * HEADS, TAPS, CHANNELS * HEADS, PRECISION)
        to_score = matrices(w_score, HEADS, BLOCK, 1, HEADS, blocks, BLOCK * HEADS, TAPS, CHANNELS * HEADS, PRECISION)
    if BIASED:
        of_bias = matrices(w_bias, BLOCK, HEADS, HEADS, 1, blocks, BLOCK * HEADS, TAPS, CHANNELS * HEADS, PRECISION)
        to_bias = matrices(w_bias, HEADS, BLOCK, 1, HEADS, blocks, BLOCK * HEADS, TAPS, CHANNELS * HEADS, PRECISION)
    of_unit = matrices(w_out, BLOCK, HEADS, 1, CHANNELS, blocks, BLOCK, TAPS, CHANNELS * HEADS, PRECISION)
    for row in range(low_seen, high_seen, M):
        rows = row + tl.arange(0, M)
        i = start + rows
        place, there = places(h, rows, j, begin, end, first, pitch, H)
        mine = there & owned[None, None, :]
        found = seen(b, rows, i, j, q_doc, k_doc, T, S, window, CAUSAL, WINDOW, DOCS)
        flat = tl.reshape(found, [1, M * N])
        score = near(read(scores, place, there, j, first, last, 0, HEADS, M, N), PRECISION)
        bias = biases(
            b, h, rows, i, j, found, table, q_pos, k_pos, ramp_q, ramp_k, T, S, R, zero, H, HEADS, M, N, TABLE, IDS,
            RAMP,
        )  # fmt: skip
        bias = near(tl.reshape(bias, [HEADS, M * N]), PRECISION)
        d_score = tl.zeros([HEADS, M * N], tl.float32)
        d_bias = tl.zeros([HEADS, M * N], tl.float32)
        for block in tl.static_range(blocks):
            before = hidden(score, bias, of_score, of_bias, b_in, block, BLOCK, TAPS, M, N, SCORED, BIASED, PRECISION)
            d_unit = tl.zeros([BLOCK, M * N], tl.float32)
            for tap in tl.static_range(TAPS):
                d_logit = read(d_logits, place, there, j, first, last, reach - tap, HEADS, M, N)
                d_unit = times(of_unit[block * TAPS + tap], near(d_logit, PRECISION), d_unit, PRECISION)
            d_unit = near(tl.where(flat, tl.where(before > 0, d_unit, d_unit * slope), 0.0), PRECISION)
            for tap in tl.static_range(TAPS):
                moved = along_keys(d_unit, reach - tap, BLOCK, M, N)
                if SCORED:
                    d_score = times(to_score[block * TAPS + tap], moved, d_score, PRECISION)
                if BIASED:
                    d_bias = times(to_bias[block * TAPS + tap], moved, d_bias, PRECISION)
        d_logit = read(d_logits, place, there, j, first, last, 0, HEADS, M, N)
        d_score = tl.where(flat, d_score + d_logit, 0.0) * scale
        tl.store(d_scores + place, tl.reshape(d_score, [HEADS, M, N]).to(kind), mask=mine)
        if BIASED:
            if ADDED:
                d_bias += d_logit
            tl.store(d_biases + place, tl.reshape(tl.where(flat, d_bias, 0.0), [HEADS, M, N]), mask=mine)
