/*
 * The inputs of a graph, found among the streams of its data, what is counted there, and what the
 * run makes.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/option.h>

#define STREAM(named, says)                                                                        \
    {                                                                                              \
        .size = sizeof(struct ct_data_stream), .name = named, .dtype = CT_I32, .ndim = 1,          \
        .summary = says                                                                            \
    }

const struct ct_data_stream ct_default_streams[] = {
    STREAM("tokens", "the tokens"),
    STREAM("labels", "the token that follows each; -100 where none counts"),
    STREAM("documents", "ids that change where a document begins"),
    {0},
};

static const char *const labels[] = {"labels", NULL};

const struct ct_count ct_default_counts[] = {
    {.size = sizeof(struct ct_count),
     .name = "valid_tokens",
     .summary = "labels of the step that count, on this rank",
     .streams = labels,
     .count = ct_count_unmasked},
    {0},
};

/* Inputs that the run makes itself. */
static const struct made {
    const char *name;
    enum ct_role role;
    enum ct_dtype dtype;
    bool trains, generates; /* where it is fed */
} made[] = {
    {"positions", CT_ROLE_INPUT, CT_I32, true, true},
    {"ordinals", CT_ROLE_INPUT, CT_I32, true, false},
    {"slots", CT_ROLE_INPUT, CT_I32, false, true},
    {"lr", CT_ROLE_SCALAR, CT_F64, true, false},
    {"step", CT_ROLE_SCALAR, CT_F64, true, false},
    {"loss_limit", CT_ROLE_SCALAR, CT_F64, true, false},
    {"norm_limit", CT_ROLE_SCALAR, CT_F64, true, false},
};

double ct_count_unmasked(const void *const *data, int64_t elements)
{
    const int32_t *label = data[0];
    int64_t count = 0;

    for (int64_t i = 0; i < elements; i++)
        count += label[i] != CT_MASKED;
    return (double)count;
}

static const struct made *find_made(const char *name)
{
    for (size_t i = 0; i < CT_COUNT(made); i++)
        if (!strcmp(made[i].name, name))
            return &made[i];
    return NULL;
}

bool ct_input_is_made(const char *name)
{
    return find_made(name);
}

static bool is_fed(const struct ct_value *v)
{
    return v->role == CT_ROLE_INPUT || v->role == CT_ROLE_SCALAR;
}

/* ---- what feeds an input ---- */

static const struct ct_data_stream *streams(const struct ct_graph *graph)
{
    return graph->streams ? graph->streams : ct_default_streams;
}

const struct ct_count *ct_graph_counts(const struct ct_graph *graph)
{
    return graph->counts ? graph->counts : ct_default_counts;
}

const struct ct_data_stream *ct_graph_find_stream(const struct ct_graph *graph, const char *name)
{
    for (const struct ct_data_stream *s = streams(graph); s->name; s++)
        if (!strcmp(s->name, name))
            return s;
    return NULL;
}

const struct ct_data_stream *ct_graph_stream_ahead(const struct ct_graph *graph, const char *name,
                                                   int64_t *ahead)
{
    static const char between[] = "_ahead_";

    if (ct_graph_find_stream(graph, name))
        return NULL;
    for (const struct ct_data_stream *s = streams(graph); s->name; s++) {
        size_t size = strlen(s->name);
        const char *number = name + size + strlen(between);
        char *end;

        if (s->dtype != CT_I32 || s->ndim != 1 || s->sequence ||
            strncmp(name, s->name, size) != 0 ||
            strncmp(name + size, between, strlen(between)) != 0)
            continue;
        *ahead = strtoll(number, &end, 10);
        if (*number >= '1' && *number <= '9' && !*end)
            return s;
    }
    return NULL;
}

/* An input as it must be declared. */
struct wanted {
    enum ct_role role;
    enum ct_dtype dtype;
    int ndim;
    int64_t shape[CT_MAX_DIMS]; /* 0: any */
    int sequence;
};

