"""What the loss says of the matrices of a mix, by the pairs of a tile, all heads in one program.

dW_o = dlogit hidden'      dW_s = (d hidden) S'      dW_b = (d hidden) B'      db_in = sum of d hidden      over all pairs

hidden and d hidden are made as in `unmix`, BLOCK channels at a time. Tap by tap dlogit is that of the key whose tap reads
this one. Every pair is owned by one tile:

    |<- 2r ->|<------ N - 4r keys that are owned ------->|<- 2r ->|    --> (TAPS, CHANNELS, HEADS), three of them

The sums cancel heavily: what programs write is added afterwards in double precision and in one order, or all are added
in place, in an order that is not the same from run to run (ATOMIC).

A program is (tile of keys, tile of queries, text of the chunk).
"""  # noqa: E501

import triton
import triton.language as tl

from adapos.kernels.triton.tile import LENGTHS, along_keys, back, biases, hidden, over_pairs, read, seen


@triton.jit
def keep(sums, found, place, ATOMIC: tl.constexpr):
    if ATOMIC:
        tl.atomic_add(sums + place, found, sem="relaxed")
    else:
        tl.store(sums + place, found)


@triton.jit(do_not_specialize=LENGTHS)
def learn(
    scores, d_logits, d_w_score, d_w_bias, d_w_out, d_b_in, table, q_pos, k_pos, q_doc, k_doc, ramp_q, ramp_k, w_score,
    w_bias, b_in, w_out, T, S, R, zero, start, window, text, begin, end, first, last, pitch, slope, H: tl.constexpr,
    HEADS: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
    DOCS: tl.constexpr, TABLE: tl.constexpr, IDS: tl.constexpr, RAMP: tl.constexpr, SCORED: tl.constexpr,
    BIASED: tl.constexpr, ATOMIC: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    reach: tl.constexpr = TAPS // 2
    halo: tl.constexpr = 2 * reach
    local = tl.program_id(2)
    b = (text + local).to(tl.int64)
    rows, h = begin + tl.program_id(1) * M + tl.arange(0, M), tl.arange(0, HEADS)
    inner = tl.arange(0, N)
    j = first + tl.program_id(0) * (N - 2 * halo) - halo + inner
    i = start + rows
    found = seen(b, rows, i, j, q_doc, k_doc, T, S, window, CAUSAL, WINDOW, DOCS)
    if tl.max(found.to(tl.int32)) == 0:
        return
    place = (local * H + h).to(tl.int64)[:, None, None] * (end - begin) * pitch * 16
    place = place + (rows - begin)[None, :, None] * pitch * 16 + (j - first)[None, None, :]
    there = (h < H)[:, None, None] & (rows < end)[None, :, None]
    flat = tl.reshape(found, [1, M * N])
    own = tl.reshape(found & ((inner >= halo) & (inner < N - halo) & (j < last))[None, :], [1, M * N])
    score = read(scores, place, there, j, first, last, 0, HEADS, M, N)
    bias = biases(
        b, h, rows, i, j, found, table, q_pos, k_pos, ramp_q, ramp_k, T, S, R, zero, H, HEADS, M, N, TABLE, IDS, RAMP
    )
    bias = tl.reshape(bias, [HEADS, M * N])
    program = tl.zeros([], tl.int64)
    if not ATOMIC:
        program += (local * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tl.program_id(0)
    for channel in range(0, CHANNELS, BLOCK):
        at = channel + tl.arange(0, BLOCK)
        before = hidden(
            score, bias, w_score, w_bias, b_in, at, h, CHANNELS, BLOCK, HEADS, TAPS, M, N, SCORED, BIASED, PRECISION
        )
        d_unit = back(
            d_logits, place, there, j, first, last, w_out, at, h, CHANNELS, BLOCK, HEADS, TAPS, M, N, PRECISION
        )
        d_unit = tl.where(flat, tl.where(before > 0, d_unit, d_unit * slope), 0.0)
        unit = tl.where(own, tl.where(before > 0, before, before * slope), 0.0)
        keep(d_b_in, tl.sum(tl.where(own, d_unit, 0.0), 1), program * CHANNELS + at, ATOMIC)
        for tap in tl.static_range(TAPS):
            d_logit = read(d_logits, place, there, j, first, last, reach - tap, HEADS, M, N)
            spot = ((program * TAPS + tap) * HEADS + h)[:, None] * CHANNELS + at[None, :]
            keep(d_w_out, over_pairs(d_logit, unit, HEADS, BLOCK, M, N, PRECISION), spot, ATOMIC)
        for tap in tl.static_range(TAPS):
            moved = tl.where(own, along_keys(d_unit, reach - tap, BLOCK, M, N), 0.0)
            spot = ((program * TAPS + tap) * CHANNELS + at)[:, None] * HEADS + h[None, :]
            if SCORED:
                keep(d_w_score, over_pairs(moved, score, BLOCK, HEADS, M, N, PRECISION), spot, ATOMIC)
            if BIASED:
                keep(d_w_bias, over_pairs(moved, bias, BLOCK, HEADS, M, N, PRECISION), spot, ATOMIC)
