// The forward pass: an online softmax along the tiles of some queries.
#pragma once

#include <cfloat>

#include "tile.h"

namespace {

struct alignas(128) Attender : Worker {
    float *gathered, *sums, *fade;

    using Worker::Worker;

    void lay_out() {
        lay_out_tile();
        // taps read past what a tile has filled
        clean = plan.reach ? arena.used() : 0;
        lay_out_rest();
        gathered = arena.take<float>(p.heads * plan.rows * plan.wide_e);
        sums = arena.take<float>(plan.rows * heads_wide), fade = arena.take<float>(plan.rows * heads_wide);
    }

    const float *direct_row(const View &x, int64_t h, int64_t key) const {
        return reinterpret_cast<const float *>(row_of(x, b, h / plan.share, key, FLOAT32));
    }

    // the columns of some panels whose keys exist
    Range existing(Range panels) const {
        return {most(panels.begin * PANEL, -origin), least(panels.end * PANEL, p.keys - origin)};
    }

    // scores of few queries, with keys as they lie in memory
    void direct_products() {
        const Range panels = score_panels[0], there = existing(panels);
        const int64_t even = p.width / LANES * LANES;
        for (int64_t h = 0; h < p.heads; h++) {
            for (int64_t row = 0; row < count; row++) {
                const float *mine = q + (h * plan.rows + row) * plan.wide_d;
                float *to = score_of(row, h);
                for (int64_t x = panels.begin * PANEL; x < there.begin; x++) to[x] = 0;
                for (int64_t x = there.begin; x < there.end; x++) {
                    if (!plan.there(b, origin + x)) {
                        to[x] = 0;
                        continue;
                    }
                    const float *key = direct_row(p.k, h, origin + x);
                    Vec left = {}, right = {};
                    int64_t d = 0;
                    for (; d + PANEL <= even; d += PANEL) {
                        left += load(mine + d) * load(key + d);
                        right += load(mine + d + LANES) * load(key + d + LANES);
                    }
                    if (d < even) left += load(mine + d) * load(key + d), d += LANES;
                    float dot = sum(left + right);
                    for (; d < p.width; d++) dot += mine[d] * key[d];
                    to[x] = dot;
                }
                for (int64_t x = there.end; x < panels.end * PANEL; x++) to[x] = 0;
            }
        }
    }

    // N vectors of the output of one query
    template <int N>
    void direct_columns(float *to, float fading, const float *weights, const View &v, int64_t h, int64_t e,
                        Range there) {
        Vec acc[N] = {};
        const float *value = direct_row(v, h, origin + there.begin) + e;
        for (int64_t x = there.begin; x < there.end; x++, value += v.token) {
            if (!plan.there(b, origin + x)) continue;
            const Vec weight = all(weights[x]);
#pragma GCC unroll 8
            for (int n = 0; n < N; n++) acc[n] += weight * load(value + n * LANES);
        }
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) store(to + e + n * LANES, load(to + e + n * LANES) * fading + acc[n]);
    }

    void direct_gather() {
        const Range there = existing(logit_panels[0]);
        if (there.begin >= there.end) return;
        for (int64_t h = 0; h < p.heads; h++) {
            for (int64_t row = 0; row < count; row++) {
                float *to = gathered + (h * plan.rows + row) * plan.wide_e;
                const float fading = fade[row * heads_wide + h], *weights = score_of(row, h);
                int64_t e = 0;
                for (; e + 8 * LANES <= p.values; e += 8 * LANES)
                    direct_columns<8>(to, fading, weights, p.v, h, e, there);
                for (; e + 4 * LANES <= p.values; e += 4 * LANES)
                    direct_columns<4>(to, fading, weights, p.v, h, e, there);
                for (; e < p.values; e += 2 * LANES) direct_columns<2>(to, fading, weights, p.v, h, e, there);
            }
        }
    }

