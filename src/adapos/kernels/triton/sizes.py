"""How calls are cut: chunks of queries whose logits are in memory at one time, and parts of their keys."""

from __future__ import annotations

from dataclasses import dataclass

# of a chunk, all heads: 128 MiB of float32, work enough for the time of its launches not to matter
LOGITS = 2**25
ROWS = 64  # a chunk has a multiple of these queries, or of LEAST where texts are very long
LEAST = 16
CUT = 256  # and as many at least where texts are cut for having many: gradients of keys are added chunk by chunk
STEP = 16  # rows of memory begin at multiples of these numbers; heads and channels are padded to as many
SPAN = 64  # queries that a program of all heads goes through, with what it holds of keys and matrices
FEW = 16  # queries, for which tiles are tried apart from others
MANY = 2**18  # pairs of a text in a chunk, for which they are too
PART = 512  # keys of a part at least
KEPT = 2**14  # numbers of keys, all heads, that a program of all heads keeps while it goes through queries
MATRICES = 2**11  # numbers of a matrix of a mix, all taps, that it keeps likewise; of others some channels at a time
FURTHEST = 2**30  # numbers of a text in a chunk at most, whose places are told in 32 bits
DEEPEST = 65_535  # programs along the last axis of a grid, at most
PROGRAMS = 256  # that a device runs at once, more or less


@dataclass(frozen=True)
class Chunk:
    """Queries of some texts, and all keys that any of them sees."""

    texts: range
    rows: range
    keys: range


def chunks(
    batch: int, queries: int, keys: int, *, heads: int, numbers: int, least: int, start: int, window: int, causal: bool
) -> list[Chunk]:
    """`numbers` are in memory for each pair, and `least` for SPAN queries of a text. `window` is 0 where there is none.

    The last queries come first: they see the most keys, and tiles are tried on what comes first.
    """
    rows, texts = queries, batch
    if numbers:
        room = LOGITS // (numbers * keys)
        # few queries of many texts rather than all of few: a chunk has all keys that its last query sees
        rows = min(queries, room, max(room // batch, CUT))
        if rows < queries:
            rows = max(rows // ROWS * ROWS or rows // LEAST * LEAST, LEAST)
        rows = max(1, min(rows, queries, FURTHEST // (heads * keys)))
        texts = LOGITS // max(numbers * keys * rows, least * -(-rows // SPAN))
    texts = max(1, min(texts, DEEPEST // heads))
    found = []
    for text in range(0, batch, texts):
        for end in range(queries, 0, -rows):
            begin = max(0, end - rows)
            first, last = 0, keys
            if causal:
                last = min(last, start + end)
            if window:
                first, last = max(first, start + begin - window + 1), min(last, start + end - 1 + window)
            first = min(first, keys - 1)  # queries that lie past all keys see nothing of one, too
            last = max(last, first + 1)
            found.append(Chunk(range(text, min(text + texts, batch)), range(begin, end), range(first, last)))
    return found


def parts(chunk: Chunk, heads: int) -> int:
    """Into how many parts the keys are cut where queries are few, for a device to have enough to do."""
    programs = len(chunk.texts) * heads * -(-len(chunk.rows) // ROWS)
    return max(1, min(PROGRAMS // programs, len(chunk.keys) // PART))


def amount(queries: int, keys: int) -> int:
    """Few queries, some pairs or many: lengths in so far as they matter for tiles."""
    return 0 if queries <= FEW else 1 if queries * keys < MANY else 2


def halo(taps: int) -> int:
    """Keys of a tile that are there for the taps of two layers alone."""
    return 4 * (taps // 2)


def whole(count: int) -> int:
    return -(-count // STEP) * STEP


def up(count: int) -> int:
    """The next power of two, as tiles must have, and a product of matrices at least."""
    return max(STEP, 1 << (count - 1).bit_length())
