/*
 * Attention on shards of a sequence against attention on the whole: keys in blocks whose results
 * are merged, gradients of blocks with the statistics of the whole, tokens in another order.
 */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include <ctitan/error.h>
#include <ctitan/lib/app/check.h>
#include <ctitan/lib/ops.h>

#include "plugin_ops.h"

enum { B = 2, T = 12, H = 4, G = 2, D = 4, BLOCKS = 3, SHARD = T / BLOCKS };

#define Q "real[2,12,4,4] "
#define K "real[2,12,2,4] "
#define V "real[2,12,2,3] "

/* Who stands where: in order, or every fifth. */
static void place_tokens(int32_t at[T], bool shuffled)
{
    for (int t = 0; t < T; t++)
        at[t] = shuffled ? t * 5 % T : t;
}

static struct ct_value *source(struct ct_trial *m, enum ct_dtype dtype, int rank,
                               const int64_t *shape)
{
    return ct_graph_source(m->graph, CT_ROLE_INPUT, "shard", dtype, rank, shape);
}

/* Tokens [first, first + tokens) of the sequence when its tokens stand as `at` says. */
static struct ct_value *shard(struct ct_trial *m, const struct ct_value *whole, const int32_t *at,
                              int first, int tokens)
{
    struct ct_tensor from = *ct_trial_tensor(m, whole), to;
    struct ct_value *v;
    int64_t row = ct_tensor_count(&from) / B / T, shape[CT_MAX_DIMS];

    memcpy(shape, whole->shape, sizeof(shape));
    shape[1] = tokens;
    v = source(m, whole->dtype, whole->ndim, shape);
    to = *ct_trial_tensor(m, v);
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t i = 0; i < row; i++)
                ct_tensor_store(&to, (b * tokens + t) * row + i,
                                ct_tensor_load(&from, (b * T + at[first + t]) * row + i));
    return v;
}

/* lse[b, h, t] as its tokens stand. */
static struct ct_value *statistics(struct ct_trial *m, const struct ct_value *whole,
                                   const int32_t *at)
{
    struct ct_value *v = source(m, CT_F64, 3, whole->shape);

    for (int64_t i = 0; i < B * H * T; i++)
        ct_tensor_store(ct_trial_tensor(m, v), i,
                        ct_tensor_load(ct_trial_tensor(m, whole), i / T * T + at[i % T]));
    return v;
}

static struct ct_value *positions(struct ct_trial *m, const int32_t *at, int first, int tokens)
{
    struct ct_value *v = source(m, CT_I32, 2, (int64_t[]){B, tokens});

    for (int64_t i = 0; i < B * tokens; i++)
        ct_tensor_store(ct_trial_tensor(m, v), i, at[first + i % tokens]);
    return v;
}

/* Tokens of got stand as `at` says, from first on; those of want in order. */
static void same(struct ct_trial *m, const struct ct_value *got, const struct ct_value *want,
                 const int32_t *at, int first)
{
    const struct ct_tensor *g = ct_trial_tensor(m, got), *w = ct_trial_tensor(m, want);
    int64_t tokens = g->shape[1], row = ct_tensor_count(w) / B / T;

    for (int64_t i = 0; i < ct_tensor_count(g); i++) {
        int64_t b = i / row / tokens, t = i / row % tokens;
        double a = ct_tensor_load(g, i);
        double e = ct_tensor_load(w, (b * T + at[first + t]) * row + i % row);

        if (!(fabs(a - e) <= 1e-12 * (1 + fabs(e))))
            fail_msg("%s, element %lld: %.17g, not %.17g", want->name, (long long)i, a, e);
    }
}

static struct ct_op *emit(struct ct_builder *b, const char *type, struct ct_value *const *in,
                          int ins)
{
    struct ct_op *op = ct_emit(b, type, NULL, in, ins, NULL);

    if (!op)
        fail_msg("%s", ct_error_message());
    return op;
}

struct whole {
    struct ct_trial m;
    struct ct_builder b;
    struct ct_value *documents, *grad;
    int32_t at[T];
};

static void create(struct whole *w, bool documents, bool shuffled)
{
    const char *inputs = documents ? Q K V "document[2,12]" : Q K V "-";

    place_tokens(w->at, shuffled);
    if (ct_trial_create(&w->m, &(struct ct_sample){"attention", NULL, inputs}, CT_F64) < 0)
        fail_msg("%s", ct_error_message());
    assert_int_equal(ct_trial_run(&w->m, w->m.op), 0);
    w->b = ct_builder_at_end(w->m.graph, CT_PART_F, "");
    w->documents = w->m.op->in[3];
    w->grad = source(&w->m, CT_F64, 4, w->m.op->out[0]->shape);
    ct_trial_fill(&w->m, w->grad, "real");
}

