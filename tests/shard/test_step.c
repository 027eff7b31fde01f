/*
 * The whole of the sharding algebra: random training steps, split at random over random meshes and
 * run on simulated ranks, give what they give on one rank, in float64: loss, gradient norm, every
 * gradient, every parameter and state after the update.
 *
 * Usage: test_step [FIRST [COUNT]]: other seeds than the usual ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <ctitan/app/verify.h>
#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/plugins.h>
#include <ctitan/text.h>

#include "model.h"
#include "plugin_ops.h"
#include "simulate.h"

static uint64_t first_seed = 1, seeds = 400;
static const struct ct_optimizer_ops *optimizer;

static int feed(struct world *w, struct random *random)
{
    for (size_t i = 0; i < w->graph->value_count; i++) {
        const struct ct_value *v = w->graph->values[i];
        struct ct_tensor whole;

        if (v->producer)
            continue;
        whole = world_whole(w, v);
        for (int64_t k = 0; v->role != CT_ROLE_STATE && k < ct_tensor_count(&whole); k++)
            ct_tensor_store(&whole, k, source_element(v, k));
        world_scatter(w, v, &whole, random);
    }
    return 0;
}

static int compare_values(struct world *one, const struct ct_value *v, struct world *many,
                          const struct ct_value *same)
{
    struct ct_tensor want, got;
    int rc = world_gather(one, v, &want);

    if (rc == 0)
        rc = world_gather(many, same, &got);
    return rc < 0 ? rc : compare_tensors(v->name, &got, &want);
}

/* Parameters, their gradients and states by name, then what the host reads. */
static int compare_worlds(struct world *one, struct world *many)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < one->graph->value_count; i++) {
        const struct ct_value *v = one->graph->values[i], *same;

        if (v->role != CT_ROLE_PARAM && v->role != CT_ROLE_STATE)
            continue;
        same = ct_graph_find(many->graph, v->name);
        if (!same || !v->grad != !same->grad)
            return ct_fail(CT_EINVAL, "%%%s or its gradient is not there", v->name);
        rc = compare_values(one, v, many, same);
        if (rc == 0 && v->grad)
            rc = compare_values(one, v->grad, many, same->grad);
    }
    for (size_t i = 0; rc == 0 && i < one->graph->fetch_count; i++) {
        const struct ct_fetch *f = &one->graph->fetches[i];
        const struct ct_value *same = ct_graph_fetched(many->graph, f->name);

        if (!same || same->sharding.unreduced || ct_sharding_axes(&same->sharding))
            return ct_fail(CT_EINVAL, "fetch %s is not whole", f->name);
        rc = compare_values(one, f->value, many, same);
    }
    return rc;
}

static int run_world(struct world *w, const struct ct_graph *graph, struct random *random)
{
    int rc = ct_graph_verify(graph, NULL);

    world_create(w, graph);
    if (rc == 0)
        rc = feed(w, random);
    return rc == 0 ? world_run(w) : rc;
}

static int check_seed(uint64_t seed, struct ct_arena *arena, const struct ct_graph **shown)
{
    struct random random = {seed, 1u << 30};
    struct world one = {0}, many = {0};
    struct ct_graph *whole, *split;
    struct ct_mesh mesh;
    int rc = CT_EINVAL;

    random_mesh(&random, &mesh);
    whole = random_step(arena, seed, NULL, optimizer);
    split = whole ? random_step(arena, seed, &mesh, optimizer) : NULL;
    *shown = split ? split : whole;
    if (split)
        rc = run_world(&one, whole, &random);
    if (rc == 0)
        rc = run_world(&many, split, &random);
    if (rc == 0)
        rc = compare_worlds(&one, &many);
    world_finish(&one);
    world_finish(&many);
    return rc;
}

static void random_steps_equal_one_rank(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + seeds; seed++) {
        struct ct_arena arena = {0};
        const struct ct_graph *graph;

        if (check_seed(seed, &arena, &graph) < 0) {
            if (graph)
                ct_graph_print(graph, stderr);
            fail_msg("seed %llu: %s", (unsigned long long)seed, ct_error_message());
        }
        ct_arena_finish(&arena);
    }
}

/* AdamW with so large an eps that rounding errors of tiny gradients do not decide. */
static int load_optimizer(void)
{
    const struct ct_plugin *plugin;
    const struct ct_offer *offer;
    int rc = ct_plugin_find("adamw", &plugin);

    if (rc == 0)
        rc = ct_options_reset(plugin->options, plugin->config);
    if (rc == 0)
        rc = ct_options_set(plugin->options, plugin->config, "eps", "0.1", "test");
    if (rc == 0)
        rc = ct_plugin_register(plugin);
    if (rc == 0)
        rc = ct_offer_find(CT_OPTIMIZER, "adamw", &offer);
    if (rc == 0)
        optimizer = offer->ops;
    ct_config.training.max_norm = 1;
    return rc;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_steps_equal_one_rank)};

    if (argc > 1)
        first_seed = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        seeds = strtoull(argv[2], NULL, 10);
    if (REGISTER_OPS("tp") < 0 || load_optimizer() < 0) {
        print_error("%s\n", ct_error_message());
        return 1;
    }
    return cmocka_run_group_tests_name("steps on simulated ranks", tests, NULL, NULL);
}
