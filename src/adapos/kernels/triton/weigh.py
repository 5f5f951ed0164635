"""The logits of a tile, all heads in one program. The scores of its pairs are in registers, and nowhere else.

S = scale q.k         B = table[i - j] + ramps                                   zero where not seen
hidden = leaky(W_s * S + W_b * B + b_in)                                         zero where not seen
logit  = S + B + W_o * hidden                                                    -inf where not seen

* is a product over heads, or over BLOCK channels at a time, and a convolution of TAPS taps along the keys: each tap is
a product, moved along by tl.gather. Of N keys of a tile the outermost are there to be read by taps alone, r = TAPS // 2
for each of two layers and on either side:

    |<- 2r ->|<------ N - 4r keys that are written ------>|<- 2r ->|         all N: S, B; but r: hidden

A program is (tile of keys, tile of queries, text of the chunk). b_out is missing, for no softmax sees a constant.
"""

import triton
import triton.language as tl

from adapos.kernels.triton.tile import LENGTHS, along_keys, biases, hidden, scores, seen, times


@triton.jit(do_not_specialize=LENGTHS)
def weigh(
    logits, kept, q, k, table, q_pos, k_pos, q_doc, k_doc, ramp_q, ramp_k, w_score, w_bias, b_in, w_out,
    q_batch, q_head, q_token, k_batch, k_head, k_token, T, S, R, zero, start, window, text, begin, end, first, last,
    pitch, scale, slope, H: tl.constexpr, HEADS: tl.constexpr, REPEATS: tl.constexpr, D: tl.constexpr,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, DOCS: tl.constexpr,
    TABLE: tl.constexpr, IDS: tl.constexpr, RAMP: tl.constexpr, SCORED: tl.constexpr, BIASED: tl.constexpr,
    ADDED: tl.constexpr, KEPT: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    halo: tl.constexpr = 2 * (TAPS // 2)
    local = tl.program_id(2)
    b = (text + local).to(tl.int64)
    rows, h = begin + tl.program_id(1) * M + tl.arange(0, M), tl.arange(0, HEADS)
    inner = tl.arange(0, N)
    j = first + tl.program_id(0) * (N - 2 * halo) - halo + inner
    i = start + rows
    written = (inner >= halo) & (inner < N - halo) & (j < last)
    place = (local * H + h).to(tl.int64)[:, None, None] * (end - begin) * pitch * 16
    place = place + (rows - begin)[None, :, None] * pitch * 16 + (j - first)[None, None, :]
    there = (h < H)[:, None, None] & (rows < end)[None, :, None] & written[None, None, :]
    found = seen(b, rows, i, j, q_doc, k_doc, T, S, window, CAUSAL, WINDOW, DOCS)
    if tl.max(found.to(tl.int32)) == 0:
        tl.store(logits + place, tl.full([HEADS, M, N], float("-inf"), tl.float32), mask=there)
        if KEPT:
            tl.store(kept + place, tl.zeros([HEADS, M, N], tl.float32), mask=there)
        return
    score = scores(
        q, k, b, h, rows, j, q_batch, q_head, q_token, k_batch, k_head, k_token, T, S, scale, H, REPEATS, D, DEPTH,
        HEADS, M, N, PRECISION,
    )  # fmt: skip
    score = tl.where(found[None], score, 0.0)
    if KEPT:
        tl.store(kept + place, score, mask=there)
    score = tl.reshape(score, [HEADS, M * N])
    bias = biases(
        b, h, rows, i, j, found, table, q_pos, k_pos, ramp_q, ramp_k, T, S, R, zero, H, HEADS, M, N, TABLE, IDS, RAMP
    )
    bias = tl.reshape(bias, [HEADS, M * N])
    flat = tl.reshape(found, [1, M * N])
    logit = score
    if ADDED:
        logit += bias
    for channel in range(0, CHANNELS, BLOCK):
        at = channel + tl.arange(0, BLOCK)
        unit = hidden(
            score, bias, w_score, w_bias, b_in, at, h, CHANNELS, BLOCK, HEADS, TAPS, M, N, SCORED, BIASED, PRECISION
        )
        unit = tl.where(unit > 0, unit, unit * slope)
        if TAPS > 1:
            # again, or decoding differs from one pass
            unit = tl.where(flat, unit, 0.0)
        for tap in tl.static_range(TAPS):
            weight = tl.load(w_out + (tap * HEADS + h)[:, None] * CHANNELS + at[None, :])
            part = times(weight, unit, tl.zeros([HEADS, M * N], tl.float32), PRECISION)
            logit += along_keys(part, tap - TAPS // 2, HEADS, M, N)
    logit = tl.where(flat, logit, float("-inf"))
    tl.store(logits + place, tl.reshape(logit, [HEADS, M, N]), mask=there)
