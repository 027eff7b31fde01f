/*
 * core/comm: the kernels of collectives on host devices move what the simulated ones move, for
 * random redistributions. Shards are uneven, empty, in any dimension and order.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/number.h>
#include <ctitan/text.h>

#include "comm/groups.h"
#include "comm/layout.h"
#include "steps.h"
#include "team.h"

#define assert_ok(rc)                                                                              \
    do {                                                                                           \
        if ((rc) != 0)                                                                             \
            fail_msg("%s: %s", #rc, ct_error_message());                                           \
    } while (0)

static struct ct_device host = {.name = "host", .host_memory = true};

static const struct ct_kernel *kernel_of(const char *op)
{
    const struct ct_kernel *k = ct_op_find(op)->collective->kernel(&host);

    assert_non_null(k);
    return k;
}

static struct ct_tensor *without_data(struct ct_arena *arena, const struct ct_tensor *t, int count)
{
    struct ct_tensor *copy = ct_arena_copy(arena, t, sizeof(*t) * (size_t)count);

    for (int i = 0; i < count; i++)
        copy[i].data = NULL;
    return copy;
}

static struct ct_prepare prepare_for(struct ct_arena *arena, const struct ct_op *op,
                                     const struct ct_mesh *mesh, int64_t rank,
                                     const struct ct_tensor *in, const struct ct_tensor *out)
{
    return (struct ct_prepare){.op = op,
                               .in = without_data(arena, in, op->ins),
                               .out = without_data(arena, out, op->outs),
                               .present = (const bool[]){true, true, true, true},
                               .ins = op->ins,
                               .outs = op->outs,
                               .device = &host,
                               .arena = arena,
                               .rank = rank,
                               .mesh = mesh};
}

/* As lowering would: prepared on shapes, then run. */
static int run_kernel(struct ct_arena *arena, const struct ct_op *op, const struct ct_mesh *mesh,
                      int64_t rank, const struct ct_communicator *communicator,
                      const struct ct_tensor *in, const struct ct_tensor *out)
{
    const struct ct_kernel *kernel = kernel_of(op->type->name);
    struct ct_prepare p = prepare_for(arena, op, mesh, rank, in, out);
    int rc;

    p.communicator = communicator;
    rc = kernel->prepare(&p);
    return rc < 0 ? rc
                  : kernel->run(
                        &(struct ct_launch){.op = op,
                                            .in = in,
                                            .out = out,
                                            .ins = op->ins,
                                            .outs = op->outs,
                                            .workspace = ct_arena_alloc(arena, p.workspace + 1),
                                            .state = p.state,
                                            .rank = rank,
                                            .mesh = mesh});
}

/* A tensor like another, poisoned. */
static struct ct_tensor poisoned(struct ct_arena *arena, const struct ct_tensor *like)
{
    int64_t n = ct_tensor_count(like);
    struct ct_tensor t = ct_tensor_dense(ct_arena_alloc(arena, (size_t)n * 8 + 8), like->dtype,
                                         like->ndim, like->shape);

    for (int64_t i = 0; i < n; i++)
        ct_tensor_store(&t, i, -77);
    return t;
}

/* A rank's way through all steps; every shard must be the simulated one. */
static int run_rank(int64_t rank, const struct ct_communicator *communicator, void *context)
{
    const struct world *w = context;
    struct ct_arena arena = {0};
    struct ct_tensor now, next;
    int rc = 0;

    if (w->graph->first)
        now = w->shard[w->graph->first->in[0]->id][rank];
    ct_for_each_op (op, w->graph) {
        const struct ct_tensor *want = &w->shard[op->out[0]->id][rank];
        int compared;

        next = poisoned(&arena, want);
        compared = run_kernel(&arena, op, &w->graph->mesh, rank, communicator, &now, &next);
        if (compared == 0)
            compared = compare_tensors(op->type->name, &next, want);
        if (rc == 0)
            rc = compared; /* the others still wait for this rank */
        now = next;
    }
    ct_arena_finish(&arena);
    return rc;
}

