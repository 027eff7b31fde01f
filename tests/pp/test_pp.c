/*
 * Pipelines as graphs: where pp splits a model, and what `localise` leaves on each rank: what
 * crosses a split, what is handed on, tied parameters, and what is refused.
 */
#include "plugin_under_test.h"
#include "support.h"

#include <ctitan/app/verify.h>
#include <ctitan/lib/ops.h>
#include <ctitan/lib/pipeline.h>
#include <ctitan/run.h>
#include <ctitan/text.h>

static const struct ct_plugin *plugin;
static const struct ct_transform *partition, *localise;

static int load(void **state)
{
    static const char *const schedules[] = {"1f1b", "interleaved_1f1b", "zb1p", "zbv"};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(schedules); i++)
        if (ct_plugin_register(test_plugin(schedules[i])) < 0)
            return -1;
    plugin = test_plugin("pp");
    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++)
        if (o->kind == CT_TRANSFORM && !strcmp(o->name, "pp"))
            partition = o->ops;
        else if (o->kind == CT_TRANSFORM && !strcmp(o->name, "pp.localise"))
            localise = o->ops;
    return ct_plugin_register(plugin);
}

/* ---- splits ---- */

static struct ct_graph *model(struct ct_arena *arena, int64_t layers, int ranks)
{
    struct ct_graph *g = tiny_llama(
        arena,
        (struct tiny){
            .batch = 2, .tokens = 8, .layers = layers, .heads = 4, .kv_heads = 4, .plain = true});

    g->mesh = (struct ct_mesh){1, {{"pp", ranks}}};
    return g;
}

/* "embedding 0, layers.0 0, .." */
static const char *stages(const struct ct_graph *g, struct ct_arena *arena)
{
    const char *text = "", *last = "";

    ct_for_each_op (op, g) {
        if (op->section->part != CT_PART_F || !strcmp(op->region, last))
            continue;
        text = ct_arena_printf(arena, "%s%s%s %d", text, *text ? ", " : "", op->region,
                               op->section->group);
        last = op->region;
    }
    return text;
}

static void check_cut(int64_t layers, int ranks, const char *schedule, const char *option,
                      const char *expected)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = model(&arena, layers, ranks);

    TEST_OPTIONS(plugin, ct_arena_printf(&arena, "degree=%d", ranks),
                 ct_arena_printf(&arena, "schedule=%s", schedule), option);
    assert_ok(partition->apply(g, NULL));
    assert_ok(ct_graph_verify(g, NULL));
    assert_string_equal(stages(g, &arena), expected);
    ct_arena_finish(&arena);
}

static void stages_are_balanced(void **state)
{
    (void)state;
    check_cut(3, 2, "1f1b", "microbatch_size=1",
              "embedding 0, layers.0 0, layers.1 0, layers.2 1, head 1");
    check_cut(2, 2, "interleaved_1f1b", "microbatch_size=1",
              "embedding 0, layers.0 1, layers.1 2, head 3");
}

static void layers_per_stage_is_kept(void **state)
{
    (void)state;
    check_cut(2, 2, "1f1b", "layers_per_stage=2", "embedding 0, layers.0 0, layers.1 1, head 1");
    check_cut(
        6, 2, "zbv", "layers_per_stage=2",
        "embedding 0, layers.0 0, layers.1 1, layers.2 1, layers.3 2, layers.4 2, layers.5 3, "
        "head 3");
}

static void split_points_begin_stages(void **state)
{
    (void)state;
    check_cut(3, 2, "1f1b", "split_points=layers.2",
              "embedding 0, layers.0 0, layers.1 0, layers.2 1, head 1");
    check_cut(3, 2, "1f1b", "split_points=layers.2,",
              "embedding 0, layers.0 0, layers.1 0, layers.2 1, head 1");
    check_cut(3, 2, "interleaved_1f1b", "split_points=layers.0, layers.1,head",
              "embedding 0, layers.0 1, layers.1 2, layers.2 2, head 3");
}

