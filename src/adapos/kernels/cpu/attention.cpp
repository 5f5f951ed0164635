// Attention in tiles of rows x keys, all heads together, with an online softmax; the backward pass recomputes.
//
// A tile holds [row][head][column], so that mixing heads reads adjacent vectors. Its columns are keys with a halo of
// 2r on either side, r = taps / 2: scores are right in all columns, the hidden layer in all but the outer r, logits in
// all but the outer 2r. Every product has the shape of `accumulate`: factors broadcast, panels of PANEL columns.
//
// Compiled once per instruction set; everything but `forward` and `backward` is static.

#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <new>

#include "problem.h"
#include "vectors.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <sched.h>

namespace {

int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t bounded(int64_t x, int64_t low, int64_t high) { return least(most(x, low), high); }
int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t padded(int64_t a, int64_t b) { return divided_up(a, b) * b; }

// one allocation, handed out in cache lines; asked first for its size
class Arena {
  public:
    void reserve() { base_ = static_cast<char *>(std::aligned_alloc(64, size_t(most(used_, 64)))), used_ = 0; }
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
    void release() { std::free(base_), base_ = nullptr; }

  private:
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
    bool mixed, biased;
    Line first, second, bias;
    float *k_across = nullptr, *v_along = nullptr, *v_across = nullptr, *k_along = nullptr;
    int32_t *inside_hidden = nullptr, *inside_logit = nullptr, *ones = nullptr;
    Arena arena;

    Plan(const Problem &problem, bool backward_) : p(problem), backward(backward_) {
        mixed = p.w_out != nullptr;
        biased = p.second.data || p.bias.data || p.ramp_q;
        reach = mixed ? p.taps / 2 : 0, halo = 2 * reach;
        columns = p.columns ? p.columns : 96;
        columns = most(padded(columns, PANEL), padded(2 * halo + 1, PANEL));
        inner = columns - 2 * halo, panels = columns / PANEL;
        // the scores of a tile take half of a usual second-level cache
        int64_t tall = p.rows ? p.rows : bounded((backward ? 56 : 80) * 12 * 96 / (p.heads * columns) / TALL * TALL, TALL, 192);
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
        int64_t ahead = p.causal ? rows + columns : p.keys + columns;
        line_length = padded(p.start + p.queries + ahead + 2 * halo + PANEL, 16);
        if (line_length / 16 % 2 == 0) line_length += 16;
    }

    int64_t across_size() const { return panels * p.width * PANEL; }       // of K^T in a tile, per group
    int64_t across_v_size() const { return panels * p.values * PANEL; }    // of V^T
    int64_t along_v_size() const { return columns * wide_e; }              // of V
    int64_t along_k_size() const { return columns * wide_d; }              // of K

