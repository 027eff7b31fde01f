/*
 * Transforms of fsdp and tp on the collectives that propagation left: gathered again for the
 * backward, ahead of their use, a unit's as one; and collectives that join no bucket.
 */
#include "plugin_under_test.h"
#include "support.h"

#include <ctitan/app/verify.h>
#include <ctitan/pass.h>
#include <ctitan/text.h>

static void check(struct ct_arena *arena, struct ct_graph *g, const char *golden)
{
    ct_graph_sweep(g);
    assert_ok(ct_graph_verify(g, NULL));
    assert_golden(golden, ct_graph_text(g, arena));
}

#define GATHER " ; fsdp: a parameter is used whole and kept in shards\n"

/* Two layers of two weights each, and their gradients; the second weight of each is summed up over
   copies, too. */
static const char layers[] =
    "graph \"layers\"\n"
    "mesh dp_replicate=2 dp_shard=2\n"
    "param %a.w : float32[4,4] [dp_shard, -]\n"
    "param %a.v : float32[4,4] [dp_shard, -]\n"
    "param %b.w : float32[4,4] [dp_shard, -]\n"
    "param %b.v : float32[4,4] [dp_shard, -]\n"
    "input %x : float32[8,4] [dp_replicate.dp_shard, -]\n"
    "F a #fsdp.gather %a.w.whole = all_gather(%a.w) {axes=\"dp_shard\"} : float32[4,4]" GATHER
    "F a %a.h = linear(%x, %a.w.whole) : float32[8,4] [dp_replicate.dp_shard, -]\n"
    "F a #fsdp.gather %a.v.whole = all_gather(%a.v) {axes=\"dp_shard\"} : float32[4,4]" GATHER
    "F a %a.y = linear(%a.h, %a.v.whole) : float32[8,4] [dp_replicate.dp_shard, -]\n"
    "F b #fsdp.gather %b.w.whole = all_gather(%b.w) {axes=\"dp_shard\"} : float32[4,4]" GATHER
    "F b %b.h = linear(%a.y, %b.w.whole) : float32[8,4] [dp_replicate.dp_shard, -]\n"
    "F b #fsdp.gather %b.v.whole = all_gather(%b.v) {axes=\"dp_shard\"} : float32[4,4]" GATHER
    "F b %b.y = linear(%b.h, %b.v.whole) : float32[8,4] [dp_replicate.dp_shard, -]\n"
    "I b %d.b.h = linear_dx(%b.y, %b.v.whole) : float32[8,4] [dp_replicate.dp_shard, -]\n"
    "W b %d.b.v = linear_dw(%b.h, %b.y) : float32[4,4] +{dp_replicate,dp_shard}\n"
    "W b %d.b.v.split = reduce_scatter(%d.b.v) {axes=\"dp_shard\"} : float32[4,4] [dp_shard, -]"
    "+{dp_replicate}\n"
    "I b %d.a.y = linear_dx(%d.b.h, %b.w.whole) : float32[8,4] [dp_replicate.dp_shard, -]\n"
    "W b %d.b.w = linear_dw(%a.y, %d.b.h) : float32[4,4] +{dp_replicate,dp_shard}\n"
    "W b %d.b.w.split = reduce_scatter(%d.b.w) {axes=\"dp_shard\"} : float32[4,4] [dp_shard, -]"
    "+{dp_replicate}\n"
    "I a %d.a.h = linear_dx(%d.a.y, %a.v.whole) : float32[8,4] [dp_replicate.dp_shard, -]\n"
    "W a %d.a.v = linear_dw(%a.h, %d.a.y) : float32[4,4] +{dp_replicate,dp_shard}\n"
    "W a %d.a.v.split = reduce_scatter(%d.a.v) {axes=\"dp_shard\"} : float32[4,4] [dp_shard, -]"
    "+{dp_replicate}\n"
    "W a %d.a.w = linear_dw(%x, %d.a.h) : float32[4,4] +{dp_replicate,dp_shard}\n"
    "W a %d.a.w.split = reduce_scatter(%d.a.w) {axes=\"dp_shard\"} : float32[4,4] [dp_shard, -]"
    "+{dp_replicate}\n"
    "post - %g.a.w = all_reduce(%d.a.w.split) {axes=\"dp_replicate\"} : float32[4,4] [dp_shard, "
    "-]\n"
    "post - %g.a.v = all_reduce(%d.a.v.split) {axes=\"dp_replicate\"} : float32[4,4] [dp_shard, "
    "-]\n"
    "post - %n = squared_norm(%g.a.w, %g.a.v) : float64[] +{dp_shard}\n"
    "post - %g.b.w = all_reduce(%d.b.w.split) {axes=\"dp_replicate\"} : float32[4,4] [dp_shard, "
    "-]\n"
    "post - %g.b.v = all_reduce(%d.b.v.split) {axes=\"dp_replicate\"} : float32[4,4] [dp_shard, "
    "-]\n"
    "fetch n = %n\n"
    "grad %a.w = %g.a.w\n"
    "grad %a.v = %g.a.v\n"
    "grad %b.w = %g.b.w\n"
    "grad %b.v = %g.b.v\n";

