"""The logits of a tile, all heads in one program. The scores of its pairs are in registers, and nowhere else.

S = scale q.k         B = table[i - j] + ramps                                   zero where not seen
hidden = leaky(W_s * S + W_b * B + b_in)                                         zero where not seen
logit  = S + B + W_o * hidden                                                    -inf where not seen

* is a product over heads, or over BLOCK channels at a time, and a convolution of TAPS taps along the keys: each tap is
a product, moved along by tl.gather. Of N keys of a tile the outermost are there to be read by taps alone, r = TAPS // 2
for each of two layers and on either side:

    |<- 2r ->|<------ N - 4r keys that are written ------>|<- 2r ->|         all N: S, B; but r: hidden

A program is (tile of keys, SPAN queries, M at a time, text of the chunk). No b_out: no softmax sees a constant.
"""

import triton
import triton.language as tl

from adapos.kernels.triton import sizes
from adapos.kernels.triton.tile import (
    LENGTHS,
    all_of_keys,
    along_keys,
    biases,
    hidden,
    keys,
    matrices,
    matrix,
    near,
    places,
    scores,
    seen,
    times,
    watching,
)

NUMBERS = tl.constexpr(sizes.KEPT)
MATRICES = tl.constexpr(sizes.MATRICES)


@triton.jit
def through_channels(
    logit, score, bias, flat, of_score, of_bias, of_unit, w_score, w_bias, b_in, w_out, slope, block,
    HEADS: tl.constexpr, W: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, SCORED: tl.constexpr,
    BIASED: tl.constexpr, HELD: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The logits of all heads, with what a block of channels adds to them."""
    unit = hidden(
        score, bias, of_score, of_bias, w_score, w_bias, b_in, block, HEADS, CHANNELS, BLOCK, TAPS, M, N, SCORED,
        BIASED, HELD, PRECISION,
    )  # fmt: skip
    unit = tl.where(unit > 0, unit, unit * slope)
    if W < CHANNELS:
        # channels of nothing, or a bias of -inf would make NaN of them
        unit = tl.where((block * BLOCK + tl.arange(0, BLOCK) < W)[:, None], unit, 0.0)
    if TAPS > 1:
        # again, or decoding differs from one pass
        unit = tl.where(flat, unit, 0.0)
    unit = near(unit, PRECISION)
    apart: tl.constexpr = CHANNELS * HEADS
    for tap in tl.static_range(TAPS):
        w = matrix(of_unit, w_out, block, tap, HEADS, BLOCK, CHANNELS, 1, BLOCK, TAPS, apart, HELD, PRECISION)
        part = times(w, unit, tl.zeros([HEADS, M * N], tl.float32), PRECISION)
        logit += along_keys(part, tap - TAPS // 2, HEADS, M, N)
    return logit


@triton.jit(do_not_specialize=LENGTHS)
def weigh(
    logits, kept, q, k, table, q_pos, k_pos, q_doc, k_doc, ramp_q, ramp_k, w_score, w_bias, b_in, w_out,
    q_batch, q_head, q_token, k_batch, k_head, k_token, T, S, R, zero, start, window, text, begin, end, first, last,
    pitch, scale, slope, H: tl.constexpr, HEADS: tl.constexpr, REPEATS: tl.constexpr, D: tl.constexpr,
    W: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    DOCS: tl.constexpr, TABLE: tl.constexpr, IDS: tl.constexpr, RAMP: tl.constexpr, SCORED: tl.constexpr,
    BIASED: tl.constexpr, ADDED: tl.constexpr, KEPT: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    local = tl.program_id(2)
    b, h = (text + local).to(tl.int64), tl.arange(0, HEADS)
    j, owned = keys(tl.program_id(0), first, last, 2 * (TAPS // 2), N)
    before = local.to(tl.int64) * H * (end - begin) * pitch * 16
    logits += before
    if KEPT:
        kept += before
    low = begin + tl.program_id(1) * SPAN
    high = tl.minimum(low + SPAN, end)
    low_seen, high_seen = watching(low, high, b, j, q_doc, k_doc, T, S, start, window, CAUSAL, WINDOW, DOCS, SPAN, M)
    for row in range(low, high, M):
        if (row < low_seen) | (row >= high_seen):
            place, there = places(h, row + tl.arange(0, M), j, begin, end, first, pitch, H)
            there = there & owned[None, None, :]
            tl.store(logits + place, tl.full([HEADS, M, N], float("-inf"), tl.float32), mask=there)
            if KEPT:
                tl.store(kept + place, tl.zeros([HEADS, M, N], tl.float32), mask=there)
    # all numbers of the keys, where they are not too many
    HELD_KEYS: tl.constexpr = HEADS * N * D <= NUMBERS
    held = ()
    if HELD_KEYS:
        held = all_of_keys(k, b, h, j, k_batch, k_head, k_token, S, H, REPEATS, D, DEPTH)
    blocks: tl.constexpr = CHANNELS // BLOCK
    size: tl.constexpr = BLOCK * HEADS
    apart: tl.constexpr = CHANNELS * HEADS
    HELD: tl.constexpr = apart * TAPS <= MATRICES
    of_score, of_bias, of_unit = (), (), ()
    if HELD:
        if SCORED:
            of_score = matrices(w_score, BLOCK, HEADS, HEADS, 1, blocks, size, TAPS, apart, PRECISION)
        if BIASED:
            of_bias = matrices(w_bias, BLOCK, HEADS, HEADS, 1, blocks, size, TAPS, apart, PRECISION)
        of_unit = matrices(w_out, HEADS, BLOCK, CHANNELS, 1, blocks, BLOCK, TAPS, apart, PRECISION)
    for row in range(low_seen, high_seen, M):
        rows = row + tl.arange(0, M)
        i = start + rows
        place, there = places(h, rows, j, begin, end, first, pitch, H)
        there = there & owned[None, None, :]
        found = seen(b, rows, i, j, q_doc, k_doc, T, S, window, CAUSAL, WINDOW, DOCS)
        score = scores(
            q, k, held, b, h, rows, j, q_batch, q_head, q_token, k_batch, k_head, k_token, T, S, H, REPEATS, D, DEPTH,
            HELD_KEYS, HEADS, M, N, PRECISION,
        )  # fmt: skip
        score = tl.where(found[None], score * scale, 0.0)
        if KEPT:
            tl.store(kept + place, score, mask=there)
        score = tl.reshape(score, [HEADS, M * N])
        bias = biases(
            b, h, rows, i, j, found, table, q_pos, k_pos, ramp_q, ramp_k, T, S, R, zero, H, HEADS, M, N, TABLE, IDS,
            RAMP,
        )  # fmt: skip
        bias = tl.reshape(bias, [HEADS, M * N])
        flat = tl.reshape(found, [1, M * N])
        logit = score
        if ADDED:
            logit += bias
        score, bias = near(score, PRECISION), near(bias, PRECISION)
        if HELD:
            for block in tl.static_range(blocks):
                logit = through_channels(
                    logit, score, bias, flat, of_score, of_bias, of_unit, w_score, w_bias, b_in, w_out, slope, block,
                    HEADS, W, CHANNELS, TAPS, SCORED, BIASED, HELD, PRECISION, M, N, BLOCK,
                )  # fmt: skip
        else:
            for block in range(blocks):
                logit = through_channels(
                    logit, score, bias, flat, of_score, of_bias, of_unit, w_score, w_bias, b_in, w_out, slope, block,
                    HEADS, W, CHANNELS, TAPS, SCORED, BIASED, HELD, PRECISION, M, N, BLOCK,
                )  # fmt: skip
        logit = tl.where(flat, logit, float("-inf"))
        tl.store(logits + place, tl.reshape(logit, [HEADS, M, N]), mask=there)
