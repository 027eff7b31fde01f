/*
 * The op type "fused": a program over its inputs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/op_author.h>

#include "fuse.h"

int fuse_parse(const struct fuse_attrs *attrs, int ins, int outs, struct ct_arena *arena,
               struct ct_rows_program *f)
{
    struct ct_pointwise_names names = {0};
    int rc;

    *f = (struct ct_rows_program){.p = {.arena = arena}, .ins = ins, .outs = outs};
    if (ins > CT_COMPILED_INPUTS)
        return ct_fail(CT_EINVAL, "%d inputs: at most %d are allowed", ins, CT_COMPILED_INPUTS);
    for (int i = 0; i < ins; i++)
        for (unsigned level = 0; CT_ROWS_LEVELS[level]; level++)
            ct_pointwise_name(&f->p, &names,
                              ct_arena_printf(arena, "%c%d", CT_ROWS_LEVELS[level], i),
                              ct_pointwise_input(&f->p, i, level));
    rc = ct_pointwise_read(&f->p, attrs->program ? attrs->program : "", &names);
    for (int i = 0; rc == 0 && i < outs; i++) {
        f->out[i] = ct_pointwise_find(&names, ct_arena_printf(arena, "y%d", i));
        if (f->out[i] < 0)
            return ct_fail(CT_EINVAL, "the program does not assign y%d", i);
        f->out_dtype[i] = f->p.node[f->out[i]].kind == CT_POINTWISE_BF16 ? CT_BF16 : CT_F32;
        if (f->p.node[f->out[i]].level != (unsigned)attrs->outputs.size[i])
            return ct_fail(CT_EINVAL, "y%d has another level than its program", i);
    }
    if (rc == 0 && ct_rows_count_passes(f, arena) > CT_ROWS_PASSES)
        rc = ct_fail(CT_EINVAL, "the program needs more than %d passes over a row", CT_ROWS_PASSES);
    return rc;
}

int fuse_read(const struct ct_op *op, struct ct_arena *arena, struct ct_rows_program *f)
{
    int rc = fuse_parse(op->attrs, op->ins, op->outs, arena, f);

    for (int i = 0; rc == 0 && i < op->ins; i++)
        f->in_dtype[i] = op->in[i]->dtype;
    return rc;
}

/* The input with rows and columns. */
static const struct ct_value *whole_of(const struct ct_rows_program *f, const struct ct_op *op)
{
    const struct ct_value *whole = NULL;

    for (size_t k = 0; k < f->p.count; k++) {
        const struct ct_pointwise_node *n = &f->p.node[k];

        if (n->kind == CT_POINTWISE_INPUT && n->level == (CT_BY_ROW | CT_BY_COLUMN) &&
            (!whole || op->in[n->input]->ndim > whole->ndim))
            whole = op->in[n->input];
    }
    return whole;
}

static int infer(struct ct_op *op)
{
    struct ct_arena scratch = {0};
    struct ct_rows_program f;
    const struct ct_value *whole;
    int rc = fuse_read(op, &scratch, &f);

    for (int i = 0; rc == 0 && i < op->outs; i++) {
        struct ct_value *out = op->out[i];
        int64_t level = ((const struct fuse_attrs *)op->attrs)->outputs.size[i];

        whole = whole_of(&f, op);
        if (!whole || whole->ndim == 0) {
            rc = ct_fail(CT_EINVAL, "no input has rows and columns");
            break;
        }
        out->dtype = f.out_dtype[i];
        out->ndim = level == CT_BY_COLUMN ? 1 : whole->ndim - !(level & CT_BY_COLUMN);
        memcpy(out->shape, level == CT_BY_COLUMN ? whole->shape + whole->ndim - 1 : whole->shape,
               sizeof(*out->shape) * (size_t)out->ndim);
    }
    ct_arena_finish(&scratch);
    return rc;
}

static int reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct ct_rows_program f;
    int64_t rows = 1, columns = 1;
    double **value;
    int rc = fuse_read(l->op, &r.arena, &f);

    for (int i = 0, ndim = 0; i < l->ins; i++)
        if (l->in[i].ndim > ndim) {
            ndim = l->in[i].ndim;
            rows = ct_rows(&l->in[i]);
            columns = ct_columns(&l->in[i]);
        }
    if (rc < 0)
        return ct_reference_end(&r, rc);
    value = ct_pointwise_evaluate(&f.p, rows, columns, r.in, &r.arena);
    for (int i = 0; i < l->outs; i++)
        memcpy(r.out[i], value[f.out[i]], sizeof(double) * (size_t)ct_tensor_count(&l->out[i]));
    return ct_reference_end(&r, 0);
}

/* Any output may take the memory of any input: kernels write what has rows and columns after they
   have read it. */
#define OVER(o)                                                                                    \
    {o, 0}, {o, 1}, {o, 2}, {o, 3}, {o, 4}, {o, 5}, {o, 6}, {o, 7}, {o, 8}, {o, 9}, {o, 10},       \
        {o, 11}, {o, 12}, {o, 13}, {o, 14},                                                        \
    {                                                                                              \
        o, 15                                                                                      \
    }

const struct ct_op_type fuse_op = {
    .size = sizeof(struct ct_op_type),
    .name = "fused",
    .summary = "several ops in one kernel, by a program",
    .signature = "*?x F -> *y F | *outputs",
    .samples = "outputs=3 program=y0=x0*(1+c1): real[2,4,6] real[6]",
    .attrs =
        (const struct ct_option[]){
            CT_OPT_SHAPE(struct fuse_attrs, outputs, "outputs", "",
                         "Of each output: 3 for rows and columns, 2 for rows, 1 for columns"),
            CT_OPT_STRING(struct fuse_attrs, program, "program", "", "What is computed"),
            {0}},
    .attrs_size = sizeof(struct fuse_attrs),
    .inplace = (const int8_t[][2]){OVER(0), OVER(1), OVER(2), OVER(3), OVER(4), OVER(5), {-1, -1}},
    .infer = infer,
    .reference = reference,
};
