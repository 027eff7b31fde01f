/*
 * From a model to its loss.
 */
#include <string.h>

#include <ctitan/calling.h>
#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/objective.h>

static struct {
    const char *name;
    const struct ct_objective_ops *ops;
} fallback;

void ct_objective_register(const char *name, const struct ct_objective_ops *ops)
{
    fallback.name = name;
    fallback.ops = ops;
}

const struct ct_objective_ops *ct_objective_default(const char **name)
{
    *name = fallback.name;
    return fallback.ops;
}

bool ct_objective_is(const char *name)
{
    return ct_config.objective && !strcmp(ct_config.objective, name);
}

/* ---- the forward ---- */

static int check_tokens(const struct ct_graph *graph, const struct ct_model_request *request)
{
    const struct ct_value *tokens = ct_graph_find_input(graph, "tokens");

    if (!graph->first)
        return ct_fail(CT_EINVAL, "it has no op");
    if (!tokens && ct_graph_find_stream(graph, "tokens"))
        return ct_fail(CT_EINVAL, "it declares no input \"tokens\"");
    if (!ct_graph_batch(graph))
        return ct_fail(CT_EINVAL, "it declares no input");
    if (tokens && (tokens->ndim != 2 || tokens->shape[0] != request->batch ||
                   tokens->shape[1] != request->seq_len))
        return ct_fail(CT_EINVAL, "its input \"tokens\" is not [%lld, %lld]",
                       (long long)request->batch, (long long)request->seq_len);
    return 0;
}

static int check_fetch(const struct ct_graph *graph, const char *name, int ndim)
{
    const struct ct_value *v = ct_graph_fetched(graph, name);

    if (!v || !v->producer)
        return ct_fail(CT_EINVAL, "it fetches no \"%s\"", name);
    if (v->ndim != ndim)
        return ct_fail(CT_EINVAL, "its \"%s\" has %d dimensions, not %d", name, v->ndim, ndim);
    return 0;
}

/* Fetches from number `first` on. */
static void forget_fetches(struct ct_graph *graph, size_t first)
{
    while (graph->fetch_count > first)
        ct_graph_unfetch(graph, graph->fetches[graph->fetch_count - 1].name);
}

/* Mark what is behind `last` as a pass without a gradient, and name what it computes. */
static void set_apart(struct ct_graph *graph, struct ct_op *last)
{
    const char *of = graph->set ? graph->set->name : CT_REFERENCE;

    for (struct ct_op *op = last ? last->next : graph->first; op; op = op->next) {
        if (op->section->part != CT_PART_F)
            continue;
        op->marks |= ct_mark(CT_REFERENCE);
        for (int i = 0; i < op->outs; i++)
            ct_value_rename(graph, op->out[i],
                            ct_arena_printf(graph->arena, "%s.%s", of, op->out[i]->name));
    }
}

static int build_model(const struct ct_objective *o)
{
    struct ct_model_request request = *o->request;
    struct ct_calling before = ct_calling_begin("model", NULL);
    int rc;

    request.logits = request.loss = true;
    o->graph->same_parameters = o->passes > 0 || o->graph->set;
    rc = o->model_ops->build(o->model, o->graph, &request);
    o->graph->same_parameters = false;
    ct_calling_end(&before);
    return rc < 0 ? rc : check_tokens(o->graph, o->request);
}

/* The logits of the pass whose fetches begin with number `first`. */
static int take_logits(struct ct_objective *o, size_t first, struct ct_value **logits)
{
    struct ct_graph *graph = o->graph;

    *logits = NULL;
    for (size_t i = first; i < graph->fetch_count; i++)
        if (!strcmp(graph->fetches[i].name, "logits"))
            *logits = graph->fetches[i].value;
    if (*logits && (*logits)->ndim == 3 && (*logits)->producer) {
        ct_graph_unfetch(graph, "logits");
        o->region = (*logits)->producer->region;
        return 0;
    }
    if (*logits)
        return check_fetch(graph, "logits", 3);
    if (!ct_graph_fetched(graph, "loss"))
        return ct_fail(CT_EINVAL, "it fetches no \"loss\" of its own, and no \"logits\"");
    return o->ops->own_loss
               ? check_fetch(graph, "loss", 0)
               : ct_fail(CT_EINVAL, "it makes a loss of its own, and hands out no \"logits\", "
                                    "from which this objective makes one");
}

