// Vectors of LANES floats in the compiler's own extension, so that one source serves every width.
#pragma once

#include <cstdint>
#include <cstring>

#ifndef LANES
#error "LANES must be the number of floats in a vector: 4, 8 or 16"
#endif

// everything here is static: code for one instruction set must never be linked into another's
namespace {

#define INLINE __attribute__((always_inline))

constexpr int PANEL = 2 * LANES;  // columns that one micro-kernel computes

typedef float Vec __attribute__((vector_size(LANES * 4), may_alias));
typedef int32_t Mask __attribute__((vector_size(LANES * 4), may_alias));
typedef uint32_t Bits __attribute__((vector_size(LANES * 4), may_alias));
typedef float Loose __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t LooseMask __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

inline Vec load(const float *from) { return *reinterpret_cast<const Loose *>(from); }
inline void store(float *to, Vec x) { *reinterpret_cast<Loose *>(to) = x; }
inline Mask load(const int32_t *from) { return *reinterpret_cast<const LooseMask *>(from); }
inline Vec all(float x) { return x - Vec{}; }

// zero where the mask is not set, whatever x holds there
inline Vec kept(Mask mask, Vec x) { return reinterpret_cast<Vec>(reinterpret_cast<Mask>(x) & mask); }
inline Vec larger(Vec x, Vec other) { return x > other ? x : other; }

// lane i holds what lane i + step held
template <int STEP>
inline Vec rotated(Vec x) {
#if defined(__clang__)
    Vec turned = {};
    for (int lane = 0; lane < LANES; lane++) turned[lane] = x[(lane + STEP) % LANES];
    return turned;
#else
    Mask from = {};
    for (int lane = 0; lane < LANES; lane++) from[lane] = (lane + STEP) % LANES;
    return __builtin_shuffle(x, from);
#endif
}
inline float sum(Vec x) {
    if constexpr (LANES > 8) x += rotated<8>(x);
    if constexpr (LANES > 4) x += rotated<4>(x);
    x += rotated<2>(x);
    return x[0] + x[1];
}
inline float largest(Vec x) {
    if constexpr (LANES > 8) x = larger(x, rotated<8>(x));
    if constexpr (LANES > 4) x = larger(x, rotated<4>(x));
    x = larger(x, rotated<2>(x));
    return x[0] > x[1] ? x[0] : x[1];
}

// e^x for x <= 0, within 1.5 units in the last place; 0 below -87.3, where floats become subnormal; NaN stays NaN
inline Vec exponential(Vec x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    Vec shifted = x * 1.44269504088896341f + magic;
    Vec whole = shifted - magic;
    Vec rest = x - whole * 0.693359375f;
    rest = rest + whole * 2.12194440e-4f;
    Vec p = all(1.9875691500e-4f);
    p = p * rest + 1.3981999507e-3f;
    p = p * rest + 8.3334519073e-3f;
    p = p * rest + 4.1665795894e-2f;
    p = p * rest + 1.6666665459e-1f;
    p = p * rest + 5.0000001201e-1f;
    p = p * (rest * rest) + rest + 1.0f;
    // unsigned, for it wraps where x is so far below that the result is dropped
    Bits power = (reinterpret_cast<Bits>(shifted) << 23) + (127u << 23);
    return kept(~(x < -87.3f), p * reinterpret_cast<Vec>(power));
}

enum Dtype { FLOAT32, BFLOAT16, FLOAT16 };

inline float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
inline uint32_t to_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

inline float widened(uint16_t x, bool brain) {
    if (brain) return from_bits(uint32_t(x) << 16);
    uint32_t sign = uint32_t(x & 0x8000) << 16, rest = x & 0x7fff;
    if (rest >= 0x7c00) return from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    // exact: both are powers of two times a whole number
    return from_bits(sign | to_bits(from_bits(rest << 13) * 5.192296858534828e33f));  // 2^112
}

inline uint16_t narrowed(float x, bool brain) {
    uint32_t bits = to_bits(x), sign = bits >> 31 << 15;
    if (brain) {
        if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
        return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    uint32_t rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return uint16_t(sign | 0x7e00);
    if (rest >= 0x477ff000) return uint16_t(sign | 0x7c00);  // rounds past 65504
    if (rest < 0x38800000) {
        // subnormal: adding 0.5 leaves the digits where they belong, rounded
        return uint16_t(sign | (to_bits(from_bits(rest) + 0.5f) - to_bits(0.5f)));
    }
    return uint16_t(sign | ((rest + 0xfff + (rest >> 13 & 1)) - (112u << 23)) >> 13);
}

// a row of `count` numbers of any dtype as floats
inline void read_row(float *to, const void *from, int64_t count, int64_t dtype) {
    if (dtype == FLOAT32) {
        std::memcpy(to, from, size_t(count) * 4);
    } else {
        const uint16_t *half = static_cast<const uint16_t *>(from);
        if (dtype == BFLOAT16)
            for (int64_t i = 0; i < count; i++) to[i] = widened(half[i], true);
        else
            for (int64_t i = 0; i < count; i++) to[i] = widened(half[i], false);
    }
}

inline void write_row(void *to, const float *from, int64_t count, int64_t dtype) {
    if (dtype == FLOAT32) {
        std::memcpy(to, from, size_t(count) * 4);
    } else {
        uint16_t *half = static_cast<uint16_t *>(to);
        if (dtype == BFLOAT16)
            for (int64_t i = 0; i < count; i++) half[i] = narrowed(from[i], true);
        else
            for (int64_t i = 0; i < count; i++) half[i] = narrowed(from[i], false);
    }
}

// of row [token] of a view
inline char *row_of(const View &x, int64_t batch, int64_t head, int64_t token, int64_t dtype) {
    return static_cast<char *>(x.data) +
           (batch * x.batch + head * x.head + token * x.token) * (dtype == FLOAT32 ? 4 : 2);
}

// acc[m] += sum over k of a[m * a_row + k * a_k] * b[k * b_k ...], two vectors wide
template <int M>
INLINE inline void accumulate(Vec (&acc)[M][2], int64_t count, const float *a, int64_t a_row, int64_t a_k,
                              const float *b, int64_t b_k) {
#pragma GCC unroll 8
    for (int64_t k = 0; k < count; k++) {
        Vec left = load(b), right = load(b + LANES);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
            Vec factor = all(a[m * a_row]);
            acc[m][0] += factor * left;
            acc[m][1] += factor * right;
        }
        a += a_k;
        b += b_k;
    }
}

template <int M>
inline void start_from(Vec (&acc)[M][2], const float *from, int64_t pitch) {
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) acc[m][0] = load(from + m * pitch), acc[m][1] = load(from + m * pitch + LANES);
}

template <int M>
inline void add_from(Vec (&acc)[M][2], const float *from, int64_t pitch) {
#pragma GCC unroll 8
    for (int m = 0; m < M; m++) acc[m][0] += load(from + m * pitch), acc[m][1] += load(from + m * pitch + LANES);
}

constexpr int TALL = 6;  // rows that one micro-kernel computes

template <int M>
struct Height {
    static constexpr int value = M;
};

// body(first, Height<M>()) over blocks of nearly equal height, at most TALL
template <class F>
INLINE inline void in_blocks(int64_t count, F &&body) {
    int64_t blocks = (count + TALL - 1) / TALL;
    for (int64_t i = 0, begin = 0; i < blocks; i++) {
        int64_t end = (i + 1) * count / blocks;
        switch (end - begin) {
            case 1:
                body(begin, Height<1>());
                break;
            case 2:
                body(begin, Height<2>());
                break;
            case 3:
                body(begin, Height<3>());
                break;
            case 4:
                body(begin, Height<4>());
                break;
            case 5:
                body(begin, Height<5>());
                break;
            default:
                body(begin, Height<6>());
                break;
        }
        begin = end;
    }
}

}  // namespace