/* The ranks of a model of two layers that hold each part of it, as bits. */
static void check_holders(const char *schedule, uint64_t embedding, uint64_t layer, uint64_t head)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = model(&arena, 2, 2);

    TEST_OPTIONS(plugin, "degree=2", ct_arena_printf(&arena, "schedule=%s", schedule));
    assert_ok(partition->apply(g, NULL));
    assert_int_equal(g->partition_axis, 0);
    assert_int_equal(ct_graph_find(g, "embedding.table")->holders.word[0], embedding);
    assert_int_equal(ct_graph_find(g, "layers.1.wq")->holders.word[0], layer);
    assert_int_equal(ct_graph_find(g, "head.weight")->holders.word[0], head);
    ct_arena_finish(&arena);
}

static void parameters_are_held_where_the_schedule_places_stages(void **state)
{
    (void)state;
    check_holders("interleaved_1f1b", 1, 1, 2);
    check_holders("zbv", 1, 2, 1);
}

/* The residual stream alone crosses, before ops are joined and after. */
/* More ranks than a word has bits, as long as there are layers for them. */
static void a_pipeline_may_have_many_ranks(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = model(&arena, 70, 70), *copy;
    struct ct_run run = {.rank = 69};
    const struct ct_ranks *layer, *head;

    (void)state;
    TEST_OPTIONS(plugin, "degree=70", "schedule=1f1b");
    assert_ok(partition->apply(g, NULL));
    layer = &ct_graph_find(g, "layers.2.wq")->holders;
    head = &ct_graph_find(g, "head.weight")->holders;
    assert_true(ct_ranks_have(head, 69) && !ct_ranks_have(head, 5) && !ct_ranks_have(head, 68));
    assert_int_equal(ct_ranks_below(head, 69), 0);
    assert_int_equal(ct_ranks_below(head, 70), 1);
    assert_int_equal(ct_ranks_below(layer, 64), 1);
    assert_false(ct_ranks_equal(head, layer));
    copy = parse(&arena, ct_graph_text(g, &arena));
    assert_true(ct_ranks_equal(&ct_graph_find(copy, "head.weight")->holders, head));
    assert_ok(localise->apply(g, &run));
    assert_ok(ct_graph_verify(g, NULL));
    assert_non_null(ct_graph_find(g, "head.weight")->first_use);
    assert_null(ct_graph_find(g, "layers.2.wq"));
    ct_arena_finish(&run.arena);
    ct_arena_finish(&arena);
}

static void only_the_residual_stream_is_sent(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = model(&arena, 3, 2);

    (void)state;
    TEST_OPTIONS(plugin, "degree=2", "split_points=layers.1");
    assert_ok(partition->apply(g, NULL));
    ct_for_each_op (op, g)
        for (int i = 0; i < op->ins && op->section->group == 1; i++)
            if (op->in[i] && op->in[i]->producer && op->in[i]->producer->section->group == 0 &&
                op->section->part == CT_PART_F)
                assert_string_equal(op->in[i]->producer->type->name, "add");
    join(g);
    ct_for_each_op (op, g)
        for (int i = 0; i < op->ins && op->section->group == 1; i++)
            if (op->in[i] && op->in[i]->producer && op->in[i]->producer->section->group == 0 &&
                op->section->part == CT_PART_F)
                assert_string_equal(op->in[i]->producer->type->name, "add");
    assert_ok(ct_graph_verify(g, NULL));
    ct_arena_finish(&arena);
}

static void check_refusal(int64_t layers, int ranks, const char *schedule, const char *option,
                          const char *message)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = model(&arena, layers, ranks);

    TEST_OPTIONS(plugin, ct_arena_printf(&arena, "degree=%d", ranks),
                 ct_arena_printf(&arena, "schedule=%s", schedule), option);
    assert_int_equal(partition->apply(g, NULL), CT_ECONFIG);
    assert_message(message);
    ct_arena_finish(&arena);
}

static void wrong_settings_are_refused(void **state)
{
    (void)state;
    check_refusal(2, 5, "1f1b", "microbatch_size=1",
                  "5 pipeline stages, but the model has only 4 regions");
    check_refusal(2, 2, "1f1b", "layers_per_stage=1", "4 stages on 2 ranks: schedule 1f1b takes 1");
    check_refusal(6, 3, "interleaved_1f1b", "layers_per_stage=2", "4 stages on 3 ranks");
    check_refusal(2, 2, "1f1b", "split_points=layer.1", "the model has no region 'layer.1'");
    check_refusal(2, 2, "1f1b", "split_points=embedding",
                  "embedding is listed twice, or is the first");
    check_refusal(2, 3, "1f1b", "split_points=layers.1,layers.1", "layers.1 is listed twice");
}

