/*
 * Parameters that are not trained. Once the graph is differentiated, they have no gradient: the
 * backward loses the ops that only their gradients needed, the update does not see them, and no
 * optimizer keeps a state for them. Gradients that flow through their layers to other parameters
 * stay as they are.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/graph.h>
#include <ctitan/lib/ops.h>
#include <ctitan/lib/patterns.h>
#include <ctitan/log.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>
#include <ctitan/tensor.h>

static struct config {
    const char *parameters, *trains;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, parameters, "parameters", "",
                  "Patterns of names, separated by commas: parameters that are not trained"),
    CT_OPT_STRING(struct config, trains, "trains", "",
                  "Patterns of names: the only parameters that are trained"),
    {0}};

struct freezing {
    struct ct_value **param;
    size_t count, trained;
    int64_t elements, trained_elements;
    struct ct_patterns patterns;
    const char *option; /* that has them */
};

static void list_parameters(struct freezing *f, const struct ct_graph *graph,
                            struct ct_arena *arena)
{
    f->param = ct_arena_array(arena, struct ct_value *, graph->value_count);
    for (size_t i = 0; i < graph->value_count; i++)
        if (ct_value_is_own_param(graph->values[i]))
            f->param[f->count++] = graph->values[i];
}

static int read_patterns(struct freezing *f, struct ct_arena *arena)
{
    bool trains = *config.trains;

    if (trains == (*config.parameters != '\0'))
        return ct_fail(CT_ECONFIG,
                       "[freeze] %s: give patterns of the parameters that are not trained "
                       "(parameters), or of those that are (trains)",
                       trains ? "parameters and trains exclude each other"
                              : "neither parameters nor trains is set");
    f->option = trains ? "[freeze] trains" : "[freeze] parameters";
    f->patterns = ct_patterns_read(arena, trains ? config.trains : config.parameters);
    return ct_patterns_check(&f->patterns, f->param, f->count, f->option);
}

static void freeze_parameter(struct freezing *f, struct ct_value *param)
{
    bool fits = ct_patterns_find(&f->patterns, param->name) >= 0;
    int64_t elements = ct_shape_count(param->ndim, param->shape);

    f->elements += elements;
    if (fits == (*config.trains != '\0') && param->grad) {
        f->trained++;
        f->trained_elements += elements;
    } else {
        ct_value_set_grad(param, NULL);
    }
}

static int freeze_all(struct freezing *f, struct ct_graph *graph)
{
    for (size_t i = 0; i < f->count; i++)
        freeze_parameter(f, f->param[i]);
    if (!f->trained)
        return ct_fail(CT_ECONFIG, "%s freezes all %zu parameters: there is nothing to train",
                       f->option, f->count);
    ct_info("freeze: %zu of %zu parameters train, %lld of %lld elements", f->trained, f->count,
            (long long)f->trained_elements, (long long)f->elements);
    return ct_sweep_gradients(graph);
}

static int apply(struct ct_graph *graph, struct ct_run *run)
{
    struct ct_arena scratch = {0};
    struct freezing f = {.count = 0};
    int rc;

    (void)run;
    list_parameters(&f, graph, &scratch);
    rc = read_patterns(&f, &scratch);
    if (rc == 0)
        rc = freeze_all(&f, graph);
    ct_arena_finish(&scratch);
    return rc;
}

static const struct ct_transform transform = {
    .size = sizeof(struct ct_transform),
    .name = "freeze",
    .summary = "drops the gradients of parameters that are not trained",
    .phase = CT_PHASE_DIFFERENTIATE,
    .needs = CT_NAMES("gradients"),
    .apply = apply,
    .required = true,
};

CT_PLUGIN(.name = "freeze", .version = "1.0", .summary = "Parameters that are not trained",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_TRANSFORM, "freeze", &transform}));