static void random_steps_give_the_target_sharding(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        struct random random = {seed, 0};
        struct ct_arena arena = {0};
        struct ct_sharding to;
        struct ct_steps steps;
        struct ct_graph *g;
        struct ct_value *x;
        struct world w;

        assert_ok(random_steps(&arena, &random, &g, &x, &to, &steps));
        world_of_steps(&w, g, x, &random);
        assert_ok(world_run(&w));
        if (team_run(w.ranks, run_rank, &w) < 0) {
            ct_graph_print(g, stderr);
            fail_msg("seed %d: %s", (int)seed, ct_error_message());
        }
        world_finish(&w);
        ct_arena_finish(&arena);
    }
}

/* ---- several values in one op ---- */

/* Even and uneven ones, empty shards, and another dimension than the first. */
static const char several[] =
    "graph \"several\"\n"
    "mesh a=2 b=3\n"
    "input %x : float32[6,4] [b, -]\n"
    "input %y : float32[7,2] [b, -]\n"
    "input %z : float32[2] [b]\n"
    "input %u : float32[6,4] +{b}\n"
    "input %v : float32[5] +{b}\n"
    "input %p : float32[2,7] [a, b]\n"
    "input %q : float32[3,2] [-, b]\n"
    "F - %x1, %y1, %z1 = all_gather(%x, %y, %z) {axes=\"b\"} : float32[6,4], float32[7,2], "
    "float32[2]\n"
    "F - %u1, %v1 = reduce_scatter(%u, %v) {axes=\"b\"} : float32[6,4] [b, -], float32[5] [b]\n"
    "F - %u2, %v2 = all_reduce(%u, %v) {axes=\"b\"} : float32[6,4], float32[5]\n"
    "F - %p1, %q1 = all_gather(%p, %q) {axes=\"b\", dim=1} : float32[2,7] [a, -], float32[3,2]\n";

static int run_several(int64_t rank, const struct ct_communicator *communicator, void *context)
{
    const struct world *w = context;
    struct ct_arena arena = {0};
    int rc = 0;

    ct_for_each_op (op, w->graph) {
        struct ct_tensor in[4], out[4];
        int ran;

        for (int i = 0; i < op->ins; i++) {
            in[i] = w->shard[op->in[i]->id][rank];
            out[i] = poisoned(&arena, &w->shard[op->out[i]->id][rank]);
        }
        ran = run_kernel(&arena, op, &w->graph->mesh, rank, communicator, in, out);
        for (int i = 0; i < op->outs && ran == 0; i++)
            ran = compare_tensors(op->out[i]->name, &out[i], &w->shard[op->out[i]->id][rank]);
        if (rc == 0)
            rc = ran;
    }
    ct_arena_finish(&arena);
    return rc;
}

static void several_values_share_a_call(void **state)
{
    struct ct_arena arena = {0};
    struct random random = {3, 0};
    struct ct_graph *graph = ct_graph_parse(&arena, several);
    struct world w;

    (void)state;
    if (!graph)
        fail_msg("%s", ct_error_message());
    world_create(&w, graph);
    for (size_t i = 0; i < graph->value_count; i++) {
        struct ct_value *v = graph->values[i];
        struct ct_tensor whole = world_whole(&w, v);

        for (int64_t k = 0; k < ct_tensor_count(&whole); k++)
            ct_tensor_store(&whole, k, (double)(k * 7 % 31));
        if (!v->producer)
            world_scatter(&w, v, &whole, &random);
    }
    assert_ok(world_run(&w));
    assert_ok(team_run(w.ranks, run_several, &w));
    world_finish(&w);
    ct_arena_finish(&arena);
}

/* ---- what is refused ---- */

