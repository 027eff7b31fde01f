/*
 * The table of a run's inputs, and the graph sources that represent them.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/option.h>

const struct ct_input ct_inputs[] = {
    {"tokens", CT_ROLE_INPUT, CT_I32, "the tokens"},
    {"labels", CT_ROLE_INPUT, CT_I32, "the token that follows each; -100 where none counts"},
    {"documents", CT_ROLE_INPUT, CT_I32, "ids that change where a document begins"},
    {"positions", CT_ROLE_INPUT, CT_I32, "the position of each token in its sequence"},
    {"valid_tokens", CT_ROLE_SCALAR, CT_F32, "labels of the step that count, on this rank"},
    {"lr", CT_ROLE_SCALAR, CT_F64, "the learning rate of the step"},
    {"step", CT_ROLE_SCALAR, CT_F64, "1 for the first update that is applied"},
    {0},
};

static bool is_fed(const struct ct_value *v)
{
    return v->role == CT_ROLE_INPUT || v->role == CT_ROLE_SCALAR;
}

static const struct ct_input *find(const char *name)
{
    for (const struct ct_input *i = ct_inputs; i->name; i++)
        if (!strcmp(i->name, name))
            return i;
    return NULL;
}

static int unknown(const char *name)
{
    const char *names[CT_COUNT(ct_inputs)];
    size_t count = 0;

    for (const struct ct_input *i = ct_inputs; i->name; i++)
        names[count++] = i->name;
    return ct_fail(CT_EINVAL,
                   "nobody feeds an input \"%s\"; a run feeds tokens, labels, documents, "
                   "positions, valid_tokens, lr and step%s",
                   name, ct_did_you_mean(name, names, count));
}

struct ct_value *ct_graph_find_input(const struct ct_graph *graph, const char *name)
{
    struct ct_value *v = ct_graph_find(graph, name);

    return v && is_fed(v) ? v : NULL;
}

static int check_same(const struct ct_value *v, const struct ct_input *input, const int64_t *shape)
{
    int ndim = input->role == CT_ROLE_INPUT ? 2 : 0;

    if (v->role == input->role && v->dtype == input->dtype && v->ndim == ndim &&
        (!ndim || !memcmp(v->shape, shape, sizeof(*shape) * 2)))
        return 0;
    return ct_fail(CT_EINVAL, "input \"%s\" was declared before with another shape or dtype",
                   input->name);
}

int ct_graph_input(struct ct_graph *graph, const char *name, const int64_t *shape,
                   struct ct_value **value)
{
    const struct ct_input *input = find(name);
    struct ct_value *other = ct_graph_find(graph, name);

    if (!input)
        return unknown(name);
    if (other && is_fed(other)) {
        *value = other;
        return check_same(other, input, shape);
    }
    if (other && other->role != CT_ROLE_TEMP)
        return ct_fail(CT_EINVAL, "a %s is called \"%s\", which is the name of an input",
                       other->role == CT_ROLE_PARAM ? "parameter" : "state", name);
    if (other)
        ct_value_rename(graph, other, ct_arena_printf(graph->arena, "%s.made", name));
    *value = ct_graph_source(graph, input->role, name, input->dtype,
                             input->role == CT_ROLE_INPUT ? 2 : 0, shape);
    return 0;
}

struct ct_value *ct_input(struct ct_builder *b, const char *name, const int64_t *shape)
{
    struct ct_value *value = NULL;

    if (b->status < 0)
        return NULL;
    b->status = ct_graph_input(b->graph, name, shape, &value);
    return b->status < 0 ? NULL : value;
}

static bool fed_to_generate(const char *name)
{
    return !strcmp(name, "tokens") || !strcmp(name, "positions");
}

int ct_graph_check_inputs(const struct ct_graph *graph, bool all)
{
    for (size_t i = 0; i < graph->value_count; i++) {
        const struct ct_value *v = graph->values[i];
        const struct ct_input *input = is_fed(v) ? find(v->name) : NULL;

        if (!is_fed(v))
            continue;
        if (!input)
            return unknown(v->name);
        if (v->role != input->role || v->dtype != input->dtype ||
            v->ndim != (input->role == CT_ROLE_INPUT ? 2 : 0))
            return ct_fail(CT_EINVAL, "input \"%s\" has %d dimensions of %s, not %d of %s", v->name,
                           v->ndim, ct_dtype_name(v->dtype), input->role == CT_ROLE_INPUT ? 2 : 0,
                           ct_dtype_name(input->dtype));
        if (!all && !fed_to_generate(v->name))
            return ct_fail(CT_EINVAL, "nobody feeds the input \"%s\" where a model generates",
                           v->name);
    }
    return 0;
}
