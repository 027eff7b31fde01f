/* The images of kernels; none without nvcc. */
#include "gpu.h"

CT_CUDA_CODE(gpu_code);