static void assert_refused(const char *text, const char *words)
{
    struct ct_arena arena = {0};
    struct ct_graph *graph = ct_graph_parse(&arena, text);

    if (!graph)
        fail_msg("%s", ct_error_message());
    for (int64_t rank = 0; rank < 2; rank++) {
        const struct ct_op *op = graph->first;
        int64_t local[CT_MAX_DIMS];
        struct ct_tensor t;
        struct ct_prepare p;

        ct_sharding_local(&op->in[0]->sharding, &graph->mesh, rank, op->in[0]->ndim,
                          op->in[0]->shape, local, NULL);
        t = ct_tensor_dense(NULL, CT_F32, op->in[0]->ndim, local);
        p = prepare_for(&arena, op, &graph->mesh, rank, &t, &t);
        assert_int_equal(kernel_of("permute")->prepare(&p), CT_EINVAL);
        if (!strstr(ct_error_message(), words))
            fail_msg("\"%s\" is not in \"%s\"", words, ct_error_message());
    }
    ct_arena_finish(&arena);
}

/* Every rank says so, whatever its own shard: else some would wait for others. */
static void uneven_shards_cannot_be_permuted(void **state)
{
    (void)state;
    assert_refused("graph \"uneven\"\n"
                   "mesh a=2\n"
                   "input %x : float32[3,4] [a, -]\n"
                   "F - %y = permute(%x) {axes=\"a\"} : float32[3,4] [a, -]\n",
                   "%x is not split evenly, so its shards cannot be permuted");
    assert_refused("graph \"whole\"\n"
                   "mesh a=2\n"
                   "input %x : float32[4,4]\n"
                   "F - %y = permute(%x) {axes=\"a\"} : float32[4,4]\n",
                   "%x is not split by a");
}

/* ---- maxima ---- */

static int run_largest(int64_t rank, const struct ct_communicator *communicator, void *context)
{
    const struct ct_graph *g = context;
    struct ct_arena arena = {0};
    double have[2] = {rank == 1 ? 5 : -1, (double)rank}, got[2] = {0};
    struct ct_tensor x = ct_tensor_dense(have, CT_F64, 1, (int64_t[]){2});
    struct ct_tensor y = ct_tensor_dense(got, CT_F64, 1, (int64_t[]){2});
    int rc = run_kernel(&arena, g->first, &g->mesh, rank, communicator, &x, &y);

    if (rc == 0 && (got[0] != 5 || got[1] != 2))
        rc = ct_fail(CT_EINVAL, "%g and %g are not the largest", got[0], got[1]);
    ct_arena_finish(&arena);
    return rc;
}

static void an_all_reduce_may_ask_for_the_largest(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = ct_graph_parse(
        &arena, "graph \"largest\"\nmesh a=3\ninput %x : float64[2] +{a}\n"
                "F - %y = all_reduce(%x) {axes=\"a\", reduction=max} : float64[2]\n");

    (void)state;
    assert_non_null(g);
    assert_ok(team_run(3, run_largest, g));
    ct_arena_finish(&arena);
}

/* A rank that diverged must not be hidden by the numbers of the others. */
static void a_maximum_with_a_nan_is_a_nan(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        for (int bad = 0; bad < ranks; bad++) {
            float wide[4] = {1, 2, 3, 4}, largest = 0;
            uint16_t narrow[4], largest_narrow = 0;
            const void *in[4], *in_narrow[4];

            wide[bad] = NAN;
            for (int i = 0; i < ranks; i++) {
                narrow[i] = ct_f32_to_bf16(wide[i]);
                in[i] = &wide[i];
                in_narrow[i] = &narrow[i];
            }
            ct_reduce(&largest, in, ranks, 1, CT_F32, CT_REDUCE_MAX);
            ct_reduce(&largest_narrow, in_narrow, ranks, 1, CT_BF16, CT_REDUCE_MAX);
            assert_true(isnan(largest));
            assert_true(isnan(ct_bf16_to_f32(largest_narrow)));
        }
}

/* ---- shards that move to other ranks ---- */

static int run_permute(int64_t rank, const struct ct_communicator *communicator, void *context)
{
    const struct ct_graph *g = context;
    struct ct_arena arena = {0};
    double have = (double)rank, got = -1;
    struct ct_tensor x = ct_tensor_dense(&have, CT_F64, 1, (int64_t[]){1});
    struct ct_tensor y = ct_tensor_dense(&got, CT_F64, 1, (int64_t[]){1});
    int64_t from = ((rank - ct_op_int(g->first, "shift")) % 3 + 3) % 3;
    int rc = run_kernel(&arena, g->first, &g->mesh, rank, communicator, &x, &y);

    if (rc == 0 && got != (double)from)
        rc = ct_fail(CT_EINVAL, "rank %d got the shard of %g", (int)rank, got);
    ct_arena_finish(&arena);
    return rc;
}

