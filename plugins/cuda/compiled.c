/*
 * Kernels that other plugins generate (ctitan/lib/compiler.h): compiled by NVRTC, a library of the
 * CUDA toolkit, with kernels/rows.cuh as the header.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include <ctitan/lib/compiler.h>

#include "functions.h"
#include "rtc_library.h"

#define THREADS 256
#define LANES 8             /* of rows.cuh */
#define WORKERS 16          /* most blocks on a multiprocessor */
#define CHUNK (4 * THREADS) /* lanes of a block, of one long row */

static struct {
    void *library;
#define X(name, parameters) int(*name) parameters;
    GPU_RTC_CALLS(X)
#undef X
} rtc;

static const struct gpu_call calls[] = {
#define X(name, parameters) {#name, &rtc.name},
    GPU_RTC_CALLS(X)
#undef X
};

extern const char gpu_text_rows[], gpu_text_arguments[], gpu_text_kit_arguments[],
    gpu_text_kit_device[];

static const struct header {
    const char *name, *text;
} headers[] = {
    {CT_COMPILER_HEADER, gpu_text_rows},
    {"arguments.h", gpu_text_arguments},
    {"ctitan/lib/cuda/arguments.h", gpu_text_kit_arguments},
    {"ctitan/lib/cuda/device.cuh", gpu_text_kit_device},
    {"stdint.h", "typedef signed char int8_t; typedef unsigned char uint8_t;\n"
                 "typedef short int16_t; typedef unsigned short uint16_t;\n"
                 "typedef int int32_t; typedef unsigned uint32_t;\n"
                 "typedef long long int64_t; typedef unsigned long long uint64_t;\n"},
};

/* ---- compiling ---- */

/* The library of the driver's own version of CUDA comes first: older drivers load no newer code. */
static int load_library(void)
{
    static const char *const newest[] = {"libnvrtc.so.13", "libnvrtc.so.12", NULL};
    const char *missing;
    int driver = 0, rc;
    void *library;

    if (rtc.library)
        return 0;
    rc = gpu_check(gpu_driver.cuDriverGetVersion(&driver), "the driver's version");
    if (rc == 0)
        rc = gpu_library(newest + (driver < 13000), &library);
    if (rc < 0)
        return ct_context(rc, "NVRTC, of the CUDA toolkit, is not installed");
    missing = gpu_find_calls(library, calls, CT_COUNT(calls));
    if (missing)
        return ct_fail(CT_ENOENT, "this NVRTC has no %s", missing);
    rtc.library = library;
    return 0;
}

static uint64_t hash_headers(void)
{
    uint64_t hash = 14695981039346656037u;

    for (size_t i = 0; i < CT_COUNT(headers); i++)
        for (const char *c = headers[i].text; *c; c++)
            hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    return hash;
}

static int version(struct ct_device *device, char *text, size_t room)
{
    int major = 0, minor = 0, rc;

    if (!device || gpu_of(device)->described)
        return 1;
    rc = load_library();
    if (rc < 0)
        return rc;
    rtc.nvrtcVersion(&major, &minor);
    snprintf(text, room, "NVRTC %d.%d sm_%d %016llx", major, minor, gpu_of(device)->cuda.capability,
             (unsigned long long)hash_headers());
    return 0;
}

static int fail_with_log(nvrtcProgram program, const char *what, int status)
{
    size_t bytes = 0;
    char *log;
    int rc;

    rtc.nvrtcGetProgramLogSize(program, &bytes);
    log = calloc(1, bytes + 1);
    if (log)
        rtc.nvrtcGetProgramLog(program, log);
    rc = ct_fail(CT_EIO, "NVRTC: %s: status %d: %.600s", what, status, log ? log : "");
    free(log);
    return rc;
}

static int take_object(nvrtcProgram program, struct ct_arena *arena, void **object, size_t *bytes)
{
    int status = rtc.nvrtcGetCUBINSize(program, bytes);

    if (status)
        return fail_with_log(program, "no code", status);
    *object = ct_arena_alloc(arena, *bytes);
    status = rtc.nvrtcGetCUBIN(program, *object);
    return status ? fail_with_log(program, "no code", status) : 0;
}

