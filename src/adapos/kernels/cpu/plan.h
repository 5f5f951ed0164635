// How a call is cut into tiles, and keys and values packed for them.
#pragma once

#include <cstdlib>

#include "problem.h"
#include "vectors.h"

namespace {

constexpr int64_t PADDING = -1;  // no document

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t bounded(int64_t x, int64_t low, int64_t high) { return least(most(x, low), high); }
int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t padded(int64_t a, int64_t b) { return divided_up(a, b) * b; }

struct Block {
    char *data;
    int64_t size;
};

// memory that calls have given back, for the next ones: pages new from the system would cost a short call a tenth of
// its time
class Shelf {
  public:
    Block take(int64_t size) {
        if (!__atomic_test_and_set(&busy_, __ATOMIC_ACQUIRE)) {
            for (int at = count_ - 1; at >= 0; at--) {
                if (blocks_[at].size < size || blocks_[at].size > 2 * size) continue;
                const Block found = remove(at);
                __atomic_clear(&busy_, __ATOMIC_RELEASE);
                return found;
            }
            __atomic_clear(&busy_, __ATOMIC_RELEASE);
        }
        return {static_cast<char *>(std::aligned_alloc(64, size_t(size))), size};
    }

    void give(Block block) {
        // whoever finds it busy does without it: a process forked meanwhile would find it so for ever
        if (block.size > MOST || __atomic_test_and_set(&busy_, __ATOMIC_ACQUIRE)) return std::free(block.data);
        while (count_ == PLACES || kept_ + block.size > MOST) std::free(remove(0).data);
        blocks_[count_++] = block, kept_ += block.size;
        __atomic_clear(&busy_, __ATOMIC_RELEASE);
    }

  private:
#ifdef POISON
    static constexpr int64_t MOST = 0;  // or memory used after it was given back would go unseen
#else
    static constexpr int64_t MOST = 64 << 20;
#endif
    static constexpr int PLACES = 128;

    Block remove(int at) {
        const Block found = blocks_[at];
        kept_ -= found.size, count_--;
        std::memmove(blocks_ + at, blocks_ + at + 1, size_t(count_ - at) * sizeof(Block));
        return found;
    }

    bool busy_ = false;
    int count_ = 0;
    int64_t kept_ = 0;
    Block blocks_[PLACES];
};

Shelf shelf;

// one block, handed out in cache lines; asked first for its size
class Arena {
  public:
    void reserve() { block_ = shelf.take(most(used_, 64)), base_ = block_.data, used_ = 0; }
    bool failed() const { return base_ == nullptr; }
    template <class T>
    T *take(int64_t count) {
        T *here = reinterpret_cast<T *>(base_ + used_);
        used_ += padded(count * int64_t(sizeof(T)), 64);
        return here;
    }
    int64_t used() const { return used_; }
    // the first bytes; the rest holds anything, and a NaN where tests look for reads of it
    void zero(int64_t bytes) {
        std::memset(base_, 0, size_t(bytes));
#ifdef POISON
        std::memset(base_ + bytes, 0xff, size_t(used_ - bytes));
#endif
    }
    void release() {
        if (base_) shelf.give(block_);
        base_ = nullptr;
    }

  private:
    Block block_ = {};
    char *base_ = nullptr;
    int64_t used_ = 0;
};

// a table laid out along rising keys: data[c][u] with u = (T - 1 - i) + j + margin for query i and key j
struct Line {
    float *data = nullptr;
    int64_t pitch = 0;
};

struct Range {
    int64_t begin, end;
};

struct Plan {
    const Problem &p;
    int64_t reach, halo, columns, inner, panels, rows, blocks, tiles, pitch, wide_d, wide_e, share;
    int64_t line_length;
    bool packed, backward;
    bool direct;  // so few queries that keys and values are read where they are, once
    bool mixed;
    Line first, second, bias, psi;
    float *k_across = nullptr, *v_along = nullptr, *v_across = nullptr, *k_along = nullptr;
    int32_t *inside_hidden = nullptr, *inside_logit = nullptr, *ones = nullptr;
    Arena arena;

    Plan(const Problem &problem, bool backward_) : p(problem), backward(backward_) {
        mixed = p.w_out != nullptr;
        reach = mixed ? p.taps / 2 : 0, halo = 2 * reach;
        columns = p.columns ? p.columns : 96;
        columns = most(padded(columns, PANEL), padded(2 * halo + 1, PANEL));
        inner = columns - 2 * halo, panels = columns / PANEL;
        // the scores of a tile take half of a usual second-level cache
        int64_t tall =
            p.rows ? p.rows : bounded((backward ? 56 : 80) * 12 * 96 / (p.heads * columns) / TALL * TALL, TALL, 192);
        blocks = divided_up(p.queries, tall);
        rows = padded(divided_up(p.queries, blocks), TALL);
        blocks = divided_up(p.queries, rows);
        tiles = divided_up(p.keys, inner);
        // an odd number of cache lines between rows, or they would meet in the same sets of the cache
        pitch = padded(p.heads * columns, 16);
        if (pitch / 16 % 2 == 0) pitch += 16;
        wide_d = padded(p.width, PANEL), wide_e = padded(p.values, PANEL);
        share = p.heads / p.groups;
        packed = blocks > 2;
        direct = !packed && !backward && p.dtype == FLOAT32 && p.queries * share <= TALL && p.values % PANEL == 0;
        int64_t ahead = p.causal ? rows + columns : p.keys + columns;
        line_length = padded(p.start + p.queries + ahead + 2 * halo + PANEL, 16);
        if (line_length / 16 % 2 == 0) line_length += 16;
    }