static void shards_move_by_any_number_of_ranks(void **state)
{
    static const int shifts[] = {1, 2, -1, -2, -4, 5};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(shifts); i++) {
        struct ct_arena arena = {0};
        struct ct_graph *g = ct_graph_parse(
            &arena,
            ct_arena_printf(&arena,
                            "graph \"round\"\nmesh a=3\ninput %%x : float64[3] [a]\n"
                            "F - %%y = permute(%%x) {axes=\"a\", shift=%d} : float64[3] [a]\n",
                            shifts[i]));

        assert_non_null(g);
        assert_ok(team_run(3, run_permute, g));
        ct_arena_finish(&arena);
    }
}

/* ---- a plugin's own collective ---- */

struct partner {
    struct ct_collective head;
    int64_t first; /* rank of the pair */
};

/* Ranks 0 and 1 are a pair, 2 and 3 another. */
static int prepare_swap(struct ct_prepare *p)
{
    struct partner *s = ct_arena_new(p->arena, struct partner);

    s->first = p->rank / 2 * 2;
    return ct_collective_prepare_ranks(p, &s->head, (int64_t[]){s->first, s->first + 1}, 2, "swap");
}

static int run_swap(const struct ct_launch *l, const struct ct_transport *by)
{
    const struct partner *s = l->state;
    struct ct_call call = {.kind = CT_CALL_EXCHANGE,
                           .group = s->head.group,
                           .in = l->in[0].data,
                           .out = l->out[0].data,
                           .count = (size_t)ct_tensor_count(&l->in[0]),
                           .dtype = s->head.dtype,
                           .to = 1 - (int)s->head.me,
                           .from = 1 - (int)s->head.me};

    return ct_transport_call(l, by, &call);
}

static const struct ct_collective_ops swaps = CT_COLLECTIVE(prepare_swap, run_swap, NULL);
static const struct ct_op_type swap = {.size = sizeof(swap),
                                       .name = "test_swap",
                                       .summary = "two ranks change values",
                                       .signature = "x[.] A -> y[.] A",
                                       .flags = CT_OP_COLLECTIVE,
                                       .collective = &swaps};

static int run_swaps(int64_t rank, const struct ct_communicator *communicator, void *context)
{
    const struct ct_graph *g = context;
    struct ct_arena arena = {0};
    float have = (float)rank, got = -1;
    struct ct_tensor x = ct_tensor_dense(&have, CT_F32, 0, NULL);
    struct ct_tensor y = ct_tensor_dense(&got, CT_F32, 0, NULL);
    int rc = 0;

    for (int again = 0; rc == 0 && again < 2; again++) {
        got = -1;
        rc = run_kernel(&arena, g->first, &g->mesh, rank, communicator, &x, &y);
    }
    if (rc == 0 && got != (float)(rank ^ 1))
        rc = ct_fail(CT_EINVAL, "rank %d got %g", (int)rank, (double)got);
    if (rc == 0 && communicator->groups->count != 1)
        rc = ct_fail(CT_EINVAL, "%zu groups", communicator->groups->count);
    ct_arena_finish(&arena);
    return rc;
}

static void a_plugin_brings_a_collective_and_no_kernel(void **state)
{
    struct ct_arena arena = {0};
    struct ct_graph *g;

    (void)state;
    assert_ok(ct_op_register(&swap));
    g = ct_graph_parse(&arena, "graph \"swap\"\nmesh a=4\ninput %x : float32[]\n"
                               "F - %y = test_swap(%x) : float32[]\n");
    assert_non_null(g);
    assert_ok(team_run(4, run_swaps, g));
    ct_arena_finish(&arena);
}

/* ---- transports ---- */