    void lay_out() {
        ones = arena.take<int32_t>(columns), inside_hidden = arena.take<int32_t>(columns), inside_logit = arena.take<int32_t>(columns);
        if (p.consecutive) {
            first = line(p.first, p.hidden), second = line(p.second, p.heads), bias = line(p.bias, p.heads);
        }
        if (packed) {
            int64_t all = p.batch * p.groups * tiles;
            k_across = arena.take<float>(all * across_size()), v_along = arena.take<float>(all * along_v_size());
            if (backward) v_across = arena.take<float>(all * across_v_size()), k_along = arena.take<float>(all * along_k_size());
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
        for (int64_t c = 0; c < channels; c++)
            for (int64_t u = 0; u < line_length; u++)
                line.data[c * line.pitch + u] = table.data[c * table.columns + column(table, u)];
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
    // the key under column 0 of a tile
    int64_t origin(int64_t tile) const { return tile * inner - halo; }
};

// keys of a tile in panels of columns: to[panel][d][column]
void pack_across(const Plan &plan, const View &x, int64_t width, int64_t b, int64_t g, int64_t tile, float *to, float *line) {
    const Problem &p = plan.p;
    for (int64_t panel = 0; panel < plan.panels; panel++, to += width * PANEL) {
        int64_t key = plan.origin(tile) + panel * PANEL;
        if (p.dtype == FLOAT32 && key >= 0 && key + PANEL <= p.keys) {
            const float *from = reinterpret_cast<const float *>(row_of(x, b, g, key, p.dtype));
            for (int64_t d = 0; d < width; d++)
                for (int j = 0; j < PANEL; j++) to[d * PANEL + j] = from[j * x.token + d];
            continue;
        }
        for (int j = 0; j < PANEL; j++, key++) {
            if (key >= 0 && key < p.keys) {
                read_row(line, row_of(x, b, g, key, p.dtype), width, p.dtype);
                for (int64_t d = 0; d < width; d++) to[d * PANEL + j] = line[d];
            } else {
                for (int64_t d = 0; d < width; d++) to[d * PANEL + j] = 0;
            }
        }
    }
}

// rows in panels of their width: to[panel][row][column], zero past the end of either
void pack_along(const View &x, int64_t width, int64_t wide, int64_t b, int64_t head, int64_t begin, int64_t count,
                int64_t limit, int64_t dtype, float *to, float *line) {
    std::memset(line, 0, size_t(wide) * 4);
    for (int64_t j = 0; j < count; j++) {
        int64_t row = begin + j;
        bool there = row >= 0 && row < limit;
        if (there) read_row(line, row_of(x, b, head, row, dtype), width, dtype);
        for (int64_t c = 0; c < wide; c += LANES)
            store(to + (c / PANEL * count + j) * PANEL + c % PANEL, there ? load(line + c) : Vec{});
    }
}

// what one thread works with
struct Worker {
    const Plan &plan;
    const Problem &p;
    Arena arena;

    // of the job at hand
    int64_t b = 0, begin = 0, count = 0, groups = 0;  // text, first query, queries, groups of TALL queries
    // of the tile at hand
    int64_t tile = 0, origin = 0;
    bool whole = true;  // every column is seen by every query
    const float *k_across = nullptr, *v_along = nullptr, *v_across = nullptr, *k_along = nullptr;

    float *score, *hidden, *line, *lines, *bias_row, *q, *gathered, *top, *sums, *fade;
    float *own_k_across, *own_v_along, *own_v_across, *own_k_along;
    int32_t *seen, *seen_hidden, *seen_logit;
    int64_t *distance;
    Range *logit_panels, *hidden_panels, *score_panels;
    int64_t heads_wide, clean = 0;

    // backward
    float *own_scores, *grad, *q_along, *g, *g_along, *weighted, *d_hidden, *d_bias_row, *d_q, *d_ramp_tile;
    float *sum_first, *sum_second, *sum_bias;
    float *lanes_out, *lanes_in, *lanes_bias, *lanes_b_in;
    double *total_out, *total_in, *total_bias, *total_b_in, *line_first, *line_second, *line_bias, *ramp_row, *ramp_keys;

    explicit Worker(const Plan &plan_) : plan(plan_), p(plan_.p) {
        heads_wide = padded(p.heads, LANES);
    }

    int64_t rows() const { return plan.rows; }
    int64_t tile_size() const { return plan.rows * plan.pitch; }
    int64_t sum_pitch() const { return padded(plan.rows + plan.columns, 16); }
    int64_t matrix() const { return p.taps * p.heads * p.hidden; }
    int64_t line_columns(const Table &table) const { return p.consecutive ? plan.line_length : table.columns; }

    void lay_out() {
        const int64_t R = plan.rows, C = plan.columns, H = p.heads, W = p.hidden;
        // a margin on either side, for taps read past the ends of rows
        auto margined = [&](int64_t size) { return arena.take<float>(size + 2 * PANEL) + PANEL; };
        if (plan.backward) {
            d_ramp_tile = arena.take<float>(p.ramp_q ? H * C : 0);
            sum_first = arena.take<float>(p.first.data ? W * sum_pitch() : 0);
            sum_second = arena.take<float>(p.second.data ? H * sum_pitch() : 0);
            sum_bias = arena.take<float>(p.bias.data ? H * sum_pitch() : 0);
            lanes_out = arena.take<float>(matrix() * LANES), lanes_in = arena.take<float>(matrix() * LANES);
            lanes_bias = arena.take<float>(matrix() * LANES), lanes_b_in = arena.take<float>(W * LANES);
            total_out = arena.take<double>(matrix()), total_in = arena.take<double>(matrix());
            total_bias = arena.take<double>(matrix()), total_b_in = arena.take<double>(W);
            line_first = arena.take<double>(p.first.data ? W * line_columns(p.first) : 0);
            line_second = arena.take<double>(p.second.data ? H * line_columns(p.second) : 0);
            line_bias = arena.take<double>(p.bias.data ? H * line_columns(p.bias) : 0);
            ramp_keys = arena.take<double>(p.ramp_q ? p.batch * H * p.keys : 0);
        }
        if (!plan.reach) clean = arena.used();
        score = margined(tile_size());
        hidden = margined(W * C), bias_row = margined(H * C);
        if (plan.backward) {
            own_scores = margined(H * C), grad = margined(tile_size());
            d_hidden = margined(W * C), d_bias_row = margined(H * C);
        }
        // taps read past what a tile has filled
        if (plan.reach) clean = arena.used();
        line = arena.take<float>(most(plan.wide_d, plan.wide_e));
        lines = arena.take<float>(p.consecutive ? 0 : (W + H) * C);
        q = arena.take<float>(H * R * plan.wide_d);
        gathered = arena.take<float>(H * R * plan.wide_e);
        top = arena.take<float>(R * heads_wide), sums = arena.take<float>(R * heads_wide), fade = arena.take<float>(R * heads_wide);
        seen = arena.take<int32_t>(R * C), seen_hidden = arena.take<int32_t>(C), seen_logit = arena.take<int32_t>(C);
        distance = arena.take<int64_t>(C);
        int64_t most_groups = divided_up(R, TALL);
        logit_panels = arena.take<Range>(most_groups), hidden_panels = arena.take<Range>(most_groups);
        score_panels = arena.take<Range>(most_groups);
        if (!plan.packed) {
            own_k_across = arena.take<float>(p.groups * plan.across_size());
            own_v_along = arena.take<float>(p.groups * plan.along_v_size());
        }
        if (!plan.backward) return;
        if (!plan.packed) {
            own_v_across = arena.take<float>(p.groups * plan.across_v_size());
            own_k_along = arena.take<float>(p.groups * plan.along_k_size());
        }
        q_along = arena.take<float>(H * R * plan.wide_d);
        g = arena.take<float>(H * R * plan.wide_e), g_along = arena.take<float>(H * R * plan.wide_e);
        weighted = arena.take<float>(R * heads_wide);
        d_q = arena.take<float>(H * R * plan.wide_d);
        ramp_row = arena.take<double>(H * R);
    }

    bool prepare() {
        lay_out();
        arena.reserve();
        if (arena.failed()) return false;
        lay_out();
        arena.zero(clean);
        return true;
    }

    float *score_of(int64_t row, int64_t h) { return score + row * plan.pitch + h * plan.columns; }
    float *grad_of(int64_t row, int64_t h) { return grad + row * plan.pitch + h * plan.columns; }
    Range rows_of(int64_t group) const { return {group * TALL, least(count, group * TALL + TALL)}; }

    // queries [begin, begin + count) of text b, scaled
    void start(int64_t text, int64_t block) {
        b = text, begin = block * plan.rows, count = least(plan.rows, p.queries - begin), groups = divided_up(count, TALL);
        for (int64_t h = 0; h < p.heads; h++) {
            for (int64_t row = 0; row < count; row++) {
                float *to = q + (h * plan.rows + row) * plan.wide_d;
                read_row(to, row_of(p.q, b, h, begin + row, p.dtype), p.width, p.dtype);
                for (int64_t d = 0; d < p.width; d++) to[d] *= float(p.scale);
            }
        }
    }

    // false where nobody sees anything of the tile
    bool enter(int64_t number) {
        tile = number, origin = plan.origin(tile);
        if (!look()) return false;
        int64_t all = p.groups * (b * plan.tiles + tile);
        if (plan.packed) {
            k_across = plan.k_across + all * plan.across_size(), v_along = plan.v_along + all * plan.along_v_size();
            if (plan.backward)
                v_across = plan.v_across + all * plan.across_v_size(), k_along = plan.k_along + all * plan.along_k_size();
        } else {
            pack_tile(plan, b, tile, own_k_across, own_v_along, own_v_across, own_k_along, line);
            k_across = own_k_across, v_along = own_v_along, v_across = own_v_across, k_along = own_k_along;
        }
        return true;
    }

    static void pack_tile(const Plan &plan, int64_t b, int64_t tile, float *k_across, float *v_along, float *v_across,
                          float *k_along, float *line) {
        const Problem &p = plan.p;
        for (int64_t g = 0; g < p.groups; g++) {
            pack_across(plan, p.k, p.width, b, g, tile, k_across + g * plan.across_size(), line);
            pack_along(p.v, p.values, plan.wide_e, b, g, plan.origin(tile), plan.columns, p.keys, p.dtype,
                       v_along + g * plan.along_v_size(), line);
            if (!plan.backward) continue;
            pack_across(plan, p.v, p.values, b, g, tile, v_across + g * plan.across_v_size(), line);
            pack_along(p.k, p.width, plan.wide_d, b, g, plan.origin(tile), plan.columns, p.keys, p.dtype,
                       k_along + g * plan.along_k_size(), line);
        }
    }

    // which columns are seen by whom
    bool look() {
        const int64_t left = origin, right = origin + plan.columns - 1, low = p.start + begin, high = low + count - 1;
        const int64_t *q_doc = p.q_doc ? p.q_doc + b * p.queries + begin : nullptr;
        const int64_t *k_doc = p.k_doc ? p.k_doc + b * p.keys : nullptr;
        whole = left >= 0 && right < p.keys && !(p.causal && right > low);
        if (p.window) whole = whole && high - left < p.window && right - low < p.window;
        if (whole && k_doc) {
            for (int64_t key = left; key <= right; key++) whole = whole && k_doc[key] == q_doc[0];
            for (int64_t row = 0; row < count; row++) whole = whole && q_doc[row] == q_doc[0];
            whole = whole && q_doc[0] != -1;
        }
        bool any = whole;
        if (!whole) {
            for (int64_t row = 0; row < count; row++) {
                const int64_t own = low + row;
                int64_t from = most(0, left), to = least(p.keys, right + 1);
                if (p.causal) to = least(to, own + 1);
                if (p.window) from = most(from, own - p.window + 1), to = least(to, own + p.window);
                int32_t *mine = seen + row * plan.columns;
                std::memset(mine, 0, size_t(plan.columns) * 4);
                for (int64_t key = from; key < to; key++) {
                    mine[key - left] = !k_doc || (k_doc[key] == q_doc[row] && k_doc[key] != -1) ? -1 : 0;
                }
                for (int64_t x = plan.halo; x < plan.columns - plan.halo; x++) any = any || mine[x];
            }
        }
        if (!any) return false;
        for (int64_t group = 0; group < groups; group++) {
            Range of = rows_of(group), keys = plan.keys_of(begin + of.begin, begin + of.end);
            int64_t from = bounded(keys.begin - origin, plan.halo, plan.columns - plan.halo);
            int64_t to = bounded(keys.end - origin, plan.halo, plan.columns - plan.halo);
            auto around = [&](int64_t extra) -> Range {
                // nothing here: what these queries see ends before the tile, or begins after it
                if (from >= to) return from < plan.columns - plan.halo ? Range{0, 0} : Range{plan.panels, plan.panels};
                return {most(0, from - extra) / PANEL, divided_up(least(plan.columns, to + extra), PANEL)};
            };
            logit_panels[group] = around(0), hidden_panels[group] = around(plan.reach), score_panels[group] = around(plan.halo);
        }
        return true;
    }

    // to[row][head][column] = a . b over `depth`, for the panels that a group of rows needs
    void products(float *to, const float *a, int64_t a_row, const float *across, int64_t across_size, int64_t depth, const Range *needed) {
        for (int64_t h = 0; h < p.heads; h++) {
            const float *panels = across + h / plan.share * across_size;
            for (int64_t group = 0; group < groups; group++) {
                Range of = rows_of(group);
                in_blocks(of.end - of.begin, [&](int64_t first, auto height) INLINE {
                    constexpr int M = decltype(height)::value;
                    int64_t row = of.begin + first;
                    const float *factors = a + (h * plan.rows + row) * a_row;
                    float *at = to + row * plan.pitch + h * plan.columns;
                    for (int64_t panel = needed[group].begin; panel < needed[group].end; panel++) {
                        Vec acc[M][2] = {};
                        accumulate<M>(acc, depth, factors, a_row, 1, panels + panel * depth * PANEL, PANEL);
#pragma GCC unroll 8
                        for (int m = 0; m < M; m++) {
                            store(at + m * plan.pitch + panel * PANEL, acc[m][0]);
                            store(at + m * plan.pitch + panel * PANEL + LANES, acc[m][1]);
                        }
                    }
                });
            }
        }
    }

    void clear_outside(float *rows, int64_t channels, Range panels) {
        if (panels.begin == 0 && panels.end == plan.panels) return;
        for (int64_t c = 0; c < channels; c++, rows += plan.columns) {
            std::memset(rows, 0, size_t(panels.begin * PANEL) * 4);
            std::memset(rows + panels.end * PANEL, 0, size_t((plan.panels - panels.end) * PANEL) * 4);
        }
    }

    // the part of a table under the columns of a row; gathered into `into` where ids decide
    const float *under(const Line &line, const Table &table, int64_t channels, int64_t row, float *into, int64_t &pitch) {
        if (p.consecutive) {
            pitch = line.pitch;
            return line.data + plan.place(begin + row, origin);
        }
        pitch = plan.columns;
        for (int64_t x = 0; x < plan.columns; x++) {
            int64_t column = bounded(distance[x] + table.zero, 0, table.columns - 1);
            for (int64_t c = 0; c < channels; c++) into[c * plan.columns + x] = table.data[c * table.columns + column];
        }
        return into;
    }

    void measure(int64_t row) {
        if (p.consecutive || !(p.first.data || p.second.data || p.bias.data)) return;
        int64_t own = p.q_pos[b * p.queries + begin + row];
        for (int64_t x = 0; x < plan.columns; x++) {
            int64_t key = origin + x;
            distance[x] = key >= 0 && key < p.keys ? own - p.k_pos[b * p.keys + key] : 0;
        }
    }

    // what a row needs beside its scores
    struct Row {
        int64_t number, group;
        float *scores;                   // [head][column]
        const int32_t *seen, *seen_hidden, *seen_logit;
        bool masked;
        bool spelled;                    // the bias goes through the first layer pair by pair
        const float *first, *second;     // lines under the tile
        int64_t first_pitch, second_pitch;
        const float *bias;               // [head][column], zero where not seen; null: none
    };

    Row look_at(int64_t number, int64_t group) {
        Row row = {number, group, score_of(number, 0), plan.ones, plan.inside_hidden, plan.inside_logit, !whole, false, nullptr, nullptr, 0, 0, nullptr};
        if (!whole) {
            row.seen = seen + number * plan.columns;
            if (plan.halo) {
                for (int64_t x = 0; x < plan.columns; x++) {
                    seen_hidden[x] = row.seen[x] & plan.inside_hidden[x];
                    seen_logit[x] = row.seen[x] & plan.inside_logit[x];
                }
                row.seen_hidden = seen_hidden, row.seen_logit = seen_logit;
            } else {
                row.seen_hidden = row.seen_logit = row.seen;
            }
        }
        measure(number);
        row.spelled = plan.mixed && (!p.first.data || (plan.reach && row.masked));
        if (!row.spelled) {
            if (p.first.data) row.first = under(plan.first, p.first, p.hidden, number, lines, row.first_pitch);
            if (p.second.data)
                row.second = under(plan.second, p.second, p.heads, number, lines + p.hidden * plan.columns, row.second_pitch);
        }
        if (row.spelled ? (p.bias.data || p.ramp_q) : p.ramp_q != nullptr) spell(row);
        return row;
    }

    // the bias of a row: table and ramp where the mix reads both, the ramp alone where a line holds the table
    void spell(Row &row) {
        int64_t pitch = 0, length = plan.columns;
        const float *table = nullptr;
        if (row.spelled && p.bias.data) table = under(plan.bias, p.bias, p.heads, row.number, lines, pitch);
        for (int64_t h = 0; h < p.heads; h++) {
            float *to = bias_row + h * length;
            if (p.ramp_q) {
                double own = p.ramp_q[(b * p.heads + h) * p.queries + begin + row.number];
                const double *theirs = p.ramp_k + (b * p.heads + h) * p.keys + origin;
                int64_t from = most(0, -origin), end = least(length, p.keys - origin);
                for (int64_t x = 0; x < from; x++) to[x] = 0;
                for (int64_t x = from; x < end; x++) to[x] = float(own + theirs[x]);
                for (int64_t x = end; x < length; x++) to[x] = 0;
                if (table)
                    for (int64_t x = 0; x < length; x++) to[x] += table[h * pitch + x];
            } else {
                std::memcpy(to, table + h * pitch, size_t(length) * 4);
            }
            if (row.masked)
                for (int64_t x = 0; x < length; x += LANES) store(to + x, kept(load(row.seen + x), load(to + x)));
        }
        row.bias = bias_row;
    }

    void mask_scores(const Row &row) {
        if (!plan.reach) return;
        float *s = row.scores;
        clear_outside(s, p.heads, score_panels[row.group]);
        if (!row.masked) return;
        for (int64_t h = 0; h < p.heads; h++)
            for (int64_t x = 0; x < plan.columns; x += LANES)
                store(s + h * plan.columns + x, kept(load(row.seen + x), load(s + h * plan.columns + x)));
    }

    // hidden[w][column] = leaky(w_in s + w_bias b + ...)
    void hide(const Row &row, const Range panels) {
        const int64_t C = plan.columns, H = p.heads, W = p.hidden, r = plan.reach, taps = p.taps;
        const float *s = row.scores, *first = row.first, *w_in = p.w_in, *w_bias = p.w_bias, *b_in = p.b_in;
        const float *bias = row.spelled ? row.bias : nullptr;
        const int32_t *seen_here = row.seen_hidden;
        const int64_t first_pitch = row.first_pitch;
        const float slope = float(p.slope);
        float *const to = hidden;
        const bool simple = taps == 1 && first && w_in;
        in_blocks(W, [&](int64_t w, auto height) INLINE {
            constexpr int M = decltype(height)::value;
            for (int64_t x = panels.begin * PANEL; x < panels.end * PANEL; x += PANEL) {
                Vec acc[M][2];
                if (simple) {
                    start_from<M>(acc, first + w * first_pitch + x, first_pitch);
                    accumulate<M>(acc, H, w_in + w * H, H, 1, s + x, C);
                } else {
                    if (first) {
                        start_from<M>(acc, first + w * first_pitch + x, first_pitch);
                    } else {
#pragma GCC unroll 8
                        for (int m = 0; m < M; m++) acc[m][0] = acc[m][1] = all(b_in[w + m]);
                    }
                    for (int64_t tap = 0; tap < taps; tap++) {
                        int64_t at = (tap * W + w) * H, shift = x + tap - r;
                        if (w_in) accumulate<M>(acc, H, w_in + at, H, 1, s + shift, C);
                        if (bias) accumulate<M>(acc, H, w_bias + at, H, 1, bias + shift, C);
                    }
                }
#pragma GCC unroll 8
                for (int m = 0; m < M; m++) {
                    Vec left = larger(acc[m][0], acc[m][0] * slope), right = larger(acc[m][1], acc[m][1] * slope);
                    if (r) left = kept(load(seen_here + x), left), right = kept(load(seen_here + x + LANES), right);
                    store(to + (w + m) * C + x, left), store(to + (w + m) * C + x + LANES, right);
                }
            }
        });
    }

    // logits of a row from its scores; in place where `to` is the row of scores
    void logits(const Row &row, float *to, const Range panels) {
        const int64_t C = plan.columns, H = p.heads, W = p.hidden, r = plan.reach, taps = p.taps;
        const float *s = row.scores, *second = row.second, *w_out = p.w_out, *from = hidden;
        const float *b_out = row.spelled ? p.b_out : nullptr, *bias = !plan.mixed || p.added ? row.bias : nullptr;
        const int32_t *seen_here = row.masked || r ? row.seen_logit : nullptr;
        const int64_t second_pitch = row.second_pitch;
        in_blocks(H, [&](int64_t h, auto height) INLINE {
            constexpr int M = decltype(height)::value;
            for (int64_t x = panels.begin * PANEL; x < panels.end * PANEL; x += PANEL) {
                Vec acc[M][2];
                start_from<M>(acc, s + h * C + x, C);
                if (second) add_from<M>(acc, second + h * second_pitch + x, second_pitch);
                if (bias) add_from<M>(acc, bias + h * C + x, C);
                if (b_out) {
#pragma GCC unroll 8
                    for (int m = 0; m < M; m++) acc[m][0] += b_out[h + m], acc[m][1] += b_out[h + m];
                }
                if (w_out && taps == 1) {
                    accumulate<M>(acc, W, w_out + h * W, W, 1, from + x, C);
                } else if (w_out) {
                    for (int64_t tap = 0; tap < taps; tap++)
                        accumulate<M>(acc, W, w_out + (tap * H + h) * W, W, 1, from + x + tap - r, C);
                }
                if (seen_here) {
                    const Mask left = load(seen_here + x), right = load(seen_here + x + LANES);
#pragma GCC unroll 8
                    for (int m = 0; m < M; m++) {
                        acc[m][0] = left ? acc[m][0] : all(-INFINITY), acc[m][1] = right ? acc[m][1] : all(-INFINITY);
                    }
                }
#pragma GCC unroll 8
                for (int m = 0; m < M; m++) store(to + (h + m) * C + x, acc[m][0]), store(to + (h + m) * C + x + LANES, acc[m][1]);
            }
        });
    }

    // scores to logits
    void mix(const Row &row, float *to) {
        if (plan.mixed) {
            hide(row, hidden_panels[row.group]);
            if (plan.reach) clear_outside(hidden, p.hidden, hidden_panels[row.group]);
        }
        logits(row, to, logit_panels[row.group]);
    }

    // logits to weights, exp(logit - top), with the running maximum and sum of each head
    __attribute__((noinline)) void weigh(const Row &row) {
        const int64_t from = logit_panels[row.group].begin * PANEL, end = logit_panels[row.group].end * PANEL;
        const int64_t C = plan.columns, H = p.heads;
        float *const tops = top + row.number * heads_wide, *const totals = sums + row.number * heads_wide;
        float *const fades = fade + row.number * heads_wide, *const logit = score_of(row.number, 0);
        // maxima of all heads before any exponential, or each would wait for its own
        for (int64_t h = 0; h < H; h++) {
            const float *at = logit + h * C;
            Vec left = all(tops[h]), right = left;
            for (int64_t x = from; x < end; x += PANEL) left = larger(load(at + x), left), right = larger(load(at + x + LANES), right);
            const float peak = largest(larger(left, right));
            fades[h] = tops[h] - peak, tops[h] = peak;
        }
        for (int64_t h = 0; h < heads_wide; h += LANES) {
            Vec faded = exponential(load(fades + h));
            store(fades + h, faded), store(totals + h, load(totals + h) * faded);
        }
        for (int64_t h = 0; h < H; h++) {
            float *at = logit + h * C;
            const Vec peak = all(tops[h]);
            Vec left = {}, right = {};
            for (int64_t x = from; x < end; x += PANEL) {
                Vec here = exponential(load(at + x) - peak), there = exponential(load(at + x + LANES) - peak);
                store(at + x, here), store(at + x + LANES, there);
                left += here, right += there;
            }
            totals[h] += sum(left + right);
        }
    }

    // to[head][row][e] = to * fade + weights . values
    __attribute__((noinline)) void gather() {
        for (int64_t h = 0; h < p.heads; h++) {
            const float *values = v_along + h / plan.share * plan.along_v_size();
            for (int64_t group = 0; group < groups; group++) {
                const Range of = rows_of(group), panels = logit_panels[group];
                const int64_t x = panels.begin * PANEL, depth = (panels.end - panels.begin) * PANEL;
                if (!depth) continue;
                in_blocks(of.end - of.begin, [&](int64_t first, auto height) INLINE {
                    constexpr int M = decltype(height)::value;
                    const int64_t row = of.begin + first;
                    float *to = gathered + (h * plan.rows + row) * plan.wide_e;
                    for (int64_t e = 0; e < plan.wide_e; e += PANEL) {
                        Vec acc[M][2] = {};
                        accumulate<M>(acc, depth, score_of(row, h) + x, plan.pitch, 1, values + e * plan.columns + x * PANEL, PANEL);
#pragma GCC unroll 8
                        for (int m = 0; m < M; m++) {
                            const float fading = fade[(row + m) * heads_wide + h];
                            float *at = to + m * plan.wide_e + e;
                            store(at, load(at) * fading + acc[m][0]), store(at + LANES, load(at + LANES) * fading + acc[m][1]);
                        }
                    }
                });
            }
        }
    }

    void forget() {
        for (int64_t i = 0; i < plan.rows * heads_wide; i++) top[i] = -FLT_MAX, sums[i] = 0;
        std::memset(gathered, 0, size_t(p.heads * plan.rows * plan.wide_e) * 4);
    }

    void attend(Range tiles) {
        for (int64_t number = tiles.begin; number < tiles.end; number++) {
            if (!enter(number)) continue;
            products(score, q, plan.wide_d, k_across, plan.across_size(), p.width, score_panels);
            for (int64_t group = 0; group < groups; group++) {
                if (logit_panels[group].begin == logit_panels[group].end) continue;
                Range of = rows_of(group);
                for (int64_t number = of.begin; number < of.end; number++) {
                    Row row = look_at(number, group);
                    mask_scores(row);
                    mix(row, score_of(number, 0));
                    weigh(row);
                }
            }
            gather();
        }
    }

    void write() {
        for (int64_t h = 0; h < p.heads; h++) {
            for (int64_t row = 0; row < count; row++) {
                float total = sums[row * heads_wide + h], share = total == 0 ? 0 : 1 / total;
                float *from = gathered + (h * plan.rows + row) * plan.wide_e;
                for (int64_t e = 0; e < p.values; e++) from[e] *= share;
                write_row(row_of(p.out, b, h, begin + row, p.dtype), from, p.values, p.dtype);
                int64_t at = (b * p.heads + h) * p.queries + begin + row;
                p.top[at] = top[row * heads_wide + h], p.sums[at] = total;
            }
        }
    }

    // backward: gradients of the output divided by the sums of their rows, once for all tiles
    void start_backward() {
        std::memset(d_q, 0, size_t(p.heads * plan.rows * plan.wide_d) * 4);
        std::memset(ramp_row, 0, size_t(p.heads * plan.rows) * 8);
        for (int64_t h = 0; h < p.heads; h++) {
            for (int64_t row = 0; row < count; row++) {
                int64_t at = (b * p.heads + h) * p.queries + begin + row;
                float total = p.sums[at], share = total == 0 ? 0 : 1 / total;
                top[row * heads_wide + h] = p.top[at];
                float *mine = g + (h * plan.rows + row) * plan.wide_e;
                read_row(mine, row_of(p.d_out, b, h, begin + row, p.dtype), p.values, p.dtype);
                read_row(line, row_of(p.out, b, h, begin + row, p.dtype), p.values, p.dtype);
                // summed as `products` sums: where a query sees one key, the gradient of its logit is exactly zero
                float dot = 0;
                for (int64_t e = 0; e < p.values; e++) mine[e] *= share, dot += mine[e] * line[e];
                weighted[row * heads_wide + h] = dot;
                in_panels(g_along + h * plan.rows * plan.wide_e, mine, row, plan.wide_e);
                in_panels(q_along + h * plan.rows * plan.wide_d, q + (h * plan.rows + row) * plan.wide_d, row, plan.wide_d);
            }
        }
    }

    void in_panels(float *to, const float *from, int64_t row, int64_t wide) {
        for (int64_t c = 0; c < wide; c += LANES) store(to + (c / PANEL * plan.rows + row) * PANEL + c % PANEL, load(from + c));
    }

    // sums[c][place of the row + x] += from[c][x]
    void collect(float *sums, double *line, const Table &table, int64_t channels, const float *from, const Row &row, Range panels) {
        const int64_t C = plan.columns;
        if (p.consecutive) {
            for (int64_t c = 0; c < channels; c++) {
                float *to = sums + c * sum_pitch() + plan.rows - 1 - row.number;
                const float *x = from + c * C;
                for (int64_t at = panels.begin * PANEL; at < panels.end * PANEL; at += LANES) store(to + at, load(to + at) + load(x + at));
            }
            return;
        }
        for (int64_t x = panels.begin * PANEL; x < panels.end * PANEL; x++) {
            int64_t column = bounded(distance[x] + table.zero, 0, table.columns - 1);
            for (int64_t c = 0; c < channels; c++) line[c * table.columns + column] += from[c * C + x];
        }
    }

    // the sums of a tile go to the line, in double: they cancel heavily
    void flush(float *sums, double *line, int64_t channels) {
        if (!p.consecutive) return;
        const int64_t base = p.queries - begin - plan.rows + origin + plan.halo;
        const int64_t from = plan.rows - count, end = least(plan.rows - 1 + plan.columns, plan.line_length - base);
        for (int64_t c = 0; c < channels; c++) {
            double *to = line + c * plan.line_length + base;
            float *x = sums + c * sum_pitch();
            for (int64_t at = from; at < end; at++) to[at] += x[at];
            std::memset(x, 0, size_t(sum_pitch()) * 4);
        }
    }

    // lanes[tap][h][w] += a[h][x + shift_a] * c[w][x + shift_c], summed over the columns of some panels, lane by lane
    template <int A, int N>
    void outer(float *lanes, const float *a, const float *c, Range panels) {
        Vec acc[A][N] = {};
        for (int64_t x = panels.begin * PANEL; x < panels.end * PANEL; x += LANES) {
            Vec right[N];
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) right[n] = load(c + n * plan.columns + x);
#pragma GCC unroll 4
            for (int m = 0; m < A; m++) {
                Vec left = load(a + m * plan.columns + x);
#pragma GCC unroll 4
                for (int n = 0; n < N; n++) acc[m][n] += left * right[n];
            }
        }
#pragma GCC unroll 4
        for (int m = 0; m < A; m++)
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) {
                float *to = lanes + (m * p.hidden + n) * LANES;
                store(to, load(to) + acc[m][n]);
            }
    }

