/*
 * Exponential moving average of the weights (Polyak and Juditsky 1992): a state "ema.NAME"
 * beside each parameter that is trained, moved towards it after each update. It is saved,
 * sharded and offloaded like a state of the optimizer, and begins as the weights where a
 * checkpoint has none. Validation and a saved folder use it where that is asked for.
 */
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/ops.h>
#include <ctitan/lib/stored.h>
#include <ctitan/log.h>
#include <ctitan/op_author.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>
#include <ctitan/state.h>

#define PREFIX "ema."

static struct config {
    double decay;
    bool validate;
    const char *save_to;
} config;

static const struct ct_option options[] = {
    CT_OPT_FLOAT(
        struct config, decay, "decay", "0.999", 0, 1,
        "Share of the average that a step keeps; (1 + step) / (10 + step) if that is less"),
    CT_OPT_BOOL(struct config, validate, "validate", "false",
                "Validate with the average in the place of the weights"),
    CT_OPT_STRING(struct config, save_to, "save_to", "",
                  "Folder to write the average to after the last step, as [model] save_to"),
    {0}};

/* ---- the op ---- */

enum { STEP, PARAM, AVERAGE };

struct average {
    double decay;
};

static const struct ct_option attrs[] = {
    CT_OPT_FLOAT(struct average, decay, "decay", "0.999", 0, 1, "Share that is kept"), {0}};

/* The first step takes the weights as they are, since later ones may begin from other weights. */
static double kept(const struct ct_launch *l)
{
    double decay = ((const struct average *)l->op->attrs)->decay;
    double step = ct_tensor_load(&l->in[STEP], 0), first = (1 + step) / (10 + step);

    return step <= 1 ? 0 : first < decay ? first : decay;
}

static int reference(const struct ct_launch *l)
{
    double keep = kept(l);

    for (int64_t i = 0; i < ct_tensor_count(&l->in[PARAM]); i++)
        ct_tensor_store(&l->in[AVERAGE], i,
                        (keep > 0 ? keep * ct_tensor_load(&l->in[AVERAGE], i) : 0) +
                            (1 - keep) * ct_tensor_load(&l->in[PARAM], i));
    return 0;
}

static void average_rows(void *context, int64_t begin, int64_t end)
{
    const struct ct_launch *l = context;
    const float *p = l->in[PARAM].data;
    float *average = l->in[AVERAGE].data, keep = (float)kept(l);
    int64_t columns = l->in[PARAM].ndim ? ct_columns(&l->in[PARAM]) : 1;

    for (int64_t i = begin * columns; i < end * columns; i++)
        average[i] = (keep > 0 ? keep * average[i] : 0) + (1 - keep) * p[i];
}

static bool accepts(const struct ct_prepare *p)
{
    return p->in[PARAM].dtype == CT_F32 && p->in[AVERAGE].dtype == CT_F32;
}

static int run_ema(const struct ct_launch *l)
{
    ct_parallel(l, l->in[PARAM].ndim ? ct_rows(&l->in[PARAM]) : 1, average_rows,
                (void *)(uintptr_t)l);
    return 0;
}

static const struct ct_op_type type = {
    .size = sizeof(struct ct_op_type),
    .name = "ema",
    .summary = "average = keep average + (1 - keep) p; keep grows to decay with the steps",
    .signature = "step[] d, p[.] F, !average[.] F",
    .samples = "decay=0.5: square[] real[4,6] real[4,6]",
    .attrs = attrs,
    .attrs_size = sizeof(struct average),
    .reference = reference,
};

static const struct ct_kernel kernels[] = {CT_KERNEL("ema", "rows", 0, accepts, NULL, run_ema),
                                           {0}};

/* ---- training ---- */

static const char *name_of(struct ct_graph *graph, const struct ct_value *param)
{
    return ct_arena_printf(graph->arena, PREFIX "%s", param->name);
}

static int add_average(struct ct_builder *b, struct ct_builder *init, struct ct_value *param,
                       struct ct_value *step)
{
    struct ct_value *average = ct_graph_source(b->graph, CT_ROLE_STATE, name_of(b->graph, param),
                                               CT_F32, param->ndim, param->shape);

    average->sharding = param->sharding;
    average->holders = param->holders;
    ct_init_constant(init, average, 0);
    ct_emit_type(b, &type, "ema", (struct ct_value *[]){step, param, average}, 3,
                 &(struct average){config.decay});
    return b->status < 0 ? b->status : init->status;
}

static int add_averages(struct ct_graph *graph, struct ct_run *r)
{
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_POST, ""), init = ct_init_builder(graph);
    struct ct_value *step = ct_graph_find_input(graph, "step");
    size_t count = graph->value_count;
    int rc = 0;

    (void)r;
    ct_state_follow(PREFIX);
    init.why = b.why = "average of the weights";
    for (size_t i = 0; rc == 0 && i < count; i++)
        if (ct_value_is_own_param(graph->values[i]) && graph->values[i]->grad)
            rc = add_average(&b, &init, graph->values[i], step);
    return rc;
}

