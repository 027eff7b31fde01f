/*
 * The simulated cuBLASLt: libcublasLt.so.13. Products are plain loops on column-major matrices,
 * accumulated in float32; those of Float8 as Hopper's tensor cores do, and rounded to bfloat16
 * before they are added to a bfloat16 c: an H100 gave the same bits. Products of blocks, on devices
 * from compute capability 10.0 on, are as NVIDIA documents them, with sums of blocks in float32; no
 * device was asked. The simulated library refuses of Float8 what the real one refuses. Of two
 * algorithms that it offers for Float8, the first does not run.
 */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/tensor.h>

#include "blas_library.h"
#include "driver.h"
#include <ctitan/lib/cuda/simulator.h>

CT_API int cuDeviceGetAttribute(int *value, int attribute, int device);

#define X(name, parameters) CT_API int name parameters;
GPU_BLAS_CALLS(X)
#undef X

struct gpu_lt_desc {
    int32_t transa, transb, a_mode, b_mode, units, pointers;
    const void *a_scale, *b_scale;
    int8_t fast;
};

struct gpu_lt_layout {
    int type;
    uint64_t rows, columns;
    int64_t ld;
};

struct gpu_lt_preference {
    size_t workspace;
};

int cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = (cublasLtHandle_t)(uintptr_t)1;
    return CUBLAS_STATUS_SUCCESS;
}

/* SIMULATOR_BLAS=1208 in the environment: version 12.8. */
int cublasLtGetProperty(int property, int *value)
{
    const char *other = getenv("SIMULATOR_BLAS");
    int version = other ? atoi(other) : 1301;

    *value = property == 0 ? version / 100 : property == 1 ? version % 100 : 0;
    return CUBLAS_STATUS_SUCCESS;
}

int cublasLtDestroy(cublasLtHandle_t handle)
{
    (void)handle;
    return CUBLAS_STATUS_SUCCESS;
}

int cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, int compute, int scale)
{
    (void)compute;
    (void)scale;
    *desc = calloc(1, sizeof(**desc));
    return *desc ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

int cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

int cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, int attribute, const void *value,
                                   size_t bytes)
{
    const struct {
        int attribute;
        void *at;
        size_t bytes;
    } fields[] = {{CUBLASLT_MATMUL_DESC_TRANSA, &d->transa, sizeof(d->transa)},
                  {CUBLASLT_MATMUL_DESC_TRANSB, &d->transb, sizeof(d->transb)},
                  {CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &d->units, sizeof(d->units)},
                  {CUBLASLT_MATMUL_DESC_POINTER_MODE, &d->pointers, sizeof(d->pointers)},
                  {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &d->a_mode, sizeof(d->a_mode)},
                  {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &d->b_mode, sizeof(d->b_mode)},
                  {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &d->a_scale, sizeof(d->a_scale)},
                  {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &d->b_scale, sizeof(d->b_scale)},
                  {CUBLASLT_MATMUL_DESC_FAST_ACCUM, &d->fast, sizeof(d->fast)}};

    for (size_t i = 0; i < CT_COUNT(fields); i++)
        if (fields[i].attribute == attribute && fields[i].bytes == bytes) {
            memcpy(fields[i].at, value, bytes);
            return CUBLAS_STATUS_SUCCESS;
        }
    return CUBLAS_STATUS_INVALID_VALUE;
}

int cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, int type, uint64_t rows,
                               uint64_t columns, int64_t ld)
{
    if (ld < (int64_t)rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    *layout = calloc(1, sizeof(**layout));
    **layout = (struct gpu_lt_layout){type, rows, columns, ld};
    return CUBLAS_STATUS_SUCCESS;
}

int cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    free(layout);
    return CUBLAS_STATUS_SUCCESS;
}

int cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference)
{
    *preference = calloc(1, sizeof(**preference));
    return CUBLAS_STATUS_SUCCESS;
}

int cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    free(preference);
    return CUBLAS_STATUS_SUCCESS;
}

int cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, int attribute,
                                         const void *value, size_t bytes)
{
    size_t wanted =
        attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? sizeof(size_t) : sizeof(uint32_t);

    if (bytes != wanted)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (wanted == sizeof(size_t))
        memcpy(&preference->workspace, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static bool is_float8(const struct gpu_lt_layout *l)
{
    return l->type == CUDA_R_8F_E4M3 || l->type == CUDA_R_8F_E5M2;
}

/* Numbers of a block that has a scale; 0: there are none. */
static int64_t block_of(const struct gpu_lt_desc *d)
{
    return d->a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0   ? 32
           : d->a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 ? 16
                                                                   : 0;
}

static bool has_blocks(void)
{
    int major = 0;

    return cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0) == 0 &&
           major >= 10;
}

/* Blocks: a^T b, 16-byte rows, both operands scaled alike, 4 bits with E4M3 scales only. */
static bool fits_blocks(const struct gpu_lt_desc *d, const struct gpu_lt_layout *a,
                        const struct gpu_lt_layout *b, uint64_t m, uint64_t k)
{
    bool four = a->type == CUDA_R_4F_E2M1;
    int64_t unit = four ? 32 : 16;

    return has_blocks() && d->a_mode == d->b_mode && d->transa && !d->transb &&
           four == (block_of(d) == 16) && four == (b->type == CUDA_R_4F_E2M1) &&
           a->ld % unit == 0 && b->ld % unit == 0 && (int64_t)k % 32 == 0 && m % 8 == 0 &&
           d->a_scale && d->b_scale && !d->fast && (uintptr_t)d->a_scale % 16 == 0 &&
           (uintptr_t)d->b_scale % 16 == 0 &&
           !(a->type == CUDA_R_8F_E5M2 && b->type == CUDA_R_8F_E5M2);
}

/* Rows and columns of op(a), op(b) and c fit; Float8 as on Hopper: a^T b, by 16, not two e5m2. */
static bool fits(const struct gpu_lt_desc *d, const struct gpu_lt_layout *a,
                 const struct gpu_lt_layout *b, const struct gpu_lt_layout *c)
{
    uint64_t m = d->transa ? a->columns : a->rows, k = d->transa ? a->rows : a->columns;
    uint64_t n = d->transb ? b->rows : b->columns;

    if ((d->transb ? b->columns : b->rows) != k || c->rows != m || c->columns != n)
        return false;
    if (block_of(d))
        return fits_blocks(d, a, b, m, k);
    if (is_float8(a) != is_float8(b))
        return false;
    return !is_float8(a) || (d->transa && !d->transb && a->ld % 16 == 0 && b->ld % 16 == 0 &&
                             k % 16 == 0 && m % 8 == 0 && d->a_scale && d->b_scale &&
                             !(a->type == CUDA_R_8F_E5M2 && b->type == CUDA_R_8F_E5M2));
}

int cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                   cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                   cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                   cublasLtMatmulPreference_t preference, int wanted,
                                   cublasLtMatmulHeuristicResult_t *results, int *count)
{
    size_t workspace;

    (void)handle;
    (void)d;
    *count = 0;
    if (!fits(desc, a, b, c) || wanted < 1)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    /* the products of two splits of k, in float32 */
    workspace = (c->rows * c->columns * 2 * sizeof(float) + 255) / 256 * 256;
    if (workspace > preference->workspace)
        workspace = preference->workspace;
    *count = wanted < 2 ? wanted : 2;
    for (int i = 0; i < *count; i++)
        results[i] = (cublasLtMatmulHeuristicResult_t){.workspaceSize = workspace};
    results[0].algo.data[0] = *count == 2 && a->type != CUDA_R_32F && a->type != CUDA_R_16BF;
    return CUBLAS_STATUS_SUCCESS;
}

static enum ct_dtype dtype_of(int type)
{
    return type == CUDA_R_32F       ? CT_F32
           : type == CUDA_R_16BF    ? CT_BF16
           : type == CUDA_R_8F_E4M3 ? CT_E4M3
                                    : CT_E5M2;
}

/* Element at of a matrix in memory. */
static float load(const void *data, enum ct_dtype dtype, int64_t at)
{
    const char *p = (const char *)data + at * (int64_t)ct_dtype_size(dtype);
    struct ct_tensor one = {.data = (void *)(uintptr_t)p, .dtype = dtype};

    return dtype == CT_F32    ? *(const float *)(const void *)p
           : dtype == CT_BF16 ? ct_bf16_to_f32(*(const uint16_t *)(const void *)p)
                              : (float)ct_tensor_load(&one, 0);
}

static void store(void *data, enum ct_dtype dtype, int64_t at, double x)
{
    struct ct_tensor one = {.data = (char *)data + at * (int64_t)ct_dtype_size(dtype),
                            .dtype = dtype};

    if (dtype == CT_F32)
        ((float *)data)[at] = (float)x;
    else
        ct_tensor_store(&one, 0, x);
}

