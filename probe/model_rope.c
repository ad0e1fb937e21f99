/* The RoPE frequencies, in f32 and step by step as the reference library takes them (spec/softmax-models.md section 2),
 * so that angles at long positions agree: there one last bit of a frequency is 1e-3 rad. */
#include <math.h>

#include "probe/model_internal.h"

/* Division of a number by a tensor is a reciprocal and a product there. */
static float over(double number, float x) { return 1.0f / x * (float)number; }

static float llama3(const struct model_rope *rope, float inv_freq) {
    double low = rope->original_max_position / rope->low_freq_factor,
           high = rope->original_max_position / rope->high_freq_factor;
    float wavelength = over(2 * M_PI, inv_freq), factor = (float)rope->factor;
    bool is_long = wavelength > (float)low;
    float scaled = is_long ? inv_freq / factor : inv_freq;
    if (is_long || wavelength < (float)high) return scaled;
    float smooth = (over(rope->original_max_position, wavelength) - (float)rope->low_freq_factor) /
                   (float)(rope->high_freq_factor - rope->low_freq_factor);
    return (1.0f - smooth) * scaled / factor + smooth * scaled;
}

enum ag_status model_rope_table(struct model_rope *rope, const float *divisors, struct ag_arena *arena,
                                struct ag_error *err) {
    int64_t n = rope->n_rot / 2;
    rope->attention_scaling = 1.0f;
    rope->inv_freq = AG_NEW(arena, float, n, err);
    if (!rope->inv_freq) return AG_E_MEMORY;
    for (int64_t i = 0; i < n; i++) {
        float inv_freq = 1.0f / powf((float)rope->theta, (float)(2 * i) / (float)rope->n_rot);
        if (divisors) {
            inv_freq /= divisors[i];
        } else if (rope->type == ROPE_LINEAR) {
            inv_freq /= (float)rope->factor;
        } else if (rope->type == ROPE_LLAMA3) {
            inv_freq = llama3(rope, inv_freq);
        }
        if (!isfinite(inv_freq)) {
            return ag_fail(err, AG_E_FORMAT,
                           "RoPE frequency %lld is not finite (theta %g, factor %g); the parameters are damaged",
                           (long long)i, rope->theta, rope->factor);
        }
        rope->inv_freq[i] = inv_freq;
    }
    return AG_OK;
}
