/*
 * The op that decodes a weight, and its kernel for CPUs: each row by itself, which needs its scales
 * only.
 */
#include <string.h>

#include <ctitan/op_author.h>
#include <ctitan/rule.h>

#include "qlora.h"

#define AT_ONCE 4096 /* numbers that are decoded before they are rounded */

/* ---- the op ---- */

static int infer(struct ct_op *op)
{
    const struct qlora_dequantise *attrs = op->attrs;
    const struct ct_value *q = op->in[0], *absmax = op->in[1];
    const struct ct_value *nested = op->ins > 2 ? op->in[2] : NULL;
    struct qlora_blocks b = qlora_blocks_of(q->shape[0], q->shape[1]);

    op->out[0]->dtype = attrs->dtype;
    if (q->dtype != qlora_dtype(attrs->base))
        return ct_fail(CT_EINVAL, "codes %%%s are %s, not %s", q->name, ct_dtype_name(q->dtype),
                       ct_dtype_name(qlora_dtype(attrs->base)));
    if (absmax->dtype != (nested ? CT_U8 : CT_F32))
        return ct_fail(CT_EINVAL, "scales %%%s are %s", absmax->name, ct_dtype_name(absmax->dtype));
    if (absmax->shape[1] != b.slots || (nested && nested->shape[0] != b.groups + 1))
        return ct_fail(CT_EINVAL, "%%%s has other scales than %lld of each row, and %lld groups",
                       q->name, (long long)b.slots, (long long)b.groups);
    return 0;
}

/* Columns and their scales are split together, or a row's scales are whole on every rank. */
static int factors(const struct ct_op *op, struct ct_arena *arena, struct ct_rule *rule)
{
    int columns = rule->operand[0].factor[1], slots = rule->operand[1].factor[1];

    (void)arena;
    if (((const struct qlora_dequantise *)op->attrs)->together) {
        rule->tie[0] = columns;
        rule->tie[1] = slots;
    } else {
        rule->factor[slots].kind = CT_FACTOR_WHOLE;
    }
    return 0;
}

/* A call of the op. */
struct decoding {
    const struct ct_launch *launch;
    struct qlora_blocks blocks;
    struct qlora_row row; /* of the first row */
    float pairs[256][2];
};

static void decoding_init(struct decoding *d, const struct ct_launch *l)
{
    const struct qlora_dequantise *attrs = l->op->attrs;
    const struct ct_value *q = l->op->in[0], *absmax = l->op->in[1];

    d->launch = l;
    d->blocks = qlora_blocks_of(q->shape[0], q->shape[1]);
    d->row = (struct qlora_row){.blocks = &d->blocks,
                                .base = attrs->base,
                                .pairs = d->pairs,
                                .row = ct_launch_offset(l, q, 0),
                                .column = ct_launch_offset(l, q, 1),
                                .slot = attrs->together ? ct_launch_offset(l, absmax, 1) : 0,
                                .nested = l->ins > 2 ? l->in[2].data : NULL};
    qlora_pairs(d->pairs);
}

/* Numbers [at, at + count) of row i of this rank's shard. at is even. */
static void decode(const struct decoding *d, int64_t i, int64_t at, int64_t count, float *to)
{
    const struct ct_tensor *q = &d->launch->in[0], *absmax = &d->launch->in[1];
    struct qlora_row row = d->row;
    const char *codes = (const char *)q->data + i * q->stride[0] * ct_dtype_bits(q->dtype) / 8;

    row.row += i;
    row.column += at;
    if (row.nested)
        row.codes = (const uint8_t *)absmax->data + i * absmax->stride[0];
    else
        row.absmax = (const float *)absmax->data + i * absmax->stride[0];
    qlora_decode(&row, (const uint8_t *)codes + at * ct_dtype_bits(q->dtype) / 8, count, to);
}

