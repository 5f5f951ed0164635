"""The sums of a chunk along its diagonals: what the loss says of a table over distance, where ids are consecutive.

                  keys first .. last
                +----------------------+          a diagonal has one distance d = i - j, so that a row of the chunk
    rows        | \\  \\  \\  \\           |          holds N of them beside one another, and the row below it the same,
    begin       |   \\  \\  \\  \\         |          one key further on
    .. end      +----------------------+

A program is (N distances, head, part of the lines of all texts), M lines at a time. Parts are added afterwards.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["begin", "end", "first", "last", "pitch", "lines", "share"])
def tally(
    sums, grad, begin, end, first, last, pitch, lines, share, H: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):  # fmt: skip
    head, part = tl.program_id(1), tl.program_id(2)
    tall = end - begin
    distances = tall + last - first - 1
    # 0 is the distance of the first query and the last key
    d = tl.program_id(0) * N + tl.arange(0, N)
    total = tl.zeros([M, N], tl.float32)
    for line in range(part * share, tl.minimum((part + 1) * share, lines), M):
        lines_of = line + tl.arange(0, M)
        text, row = lines_of // tall, lines_of % tall
        key = (last - first - 1) + row[:, None] - d[None, :]
        inside = (lines_of < tl.minimum((part + 1) * share, lines))[:, None] & (key >= 0) & (key < last - first)
        place = ((text * H + head).to(tl.int64) * tall + row) * pitch * 16
        total += tl.load(grad + place[:, None] + key, mask=inside, other=0.0)
    place = (part * H + head).to(tl.int64) * distances + d
    tl.store(sums + place, tl.sum(total, 0), mask=d < distances)
