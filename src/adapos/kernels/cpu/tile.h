// One thread's hands on a tile: what is seen of it, its scores, and the way from scores to logits.
#pragma once

#include <cmath>
#include <new>

#include "plan.h"

namespace {

struct Worker {
    const Plan &plan;
    const Problem &p;
    Arena arena;
    const int64_t heads_wide;
    int64_t clean = 0;     // bytes of the arena that start at zero
    bool working = false;  // it has had a job

    // of the job at hand: text, first query, queries, groups of TALL queries
    int64_t b = 0, begin = 0, count = 0, groups = 0;
    // of the tile at hand
    int64_t tile = 0, origin = 0;
    bool whole = true;  // every column is seen by every query
    const float *k_across = nullptr, *v_along = nullptr, *v_across = nullptr, *k_along = nullptr;
    Range *logit_panels, *hidden_panels, *score_panels;  // that a group of queries needs

    float *score, *hidden, *bias_row, *line, *lines, *q, *top, *ratio, *units;
    float *own_k_across, *own_v_along, *own_v_across, *own_k_along;
    int32_t *seen, *seen_hidden, *seen_logit;
    int64_t *distance;

    explicit Worker(const Plan &plan_) : plan(plan_), p(plan_.p), heads_wide(padded(plan_.p.heads, LANES)) {}

    int64_t tile_size() const { return plan.rows * plan.pitch; }

    // with a margin on either side, for taps read past the ends of rows
    float *margined(int64_t size) { return arena.take<float>(size + 2 * PANEL) + PANEL; }

    void lay_out_tile() {
        score = margined(tile_size());
        hidden = margined(p.hidden * plan.columns), bias_row = margined(p.heads * plan.columns);
    }

    void lay_out_rest() {
        const int64_t R = plan.rows, C = plan.columns, H = p.heads, most_groups = divided_up(R, TALL);
        line = arena.take<float>(most(plan.wide_d, plan.wide_e));
        lines = arena.take<float>(p.consecutive ? 0 : (p.hidden + H) * C);
        ratio = arena.take<float>(p.units ? C : 0), units = arena.take<float>(p.units * C);
        q = arena.take<float>(H * R * plan.wide_d);
        top = arena.take<float>(R * heads_wide);
        seen = arena.take<int32_t>(R * C), seen_hidden = arena.take<int32_t>(C), seen_logit = arena.take<int32_t>(C);
        distance = arena.take<int64_t>(C);
        logit_panels = arena.take<Range>(most_groups), hidden_panels = arena.take<Range>(most_groups);
        score_panels = arena.take<Range>(most_groups);
        if (plan.packed || plan.direct) return;
        own_k_across = arena.take<float>(p.groups * plan.across_size());
        own_v_along = arena.take<float>(p.groups * plan.along_v_size());
        if (!plan.backward) return;
        own_v_across = arena.take<float>(p.groups * plan.across_v_size());
        own_k_along = arena.take<float>(p.groups * plan.along_k_size());
    }

    float *score_of(int64_t row, int64_t h) { return score + row * plan.pitch + h * plan.columns; }
    Range rows_of(int64_t group) const { return {group * TALL, least(count, group * TALL + TALL)}; }

    bool padding(int64_t row) const { return p.q_doc && p.q_doc[b * p.queries + begin + row] == PADDING; }

