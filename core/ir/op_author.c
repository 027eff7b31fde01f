/*
 * Helpers for reference kernels and for gradients.
 */
#include <math.h>
#include <string.h>

#include <ctitan/op_author.h>

static double *load_all(struct ct_arena *arena, const struct ct_tensor *t)
{
    int64_t n = ct_tensor_count(t);
    double *values = ct_arena_array(arena, double, n + 1);

    for (int64_t i = 0; i < n; i++)
        values[i] = ct_tensor_load(t, i);
    return values;
}

struct ct_reference ct_reference_begin(const struct ct_launch *l)
{
    struct ct_reference r = {.launch = l};

    r.in = ct_arena_array(&r.arena, double *, l->ins + 1);
    r.out = ct_arena_array(&r.arena, double *, l->outs + 1);
    for (int i = 0; i < l->ins; i++)
        if (l->in[i].data)
            r.in[i] = load_all(&r.arena, &l->in[i]);
    for (int i = 0; i < l->outs; i++)
        r.out[i] = ct_arena_array(&r.arena, double, ct_tensor_count(&l->out[i]) + 1);
    return r;
}

static void store_all(const struct ct_tensor *t, const double *values, bool accumulate)
{
    int64_t n = ct_tensor_count(t);

    for (int64_t i = 0; i < n; i++)
        ct_tensor_store(t, i, accumulate ? ct_tensor_load(t, i) + values[i] : values[i]);
}

int ct_reference_end(struct ct_reference *r, int rc)
{
    for (int i = 0; rc == 0 && i < r->launch->outs; i++)
        store_all(&r->launch->out[i], r->out[i], i < 32 && r->launch->accumulate >> i & 1);
    ct_arena_finish(&r->arena);
    return rc;
}

double ct_rounded(enum ct_dtype dtype, double value)
{
    double room = 0;
    struct ct_tensor t = ct_tensor_dense(&room, dtype, 0, NULL);

    ct_tensor_store(&t, 0, value);
    return ct_tensor_load(&t, 0);
}

double ct_log_sum_exp(const double *x, int64_t n)
{
    double largest = -INFINITY, sum = 0;

    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i] - largest);
    return largest + log(sum);
}

int64_t ct_columns(const struct ct_tensor *t)
{
    return t->shape[t->ndim - 1];
}

int64_t ct_rows(const struct ct_tensor *t)
{
    return ct_shape_count(t->ndim - 1, t->shape);
}

const char *ct_gradient_name(const struct ct_vjp *v, int input)
{
    return ct_arena_printf(v->b->graph->arena, "d.%s", v->op->in[input]->name);
}

int ct_emit_gradients(struct ct_vjp *v, const struct ct_op_type *type, struct ct_value *const *in,
                      int ins, const void *attrs, const int *inputs, int count)
{
    struct ct_op *op;
    bool wanted = false;

    for (int i = 0; i < count; i++)
        wanted |= v->wanted[inputs[i]];
    if (!wanted)
        return 0;
    op = ct_emit_type(v->b, type, ct_gradient_name(v, inputs[0]), in, ins, attrs);
    for (int i = 0; op && i < count; i++) {
        if (i > 0)
            ct_value_rename(v->b->graph, op->out[i], ct_gradient_name(v, inputs[i]));
        v->din[inputs[i]] = op->out[i];
    }
    return v->b->status;
}
