/* kernels/device.h: the accelerators of this machine, for `attgeo info --backends` and the choice of a backend. */
#ifndef AG_KERNELS_DEVICE_H
#define AG_KERNELS_DEVICE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kern_device {
    char name[256];
    int major, minor;            /* compute capability */
    int64_t memory, memory_free; /* bytes */
};

/* Fills at most `most` devices and returns how many there are; 0 with the reason (one line: a build without CUDA, no
 * driver, no device) in reason. driver, runtime: CUDA versions as 1000 * major + 10 * minor, 0 when unknown. */
int kern_devices(struct kern_device *out, int most, int *driver, int *runtime, char reason[256]);

#ifdef __cplusplus
}
#endif
#endif
