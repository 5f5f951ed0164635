// The backward pass: every tile is computed again, then followed backwards.
#pragma once

#include <sched.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tile.h"

namespace {

struct alignas(128) Differentiator : Worker {
    float *own_scores, *grad, *q_along, *g, *g_along, *weighted, *d_hidden, *d_bias_row, *d_q, *d_ramp_tile, *spread;
    float *sum_first, *sum_second, *sum_bias;                // of a tile, in tables' own order
    float *lanes_out, *lanes_in, *lanes_bias, *lanes_b_in;   // of a tile, lane by lane
    double *total_out, *total_in, *total_bias, *total_b_in;  // of all tiles
    double *line_first, *line_second, *line_bias, *ramp_row, *ramp_keys;

    using Worker::Worker;

    int64_t sum_pitch() const { return padded(plan.rows + plan.columns, 16); }
    int64_t matrix() const { return p.taps * p.heads * p.hidden; }
    int64_t line_columns(const Table &table) const { return p.consecutive ? plan.line_length : table.columns; }
    float *grad_of(int64_t row, int64_t h) { return grad + row * plan.pitch + h * plan.columns; }

    void lay_out() {
        const int64_t R = plan.rows, C = plan.columns, H = p.heads, W = p.hidden;
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
        clean = arena.used();
        lay_out_tile();
        own_scores = margined(H * C), grad = margined(tile_size());
        d_hidden = margined(W * C), d_bias_row = margined(H * C);
        // taps read past what a tile has filled
        if (plan.reach) clean = arena.used();
        lay_out_rest();
        q_along = arena.take<float>(H * R * plan.wide_d);
        g = arena.take<float>(H * R * plan.wide_e), g_along = arena.take<float>(H * R * plan.wide_e);
        weighted = arena.take<float>(R * heads_wide);
        d_q = arena.take<float>(H * R * plan.wide_d);
        ramp_row = arena.take<double>(H * R);
        spread = arena.take<float>(p.values * PANEL);
    }

    // gradients of the output divided by the sums of their rows, once for all tiles
    void start_backward() {
        std::memset(d_q, 0, size_t(p.heads * plan.rows * plan.wide_d) * 4);
        std::memset(ramp_row, 0, size_t(p.heads * plan.rows) * 8);
        for (int64_t h = 0; h < p.heads; h++) {
            for (int64_t row = 0; row < count; row++) {
                int64_t at = (b * p.heads + h) * p.queries + begin + row;
                float total = p.sums[at], share = total == 0 ? 0 : 1 / total;
                top[row * heads_wide + h] = p.top[at];
                float *mine = g + (h * plan.rows + row) * plan.wide_e;
                if (padding(row)) {
                    std::memset(mine, 0, size_t(p.values) * 4), std::memset(line, 0, size_t(p.values) * 4);
                } else {
                    std::memcpy(mine, row_of(p.d_out, b, h, begin + row, FLOAT32), size_t(p.values) * 4);
                    std::memcpy(line, row_of(p.out, b, h, begin + row, FLOAT32), size_t(p.values) * 4);
                }
                // summed as `products` sums: where a query sees one key, the gradient of its logit is exactly zero
                for (int64_t e = 0; e < p.values; e++) {
                    mine[e] *= share;
                    store(spread + e * PANEL, all(line[e])), store(spread + e * PANEL + LANES, all(line[e]));
                }
                Vec dot[1][2] = {};
                accumulate<1>(dot, p.values, mine, 0, 1, spread, PANEL);
                weighted[row * heads_wide + h] = dot[0][0][0];
                in_panels(g_along + h * plan.rows * plan.wide_e, mine, row, plan.wide_e);
                in_panels(q_along + h * plan.rows * plan.wide_d, q + (h * plan.rows + row) * plan.wide_d, row,
                          plan.wide_d);
            }
        }
    }

    void in_panels(float *to, const float *from, int64_t row, int64_t wide) {
        for (int64_t c = 0; c < wide; c += LANES)
            store(to + (c / PANEL * plan.rows + row) * PANEL + c % PANEL, load(from + c));
    }

