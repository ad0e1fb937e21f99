/* kernels/device.cu: the devices that the CUDA runtime sees. device_none.c stands in where CUDA is not built. */
#include "kernels/device.h"

#include <cuda_runtime.h>
#include <stdio.h>

extern "C" int kern_devices(struct kern_device *out, int most, int *driver, int *runtime, char reason[256]) {
    int n = 0;
    *driver = *runtime = 0;
    reason[0] = '\0';
    cudaDriverGetVersion(driver);
    cudaRuntimeGetVersion(runtime);
    cudaError_t status = cudaGetDeviceCount(&n);
    if (status != cudaSuccess || n == 0) {
        snprintf(reason, 256, "this build has CUDA, but this machine has no usable device (%s)",
                 status == cudaSuccess ? "none found" : cudaGetErrorString(status));
        cudaGetLastError();
        return 0;
    }
    for (int i = 0; i < n && i < most; i++) {
        cudaDeviceProp properties;
        size_t available = 0, total = 0;
        out[i] = kern_device{};
        if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
        snprintf(out[i].name, sizeof out[i].name, "%s", properties.name);
        out[i].major = properties.major;
        out[i].minor = properties.minor;
        out[i].memory = (int64_t)properties.totalGlobalMem;
        if (cudaSetDevice(i) == cudaSuccess && cudaMemGetInfo(&available, &total) == cudaSuccess)
            out[i].memory_free = (int64_t)available;
    }
    return n;
}