/* A layer with weights that tp splits, w and v, and others, whose gradients are reduced over
   dp_shard and then over tp; that of o the other way round. */
#define SPLIT "float32[4,4] [dp_shard, -]"
#define WHOLE "float32[4,4] +{dp_shard,tp}\n"
#define SHARD " = reduce_scatter("
#define NORMS(y)                                                                                   \
    "graph \"norms\"\n"                                                                            \
    "mesh dp_shard=2 tp=2\n"                                                                       \
    "param %w : " SPLIT "\nparam %m : " SPLIT "\nparam %n : " SPLIT "\nparam %o : " SPLIT          \
    "\nparam %v : " SPLIT "\n"                                                                     \
    "input %x : float32[8,4] [dp_shard, -]\n" y                                                    \
    "W a %d.w = linear_dw(%x, %x) : float32[4,4] +{dp_shard}\n"                                    \
    "W a %d.w.split" SHARD "%d.w) {axes=\"dp_shard\"} : " SPLIT "\n"                               \
    "W a %d.m = linear_dw(%y, %y) : " WHOLE "W a %d.m.split" SHARD                                 \
    "%d.m) {axes=\"dp_shard\"} : " SPLIT "+{tp}\n"                                                 \
    "W a %d.m.sum = all_reduce(%d.m.split) {axes=\"tp\"} : " SPLIT "\n"                            \
    "W a %d.n = linear_dw(%y, %y) : " WHOLE "W a %d.n.split" SHARD                                 \
    "%d.n) {axes=\"dp_shard\"} : " SPLIT "+{tp}\n"                                                 \
    "W a %d.n.sum = all_reduce(%d.n.split) {axes=\"tp\"} : " SPLIT "\n"                            \
    "W a %d.o = linear_dw(%y, %y) : " WHOLE                                                        \
    "W a %d.o.sum = all_reduce(%d.o) {axes=\"tp\"} : float32[4,4] +{dp_shard}\n"                   \
    "W a %d.o.split" SHARD "%d.o.sum) {axes=\"dp_shard\"} : " SPLIT "\n"                           \
    "W a %d.v = linear_dw(%x, %x) : float32[4,4] +{dp_shard}\n"                                    \
    "W a %d.v.split" SHARD "%d.v) {axes=\"dp_shard\"} : " SPLIT "\n"                               \
    "post - %s = squared_norm(%d.w.split, %d.m.sum, %d.n.sum, %d.o.split, %d.v.split) : "          \
    "float64[] "                                                                                   \
    "+{dp_shard}\n"                                                                                \
    "fetch s = %s\n"                                                                               \
    "grad %w = %d.w.split\ngrad %m = %d.m.sum\ngrad %n = %d.n.sum\ngrad %o = %d.o.split\n"         \
    "grad %v = %d.v.split\n"
static const char norms[] = NORMS("input %y : float32[8,4] [dp_shard.tp, -]\n");

static void reductions_wait_for_reductions(void **state)
{
    const struct ct_plugin *plugin = test_plugin("fsdp");
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, norms);

    (void)state;
    assert_ok(ct_graph_verify(g, NULL));
    TEST_OPTIONS(plugin, "bucket=unit");
    assert_ok(test_transform(plugin, "fsdp.bucket")->apply(g, NULL));
    check(&arena, g, "norms.txt");
    ct_arena_finish(&arena);
}

static void check_layers(const char *setting, const char *golden)
{
    const struct ct_plugin *plugin = test_plugin("fsdp");
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, layers);

    assert_ok(ct_graph_verify(g, NULL));
    TEST_OPTIONS(plugin, setting);
    assert_ok(test_transform(plugin, "fsdp.prefetch")->apply(g, NULL));
    assert_ok(test_transform(plugin, "fsdp.bucket")->apply(g, NULL));
    check(&arena, g, golden);
    ct_arena_finish(&arena);
}

static void units_share_collectives(void **state)
{
    (void)state;
    check_layers("bucket=unit", "unit.txt");
}

static void parameters_have_their_own_collectives(void **state)
{
    (void)state;
    check_layers("bucket=parameter", "parameter.txt");
}

static void reshard_always_gathers_again(void **state)
{
    (void)state;
    check_layers("reshard_after_forward=always", "always.txt");
}

