/*
 * Usage: test_races KERNELS NAME: launches kernel NAME of the library KERNELS, two blocks of 64
 * threads, on the simulated device that looks for races; it ends the process with 1 if it finds
 * one.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>

int cuMemAlloc_v2(uint64_t *address, size_t bytes);
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                   void *stream, void **parameters, void **extra);
int cuStreamCreate(void **stream, unsigned flags);

int main(int argc, char **argv)
{
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW) : NULL;
    void *function = library ? dlsym(library, argv[2]) : NULL, *stream;
    uint64_t memory = 0;
    void *parameters[] = {&memory};

    if (!function || cuStreamCreate(&stream, 0) || cuMemAlloc_v2(&memory, 4096) ||
        cuLaunchKernel(function, 2, 1, 1, 64, 1, 1, 1024, stream, parameters, NULL)) {
        fprintf(stderr, "test_races: no launch: %s\n", dlerror());
        return 3;
    }
    return 0;
}
