"""What every kernel asks of a tile of M queries x N keys: which pairs are seen, their bias, their scores.

                 keys j .. j + N                 i, j   indices on the key axis, from which order is told
               +-----------------+               rows   queries, i = start + row
      queries  | h = 0           |-+             h      heads, of which a program has one or all
      i .. i+M |   | h = 1       | |-+
               +-----------------+ | |           a distance is i - j, or that of the ids where they are not consecutive
                 +-----------------+ |
                   +-----------------+

Names in capitals are constants that a kernel is compiled for. No length is among them.
"""

import triton
import triton.language as tl

PADDING = tl.constexpr(-1)
# numbers that change from text to text: a kernel that was compiled for one runs for all
LENGTHS = ["T", "S", "R", "zero", "start", "window", "text", "begin", "end", "first", "last", "pitch"]
# tensors that begin wherever others end
UNALIGNED = ["top", "sums", "delta", "shares"]


@triton.jit
def times(x, y, total, PRECISION: tl.constexpr):
    """The product of two matrices, or of many, added to the total."""
    if PRECISION == "interpreted":
        # it knows no products of bfloat16
        return tl.dot(x.to(tl.float32), y.to(tl.float32), total)
    return tl.dot(x, y, total, input_precision=PRECISION)


@triton.jit
def seen(b, rows, i, j, q_doc, k_doc, T, S, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, DOCS: tl.constexpr):
    """(M, N): which keys the queries see."""
    inside = (j >= 0) & (j < S)
    found = (rows < T)[:, None] & inside[None, :]
    offset = i[:, None] - j[None, :]
    if CAUSAL:
        found = found & (offset >= 0)
    if WINDOW:
        found = found & (offset < window) & (offset > -window)
    if DOCS:
        of_q = tl.load(q_doc + b * T + rows, mask=rows < T, other=PADDING)
        of_k = tl.load(k_doc + b * S + j, mask=inside, other=PADDING)
        found = found & (of_q[:, None] == of_k[None, :]) & (of_k != PADDING)[None, :]
    return found


@triton.jit
def biases(
    b, h, rows, i, j, found, table, q_pos, k_pos, ramp_q, ramp_k, T, S, R, zero, H: tl.constexpr, HEADS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, TABLE: tl.constexpr, IDS: tl.constexpr, RAMP: tl.constexpr,
):  # fmt: skip
    """(HEADS, M, N): the sum of all biases, zero where not seen."""
    total = tl.zeros([HEADS, M, N], tl.float32)
    there = found[None] & (h < H)[:, None, None]
    inside = (j >= 0) & (j < S)
    if TABLE:
        if IDS:
            apart = tl.load(q_pos + b * T + rows, mask=rows < T, other=0)[:, None]
            apart = apart - tl.load(k_pos + b * S + j, mask=inside, other=0)[None, :]
        else:
            apart = i[:, None] - j[None, :]
        column = tl.minimum(tl.maximum(apart + zero, 0), R - 1).to(tl.int32)
        total += tl.load(table + h[:, None, None] * R + column[None], mask=there, other=0.0)
    if RAMP:
        # each number is a large part and a small one: large parts of queries and keys cancel without an error
        head = (b * H + h).to(tl.int64)
        at_q = ramp_q + 2 * (head[:, None] * T + rows[None, :])
        at_k = ramp_k + 2 * (head[:, None] * S + j[None, :])
        of_q, of_k = (h < H)[:, None] & (rows < T)[None, :], (h < H)[:, None] & inside[None, :]
        large = tl.load(at_q, mask=of_q, other=0.0)[:, :, None] + tl.load(at_k, mask=of_k, other=0.0)[:, None, :]
        small = tl.load(at_q + 1, mask=of_q, other=0.0)[:, :, None]
        small = small + tl.load(at_k + 1, mask=of_k, other=0.0)[:, None, :]
        total += tl.where(there, large + small, 0.0)
    return total


