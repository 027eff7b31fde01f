/*
 * core/collective.c: the kernels of collectives on host devices move what the simulated ones move,
 * for random redistributions: pieces uneven, empty, in any dimension and order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include <ctitan/error.h>

#include "collective.h"
#include "steps.h"
#include "team.h"

#define assert_ok(rc)                                                                              \
    do {                                                                                           \
        if ((rc) != 0)                                                                             \
            fail_msg("%s: %s", #rc, ct_error_message());                                           \
    } while (0)

static const struct ct_kernel *kernel_of(const char *op)
{
    const struct ct_kernel *k = ct_collective_kernels;

    while (k->op && strcmp(k->op, op))
        k++;
    assert_non_null(k->op);
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
                                         like->rank, like->shape);

    for (int64_t i = 0; i < n; i++)
        ct_tensor_store(&t, i, -77);
    return t;
}

/* A rank's way through all steps; every piece must be the simulated one. */
static int run_rank(int64_t rank, const struct ct_communicator *communicator, void *context)
{
    const struct world *w = context;
    struct ct_arena arena = {0};
    struct ct_tensor now, next;
    int rc = 0;

    if (w->graph->first)
        now = w->piece[w->graph->first->in[0]->id][rank];
    ct_for_each_op (op, w->graph) {
        const struct ct_tensor *want = &w->piece[op->out[0]->id][rank];
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

static void test_random_steps(void **state)
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

/* Even and uneven ones, empty pieces, and another dimension than the first. */
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
            in[i] = w->piece[op->in[i]->id][rank];
            out[i] = poisoned(&arena, &w->piece[op->out[i]->id][rank]);
        }
        ran = run_kernel(&arena, op, &w->graph->mesh, rank, communicator, in, out);
        for (int i = 0; i < op->outs && ran == 0; i++)
            ran = compare_tensors(op->out[i]->name, &out[i], &w->piece[op->out[i]->id][rank]);
        if (rc == 0)
            rc = ran;
    }
    ct_arena_finish(&arena);
    return rc;
}

static void test_several_values(void **state)
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
        int64_t local[CT_MAX_RANK];
        struct ct_tensor t;
        struct ct_prepare p;

        ct_sharding_local(&op->in[0]->sharding, &graph->mesh, rank, op->in[0]->rank,
                          op->in[0]->shape, local, NULL);
        t = ct_tensor_dense(NULL, CT_F32, op->in[0]->rank, local);
        p = prepare_for(&arena, op, &graph->mesh, rank, &t, &t);
        assert_int_equal(kernel_of("permute")->prepare(&p), CT_EINVAL);
        if (!strstr(ct_error_message(), words))
            fail_msg("\"%s\" is not in \"%s\"", words, ct_error_message());
    }
    ct_arena_finish(&arena);
}

/* Every rank says so, whatever its own piece: else some would wait for others. */
static void test_uneven_permute(void **state)
{
    (void)state;
    assert_refused("graph \"uneven\"\n"
                   "mesh a=2\n"
                   "input %x : float32[3,4] [a, -]\n"
                   "F - %y = permute(%x) {axes=\"a\"} : float32[3,4] [a, -]\n",
                   "%x is not cut evenly: its pieces cannot change places");
    assert_refused("graph \"whole\"\n"
                   "mesh a=2\n"
                   "input %x : float32[4,4]\n"
                   "F - %y = permute(%x) {axes=\"a\"} : float32[4,4]\n",
                   "%x is not cut by a");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_steps),
        cmocka_unit_test(test_several_values),
        cmocka_unit_test(test_uneven_permute),
    };

    return cmocka_run_group_tests_name("kernels of collectives", tests, NULL, NULL);
}
