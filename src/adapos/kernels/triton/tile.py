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
LOWEST = tl.constexpr(-3.4028234663852886e38)  # finite, for a row may see nothing
ROUNDED = tl.constexpr(3.401992698887923e38)  # the largest that TF32 has a number near
# numbers that change from text to text: a kernel that was compiled for one runs for all
LENGTHS = ["T", "S", "R", "zero", "start", "window", "text", "begin", "end", "first", "last", "pitch"]
# tensors that begin wherever others end
UNALIGNED = ["top", "sums", "delta", "shares", "of_tops", "of_weights", "of_means"]


@triton.jit
def times(x, y, total, PRECISION: tl.constexpr):
    """The product of two matrices, or of many, added to the total."""
    if PRECISION == "interpreted" or PRECISION == "interpreted tf32":
        # it knows no products of bfloat16
        return tl.dot(x.to(tl.float32), y.to(tl.float32), total)
    return tl.dot(x, y, total, input_precision=PRECISION)


@triton.jit
def near(x, PRECISION: tl.constexpr):
    """Float32 as the nearest number of TF32, where products are of such: hardware would cut, always towards zero."""
    if x.dtype == tl.float32 and (PRECISION == "tf32" or PRECISION == "interpreted tf32"):
        rounded = ((x.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)
        # what is no number must stay none, and what is finite finite: rounding would carry into sign and exponent
        return tl.where(tl.abs(x) <= ROUNDED, rounded, x)
    return x


@triton.jit
def keys(tile, first, last, HALO: tl.constexpr, N: tl.constexpr):
    """The keys of a tile, and which of them are its own: the outermost are there for taps alone."""
    inner = tl.arange(0, N)
    j = first + tile * (N - 2 * HALO) - HALO + inner
    return j, (inner >= HALO) & (inner < N - HALO) & (j < last)


@triton.jit
def places(h, rows, j, begin, end, first, pitch, H: tl.constexpr):
    """(HEADS, M, N): where a chunk holds the pairs of a tile of one text, in 32 bits, for there are many of them.
    And (HEADS, M, 1): whether it has such queries and heads."""
    line = h[:, None, None] * (end - begin) + (rows - begin)[None, :, None]
    there = (h < H)[:, None, None] & (rows < end)[None, :, None]
    return line * (pitch * 16) + (j - first)[None, None, :], there


@triton.jit
def watching(
    low, high, b, j, q_doc, k_doc, T, S, start, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, DOCS: tl.constexpr,
    SPAN: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Of queries from low up to high, SPAN at most: from which on and up to which they see a key, in tiles of M."""
    rows = low + tl.arange(0, SPAN)
    found = seen(b, rows, start + rows, j, q_doc, k_doc, T, S, window, CAUSAL, WINDOW, DOCS) & (rows < high)[:, None]
    sees = tl.max(found.to(tl.int32), 1) > 0
    begin, end = tl.min(tl.where(sees, rows, high)), tl.max(tl.where(sees, rows + 1, low))
    return low + (begin - low) // M * M, tl.maximum(end, low + (begin - low) // M * M)


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
def of_queries(q, part, b, h, rows, q_batch, q_head, q_token, T, H: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr):
    """(HEADS, M, DEPTH): a part of the numbers of the queries."""
    d = part * DEPTH + tl.arange(0, DEPTH)
    at = q + b * q_batch + h.to(tl.int64)[:, None, None] * q_head + rows.to(tl.int64)[None, :, None] * q_token
    there = (h < H)[:, None, None] & (rows < T)[None, :, None] & (d < D)[None, None, :]
    return tl.load(at + d[None, None, :], mask=there, other=0.0)


@triton.jit
def of_keys(
    k, part, b, h, j, k_batch, k_head, k_token, S, H: tl.constexpr, REPEATS: tl.constexpr, D: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """(HEADS, DEPTH, N): a part of the numbers of the keys; REPEATS heads share a head of them."""
    d = part * DEPTH + tl.arange(0, DEPTH)
    at = k + b * k_batch + (h // REPEATS).to(tl.int64)[:, None, None] * k_head + j.to(tl.int64)[None, None, :] * k_token
    there = (h < H)[:, None, None] & ((j >= 0) & (j < S))[None, None, :] & (d < D)[None, :, None]
    return tl.load(at + d[None, :, None], mask=there, other=0.0)


@triton.jit
def all_of_keys(
    k, b, h, j, k_batch, k_head, k_token, S, H: tl.constexpr, REPEATS: tl.constexpr, D: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """All parts; read before a loop, they stay in shared memory."""
    found = ()
    for part in tl.static_range((D + DEPTH - 1) // DEPTH):
        found = found + (of_keys(k, part, b, h, j, k_batch, k_head, k_token, S, H, REPEATS, D, DEPTH),)
    return found


@triton.jit
def of_pairs(x, y, total, TURNED: tl.constexpr, PRECISION: tl.constexpr):
    """Products of queries (HEADS, M, DEPTH) and keys (HEADS, DEPTH, N), or of both TURNED, added to the total."""
    if TURNED:
        x, y = tl.permute(y, (0, 2, 1)), tl.permute(x, (0, 2, 1))
    return times(near(x, PRECISION), near(y, PRECISION), total, PRECISION)


@triton.jit
def scores(
    q, k, held, b, h, rows, j, q_batch, q_head, q_token, k_batch, k_head, k_token, T, S, H: tl.constexpr,
    REPEATS: tl.constexpr, D: tl.constexpr, DEPTH: tl.constexpr, HELD: tl.constexpr, HEADS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(HEADS, M, N): q.k, DEPTH numbers of a head at a time; where keys are HELD, they were read before."""
    # tensor cores multiply 16 rows and 8 columns: where queries are fewer, keys are the rows
    TURNED: tl.constexpr = M < 16 and PRECISION != "ieee"
    DOWN: tl.constexpr = N if TURNED else M
    ACROSS: tl.constexpr = M if TURNED else N
    total = tl.zeros([HEADS, DOWN, ACROSS], tl.float32)
    if HELD:
        for part in tl.static_range((D + DEPTH - 1) // DEPTH):
            x = of_queries(q, part, b, h, rows, q_batch, q_head, q_token, T, H, D, DEPTH)
            total = of_pairs(x, held[part], total, TURNED, PRECISION)
    else:
        for part in range((D + DEPTH - 1) // DEPTH):
            x = of_queries(q, part, b, h, rows, q_batch, q_head, q_token, T, H, D, DEPTH)
            y = of_keys(k, part, b, h, j, k_batch, k_head, k_token, S, H, REPEATS, D, DEPTH)
            total = of_pairs(x, y, total, TURNED, PRECISION)
    if TURNED:
        total = tl.permute(total, (0, 2, 1))
    return total


@triton.jit
def biased(score, bias, scale, M: tl.constexpr, N: tl.constexpr):
    """(1, M, N): scale x score + bias, rounded once. Compilers by themselves do so in one kernel and not in another."""
    return tl.fma(score, tl.full([1, M, N], scale, tl.float32), bias)


@triton.jit
def along_keys(x, by: tl.constexpr, CHANNELS: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """(CHANNELS, M * N): x of the key `by` further on; what lies past the tile is not to be used."""
    if by == 0:
        return x
    at = tl.minimum(tl.maximum(tl.arange(0, N) + by, 0), N - 1)
    at = tl.broadcast_to(at[None, None, :], [CHANNELS, M, N])
    return tl.reshape(tl.gather(tl.reshape(x, [CHANNELS, M, N]), at, 2), [CHANNELS, M * N])


@triton.jit
def matrix(
    held, weights, block, tap: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, down: tl.constexpr,
    across: tl.constexpr, further: tl.constexpr, TAPS: tl.constexpr, apart: tl.constexpr, HELD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """(ROWS, COLUMNS): that of a block of channels and a tap, of those that are held, or read now."""
    if HELD:
        return held[block * TAPS + tap]
    at = tl.arange(0, ROWS)[:, None] * down + tl.arange(0, COLUMNS)[None, :] * across
    return near(tl.load(weights + block * further + tap * apart + at), PRECISION)


@triton.jit
def matrices(
    weights, ROWS: tl.constexpr, COLUMNS: tl.constexpr, down: tl.constexpr, across: tl.constexpr, BLOCKS: tl.constexpr,
    further: tl.constexpr, TAPS: tl.constexpr, apart: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One for each block of channels and each tap; read before a loop, they stay in shared memory."""
    found = ()
    for block in tl.static_range(BLOCKS):
        for tap in tl.static_range(TAPS):
            one = matrix((), weights, block, tap, ROWS, COLUMNS, down, across, further, TAPS, apart, False, PRECISION)
            found = found + (one,)
    return found


@triton.jit
def hidden(
    score, bias, of_score, of_bias, w_score, w_bias, b_in, block, HEADS: tl.constexpr, CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr, TAPS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, SCORED: tl.constexpr,
    BIASED: tl.constexpr, HELD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(BLOCK, M * N): what the first layer makes of the scores and biases of all heads, before its rectifier."""
    size: tl.constexpr = BLOCK * HEADS
    apart: tl.constexpr = CHANNELS * HEADS
    total = tl.zeros([BLOCK, M * N], tl.float32) + tl.load(b_in + block * BLOCK + tl.arange(0, BLOCK))[:, None]
    for tap in tl.static_range(TAPS):
        part = tl.zeros([BLOCK, M * N], tl.float32)
        if SCORED:
            w = matrix(of_score, w_score, block, tap, BLOCK, HEADS, HEADS, 1, size, TAPS, apart, HELD, PRECISION)
            part = times(w, score, part, PRECISION)
        if BIASED:
            w = matrix(of_bias, w_bias, block, tap, BLOCK, HEADS, HEADS, 1, size, TAPS, apart, HELD, PRECISION)
            part = times(w, bias, part, PRECISION)
        total += along_keys(part, tap - TAPS // 2, BLOCK, M, N)
    return total


@triton.jit
def over_keys(
    x, y, total, ROWS: tl.constexpr, COLUMNS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr
):
    """(M, ROWS, COLUMNS): by query x (ROWS, M * N) times the transpose of y (COLUMNS, M * N), added to the total."""
    x = tl.permute(tl.reshape(x, [ROWS, M, N]), (1, 0, 2))
    y = tl.permute(tl.reshape(y, [COLUMNS, M, N]), (1, 2, 0))
    return times(x, y, total, PRECISION)


@triton.jit
def read(chunk, place, there, j, first, last, by: tl.constexpr, HEADS: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """(HEADS, M * N): what a chunk holds of the keys `by` further on, zero past its ends."""
    inside = (j + by >= first) & (j + by < last)
    return tl.reshape(tl.load(chunk + place + by, mask=there & inside[None, None, :], other=0.0), [HEADS, M * N])
