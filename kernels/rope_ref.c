/* kernels/rope_ref.c: half-split rotary embedding, plain. */
#include "kernels/ops.h"

#include <math.h>

void kern_rope_ref(float *y, const float *x, const int32_t *position, const float *inv_freq, int64_t T, int64_t heads,
                   int64_t D, int64_t n_rot, int64_t ldy, int64_t ldx, float attention_scaling) {
    int64_t half = n_rot / 2;
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < heads; h++) {
            const float *from = x + t * ldx + h * D;
            float *to = y + t * ldy + h * D;
            for (int64_t i = 0; i < half; i++) {
                /* The product is rounded to f32 as the reference library does: at position 1e4 it moves the angle by
                 * 1e-3. */
                float angle = (float)position[t] * inv_freq[i];
                double c = cos((double)angle) * attention_scaling, s = sin((double)angle) * attention_scaling;
                double a = from[i], b = from[i + half];
                to[i] = (float)(a * c - b * s);
                to[i + half] = (float)(b * c + a * s);
            }
            for (int64_t i = 2 * half; i < D; i++) to[i] = from[i];
        }
}
