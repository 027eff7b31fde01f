/*
 * Propagation on graphs that a reader can follow: golden files show each before (differentiated,
 * sources split, redistributions asked for) and after (every value with its sharding, collectives
 * with the reason for them).
 */
#include "support.h"
#include "plugin_ops.h"

#include <ctitan/app/verify.h>
#include <ctitan/lib/ops.h>
#include <ctitan/text.h>

/* A gradient as its parameter lies: what the optimizer will ask for. */
static void ask_for_gradients(struct ct_graph *graph)
{
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_POST, "");
    size_t count = graph->value_count;

    for (size_t i = 0; i < count; i++) {
        struct ct_value *v = graph->values[i];

        if (!v->grad)
            continue;
        ct_value_set_grad(v, ct_redistribute(&b, v->grad->name, v->grad, &v->sharding, NULL));
        assert_non_null(v->grad);
    }
}

static void check_golden(const char *name, const char *text)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = parse(&arena, text);
    char *before;

    assert_ok(ct_differentiate(graph));
    ask_for_gradients(graph);
    assert_ok(ct_graph_verify(graph, NULL));
    before = ct_graph_text(graph, &arena);
    assert_ok(ct_pass_propagate.apply(graph, NULL));
    assert_ok(ct_graph_verify(graph, NULL));
    assert_golden(name, ct_arena_printf(&arena, "# before\n%s\n# after\n%s", before,
                                        ct_graph_text(graph, &arena)));
    ct_arena_finish(&arena);
}

/* Gradients come out as pending sums, and are all-reduced; so is the loss. */
static void data_parallel_reduces_gradients(void **state)
{
    (void)state;
    check_golden("data_parallel.graph",
                 "graph \"data parallel\"\n"
                 "mesh dp_replicate=4\n"
                 "input %x : float32[8,16,32] [dp_replicate]\n"
                 "input %labels : int32[8,16] [dp_replicate]\n"
                 "param %w : float32[32,32]\n"
                 "param %head : float32[64,32]\n"
                 "F - %y = linear(%x, %w) : float32[8,16,32]\n"
                 "F - %loss = linear_cross_entropy(%y, %head, %labels) : float32[]\n"
                 "fetch loss = %loss\n");
}

/* Kept in shards, gathered for use: the reduce-scatter of gradients follows, and for the copies an
   all-reduce of what is left. */
static void fully_sharded_gathers_and_scatters(void **state)
{
    (void)state;
    check_golden(
        "fully_sharded.graph",
        "graph \"fully sharded, two copies\"\n"
        "mesh dp_replicate=2 dp_shard=4\n"
        "input %x : float32[8,16,32] [dp_replicate.dp_shard]\n"
        "input %labels : int32[8,16] [dp_replicate.dp_shard]\n"
        "param %w : float32[32,32] [dp_shard]\n"
        "param %head : float32[64,32] [dp_shard]\n"
        "F - %w.whole = redistribute(%w) {gradient=\"[dp_shard, -]\"} : float32[32,32] ; gather\n"
        "F - %y = linear(%x, %w.whole) : float32[8,16,32]\n"
        "F - %head.whole = redistribute(%head) : float32[64,32] ; gather\n"
        "F - %loss = linear_cross_entropy(%y, %head.whole, %labels) : float32[]\n"
        "fetch loss = %loss\n");
}

#define FFN                                                                                        \
    "F - %gate, %up = linear(%x.norm, %w1, %w3) : float32[2,16,64], float32[2,16,64]\n"            \
    "F - %hidden = swiglu(%gate, %up) : float32[2,16,64]\n"                                        \
    "F - %down = linear(%hidden, %w2) : float32[2,16,32]\n"                                        \
    "F - %y, %sum, %rstd2 = add_rms_norm(%down, %x, %scale2) {eps=1e-5} : float32[2,16,32], "      \
    "float32[2,16,32], float32[2,16]\n"

#define TENSOR_PARALLEL                                                                            \
    "mesh tp=4\n"                                                                                  \
    "input %tokens : int32[2,16]\n"                                                                \
    "input %labels : int32[2,16]\n"                                                                \
    "param %table : float32[64,32] [tp]\n"                                                         \
    "param %scale : float32[32]\n"                                                                 \
    "param %w1 : float32[64,32] [tp]\n"                                                            \
    "param %w3 : float32[64,32] [tp]\n"                                                            \
    "param %w2 : float32[32,64] [-, tp]\n"                                                         \
    "param %scale2 : float32[32]\n"                                                                \
    "param %head : float32[64,32] [tp]\n"