@triton.jit
def scores(
    q, k, b, h, rows, j, q_batch, q_head, q_token, k_batch, k_head, k_token, T, S, scale, H: tl.constexpr,
    REPEATS: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr, HEADS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """(HEADS, M, N): scale q.k, DEPTH numbers of a head at a time; REPEATS heads share a head of keys."""
    total = tl.zeros([HEADS, M, N], tl.float32)
    of_q = q + b * q_batch + h.to(tl.int64)[:, None, None] * q_head + rows.to(tl.int64)[None, :, None] * q_token
    of_k = k + b * k_batch + (h // REPEATS).to(tl.int64)[:, None, None] * k_head
    of_k += j.to(tl.int64)[None, None, :] * k_token
    there_q = (h < H)[:, None, None] & (rows < T)[None, :, None]
    there_k = (h < H)[:, None, None] & ((j >= 0) & (j < S))[None, None, :]
    for begin in range(0, D, DEPTH):
        d = begin + tl.arange(0, DEPTH)
        x = tl.load(of_q + d[None, None, :], mask=there_q & (d < D)[None, None, :], other=0.0)
        y = tl.load(of_k + d[None, :, None], mask=there_k & (d < D)[None, :, None], other=0.0)
        total = times(x, y, total, PRECISION)
    return total * scale


@triton.jit
def along_keys(x, by: tl.constexpr, CHANNELS: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """(CHANNELS, M * N): x of the key `by` further on; what lies past the tile is not to be used."""
    if by == 0:
        return x
    at = tl.minimum(tl.maximum(tl.arange(0, N) + by, 0), N - 1)
    at = tl.broadcast_to(at[None, None, :], [CHANNELS, M, N])
    return tl.reshape(tl.gather(tl.reshape(x, [CHANNELS, M, N]), at, 2), [CHANNELS, M * N])


@triton.jit
def hidden(
    score, bias, w_score, w_bias, b_in, at, h, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr,
    TAPS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, SCORED: tl.constexpr, BIASED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """(BLOCK, M * N): what the first layer makes of the scores and biases of all heads, before its rectifier."""
    total = tl.zeros([BLOCK, M * N], tl.float32) + tl.load(b_in + at)[:, None]
    for tap in tl.static_range(TAPS):
        place = (tap * CHANNELS + at)[:, None] * HEADS + h[None, :]
        part = tl.zeros([BLOCK, M * N], tl.float32)
        if SCORED:
            part = times(tl.load(w_score + place), score, part, PRECISION)
        if BIASED:
            part = times(tl.load(w_bias + place), bias, part, PRECISION)
        total += along_keys(part, tap - TAPS // 2, BLOCK, M, N)
    return total


@triton.jit
def over_pairs(
    x, y, ROWS: tl.constexpr, COLUMNS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr
):
    """(ROWS, COLUMNS): x (ROWS, M * N) times the transpose of y (COLUMNS, M * N), query by query, for no warp to hold a
    product of all pairs."""
    x = tl.permute(tl.reshape(x, [ROWS, M, N]), (1, 0, 2))
    y = tl.permute(tl.reshape(y, [COLUMNS, M, N]), (1, 2, 0))
    return tl.sum(times(x, y, tl.zeros([M, ROWS, COLUMNS], tl.float32), PRECISION), 0)


@triton.jit
def read(chunk, place, there, j, first, last, by: tl.constexpr, HEADS: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """(HEADS, M * N): what a chunk holds of the keys `by` further on, zero past its ends."""
    inside = (j + by >= first) & (j + by < last)
    return tl.reshape(tl.load(chunk + place + by, mask=there & inside[None, None, :], other=0.0), [HEADS, M * N])


@triton.jit
def back(
    d_logits, place, there, j, first, last, w_out, at, h, CHANNELS: tl.constexpr, BLOCK: tl.constexpr,
    HEADS: tl.constexpr, TAPS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(BLOCK, M * N): what the loss says of the hidden layer behind its rectifier."""
    total = tl.zeros([BLOCK, M * N], tl.float32)
    for tap in tl.static_range(TAPS):
        d_logit = read(d_logits, place, there, j, first, last, TAPS // 2 - tap, HEADS, M, N)
        weight = tl.load(w_out + (tap * HEADS + h)[None, :] * CHANNELS + at[:, None])
        total = times(weight, d_logit, total, PRECISION)
    return total
