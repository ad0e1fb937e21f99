/* Sizes of the stored types; the layouts are in dequant_ref.c, which both backends must equal bit for bit. */
#include "kernels/kernels.h"

const struct kern_dtype_info kern_dtypes[KERN_DTYPE_COUNT] = {
    [KERN_F32] = {"F32", 1, 4},       [KERN_F16] = {"F16", 1, 2},       [KERN_BF16] = {"BF16", 1, 2},
    [KERN_F64] = {"F64", 1, 8},       [KERN_Q4_0] = {"Q4_0", 32, 18},   [KERN_Q4_1] = {"Q4_1", 32, 20},
    [KERN_Q5_0] = {"Q5_0", 32, 22},   [KERN_Q5_1] = {"Q5_1", 32, 24},   [KERN_Q8_0] = {"Q8_0", 32, 34},
    [KERN_Q2_K] = {"Q2_K", 256, 84},  [KERN_Q3_K] = {"Q3_K", 256, 110}, [KERN_Q4_K] = {"Q4_K", 256, 144},
    [KERN_Q5_K] = {"Q5_K", 256, 176}, [KERN_Q6_K] = {"Q6_K", 256, 210},
};