    void outers(float *lanes, const float *a, int64_t step_a, const float *c, int64_t step_c, Range panels) {
        const int64_t H = p.heads, W = p.hidden, C = plan.columns;
        for (int64_t tap = 0; tap < p.taps; tap++) {
            const float *left = a + (tap - plan.reach) * step_a, *right = c + (tap - plan.reach) * step_c;
            for (int64_t h = 0; h < H; h += 3) {
                for (int64_t w = 0; w < W; w += 4) {
                    float *to = lanes + ((tap * H + h) * W + w) * LANES;
                    const float *x = left + h * C, *y = right + w * C;
                    switch (least(3, H - h) * 4 + least(4, W - w)) {
                        case 16: outer<3, 4>(to, x, y, panels); break;
                        case 15: outer<3, 3>(to, x, y, panels); break;
                        case 14: outer<3, 2>(to, x, y, panels); break;
                        case 13: outer<3, 1>(to, x, y, panels); break;
                        case 12: outer<2, 4>(to, x, y, panels); break;
                        case 11: outer<2, 3>(to, x, y, panels); break;
                        case 10: outer<2, 2>(to, x, y, panels); break;
                        case 9: outer<2, 1>(to, x, y, panels); break;
                        case 8: outer<1, 4>(to, x, y, panels); break;
                        case 7: outer<1, 3>(to, x, y, panels); break;
                        case 6: outer<1, 2>(to, x, y, panels); break;
                        default: outer<1, 1>(to, x, y, panels); break;
                    }
                }
            }
        }
    }

