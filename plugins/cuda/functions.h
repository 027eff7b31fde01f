/* The images of kernels that were built into the plugin; data NULL ends. */
#ifndef GPU_FUNCTIONS_H
#define GPU_FUNCTIONS_H

#include "gpu.h"

struct gpu_image {
    const char *name;
    const void *data;
};
extern const struct gpu_image gpu_images[];
/* The CUDA toolkit that built them: 13.2 is 13020. */
extern const int gpu_images_toolkit;

/* Load one more image, until gpu_functions_unload, and find its function. */
int gpu_functions_add(struct gpu *gpu, const void *image, const char *name, CUfunction *function);

#endif
