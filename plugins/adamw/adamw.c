/*
 * Adam with decoupled weight decay (Kingma and Ba 2015; Loshchilov and Hutter 2019), equal to
 * torch.optim.AdamW. One op updates all parameters, so that a device can run them in one launch.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/model.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>

#include "adamw.h"

#define BELOW_1 0.999999999999 /* with 1, a moment would stay 0 */

static struct config {
    struct adamw_hyper hyper;
    const char *no_decay, *lr_factors;
    enum { STATE_PARAMETER, STATE_F32, STATE_BF16, STATE_FLOAT8 } state_dtype;
    bool write_copies;
} config;

static const struct ct_option options[] = {
    CT_OPT_FLOAT(struct config, hyper.lr, "lr", "8e-4", 0, DBL_MAX, "Peak learning rate"),
    CT_OPT_FLOAT(struct config, hyper.beta1, "beta1", "0.9", 0, BELOW_1,
                 "Decay of the first moment"),
    CT_OPT_FLOAT(struct config, hyper.beta2, "beta2", "0.95", 0, BELOW_1,
                 "Decay of the second moment"),
    CT_OPT_FLOAT(struct config, hyper.eps, "eps", "1e-8", 0, DBL_MAX,
                 "Added to the root of the second moment"),
    CT_OPT_FLOAT(struct config, hyper.weight_decay, "weight_decay", "0.1", 0, DBL_MAX,
                 "Weight decay: fraction of a weight that a step at learning rate 1 subtracts"),
    CT_OPT_STRING(struct config, no_decay, "no_decay", "",
                  "Patterns of names, separated by commas: parameters without weight decay"),
    CT_OPT_STRING(struct config, lr_factors, "lr_factors", "",
                  "PATTERN:FACTOR, separated by commas: parameters whose learning rate is so many "
                  "times lr; the first pattern counts"),
    CT_OPT_ENUM(struct config, state_dtype, "state_dtype", "parameter",
                "parameter|float32|bfloat16|float8",
                "Dtype of the moments; parameter: that of the parameter; float8: those of "
                "matrices in blocks of a row with one scale, others in float32"),
    CT_OPT_BOOL(
        struct config, write_copies, "write_copies", "true",
        "Copies of the parameters in the dtype of the forward pass are kept, and written with the "
        "parameters, not made anew in each step"),
    {0}};

/* ---- the op ---- */

enum { LR, STEP, CLIP, FIRST = ADAMW_FIRST, GROUP = ADAMW_GROUP };

const struct ct_option adamw_attrs[] = {
    CT_OPT_FLOAT(struct adamw_hyper, beta1, "beta1", "0.9", 0, BELOW_1,
                 "Decay of the first moment"),
    CT_OPT_FLOAT(struct adamw_hyper, beta2, "beta2", "0.95", 0, BELOW_1,
                 "Decay of the second moment"),
    CT_OPT_FLOAT(struct adamw_hyper, eps, "eps", "1e-8", 0, DBL_MAX, "Added to the root"),
    CT_OPT_FLOAT(struct adamw_hyper, weight_decay, "weight_decay", "0.1", 0, DBL_MAX, "Decay"),
    CT_OPT_FLOAT(struct adamw_hyper, lr_factor, "lr_factor", "1", 0, DBL_MAX, "Factor of lr"),
    {0}};

/* p, g, m, v at t; copy may be NULL. */
static void update(const struct ct_tensor *t, const struct ct_tensor *copy,
                   const struct adamw_hyper *h, double step, double clip)
{
    const struct ct_tensor *p = &t[0], *g = &t[1], *m = &t[2], *v = &t[3];
    double correct1 = 1 - pow(h->beta1, step), correct2 = sqrt(1 - pow(h->beta2, step));

    for (int64_t i = 0; i < ct_tensor_count(p); i++) {
        double grad = ct_tensor_load(g, i) * clip;
        double weight = ct_tensor_load(p, i) * (1 - h->lr * h->weight_decay);
        double first = h->beta1 * ct_tensor_load(m, i) + (1 - h->beta1) * grad;
        double second = h->beta2 * ct_tensor_load(v, i) + (1 - h->beta2) * grad * grad;
        double denominator = sqrt(second) / correct2 + h->eps;

        ct_tensor_store(m, i, first);
        ct_tensor_store(v, i, second);
        ct_tensor_store(p, i, weight - h->lr / correct1 * first / denominator);
        if (copy)
            ct_tensor_store(copy, i, ct_tensor_load(p, i));
    }
}