    void add_up(float *lanes, double *total, int64_t size) {
        for (int64_t i = 0; i < size; i++) {
            double all_lanes = 0;
            for (int lane = 0; lane < LANES; lane++) all_lanes += lanes[i * LANES + lane];
            total[i] += all_lanes;
        }
        std::memset(lanes, 0, size_t(size * LANES) * 4);
    }

    // to[m][x] (+)= sum over taps and n of weights[tap][n][m] * from[n][x - (tap - r)]: back through a layer
    template <class Start, class Finish>
    void back(int64_t outputs, int64_t inputs, const float *weights, int64_t step_m, int64_t step_n, const float *from,
              Range panels, Start &&start, Finish &&finish) {
        in_blocks(outputs, [&](int64_t first, auto height) INLINE {
            constexpr int M = decltype(height)::value;
            for (int64_t x = panels.begin * PANEL; x < panels.end * PANEL; x += PANEL) {
                Vec acc[M][2];
#pragma GCC unroll 8
                for (int m = 0; m < M; m++) acc[m][0] = start(first + m, x), acc[m][1] = start(first + m, x + LANES);
                for (int64_t tap = 0; tap < p.taps; tap++)
                    accumulate<M>(acc, inputs, weights + tap * outputs * inputs + first * step_m, step_m, step_n,
                                  from + x - (tap - plan.reach), plan.columns);
#pragma GCC unroll 8
                for (int m = 0; m < M; m++) finish(first + m, x, acc[m][0]), finish(first + m, x + LANES, acc[m][1]);
            }
        });
    }

