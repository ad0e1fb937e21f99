/* kernels/rope_cpu.c: half-split rotary embedding: one table of cosines and sines a token, shared by its heads. */
#include "kernels/ops.h"

#include <math.h>

enum { GRAIN = 1 << 13, HALF_MAX = KERN_HEAD_MAX / 2 };

/* cos and sin of n angles below 1e6, in double (absolute error below 1e-11), rounded once: as good as a correctly
 * rounded cosf in all but one case in thousands. Written without branches so that the compiler vectorises it. */
static void table(float *restrict c, float *restrict s, const float *restrict angle, int64_t n, float scaling) {
    for (int64_t i = 0; i < n; i++) {
        /* r = angle - quadrant pi/2; adding 1.5 2^52 rounds and leaves the integer in the low bits */
        double shifted = angle[i] * 0x1.45f306dc9c883p-1 + 0x1.8p52, quadrant = shifted - 0x1.8p52;
        double r = (angle[i] - quadrant * 0x1.921fb544p0) - quadrant * 0x1.0b4611a626331p-34, z = r * r;
        double sin_r =
            r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 + z * (-1.0 / 39916800)))));
        double cos_r =
            1 + z * (-0.5 + z * (1.0 / 24 +
                                 z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800 + z * (1.0 / 479001600))))));
        union {
            double real;
            int64_t bits;
        } q = {shifted};
        double cosine = q.bits & 1 ? sin_r : cos_r, sine = q.bits & 1 ? cos_r : sin_r;
        c[i] = (float)((q.bits + 1) & 2 ? -cosine : cosine) * scaling;
        s[i] = (float)(q.bits & 2 ? -sine : sine) * scaling;
    }
}

static void token(float *y, const float *x, int32_t position, const float *inv_freq, int64_t heads, int64_t D,
                  int64_t n_rot, float scaling) {
    float angle[HALF_MAX], c[HALF_MAX], s[HALF_MAX];
    const int64_t half = n_rot / 2;
    bool small = true;
    for (int64_t i = 0; i < half; i++) {
        angle[i] = (float)position * inv_freq[i];
        small &= fabsf(angle[i]) < 1e6f;
    }
    if (small)
        table(c, s, angle, half, scaling);
    else
        for (int64_t i = 0; i < half; i++) {
            c[i] = cosf(angle[i]) * scaling;
            s[i] = sinf(angle[i]) * scaling;
        }
    for (int64_t h = 0; h < heads; h++) {
        const float *from = x + h * D;
        float *to = y + h * D;
        for (int64_t i = 0; i < half; i++) {
            float a = from[i], b = from[i + half];
            to[i] = a * c[i] - b * s[i];
            to[i + half] = b * c[i] + a * s[i];
        }
        for (int64_t i = 2 * half; i < D; i++) to[i] = from[i];
    }
}

void kern_rope_cpu(float *y, const float *x, const int32_t *position, const float *inv_freq, int64_t T, int64_t heads,
                   int64_t D, int64_t n_rot, int64_t ldy, int64_t ldx, float attention_scaling) {
    int threads = (int)kern_threads();
#pragma omp parallel for num_threads(threads) if (T * heads * D >= GRAIN) default(none)                                \
    shared(y, x, position, inv_freq, T, heads, D, n_rot, ldy, ldx, attention_scaling)
    for (int64_t t = 0; t < T; t++)
        token(y + t * ldy, x + t * ldx, position[t], inv_freq, heads, D, n_rot, attention_scaling);
}
