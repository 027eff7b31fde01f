#include "onednn.h"

#include <ctitan/error.h>

dnnl_engine_t cpu_onednn_engine;
dnnl_stream_t cpu_onednn_stream;

int cpu_onednn_check(dnnl_status_t status, const char *what)
{
    static const char *const words[] = {"success",       "out of memory", "invalid arguments",
                                        "unimplemented", "iterator ends", "runtime error",
                                        "not required"};

    if (status == dnnl_success)
        return 0;
    return ct_fail(status == dnnl_out_of_memory ? CT_ENOMEM : CT_EINVAL, "oneDNN, %s: %s", what,
                   (size_t)status < CT_COUNT(words) ? words[status] : "unknown status");
}

/* Without hardware support, oneDNN has no bfloat16 product at all. */
static int check_native(void)
{
    dnnl_memory_desc_t md;
    dnnl_primitive_desc_t descriptor = NULL;
    int rc = cpu_onednn_matrix(&md, 64, 64, CT_BF16, 64, 1);

    if (rc >= 0)
        rc = cpu_onednn_product(&descriptor, &md, &md, &md, false);
    dnnl_primitive_desc_destroy(descriptor);
    if (rc < 0)
        return ct_fail(CT_ECONFIG,
                       "[cpu] bf16_matmul = native: this CPU has no bfloat16 products; use auto");
    return 0;
}

int cpu_gemm_start(void)
{
    static const dnnl_cpu_isa_t limits[] = {dnnl_cpu_isa_sse41, dnnl_cpu_isa_avx2,
                                            dnnl_cpu_isa_all};
    int rc;

    if (cpu_onednn_stream)
        return 0;
    rc = cpu_onednn_check(dnnl_set_max_cpu_isa(limits[ct_cpu_isa()]), "instruction set");
    if (rc >= 0)
        rc = cpu_onednn_check(dnnl_engine_create(&cpu_onednn_engine, dnnl_cpu, 0), "engine");
    if (rc >= 0)
        rc = cpu_onednn_check(
            dnnl_stream_create(&cpu_onednn_stream, cpu_onednn_engine, dnnl_stream_default_flags),
            "stream");
    return rc >= 0 && cpu_bf16_native() ? check_native() : rc;
}

dnnl_data_type_t cpu_onednn_type(enum ct_dtype dtype)
{
    return dtype == CT_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* oneDNN keeps some sizes in 32 bits: 2^32 rows become 0, by which it divides. */
int cpu_onednn_matrix(dnnl_memory_desc_t *md, int64_t rows, int64_t columns, enum ct_dtype dtype,
                      int64_t row_stride, int64_t column_stride)
{
    dnnl_dims_t dims = {rows, columns}, strides = {row_stride, column_stride};

    if (rows > INT32_MAX || columns > INT32_MAX)
        return ct_fail(CT_ECONFIG,
                       "oneDNN multiplies matrices of up to %d rows and columns, not %lld x %lld: "
                       "lower [training] local_batch_size or seq_len",
                       INT32_MAX, (long long)rows, (long long)columns);
    return cpu_onednn_check(
        dnnl_memory_desc_init_by_strides(md, 2, dims, cpu_onednn_type(dtype), strides), "matrix");
}

static int create_attributes(dnnl_primitive_attr_t *attr, bool accumulate)
{
    dnnl_post_ops_t sum = NULL;
    int rc = cpu_onednn_check(dnnl_primitive_attr_create(attr), "attributes");

    if (rc >= 0)
        rc = cpu_onednn_check(
            dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user),
            "scratchpad");
    if (rc < 0 || !accumulate)
        return rc;
    rc = cpu_onednn_check(dnnl_post_ops_create(&sum), "sum");
    if (rc >= 0)
        rc = cpu_onednn_check(dnnl_post_ops_append_sum(sum, 1.0f), "sum");
    if (rc >= 0)
        rc = cpu_onednn_check(dnnl_primitive_attr_set_post_ops(*attr, sum), "sum");
    dnnl_post_ops_destroy(sum);
    return rc;
}

int cpu_onednn_product(dnnl_primitive_desc_t *out, const dnnl_memory_desc_t *a,
                       const dnnl_memory_desc_t *b, const dnnl_memory_desc_t *c, bool accumulate)
{
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    int rc = cpu_onednn_check(dnnl_matmul_desc_init(&desc, a, b, NULL, c), "product");

    if (rc >= 0)
        rc = create_attributes(&attr, accumulate);
    if (rc >= 0)
        rc = cpu_onednn_check(dnnl_primitive_desc_create(out, &desc, attr, cpu_onednn_engine, NULL),
                              "product");
    dnnl_primitive_attr_destroy(attr);
    return rc;
}