    // from the row's scores and the gradient of its weights to the gradient of its scores, which takes the latter's place
    void differentiate(Row row) {
        const int64_t C = plan.columns, H = p.heads, W = p.hidden;
        // weights take the place of the scores in the tile, and the scores are kept for one row
        float *s = own_scores, *weights = row.scores, *d = grad_of(row.number, 0);
        std::memcpy(s, weights, size_t(H * C) * 4);
        row.scores = s;
        const Range panels = logit_panels[row.group], middle = hidden_panels[row.group], outermost = score_panels[row.group];
        const bool masks = row.masked || plan.reach;
        mask_scores(row);
        mix(row, weights);
        for (int64_t h = 0; h < H; h++) {
            const float peak = top[row.number * heads_wide + h], mean = weighted[row.number * heads_wide + h];
            for (int64_t x = h * C + panels.begin * PANEL; x < h * C + panels.end * PANEL; x += LANES) {
                Vec p_here = exponential(load(weights + x) - peak), d_here = p_here * (load(d + x) - mean);
                if (masks) d_here = kept(load(row.seen_logit + x - h * C), d_here);
                store(weights + x, p_here), store(d + x, d_here);
            }
        }
        clear_outside(weights, H, panels), clear_outside(d, H, panels);
        if (row.second) collect(sum_second, line_second, p.second, H, d, row, panels);
        if (!plan.mixed) {
            if (row.bias) collect_bias(row, d, panels);
            return;
        }
        outers(lanes_out, d, 0, hidden, 1, panels);
        const float slope = float(p.slope);
        back(
            W, H, p.w_out, 1, W, d, middle, [](int64_t, int64_t) INLINE { return Vec{}; },
            [&](int64_t w, int64_t x, Vec grad) INLINE {
                Vec through = load(hidden + w * C + x) > 0.0f ? grad : grad * slope;
                if (plan.reach) through = kept(load(row.seen_hidden + x), through);
                store(d_hidden + w * C + x, through);
            });
        if (plan.reach) clear_outside(d_hidden, W, middle);
        if (p.w_in) outers(lanes_in, s, 1, d_hidden, 0, middle);
        if (row.first) collect(sum_first, line_first, p.first, W, d_hidden, row, middle);
        if (row.spelled) {
            for (int64_t w = 0; w < W; w++) {
                Vec total = load(lanes_b_in + w * LANES);
                for (int64_t x = middle.begin * PANEL; x < middle.end * PANEL; x += LANES) total += load(d_hidden + w * C + x);
                store(lanes_b_in + w * LANES, total);
            }
            if (row.bias) {
                outers(lanes_bias, row.bias, 1, d_hidden, 0, middle);
                back(
                    H, W, p.w_bias, 1, H, d_hidden, outermost,
                    [&](int64_t h, int64_t x) INLINE { return p.added ? load(d + h * C + x) : Vec{}; },
                    [&](int64_t h, int64_t x, Vec grad) INLINE {
                        store(d_bias_row + h * C + x, kept(load(row.seen + x), grad));
                    });
                collect_bias(row, d_bias_row, outermost);
            }
        }
        if (!p.w_in) return;
        back(
            H, W, p.w_in, 1, H, d_hidden, outermost, [&](int64_t h, int64_t x) INLINE { return load(d + h * C + x); },
            [&](int64_t h, int64_t x, Vec grad) INLINE {
                if (plan.reach) grad = kept(load(row.seen + x), grad);
                store(d + h * C + x, grad);
            });
    }