static struct {
    int begin, call; /* what these return */
    int begun, ended, calls;
} fake;

static int fake_begin(const struct ct_launch *l, struct ct_group *group)
{
    (void)l, (void)group;
    fake.begun++;
    return fake.begin < 0 ? ct_fail(fake.begin, "beginning") : fake.begin;
}

static int fake_end(const struct ct_launch *l, struct ct_group *group)
{
    (void)l, (void)group;
    fake.ended++;
    return ct_fail(CT_EIO, "ending");
}

static int fake_call(const struct ct_launch *l, const struct ct_call *call)
{
    (void)l, (void)call;
    fake.calls++;
    return fake.call < 0 ? ct_fail(fake.call, "calling") : 0;
}

static const struct ct_transport slow = {
    .size = sizeof(slow), .name = "slow", .waits = true, .call = fake_call};
static const struct ct_transport fast = {
    .size = sizeof(fast), .name = "fast", .begin = fake_begin, .end = fake_end, .call = fake_call};

static void a_transport_that_waits_is_the_last_choice(void **state)
{
    const struct ct_device far = {.name = "far"}, near = {.name = "near", .host_memory = true};
    struct ct_transport lame = fast;

    (void)state;
    assert_null(ct_transport_find(&far));
    assert_null(ct_collective_kernel(&far));
    assert_ok(ct_transport_register("far", &slow));
    assert_ptr_equal(ct_transport_find(&far), &slow);
    assert_ok(ct_transport_register("far", &fast));
    assert_ptr_equal(ct_transport_find(&far), &fast);
    assert_string_equal(ct_collective_kernel(&far)->name, "fast");
    assert_string_equal(ct_transport_find(&near)->name, "host");
    lame.end = NULL;
    assert_int_equal(ct_transport_register("near", &lame), CT_EINVAL);
}

/* Two values over `fast`. */
static int run_two(int begin, int call)
{
    struct ct_arena arena = {0};
    struct ct_graph *g = ct_graph_parse(
        &arena, "graph \"two\"\nmesh a=2\ninput %x : float32[2] +{a}\n"
                "input %y : float32[2] +{a}\n"
                "F - %u, %v = all_reduce(%x, %y) {axes=\"a\"} : float32[2], float32[2]\n");
    float data[2][2] = {{0}};
    struct ct_tensor t[2] = {ct_tensor_dense(data[0], CT_F32, 1, (int64_t[]){2}),
                             ct_tensor_dense(data[1], CT_F32, 1, (int64_t[]){2})};
    struct ct_prepare p = prepare_for(&arena, g->first, &g->mesh, 0, t, t);
    struct ct_launch l = {.op = g->first, .in = t, .out = t, .ins = 2, .outs = 2};
    const struct ct_collective_ops *ops = &ct_collective_all_reduce;
    int rc;

    memset(&fake, 0, sizeof(fake));
    fake.begin = begin;
    fake.call = call;
    assert_ok(ops->prepare(&p));
    ((struct ct_collective *)p.state)->group = &(struct ct_group){.name = "two", .size = 2};
    l.state = p.state;
    rc = ops->run(&l, &fast);
    ct_arena_finish(&arena);
    return rc;
}

static void what_begins_ends_and_the_first_failure_stays(void **state)
{
    (void)state;
    assert_int_equal(run_two(0, 0), 0);
    assert_int_equal(fake.calls, 2);
    assert_int_equal(fake.ended, 0);
    assert_int_equal(run_two(CT_EPEER, 0), CT_EPEER);
    assert_string_equal(ct_error_message(), "beginning");
    assert_int_equal(fake.calls + fake.ended, 0);
    assert_int_equal(run_two(1, CT_EPEER), CT_EPEER);
    assert_string_equal(ct_error_message(), "calling");
    assert_int_equal(fake.calls, 1);
    assert_int_equal(fake.ended, 1);
    assert_int_equal(run_two(1, 0), CT_EIO);
    assert_string_equal(ct_error_message(), "ending");
}

/* ---- calls ---- */