/* Products over split features are pending sums, all-reduced where they are needed whole; logits
   are split by vocabulary and gathered for the loss. */
static void tensor_parallel_reduces_once_for_two_products(void **state)
{
    (void)state;
    check_golden("tensor_parallel.graph",
                 "graph \"tensor parallel\"\n" TENSOR_PARALLEL
                 "F - %x = embedding(%tokens, %table) : float32[2,16,32]\n"
                 "F - %x.norm, %rstd = rms_norm(%x, %scale) {eps=1e-5} : float32[2,16,32], "
                 "float32[2,16]\n" FFN "F - %logits = linear(%y, %head) : float32[2,16,64]\n"
                 "F - %loss, %lse = cross_entropy(%logits, %labels) : float32[], float32[2,16]\n"
                 "fetch loss = %loss\n");
}

/* One more annotation: the residual stream is split along the sequence. All-reduces become
   reduce-scatters into it and all-gathers out of it; of the logits only statistics are gathered. */
static void sequence_parallel_scatters_the_residual_stream(void **state)
{
    (void)state;
    check_golden(
        "sequence_parallel.graph",
        "graph \"tensor, sequence and loss parallel\"\n" TENSOR_PARALLEL
        "F - %embedded = embedding(%tokens, %table) : float32[2,16,32]\n"
        "F - %x = redistribute(%embedded) {to=\"[-, tp, -]\"} : float32[2,16,32] ; residual\n"
        "F - %x.norm, %rstd = rms_norm(%x, %scale) {eps=1e-5} : float32[2,16,32], "
        "float32[2,16]\n" FFN "F - %logits = linear(%y, %head) : float32[2,16,64]\n"
        "F - %stats = cross_entropy_partial(%logits, %labels) {shards=4} : float32[2,16,4,3]\n"
        "F - %loss, %lse = cross_entropy_merge(%stats, %labels) : float32[], float32[2,16]\n"
        "fetch loss = %loss\n");
}

/* Impossible shardings are refused, by name. */
static void impossible_shardings_are_refused_by_name(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = parse(&arena, "graph \"stuck\"\n"
                                           "mesh tp=2\n"
                                           "param %p : float32[4] +{tp}\n"
                                           "post - init_constant(%p)\n");

    (void)state;
    assert_int_equal(ct_pass_propagate.apply(graph, NULL), CT_EINVAL);
    assert_message("init_constant would have to move %p, which it updates in place");
    ct_arena_finish(&arena);
}

static void one_rank_needs_no_collectives(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = parse(&arena, "graph \"one\"\n"
                                           "input %x : float32[4]\n"
                                           "F - %y = add(%x, %x) : float32[4]\n"
                                           "fetch y = %y\n");
    char *before = ct_graph_text(graph, &arena);

    (void)state;
    assert_ok(ct_pass_propagate.apply(graph, NULL));
    assert_string_equal(ct_graph_text(graph, &arena), before);
    ct_arena_finish(&arena);
}

/* Propagates a graph and returns it. */
static struct ct_graph *propagated(struct ct_arena *arena, const char *text)
{
    struct ct_graph *graph = parse(arena, text);

    assert_ok(ct_pass_propagate.apply(graph, NULL));
    assert_ok(ct_graph_verify(graph, stderr));
    return graph;
}

static size_t count_type(const struct ct_graph *graph, const struct ct_op_type *type)
{
    size_t count = 0;

    ct_for_each_op (op, graph)
        count += op->type == type;
    return count;
}

/* Even where the weight has fewer bytes, as it is needed again in every microbatch. */
static void activations_move_not_weights(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph =
        propagated(&arena, "graph \"which\"\nmesh tp=4\n"
                           "input %x : float32[1,4096,32] [-, tp, -]\n"
                           "param %w : float32[64,32] [tp]\n"
                           "F - %y = linear(%x, %w) : float32[1,4096,64]\n"
                           "F - %s = squared_norm(%y) : float64[]\nfetch s = %s\n");
    const struct ct_op *linear = ct_graph_find(graph, "y")->producer;

    (void)state;
    assert_ptr_equal(linear->in[0]->producer->type, &ct_op_all_gather);
    assert_ptr_equal(linear->in[1], ct_graph_find(graph, "w"));
    ct_arena_finish(&arena);
}

