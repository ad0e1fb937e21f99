/* Dequantisation for the cpu backend: the formulas of dequant_ref.c, a block at a time, in loops that the compiler
 * turns into SIMD. Bit-exact with dequant_ref.c, hence compiled without contraction (Makefile). The blocks of all rows
 * are contiguous, so the work is one flat list of blocks, cut into chunks for the threads. */
#include <string.h>

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "kernels/ops.h"

/* Elements a thread takes at a time: large enough that a fork pays, small enough to spread one matrix. */
#define CHUNK_ELEMENTS 32768

static inline float half_bits(uint16_t h) {
#ifdef __F16C__
    return _cvtsh_ss(h);
#else
    uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ffu, bits;
    float value;
    if (exponent == 0) {
        value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    bits = exponent == 31 ? 0x7f800000u | (mantissa ? 0x400000u : 0) : (exponent + 112) << 23;
    bits |= sign | mantissa << 13;
    memcpy(&value, &bits, 4);
    return value;
#endif
}
/* All machines this builds for are little-endian, as the files are. */
static inline float half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return half_bits(h);
}
static inline uint32_t u32_at(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static void q4_0(float *restrict y, const uint8_t *restrict b) {
    const uint8_t *qs = b + 2;
    float d = half_at(b);
    for (int i = 0; i < 16; i++) y[i] = (float)((qs[i] & 15) - 8) * d;
    for (int i = 0; i < 16; i++) y[16 + i] = (float)((qs[i] >> 4) - 8) * d;
}
static void q4_1(float *restrict y, const uint8_t *restrict b) {
    const uint8_t *qs = b + 4;
    float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 16; i++) y[i] = (float)(qs[i] & 15) * d + m;
    for (int i = 0; i < 16; i++) y[16 + i] = (float)(qs[i] >> 4) * d + m;
}
static void q5_0(float *restrict y, const uint8_t *restrict b) {
    const uint8_t *qs = b + 6;
    float d = half_at(b);
    uint32_t qh = u32_at(b + 2);
    for (int i = 0; i < 16; i++) y[i] = (float)((int)((qs[i] & 15u) | (qh >> i & 1) << 4) - 16) * d;
    for (int i = 0; i < 16; i++) y[16 + i] = (float)((int)((qs[i] >> 4) | (qh >> (16 + i) & 1) << 4) - 16) * d;
}
static void q5_1(float *restrict y, const uint8_t *restrict b) {
    const uint8_t *qs = b + 8;
    float d = half_at(b), m = half_at(b + 2);
    uint32_t qh = u32_at(b + 4);
    for (int i = 0; i < 16; i++) y[i] = (float)(int)((qs[i] & 15u) | (qh >> i & 1) << 4) * d + m;
    for (int i = 0; i < 16; i++) y[16 + i] = (float)(int)((qs[i] >> 4) | (qh >> (16 + i) & 1) << 4) * d + m;
}
static void q8_0(float *restrict y, const uint8_t *restrict b) {
    const int8_t *qs = (const int8_t *)b + 2;
    float d = half_at(b);
    for (int i = 0; i < 32; i++) y[i] = (float)qs[i] * d;
}
static void q2_k(float *restrict y, const uint8_t *restrict b) {
    float d = half_at(b + 80), minimum = half_at(b + 82);
    for (int k = 0; k < 16; k++) {
        const uint8_t *qs = b + 16 + 32 * (k / 8) + 16 * (k % 2);
        int shift = 2 * (k % 8 / 2);
        float scale = d * (float)(b[k] & 15), offset = minimum * (float)(b[k] >> 4);
        for (int l = 0; l < 16; l++) y[16 * k + l] = scale * (float)(qs[l] >> shift & 3) - offset;
    }
}
static void q3_k(float *restrict y, const uint8_t *restrict b) {
    const uint8_t *scales = b + 96;
    float d = half_at(b + 108);
    for (int k = 0; k < 16; k++) {
        const uint8_t *qs = b + 32 + 32 * (k / 8) + 16 * (k % 2), *hm = b + 16 * (k % 2);
        int shift = 2 * (k % 8 / 2), bit = k / 2;
        int low = k < 8 ? scales[k] & 15 : scales[k - 8] >> 4, high = scales[8 + k % 4] >> 2 * (k / 4) & 3;
        float scale = d * (float)((low | high << 4) - 32);
        for (int l = 0; l < 16; l++) y[16 * k + l] = scale * (float)((qs[l] >> shift & 3) + 4 * (hm[l] >> bit & 1) - 4);
    }
}
static inline void k_scales(const uint8_t *s, int j, int *scale, int *minimum) {
    if (j < 4) {
        *scale = s[j] & 63;
        *minimum = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        *minimum = s[j + 4] >> 4 | s[j] >> 6 << 4;
    }
}
static void q4_k(float *restrict y, const uint8_t *restrict b) {
    float d = half_at(b), dmin = half_at(b + 2);
    for (int j = 0; j < 8; j++) {
        const uint8_t *qs = b + 16 + 32 * (j / 2);
        int shift = 4 * (j % 2), s, m;
        k_scales(b + 4, j, &s, &m);
        float scale = d * (float)s, offset = dmin * (float)m;
        for (int l = 0; l < 32; l++) y[32 * j + l] = scale * (float)(qs[l] >> shift & 15) - offset;
    }
}
static void q5_k(float *restrict y, const uint8_t *restrict b) {
    const uint8_t *qh = b + 16;
    float d = half_at(b), dmin = half_at(b + 2);
    for (int j = 0; j < 8; j++) {
        const uint8_t *qs = b + 48 + 32 * (j / 2);
        int shift = 4 * (j % 2), s, m;
        k_scales(b + 4, j, &s, &m);
        float scale = d * (float)s, offset = dmin * (float)m;
        for (int l = 0; l < 32; l++) {
            y[32 * j + l] = scale * (float)((qs[l] >> shift & 15) + 16 * (qh[l] >> j & 1)) - offset;
        }
    }
}
static void q6_k(float *restrict y, const uint8_t *restrict b) {
    const int8_t *scales = (const int8_t *)b + 192;
    float d = half_at(b + 208);
    for (int k = 0; k < 16; k++) { /* k = 8n + 2g + l / 16 */
        int n = k / 8, g = k % 8 / 2, half = 16 * (k % 2), shift = g < 2 ? 0 : 4, shift_high = 2 * g;
        const uint8_t *ql = b + 64 * n + 32 * (g & 1) + half, *qh = b + 128 + 32 * n + half;
        float scale = d * (float)scales[k];
        for (int l = 0; l < 16; l++) {
            y[16 * k + l] = scale * (float)((ql[l] >> shift & 15) + 16 * (qh[l] >> shift_high & 3) - 32);
        }
    }
}