static bool find(const struct ct_graph *graph, const char *name, struct wanted *w)
{
    const struct ct_data_stream *s = ct_graph_find_stream(graph, name);
    const struct made *m = find_made(name);
    int64_t ahead;

    if (!s)
        s = ct_graph_stream_ahead(graph, name, &ahead);
    for (const struct ct_count *c = ct_graph_counts(graph); c->name; c++)
        if (!strcmp(c->name, name)) {
            *w = (struct wanted){CT_ROLE_SCALAR, CT_F32, 0, {0}, -1};
            return true;
        }
    if (m) {
        bool input = m->role == CT_ROLE_INPUT;

        *w = (struct wanted){m->role, m->dtype, input ? 2 : 0, {0}, input ? 1 : -1};
        return true;
    }
    if (!s)
        return false;
    *w = (struct wanted){CT_ROLE_INPUT, s->dtype, s->ndim + 1, {0}, 1};
    if (graph->streams) {
        memcpy(w->shape + 1, s->shape, sizeof(*s->shape) * (size_t)s->ndim);
        w->sequence = s->sequence < 0 ? -1 : s->sequence + 1;
    }
    return true;
}

/* Whether something is counted in a stream of that name, which the data then has to have. */
static bool is_counted_in(const struct ct_graph *graph, const char *name)
{
    for (const struct ct_count *c = ct_graph_counts(graph); c->name; c++)
        for (size_t i = 0; c->streams && c->streams[i]; i++)
            if (!strcmp(c->streams[i], name))
                return true;
    return false;
}

static int unknown(const struct ct_graph *graph, const char *name)
{
    int code = is_counted_in(graph, name) ? CT_ECONFIG : CT_EINVAL;
    struct ct_arena scratch = {0};
    const char **names = NULL, *list = "";
    size_t count = 0, room = 0, fed;

    for (const struct ct_data_stream *s = streams(graph); s->name; s++) {
        names = ct_arena_grow(&scratch, names, &room, count + 1, sizeof(*names));
        names[count++] = s->name;
        list = ct_arena_printf(&scratch, "%s%s%s", list, *list ? ", " : "", s->name);
    }
    fed = count;
    for (const struct ct_count *c = ct_graph_counts(graph); c->name; c++) {
        names = ct_arena_grow(&scratch, names, &room, count + 1, sizeof(*names));
        names[count++] = c->name;
    }
    names = ct_arena_grow(&scratch, names, &room, count + CT_COUNT(made), sizeof(*names));
    for (size_t i = 0; i < CT_COUNT(made); i++)
        if (made[i].trains)
            names[count++] = made[i].name;
    for (size_t i = fed; i < count; i++)
        list = ct_arena_printf(&scratch, "%s%s%s", list, i == fed ? "; the run makes " : ", ",
                               names[i]);
    ct_fail(code, "nobody feeds an input \"%s\"; the data source has %s%s", name, list,
            ct_did_you_mean(name, names, count));
    ct_arena_finish(&scratch);
    return code;
}

struct ct_value *ct_graph_find_input(const struct ct_graph *graph, const char *name)
{
    struct ct_value *v = ct_graph_find(graph, name);

    return v && is_fed(v) ? v : NULL;
}

/* ---- declaring ---- */

static const char *shape_text(struct ct_arena *scratch, int ndim, const int64_t *shape)
{
    const char *text = "[batch";

    for (int d = 1; d < ndim; d++)
        text = shape[d] ? ct_arena_printf(scratch, "%s, %lld", text, (long long)shape[d])
                        : ct_arena_printf(scratch, "%s, seq_len", text);
    return ct_arena_printf(scratch, "%s]", text);
}

/* The stream as the data source has it, and the declaration. */
static int check_shape(const struct wanted *w, const char *name, int ndim, const int64_t *shape)
{
    struct ct_arena scratch = {0};
    bool same = ndim == w->ndim;

    for (int d = 1; same && d < ndim; d++)
        same = !w->shape[d] || w->shape[d] == shape[d];
    if (same)
        return 0;
    ct_fail(CT_EINVAL, "input \"%s\" was declared as %s, but it is %s", name,
            shape_text(&scratch, ndim, shape), shape_text(&scratch, w->ndim, w->shape));
    ct_arena_finish(&scratch);
    return CT_EINVAL;
}

static int check_same(const struct ct_value *v, const struct wanted *w, const int64_t *shape)
{
    if (v->role == w->role && v->dtype == w->dtype && v->ndim == w->ndim &&
        (!w->ndim || !memcmp(v->shape, shape, sizeof(*shape) * (size_t)w->ndim)))
        return 0;
    return ct_fail(CT_EINVAL, "input \"%s\" was declared before with another shape or dtype",
                   v->name);
}