static int no_call(const struct ct_call *call)
{
    (void)call;
    return ct_fail(CT_EIO, "a communicator was asked");
}

static void assert_refused_call(struct ct_call call, const char *words)
{
    assert_int_equal(ct_call_run(&call), CT_EINVAL);
    if (!strstr(ct_error_message(), words))
        fail_msg("\"%s\" is not in \"%s\"", words, ct_error_message());
    assert_int_equal(ct_transport_call(NULL, &fast, &call), CT_EINVAL);
}

static void calls_that_cannot_be_reach_no_communicator(void **state)
{
    static const struct ct_comm_ops deaf = {.call = no_call};
    struct ct_group g = {.ops = &deaf, .name = "dp", .size = 4, .position = 1};
    struct ct_call good = {.kind = CT_CALL_ALL_REDUCE, .group = &g, .count = 3}, call;
    int32_t data[2] = {7, 0};

    (void)state;
    assert_int_equal(ct_call_run(&good), CT_EIO);
    call = good, call.kind = CT_CALL_KINDS;
    assert_refused_call(call, "there is no kind of call with number 9");
    call = good, call.dtype = (enum ct_dtype)CT_DTYPE_COUNT;
    assert_refused_call(call, "all_reduce in group 'dp': there is no dtype with number 10");
    call = good, call.reduction = (enum ct_reduction)7;
    assert_refused_call(call, "all_reduce in group 'dp': there is no reduction with number 7");
    call = good, call.count = SIZE_MAX / 8;
    assert_refused_call(call, "in group 'dp' of 4: more bytes than there can be");
    call = good, call.kind = CT_CALL_BROADCAST, call.from = 4;
    assert_refused_call(call,
                        "broadcast between positions 1 and 4 of group 'dp', which has 4 ranks");
    call = good, call.kind = CT_CALL_SEND, call.to = 1;
    assert_refused_call(call, "send between positions 1 and 1 of group 'dp', which has 4 ranks");
    call = good, call.kind = CT_CALL_RECEIVE, call.from = -1;
    assert_refused_call(call,
                        "receive between positions 1 and -1 of group 'dp', which has 4 ranks");
    call = good, call.kind = CT_CALL_EXCHANGE, call.to = 1, call.from = 2;
    assert_refused_call(call,
                        "exchange between positions 1 and 1 of group 'dp', which has 4 ranks");
    assert_ok(ct_group_exchange(&g, &data[0], 1, &data[1], 1, sizeof(*data), 0));
    assert_int_equal(data[1], 7);
}

/* ---- groups ---- */

static int many(struct ct_comm *comm, const int64_t *ranks, int count, const char *name,
                struct ct_group **group)
{
    return ct_group_new(comm, ranks, count, name, sizeof(**group), group);
}

static void groups_have_no_bounds(void **state)
{
    static const struct ct_comm_ops counting = {.group = many};
    const struct ct_mesh mesh = {3, {{"pp", 128}, {"dp", 64}, {"tp", 2}}};
    struct ct_comm comm = {&counting, 0, 16384};
    struct ct_arena arena = {0};
    struct ct_communicator_groups groups = {.arena = &arena};
    struct ct_communicator c = {&counting, &comm, &groups};
    struct ct_group *all, *group, *again;

    (void)state;
    assert_ok(ct_communicator_group(&c, &mesh, 0, CT_ALL_AXES, 0, &all));
    assert_int_equal(all->size, 16384);
    for (int64_t i = 1; i < 300; i++)
        assert_ok(ct_communicator_ranks(&c, (int64_t[]){0, i}, 2, "pair", &group));
    assert_ok(ct_communicator_ranks(&c, (int64_t[]){0, 299}, 2, "pair", &again));
    assert_ptr_equal(group, again);
    assert_ok(ct_communicator_ranks(&c, (int64_t[]){299, 0}, 2, "pair", &again));
    assert_ptr_not_equal(group, again);
    assert_ok(ct_communicator_group(&c, &mesh, 0, CT_ALL_AXES, 0, &again));
    assert_ptr_equal(all, again);
    assert_ok(ct_communicator_group(&c, &mesh, 0, CT_ALL_AXES, 1, &again));
    assert_ptr_not_equal(all, again);
    assert_int_equal(groups.count, 302);
    assert_int_equal(ct_communicator_ranks(&c, (int64_t[]){0, 0}, 2, "twice", &group), CT_EINVAL);
    assert_int_equal(ct_communicator_ranks(&c, (int64_t[]){0, 16384}, 2, "far", &group), CT_EINVAL);
    assert_int_equal(ct_communicator_ranks(&c, (int64_t[]){1, 2}, 2, "other", &group), CT_EINVAL);
    for (size_t i = 0; i < groups.count; i++)
        free(groups.item[i].group);
    ct_arena_finish(&arena);
}

