/*
 * The kernel for CUDA: a weight is decoded into memory, where the product reads it.
 */
#include <string.h>

#include <ctitan/lib/cuda.h>
#include <ctitan/op_author.h>

#include "qlora.h"

CT_CUDA_CODE(qlora_cuda_code);

static bool accepts(const struct ct_prepare *p)
{
    return ct_cuda_computes(p->out[0].dtype) && p->out[0].stride[1] == 1 &&
           p->in[0].stride[1] == 1 && p->in[1].stride[1] == 1;
}

static int prepare_dequantise(struct ct_prepare *p)
{
    bool nf4 = ((const struct qlora_dequantise *)p->op->attrs)->base == QLORA_NF4;

    return ct_cuda_prepare(p, &qlora_cuda_code, p->out[0].dtype,
                           CT_CUDA_NAMES(nf4 ? "qlora_nf4_*" : "qlora_int8_*"));
}

static int run_dequantise(const struct ct_launch *l)
{
    const struct qlora_dequantise *attrs = l->op->attrs;
    const struct ct_value *q = l->op->in[0], *absmax = l->op->in[1];
    struct qlora_blocks blocks = qlora_blocks_of(q->shape[0], q->shape[1]);
    const struct ct_tensor *w = &l->out[0];
    struct qlora_decode_call a = {
        .weight = w->data,
        .codes = l->in[0].data,
        .absmax = l->in[1].data,
        .nested = l->ins > 2 ? l->in[2].data : NULL,
        .rows = w->shape[0],
        .columns = w->shape[1],
        .weight_stride = w->stride[0],
        .absmax_stride = l->in[1].stride[0],
        .code_stride = l->in[0].stride[0] * (int64_t)ct_dtype_bits(l->in[0].dtype) / 8,
        .whole_columns = q->shape[1],
        .row = ct_launch_offset(l, q, 0),
        .column = ct_launch_offset(l, q, 1),
        .slot = attrs->together ? ct_launch_offset(l, absmax, 1) : 0,
        .groups = blocks.groups,
    };
    int64_t threads = a.rows * ct_cuda_blocks(a.columns, QLORA_NUMBERS);
    int count;

    memcpy(a.map, qlora_table(QLORA_INT8, &count), sizeof(a.map));
    memcpy(a.table, qlora_table(attrs->base, &count), sizeof(float) * (size_t)count);
    return ct_cuda_launch(
        l, ct_cuda_function(l, 0),
        (struct ct_cuda_size){(unsigned)ct_cuda_blocks(threads, QLORA_THREADS), 1, 1},
        (struct ct_cuda_size){QLORA_THREADS, 1, 1}, 0, &a);
}

const struct ct_kernel qlora_cuda_kernels[] = {CT_KERNEL("qlora.dequantise", "decode",
                                                         CT_KERNEL_STRIDED, accepts,
                                                         prepare_dequantise, run_dequantise),
                                               {0}};
