/*
 * Ops that are right, though not in the most common way: `ctitan check` must pass them.
 */
#include <math.h>

#include <ctitan/op_author.h>
#include <ctitan/plugin.h>

/* A state that each rank has whole, beside a parameter that is split. */
static int count(const struct ct_launch *l)
{
    for (int64_t i = 0; i < ct_tensor_count(&l->in[1]); i++)
        ct_tensor_store(&l->in[1], i, ct_tensor_load(&l->in[1], i) + 1);
    return 0;
}

static const struct ct_op_type whole_state = {.size = sizeof(struct ct_op_type),
                                              .name = "sound.count",
                                              .summary = "counts the steps of each column",
                                              .signature = "!p[nk] F, !c[k] f",
                                              .reference = count};

/* Maxima, of which some are below 0. */
static int largest(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t columns = ct_columns(&l->in[0]);

    for (int64_t i = 0; i < ct_rows(&l->in[0]); i++) {
        r.out[0][i] = -INFINITY;
        for (int64_t k = 0; k < columns; k++)
            r.out[0][i] = fmax(r.out[0][i], r.in[0][i * columns + k]);
    }
    return ct_reference_end(&r, 0);
}

static const struct ct_op_type maxima = {.size = sizeof(struct ct_op_type),
                                         .name = "sound.largest",
                                         .summary = "the largest element of each row",
                                         .signature = "x[.k] T -> m[.] T max",
                                         .samples = "real[12,2]",
                                         .reference = largest};

/* Running sums along sequences, in whatever order they are fed. */
static int sums(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t length = l->in[0].shape[1];

    for (int64_t i = 0; i < ct_tensor_count(&l->in[0]); i++)
        for (int64_t k = 0; k < length; k++)
            if (ct_launch_position(l, l->op->in[0], 1, k) <=
                ct_launch_position(l, l->op->in[0], 1, i % length))
                r.out[0][i] += r.in[0][i / length * length + k];
    return ct_reference_end(&r, 0);
}

static const struct ct_op_type running = {.size = sizeof(struct ct_op_type),
                                          .name = "sound.sums",
                                          .summary = "running sums along sequences",
                                          .signature = "x[bT] T -> y[bT] T | @T",
                                          .reference = sums};

CT_PLUGIN(.name = "sound", .version = "1.0", .summary = "Ops that are right",
          .offers = CT_OFFERS({CT_OP, "sound.count", &whole_state},
                              {CT_OP, "sound.largest", &maxima}, {CT_OP, "sound.sums", &running}));