static struct ct_value *documents(struct whole *w, int first, int tokens)
{
    return w->documents ? shard(&w->m, w->documents, w->at, first, tokens) : NULL;
}

/* attention or attention_grad: operands, then positions of all queries and of a block of keys. */
static struct ct_op *on_block(struct whole *w, const char *type, struct ct_value *const *operands,
                              int count, int first)
{
    struct ct_value *in[10];

    memcpy(in, operands, sizeof(*in) * (size_t)count);
    in[count] = documents(w, 0, T);
    in[count + 1] = documents(w, first, SHARD);
    in[count + 2] = positions(&w->m, w->at, 0, T);
    in[count + 3] = positions(&w->m, w->at, first, SHARD);
    return emit(&w->b, type, in, count + 4);
}

/* Blocks one after the other, each merged with those before. */
static void check_forward(bool with_documents, bool shuffled)
{
    struct whole w;
    struct ct_value **in, *o = NULL, *lse = NULL, *q;
    struct ct_op *first = NULL;

    create(&w, with_documents, shuffled);
    in = w.m.op->in;
    q = shard(&w.m, in[0], w.at, 0, T);
    for (int i = 0; i < BLOCKS; i++) {
        struct ct_value *k = shard(&w.m, in[1], w.at, i * SHARD, SHARD);
        struct ct_value *v = shard(&w.m, in[2], w.at, i * SHARD, SHARD);
        struct ct_op *op = on_block(&w, "attention", (struct ct_value *[]){q, k, v}, 3, i * SHARD);

        first = first ? first : op;
        if (i > 0)
            op = emit(&w.b, "attention_merge",
                      (struct ct_value *[]){o, lse, op->out[0], op->out[1]}, 4);
        o = op->out[0];
        lse = op->out[1];
    }
    assert_int_equal(ct_trial_run_from(&w.m, first), 0);
    same(&w.m, o, w.m.op->out[0], w.at, 0);
    q = statistics(&w.m, w.m.op->out[1], w.at);
    for (int64_t i = 0; i < B * H * T; i++)
        assert_true(fabs(ct_tensor_load(ct_trial_tensor(&w.m, lse), i) -
                         ct_tensor_load(ct_trial_tensor(&w.m, q), i)) < 1e-12);
    ct_trial_finish(&w.m);
}

static void merged_blocks_equal_the_whole(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        check_forward(i & 1, i & 2);
}

/* Gradients of blocks, with o and lse of the whole: dq adds up, dk and dv are the block's. */
static void check_backward(bool with_documents, bool shuffled)
{
    struct whole w;
    struct ct_value **in, **out, *o, *q, *d_o, *lse, *dq = NULL;
    struct ct_op *all, *block[BLOCKS], *first = NULL;

    create(&w, with_documents, shuffled);
    in = w.m.op->in;
    out = w.m.op->out;
    all = emit(&w.b, "attention_grad",
               (struct ct_value *[]){w.grad, in[0], in[1], in[2], out[0], out[1], w.documents}, 7);
    assert_int_equal(ct_trial_run(&w.m, all), 0);
    d_o = shard(&w.m, w.grad, w.at, 0, T);
    q = shard(&w.m, in[0], w.at, 0, T);
    o = shard(&w.m, out[0], w.at, 0, T);
    lse = statistics(&w.m, out[1], w.at);
    for (int i = 0; i < BLOCKS; i++) {
        struct ct_value *k = shard(&w.m, in[1], w.at, i * SHARD, SHARD);
        struct ct_value *v = shard(&w.m, in[2], w.at, i * SHARD, SHARD);

        block[i] = on_block(&w, "attention_grad", (struct ct_value *[]){d_o, q, k, v, o, lse}, 6,
                            i * SHARD);
        first = first ? first : block[i];
        dq = i ? emit(&w.b, "add", (struct ct_value *[]){dq, block[i]->out[0]}, 2)->out[0]
               : block[i]->out[0];
    }
    assert_int_equal(ct_trial_run_from(&w.m, first), 0);
    same(&w.m, dq, all->out[0], w.at, 0);
    for (int i = 0; i < BLOCKS; i++)
        for (int k = 1; k < 3; k++)
            same(&w.m, block[i]->out[k], all->out[k], w.at, i * SHARD);
    ct_trial_finish(&w.m);
}