/* One of very many ranks knows sizes of a collective, but no list of ranks or shards. */
static void a_group_of_16384_ranks_is_planned_without_tables(void **state)
{
    static const char text[] =
        "graph \"many\"\nmesh a=16384\ninput %x : float32[32768,4] [a, -]\n"
        "input %u : float32[20000,4] [a, -]\ninput %p : float32[32768,4] +{a}\n"
        "F - %y, %v = all_gather(%x, %u) {axes=\"a\"} : float32[32768,4], float32[20000,4]\n"
        "F - %q = reduce_scatter(%p) {axes=\"a\"} : float32[32768,4] [a, -]\n";
    static const struct ct_comm_ops counting = {.group = many};
    struct ct_comm comm = {&counting, 16383, 16384};
    struct ct_arena arena = {0};
    struct ct_communicator_groups groups = {.arena = &arena};
    struct ct_communicator c = {&counting, &comm, &groups};
    struct ct_graph *g = ct_graph_parse(&arena, text);

    (void)state;
    assert_non_null(g);
    ct_for_each_op (op, g) {
        struct ct_tensor in[2], out[2];
        const struct ct_moved *m;
        struct ct_prepare p;
        int64_t local[CT_MAX_DIMS];

        for (int i = 0; i < 2 * op->ins; i++) {
            const struct ct_value *v = i < op->ins ? op->in[i] : op->out[i - op->ins];

            ct_sharding_local(&v->sharding, &g->mesh, 16383, v->ndim, v->shape, local, NULL);
            *(i < op->ins ? &in[i] : &out[i - op->ins]) =
                ct_tensor_dense(NULL, CT_F32, v->ndim, local);
        }
        p = prepare_for(&arena, op, &g->mesh, 16383, in, out);
        p.communicator = &c;
        assert_ok(kernel_of(op->type->name)->prepare(&p));
        m = p.state;
        assert_int_equal(p.group->size, 16384);
        assert_int_equal(m->head.me, 16383);
        assert_true(m->items[0].direct);
        for (int i = 0; i < op->ins; i++)
            assert_null(m->items[i].whole.shard);
        assert_true(ct_op_sent(op, &g->mesh, in, out) >= 16383.0 * 32);
    }
    assert_int_equal(groups.count, 1);
    free(groups.item[0].group);
    ct_arena_finish(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_all_reduce_may_ask_for_the_largest),
        cmocka_unit_test(a_maximum_with_a_nan_is_a_nan),
        cmocka_unit_test(shards_move_by_any_number_of_ranks),
        cmocka_unit_test(a_plugin_brings_a_collective_and_no_kernel),
        cmocka_unit_test(a_transport_that_waits_is_the_last_choice),
        cmocka_unit_test(what_begins_ends_and_the_first_failure_stays),
        cmocka_unit_test(calls_that_cannot_be_reach_no_communicator),
        cmocka_unit_test(groups_have_no_bounds),
        cmocka_unit_test(a_group_of_16384_ranks_is_planned_without_tables),
        cmocka_unit_test(random_steps_give_the_target_sharding),
        cmocka_unit_test(several_values_share_a_call),
        cmocka_unit_test(uneven_shards_cannot_be_permuted),
    };

    if (ct_ops_register() < 0)
        return 1;
    return cmocka_run_group_tests_name("kernels of collectives", tests, NULL, NULL);
}