static void reshard_never_gathers_once(void **state)
{
    (void)state;
    check_layers("reshard_after_forward=never", "never.txt");
}

/* Shards are summed over the microbatches in float32, between two sums over ranks in bfloat16. Sums
   over tp are in float32. */
static void gradients_travel_in_bfloat16(void **state)
{
    const struct ct_plugin *plugin = test_plugin("fsdp");
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, layers);

    (void)state;
    TEST_OPTIONS(plugin, "reduce_dtype=bfloat16");
    assert_ok(test_transform(plugin, "fsdp.prefetch")->apply(g, NULL));
    assert_ok(test_transform(plugin, "fsdp.bucket")->apply(g, NULL));
    assert_ok(test_transform(plugin, "fsdp.reduce_dtype")->apply(g, NULL));
    check(&arena, g, "bfloat16.txt");
    ct_arena_finish(&arena);
    g = parse(&arena, NORMS("F a %y = slice(%x) {axes=\"tp\"} : float32[8,4] [dp_shard.tp, -]\n"));
    assert_ok(test_transform(plugin, "fsdp.bucket")->apply(g, NULL));
    assert_ok(test_transform(plugin, "fsdp.reduce_dtype")->apply(g, NULL));
    check(&arena, g, "norms_bfloat16.txt");
    ct_arena_finish(&arena);
}

/* A parameter that is scaled copies of two others, one behind the other, and a bias, whose gradient
   sums rows of what ranks have summed. */
static const char joined[] = "graph \"joined\"\n"
                             "mesh dp_shard=2\n"
                             "param %w : float32[8,4]\n"
                             "param %bias : float32[4]\n"
                             "input %x : float32[8,4] [dp_shard, -]\n"
                             "W a %d.p = linear_dw(%x, %x) : float32[4,4] +{dp_shard}\n"
                             "W a %d.q = linear_dw(%x, %x) : float32[4,4] +{dp_shard}\n"
                             "W a %p = all_reduce(%d.p) {axes=\"dp_shard\"} : float32[4,4]\n"
                             "W a %q = all_reduce(%d.q) {axes=\"dp_shard\"} : float32[4,4]\n"
                             "W a %g = concat(%p, %q) : float32[8,4]\n"
                             "W a %scaled = scale(%g) {factor=2} : float32[8,4]\n"
                             "W a %d.k = linear_dw(%x, %x) : float32[4,4] +{dp_shard}\n"
                             "W a %k = all_reduce(%d.k) {axes=\"dp_shard\"} : float32[4,4]\n"
                             "W a %d.bias = bias_grad(%k) : float32[4]\n"
                             "post - %n = squared_norm(%scaled, %d.bias) : float64[]\n"
                             "fetch n = %n\n"
                             "grad %w = %scaled\ngrad %bias = %d.bias\n";

static void reductions_are_found_behind_linear_ops(void **state)
{
    const struct ct_plugin *plugin = test_plugin("fsdp");
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, joined);

    (void)state;
    assert_ok(ct_graph_verify(g, NULL));
    TEST_OPTIONS(plugin, "reduce_dtype=bfloat16");
    assert_ok(test_transform(plugin, "fsdp.reduce_dtype")->apply(g, NULL));
    check(&arena, g, "joined_bfloat16.txt");
    ct_arena_finish(&arena);
}

/* A layer's input that two products need whole, in the forward and for their weights' gradients. */
static const char sequence[] =
    "graph \"sequence\"\n"
    "mesh tp=2\n"
    "param %w : float32[8,4] [tp, -]\n"
    "input %x : float32[2,6,4] [-, tp, -]\n"
    "F a %x.whole = all_gather(%x) {axes=\"tp\", dim=1} : float32[2,6,4]\n"
    "F a %y = linear(%x.whole, %w) : float32[2,6,8] [-, -, tp]\n"
    "I a %d.x = linear_dx(%y, %w) : float32[2,6,4] +{tp}\n"
    "W a %d.w = linear_dw(%x.whole, %y) : float32[8,4] [tp, -]\n"
    "I a %d.x.split = reduce_scatter(%d.x) {axes=\"tp\", dim=1} : float32[2,6,4] [-, tp, -]\n"
    "post - %n = squared_norm(%d.w, %d.x.split) : float64[] +{tp}\n"
    "fetch n = %n\n"
    "grad %w = %d.w\n";

static void check_sequence(const char *setting, const char *golden)
{
    const struct ct_plugin *plugin = test_plugin("tp");
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, sequence);

    assert_ok(ct_graph_verify(g, NULL));
    TEST_OPTIONS(plugin, "degree=2", setting);
    assert_ok(test_transform(plugin, "tp.regather")->apply(g, NULL));
    check(&arena, g, golden);
    ct_arena_finish(&arena);
}

