/* The meaning of every stored type, element by element (spec/checkpoints.md 2.1): plain code, one formula a type.
 * Products are taken left to right in f32, without contraction; that is what makes the bits those of the formats'
 * authors. */
#include <string.h>

#include "kernels/ops.h"

static uint16_t read_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static uint32_t read_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static uint64_t read_u64(const uint8_t *p) { return (uint64_t)read_u32(p) | (uint64_t)read_u32(p + 4) << 32; }

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* IEEE binary16, subnormals included; a NaN keeps its payload and becomes quiet, as the processor's instruction does.
 */
static float half_at(const uint8_t *p) {
    uint32_t h = read_u16(p), sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 31) return from_bits(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0));
    if (exponent != 0) return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float magnitude = (float)mantissa * 0x1p-24f; /* exact */
    return sign ? -magnitude : magnitude;
}

static float f64_at(const uint8_t *p) {
    uint64_t bits = read_u64(p);
    double value;
    memcpy(&value, &bits, 8);
    return (float)value;
}

static int nibble(const uint8_t *qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }

static float q4_0_at(const uint8_t *b, int i) { return (float)(nibble(b + 2, i) - 8) * half_at(b); }
static float q4_1_at(const uint8_t *b, int i) { return (float)nibble(b + 4, i) * half_at(b) + half_at(b + 2); }
static float q5_0_at(const uint8_t *b, int i) {
    int q = nibble(b + 6, i) | (int)(read_u32(b + 2) >> i & 1) << 4;
    return (float)(q - 16) * half_at(b);
}
static float q5_1_at(const uint8_t *b, int i) {
    int q = nibble(b + 8, i) | (int)(read_u32(b + 4) >> i & 1) << 4;
    return (float)q * half_at(b) + half_at(b + 2);
}
static float q8_0_at(const uint8_t *b, int i) { return (float)(int8_t)b[2 + i] * half_at(b); }

static float q2_k_at(const uint8_t *b, int i) {
    int n = i / 128, j = i % 128 / 32, l = i % 32, s = b[8 * n + 2 * j + l / 16];
    int q = b[16 + 32 * n + l] >> 2 * j & 3;
    return half_at(b + 80) * (float)(s & 15) * (float)q - half_at(b + 82) * (float)(s >> 4);
}
static float q3_k_at(const uint8_t *b, int i) {
    const uint8_t *scales = b + 96;
    int n = i / 128, j = i % 128 / 32, l = i % 32, k = 8 * n + 2 * j + l / 16;
    int low = k < 8 ? scales[k] & 15 : scales[k - 8] >> 4, high = scales[8 + k % 4] >> 2 * (k / 4) & 3;
    int q = (b[32 + 32 * n + l] >> 2 * j & 3) - (b[l] >> (4 * n + j) & 1 ? 0 : 4);
    return half_at(b + 108) * (float)((low | high << 4) - 32) * (float)q;
}

/* The 6-bit scale and minimum of sub-block j, packed in 12 bytes. */
static void k_scales(const uint8_t *s, int j, int *scale, int *minimum) {
    if (j < 4) {
        *scale = s[j] & 63;
        *minimum = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        *minimum = s[j + 4] >> 4 | s[j] >> 6 << 4;
    }
}
static float q4_k_at(const uint8_t *b, int i) {
    int j = i / 32, byte = b[16 + 32 * (j / 2) + i % 32], q = j % 2 ? byte >> 4 : byte & 15, scale, minimum;
    k_scales(b + 4, j, &scale, &minimum);
    return half_at(b) * (float)scale * (float)q - half_at(b + 2) * (float)minimum;
}
static float q5_k_at(const uint8_t *b, int i) {
    int j = i / 32, byte = b[48 + 32 * (j / 2) + i % 32], scale, minimum;
    int q = (j % 2 ? byte >> 4 : byte & 15) | (b[16 + i % 32] >> j & 1) << 4;
    k_scales(b + 4, j, &scale, &minimum);
    return half_at(b) * (float)scale * (float)q - half_at(b + 2) * (float)minimum;
}
static float q6_k_at(const uint8_t *b, int i) {
    int n = i / 128, g = i % 128 / 32, l = i % 32, byte = b[64 * n + l + 32 * (g & 1)];
    int low = g < 2 ? byte & 15 : byte >> 4, high = b[128 + 32 * n + l] >> 2 * g & 3;
    float scale = half_at(b + 208) * (float)(int8_t)b[192 + 8 * n + 2 * g + l / 16];
    return scale * (float)((low | high << 4) - 32);
}

static float element_at(const uint8_t *block, enum kern_dtype dtype, int i) {
    switch (dtype) {
    case KERN_F32:
        return from_bits(read_u32(block));
    case KERN_F16:
        return half_at(block);
    case KERN_BF16:
        return from_bits((uint32_t)read_u16(block) << 16);
    case KERN_F64:
        return f64_at(block);
    case KERN_Q4_0:
        return q4_0_at(block, i);
    case KERN_Q4_1:
        return q4_1_at(block, i);
    case KERN_Q5_0:
        return q5_0_at(block, i);
    case KERN_Q5_1:
        return q5_1_at(block, i);
    case KERN_Q8_0:
        return q8_0_at(block, i);
    case KERN_Q2_K:
        return q2_k_at(block, i);
    case KERN_Q3_K:
        return q3_k_at(block, i);
    case KERN_Q4_K:
        return q4_k_at(block, i);
    case KERN_Q5_K:
        return q5_k_at(block, i);
    case KERN_Q6_K:
        return q6_k_at(block, i);
    case KERN_DTYPE_COUNT:
        break;
    }
    return 0.0f;
}

void kern_dequant_ref(float *y, const void *blocks, enum kern_dtype dtype, int64_t rows, int64_t D) {
    const struct kern_dtype_info *info = &kern_dtypes[dtype];
    int64_t n = rows * D / info->block_elements;
    for (int64_t b = 0; b < n; b++) {
        for (int i = 0; i < info->block_elements; i++) {
            y[b * info->block_elements + i] = element_at((const uint8_t *)blocks + b * info->block_bytes, dtype, i);
        }
    }
}