static int forward(struct ct_objective *o, bool reference, struct ct_value **logits)
{
    struct ct_op *last = o->graph->last;
    size_t fetches = o->graph->fetch_count;
    int rc = build_model(o);

    if (rc == 0)
        rc = take_logits(o, fetches, logits);
    if (rc < 0)
        return rc;
    o->passes++;
    if (reference) {
        forget_fetches(o->graph, fetches);
        set_apart(o->graph, last);
    } else if (*logits && o->validation) {
        (*logits)->marks |= ct_mark(CT_MARK_LOGITS);
    }
    return 0;
}

int ct_objective_forward(struct ct_objective *o, enum ct_forward weights, struct ct_value **logits)
{
    return forward(o, weights == CT_FORWARD_REFERENCE, logits);
}

int ct_objective_forward_set(struct ct_objective *o, const struct ct_weight_set *set,
                             struct ct_value **logits)
{
    int rc;

    o->graph->set = set;
    rc = forward(o, true, logits);
    o->graph->set = NULL;
    return rc;
}

struct ct_builder ct_objective_builder(const struct ct_objective *o)
{
    return ct_builder_at_end(o->graph, CT_PART_F, o->region ? o->region : "");
}

/* ---- the loss ---- */

/* The streams in which the graph's scalars are counted are inputs, whether an op uses them or not:
   the counts are split as they are. */
static int declare_counted(struct ct_graph *graph, int64_t batch)
{
    int rc = 0;

    for (const struct ct_count *c = ct_graph_counts(graph); c->name; c++)
        for (int i = 0; ct_graph_find_input(graph, c->name) && c->streams && c->streams[i]; i++) {
            const struct ct_data_stream *s = ct_graph_find_stream(graph, c->streams[i]);
            int64_t shape[CT_MAX_DIMS] = {batch};
            struct ct_value *value;

            for (int d = 0; s && d < s->ndim; d++)
                shape[d + 1] = s->shape[d];
            if (rc == 0 && !ct_graph_find_input(graph, c->streams[i]))
                rc =
                    ct_graph_input_tensor(graph, c->streams[i], s ? s->ndim + 1 : 0, shape, &value);
        }
    return rc;
}

static bool is_only_filled(const struct ct_value *v)
{
    ct_for_each_use (use, v)
        if (use->op->section->part != CT_PART_INIT)
            return false;
    return true;
}

/* Weights of a second set that no fetch depends on, such as those of losses that the trained pass
   alone has, take no memory. */
static void drop_unused(struct ct_graph *graph)
{
    bool sets = false;

    for (size_t i = 0; i < graph->value_count; i++)
        sets |= graph->values[i]->set != NULL;
    if (!sets)
        return;
    ct_graph_sweep(graph);
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->set && is_only_filled(graph->values[i]))
            ct_for_each_use_safe (use, graph->values[i])
                ct_graph_remove(graph, use->op);
    ct_graph_sweep(graph);
}

int ct_objective_build(struct ct_objective *o)
{
    int rc;

    o->graph->counts = o->ops->counts;
    rc = o->ops->build(o);
    if (rc == 0)
        rc = check_fetch(o->graph, "loss", 0);
    if (rc == 0 && !ct_graph_fetched_over(o->graph, "loss"))
        rc = ct_fail(CT_EINVAL, "nothing divides its \"loss\": fetch it with ct_graph_fetch_mean");
    if (rc == 0)
        rc = declare_counted(o->graph, o->request->batch);
    if (rc == 0)
        drop_unused(o->graph);
    return rc;
}