    int64_t across_size() const { return panels * p.width * PANEL; }     // of K^T in a tile, per group
    int64_t across_v_size() const { return panels * p.values * PANEL; }  // of V^T
    int64_t along_v_size() const { return columns * wide_e; }            // of V
    int64_t along_k_size() const { return columns * wide_d; }            // of K

    void lay_out() {
        ones = arena.take<int32_t>(columns), inside_hidden = arena.take<int32_t>(columns),
        inside_logit = arena.take<int32_t>(columns);
        if (p.consecutive) {
            first = line(p.first, p.hidden), second = line(p.second, p.heads), bias = line(p.bias, p.heads);
            psi = line(p.psi, 1);
        }
        if (packed) {
            int64_t all = p.batch * p.groups * tiles;
            k_across = arena.take<float>(all * across_size()), v_along = arena.take<float>(all * along_v_size());
            if (backward)
                v_across = arena.take<float>(all * across_v_size()), k_along = arena.take<float>(all * along_k_size());
        }
    }

    Line line(const Table &table, int64_t channels) {
        Line made;
        if (table.data) made.data = arena.take<float>(channels * line_length), made.pitch = line_length;
        return made;
    }

    bool prepare() {
        lay_out();
        arena.reserve();
        if (arena.failed()) return false;
        lay_out();
        for (int64_t x = 0; x < columns; x++) {
            ones[x] = -1;
            inside_hidden[x] = x >= reach && x < columns - reach ? -1 : 0;
            inside_logit[x] = x >= halo && x < columns - halo ? -1 : 0;
        }
        if (p.consecutive) {
            fill(first, p.first, p.hidden), fill(second, p.second, p.heads), fill(bias, p.bias, p.heads);
            fill(psi, p.psi, 1);
        }
        return true;
    }

    // the column of a table at place u of a line
    int64_t column(const Table &table, int64_t u) const {
        int64_t distance = p.start + p.queries - 1 - (u - halo);
        return bounded(distance + table.zero, 0, table.columns - 1);
    }

    void fill(const Line &line, const Table &table, int64_t channels) const {
        if (!table.data) return;
        // the furthest column before `from`, column 0 from `end` on
        const int64_t furthest = p.start + p.queries - 1 + halo + table.zero;
        const int64_t from = bounded(furthest - (table.columns - 1), 0, line_length),
                      end = bounded(furthest, from, line_length);
        for (int64_t c = 0; c < channels; c++) {
            const float *row = table.data + c * table.columns;
            float *to = line.data + c * line.pitch;
            for (int64_t u = 0; u < from; u++) to[u] = row[table.columns - 1];
            for (int64_t u = from; u < end; u++) to[u] = row[furthest - u];
            for (int64_t u = end; u < line_length; u++) to[u] = row[0];
        }
    }

    // where the line of a tile stands for query i
    int64_t place(int64_t i, int64_t key) const { return p.queries - 1 - i + key + halo; }

    // keys that some of the queries [begin, end) may see by order
    Range keys_of(int64_t begin, int64_t end) const {
        Range seen = {0, p.keys};
        if (p.causal) seen.end = least(p.keys, p.start + end);
        if (p.window) {
            seen.begin = most(0, p.start + begin - p.window + 1);
            seen.end = least(seen.end, p.start + end - 1 + p.window);
        }
        return seen;
    }
    Range tiles_of(Range keys) const { return {keys.begin / inner, divided_up(keys.end, inner)}; }
    // a weight of zero does not hide a NaN: padding counts as zeros, whatever it holds
    bool there(int64_t b, int64_t key) const {
        return key >= 0 && key < p.keys && (!p.k_doc || p.k_doc[b * p.keys + key] != PADDING);
    }
    // the key under column 0 of a tile
    int64_t origin(int64_t tile) const { return tile * inner - halo; }
};

// keys of a tile in panels of columns: to[panel][d][column]
void pack_across(const Plan &plan, const View &x, int64_t width, int64_t b, int64_t g, int64_t tile, float *to,
                 float *line) {
    const Problem &p = plan.p;
    for (int64_t panel = 0; panel < plan.panels; panel++, to += width * PANEL) {
        const int64_t key = plan.origin(tile) + panel * PANEL;
        bool all_there = true;
        for (int64_t j = 0; j < PANEL; j++) all_there = all_there && plan.there(b, key + j);
        if (p.dtype == FLOAT32 && all_there) {
            const float *from = reinterpret_cast<const float *>(row_of(x, b, g, key, p.dtype));
            for (int64_t d = 0; d < width; d++)
                for (int j = 0; j < PANEL; j++) to[d * PANEL + j] = from[j * x.token + d];
            continue;
        }
        for (int64_t j = 0; j < PANEL; j++) {
            if (plan.there(b, key + j)) {
                read_row(line, row_of(x, b, g, key + j, p.dtype), width, p.dtype);
                for (int64_t d = 0; d < width; d++) to[d * PANEL + j] = line[d];
            } else {
                for (int64_t d = 0; d < width; d++) to[d * PANEL + j] = 0;
            }
        }
    }
}

// keys of a tile in panels of their width: to[panel][key][column], zero past the width
void pack_along(const Plan &plan, const View &x, int64_t width, int64_t wide, int64_t b, int64_t g, int64_t tile,
                float *to, float *line) {
    std::memset(line, 0, size_t(wide) * 4);
    for (int64_t j = 0; j < plan.columns; j++) {
        const int64_t key = plan.origin(tile) + j;
        const bool there = plan.there(b, key);
        if (there) read_row(line, row_of(x, b, g, key, plan.p.dtype), width, plan.p.dtype);
        for (int64_t c = 0; c < wide; c += LANES)
            store(to + (c / PANEL * plan.columns + j) * PANEL + c % PANEL, there ? load(line + c) : Vec{});
    }
}

}  // namespace
