"""What the loss says of the scores and biases of a tile, all heads in one program, from what it says of their logits.

hidden = leaky(W_s * S + W_b * B + b_in)                             made again, of scores that `weigh` kept
d hidden = W_o' * dlogit, times the slope of the rectifier           taps of dlogit are read from the chunk
dS = dlogit + W_s' * d hidden      dB = dlogit + W_b' * d hidden     taps of d hidden are moved along by tl.gather

As in `weigh` the outermost 2r keys of a tile on either side are there for taps alone:

    |<- 2r ->|<------ N - 4r keys that are written ------>|<- 2r ->|       BLOCK channels of the hidden layer at a time

A program is (tile of keys, tile of queries, text of the chunk).
"""

import triton
import triton.language as tl

from adapos.kernels.triton.tile import LENGTHS, along_keys, back, biases, hidden, read, seen, times


@triton.jit(do_not_specialize=LENGTHS)
def unmix(
    scores, d_logits, d_scores, d_biases, table, q_pos, k_pos, q_doc, k_doc, ramp_q, ramp_k, w_score, w_bias, b_in,
    w_out, T, S, R, zero, start, window, text, begin, end, first, last, pitch, scale, slope, H: tl.constexpr,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    DOCS: tl.constexpr, TABLE: tl.constexpr, IDS: tl.constexpr, RAMP: tl.constexpr, SCORED: tl.constexpr,
    BIASED: tl.constexpr, ADDED: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    halo: tl.constexpr = 2 * (TAPS // 2)
    local = tl.program_id(2)
    b = (text + local).to(tl.int64)
    rows, h = begin + tl.program_id(1) * M + tl.arange(0, M), tl.arange(0, HEADS)
    inner = tl.arange(0, N)
    j = first + tl.program_id(0) * (N - 2 * halo) - halo + inner
    i = start + rows
    place = (local * H + h).to(tl.int64)[:, None, None] * (end - begin) * pitch * 16
    place = place + (rows - begin)[None, :, None] * pitch * 16 + (j - first)[None, None, :]
    there = (h < H)[:, None, None] & (rows < end)[None, :, None]
    mine = there & ((inner >= halo) & (inner < N - halo) & (j < last))[None, None, :]
    found = seen(b, rows, i, j, q_doc, k_doc, T, S, window, CAUSAL, WINDOW, DOCS)
    kind = d_scores.dtype.element_ty
    if tl.max(found.to(tl.int32)) == 0:
        tl.store(d_scores + place, tl.zeros([HEADS, M, N], kind), mask=mine)
        if BIASED:
            tl.store(d_biases + place, tl.zeros([HEADS, M, N], tl.float32), mask=mine)
        return
    flat = tl.reshape(found, [1, M * N])
    score = read(scores, place, there, j, first, last, 0, HEADS, M, N)
    bias = biases(
        b, h, rows, i, j, found, table, q_pos, k_pos, ramp_q, ramp_k, T, S, R, zero, H, HEADS, M, N, TABLE, IDS, RAMP
    )
    bias = tl.reshape(bias, [HEADS, M * N])
    d_score = tl.zeros([HEADS, M * N], tl.float32)
    d_bias = tl.zeros([HEADS, M * N], tl.float32)
    for channel in range(0, CHANNELS, BLOCK):
        at = channel + tl.arange(0, BLOCK)
        before = hidden(
            score, bias, w_score, w_bias, b_in, at, h, CHANNELS, BLOCK, HEADS, TAPS, M, N, SCORED, BIASED, PRECISION
        )
        d_unit = back(
            d_logits, place, there, j, first, last, w_out, at, h, CHANNELS, BLOCK, HEADS, TAPS, M, N, PRECISION
        )
        d_unit = tl.where(flat, tl.where(before > 0, d_unit, d_unit * slope), 0.0)
        for tap in tl.static_range(TAPS):
            moved = along_keys(d_unit, TAPS // 2 - tap, BLOCK, M, N)
            weights = (tap * CHANNELS + at)[None, :] * HEADS + h[:, None]
            if SCORED:
                d_score = times(tl.load(w_score + weights), moved, d_score, PRECISION)
            if BIASED:
                d_bias = times(tl.load(w_bias + weights), moved, d_bias, PRECISION)
    d_logit = read(d_logits, place, there, j, first, last, 0, HEADS, M, N)
    d_score = tl.where(flat, d_score + d_logit, 0.0) * scale
    tl.store(d_scores + place, tl.reshape(d_score, [HEADS, M, N]).to(kind), mask=mine)
    if BIASED:
        if ADDED:
            d_bias += d_logit
        tl.store(d_biases + place, tl.reshape(tl.where(flat, d_bias, 0.0), [HEADS, M, N]), mask=mine)