    void collect_bias(const Row &row, const float *from, Range panels) {
        if (row.spelled && p.bias.data) collect(sum_bias, line_bias, p.bias, p.heads, from, row, panels);
        if (!p.ramp_q) return;
        for (int64_t h = 0; h < p.heads; h++) {
            Vec total = {};
            for (int64_t x = panels.begin * PANEL; x < panels.end * PANEL; x += LANES) {
                Vec here = load(from + h * plan.columns + x);
                float *to = d_ramp_tile + h * plan.columns + x;
                store(to, load(to) + here);
                total += here;
            }
            ramp_row[h * plan.rows + row.number] += sum(total);
        }
    }

    // d_q[head][row] += gradient of scores . keys
    void collect_queries() {
        for (int64_t h = 0; h < p.heads; h++) {
            const float *keys = k_along + h / plan.share * plan.along_k_size();
            for (int64_t group = 0; group < groups; group++) {
                const Range of = rows_of(group), panels = score_panels[group];
                const int64_t x = panels.begin * PANEL, depth = (panels.end - panels.begin) * PANEL;
                if (!depth) continue;
                in_blocks(of.end - of.begin, [&](int64_t first, auto height) INLINE {
                    constexpr int M = decltype(height)::value;
                    const int64_t row = of.begin + first;
                    float *to = d_q + (h * plan.rows + row) * plan.wide_d;
                    for (int64_t c = 0; c < plan.wide_d; c += PANEL)
                        add_product<M>(to + c, plan.wide_d, depth, grad_of(row, h) + x, plan.pitch, 1, keys + c * plan.columns + x * PANEL);
                });
            }
        }
    }

    template <int M>
    void add_product(float *to, int64_t pitch, int64_t depth, const float *a, int64_t a_row, int64_t a_k, const float *panel) {
        // what it is added to may come from afar: it is called for now, and read last
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) __builtin_prefetch(to + m * pitch, 1);
        Vec acc[M][2] = {};
        accumulate<M>(acc, depth, a, a_row, a_k, panel, PANEL);
        add_from<M>(acc, to, pitch);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) store(to + m * pitch, acc[m][0]), store(to + m * pitch + LANES, acc[m][1]);
    }

    // to[key] += from[row][head][column]^T . rows[head][row], over keys that exist
    void collect_keys(const View &to, const float *from, const float *along, int64_t wide, const Range *needed, int64_t edge) {
        const int64_t x_begin = most(edge, -origin), x_end = least(plan.columns - edge, p.keys - origin);
        for (int64_t h = 0; h < p.heads; h++) {
            const float *rows = along + h * plan.rows * wide;
            float *target = reinterpret_cast<float *>(row_of(to, b, h / plan.share, 0, FLOAT32));
            int64_t low = 0, high = 0;  // rows that need some of the keys at hand
            in_blocks(x_end - x_begin, [&](int64_t first, auto height) INLINE {
                constexpr int M = decltype(height)::value;
                const int64_t x = x_begin + first;
                while (low < groups && needed[low].end * PANEL <= x) low++;
                while (high < groups && needed[high].begin * PANEL < x + M) high++;
                const int64_t begin_row = low * TALL, depth = least(count, high * TALL) - begin_row;
                if (depth <= 0) return;
                for (int64_t c = 0; c < wide; c += PANEL)
                    add_product<M>(target + (origin + x) * to.token + c, to.token, depth,
                                   from + begin_row * plan.pitch + h * plan.columns + x, 1, plan.pitch,
                                   rows + c * plan.rows + begin_row * PANEL);
            });
        }
    }

    void collect_ramp_keys() {
        if (!p.ramp_q) return;
        for (int64_t h = 0; h < p.heads; h++) {
            double *to = ramp_keys + (b * p.heads + h) * p.keys;
            float *from = d_ramp_tile + h * plan.columns;
            for (int64_t x = most(0, -origin); x < least(plan.columns, p.keys - origin); x++) to[origin + x] += from[x];
            std::memset(from, 0, size_t(plan.columns) * 4);
        }
    }

    void write_backward() {
        for (int64_t h = 0; h < p.heads; h++) {
            for (int64_t row = 0; row < count; row++) {
                float *from = d_q + (h * plan.rows + row) * plan.wide_d;
                for (int64_t d = 0; d < p.width; d++) from[d] *= float(p.scale);
                write_row(row_of(p.d_q, b, h, begin + row, p.dtype), from, p.width, p.dtype);
                if (p.ramp_q) p.d_ramp_q[(b * p.heads + h) * p.queries + begin + row] = ramp_row[h * plan.rows + row];
            }
        }
    }

    // all that the tiles of a job give but the gradients of keys and values
    void differentiate_tile() {
        products(score, q, plan.wide_d, k_across, plan.across_size(), p.width, score_panels);
        products(grad, g, plan.wide_e, v_across, plan.across_v_size(), p.values, logit_panels);
        for (int64_t group = 0; group < groups; group++) {
            Range of = rows_of(group);
            for (int64_t number = of.begin; number < of.end; number++) {
                if (logit_panels[group].begin == logit_panels[group].end) continue;
                differentiate(look_at(number, group));
            }
        }
        collect_queries();
        flush_all();
    }

    void flush_all() {
        if (p.first.data) flush(sum_first, line_first, p.hidden);
        if (p.second.data) flush(sum_second, line_second, p.heads);
        if (p.bias.data) flush(sum_bias, line_bias, p.heads);
        if (!plan.mixed) return;
        add_up(lanes_out, total_out, matrix());
        if (p.w_in) add_up(lanes_in, total_in, matrix());
        if (p.w_bias) add_up(lanes_bias, total_bias, matrix());
        add_up(lanes_b_in, total_b_in, p.hidden);
    }
};

