"""What the loss says of the matrices of a mix, by the pairs of a tile, all heads in one program.

dW_o = dlogit hidden'      dW_s = (d hidden) S'      dW_b = (d hidden) B'      db_in = sum of d hidden      over all pairs

hidden and d hidden are made as in `unmix`, BLOCK channels at a time. Tap by tap dlogit is that of the key whose tap reads
this one. Every pair is owned by one tile:

    |<- 2r ->|<------ N - 4r keys that are owned ------->|<- 2r ->|    --> (TAPS, CHANNELS, HEADS), three of them

The sums cancel heavily: what programs write is added afterwards in double precision and in one order, or all are added
in place, in an order that is not the same from run to run (ATOMIC).

A program is (BLOCK channels of a tile of keys, SPAN queries, M at a time, text of the chunk). Where sums would be too
many the tiles of keys are gone through in pieces.
"""  # noqa: E501

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
    over_keys,
    places,
    read,
    seen,
    times,
    watching,
)


@triton.jit
def keep(sums, found, place, ATOMIC: tl.constexpr):
    if ATOMIC:
        tl.atomic_add(sums + place, found, sem="relaxed")
    else:
        tl.store(sums + place, found)


@triton.jit
def nothing(TAPS: tl.constexpr, M: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A sum for each tap."""
    found = ()
    for _ in tl.static_range(TAPS):
        found = found + (tl.zeros([M, ROWS, COLUMNS], tl.float32),)
    return found


@triton.jit(do_not_specialize=[*LENGTHS, "piece"])
def learn(
    scores, d_logits, d_w_score, d_w_bias, d_w_out, d_b_in, table, q_pos, k_pos, q_doc, k_doc, ramp_q, ramp_k, w_score,
    w_bias, b_in, w_out, T, S, R, zero, start, window, text, begin, end, first, last, pitch, piece, slope,
    H: tl.constexpr, HEADS: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr, DOCS: tl.constexpr, TABLE: tl.constexpr, IDS: tl.constexpr, RAMP: tl.constexpr,
    SCORED: tl.constexpr, BIASED: tl.constexpr, ATOMIC: tl.constexpr, PRECISION: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    reach: tl.constexpr = TAPS // 2
    blocks: tl.constexpr = CHANNELS // BLOCK
    # blocks of one tile follow one another: what the first reads of the chunk is in a cache for the next
    within, block, local = tl.program_id(0) // blocks, tl.program_id(0) % blocks, tl.program_id(2)
    tiles = tl.num_programs(0) // blocks
    b, h, at = (text + local).to(tl.int64), tl.arange(0, HEADS), block * BLOCK + tl.arange(0, BLOCK)
    j, owned = keys(piece * tiles + within, first, last, 2 * reach, N)
    low = begin + tl.program_id(1) * SPAN
    low, high = watching(
        low, tl.minimum(low + SPAN, end), b, j, q_doc, k_doc, T, S, start, window, CAUSAL, WINDOW, DOCS, SPAN, M
    )
    held = local.to(tl.int64) * H * (end - begin) * pitch * 16
    scores += held
    d_logits += held
    first_layer = block * BLOCK * HEADS
    of_score, of_bias, by_score, by_bias = (), (), (), ()
    if SCORED:
        of_score = matrices(w_score + first_layer, BLOCK, HEADS, HEADS, 1, 1, 0, TAPS, CHANNELS * HEADS, PRECISION)
        by_score = nothing(TAPS, M, BLOCK, HEADS)
    if BIASED:
        of_bias = matrices(w_bias + first_layer, BLOCK, HEADS, HEADS, 1, 1, 0, TAPS, CHANNELS * HEADS, PRECISION)
        by_bias = nothing(TAPS, M, BLOCK, HEADS)
    of_unit = matrices(w_out + block * BLOCK, BLOCK, HEADS, 1, CHANNELS, 1, 0, TAPS, CHANNELS * HEADS, PRECISION)
    by_unit = nothing(TAPS, M, HEADS, BLOCK)
    by_ones = tl.zeros([BLOCK, M * N], tl.float32)
    for row in range(low, high, M):
        rows = row + tl.arange(0, M)
        i = start + rows
        place, there = places(h, rows, j, begin, end, first, pitch, H)
        found = seen(b, rows, i, j, q_doc, k_doc, T, S, window, CAUSAL, WINDOW, DOCS) & (rows < end)[:, None]
        flat = tl.reshape(found, [1, M * N])
        own = tl.reshape(found & owned[None, :], [1, M * N])
        score = near(read(scores, place, there, j, first, last, 0, HEADS, M, N), PRECISION)
        bias = biases(
            b, h, rows, i, j, found, table, q_pos, k_pos, ramp_q, ramp_k, T, S, R, zero, H, HEADS, M, N, TABLE, IDS,
            RAMP,
        )  # fmt: skip
        bias = near(tl.reshape(bias, [HEADS, M * N]), PRECISION)
        before = hidden(
            score, bias, of_score, of_bias, w_score, w_bias, b_in + block * BLOCK, 0, HEADS, CHANNELS, BLOCK, TAPS, M,
            N, SCORED, BIASED, True, PRECISION,
        )  # fmt: skip
        unit = near(tl.where(own, tl.where(before > 0, before, before * slope), 0.0), PRECISION)
        d_unit = tl.zeros([BLOCK, M * N], tl.float32)
        sums = ()
        for tap in tl.static_range(TAPS):
            d_logit = near(read(d_logits, place, there, j, first, last, reach - tap, HEADS, M, N), PRECISION)
            d_unit = times(of_unit[tap], d_logit, d_unit, PRECISION)
            sums = sums + (over_keys(d_logit, unit, by_unit[tap], HEADS, BLOCK, M, N, PRECISION),)
        by_unit = sums
        d_unit = tl.where(flat, tl.where(before > 0, d_unit, d_unit * slope), 0.0)
        by_ones += tl.where(own, d_unit, 0.0)
        d_unit = near(d_unit, PRECISION)
        sums, more = (), ()
        for tap in tl.static_range(TAPS):
            moved = tl.where(own, along_keys(d_unit, reach - tap, BLOCK, M, N), 0.0)
            if SCORED:
                sums = sums + (over_keys(moved, score, by_score[tap], BLOCK, HEADS, M, N, PRECISION),)
            if BIASED:
                more = more + (over_keys(moved, bias, by_bias[tap], BLOCK, HEADS, M, N, PRECISION),)
        by_score, by_bias = sums, more
    program = tl.zeros([], tl.int64)
    if not ATOMIC:
        program += (local * tl.num_programs(1) + tl.program_id(1)) * tiles + within
    keep(d_b_in, tl.sum(by_ones, 1), program * CHANNELS + at, ATOMIC)
    for tap in tl.static_range(TAPS):
        spot = ((program * TAPS + tap) * HEADS + h)[:, None] * CHANNELS + at[None, :]
        keep(d_w_out, tl.sum(by_unit[tap], 0), spot, ATOMIC)
        spot = ((program * TAPS + tap) * CHANNELS + at)[:, None] * HEADS + h[None, :]
        if SCORED:
            keep(d_w_score, tl.sum(by_score[tap], 0), spot, ATOMIC)
        if BIASED:
            keep(d_w_bias, tl.sum(by_bias[tap], 0), spot, ATOMIC)