static void f16_row(float *restrict y, const uint8_t *restrict p, int64_t n) {
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 2 * i))));
#endif
    for (; i < n; i++) y[i] = half_at(p + 2 * i);
}
static void bf16_row(float *restrict y, const uint8_t *restrict p, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        uint32_t bits = (uint32_t)h << 16;
        memcpy(y + i, &bits, 4);
    }
}
static void f64_row(float *restrict y, const uint8_t *restrict p, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double v;
        memcpy(&v, p + 8 * i, 8);
        y[i] = (float)v;
    }
}

#define EACH_BLOCK(decode, elements, bytes)                                                                            \
    for (int64_t i = 0; i < n; i++) decode(y + i * (elements), b + i * (bytes))

static void decode_blocks(float *restrict y, const uint8_t *restrict b, enum kern_dtype dtype, int64_t n) {
    switch (dtype) {
    case KERN_F32:
        memcpy(y, b, (size_t)n * 4);
        break;
    case KERN_F16:
        f16_row(y, b, n);
        break;
    case KERN_BF16:
        bf16_row(y, b, n);
        break;
    case KERN_F64:
        f64_row(y, b, n);
        break;
    case KERN_Q4_0:
        EACH_BLOCK(q4_0, 32, 18);
        break;
    case KERN_Q4_1:
        EACH_BLOCK(q4_1, 32, 20);
        break;
    case KERN_Q5_0:
        EACH_BLOCK(q5_0, 32, 22);
        break;
    case KERN_Q5_1:
        EACH_BLOCK(q5_1, 32, 24);
        break;
    case KERN_Q8_0:
        EACH_BLOCK(q8_0, 32, 34);
        break;
    case KERN_Q2_K:
        EACH_BLOCK(q2_k, 256, 84);
        break;
    case KERN_Q3_K:
        EACH_BLOCK(q3_k, 256, 110);
        break;
    case KERN_Q4_K:
        EACH_BLOCK(q4_k, 256, 144);
        break;
    case KERN_Q5_K:
        EACH_BLOCK(q5_k, 256, 176);
        break;
    case KERN_Q6_K:
        EACH_BLOCK(q6_k, 256, 210);
        break;
    case KERN_DTYPE_COUNT:
        break;
    }
}

void kern_dequant_cpu(float *y, const void *blocks, enum kern_dtype dtype, int64_t rows, int64_t D) {
    const struct kern_dtype_info *info = &kern_dtypes[dtype];
    int64_t per_chunk = CHUNK_ELEMENTS / info->block_elements, n = rows * D / info->block_elements;
    int64_t chunks = (n + per_chunk - 1) / per_chunk;
    const uint8_t *bytes = blocks;
    if (chunks <= 1) {
        decode_blocks(y, bytes, dtype, n);
        return;
    }
#pragma omp parallel for schedule(dynamic) default(none) shared(y, bytes, dtype, info, n, per_chunk, chunks)           \
    num_threads((int)kern_threads())
    for (int64_t c = 0; c < chunks; c++) {
        int64_t first = c * per_chunk, count = n - first < per_chunk ? n - first : per_chunk;
        decode_blocks(y + first * info->block_elements, bytes + first * info->block_bytes, dtype, count);
    }
}