void wait_a_little(int &spins) {
#if defined(__x86_64__)
    _mm_pause();
#endif
    if (++spins % 256 == 0) sched_yield();
}

// queries of a job against some of its tiles; several parts of a job are put together by whoever is last
struct Forward {
    Plan &plan;
    Worker *workers;
    int64_t splits, next_tile, next_part;
    int64_t *left;        // parts of a job that are not done yet
    float *tops, *totals, *outs;  // of parts

    int64_t jobs() const { return plan.p.batch * plan.blocks; }
    int64_t row_size() const { return plan.rows * padded(plan.p.heads, LANES); }
    int64_t out_size() const { return plan.p.heads * plan.rows * plan.wide_e; }

    static void pack(void *context, int index, int) {
        Forward &self = *static_cast<Forward *>(context);
        Plan &plan = self.plan;
        int64_t part;
        while ((part = __atomic_fetch_add(&self.next_tile, 1, __ATOMIC_RELAXED)) < plan.p.batch * plan.tiles) {
            int64_t at = part * plan.p.groups;
            Worker::pack_tile(plan, part / plan.tiles, part % plan.tiles, plan.k_across + at * plan.across_size(),
                              plan.v_along + at * plan.along_v_size(), plan.v_across + at * plan.across_v_size(),
                              plan.k_along + at * plan.along_k_size(), self.workers[index].line);
        }
    }

    static void work(void *context, int index, int) {
        Forward &self = *static_cast<Forward *>(context);
        int64_t part;
        while ((part = __atomic_fetch_add(&self.next_part, 1, __ATOMIC_RELAXED)) < self.jobs() * self.splits)
            self.run(self.workers[index], part / self.splits, part % self.splits);
    }

    void run(Worker &worker, int64_t job, int64_t split) {
        // long rows first, or the last one would be waited for
        const int64_t text = job % plan.p.batch, block = plan.blocks - 1 - job / plan.p.batch;
        worker.start(text, block);
        worker.forget();
        Range all = plan.tiles_of(plan.keys_of(worker.begin, worker.begin + worker.count));
        int64_t size = all.end - all.begin;
        worker.attend({all.begin + size * split / splits, all.begin + size * (split + 1) / splits});
        if (splits > 1) {
            int64_t at = job * splits + split;
            std::memcpy(tops + at * row_size(), worker.top, size_t(row_size()) * 4);
            std::memcpy(totals + at * row_size(), worker.sums, size_t(row_size()) * 4);
            std::memcpy(outs + at * out_size(), worker.gathered, size_t(out_size()) * 4);
            if (__atomic_sub_fetch(&left[job], 1, __ATOMIC_ACQ_REL) > 0) return;
            merge(worker, job);
        }
        worker.write();
    }

    void merge(Worker &worker, int64_t job) {
        worker.forget();
        const int64_t wide = padded(plan.p.heads, LANES), first = job * splits;
        for (int64_t row = 0; row < worker.count; row++) {
            for (int64_t h = 0; h < plan.p.heads; h++) {
                const int64_t at = row * wide + h;
                float peak = -FLT_MAX;
                for (int64_t s = first; s < first + splits; s++) peak = std::fmax(peak, tops[s * row_size() + at]);
                worker.top[at] = peak;
                float *to = worker.gathered + (h * plan.rows + row) * plan.wide_e;
                for (int64_t s = first; s < first + splits; s++) {
                    float faded = std::exp(tops[s * row_size() + at] - peak);
                    worker.sums[at] += totals[s * row_size() + at] * faded;
                    const float *from = outs + s * out_size() + (h * plan.rows + row) * plan.wide_e;
                    for (int64_t e = 0; e < plan.p.values; e++) to[e] += from[e] * faded;
                }
            }
        }
    }
};

constexpr int64_t OWN_SUMS = 1 << 26;  // numbers, in sums of threads' own

// jobs are dealt beforehand, and add to keys and values in the order of their numbers: the same bits from run to run
struct Backward {
    Plan &plan;
    Worker *workers;
    int64_t *progress;  // of a job: tiles below this are done
    bool apart;         // every thread adds to keys and values of its own; else in the order of jobs
    View *d_k, *d_v;    // of each thread: float32, as wide as panels

    static void work(void *context, int index, int count) {
        Backward &self = *static_cast<Backward *>(context);
        const int64_t jobs = self.plan.p.batch * self.plan.blocks;
        for (int64_t job = 0; job < jobs; job++) {
            // there and back again, so that long and short rows are shared alike
            int64_t turn = job % (2 * count);
            if ((turn < count ? turn : 2 * count - 1 - turn) == index) self.run(self.workers[index], job);
        }
    }

    void run(Worker &worker, int64_t job) {
        const int64_t own = apart ? &worker - workers : 0;
        const int64_t text = job / plan.blocks, nth = job % plan.blocks;
        worker.start(text, plan.blocks - 1 - nth);
        worker.start_backward();
        Range tiles = plan.tiles_of(plan.keys_of(worker.begin, worker.begin + worker.count));
        // a tile touches keys of its neighbours through its halo
        const int64_t ahead = 1 + divided_up(2 * plan.halo, plan.inner);
        for (int64_t tile = tiles.begin; tile < tiles.end; tile++) {
            const bool there = worker.enter(tile);
            if (there) worker.differentiate_tile();
            int spins = 0;
            while (nth && !apart && __atomic_load_n(&progress[job - 1], __ATOMIC_ACQUIRE) < tile + ahead) wait_a_little(spins);
            if (there) {
                worker.collect_keys(d_v[own], worker.score, worker.g_along, plan.wide_e, worker.logit_panels, plan.halo);
                worker.collect_keys(d_k[own], worker.grad, worker.q_along, plan.wide_d, worker.score_panels, 0);
                worker.collect_ramp_keys();
            }
            __atomic_store_n(&progress[job], tile + 1, __ATOMIC_RELEASE);
        }
        __atomic_store_n(&progress[job], INT64_MAX, __ATOMIC_RELEASE);
        worker.write_backward();
    }

    // each thread a part of the keys: the sums of all threads, in the dtype of the gradients
    static void add_up(void *context, int index, int count) {
        Backward &self = *static_cast<Backward *>(context);
        self.add_up(self.d_k, self.plan.p.d_k, self.plan.p.width, index, count);
        self.add_up(self.d_v, self.plan.p.d_v, self.plan.p.values, index, count);
    }

    void add_up(const View *sums, const View &to, int64_t width, int64_t index, int64_t count) {
        const Problem &p = plan.p;
        for (int64_t row = p.batch * p.groups * p.keys * index / count; row < p.batch * p.groups * p.keys * (index + 1) / count; row++) {
            const int64_t b = row / (p.groups * p.keys), g = row / p.keys % p.groups, key = row % p.keys;
            float *first = reinterpret_cast<float *>(row_of(sums[0], b, g, key, FLOAT32));
            for (int64_t t = 1; apart && t < p.threads; t++) {
                const float *other = reinterpret_cast<float *>(row_of(sums[t], b, g, key, FLOAT32));
                for (int64_t d = 0; d < width; d++) first[d] += other[d];
            }
            if (sums[0].data != to.data) write_row(row_of(to, b, g, key, p.dtype), first, width, p.dtype);
        }
    }

