// Attention in tiles of rows x keys, all heads together, with an online softmax; the backward pass recomputes.
//
// A tile holds [row][head][column], so that mixing heads reads adjacent vectors. Its columns are keys with a halo of
// 2r on either side, r = taps / 2: scores are right in all columns, the hidden layer in all but the outer r, logits in
// all but the outer 2r. Every product has the shape of `accumulate`: factors broadcast, panels of PANEL columns.
//
// Compiled once per instruction set; everything but `forward` and `backward` is static.

#include "backward.h"
#include "forward.h"

#define JOINED_(a, b) a##_##b
#define JOINED(a, b) JOINED_(a, b)

extern "C" int JOINED(adapos_forward, TARGET)(const Problem *problem, Parallel parallel) {
    return attended(*problem, parallel) ? 0 : 1;
}

extern "C" int JOINED(adapos_backward, TARGET)(const Problem *problem, Parallel parallel) {
    return differentiated(*problem, parallel) ? 0 : 1;
}
