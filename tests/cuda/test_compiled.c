/*
 * Whether NVIDIA's own NVRTC compiles what plugins generate, for A100, H100 and B200.
 *
 *     test_compiled FILE...
 *
 * FILE: code in the language of rows (ctitan/lib/compiler.h), as [fuse] dump writes it. Skipped
 * where NVRTC is not installed. Prints TAP.
 */
#include <stdio.h>

#include <ctitan/file.h>
#include <ctitan/lib/compiler.h>

#include "gpu.h"

static int driver_version(int *version)
{
    *version = 13000;
    return CUDA_SUCCESS;
}

static int compile(const char *path, int capability)
{
    struct gpu gpu = {.cuda.capability = capability};
    struct ct_arena arena = {0};
    char version[256], *source;
    void *object;
    size_t size;
    int rc = ct_file_read(&arena, path, 1 << 20, &source, &size);

    if (rc == 0)
        rc = gpu_compiler_ops.version(&gpu.base.base, version, sizeof(version));
    if (rc == 0)
        rc = gpu_compiler_ops.compile(&gpu.base.base, source, &arena, &object, &size);
    if (rc == 0 && size < 1000)
        rc = ct_fail(CT_EIO, "an object of %zu bytes", size);
    ct_arena_finish(&arena);
    return rc;
}

int main(int argc, char **argv)
{
    static const int capabilities[] = {80, 90, 100};
    struct gpu gpu = {0};
    char version[256];
    int number = 0, failed = 0;

    gpu_driver.cuDriverGetVersion = driver_version;
    if (gpu_compiler_ops.version(&gpu.base.base, version, sizeof(version)) < 0) {
        printf("1..0 # SKIP %s\n", ct_error_message());
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        int capability = capabilities[i % (int)CT_COUNT(capabilities)];
        int rc = compile(argv[i], capability);

        printf("%sok %d - %s for %d\n", rc < 0 ? "not " : "", ++number, argv[i], capability);
        if (rc < 0)
            printf("# %s\n", ct_error_message());
        failed |= rc < 0;
    }
    printf("1..%d\n", number);
    return failed || number == 0;
}