    // logits to weights, exp(logit - top), with the running maximum and sum of each head
    void weigh(const Row &row) {
        const int64_t from = logit_panels[row.group].begin * PANEL, end = logit_panels[row.group].end * PANEL;
        const int64_t C = plan.columns, H = p.heads;
        float *const tops = top + row.number * heads_wide, *const totals = sums + row.number * heads_wide;
        float *const fades = fade + row.number * heads_wide, *const logit = score_of(row.number, 0);
        // maxima of all heads before any exponential, or each would wait for its own
        for (int64_t h = 0; h < H; h++) {
            const float *at = logit + h * C;
            Vec left = all(tops[h]), right = left;
            for (int64_t x = from; x < end; x += PANEL)
                left = larger(load(at + x), left), right = larger(load(at + x + LANES), right);
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
    void gather() {
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
                        accumulate<M>(acc, depth, score_of(row, h) + x, plan.pitch, 1,
                                      values + e * plan.columns + x * PANEL, PANEL);
#pragma GCC unroll 8
                        for (int m = 0; m < M; m++) {
                            const float fading = fade[(row + m) * heads_wide + h];
                            float *at = to + m * plan.wide_e + e;
                            store(at, load(at) * fading + acc[m][0]),
                                store(at + LANES, load(at + LANES) * fading + acc[m][1]);
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
            if (plan.direct)
                direct_products();
            else
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
            plan.direct ? direct_gather() : gather();
        }
    }

    void write() {
        for (int64_t h = 0; h < p.heads; h++) {
            for (int64_t row = 0; row < count; row++) {
                float total = sums[row * heads_wide + h], share = total == 0 ? 0 : 1 / total;
                float *from = gathered + (h * plan.rows + row) * plan.wide_e;
                for (int64_t e = 0; e < p.values; e++) from[e] *= share;
                std::memcpy(row_of(p.out, b, h, begin + row, FLOAT32), from, size_t(p.values) * 4);
                int64_t at = (b * p.heads + h) * p.queries + begin + row;
                p.top[at] = top[row * heads_wide + h], p.sums[at] = total;
            }
        }
    }
};

// queries of a job against some of its tiles; several parts of a job are put together by whoever is last
struct Forward {
    Plan &plan;
    Attender *workers;
    int64_t splits, next;
    int64_t *left;                // parts of a job that are not done yet
    float *tops, *totals, *outs;  // of parts

    int64_t jobs() const { return plan.p.batch * plan.blocks; }
    int64_t row_size() const { return plan.rows * padded(plan.p.heads, LANES); }
    int64_t out_size() const { return plan.p.heads * plan.rows * plan.wide_e; }

    static void work(void *context, int index, int) {
        Forward &self = *static_cast<Forward *>(context);
        int64_t part;
        while ((part = __atomic_fetch_add(&self.next, 1, __ATOMIC_RELAXED)) < self.jobs() * self.splits)
            self.run(self.workers[index], part / self.splits, part % self.splits);
    }

    void run(Attender &worker, int64_t job, int64_t split) {
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

    void merge(Attender &worker, int64_t job) {
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

bool attended(const Problem &problem, Parallel parallel) {
    Plan plan(problem, false);
    const int64_t threads = problem.threads, jobs = problem.batch * plan.blocks;
    // where there are few jobs, threads share the keys of each
    int64_t splits = 1;
    if (threads > 1 && jobs < 2 * threads) splits = bounded(divided_up(2 * threads, jobs), 1, most(1, plan.tiles / 2));
    if (!plan.prepare()) return false;
    Attender *workers = hired<Attender>(plan);
    Arena parts;
    Forward forward = {plan, workers, splits, 0, nullptr, nullptr, nullptr, nullptr};
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
        Packing<Attender> packing = {plan, workers, 0};
        if (plan.packed) parallel(int(threads), Packing<Attender>::work, &packing);
        parallel(int(least(threads, jobs * splits)), Forward::work, &forward);
    }
    dismiss(workers, plan);
    parts.release();
    plan.arena.release();
    return enough;
}

}  // namespace
