/*
 * A technique from outside: after the embedding, each token's vector is changed by an op of its
 * own, which is chosen by [places] op.
 *
 *   wave     scaled by a wave along positions, whose signature says so
 *   hidden   the same, but the signature does not say so
 *   running  the running mean over whole sequences, without positions
 *   table    a parameter with a row for each position is added to it, row by row
 *
 * Or, instead, the scores of attention are changed:
 *
 *   softcap  they approach a bound
 *   slopes   they sink with the distance of query and key
 */
#include <math.h>
#include <string.h>

#include <ctitan/core_ops.h>
#include <ctitan/lib/ops.h>
#include <ctitan/op_author.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>

static struct config {
    const char *op;
} config;

static const struct ct_option options[] = {CT_OPT_CHOICE(struct config, op, "op", "wave",
                                                         "wave|hidden|running|table|softcap|slopes",
                                                         "Which op"),
                                           {0}};

/* ---- wave ---- */

static double height(int64_t position)
{
    return 1 + 0.5 * sin(0.7 * (double)position);
}

static int wave(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t tokens = l->in[0].shape[1], n = l->in[0].shape[2];

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        r.out[0][i] = r.in[0][i] * height(ct_launch_position(l, l->op->in[0], 1, i / n % tokens));
    return ct_reference_end(&r, 0);
}

/* The same as a kernel, token by token on the device's threads. */
static void wave_of_tokens(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    int64_t tokens = l->in[0].shape[1], n = l->in[0].shape[2];
    const float *x = l->in[0].data;
    float *y = l->out[0].data;

    for (int64_t i = begin; i < end; i++) {
        double h = height(ct_launch_position(l, l->op->in[0], 1, i % tokens));

        for (int64_t k = i * n; k < (i + 1) * n; k++)
            y[k] = (float)(x[k] * h);
    }
}

static bool is_float32(const struct ct_prepare *p)
{
    return p->in[0].dtype == CT_F32;
}

static int run_wave(const struct ct_launch *l)
{
    struct ct_launch launch = *l;

    ct_parallel(l, l->in[0].shape[0] * l->in[0].shape[1], wave_of_tokens, &launch);
    return 0;
}

static const struct ct_kernel wave_kernels[] = {
    CT_KERNEL("places.wave", "threads", 0, is_float32, NULL, run_wave), {0}};

static int same_again(struct ct_vjp *v)
{
    return ct_emit_gradients(v, v->op->type, v->dout, 1, NULL, (int[]){0}, 1);
}

static const struct ct_op_type wave_type = {
    .size = sizeof(struct ct_op_type),
    .name = "places.wave",
    .summary = "x times a wave along positions",
    .signature = "x[btn] T -> y[btn] T | @t",
    .vjp = same_again,
    .reference = wave,
};

static int hidden(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t tokens = l->in[0].shape[1], n = l->in[0].shape[2];
    int64_t first = ct_launch_offset(l, l->op->in[0], 1);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        r.out[0][i] = r.in[0][i] * height(first + i / n % tokens);
    return ct_reference_end(&r, 0);
}

static const struct ct_op_type hidden_type = {
    .size = sizeof(struct ct_op_type),
    .name = "places.hidden",
    .summary = "x times a wave along positions, in secret",
    .signature = "x[btn] T -> y[btn] T",
    .vjp = same_again,
    .reference = hidden,
};

/* ---- running ---- */

/* y is the mean of x up to each token, or its transpose. */
static int mean_so_far(const struct ct_launch *l, bool backward)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t tokens = l->in[0].shape[1], n = l->in[0].shape[2];

    for (int64_t b = 0; b < l->in[0].shape[0]; b++)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t s = 0; s <= t; s++)
                for (int64_t i = 0; i < n; i++) {
                    int64_t to = backward ? s : t, from = backward ? t : s;

                    r.out[0][(b * tokens + to) * n + i] +=
                        r.in[0][(b * tokens + from) * n + i] / (double)(t + 1);
                }
    return ct_reference_end(&r, 0);
}

