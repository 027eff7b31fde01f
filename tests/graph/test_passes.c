/*
 * The pass manager: the order of transforms, what it refuses, what it dumps, and the reproducer
 * that it writes when one fails.
 */
#include <stdio.h>
#include <unistd.h>

#include <ctitan/app/verify.h>
#include <ctitan/file.h>
#include <ctitan/run.h>
#include <ctitan/text.h>
#include <ctitan/train.h>

#include "support.h"

static const char *const text = "graph \"g\"\n"
                                "param %p : float32[2]\n"
                                "F - %y = reciprocal(%p) : float32[2]\n"
                                "fetch y = %y\n";

static char ran[64]; /* names of the transforms that were applied */

static int note(const char *name)
{
    strcat(ran, name);
    return 0;
}

#define APPLY(id)                                                                                  \
    static int apply_##id(struct ct_graph *graph, struct ct_run *run)                              \
    {                                                                                              \
        (void)graph;                                                                               \
        (void)run;                                                                                 \
        return note(#id);                                                                          \
    }
APPLY(a)
APPLY(b)
APPLY(c)
APPLY(d)
APPLY(e)

static int seed_it(struct ct_graph *graph, struct ct_run *run)
{
    (void)run;
    graph->seed = 5;
    return note("s");
}

static int give_up(struct ct_graph *graph, struct ct_run *run)
{
    (void)graph;
    (void)run;
    return ct_fail(CT_ECONFIG, "[pp] degree = 3 does not divide 4 layers");
}

static int give_up_silently(struct ct_graph *graph, struct ct_run *run)
{
    (void)graph;
    (void)run;
    return CT_EINVAL;
}

static int break_it(struct ct_graph *graph, struct ct_run *run)
{
    (void)run;
    ct_graph_find(graph, "y")->shape[0] = 3;
    return 0;
}

static const struct ct_transform a = {.size = sizeof(struct ct_transform),
                                      .name = "a",
                                      .summary = "does a",
                                      .phase = CT_PHASE_MEMORY,
                                      .apply = apply_a,
                                      .needs = (const char *const[]){"b done", "c done", NULL}},
                                 b = {.name = "b",
                                      .summary = "does b",
                                      .phase = CT_PHASE_MEMORY,
                                      .apply = apply_b,
                                      .gives = (const char *const[]){"b done", NULL}},
                                 c = {.name = "c",
                                      .summary = "does c",
                                      .phase = CT_PHASE_MEMORY,
                                      .apply = apply_c,
                                      .needs = (const char *const[]){"b done", NULL},
                                      .gives = (const char *const[]){"c done", NULL}},
                                 d = {.name = "d",
                                      .summary = "does d",
                                      .phase = CT_PHASE_PARTITION,
                                      .apply = apply_d,
                                      .evaluation = true},
                                 e = {.name = "e",
                                      .summary = "does e",
                                      .phase = CT_PHASE_FUSE,
                                      .apply = apply_e,
                                      .evaluation = true},
                                 knot1 = {.name = "knot1",
                                          .summary = "needs knot2",
                                          .phase = CT_PHASE_FUSE,
                                          .apply = apply_a,
                                          .needs = (const char *const[]){"2", NULL},
                                          .gives = (const char *const[]){"1", NULL}},
                                 knot2 = {.name = "knot2",
                                          .summary = "needs knot1",
                                          .phase = CT_PHASE_FUSE,
                                          .apply = apply_b,
                                          .needs = (const char *const[]){"1", NULL},
                                          .gives = (const char *const[]){"2", NULL}},
                                 breaker = {.name = "breaker",
                                            .summary = "undoes b",
                                            .phase = CT_PHASE_OVERLAP,
                                            .apply = apply_d,
                                            .breaks = (const char *const[]){"b done", NULL}},
                                 late = {.name = "late",
                                         .summary = "needs b at the end",
                                         .phase = CT_PHASE_FUSE,
                                         .apply = apply_e,
                                         .needs = (const char *const[]){"b done", NULL}},
                                 early = {.name = "early",
                                          .summary = "needs b at the start",
                                          .phase = CT_PHASE_PARTITION,
                                          .apply = apply_e,
                                          .needs = (const char *const[]){"b done", NULL}},
                                 seeder = {.name = "seeder",
                                           .summary = "sets the seed",
                                           .phase = CT_PHASE_SHARD,
                                           .apply = seed_it},
                                 quitter = {.name = "quitter",
                                            .summary = "fails",
                                            .phase = CT_PHASE_UPDATE,
                                            .apply = give_up},
                                 silent = {.name = "silent",
                                           .summary = "fails without a message",
                                           .phase = CT_PHASE_UPDATE,
                                           .apply = give_up_silently},
                                 vandal = {.name = "vandal",
                                           .summary = "leaves a broken graph",
                                           .phase = CT_PHASE_UPDATE,
                                           .apply = break_it};

#define RUN(graph, options, ...)                                                                   \
    run_list(graph, options, (const struct ct_transform *const[]){__VA_ARGS__},                    \
             CT_COUNT(((const struct ct_transform *const[]){__VA_ARGS__})))

static int run_list(struct ct_graph *graph, struct ct_pass_options options,
                    const struct ct_transform *const *list, size_t count)
{
    ran[0] = '\0';
    return ct_passes_run(graph, list, count, NULL, &options);
}

static const struct ct_pass_options training = {.training = true}, evaluation = {0},
                                    of_all_ranks = {.training = true,
                                                    .range = CT_PASSES_OF_ALL_RANKS},
                                    of_one_rank = {.training = true,
                                                   .range = CT_PASSES_OF_ONE_RANK},
                                    behind_c = {.training = true, .behind = "c"};

static void phases_and_needs_order(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = parse(&arena, text);

    (void)state;
    assert_ok(RUN(graph, training, &e, &a, &c, &b, &d));
    assert_string_equal(ran, "dbcae");
    assert_ok(RUN(graph, training, &a, &b, &c, &d, &e));
    assert_string_equal(ran, "dbcae");
    assert_ok(RUN(graph, training, &breaker, &b, &c));
    assert_string_equal(ran, "bcd");
    ct_arena_finish(&arena);
}

static void evaluation_runs_what_says_so(void **state)
{
    struct ct_arena arena = {0};

    (void)state;
    assert_ok(RUN(parse(&arena, text), evaluation, &e, &a, &c, &b, &d));
    assert_string_equal(ran, "de");
    ct_arena_finish(&arena);
}

/* A plan of several ranks runs the first range once, and the second on copies. */
static void transforms_of_all_ranks_and_of_one(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = parse(&arena, text);
    struct ct_transform own = b;

    (void)state;
    own.by_rank = true;
    assert_ok(RUN(graph, of_all_ranks, &e, &a, &c, &own, &d));
    assert_string_equal(ran, "d");
    assert_ok(RUN(graph, of_one_rank, &e, &a, &c, &own, &d));
    assert_string_equal(ran, "bcae");
    assert_ok(RUN(graph, of_all_ranks, &e, &a, &c, &b, &d));
    assert_string_equal(ran, "dbcae");
    assert_ok(RUN(graph, of_one_rank, &e, &a, &c, &b, &d));
    assert_string_equal(ran, "");
    assert_ok(RUN(graph, behind_c, &e, &a, &c, &b, &d));
    assert_string_equal(ran, "ae");
    assert_int_equal(RUN(graph, behind_c, &b, &d), CT_EINVAL);
    assert_message("no transform c, to run those behind it");
    assert_string_equal(ran, "");
    ct_arena_finish(&arena);
}

static void what_cannot_be_ordered(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = parse(&arena, text);

    (void)state;
    assert_int_equal(RUN(graph, training, &knot1, &knot2), CT_ECONFIG);
    assert_message("circle");
    assert_message("knot1");
    assert_message("knot2");
    assert_int_equal(RUN(graph, training, &c), CT_ECONFIG);
    assert_message("transform c needs \"b done\", which nothing before it gives");
    assert_int_equal(RUN(graph, training, &b, &early), CT_ECONFIG);
    assert_message("transform early needs \"b done\"");
    assert_int_equal(RUN(graph, training, &b, &breaker, &late), CT_ECONFIG);
    assert_message("transform late needs \"b done\"");
    assert_string_equal(ran, "");
    ct_arena_finish(&arena);
}

/* ---- dumps ---- */

static const char *dump_of(struct ct_arena *arena, const char *dump_after)
{
    struct ct_dump dump;
    struct ct_pass_options options = {.training = true, .dump = &dump};
    char *out, *copy;
    size_t size;
    FILE *stream = open_memstream(&out, &size);

    ct_dump_init(&dump, dump_after, stream, NULL);
    assert_ok(RUN(parse(arena, text), options, &b, &seeder, &d));
    fclose(stream);
    copy = ct_arena_strdup(arena, out);
    free(out);
    return copy;
}

static void dumps_follow_the_request(void **state)
{
    struct ct_arena arena = {0};
    const char *seeded = "# after seeder (shard): sets the seed\n"
                         "graph \"g\" seed=5\n"
                         "param %p : float32[2]\n"
                         "F - %y = reciprocal(%p) : float32[2]\n"
                         "fetch y = %y\n\n";
    const char *all;

    (void)state;
    assert_string_equal(dump_of(&arena, NULL), "");
    assert_string_equal(dump_of(&arena, "seeder"), seeded);
    assert_string_equal(dump_of(&arena, "changed"), seeded);
    all = dump_of(&arena, "all");
    assert_memory_equal(all, "# after d (partition)", 21);
    assert_non_null(strstr(all, seeded));
    assert_non_null(strstr(all, "# after b (memory): does b\ngraph \"g\" seed=5\n"));
    ct_arena_finish(&arena);
}

/* ---- failures ---- */

static char *read_and_remove(struct ct_arena *arena, const char *path)
{
    char *content;
    size_t size;

    assert_ok(ct_file_read(arena, path, 1 << 20, &content, &size));
    assert_int_equal(unlink(path), 0);
    return content;
}

/* The reproducer holds the graph before the transform that failed, and parses. */
static void check_reproducer(struct ct_arena *arena, const struct ct_transform *culprit,
                             const char *says)
{
    char path[] = "/tmp/ctitan-test-XXXXXX";
    struct ct_dump dump;
    struct ct_pass_options options = {.training = true, .dump = &dump};
    int fd = mkstemp(path);
    struct ct_graph *before;
    const char *content;

    assert_true(fd >= 0);
    close(fd);
    ct_dump_init(&dump, NULL, NULL, path);
    assert_true(RUN(parse(arena, text), options, &seeder, culprit, &d, &e) < 0);
    assert_message(culprit->name);
    assert_message(says);
    assert_string_equal(ran, "ds");
    content = read_and_remove(arena, path);
    assert_non_null(strstr(content, says));
    assert_non_null(strstr(content, "# transforms: d seeder "));
    before = parse(arena, content);
    assert_int_equal(before->seed, 5);
    assert_int_equal(ct_graph_find(before, "y")->shape[0], 2);
    assert_ok(ct_graph_verify(before, stderr));
}

static void failures_leave_a_reproducer(void **state)
{
    struct ct_arena arena = {0};

    (void)state;
    check_reproducer(&arena, &quitter, "[pp] degree = 3 does not divide 4 layers");
    check_reproducer(&arena, &vandal, "the shape of %y is not what its inputs make it");
    ct_arena_finish(&arena);
}

/* No recipe asks for a library's transform, so the message does not begin with its name. */
static void a_recipes_fault_names_no_transform_of_a_library(void **state)
{
    struct ct_arena arena = {0};
    struct ct_pass_options options = {.training = true};

    (void)state;
    assert_int_equal(RUN(parse(&arena, text), options, &quitter), CT_ECONFIG);
    assert_string_equal(ct_error_message(),
                        "transform quitter: [pp] degree = 3 does not divide 4 layers");
    assert_ok(ct_transform_register(&quitter));
    assert_int_equal(RUN(parse(&arena, text), options, &quitter), CT_ECONFIG);
    assert_string_equal(ct_error_message(), "[pp] degree = 3 does not divide 4 layers");
    ct_arena_finish(&arena);
}

static void a_failure_without_a_message_has_no_earlier_one(void **state)
{
    struct ct_arena arena = {0};

    (void)state;
    ct_fail(CT_EIO, "an earlier failure");
    assert_int_equal(RUN(parse(&arena, text), training, &silent), CT_EINVAL);
    assert_string_equal(ct_error_message(), "transform silent: it failed without a message");
    ct_arena_finish(&arena);
}

static void broken_graphs_are_not_transformed(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = parse(&arena, text);

    (void)state;
    break_it(graph, NULL);
    assert_int_equal(RUN(graph, training, &d), CT_EINVAL);
    assert_string_equal(ran, "");
    ct_arena_finish(&arena);
}

/* ---- the core's own ---- */

/* In place of an optimizer: sets every parameter to 0, in the post part. */
static int forget_all(struct ct_builder *builder, struct ct_value *const *params, size_t count,
                      struct ct_value *lr, struct ct_value *step, struct ct_value *clip)
{
    assert_string_equal(lr->name, "lr");
    assert_string_equal(step->name, "step");
    assert_string_equal(clip->name, "grad_norm.coefficient");
    for (size_t i = 0; i < count; i++)
        ct_emit(builder, "init_constant", NULL, &params[i], 1, NULL);
    return builder->status;
}

static const struct ct_optimizer_ops optimizer = {.size = sizeof(struct ct_optimizer_ops),
                                                  .build = forget_all};

static void before_and_after(const char *golden, const struct ct_transform *transform,
                             struct ct_graph *graph)
{
    struct ct_run stand_in = {.optimizer = &optimizer};
    const char *before = ct_graph_text(graph, graph->arena);

    assert_ok(transform->apply(graph, &stand_in));
    assert_ok(ct_graph_verify(graph, stderr));
    assert_golden(golden, ct_arena_printf(graph->arena, "# before\n%s\n# after\n%s", before,
                                          ct_graph_text(graph, graph->arena)));
}

static void precision_casts_weights_once(void **state)
{
    struct ct_arena arena = {0};

    (void)state;
    ct_config.training.mixed_precision_param = CT_BF16;
    before_and_after("precision.graph", &ct_pass_precision,
                     parse(&arena, "graph \"precision\"\n"
                                   "param %table : float32[7,4]\n"
                                   "param %norm : float32[4]\n"
                                   "input %tokens : int32[2,3]\n"
                                   "input %labels : int32[2,3]\n"
                                   "init - init_constant(%norm) {value=1}\n"
                                   "F in %x = embedding(%tokens, %table) : float32[2,3,4]\n"
                                   "F mid %y, %r = rms_norm(%x, %norm) : float32[2,3,4], "
                                   "float32[2,3]\n"
                                   "F out %loss = linear_cross_entropy(%y, %table, %labels) : "
                                   "float32[]\n"
                                   "fetch loss = %loss\n"));
    ct_arena_finish(&arena);
}

static void precision_leaves_what_is_right(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = tiny_llama(&arena, (struct tiny){0});
    const char *before = ct_graph_text(graph, &arena);

    (void)state;
    ct_config.training.mixed_precision_param = CT_F32;
    assert_ok(ct_pass_precision.apply(graph, NULL));
    assert_string_equal(ct_graph_text(graph, &arena), before);
    ct_arena_finish(&arena);
}

static void update_takes_the_norm_and_clips(void **state)
{
    struct ct_arena arena = {0};

    (void)state;
    ct_config.training.max_norm = 1.5;
    before_and_after("update.graph", &ct_pass_update,
                     parse(&arena, "graph \"update\"\n"
                                   "param %w : float32[4,4]\n"
                                   "param %frozen : float32[4,4]\n"
                                   "input %x : float32[2,4]\n"
                                   "F - %y, %z = linear(%x, %w, %frozen) : float32[2,4], "
                                   "float32[2,4]\n"
                                   "W - %d.w = linear_dw(%x, %y) : float32[4,4]\n"
                                   "grad %w = %d.w\n"));
    ct_arena_finish(&arena);
}

static void update_needs_a_gradient(void **state)
{
    struct ct_arena arena = {0};
    struct ct_run stand_in = {.optimizer = &optimizer};

    (void)state;
    assert_int_equal(ct_pass_update.apply(parse(&arena, text), &stand_in), CT_ECONFIG);
    assert_message("no parameter has a gradient");
    ct_arena_finish(&arena);
}

static void phases_have_names(void **state)
{
    (void)state;
    assert_string_equal(ct_phase_name(CT_PHASE_PARTITION), "partition");
    assert_string_equal(ct_phase_name(CT_PHASE_FUSE), "fuse");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phases_and_needs_order),
        cmocka_unit_test(evaluation_runs_what_says_so),
        cmocka_unit_test(transforms_of_all_ranks_and_of_one),
        cmocka_unit_test(what_cannot_be_ordered),
        cmocka_unit_test(dumps_follow_the_request),
        cmocka_unit_test(failures_leave_a_reproducer),
        cmocka_unit_test(a_recipes_fault_names_no_transform_of_a_library),
        cmocka_unit_test(a_failure_without_a_message_has_no_earlier_one),
        cmocka_unit_test(broken_graphs_are_not_transformed),
        cmocka_unit_test(precision_casts_weights_once),
        cmocka_unit_test(precision_leaves_what_is_right),
        cmocka_unit_test(update_takes_the_norm_and_clips),
        cmocka_unit_test(update_needs_a_gradient),
        cmocka_unit_test(phases_have_names),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
