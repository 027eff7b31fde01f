/* The images of kernels, and the functions of each; none without nvcc. */
#include "gpu.h"

CT_CUDA_CODE(gpu_code);

const struct gpu_image_function gpu_image_functions[] = {
#ifdef GPU_IMAGE_FUNCTIONS
#include GPU_IMAGE_FUNCTIONS
#endif
    {0}};