static float from_e2m1(const void *data, int64_t at)
{
    static const float number[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    unsigned code = ((const uint8_t *)data)[at / 2] >> (at % 2 * 4) & 15;

    return code & 8 ? -number[code & 7] : number[code];
}

/* op(matrix) as floats, [rows][columns] */
static float *widened(const void *data, const struct gpu_lt_layout *l, bool transposed)
{
    int64_t rows = (int64_t)l->rows, columns = (int64_t)l->columns;
    float *out = malloc((size_t)(rows * columns + 1) * sizeof(*out));
    enum ct_dtype dtype = dtype_of(l->type);

    for (int64_t c = 0; c < columns; c++)
        for (int64_t r = 0; r < rows; r++)
            out[transposed ? c * rows + r : r * columns + c] =
                l->type == CUDA_R_4F_E2M1 ? from_e2m1(data, c * l->ld + r)
                                          : load(data, dtype, c * l->ld + r);
    return out;
}

struct product {
    struct gpu_lt_desc desc;
    struct gpu_lt_layout a_layout, b_layout, c_layout;
    const void *a, *b;
    void *c, *workspace;
    size_t workspace_bytes;
    float host_alpha, host_beta;
    const float *alpha, *beta; /* on the device, if they are there */
};

/* Element (i, j) times its factors. */
static double scaled(const struct gpu_lt_desc *d, double x, int64_t i, int64_t j)
{
    const float *of_a = d->a_scale, *of_b = d->b_scale;

    if (!of_a || block_of(d))
        return x;
    return x * (double)of_a[d->a_mode ? i : 0] * (double)of_b[d->b_mode ? j : 0];
}

/* ---- sums of blocks ---- */

/* The scale of block k of a row, of `blocks`: tiles of 128 x 4 bytes, those of the same rows in
   turn; in a tile, rows 32 apart are together. */
static double block_scale(const struct gpu_lt_desc *d, const uint8_t *scales, int64_t row,
                          int64_t k, int64_t blocks)
{
    const uint8_t *tile = scales + (row / 128 * ((blocks + 3) / 4) + k / 4) * 512;
    uint8_t code = tile[row % 32 * 16 + row % 128 / 32 * 4 + k % 4];

    if (d->a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0)
        return code == 255 ? (double)NAN : ldexp(1, code - 127);
    return (double)ct_e4m3_to_f32(code & 127);
}

static float block_sum(const struct product *p, const float *x, const float *y, int64_t i,
                       int64_t j)
{
    int64_t m = (int64_t)p->c_layout.rows, k = (int64_t)p->a_layout.rows,
            block = block_of(&p->desc);
    int64_t blocks = (k + block - 1) / block;
    float whole = 0;

    for (int64_t b = 0; b < blocks; b++) {
        double sum = 0;

        for (int64_t l = b * block; l < (b + 1) * block && l < k; l++)
            sum += (double)x[l * m + i] * (double)y[l];
        whole += (float)(sum * block_scale(&p->desc, p->desc.a_scale, i, b, blocks) *
                         block_scale(&p->desc, p->desc.b_scale, j, b, blocks));
    }
    return whole;
}

/* ---- sums of Float8 products on tensor cores ---- */

#define SUMMED 32 /* products that an instruction adds to its accumulator */
#define CHAIN 128 /* products between additions in float32 */

/* Power of two of a number's leading bit; of least's, if that is larger. */
static int exponent_of(float x, int least)
{
    int exponent;
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    exponent = (int)(bits >> 23 & 255) - 127;
    return exponent < least ? least : exponent;
}

/* Exponent of the dtype's smallest normal number. */
static int least_exponent(int type)
{
    return type == CUDA_R_8F_E4M3 ? -6 : -14;
}

/* sum + `count` products of x and y, as the hardware adds them. */
static float fused(const struct product *p, const float *x, const float *y, int64_t stride,
                   int64_t count, float sum)
{
    int of_x = least_exponent(p->a_layout.type), of_y = least_exponent(p->b_layout.type);
    int most = INT_MIN;
    float product[SUMMED];

    for (int64_t l = 0; l < count; l++) {
        product[l] = x[l * stride] * y[l];
        if (product[l] != 0) {
            int e = exponent_of(x[l * stride], of_x) + exponent_of(y[l], of_y);

            most = e > most ? e : most;
        }
    }
    return simulated_add_products(sum, product, (int)count, most);
}

static float float8_sum(const struct product *p, const float *x, const float *y, int64_t stride,
                        int64_t k)
{
    int64_t chain = p->desc.fast ? k : CHAIN;
    float whole = 0;

    for (int64_t begin = 0; begin < k; begin += chain) {
        int64_t end = begin + chain < k ? begin + chain : k;
        float sum = 0;

        for (int64_t l = begin; l < end; l += SUMMED)
            sum = fused(p, x + l * stride, y + l, stride, end - l < SUMMED ? end - l : SUMMED, sum);
        whole += sum;
    }
    return whole;
}

/* x [k][m], y [k], column j of c */
static void sum_column(const struct product *p, const float *x, const float *y, int64_t j,
                       float *sum)
{
    int64_t m = (int64_t)p->c_layout.rows;
    int64_t k = (int64_t)(p->desc.transa ? p->a_layout.rows : p->a_layout.columns);

    memset(sum, 0, (size_t)m * sizeof(*sum));
    if (block_of(&p->desc)) {
        for (int64_t i = 0; i < m; i++)
            sum[i] = block_sum(p, x, y, i, j);
        return;
    }
    for (int64_t i = 0; is_float8(&p->a_layout) && i < m; i++)
        sum[i] = float8_sum(p, x + i, y, m, k);
    for (int64_t l = 0; !is_float8(&p->a_layout) && l < k; l++)
        for (int64_t i = 0; i < m; i++)
            sum[i] += x[l * m + i] * y[l];
}

static int multiply(const void *arguments)
{
    const struct product *p = arguments;
    int64_t m = (int64_t)p->c_layout.rows, n = (int64_t)p->c_layout.columns;
    int64_t k = (int64_t)(p->desc.transa ? p->a_layout.rows : p->a_layout.columns);
    enum ct_dtype dtype = dtype_of(p->c_layout.type);
    float *x = widened(p->a, &p->a_layout, !p->desc.transa); /* [k][m] */
    float *y = widened(p->b, &p->b_layout, !p->desc.transb); /* [n][k] */
    float *sum = malloc((size_t)(m + 1) * sizeof(*sum));
    bool float8 = is_float8(&p->a_layout), on_device = p->desc.pointers;
    float alpha = on_device ? *p->alpha : p->host_alpha, beta = on_device ? *p->beta : p->host_beta;

    memset(p->workspace, 0xff, p->workspace_bytes);
    for (int64_t j = 0; j < n; j++) {
        sum_column(p, x, y + j * k, j, sum);
        for (int64_t i = 0; i < m; i++) {
            int64_t at = j * p->c_layout.ld + i;
            double r = (double)alpha * scaled(&p->desc, (double)sum[i], i, j);

            if (beta != 0 && float8 && dtype == CT_BF16) /* as cuBLASLt does */
                r = (double)ct_bf16_to_f32(ct_f32_to_bf16((float)r));
            if (beta != 0)
                r += (double)beta * (double)load(p->c, dtype, at);
            store(p->c, dtype, at, r);
        }
    }
    free(x);
    free(y);
    free(sum);
    return CUBLAS_STATUS_SUCCESS;
}

int cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                   const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                   cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                   cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                   const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                   void *stream)
{
    struct product p = {.desc = *desc,
                        .a_layout = *a_layout,
                        .b_layout = *b_layout,
                        .c_layout = *c_layout,
                        .a = a,
                        .b = b,
                        .c = d,
                        .workspace = workspace,
                        .workspace_bytes = workspace_bytes,
                        .alpha = alpha,
                        .beta = beta};

    (void)handle;
    (void)d_layout;
    if (algo->data[0])
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!fits(desc, a_layout, b_layout, c_layout) || c != d || (uintptr_t)workspace % 256)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!desc->pointers) {
        p.host_alpha = *(const float *)alpha;
        p.host_beta = *(const float *)beta;
    }
    simulated_count("cublasLtMatmul %llux%llux%llu on %d", (unsigned long long)c_layout->columns,
                    (unsigned long long)c_layout->rows,
                    (unsigned long long)(desc->transa ? a_layout->rows : a_layout->columns),
                    (int)desc->units);
    return simulated_submit(stream, multiply, &p, sizeof(p));
}
