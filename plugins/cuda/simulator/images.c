/* Stands for the images of kernels, which the simulator has in itself. */
#include "gpu.h"

static const struct ct_cuda_image images[] = {{"simulated", ""}, {0}};

const struct ct_cuda_code gpu_code = {
    .size = sizeof(struct ct_cuda_code), .toolkit = 13000, .images = images};

/* One image has all. */
const struct gpu_image_function gpu_image_functions[] = {{0}};