    void finish() {
        const Problem &p = plan.p;
        table(p.first, p.hidden, [](Worker &w) { return w.line_first; });
        table(p.second, p.heads, [](Worker &w) { return w.line_second; });
        table(p.bias, p.heads, [](Worker &w) { return w.line_bias; });
        const int64_t H = p.heads, W = p.hidden;
        auto matrix = [&](float *to, bool turned, auto of) {
            if (!to) return;
            for (int64_t tap = 0; tap < p.taps; tap++)
                for (int64_t h = 0; h < H; h++)
                    for (int64_t w = 0; w < W; w++) {
                        double total = 0;
                        for (int64_t t = 0; t < p.threads; t++) total += of(workers[t])[(tap * H + h) * W + w];
                        to[tap * H * W + (turned ? w * H + h : h * W + w)] = float(total);
                    }
        };
        matrix(p.d_w_out, false, [](Worker &w) { return w.total_out; });
        matrix(p.d_w_in, true, [](Worker &w) { return w.total_in; });
        matrix(p.d_w_bias, true, [](Worker &w) { return w.total_bias; });
        for (int64_t i = 0; p.ramp_q && i < p.batch * H * p.keys; i++) {
            p.d_ramp_k[i] = 0;
            for (int64_t t = 0; t < p.threads; t++) p.d_ramp_k[i] += workers[t].ramp_keys[i];
        }
        for (int64_t w = 0; p.d_b_in && w < W; w++) {
            double total = 0;
            for (int64_t t = 0; t < p.threads; t++) total += workers[t].total_b_in[w];
            p.d_b_in[w] = float(total);
        }
    }

    template <class Of>
    void table(const Table &table, int64_t channels, Of &&of) {
        if (!table.data) return;
        const int64_t length = plan.p.consecutive ? plan.line_length : table.columns;
        double *total = of(workers[0]);
        for (int64_t t = 1; t < plan.p.threads; t++)
            for (int64_t i = 0; i < channels * length; i++) total[i] += of(workers[t])[i];
        for (int64_t c = 0; c < channels; c++) {
            double *line = total + c * length;
            if (plan.p.consecutive) {
                // several places may share the columns at the ends of a table
                double running = 0;
                float *to = table.grad + c * table.columns;
                std::memset(to, 0, size_t(table.columns) * 4);
                for (int64_t u = 0; u < length; u++) {
                    running += line[u];
                    if (u + 1 == length || plan.column(table, u + 1) != plan.column(table, u))
                        to[plan.column(table, u)] = float(running), running = 0;
                }
            } else {
                for (int64_t i = 0; i < length; i++) table.grad[c * length + i] = float(line[i]);
            }
        }
    }
};

// workers ready for every thread; null where memory ran out
Worker *hired(const Plan &plan) {
    Worker *workers = static_cast<Worker *>(std::aligned_alloc(64, size_t(padded(plan.p.threads * int64_t(sizeof(Worker)), 64))));
    if (!workers) return nullptr;
    for (int64_t t = 0; t < plan.p.threads; t++) {
        new (workers + t) Worker(plan);
        if (workers[t].prepare()) continue;
        for (int64_t made = 0; made < t; made++) workers[made].arena.release();
        std::free(workers);
        return nullptr;
    }
    return workers;
}

void dismiss(Worker *workers, const Plan &plan) {
    for (int64_t t = 0; t < plan.p.threads; t++) workers[t].arena.release();
    std::free(workers);
}

void clear(const Problem &p, const View &view, int64_t wide) {
    for (int64_t b = 0; b < p.batch; b++)
        for (int64_t g = 0; g < p.groups; g++)
            for (int64_t key = 0; key < p.keys; key++) std::memset(row_of(view, b, g, key, FLOAT32), 0, size_t(wide) * 4);
}

}  // namespace

#define JOINED_(a, b) a##_##b
#define JOINED(a, b) JOINED_(a, b)

extern "C" int JOINED(adapos_forward, TARGET)(const Problem *problem, Parallel parallel) {
    Plan plan(*problem, false);
    const int64_t threads = problem->threads;
    int64_t splits = 1, jobs = problem->batch * plan.blocks;
    if (threads > 1 && jobs < 2 * threads) splits = bounded(divided_up(2 * threads, jobs), 1, most(1, plan.tiles / 2));
    if (!plan.prepare()) return 1;
    Worker *workers = hired(plan);
    Arena parts;
    Forward forward = {plan, workers, splits, 0, 0, nullptr, nullptr, nullptr, nullptr};
    auto lay_out = [&] {
        forward.left = parts.take<int64_t>(jobs);
        if (splits == 1) return;
        forward.tops = parts.take<float>(jobs * splits * forward.row_size());
        forward.totals = parts.take<float>(jobs * splits * forward.row_size());
        forward.outs = parts.take<float>(jobs * splits * forward.out_size());
    };
    lay_out();
    parts.reserve();
    const bool enough = workers && !parts.failed();
    if (enough) {
        lay_out();
        for (int64_t job = 0; job < jobs; job++) forward.left[job] = splits;
        if (plan.packed) parallel(int(threads), Forward::pack, &forward);
        parallel(int(least(threads, jobs * splits)), Forward::work, &forward);
    }
    if (workers) dismiss(workers, plan);
    parts.release();
    plan.arena.release();
    return enough ? 0 : 1;
}

extern "C" int JOINED(adapos_backward, TARGET)(const Problem *problem, Parallel parallel) {
    const Problem &p = *problem;
    Plan plan(p, true);
    if (!plan.prepare()) return 1;
    Worker *workers = hired(plan);
    Forward packing = {plan, workers, 1, 0, 0, nullptr, nullptr, nullptr, nullptr};
    Arena sums;
    const int64_t jobs = p.batch * plan.blocks, rows = p.batch * p.groups * p.keys;
    // sums of each thread's own while they are small; else all add to one, each in its turn
    const bool apart = (p.threads - 1) * rows * (plan.wide_d + plan.wide_e) <= OWN_SUMS;
    Backward backward = {plan, workers, nullptr, apart, nullptr, nullptr};
    auto lay_out = [&] {
        backward.progress = sums.take<int64_t>(jobs);
        backward.d_k = sums.take<View>(p.threads), backward.d_v = sums.take<View>(p.threads);
    };
    auto view_of = [&](int64_t wide) {
        return View{sums.take<float>(rows * wide), p.groups * p.keys * wide, p.keys * wide, wide};
    };
    // the gradients themselves are the first sum where they have room
    const bool k_fits = p.dtype == FLOAT32 && p.width == plan.wide_d, v_fits = p.dtype == FLOAT32 && p.values == plan.wide_e;
    auto lay_out_sums = [&](bool ready) {
        for (int64_t t = 0; t < (apart ? p.threads : 1); t++) {
            View k = t == 0 && k_fits ? p.d_k : view_of(plan.wide_d), v = t == 0 && v_fits ? p.d_v : view_of(plan.wide_e);
            if (ready) backward.d_k[t] = k, backward.d_v[t] = v;
        }
    };
    lay_out();
    lay_out_sums(false);
    sums.reserve();
    const bool enough = workers && !sums.failed();
    if (enough) {
        lay_out();
        lay_out_sums(true);
        for (int64_t job = 0; job < jobs; job++) backward.progress[job] = 0;
        for (int64_t t = 0; t < (apart ? p.threads : 1); t++)
            clear(p, backward.d_k[t], plan.wide_d), clear(p, backward.d_v[t], plan.wide_e);
        if (plan.packed) parallel(int(p.threads), Forward::pack, &packing);
        parallel(int(p.threads), Backward::work, &backward);
        parallel(int(p.threads), Backward::add_up, &backward);
        backward.finish();
    }
    if (workers) dismiss(workers, plan);
    sums.release();
    plan.arena.release();
    return enough ? 0 : 1;
}
