"""What the loss says of the scores and biases of a tile, all heads in one program, from what it says of their logits.

hidden = leaky(W_s * S + W_b * B + b_in)                             made again, of scores that `weigh` kept
d hidden = W_o' * dlogit, times the slope of the rectifier           taps of dlogit are read from the chunk
dS = dlogit + W_s' * d hidden      dB = dlogit + W_b' * d hidden     taps of d hidden are moved along by tl.gather

As in `weigh` the outermost 2r keys of a tile on either side are there for taps alone:

    |<- 2r ->|<------ N - 4r keys that are written ------>|<- 2r ->|       BLOCK channels of the hidden layer at a time

Matrices are read once and stay in shared memory (HELD), or where they are large those of BLOCK channels at a time.

A program is (tile of keys, SPAN queries, M at a time, text of the chunk).
"""

import triton
import triton.language as tl

from adapos.kernels.triton import sizes
from adapos.kernels.triton.tile import (
    LENGTHS,
    along_keys,
    biases,
    hidden,
    keys,
    matrices,
    matrix,
    near,
    places,
    read,
    seen,
    times,
    watching,
)

MATRICES = tl.constexpr(sizes.MATRICES)


@triton.jit
def of_channels(
    d_score, d_bias, score, bias, d_logits, place, there, j, first, last, flat, of_score, of_bias, to_score, to_bias,
    of_unit, w_score, w_bias, b_in, w_out, slope, block, HEADS: tl.constexpr, CHANNELS: tl.constexpr,
    TAPS: tl.constexpr, SCORED: tl.constexpr, BIASED: tl.constexpr, HELD: tl.constexpr, PRECISION: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of the scores and biases of all heads, with what a block of channels adds to them."""
    reach: tl.constexpr = TAPS // 2
    size: tl.constexpr = BLOCK * HEADS
    apart: tl.constexpr = CHANNELS * HEADS
    before = hidden(
        score, bias, of_score, of_bias, w_score, w_bias, b_in, block, HEADS, CHANNELS, BLOCK, TAPS, M, N, SCORED,
        BIASED, HELD, PRECISION,
    )  # fmt: skip
    d_unit = tl.zeros([BLOCK, M * N], tl.float32)
    for tap in tl.static_range(TAPS):
        d_logit = near(read(d_logits, place, there, j, first, last, reach - tap, HEADS, M, N), PRECISION)
        w = matrix(of_unit, w_out, block, tap, BLOCK, HEADS, 1, CHANNELS, BLOCK, TAPS, apart, HELD, PRECISION)
        d_unit = times(w, d_logit, d_unit, PRECISION)
    d_unit = near(tl.where(flat, tl.where(before > 0, d_unit, d_unit * slope), 0.0), PRECISION)
    for tap in tl.static_range(TAPS):
        moved = along_keys(d_unit, reach - tap, BLOCK, M, N)
        if SCORED:
            w = matrix(to_score, w_score, block, tap, HEADS, BLOCK, 1, HEADS, size, TAPS, apart, HELD, PRECISION)
            d_score = times(w, moved, d_score, PRECISION)
        if BIASED:
            w = matrix(to_bias, w_bias, block, tap, HEADS, BLOCK, 1, HEADS, size, TAPS, apart, HELD, PRECISION)
            d_bias = times(w, moved, d_bias, PRECISION)
    return d_score, d_bias


@triton.jit(do_not_specialize=LENGTHS)
def unmix(
    scores, d_logits, d_scores, d_biases, table, q_pos, k_pos, q_doc, k_doc, ramp_q, ramp_k, w_score, w_bias, b_in,
    w_out, stretch, T, S, R, zero, start, window, text, begin, end, first, last, pitch, slope, H: tl.constexpr,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    DOCS: tl.constexpr, TABLE: tl.constexpr, IDS: tl.constexpr, RAMP: tl.constexpr, SCORED: tl.constexpr,
    BIASED: tl.constexpr, ADDED: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    blocks: tl.constexpr = CHANNELS // BLOCK
    kind = d_scores.dtype.element_ty
    local = tl.program_id(2)
    b, h = (text + local).to(tl.int64), tl.arange(0, HEADS)
    j, owned = keys(tl.program_id(0), first, last, 2 * (TAPS // 2), N)
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
    size: tl.constexpr = BLOCK * HEADS
    apart: tl.constexpr = CHANNELS * HEADS
    HELD: tl.constexpr = apart * TAPS <= MATRICES
    of_score, of_bias, to_score, to_bias, of_unit = (), (), (), (), ()
    if HELD:
        if SCORED:
            of_score = matrices(w_score, BLOCK, HEADS, HEADS, 1, blocks, size, TAPS, apart, PRECISION)
            to_score = matrices(w_score, HEADS, BLOCK, 1, HEADS, blocks, size, TAPS, apart, PRECISION)
        if BIASED:
            of_bias = matrices(w_bias, BLOCK, HEADS, HEADS, 1, blocks, size, TAPS, apart, PRECISION)
            to_bias = matrices(w_bias, HEADS, BLOCK, 1, HEADS, blocks, size, TAPS, apart, PRECISION)
        of_unit = matrices(w_out, BLOCK, HEADS, 1, CHANNELS, blocks, BLOCK, TAPS, apart, PRECISION)
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
        if HELD:
            for block in tl.static_range(blocks):
                d_score, d_bias = of_channels(
                    d_score, d_bias, score, bias, d_logits, place, there, j, first, last, flat, of_score, of_bias,
                    to_score, to_bias, of_unit, w_score, w_bias, b_in, w_out, slope, block, HEADS, CHANNELS, TAPS,
                    SCORED, BIASED, HELD, PRECISION, M, N, BLOCK,
                )  # fmt: skip
        else:
            for block in range(blocks):
                d_score, d_bias = of_channels(
                    d_score, d_bias, score, bias, d_logits, place, there, j, first, last, flat, of_score, of_bias,
                    to_score, to_bias, of_unit, w_score, w_bias, b_in, w_out, slope, block, HEADS, CHANNELS, TAPS,
                    SCORED, BIASED, HELD, PRECISION, M, N, BLOCK,
                )  # fmt: skip
        d_logit = read(d_logits, place, there, j, first, last, 0, HEADS, M, N)
        d_score = tl.where(flat, d_score + d_logit, 0.0) * tl.load(stretch)
        tl.store(d_scores + place, tl.reshape(d_score, [HEADS, M, N]).to(kind), mask=mine)
        if BIASED:
            if ADDED:
                d_bias += d_logit
            tl.store(d_biases + place, tl.reshape(tl.where(flat, d_bias, 0.0), [HEADS, M, N]), mask=mine)