static int compile(struct ct_device *device, const char *source, struct ct_arena *arena,
                   void **object, size_t *bytes)
{
    const char *texts[CT_COUNT(headers)], *names[CT_COUNT(headers)], *options[2] = {"-std=c++17"};
    nvrtcProgram program;
    char target[32];
    int status, rc;

    for (size_t i = 0; i < CT_COUNT(headers); i++) {
        texts[i] = headers[i].text;
        names[i] = headers[i].name;
    }
    snprintf(target, sizeof(target), "-arch=sm_%d", gpu_of(device)->cuda.capability);
    options[1] = target;
    status = rtc.nvrtcCreateProgram(&program, source, "rows.cu", CT_COUNT(headers), texts, names);
    if (status)
        return ct_fail(CT_EIO, "NVRTC: status %d", status);
    status = rtc.nvrtcCompileProgram(program, CT_COUNT(options), options);
    rc = status ? fail_with_log(program, "it does not compile", status)
                : take_object(program, arena, object, bytes);
    rtc.nvrtcDestroyProgram(&program);
    return rc;
}

/* ---- running ---- */

/* A function, and the one that adds up its blocks' sums. */
struct compiled {
    CUfunction function;
    struct ct_cuda_function *sum;
};

static int load_object(struct ct_device *device, const void *object, size_t bytes, void **function)
{
    struct compiled *loaded = ct_arena_new(&gpu_of(device)->arena, struct compiled);
    int rc = gpu_functions_add(gpu_of(device), object, "compiled", &loaded->function);

    (void)bytes; /* the object says so itself */
    *function = loaded;
    return rc < 0 ? rc : gpu_find_function(device, &gpu_code, GPU_COLUMN_SUM, &loaded->sum);
}

/* Whole warps, no more than a row needs. */
static unsigned threads_for(int64_t columns)
{
    int64_t warps = ct_cuda_blocks(columns, 32 * LANES);

    return (unsigned)(warps < THREADS / 32 ? warps : THREADS / 32) * 32;
}

static int64_t workers(struct ct_device *device, int64_t rows, int64_t columns)
{
    int64_t each = 2048 / threads_for(columns);
    int64_t most = (each < WORKERS ? each : WORKERS) * gpu_of(device)->cuda.multiprocessors;

    return rows < most ? rows : most;
}

static int launch_function(const struct ct_launch *l, CUfunction function, int64_t blocks,
                           unsigned threads, struct gpu_compiled *a)
{
    void *parameters[] = {a};

    return gpu_check(gpu_driver.cuLaunchKernel(function, (unsigned)blocks, 1, 1, threads, 1, 1, 0,
                                               l->stream, parameters, NULL),
                     "a compiled kernel");
}

static int add_sums(const struct ct_launch *l, struct ct_cuda_function *f,
                    const struct ct_compiled_call *call, int64_t blocks)
{
    int rc = 0;

    for (int k = 0; rc == 0 && k < call->sums; k++) {
        struct gpu_column_sum a = {.out = call->sum[k],
                                   .in = call->scratch + k * blocks * call->columns,
                                   .rows = blocks,
                                   .columns = call->columns,
                                   .kind = ct_cuda_float_of(call->sum_dtype[k])};

        rc = ct_cuda_launch(l, f,
                            (struct ct_cuda_size){(unsigned)ct_cuda_blocks(a.columns, 32), 1, 1},
                            (struct ct_cuda_size){32, 8, 1}, 0, &a);
    }
    return rc;
}

static int launch(const struct ct_launch *l, void *function, const struct ct_compiled_call *call)
{
    const struct compiled *compiled = function;
    struct gpu_compiled a = {.rows = call->rows,
                             .columns = call->columns,
                             .chunk = call->flat ? CHUNK * LANES : 0,
                             .sums = call->scratch,
                             .sum_count = call->sums};
    int64_t blocks =
        workers(l->device, call->flat ? ct_cuda_blocks(call->columns, CHUNK * LANES) : call->rows,
                call->columns);
    int rc;

    static_assert(CT_COMPILED_INPUTS <= CT_COUNT(a.in) && CT_COMPILED_OUTPUTS <= CT_COUNT(a.out),
                  "operands of a compiled kernel");
    for (int i = 0; i < CT_COMPILED_INPUTS; i++)
        a.in[i] = (struct gpu_compiled_operand){call->in[i].data, call->in[i].stride};
    for (int i = 0; i < CT_COMPILED_OUTPUTS; i++)
        a.out[i] = (struct gpu_compiled_operand){call->out[i].data, call->out[i].stride};
    if (call->rows == 0 || call->columns == 0)
        return 0;
    rc = launch_function(l, compiled->function, blocks, threads_for(call->columns), &a);
    return rc < 0 ? rc : add_sums(l, compiled->sum, call, blocks);
}

const struct ct_compiler_ops gpu_compiler_ops = {
    .size = sizeof(struct ct_compiler_ops),
    .version = version,
    .compile = compile,
    .load = load_object,
    .workers = workers,
    .launch = launch,
};
