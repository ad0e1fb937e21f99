/* kernels/simd.h: short vectors of floats for *_cpu.c, by GCC's vector extension, with the few operations that need an
 * intrinsic. KERN_V floats a vector: 16 with AVX-512, else 8 (which GCC splits where there is no AVX). */
#ifndef AG_KERNELS_SIMD_H
#define AG_KERNELS_SIMD_H

#include <math.h>
#include <stdint.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if !defined(__AVX__)
#pragma GCC diagnostic ignored                                                                                         \
    "-Wpsabi" /* vectors wider than the registers never cross a function that is not inline */
#endif

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define KERN_V 16
#else
#define KERN_V 8
#endif

typedef float kern_vec __attribute__((vector_size(KERN_V * 4)));
typedef int32_t kern_ivec __attribute__((vector_size(KERN_V * 4)));
typedef float kern_vec_unaligned __attribute__((vector_size(KERN_V * 4), aligned(4), may_alias));

static inline kern_vec kern_load(const float *x) { return *(const kern_vec_unaligned *)x; }
static inline void kern_store(float *x, kern_vec v) { *(kern_vec_unaligned *)x = v; }
static inline kern_vec kern_splat(float x) { return x - (kern_vec){0}; }

/* The larger of each pair; b where either is NaN. */
static inline kern_vec kern_max(kern_vec a, kern_vec b) {
#if KERN_V == 16
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    kern_ivec m = a > b;
    return (kern_vec)((m & (kern_ivec)a) | (~m & (kern_ivec)b));
#endif
}

/* to (KERN_V, KERN_V) = the KERN_V rows that start at from[i] + at, transposed, times scale. Exchanges bit after bit of
 * the row's and the lane's number. */
static inline void kern_transpose(float *to, const float *const *from, int64_t at, int64_t ld_to, float scale) {
    kern_vec x[KERN_V];
    kern_ivec lane;
    for (int i = 0; i < KERN_V; i++) {
        x[i] = kern_load(from[i] + at) * scale;
        lane[i] = i;
    }
#pragma GCC unroll 4
    for (int bit = 1; bit < KERN_V; bit *= 2) {
        const kern_ivec set = (lane & bit) != 0;
        const kern_ivec low = (set & (lane + KERN_V - bit)) | (~set & lane);
        const kern_ivec high = (set & (lane + KERN_V)) | (~set & (lane + bit));
#pragma GCC unroll 16
        for (int i = 0; i < KERN_V; i++)
            if ((i & bit) == 0) {
                kern_vec a = x[i], b = x[i + bit];
                x[i] = __builtin_shuffle(a, b, low);
                x[i + bit] = __builtin_shuffle(a, b, high);
            }
    }
    for (int i = 0; i < KERN_V; i++) kern_store(to + i * ld_to, x[i]);
}

/* Sum of the lanes by halving: a fixed order. */
static inline float kern_sum(kern_vec v) {
    float x[KERN_V];
    kern_store(x, v);
    for (int n = KERN_V / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++) x[i] += x[i + n];
    return x[0];
}

/* 2^x for x < 129 (infinity from 128 on): relative error below 1.7 ulp (tests/test_kernels.c walks the range); results
 * below 2^-126 may be 0; -inf gives 0 and NaN stays NaN. 2^x = 2^n 2^f with f = x - n in [0, 1): the degree-5
 * polynomial with p(0) = 1 whose largest relative error there is least (8.3e-8). */
static inline kern_vec kern_exp2(kern_vec x) {
#if KERN_V == 16
    kern_vec f = _mm512_reduce_ps(x, 0x9); /* x - floor(x), 0 of an infinity */
#else
    x = kern_max(kern_splat(-127.0f), x);
#if defined(__AVX2__)
    kern_vec n = _mm256_floor_ps(x);
    kern_ivec bits = (kern_ivec)_mm256_cvtps_epi32(n);
#else
    kern_vec n;
    kern_ivec bits;
    for (int i = 0; i < KERN_V; i++) {
        n[i] = floorf(x[i]);
        bits[i] = x[i] == x[i] ? (int32_t)n[i] : 0;
    }
#endif
    kern_vec f = x - n;
#endif
    kern_vec p = kern_splat(0x1.e974fap-10f);
    p = p * f + 0x1.277856p-7f;
    p = p * f + 0x1.c91ce6p-5f;
    p = p * f + 0x1.ebdb56p-3f;
    p = p * f + 0x1.62e4bap-1f;
    p = p * f + 1.0f;
#if KERN_V == 16
    return _mm512_scalef_ps(p, x);
#else
    return p * (kern_vec)((bits + 127) << 23);
#endif
}

#endif
