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

/* As lowering would: prepared on shapes, then run. */
static int run_kernel(struct ct_arena *arena, const struct ct_op *op, const struct ct_mesh *mesh,
                      int64_t rank, const struct ct_communicator *communicator,
                      const struct ct_tensor *in, const struct ct_tensor *out)
{
    const struct ct_kernel *kernel = kernel_of(op->type->name);
    struct ct_tensor shape_in = *in, shape_out = *out;
    struct ct_prepare p = {.op = op,
                           .in = &shape_in,
                           .out = &shape_out,
                           .present = (const bool[]){true},
                           .ins = 1,
                           .outs = 1,
                           .arena = arena,
                           .rank = rank,
                           .mesh = mesh,
                           .communicator = communicator};
    int rc;

    shape_in.data = shape_out.data = NULL;
    rc = kernel->prepare(&p);
    return rc < 0 ? rc
                  : kernel->run(
                        &(struct ct_launch){.op = op,
                                            .in = in,
                                            .out = out,
                                            .ins = 1,
                                            .outs = 1,
                                            .workspace = ct_arena_alloc(arena, p.workspace + 1),
                                            .state = p.state,
                                            .rank = rank,
                                            .mesh = mesh});
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
        int64_t n = ct_tensor_count(want);
        int compared;

        next = ct_tensor_dense(ct_arena_alloc(&arena, (size_t)n * 8 + 8), want->dtype, want->rank,
                               want->shape);
        for (int64_t i = 0; i < n; i++)
            ct_tensor_store(&next, i, -77);
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_steps)};

    return cmocka_run_group_tests_name("kernels of collectives", tests, NULL, NULL);
}
