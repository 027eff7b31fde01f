/*
 * The images of kernels: image.S, once for each source.
 */
#include "functions.h"

#define IMAGES(X)                                                                                  \
    X(attention)                                                                                   \
    X(elementwise)                                                                                 \
    X(embedding)                                                                                   \
    X(float8)                                                                                      \
    X(init)                                                                                        \
    X(loss)                                                                                        \
    X(norm)                                                                                        \
    X(optimizer)                                                                                   \
    X(rope)

#define X(name) extern const char gpu_image_##name[];
IMAGES(X)
#undef X

const struct gpu_image gpu_images[] = {
#define X(name) {#name, gpu_image_##name},
    IMAGES(X)
#undef X
        {0}};

const int gpu_images_toolkit = GPU_TOOLKIT;