static const struct ct_transform averages = {
    .size = sizeof(struct ct_transform),
    .name = "ema",
    .summary = "an average of each parameter that is trained follows it",
    .phase = CT_PHASE_UPDATE,
    .needs = CT_NAMES("updated"),
    .apply = add_averages,
    .required = true,
};

/* ---- validation ---- */

/* The average in the place of a parameter of another dtype is cast to it, once a step. */
static int cast_average(struct ct_graph *graph, struct ct_value *v, enum ct_dtype average)
{
    struct ct_builder b = ct_pre_builder(graph);
    enum ct_dtype dtype = v->dtype;
    struct ct_value *cast;

    v->dtype = average;
    b.why = "ema: the model computes in another dtype than averages have";
    cast = ct_cast(&b, ct_arena_printf(graph->arena, "%s.cast", v->name), v, dtype);
    if (!cast)
        return b.status;
    cast->sharding = v->sharding;
    ct_for_each_use_safe (use, v)
        if (use->op != cast->producer && use->op->section->part != CT_PART_INIT)
            ct_op_set_input(use->op, use->index, cast);
    return 0;
}

/* Validation's graph borrows the memory of parameters by their names. The training's, and a copy of
   it that a transform tries, have the averages themselves. */
static int use_averages(struct ct_graph *graph, struct ct_run *r)
{
    size_t count = graph->value_count;
    int rc = 0;

    for (size_t i = 0; config.validate && r->graph && rc == 0 && i < count; i++) {
        struct ct_value *v = graph->values[i], *average;

        if (!ct_value_is_own_param(v) || ct_graph_find(graph, name_of(graph, v)))
            continue;
        average = ct_graph_find(r->graph, name_of(graph, v));
        if (!average)
            continue;
        ct_value_rename(graph, v, average->name);
        if (average->dtype != v->dtype)
            rc = cast_average(graph, v, average->dtype);
    }
    return rc;
}

static const struct ct_transform validated = {
    .size = sizeof(struct ct_transform),
    .name = "ema.validate",
    .summary = "validation reads averages in the place of parameters",
    .phase = CT_PHASE_MEMORY,
    .evaluation = true,
    .apply = use_averages,
};

/* ---- saving ---- */

static int check_folder(void)
{
    int rc = ct_hf_try_target("[ema] save_to", config.save_to);

    if (rc < 0)
        return rc;
    if (ct_file_is_same(config.save_to, ct_config.model.save_to))
        return ct_fail(CT_ECONFIG,
                       "[ema] save_to = %s is the folder of [model] save_to, too: the average "
                       "would replace the weights",
                       config.save_to);
    return 0;
}

/* A folder is of the model as it is, without what was added to it. */
static int check_averages(struct ct_run *run)
{
    int rc;

    for (size_t i = 0; i < run->state_count; i++)
        if (run->states[i].role == CT_ROLE_PARAM &&
            ct_stored_absent(ct_stored_rule(run->model_ops->stored, run->states[i].name)))
            return ct_fail(CT_ECONFIG,
                           "[ema] save_to: %s is in no file of the model, so a folder of averages "
                           "would be of another model: leave save_to empty",
                           run->states[i].name);
    rc = ct_hf_check_states(run, PREFIX, config.save_to);
    return rc < 0 ? ct_context(rc, "[ema] save_to = %s", config.save_to) : 0;
}

static int on_event(const struct ct_event_data *data, void *context)
{
    struct ct_run *run = data->run;
    bool opens = data->event == CT_EVENT_RUN_OPEN;

    (void)context;
    if (opens && config.validate && !ct_config.validation.freq && run->rank == 0)
        ct_warn("[ema] validate = true has no effect: nothing is validated, as [validation] freq "
                "is 0");
    if (!*config.save_to)
        return 0;
    if (opens)
        return run->rank == 0 ? check_folder() : 0;
    if (data->event == CT_EVENT_PLAN_READY)
        return run->data ? check_averages(run) : 0;
    return ct_hf_save_states(run, PREFIX, config.save_to);
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_RUN_OPEN | 1u << CT_EVENT_PLAN_READY |
                                              1u << CT_EVENT_RUN_END,
                                    .call = on_event};

CT_PLUGIN(.name = "ema", .version = "1.0", .summary = "Moving average of the weights",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_OP, "ema", &type}, {CT_KERNELS, "cpu", kernels},
                              {CT_TRANSFORM, "ema", &averages},
                              {CT_TRANSFORM, "ema.validate", &validated}, {CT_HOOK, "ema", &hook}));