/* ---- one rank's part ---- */

/* %a is made in stage 0 and used in stages 1 and 2; stages 0 and 3 are on rank 0. */
static const char skip[] =
    "graph \"skip\"\n"
    "mesh pp=3 tp=2\n"
    "partition pp\n"
    "param %w : float32[8]\n"
    "input %x : float32[4,8] [tp, -]\n"
    "scalar %n : float32[]\n"
    "0F one %a = add(%x, %x) : float32[4,8] [tp, -]\n"
    "1F two %b = add(%a, %x) : float32[4,8] [tp, -]\n"
    "2F three %c = add(%b, %a) : float32[4,8] [tp, -]\n"
    "3F four %d = add(%c, %x) : float32[4,8] [tp, -]\n"
    "post - %s = squared_norm(%d) : float64[] +{tp}\n"
    "post - %u = contribution(%s) {axes=\"pp\", dtype=\"float64\"} : float64[] +{pp}\n"
    "post - %t = all_reduce(%u) {axes=\"pp\"} : float64[]\n"
    "fetch t = %t\n";

static const char *localised(struct ct_arena *arena, const char *text, int64_t rank)
{
    struct ct_graph *g = parse(arena, text);
    struct ct_run run = {.rank = rank};

    TEST_OPTIONS(plugin, "degree=2"); /* 1f1b: stages lie on the ranks in turn */
    assert_ok(ct_graph_verify(g, NULL));
    assert_ok(localise->apply(g, &run));
    assert_ok(ct_graph_verify(g, NULL));
    text = ct_graph_text(g, arena);
    ct_arena_finish(&run.arena);
    return text;
}

static void values_are_handed_on(void **state)
{
    struct ct_arena arena = {0};

    (void)state;
    assert_golden("skip_rank0.txt", localised(&arena, skip, 0)); /* coordinates 0, 0 */
    assert_golden("skip_rank1.txt", localised(&arena, skip, 3)); /* 1, 1 */
    assert_golden("skip_rank2.txt", localised(&arena, skip, 4)); /* 2, 0 */
    ct_arena_finish(&arena);
}

/* %w is used on both ranks: each has it, adds up both gradients, updates it, and it counts once. */
static const char tied[] =
    "graph \"tied\"\n"
    "mesh pp=2\n"
    "partition pp\n"
    "param %w : float32[8]\n"
    "param %v : float32[8]\n"
    "input %x : float32[4,8]\n"
    "0F one %a, %a.rstd = rms_norm(%x, %w) {eps=1e-05} : float32[4,8], float32[4]\n"
    "1F two %b, %b.rstd = rms_norm(%a, %v) {eps=1e-05} : float32[4,8], float32[4]\n"
    "1F two %c, %c.rstd = rms_norm(%b, %w) {eps=1e-05} : float32[4,8], float32[4]\n"
    "1I two %d.b, %d.w1 = rms_norm_grad(%c, %b, %w, %c.rstd, _) : float32[4,8], float32[8]\n"
    "1I two %d.a, %d.v = rms_norm_grad(%d.b, %a, %v, %b.rstd, _) : float32[4,8], float32[8]\n"
    "0I one %d.x, %d.w0 = rms_norm_grad(%d.a, %x, %w, %a.rstd, _) : float32[4,8], float32[8]\n"
    "post - %d.w = add(%d.w1, %d.w0) : float32[8]\n"
    "post - %w2 = squared_norm(%d.w) : float64[]\n"
    "post - %v2 = squared_norm(%d.v) : float64[]\n"
    "post - %w3 = contribution(%w2) {axes=\"pp\", dtype=\"float64\"} : float64[] +{pp}\n"
    "post - %v3 = contribution(%v2) {axes=\"pp\", dtype=\"float64\"} : float64[] +{pp}\n"
    "post - %u = add(%w3, %v3) : float64[] +{pp}\n"
    "post - %t = all_reduce(%u) {axes=\"pp\"} : float64[]\n"
    "post - init_constant(%w) {value=0}\n"
    "post - init_constant(%v) {value=0}\n"
    "grad %w = %d.w\n"
    "grad %v = %d.v\n"
    "fetch t = %t\n";