static void inputs_are_gathered_again(void **state)
{
    (void)state;
    check_sequence("regather=true", "regather.txt");
    check_sequence("regather=false", "kept.txt");
}

/* ---- the dimension that is split ---- */

/* As many experts as shards; fewer; more, but no multiple; and fewer that are narrow, too. */
static const char mixtures[] =
    "graph \"mixtures\"\n"
    "mesh dp_replicate=2 dp_shard=4\n"
    "param %a.gate : float32[4,8,4]\n"
    "param %a.up : float32[4,8,4]\n"
    "param %a.down : float32[4,4,8]\n"
    "param %b.gate : float32[2,8,4]\n"
    "param %b.up : float32[2,8,4]\n"
    "param %b.down : float32[2,4,8]\n"
    "param %c.gate : float32[6,8,4]\n"
    "param %c.up : float32[6,8,4]\n"
    "param %c.down : float32[6,4,8]\n"
    "param %d.gate : float32[2,1,4]\n"
    "param %d.up : float32[2,1,4]\n"
    "param %d.down : float32[2,4,1]\n"
    "input %x : float32[8,4] [dp_replicate.dp_shard, -]\n"
    "input %weights : float32[8,1] [dp_replicate.dp_shard, -]\n"
    "input %ids : int32[8,1] [dp_replicate.dp_shard, -]\n"
    "F a %a = experts(%x, %weights, %ids, %a.gate, %a.up, %a.down) : float32[8,4]\n"
    "F b %b = experts(%a, %weights, %ids, %b.gate, %b.up, %b.down) : float32[8,4]\n"
    "F c %c = experts(%b, %weights, %ids, %c.gate, %c.up, %c.down) : float32[8,4]\n"
    "F d %d = experts(%c, %weights, %ids, %d.gate, %d.up, %d.down) : float32[8,4]\n"
    "fetch y = %d\n";

static void stacked_matrices_are_split_where_shards_are_smallest(void **state)
{
    const struct ct_plugin *plugin = test_plugin("fsdp");
    struct ct_arena arena = {0};
    struct ct_graph *g = parse(&arena, mixtures);

    (void)state;
    TEST_OPTIONS(plugin, "replicate_degree=2");
    assert_ok(test_transform(plugin, "fsdp")->apply(g, NULL));
    check(&arena, g, "mixtures.txt");
    ct_arena_finish(&arena);
}

/* ---- what others order themselves by ---- */

static bool saw_shards;

static int look(struct ct_graph *graph, struct ct_run *run)
{
    (void)run;
    saw_shards = ct_graph_find(graph, "w")->sharding.count[0] == 1;
    return 0;
}

/* Whatever the order of the manifest. */
static void others_can_come_after_parameters_are_sharded(void **state)
{
    const struct ct_transform after = {.size = sizeof(after),
                                       .name = "after",
                                       .summary = "sees shards",
                                       .phase = CT_PHASE_SHARD,
                                       .after = CT_NAMES("sharded"),
                                       .apply = look};
    const struct ct_plugin *plugin = test_plugin("fsdp");
    const struct ct_transform *fsdp = test_transform(plugin, "fsdp");
    const struct ct_transform *both[] = {&after, fsdp}, *turned[] = {fsdp, &after};
    const struct ct_pass_options options = {.training = true};

    (void)state;
    TEST_OPTIONS(plugin, "shard_degree=2");
    for (int i = 0; i < 2; i++) {
        struct ct_arena arena = {0};
        struct ct_graph *g = parse(&arena, "graph \"g\"\nmesh dp_shard=2\nparam %w : float32[8,4]\n"
                                           "input %x : float32[2,4] [dp_shard, -]\n"
                                           "F a %y = linear(%x, %w) : float32[2,8]\n"
                                           "fetch y = %y\n");

        saw_shards = false;
        assert_ok(ct_passes_run(g, i ? both : turned, 2, NULL, &options));
        assert_true(saw_shards);
        ct_arena_finish(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_share_collectives),
        cmocka_unit_test(reductions_wait_for_reductions),
        cmocka_unit_test(parameters_have_their_own_collectives),
        cmocka_unit_test(reshard_always_gathers_again),
        cmocka_unit_test(reshard_never_gathers_once),
        cmocka_unit_test(gradients_travel_in_bfloat16),
        cmocka_unit_test(reductions_are_found_behind_linear_ops),
        cmocka_unit_test(inputs_are_gathered_again),
        cmocka_unit_test(stacked_matrices_are_split_where_shards_are_smallest),
        cmocka_unit_test(others_can_come_after_parameters_are_sharded),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
