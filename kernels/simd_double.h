/* kernels/simd_double.h: short vectors of doubles for *_cpu.c, and e^x in them. KERN_DV doubles a vector: half of KERN_V. */
#ifndef AG_KERNELS_SIMD_DOUBLE_H
#define AG_KERNELS_SIMD_DOUBLE_H

#include "kernels/simd.h"

enum { KERN_DV = KERN_V / 2 };

typedef double kern_dvec __attribute__((vector_size(KERN_DV * 8)));
typedef int64_t kern_divec __attribute__((vector_size(KERN_DV * 8)));

static inline kern_dvec kern_dsplat(double x) { return x - (kern_dvec){0}; }
/* mask: all ones or all zeros in each lane */
static inline kern_dvec kern_choose(kern_divec mask, kern_dvec yes, kern_dvec no) {
    return (kern_dvec)((mask & (kern_divec)yes) | (~mask & (kern_divec)no));
}
static inline kern_dvec kern_larger(kern_dvec x, kern_dvec y) { return kern_choose(x > y, x, y); }
static inline kern_dvec kern_smaller(kern_dvec x, kern_dvec y) { return kern_choose(x < y, x, y); }

/* n = round(x log2 e) and p = e^(x - n log 2), |x| < 2^31: relative error of p below 4u (tests/test_logits.c), with or without fused
 * multiply-add. The reduction by log 2 in three parts, the first two of 21 bits: their products with n < 2^32 and the differences are
 * exact. Taylor's polynomial of degree 13 on |r| <= 0.3466: the remainder is 4e-18 of e^r. */
#define KERN_ROUND 0x1.8p52
static inline kern_dvec kern_dexp(kern_dvec x, kern_dvec *n) {
    kern_dvec k = (x * 0x1.71547652b82fep0 + KERN_ROUND) - KERN_ROUND;
    kern_dvec r = ((x - k * 0x1.62e420p-1) - k * 0x1.fdf4700000000p-22) - k * 0x1.ef35793c76730p-45;
    kern_dvec p = kern_dsplat(1.0 / 6227020800);
    p = p * r + 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    *n = k;
    return p;
}

/* 2^n for integers n <= 0; below -1022 it stays 2^-1022: against a sum of at least 0.7 that is nothing. */
static inline kern_dvec kern_dpow2(kern_dvec n) {
    n = kern_larger(n, kern_dsplat(-1022));
    return (kern_dvec)(((kern_divec)(n + (KERN_ROUND + 1023)) << 52)); /* the low bits of the sum hold n + 1023 */
}

#endif