/* Two ops that need a value in one other sharding share the collective, asked for or found. */
static void one_redistribution_serves_all(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph =
        propagated(&arena, "graph \"shared\"\nmesh tp=4\n"
                           "input %x : float32[1,8,32] [-, tp, -]\n"
                           "param %v : float32[64,32] [tp]\nparam %w : float32[64,32] [tp]\n"
                           "F - %whole = redistribute(%x) : float32[1,8,32] ; asked for\n"
                           "F - %y = linear(%whole, %v) : float32[1,8,64]\n"
                           "F - %z = linear(%x, %w) : float32[1,8,64]\n"
                           "F - %sum = add(%y, %z) : float32[1,8,64]\n"
                           "F - %s = squared_norm(%sum) : float64[]\nfetch s = %s\n");

    (void)state;
    assert_int_equal(count_type(graph, &ct_op_all_gather), 1);
    ct_arena_finish(&arena);
}

/* Terms of a sum are added in their own dtype before they are rounded to a narrower one. */
static void sums_are_reduced_before_they_are_narrowed(void **state)
{
    static const struct {
        const char *dtype;
        bool reduced; /* before the cast */
    } cases[] = {{"bfloat16", true}, {"float64", false}};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_arena arena = {0};
        struct ct_graph *graph =
            propagated(&arena, ct_arena_printf(&arena,
                                               "graph \"narrow\"\nmesh tp=4\n"
                                               "input %%x : float32[1,8,32] [-, -, tp]\n"
                                               "param %%w : float32[64,32] [-, tp]\n"
                                               "F - %%y = linear(%%x, %%w) : float32[1,8,64]\n"
                                               "F - %%z = cast(%%y) {dtype=\"%s\"} : %s[1,8,64]\n"
                                               "fetch z = %%z\n",
                                               cases[i].dtype, cases[i].dtype));
        const struct ct_op *cast = ct_graph_find(graph, "z")->producer;

        assert_int_equal(cast->in[0]->producer->type == &ct_op_all_reduce, cases[i].reduced);
        assert_int_equal(count_type(graph, &ct_op_all_reduce), 1);
        ct_arena_finish(&arena);
    }
}

static const struct ct_op_type amax = {
    .size = sizeof(struct ct_op_type),
    .name = "test_amax",
    .summary = "the largest of each row",
    .signature = "x[.k] F -> m[.] F max",
};

/* Over a split dimension a maximum is pending. A linear op passes sums on, but not maxima. */
static void a_maximum_of_shards_is_reduced_to_the_largest(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph;
    const struct ct_collective_attrs *attrs;
    struct ct_value *m, *y;
    char *text;

    (void)state;
    assert_ok(ct_op_need(&amax));
    graph = parse(&arena, "graph \"maximum\"\n"
                          "mesh dp_shard=2 tp=4\n"
                          "input %x : float32[8,16] [dp_shard, tp]\n"
                          "F - %m = test_amax(%x) : float32[8]\n"
                          "F - %y = cast(%m) {dtype=\"float64\"} : float64[8]\n"
                          "fetch y = %y\n");
    assert_ok(ct_pass_propagate.apply(graph, NULL));
    assert_ok(ct_graph_verify(graph, NULL));
    text = ct_graph_text(graph, &arena);
    m = ct_graph_find(graph, "m");
    y = ct_graph_find(graph, "y");
    assert_int_equal(m->sharding.unreduced, 1 << 1);
    assert_int_equal(m->sharding.reduction, CT_REDUCE_MAX);
    assert_ptr_equal(y->producer->in[0]->producer->type, &ct_op_all_reduce);
    attrs = y->producer->in[0]->producer->attrs;
    assert_int_equal(attrs->reduction, CT_REDUCE_MAX);
    assert_int_equal(attrs->axes, 1 << 1);
    assert_int_equal(y->sharding.unreduced, 0);
    assert_non_null(strstr(text, "%m = test_amax(%x) : float32[8] [dp_shard]max{tp}\n"));
    assert_non_null(strstr(text, "all_reduce(%m) {axes=\"tp\", reduction=\"max\"}"));
    assert_string_equal(ct_graph_text(parse(&arena, text), &arena), text);
    ct_arena_finish(&arena);
}

static int halves_infer(struct ct_op *op)
{
    op->out[0]->shape[1] = op->out[1]->shape[1] = op->in[0]->shape[1] / 2;
    return 0;
}