static void round_to(const struct ct_tensor *w, int64_t at, const float *from, int64_t count)
{
    uint16_t *half = (uint16_t *)w->data + at;

    if (w->dtype == CT_BF16)
        for (int64_t i = 0; i < count; i++)
            half[i] = ct_f32_to_bf16(from[i]);
    else
        memcpy((float *)w->data + at, from, sizeof(*from) * (size_t)count);
}

static void decode_rows(void *context, int64_t begin, int64_t end)
{
    const struct decoding *d = context;
    const struct ct_tensor *w = &d->launch->out[0];
    float some[AT_ONCE];

    for (int64_t i = begin; i < end; i++)
        for (int64_t at = 0, n; at < w->shape[1]; at += n) {
            n = w->shape[1] - at < AT_ONCE ? w->shape[1] - at : AT_ONCE;
            decode(d, i, at, n, some);
            round_to(w, i * w->stride[0] + at, some, n);
        }
}

static int run_ops(const struct ct_launch *l)
{
    struct decoding d;

    decoding_init(&d, l);
    ct_parallel(l, l->out[0].shape[0], decode_rows, &d);
    return 0;
}

static bool accepts(const struct ct_prepare *p)
{
    return (p->out[0].dtype == CT_F32 || p->out[0].dtype == CT_BF16) && p->out[0].stride[1] == 1;
}

const struct ct_kernel qlora_cpu_kernels[] = {
    CT_KERNEL("qlora.dequantise", "rows", CT_KERNEL_STRIDED, accepts, NULL, run_ops), {0}};

/* The same, a number at a time. */
static int reference(const struct ct_launch *l)
{
    const struct qlora_dequantise *attrs = l->op->attrs;
    struct ct_reference r = ct_reference_begin(l);
    int64_t columns = l->out[0].shape[1], slots = l->in[1].shape[1];
    struct decoding d;
    int count;
    const float *table = qlora_table(attrs->base, &count), *map = qlora_table(QLORA_INT8, &count);

    decoding_init(&d, l);
    for (int64_t k = 0; k < ct_tensor_count(&l->out[0]); k++) {
        int64_t row = d.row.row + k / columns, first = row * d.blocks.columns + d.row.column;
        int64_t block = (first + k % columns) / QLORA_BLOCK;
        int64_t slot = block - qlora_first(&d.blocks, row) - d.row.slot;
        double scale = r.in[1][k / columns * slots + slot];

        if (d.row.nested)
            scale = (float)(map[(int)scale] * r.in[2][block / QLORA_GROUP]) +
                    (float)r.in[2][d.blocks.groups];
        r.out[0][k] = (float)(table[(int)r.in[0][k]] * (float)scale);
    }
    return ct_reference_end(&r, 0);
}

const struct ct_op_type qlora_op_dequantise = {
    .size = sizeof(struct ct_op_type),
    .name = "qlora.dequantise",
    .summary = "a weight from the codes and scales of its blocks",
    .signature = "q[nk] c, absmax[ng] c, ?nested[M] f -> w[nk] F",
    .flags = CT_OP_STOPS,
    .attrs =
        (const struct ct_option[]){
            CT_OPT_DTYPE(struct qlora_dequantise, dtype, "dtype", "float32", "Of the weight"),
            CT_OPT_ENUM(struct qlora_dequantise, base, "base", "nf4", "nf4|int8", "The codes"),
            CT_OPT_BOOL(struct qlora_dequantise, together, "together", "false",
                        "Columns and scales are split alike"),
            {0}},
    .attrs_size = sizeof(struct qlora_dequantise),
    .samples = "base=nf4: nibble[6,44] factor[6,2]; base=int8: code[4,70] factor[4,3];"
               "base=nf4: nibble[4,128] code[4,2] factor[2];"
               "together=true: nibble[2,256] factor[2,4]; base=nf4: nibble[4,37] factor[4,2]",
    .infer = infer,
    .factors = factors,
    .reference = reference,
};