    // sums[c][place of the row + x] += from[c][x]
    void collect(float *sums, double *line, const Table &table, int64_t channels, const float *from, const Row &row,
                 Range panels) {
        const int64_t C = plan.columns;
        if (p.consecutive) {
            for (int64_t c = 0; c < channels; c++) {
                float *to = sums + c * sum_pitch() + plan.rows - 1 - row.number;
                const float *x = from + c * C;
                for (int64_t at = panels.begin * PANEL; at < panels.end * PANEL; at += LANES)
                    store(to + at, load(to + at) + load(x + at));
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
                        case 16:
                            outer<3, 4>(to, x, y, panels);
                            break;
                        case 15:
                            outer<3, 3>(to, x, y, panels);
                            break;
                        case 14:
                            outer<3, 2>(to, x, y, panels);
                            break;
                        case 13:
                            outer<3, 1>(to, x, y, panels);
                            break;
                        case 12:
                            outer<2, 4>(to, x, y, panels);
                            break;
                        case 11:
                            outer<2, 3>(to, x, y, panels);
                            break;
                        case 10:
                            outer<2, 2>(to, x, y, panels);
                            break;
                        case 9:
                            outer<2, 1>(to, x, y, panels);
                            break;
                        case 8:
                            outer<1, 4>(to, x, y, panels);
                            break;
                        case 7:
                            outer<1, 3>(to, x, y, panels);
                            break;
                        case 6:
                            outer<1, 2>(to, x, y, panels);
                            break;
                        default:
                            outer<1, 1>(to, x, y, panels);
                            break;
                    }
                }
            }
        }
    }

    void add_up(float *lanes, double *total, int64_t size) {
        for (int64_t i = 0; i < size; i++) total[i] += sum(load(lanes + i * LANES));
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

    // from the row's scores and the gradient of its weights to the gradient of its scores, which takes the latter's
    // place
    void differentiate(Row row) {
        const int64_t C = plan.columns, H = p.heads, W = p.hidden;
        // weights take the place of the scores in the tile, and the scores are kept for one row
        float *s = own_scores, *weights = row.scores, *d = grad_of(row.number, 0);
        std::memcpy(s, weights, size_t(H * C) * 4);
        row.scores = s;
        const Range panels = logit_panels[row.group], middle = hidden_panels[row.group],
                    outermost = score_panels[row.group];
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
                for (int64_t x = middle.begin * PANEL; x < middle.end * PANEL; x += LANES)
                    total += load(d_hidden + w * C + x);
                store(lanes_b_in + w * LANES, total);
            }
            if (row.bias) {
                outers(lanes_bias, row.bias, 1, d_hidden, 0, middle);
                back(
                    H, W, p.w_bias, 1, H, d_hidden, outermost,
                    [&](int64_t h, int64_t x) INLINE { return p.added ? load(d + h * C + x) : Vec{}; },
                    [&](int64_t h, int64_t x, Vec grad)
                        INLINE { store(d_bias_row + h * C + x, kept(load(row.seen + x), grad)); });
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
                        add_product<M>(to + c, plan.wide_d, depth, grad_of(row, h) + x, plan.pitch, 1,
                                       keys + c * plan.columns + x * PANEL);
                });
            }
        }
    }

    template <int M>
    void add_product(float *to, int64_t pitch, int64_t depth, const float *a, int64_t a_row, int64_t a_k,
                     const float *panel) {
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
    void collect_keys(const View &to, const float *from, const float *along, int64_t wide, const Range *needed,
                      int64_t edge) {
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

constexpr int64_t OWN_SUMS = 1 << 26;  // numbers, in sums of threads' own

// jobs are dealt beforehand, and add to keys and values in the order of their numbers: the same bits from run to run
struct Backward {
    Plan &plan;
    Differentiator *workers;
    int64_t *owner;     // of a job: the worker that does it
    int64_t *progress;  // of a job: tiles below this are done
    bool apart;         // every thread adds to keys and values of its own; else in the order of jobs
    View *d_k, *d_v;    // of each thread: float32, as wide as panels
    int64_t crew;       // threads that had a job: the first ones

    int64_t jobs() const { return plan.p.batch * plan.blocks; }
    // long rows first
    int64_t block_of(int64_t job) const { return plan.blocks - 1 - job % plan.blocks; }

    // each job goes to the worker that has least to do
    void deal(int64_t *load) {
        const Problem &p = plan.p;
        std::memset(load, 0, size_t(p.threads) * sizeof(int64_t));
        for (int64_t job = 0; job < jobs(); job++) {
            int64_t idlest = 0;
            for (int64_t t = 1; t < p.threads; t++)
                if (load[t] < load[idlest]) idlest = t;
            const int64_t begin = block_of(job) * plan.rows, end = least(begin + plan.rows, p.queries);
            const Range keys = plan.keys_of(begin, end);
            owner[job] = idlest, load[idlest] += (end - begin) * (keys.end - keys.begin);
        }
    }

    static void work(void *context, int index, int count) {
        Backward &self = *static_cast<Backward *>(context);
        for (int64_t job = 0; job < self.jobs(); job++)
            if (self.owner[job] % count == index) self.run(self.workers[self.owner[job]], job);
    }

    void run(Differentiator &worker, int64_t job) {
        const int64_t own = apart ? &worker - workers : 0;
        if (apart && !worker.working) clear(d_k[own], plan.wide_d), clear(d_v[own], plan.wide_e);
        const int64_t text = job / plan.blocks, nth = job % plan.blocks;
        worker.start(text, block_of(job));
        worker.start_backward();
        Range tiles = plan.tiles_of(plan.keys_of(worker.begin, worker.begin + worker.count));
        // a tile touches keys of its neighbours through its halo
        const int64_t ahead = 1 + divided_up(2 * plan.halo, plan.inner);
        for (int64_t tile = tiles.begin; tile < tiles.end; tile++) {
            const bool there = worker.enter(tile);
            if (there) worker.differentiate_tile();
            int spins = 0;
            while (nth && !apart && __atomic_load_n(&progress[job - 1], __ATOMIC_ACQUIRE) < tile + ahead)
                wait_a_little(spins);
            if (there) {
                worker.collect_keys(d_v[own], worker.score, worker.g_along, plan.wide_e, worker.logit_panels,
                                    plan.halo);
                worker.collect_keys(d_k[own], worker.grad, worker.q_along, plan.wide_d, worker.score_panels, 0);
                worker.collect_ramp_keys();
            }
            __atomic_store_n(&progress[job], tile + 1, __ATOMIC_RELEASE);
        }
        __atomic_store_n(&progress[job], INT64_MAX, __ATOMIC_RELEASE);
        worker.write_backward();
    }

    void clear(const View &sums, int64_t wide) {
        for (int64_t b = 0; b < plan.p.batch; b++)
            for (int64_t g = 0; g < plan.p.groups; g++)
                for (int64_t key = 0; key < plan.p.keys; key++)
                    std::memset(row_of(sums, b, g, key, FLOAT32), 0, size_t(wide) * 4);
    }

    // each thread a part of the keys: the sums of all threads, in the dtype of the gradients
    static void add_up(void *context, int index, int count) {
        Backward &self = *static_cast<Backward *>(context);
        self.add_up(self.d_k, self.plan.p.d_k, self.plan.p.width, index, count);
        self.add_up(self.d_v, self.plan.p.d_v, self.plan.p.values, index, count);
    }

    void add_up(const View *sums, const View &to, int64_t width, int64_t index, int64_t count) {
        const Problem &p = plan.p;
        for (int64_t row = p.batch * p.groups * p.keys * index / count;
             row < p.batch * p.groups * p.keys * (index + 1) / count; row++) {
            const int64_t b = row / (p.groups * p.keys), g = row / p.keys % p.groups, key = row % p.keys;
            float *first = reinterpret_cast<float *>(row_of(sums[0], b, g, key, FLOAT32));
            for (int64_t t = 1; apart && t < crew; t++) {
                const float *other = reinterpret_cast<float *>(row_of(sums[t], b, g, key, FLOAT32));
                for (int64_t d = 0; d < width; d++) first[d] += other[d];
            }
            if (sums[0].data != to.data) write_row(row_of(to, b, g, key, p.dtype), first, width, p.dtype);
        }
    }

    void finish() {
        const Problem &p = plan.p;
        table(p.first, p.hidden, [](Differentiator &w) { return w.line_first; });
        table(p.second, p.heads, [](Differentiator &w) { return w.line_second; });
        table(p.bias, p.heads, [](Differentiator &w) { return w.line_bias; });
        const int64_t H = p.heads, W = p.hidden;
        auto matrix = [&](float *to, bool turned, auto of) {
            if (!to) return;
            for (int64_t tap = 0; tap < p.taps; tap++)
                for (int64_t h = 0; h < H; h++)
                    for (int64_t w = 0; w < W; w++) {
                        double total = 0;
                        for (int64_t t = 0; t < crew; t++) total += of(workers[t])[(tap * H + h) * W + w];
                        to[tap * H * W + (turned ? w * H + h : h * W + w)] = float(total);
                    }
        };
        matrix(p.d_w_out, false, [](Differentiator &w) { return w.total_out; });
        matrix(p.d_w_in, true, [](Differentiator &w) { return w.total_in; });
        matrix(p.d_w_bias, true, [](Differentiator &w) { return w.total_bias; });
        for (int64_t i = 0; p.ramp_q && i < p.batch * H * p.keys; i++) {
            p.d_ramp_k[i] = 0;
            for (int64_t t = 0; t < crew; t++) p.d_ramp_k[i] += workers[t].ramp_keys[i];
        }
        for (int64_t w = 0; p.d_b_in && w < W; w++) {
            double total = 0;
            for (int64_t t = 0; t < crew; t++) total += workers[t].total_b_in[w];
            p.d_b_in[w] = float(total);
        }
    }

    template <class Of>
    void table(const Table &table, int64_t channels, Of &&of) {
        if (!table.data) return;
        const int64_t length = plan.p.consecutive ? plan.line_length : table.columns;
        double *total = of(workers[0]);
        for (int64_t t = 1; t < crew; t++)
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

bool differentiated(const Problem &p, Parallel parallel) {
    Plan plan(p, true);
    if (!plan.prepare()) return false;
    Differentiator *workers = hired<Differentiator>(plan);
    Packing<Differentiator> packing = {plan, workers, 0};
    Arena sums;
    const int64_t jobs = p.batch * plan.blocks, rows = p.batch * p.groups * p.keys;
    // sums of each thread's own while they are small; else all add to one, each in its turn
    const bool apart = (p.threads - 1) * rows * (plan.wide_d + plan.wide_e) <= OWN_SUMS;
    Backward backward = {plan, workers, nullptr, nullptr, apart, nullptr, nullptr, 0};
    int64_t *load = nullptr;
    auto lay_out = [&] {
        backward.owner = sums.take<int64_t>(jobs), backward.progress = sums.take<int64_t>(jobs);
        load = sums.take<int64_t>(p.threads);
        backward.d_k = sums.take<View>(p.threads), backward.d_v = sums.take<View>(p.threads);
    };
    auto view_of = [&](int64_t wide) {
        return View{sums.take<float>(rows * wide), p.groups * p.keys * wide, p.keys * wide, wide};
    };
    // the gradients themselves are the first sum where they have room
    const bool k_fits = p.dtype == FLOAT32 && p.width == plan.wide_d,
               v_fits = p.dtype == FLOAT32 && p.values == plan.wide_e;
    auto lay_out_sums = [&](bool ready) {
        for (int64_t t = 0; t < (apart ? p.threads : 1); t++) {
            View k = t == 0 && k_fits ? p.d_k : view_of(plan.wide_d),
                 v = t == 0 && v_fits ? p.d_v : view_of(plan.wide_e);
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
        backward.deal(load);
        if (!apart) backward.clear(backward.d_k[0], plan.wide_d), backward.clear(backward.d_v[0], plan.wide_e);
        if (plan.packed) parallel(int(p.threads), Packing<Differentiator>::work, &packing);
        parallel(int(p.threads), Backward::work, &backward);
        while (backward.crew < p.threads && workers[backward.crew].working) backward.crew++;
        parallel(int(p.threads), Backward::add_up, &backward);
        backward.finish();
    }
    dismiss(workers, plan);
    sums.release();
    plan.arena.release();
    return enough;
}

}  // namespace