static const struct ct_op_type halves = {
    .size = sizeof(struct ct_op_type),
    .name = "test_halves",
    .summary = "two halves of the columns, less those of what may be absent",
    .signature = "x[.M] F, ?less[.M] F -> y[.N] F, z[.N] F",
    .flags = CT_OP_LINEAR,
    .infer = halves_infer,
};

/* Each output of a linear op is a pending sum; an input that is absent is no reason against it. */
static void a_linear_op_passes_sums_to_all_its_outputs(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph;

    (void)state;
    assert_ok(ct_op_need(&halves));
    graph = parse(&arena, "graph \"halves\"\n"
                          "mesh tp=4\n"
                          "input %x : float32[8,16] [-, tp]\n"
                          "param %w : float32[32,16] [-, tp]\n"
                          "F - %s = linear(%x, %w) : float32[8,32]\n"
                          "F - %y, %z = test_halves(%s, _) : float32[8,16], float32[8,16]\n"
                          "fetch y = %y\n"
                          "fetch z = %z\n");
    assert_ok(ct_pass_propagate.apply(graph, NULL));
    assert_ok(ct_graph_verify(graph, NULL));
    for (int i = 0; i < 2; i++) {
        const struct ct_value *part = ct_graph_find(graph, i ? "z" : "y");
        const struct ct_op *op = part->producer;

        if (op->type == &ct_op_all_reduce)
            op = op->in[0]->producer;
        assert_ptr_equal(op->type, &halves);
        assert_int_equal(op->out[i]->sharding.unreduced, op->in[0]->sharding.unreduced);
    }
    ct_arena_finish(&arena);
}

struct blocks {
    int64_t size;
};

static int blocks_reference(const struct ct_launch *l)
{
    (void)l;
    return 0;
}

static const struct ct_op_type blocks = {
    .size = sizeof(struct ct_op_type),
    .name = "test_blocks",
    .summary = "blocks of columns, each for itself",
    .signature = "x[.n] T -> y[.n] T | n%size",
    .attrs =
        (const struct ct_option[]){
            CT_OPT_INT(struct blocks, size, "size", "1", 1, 1 << 20, "Columns of a block"), {0}},
    .attrs_size = sizeof(struct blocks),
    .reference = blocks_reference,
};

/* Two ranks have 12 columns of 24 each: whole blocks of 4 or 6, but not of 8. */
static void a_factor_is_split_in_multiples(void **state)
{
    static const struct {
        const char *size;
        int split;
    } cases[] = {{"1", 1}, {"4", 1}, {"6", 1}, {"8", 0}};

    (void)state;
    assert_ok(ct_op_need(&blocks));
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_arena arena = {0};
        struct ct_graph *graph =
            parse(&arena, ct_arena_printf(&arena,
                                          "graph \"blocks\"\n"
                                          "mesh tp=2\n"
                                          "input %%x : float32[8,24] [-, tp]\n"
                                          "F - %%y = test_blocks(%%x) {size=%s} : float32[8,24]\n"
                                          "fetch y = %%y\n",
                                          cases[i].size));
        const struct ct_op *op = NULL;

        assert_ok(ct_pass_propagate.apply(graph, NULL));
        assert_ok(ct_graph_verify(graph, NULL));
        ct_for_each_op (each, graph)
            op = each->type == &blocks ? each : op;
        assert_non_null(op);
        assert_int_equal(op->in[0]->sharding.count[1], cases[i].split);
        assert_int_equal(op->out[0]->sharding.count[1], cases[i].split);
        ct_arena_finish(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_parallel_reduces_gradients),
        cmocka_unit_test(fully_sharded_gathers_and_scatters),
        cmocka_unit_test(tensor_parallel_reduces_once_for_two_products),
        cmocka_unit_test(sequence_parallel_scatters_the_residual_stream),
        cmocka_unit_test(impossible_shardings_are_refused_by_name),
        cmocka_unit_test(one_rank_needs_no_collectives),
        cmocka_unit_test(activations_move_not_weights),
        cmocka_unit_test(one_redistribution_serves_all),
        cmocka_unit_test(sums_are_reduced_before_they_are_narrowed),
        cmocka_unit_test(a_maximum_of_shards_is_reduced_to_the_largest),
        cmocka_unit_test(a_linear_op_passes_sums_to_all_its_outputs),
        cmocka_unit_test(a_factor_is_split_in_multiples),
    };
    if (REGISTER_OPS("tp") < 0)
        return 1;
    return cmocka_run_group_tests_name("propagation", tests, NULL, NULL);
}