int ct_graph_input_tensor(struct ct_graph *graph, const char *name, int ndim, const int64_t *shape,
                          struct ct_value **value)
{
    struct ct_value *other = ct_graph_find(graph, name);
    struct wanted w;
    int rc;

    if (!find(graph, name, &w))
        return unknown(graph, name);
    if (w.role == CT_ROLE_INPUT && (rc = check_shape(&w, name, ndim, shape)) < 0)
        return rc;
    if (other && is_fed(other)) {
        *value = other;
        return check_same(other, &w, shape);
    }
    if (other && other->role != CT_ROLE_TEMP)
        return ct_fail(CT_EINVAL, "a %s is called \"%s\", which is the name of an input",
                       other->role == CT_ROLE_PARAM ? "parameter" : "state", name);
    if (other)
        ct_value_rename(graph, other, ct_arena_printf(graph->arena, "%s.made", name));
    *value = ct_graph_source(graph, w.role, name, w.dtype, w.ndim, shape);
    if (w.sequence != (w.ndim > 1 ? 1 : -1))
        (*value)->sequence = w.sequence;
    return 0;
}

int ct_graph_input(struct ct_graph *graph, const char *name, const int64_t *shape,
                   struct ct_value **value)
{
    return ct_graph_input_tensor(graph, name, 2, shape, value);
}

struct ct_value *ct_input_tensor(struct ct_builder *b, const char *name, int ndim,
                                 const int64_t *shape)
{
    struct ct_value *value = NULL;

    if (b->status < 0)
        return NULL;
    b->status = ct_graph_input_tensor(b->graph, name, ndim, shape, &value);
    return b->status < 0 ? NULL : value;
}

struct ct_value *ct_input(struct ct_builder *b, const char *name, const int64_t *shape)
{
    return ct_input_tensor(b, name, 2, shape);
}

/* ---- sequences ---- */

int ct_input_sequence(const struct ct_value *input)
{
    if (input->role != CT_ROLE_INPUT || input->sequence < 0)
        return -1;
    if (input->sequence)
        return input->sequence;
    return input->ndim > 1 ? 1 : -1;
}

struct ct_value *ct_graph_sequence_input(const struct ct_graph *graph)
{
    for (size_t i = 0; i < graph->value_count; i++)
        if (ct_input_sequence(graph->values[i]) > 0)
            return graph->values[i];
    return NULL;
}

struct ct_sharding ct_graph_sequence_sharding(const struct ct_graph *graph)
{
    const struct ct_value *input = ct_graph_sequence_input(graph);
    struct ct_sharding sharding = {0};

    for (int d = 0; input && d < 2; d++) {
        int from = d ? ct_input_sequence(input) : 0;

        sharding.count[d] = input->sharding.count[from];
        memcpy(sharding.axis[d], input->sharding.axis[from], sizeof(sharding.axis[d]));
    }
    return sharding;
}

int64_t ct_graph_seq_len(const struct ct_graph *graph)
{
    const struct ct_value *input = ct_graph_sequence_input(graph);

    return input ? input->shape[ct_input_sequence(input)] : 0;
}

int64_t ct_graph_batch(const struct ct_graph *graph)
{
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_INPUT && graph->values[i]->ndim)
            return graph->values[i]->shape[0];
    return 0;
}

/* ---- the whole graph ---- */

static bool is_fed_where(const char *name, bool trains)
{
    const struct made *m = find_made(name);

    if (m)
        return trains ? m->trains : m->generates;
    return trains || !strcmp(name, "tokens");
}

int ct_graph_check_inputs(const struct ct_graph *graph, bool all)
{
    for (size_t i = 0; i < graph->value_count; i++) {
        const struct ct_value *v = graph->values[i];
        struct wanted w;

        if (!is_fed(v))
            continue;
        if (!find(graph, v->name, &w))
            return unknown(graph, v->name);
        if (v->role != w.role || v->dtype != w.dtype || v->ndim != w.ndim)
            return ct_fail(CT_EINVAL, "input \"%s\" has %d dimensions of %s, not %d of %s", v->name,
                           v->ndim, ct_dtype_name(v->dtype), w.ndim, ct_dtype_name(w.dtype));
        if (!is_fed_where(v->name, all))
            return ct_fail(CT_EINVAL, "nobody feeds the input \"%s\" where a model %s", v->name,
                           all ? "trains" : "generates");
    }
    return 0;
}
