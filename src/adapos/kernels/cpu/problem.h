// One call of attention as C sees it. Python fills the same fields in the same order (library.py).
#pragma once

#include <cstdint>

extern "C" {

// (batch, head, token, width) with strides in elements; the last is 1
struct View {
    void *data;
    int64_t batch, head, token;
};

// (channels, columns): channel c at distance d is data[c][clip(d + zero)]
struct Table {
    const float *data;
    float *grad;
    int64_t columns, zero;
};

struct Problem {
    int64_t batch, heads, groups, queries, keys, width, values, hidden, taps;
    int64_t units;  // of the network of a ratio
    int64_t start;   // index on the key axis of the first query
    int64_t window;  // 0: none
    int64_t causal;
    int64_t consecutive;    // distance is the difference of indices; else q_pos - k_pos
    int64_t dtype;          // of q, k, v and their gradients: 0 float32, 1 bfloat16, 2 float16; all else is float32
    int64_t added;          // the bias stands beside the mix as well as inside it
    int64_t rows, columns;  // of a tile; 0: as measured best
    int64_t threads;
    double scale;
    double slope;  // of the rectifier below zero
    double unit_slope;

    View q, k, v, out;             // (B, H, T, D), (B, G, S, D), (B, G, S, E), (B, H, T, E)
    const int64_t *q_pos, *k_pos;  // (B, T), (B, S); read unless consecutive
    const int64_t *q_doc, *k_doc;  // (B, T), (B, S), or null: one document
    float *top, *sums;             // (B, H, T): the greatest logit of a row, and the sum of exp(logit - greatest)

    // a null table or matrix does not apply
    Table first;   // (W, .): the bias through the first layer, and b_in
    Table second;  // (H, .): the bias
    Table bias;    // (H, .): the bias alone, for rows where a tap meets a key that is not seen, and for ramps
    Table psi;     // (1, .): the bias is also a network of psi(distance) / against; forward only
    const double *ramp_q, *ramp_k;      // (B, H, T), (B, H, S)
    const float *w_in, *w_bias, *b_in;  // (k, W, H), (k, W, H), (W,)
    const float *w_out;                 // (k, H, W); b_out is missing, for no softmax sees a constant
    const float *against;               // (B, T)
    const float *w1, *b1, *w2, *b2;     // (U,), (U,), (H, U), (H,)

    // backward only
    View d_out, d_q, d_k, d_v;
    double *d_ramp_q, *d_ramp_k;
    float *d_w_in, *d_w_bias, *d_b_in, *d_w_out;
};

// runs body(context, index, count) for every index below count, on at most `threads` threads, count among them equal
typedef void (*Body)(void *context, int index, int count);
typedef void (*Parallel)(int threads, Body body, void *context);

// 0, or 1 where memory ran out
typedef int (*Run)(const Problem *problem, Parallel parallel);
}
