/* kernels/device_none.c: the build without CUDA has no devices, and says so. */
#include "kernels/device.h"

#include <stdio.h>

int kern_devices(struct kern_device *out, int most, int *driver, int *runtime, char reason[256]) {
    (void)out;
    (void)most;
    *driver = *runtime = 0;
    snprintf(reason, 256, "this build has no CUDA (make found no nvcc, or CUDA=0)");
    return 0;
}