static int update_all(const struct ct_launch *l, int group)
{
    double step = ct_tensor_load(&l->in[STEP], 0), clip = ct_tensor_load(&l->in[CLIP], 0);
    struct adamw_hyper h = {.lr = ct_tensor_load(&l->in[LR], 0) * ct_op_float(l->op, "lr_factor"),
                            .beta1 = ct_op_float(l->op, "beta1"),
                            .beta2 = ct_op_float(l->op, "beta2"),
                            .eps = ct_op_float(l->op, "eps"),
                            .weight_decay = ct_op_float(l->op, "weight_decay")};

    if (clip < 0)
        return 0;
    for (int i = FIRST; i + group <= l->ins; i += group)
        update(&l->in[i], group > GROUP && l->in[i + GROUP].data ? &l->in[i + GROUP] : NULL, &h,
               step, clip);
    return 0;
}

static int reference(const struct ct_launch *l)
{
    return update_all(l, GROUP);
}

int adamw_copies_reference(const struct ct_launch *l)
{
    return update_all(l, ADAMW_COPIES_GROUP);
}

const struct ct_op_type adamw_type = {
    .size = sizeof(struct ct_op_type),
    .name = "adamw",
    .summary = "updates p from its gradient g and its moments m and v; nothing if clip is negative",
    .signature = "lr[] d, step[] d, clip[] f, *(!p[.] F, g[.] F, !m[.] F, !v[.] F)",
    .samples = "square[] square[] factor[] real[2,4] real[2,4] real[2,4] positive[2,4];"
               "weight_decay=0.5 lr_factor=0.25: square[] square[] factor[] real[2,4] real[2,4] "
               "real[2,4] positive[2,4]",
    .attrs = adamw_attrs,
    .attrs_size = sizeof(struct adamw_hyper),
    .reference = reference,
};

/* ---- the optimizer ---- */

static enum ct_dtype state_dtype(const struct ct_value *param)
{
    if (config.state_dtype == STATE_PARAMETER)
        return param->dtype;
    return config.state_dtype == STATE_BF16 ? CT_BF16 : CT_F32;
}

/* Elements of a block of 8-bit codes; 0: the moments of param are in no blocks. */
static int64_t block_of(const struct ct_value *param)
{
    return config.state_dtype == STATE_FLOAT8 ? adamw_float8_block(param) : 0;
}

/* A zeroed state with the sharding of param, and one element for so many in a row of it. */
static struct ct_value *state(struct ct_builder *init, const struct ct_value *param,
                              const char *which, enum ct_dtype dtype, int64_t each)
{
    struct ct_graph *graph = init->graph;
    const char *name = ct_arena_printf(graph->arena, "adamw.%s.%s", which, param->name);
    struct ct_value *s;
    int64_t shape[CT_MAX_DIMS];

    memcpy(shape, param->shape, sizeof(shape));
    if (each > 1)
        shape[param->ndim - 1] /= each;
    s = ct_graph_source(graph, CT_ROLE_STATE, name, dtype, param->ndim, shape);
    s->sharding = param->sharding;
    ct_init_constant(init, s, 0);
    return s;
}

static struct ct_value *moment(struct ct_builder *init, const struct ct_value *param,
                               const char *which)
{
    return state(init, param, which, state_dtype(param), 1);
}

/* Shards of a row end where blocks end. */
static int check_shards(const struct ct_graph *graph, const struct ct_value *param, int64_t block)
{
    int last = param->ndim - 1;
    int64_t shards = 1;

    for (int i = 0; i < param->sharding.count[last]; i++)
        shards *= graph->mesh.axis[param->sharding.axis[last][i]].size;
    return param->shape[last] % (shards * block) == 0
               ? 0
               : ct_fail(CT_ECONFIG,
                         "[adamw] state_dtype = float8: %lld columns of %s on %lld rank%s, in "
                         "blocks of %lld",
                         (long long)param->shape[last], param->name, (long long)shards,
                         ct_plural(shards), (long long)block);
}

static int build_float8(struct ct_builder *b, struct ct_builder *init, struct ct_value *p,
                        struct ct_value *const *head, const struct adamw_hyper *hyper)
{
    int64_t block = block_of(p);
    int rc = check_shards(b->graph, p, block);

