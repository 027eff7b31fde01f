/* Stands for the images of kernels, which the simulator has in itself. */
#include "functions.h"

const struct gpu_image gpu_images[] = {{"simulated", ""}, {0}};
const int gpu_images_toolkit = 13000;