static void tied_parameters_are_shared_between_stages(void **state)
{
    struct ct_arena arena = {0};

    (void)state;
    assert_golden("tied_rank0.txt", localised(&arena, tied, 0));
    assert_golden("tied_rank1.txt", localised(&arena, tied, 1));
    ct_arena_finish(&arena);
}

static void values_do_not_go_back(void **state)
{
    struct ct_arena arena = {0};
    struct ct_run run = {0};
    struct ct_graph *g = parse(&arena, "graph \"back\"\n"
                                       "mesh pp=2\n"
                                       "partition pp\n"
                                       "input %x : float32[4,8]\n"
                                       "1F one %a = add(%x, %x) : float32[4,8]\n"
                                       "0F two %b = add(%a, %x) : float32[4,8]\n"
                                       "fetch b = %b\n");

    (void)state;
    assert_int_equal(localise->apply(g, &run), CT_EINVAL);
    assert_message("%a is made in stage 1, part F, and used by add in stage 0");
    ct_arena_finish(&run.arena);
    ct_arena_finish(&arena);
}

/* ---- programs of all ranks together ---- */

static const char loops[] =
    "graph \"loops\"\n"
    "mesh pp=2\n"
    "partition pp\n"
    "input %x : float32[4,8]\n"
    "0F one %a = add(%x, %x) : float32[4,8]\n"
    "1F two %b = add(%a, %x) : float32[4,8]\n"
    "2F three %c = add(%b, %x) : float32[4,8]\n"
    "3F four %d = add(%c, %x) : float32[4,8]\n"
    "post - %s = squared_norm(%d) : float64[]\n"
    "post - %u = contribution(%s) {axes=\"pp\", dtype=\"float64\"} : float64[] +{pp}\n"
    "post - %t = all_reduce(%u) {axes=\"pp\"} : float64[]\n"
    "fetch t = %t\n";

/* "2SEND_F1" */
static struct ct_order_item item_called(const struct ct_graph *graph, struct ct_arena *arena,
                                        const char *name)
{
    size_t digits = strlen(name) - 1;

    return (struct ct_order_item){
        .name = name,
        .run = {{ct_graph_section_find(graph, ct_arena_printf(arena, "%.*s", (int)digits, name))},
                name[digits] - '0'},
        .beside = {.microbatch = -1}};
}

/* One rank's program for the sections in text, two microbatches. */
static struct ct_program *lowered(struct ct_arena *arena, int64_t rank, const char *text)
{
    struct ct_run run = {.rank = rank};
    struct ct_order order = {0};
    struct ct_graph *graph = parse(arena, loops);
    struct ct_lower_request request = {.graph = graph,
                                       .order = &order,
                                       .microbatches = 2,
                                       .device = reference_device(),
                                       .rank = rank,
                                       .arena = arena};
    char *rest = ct_arena_strdup(arena, text), *name;
    struct ct_program *program;

    TEST_OPTIONS(plugin, "degree=2");
    assert_ok(localise->apply(graph, &run));
    while ((name = strsep(&rest, " ")))
        ct_order_append(arena, &order, item_called(graph, arena, name));
    assert_ok(ct_lower(&request, &program));
    ct_arena_finish(&run.arena);
    return program;
}

/* Remove the last instruction of a type. */
static void remove_last(struct ct_program *p, const struct ct_op_type *type)
{
    size_t last = p->step_count;

    while (p->step[--last].op->type != type)
        ;
    memmove(&p->step[last], &p->step[last + 1], sizeof(*p->step) * (--p->step_count - last));
}

