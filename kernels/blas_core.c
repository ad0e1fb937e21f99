/* kernels/blas_core.c: makes OpenBLAS use kernels fit for this processor (DESIGN.md, BLAS core). OpenBLAS chooses once,
 * when it is loaded, and reads OPENBLAS_CORETYPE only then: so the variable is set and the program executed again. */
#include "kernels/ops.h"

#include <cblas.h>
#include <cpuid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Holds what OpenBLAS had detected, so that the second run can say so; its presence stops a third. */
static const char guard[] = "ATTGEO_BLAS_DETECTED";

/* Names as OpenBLAS 0.3 spells them. 2: written for AVX-512; 1: for AVX2 and FMA; 0: older. */
static int core_level(const char *name) {
    static const char *const avx512[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
    static const char *const avx2[] = {"Haswell", "Zen", "Excavator"};
    for (size_t i = 0; i < sizeof avx512 / sizeof *avx512; i++)
        if (strcasecmp(name, avx512[i]) == 0) return 2;
    for (size_t i = 0; i < sizeof avx2 / sizeof *avx2; i++)
        if (strcasecmp(name, avx2[i]) == 0) return 1;
    return 0;
}

const char *kern_blas_core_choose(const char *detected, unsigned features, const char *user) {
    if (user) return NULL;
    int level = core_level(detected);
    /* AVX2 kernels on a processor with AVX-512: half speed on Intel's, full speed on AMD's. */
    if (features & KERN_CPU_AVX512 && level < (features & KERN_CPU_INTEL ? 2 : 1)) return "SkylakeX";
    if (features & KERN_CPU_AVX2 && level < 1) return "Haswell";
    return NULL;
}

static unsigned cpu_features(void) {
    unsigned features = 0;
#if defined(__x86_64__)
    unsigned eax, ebx = 0, ecx = 0, edx = 0;
    __builtin_cpu_init(); /* asks the system too: what it does not save across switches counts as absent */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) features |= KERN_CPU_AVX2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
        features |= KERN_CPU_AVX512;
    if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) && ebx == signature_INTEL_ebx) features |= KERN_CPU_INTEL;
#endif
    return features;
}

void kern_blas_core_fix(char **argv) {
    if (getenv(guard)) return;
    const char *detected = openblas_get_corename();
    const char *core = kern_blas_core_choose(detected, cpu_features(), getenv("OPENBLAS_CORETYPE"));
    if (!core || setenv(guard, detected, 1) != 0) return;
    if (setenv("OPENBLAS_CORETYPE", core, 1) == 0) execv("/proc/self/exe", argv);
    /* Could not: carry on with what there is, and say so in kern_blas_core. */
    unsetenv("OPENBLAS_CORETYPE");
}

const char *kern_blas_core(void) {
    static char text[160];
    const char *core = openblas_get_corename(), *detected = getenv(guard), *user = getenv("OPENBLAS_CORETYPE");
    const char *better = kern_blas_core_choose(core, cpu_features(), NULL);
    if (detected && user)
        snprintf(text, sizeof text, "%s (set by attgeo: OpenBLAS detected %s)", core, detected);
    else if (user)
        snprintf(text, sizeof text, "%s (OPENBLAS_CORETYPE=%s in the environment%s%s)", core, user,
                 better ? "; this processor could run " : "", better ? better : "");
    else
        snprintf(text, sizeof text, "%s (as detected%s%s)", core, better ? "; this processor could run " : "",
                 better ? better : "");
    return text;
}
