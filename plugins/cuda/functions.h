/* Functions on the device that are compiled when a run is planned. */
#ifndef GPU_FUNCTIONS_H
#define GPU_FUNCTIONS_H

#include "gpu.h"

/* Load one more image, until gpu_functions_unload, and find its function. */
int gpu_functions_add(struct gpu *gpu, const void *image, const char *name, CUfunction *function);

#endif