static void programs_are_proven_and_deadlocks_found(void **state)
{
    static const char one[] =
        "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 3RECV_F0 3F0 3RECV_F1 3F1";
    struct ct_arena arena = {0};
    struct ct_program *p[2];
    const struct ct_program **both = (const struct ct_program **)p;

    (void)state;
    p[1] = lowered(&arena, 1, one);
    p[0] =
        lowered(&arena, 0, "0F0 0SEND_F0 0F1 2RECV_F0 0SEND_F1 2F0 2RECV_F1 2SEND_F0 2F1 2SEND_F1");
    assert_ok(ct_programs_prove(both, 2, 0, true));
    assert_ok(ct_programs_prove(both, 2, 0, false));
    /* With one stream, rank 0 sends its second value before it takes back the first. */
    p[0] =
        lowered(&arena, 0, "0F0 0SEND_F0 0F1 0SEND_F1 2RECV_F0 2F0 2RECV_F1 2SEND_F0 2F1 2SEND_F1");
    assert_int_equal(ct_programs_prove(both, 2, 0, true), CT_EINVAL);
    assert_message("deadlock: rank 0 cannot do send(%a)");
    assert_ok(ct_programs_prove(both, 2, 0, false));
    /* A value that nobody sends. */
    remove_last(p[0], &ct_op_send);
    assert_int_equal(ct_programs_prove(both, 2, 0, false), CT_EINVAL);
    assert_message("deadlock: rank 1 cannot do receive(%c.stage3)");
    /* A value that nobody receives. */
    p[0] =
        lowered(&arena, 0, "0F0 0SEND_F0 0F1 2RECV_F0 0SEND_F1 2F0 2RECV_F1 2SEND_F0 2F1 2SEND_F1");
    remove_last(p[1], &ct_op_receive);
    assert_int_equal(ct_programs_prove(both, 2, 0, false), CT_EINVAL);
    assert_message("deadlock: rank 0 cannot do send(%c");
    /* A value that is received in the place of another. */
    p[1] =
        lowered(&arena, 1, "3RECV_F0 1RECV_F0 1F0 1SEND_F0 1RECV_F1 1F1 1SEND_F1 3F0 3RECV_F1 3F1");
    assert_int_equal(ct_programs_prove(both, 2, 0, false), CT_EINVAL);
    assert_message("rank 0: send(%a) is paired with receive(%c.stage3) of rank 1");
    ct_arena_finish(&arena);
}

/* ---- gradients of experts ---- */

static const char mixtures[] =
    "graph \"mixtures\"\nmesh pp=2\npartition pp\n"
    "input %x : float32[2,3,4]\ninput %dy : float32[2,3,4]\n"
    "input %weights : float32[2,3,2]\ninput %ids : int32[2,3,2]\n"
    "param %gate : float32[6,8,4]\nparam %up : float32[6,8,4]\nparam %down : float32[6,4,8]\n"
    "0F a %y = experts(%x, %weights, %ids, %gate, %up, %down) : float32[2,3,4]\n"
    "1F b %z = silu(%y) : float32[2,3,4]\n"
    "0I a %dx, %dk = experts_dx(%dy, %x, %weights, %ids, %gate, %up, %down) : float32[2,3,4], "
    "float32[2,3,2]\n"
    "0W a %dg, %du, %dd = experts_dw(%dy, %x, %weights, %ids, %gate, %up, %down) : "
    "float32[6,8,4], float32[6,8,4], float32[6,4,8]\n"
    "fetch z = %z\nfetch dx = %dx\nfetch dg = %dg\n";

/* Gradients that a schedule runs apart stay apart. */
static void gradients_are_joined_if_they_run_together(void **state)
{
    static const struct {
        const char *schedule;
        size_t joined;
    } cases[] = {{"1f1b", 1}, {"zb1p", 0}};
    const struct ct_transform *t;
    struct ct_arena arena = {0};

    (void)state;
    for (size_t i = 0; (t = ct_transform_at(i)) && strcmp(t->name, "join_gradients");)
        i++;
    ct_config.training.local_batch_size = 4;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct ct_graph *g = parse(&arena, mixtures);

        TEST_OPTIONS(plugin, "degree=2", "microbatch_size=1",
                     ct_arena_printf(&arena, "schedule=%s", cases[i].schedule));
        assert_ok(t->apply(g, NULL));
        assert_ok(ct_graph_verify(g, NULL));
        assert_int_equal(count_ops(g, "experts_grad"), cases[i].joined);
    }
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_are_balanced),
        cmocka_unit_test(layers_per_stage_is_kept),
        cmocka_unit_test(split_points_begin_stages),
        cmocka_unit_test(parameters_are_held_where_the_schedule_places_stages),
        cmocka_unit_test(a_pipeline_may_have_many_ranks),
        cmocka_unit_test(only_the_residual_stream_is_sent),
        cmocka_unit_test(wrong_settings_are_refused),
        cmocka_unit_test(values_are_handed_on),
        cmocka_unit_test(tied_parameters_are_shared_between_stages),
        cmocka_unit_test(values_do_not_go_back),
        cmocka_unit_test(programs_are_proven_and_deadlocks_found),
        cmocka_unit_test(gradients_are_joined_if_they_run_together),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, load, NULL);
}