    if (rc < 0)
        return rc;
    ct_emit_type(b, &adamw_float8, "adamw",
                 (struct ct_value *[]){
                     head[LR], head[STEP], head[CLIP], p, p->grad, state(init, p, "m", CT_E4M3, 1),
                     state(init, p, "m_scale", CT_F32, block), state(init, p, "v", CT_E4M3, 1),
                     state(init, p, "v_scale", CT_F32, block)},
                 9, hyper);
    return b->status < 0 ? b->status : init->status;
}

/* Parameters with the same hyperparameters. */
struct group {
    struct adamw_hyper hyper;
    struct ct_value **param;
    size_t count;
};

/* Returns the number of groups then. */
static size_t add_to_group(struct ct_arena *arena, struct group *group, size_t groups,
                           struct ct_value *param, size_t most, struct adamw_hyper hyper)
{
    size_t i = 0;

    while (i < groups && memcmp(&group[i].hyper, &hyper, sizeof(hyper)))
        i++;
    if (i == groups)
        group[groups++] = (struct group){hyper, ct_arena_array(arena, struct ct_value *, most), 0};
    group[i].param[group[i].count++] = param;
    return groups;
}

/* One op for all of them. */
static int build_group(struct ct_builder *b, struct ct_builder *init, struct group *group,
                       struct ct_value *const *head)
{
    struct ct_value **in =
        ct_arena_array(b->graph->arena, struct ct_value *, FIRST + group->count * GROUP);
    struct ct_value **next = in + FIRST;
    int rc = 0;

    memcpy(in, head, sizeof(*in) * FIRST);
    for (size_t i = 0; rc == 0 && i < group->count; i++) {
        struct ct_value *p = group->param[i];

        if (block_of(p)) {
            rc = build_float8(b, init, p, in, &group->hyper);
            continue;
        }
        *next++ = p;
        *next++ = p->grad;
        *next++ = moment(init, p, "m");
        *next++ = moment(init, p, "v");
    }
    if (rc < 0 || init->status < 0)
        return rc < 0 ? rc : init->status;
    if (next > in + FIRST)
        ct_emit_type(b, &adamw_type, "adamw", in, (int)(next - in), &group->hyper);
    return b->status;
}

static int build(struct ct_builder *b, struct ct_value *const *params, size_t count,
                 struct ct_value *lr, struct ct_value *step, struct ct_value *clip)
{
    struct ct_arena *arena = b->graph->arena;
    struct ct_builder init = ct_init_builder(b->graph);
    struct group *group = ct_arena_array(arena, struct group, count);
    struct adamw_hyper hyper = config.hyper;
    struct adamw_groups own;
    size_t groups = 0;
    int rc = adamw_read_groups(arena, b->graph, config.no_decay, config.lr_factors, &own);

    init.why = "state of adamw";
    hyper.lr = 0; /* not an attribute: the value is passed in at each step */
    hyper.lr_factor = 1;
    for (size_t i = 0; rc == 0 && i < count; i++)
        groups = add_to_group(arena, group, groups, params[i], count,
                              adamw_hyper_of(&own, params[i], &hyper));
    for (size_t i = 0; rc == 0 && i < groups; i++)
        rc = build_group(b, &init, &group[i], (struct ct_value *[]){lr, step, clip});
    return rc;
}

static double peak_lr(void)
{
    return config.hyper.lr;
}

static int copies(struct ct_graph *graph, struct ct_run *run)
{
    (void)run;
    return config.write_copies ? adamw_write_copies(graph) : 0;
}

static const struct ct_transform write_copies = {
    .size = sizeof(struct ct_transform),
    .name = "adamw.copies",
    .summary = "adamw writes the parameters' copies that were cast in each step",
    .phase = CT_PHASE_FUSE,
    .after = CT_NAMES("preferred"),
    .apply = copies,
};

static const struct ct_kernel float8_kernels[] = {
    CT_KERNEL("adamw.float8", "blocks", 0, NULL, NULL, adamw_float8_run), {0}};

static const struct ct_optimizer_ops optimizer = {
    .size = sizeof(struct ct_optimizer_ops), build, peak_lr};

CT_PLUGIN(.name = "adamw", .version = "1.0", .summary = "Adam with decoupled weight decay",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_OPTIMIZER, "adamw", &optimizer}, {CT_OP, "adamw", &adamw_type},
                              {CT_OP, "adamw.float8", &adamw_float8},
                              {CT_OP, "adamw.copies", &adamw_copies},
                              {CT_KERNELS, "cpu", float8_kernels},
                              {CT_TRANSFORM, "adamw.copies", &write_copies}));