static void gradients_of_blocks_add_up(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        check_backward(i & 1, i & 2);
}

/* A query that sees no key: o is zero, lse -inf, and no gradient flows. */
static void a_query_without_keys_gives_zero(void **state)
{
    struct ct_trial m;
    struct ct_value **in;
    struct ct_builder b;
    struct ct_op *grad;

    (void)state;
    assert_int_equal(
        ct_trial_create(&m,
                        &(struct ct_sample){"attention", NULL,
                                            "real[1,2,1,2] real[1,2,1,2] real[1,2,1,2] "
                                            "document[1,2] document[1,2] position[1,2] "
                                            "position[1,2]"},
                        CT_F64),
        0);
    in = m.op->in;
    memcpy(ct_trial_tensor(&m, in[5])->data, (int32_t[]){5, 1}, 8); /* of queries */
    memcpy(ct_trial_tensor(&m, in[6])->data, (int32_t[]){3, 2}, 8); /* of keys */
    b = ct_builder_at_end(m.graph, CT_PART_F, "");
    grad = emit(&b, "attention_grad",
                (struct ct_value *[]){in[0], in[0], in[1], in[2], m.op->out[0], m.op->out[1], in[3],
                                      in[4], in[5], in[6]},
                10);
    assert_int_equal(ct_trial_run_from(&m, m.op), 0);
    assert_true(isfinite(ct_tensor_load(ct_trial_tensor(&m, m.op->out[1]), 0)));
    assert_true(ct_tensor_load(ct_trial_tensor(&m, m.op->out[1]), 1) == -INFINITY);
    for (int i = 2; i < 4; i++) {
        assert_true(ct_tensor_load(ct_trial_tensor(&m, m.op->out[0]), i) == 0);
        assert_true(ct_tensor_load(ct_trial_tensor(&m, grad->out[0]), i) == 0);
    }
    for (int i = 0; i < 4; i++)
        assert_true(isfinite(ct_tensor_load(ct_trial_tensor(&m, grad->out[1]), i)));
    ct_trial_finish(&m);
}

/* Merging with what saw nothing changes nothing, on either side. */
static void merging_with_nothing_changes_nothing(void **state)
{
    struct ct_trial m;
    double *o, *lse, *other, *other_lse;

    (void)state;
    assert_int_equal(
        ct_trial_create(&m,
                        &(struct ct_sample){"attention_merge", NULL,
                                            "real[1,3,1,1] real[1,1,3] real[1,3,1,1] real[1,1,3]"},
                        CT_F64),
        0);
    o = ct_trial_tensor(&m, m.op->in[0])->data;
    lse = ct_trial_tensor(&m, m.op->in[1])->data;
    other = ct_trial_tensor(&m, m.op->in[2])->data;
    other_lse = ct_trial_tensor(&m, m.op->in[3])->data;
    lse[0] = other_lse[1] = lse[2] = other_lse[2] = -INFINITY;
    o[0] = other[1] = o[2] = other[2] = 0;
    assert_int_equal(ct_trial_run(&m, m.op), 0);
    assert_true(((double *)ct_trial_tensor(&m, m.op->out[0])->data)[0] == other[0]);
    assert_true(((double *)ct_trial_tensor(&m, m.op->out[0])->data)[1] == o[1]);
    assert_true(((double *)ct_trial_tensor(&m, m.op->out[0])->data)[2] == 0);
    assert_true(((double *)ct_trial_tensor(&m, m.op->out[1])->data)[0] == other_lse[0]);
    assert_true(((double *)ct_trial_tensor(&m, m.op->out[1])->data)[1] == lse[1]);
    assert_true(((double *)ct_trial_tensor(&m, m.op->out[1])->data)[2] == -INFINITY);
    ct_trial_finish(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merged_blocks_equal_the_whole),
        cmocka_unit_test(gradients_of_blocks_add_up),
        cmocka_unit_test(a_query_without_keys_gives_zero),
        cmocka_unit_test(merging_with_nothing_changes_nothing),
    };
    if (REGISTER_OPS("cp", "float8", "tp") < 0)
        return 1;
    return cmocka_run_group_tests_name("attention on shards", tests, NULL, NULL);
}