    // queries [begin, begin + count) of text b, scaled
    void start(int64_t text, int64_t block) {
        if (!working) arena.zero(clean), working = true;
        b = text, begin = block * plan.rows, count = least(plan.rows, p.queries - begin),
        groups = divided_up(count, TALL);
        for (int64_t h = 0; h < p.heads; h++) {
            for (int64_t row = 0; row < count; row++) {
                float *to = q + (h * plan.rows + row) * plan.wide_d;
                if (padding(row)) {
                    std::memset(to, 0, size_t(p.width) * 4);
                    continue;
                }
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
                v_across = plan.v_across + all * plan.across_v_size(),
                k_along = plan.k_along + all * plan.along_k_size();
        } else if (!plan.direct) {
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
            pack_along(plan, p.v, p.values, plan.wide_e, b, g, tile, v_along + g * plan.along_v_size(), line);
            if (!plan.backward) continue;
            pack_across(plan, p.v, p.values, b, g, tile, v_across + g * plan.across_v_size(), line);
            pack_along(plan, p.k, p.width, plan.wide_d, b, g, tile, k_along + g * plan.along_k_size(), line);
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
            whole = whole && q_doc[0] != PADDING;
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
                    mine[key - left] = !k_doc || (k_doc[key] == q_doc[row] && k_doc[key] != PADDING) ? -1 : 0;
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
            logit_panels[group] = around(0), hidden_panels[group] = around(plan.reach),
            score_panels[group] = around(plan.halo);
        }
        return true;
    }

    // to[row][head][column] = a . b over `depth`, for the panels that a group of rows needs
    void products(float *to, const float *a, int64_t a_row, const float *across, int64_t across_size, int64_t depth,
                  const Range *needed) {
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
    const float *under(const Line &line, const Table &table, int64_t channels, int64_t row, float *into,
                       int64_t &pitch) {
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
        if (p.consecutive || !(p.first.data || p.second.data || p.bias.data || p.psi.data)) return;
        int64_t own = p.q_pos[b * p.queries + begin + row];
        for (int64_t x = 0; x < plan.columns; x++) {
            int64_t key = origin + x;
            distance[x] = key >= 0 && key < p.keys ? own - p.k_pos[b * p.keys + key] : 0;
        }
    }

    // what a row needs beside its scores
    struct Row {
        int64_t number, group;
        float *scores;  // [head][column]
        const int32_t *seen, *seen_hidden, *seen_logit;
        bool masked;
        bool spelled;                 // the bias goes through the first layer pair by pair
        const float *first, *second;  // lines under the tile
        int64_t first_pitch, second_pitch;
        const float *bias;  // [head][column], zero where not seen; null: none
    };

    Row look_at(int64_t number, int64_t group) {
        Row row = {number,
                   group,
                   score_of(number, 0),
                   plan.ones,
                   plan.inside_hidden,
                   plan.inside_logit,
                   !whole,
                   false,
                   nullptr,
                   nullptr,
                   0,
                   0,
                   nullptr};
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
                row.second =
                    under(plan.second, p.second, p.heads, number, lines + p.hidden * plan.columns, row.second_pitch);
        }
        if ((row.spelled && p.bias.data) || p.ramp_q || p.psi.data) spell(row);
        return row;
    }

    // the bias of a row, but for the table where a line holds it
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
            } else if (table) {
                std::memcpy(to, table + h * pitch, size_t(length) * 4);
            } else {
                std::memset(to, 0, size_t(length) * 4);
            }
        }
        if (p.psi.data) add_network(row);
        for (int64_t h = 0; row.masked && h < p.heads; h++) {
            float *to = bias_row + h * length;
            for (int64_t x = 0; x < length; x += LANES) store(to + x, kept(load(row.seen + x), load(to + x)));
        }
        row.bias = bias_row;
    }

    // bias_row[head][column] += w2 leaky(w1 psi / against + b1) + b2
    void add_network(const Row &row) {
        int64_t pitch = 0;
        const int64_t C = plan.columns, U = p.units;
        const float *psi = under(plan.psi, p.psi, 1, row.number, ratio, pitch);
        const Vec against = all(p.against[b * p.queries + begin + row.number]);
        const float slope = float(p.unit_slope), *w2 = p.w2, *b2 = p.b2, *from = units;
        float *const to = bias_row;
        for (int64_t x = 0; x < C; x += LANES) store(ratio + x, load(psi + x) / against);
        for (int64_t u = 0; u < U; u++) {
            const Vec weight = all(p.w1[u]), bias = all(p.b1[u]);
            for (int64_t x = 0; x < C; x += LANES) {
                const Vec here = load(ratio + x) * weight + bias;
                store(units + u * C + x, larger(here, here * slope));
            }
        }
        in_blocks(p.heads, [&](int64_t h, auto height) INLINE {
            constexpr int M = decltype(height)::value;
            for (int64_t x = 0; x < C; x += PANEL) {
                Vec acc[M][2];
#pragma GCC unroll 8
                for (int m = 0; m < M; m++) acc[m][0] = acc[m][1] = all(b2[h + m]);
                accumulate<M>(acc, U, w2 + h * U, U, 1, from + x, C);
                add_from<M>(acc, to + h * C + x, C);
#pragma GCC unroll 8
                for (int m = 0; m < M; m++)
                    store(to + (h + m) * C + x, acc[m][0]), store(to + (h + m) * C + x + LANES, acc[m][1]);
            }
        });
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
        // the usual case by itself: loops around the products cost the accumulators their registers
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
        const float *bias = !plan.mixed || p.added ? row.bias : nullptr;
        const int32_t *seen_here = row.masked || r ? row.seen_logit : nullptr;
        const int64_t second_pitch = row.second_pitch;
        in_blocks(H, [&](int64_t h, auto height) INLINE {
            constexpr int M = decltype(height)::value;
            for (int64_t x = panels.begin * PANEL; x < panels.end * PANEL; x += PANEL) {
                Vec acc[M][2];
                start_from<M>(acc, s + h * C + x, C);
                if (second) add_from<M>(acc, second + h * second_pitch + x, second_pitch);
                if (bias) add_from<M>(acc, bias + h * C + x, C);
                if (w_out && taps == 1) {
                    accumulate<M>(acc, W, w_out + h * W, W, 1, from + x, C);
                } else if (w_out) {
                    // a sum for each tap: one over all of them would lose digits as it grows
                    for (int64_t tap = 0; tap < taps; tap++) {
                        Vec part[M][2] = {};
                        accumulate<M>(part, W, w_out + (tap * H + h) * W, W, 1, from + x + tap - r, C);
#pragma GCC unroll 8
                        for (int m = 0; m < M; m++) acc[m][0] += part[m][0], acc[m][1] += part[m][1];
                    }
                }
                if (seen_here) {
                    const Mask left = load(seen_here + x), right = load(seen_here + x + LANES);
#pragma GCC unroll 8
                    for (int m = 0; m < M; m++) {
                        acc[m][0] = left ? acc[m][0] : all(-INFINITY), acc[m][1] = right ? acc[m][1] : all(-INFINITY);
                    }
                }
#pragma GCC unroll 8
                for (int m = 0; m < M; m++)
                    store(to + (h + m) * C + x, acc[m][0]), store(to + (h + m) * C + x + LANES, acc[m][1]);
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
};

// workers ready for every thread; null where memory ran out
template <class W>
W *hired(const Plan &plan) {
    const int64_t threads = plan.p.threads;
    W *workers = static_cast<W *>(std::aligned_alloc(alignof(W), size_t(threads) * sizeof(W)));
    for (int64_t t = 0; workers && t < threads; t++) {
        W &worker = *new (workers + t) W(plan);
        worker.lay_out();
        worker.arena.reserve();
        if (worker.arena.failed()) {
            for (int64_t made = 0; made < t; made++) workers[made].arena.release();
            std::free(workers);
            return nullptr;
        }
        worker.lay_out();
    }
    return workers;
}

template <class W>
void dismiss(W *workers, const Plan &plan) {
    for (int64_t t = 0; workers && t < plan.p.threads; t++) workers[t].arena.release();
    std::free(workers);
}

// packs keys and values of all tiles, whoever comes takes the next
template <class W>
struct Packing {
    Plan &plan;
    W *workers;
    int64_t next;

    static void work(void *context, int index, int) {
        Packing &self = *static_cast<Packing *>(context);
        const Plan &plan = self.plan;
        int64_t part;
        while ((part = __atomic_fetch_add(&self.next, 1, __ATOMIC_RELAXED)) < plan.p.batch * plan.tiles) {
            const int64_t at = part * plan.p.groups;
            Worker::pack_tile(plan, part / plan.tiles, part % plan.tiles, plan.k_across + at * plan.across_size(),
                              plan.v_along + at * plan.along_v_size(), plan.v_across + at * plan.across_v_size(),
                              plan.k_along + at * plan.along_k_size(), self.workers[index].line);
        }
    }
};

}  // namespace