static int running(const struct ct_launch *l)
{
    return mean_so_far(l, false);
}

static int running_grad(const struct ct_launch *l)
{
    return mean_so_far(l, true);
}

static const struct ct_op_type running_grad_type = {
    .size = sizeof(struct ct_op_type),
    .name = "places.running_grad",
    .summary = "gradient of places.running",
    .signature = "dy[bTn] T -> dx[bTn] T",
    .reference = running_grad,
};

static int running_vjp(struct ct_vjp *v)
{
    return ct_emit_gradients(v, &running_grad_type, v->dout, 1, NULL, (int[]){0}, 1);
}

static const struct ct_op_type running_type = {
    .size = sizeof(struct ct_op_type),
    .name = "places.running",
    .summary = "mean over the tokens so far",
    .signature = "x[bTn] T -> y[bTn] T",
    .vjp = running_vjp,
    .reference = running,
};

/* ---- table ---- */

static int add_rows(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t rows = ct_tensor_count(&l->in[1]);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        r.out[0][i] = r.in[0][i] + r.in[1][i % rows];
    return ct_reference_end(&r, 0);
}

static int add_rows_vjp(struct ct_vjp *v)
{
    v->din[0] = v->dout[0];
    return 0;
}

static const struct ct_op_type table_type = {
    .size = sizeof(struct ct_op_type),
    .name = "places.table",
    .summary = "x plus a row of the table for each token",
    .signature = "x[btn] T, table[tn] T -> y[btn] T",
    .vjp = add_rows_vjp,
    .reference = add_rows,
};

/* ---- the transform ---- */

static const struct ct_op_type *chosen(void)
{
    static const struct ct_op_type *const types[] = {&wave_type, &hidden_type, &running_type,
                                                     &table_type};

    for (size_t i = 0; i < CT_COUNT(types); i++)
        if (!strcmp(types[i]->name + strlen("places."), config.op))
            return types[i];
    return NULL;
}

static void change_scores(struct ct_graph *graph)
{
    ct_for_each_op (op, graph)
        if (op->type == &ct_op_attention) {
            struct ct_attention *how = (struct ct_attention *)op->attrs;

            how->softcap = strcmp(config.op, "softcap") ? 0 : 0.02;
            how->alibi = strcmp(config.op, "slopes") ? 0 : 8;
        }
}

static int apply(struct ct_graph *graph, struct ct_run *run)
{
    (void)run;
    change_scores(graph);
    ct_for_each_op_safe (op, graph) {
        struct ct_builder b = ct_builder_after(graph, op);
        struct ct_value *in[2] = {op->outs ? op->out[0] : NULL}, *y;

        if (op->type != &ct_op_embedding || !chosen())
            continue;
        if (chosen() == &table_type)
            in[1] = ct_parameter(&b, "places.table", 2, in[0]->shape + 1, CT_INIT_STD(0.02));
        y = ct_emit_type1(&b, chosen(), "placed", in, chosen() == &table_type ? 2 : 1, NULL);
        if (!y)
            return b.status;
        ct_value_replace(graph, in[0], y);
    }
    return 0;
}

static const struct ct_transform transform = {
    .size = sizeof(struct ct_transform),
    .name = "places",
    .summary = "an op with positions of its own behind the embedding",
    .phase = CT_PHASE_PARTITION,
    .evaluation = true,
    .apply = apply,
};

CT_PLUGIN(.name = "places", .version = "1", .summary = "An op with positions of its own",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_TRANSFORM, "places", &transform}, {CT_OP, "", &wave_type},
                              {CT_KERNELS, "cpu", wave_kernels}, {CT_OP, "", &hidden_type},
                              {CT_OP, "", &running_type}, {CT_OP, "", &running_grad_type},
                              {CT_OP, "", &table_type}));
