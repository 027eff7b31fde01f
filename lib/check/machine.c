/*
 * Machines: graphs that run op by op on dense host memory.
 */
#include <assert.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/rng.h>
#include <ctitan/text.h>

#include "machine.h"

bool ct_sample_operand(const char **text, char word[32], int *ndim, int64_t *shape)
{
    const char *p = *text + strspn(*text, " ");
    size_t n = strcspn(p, " [");

    if (!*p)
        return false;
    assert(n < 32);
    memcpy(word, p, n);
    word[n] = '\0';
    p += n;
    *ndim = strcmp(word, "-") ? 0 : -1;
    if (*p == '[')
        for (p++; *p && *p != ']'; p += *p == ',') {
            char *end;

            assert(*ndim < CT_MAX_DIMS);
            shape[(*ndim)++] = strtoll(p, &end, 10);
            assert(end > p);
            p = end;
        }
    *text = p + (*p == ']');
    return true;
}

/* A way to fill inputs: its name, whether it is floating-point, the dtype (CT_DTYPE_COUNT: the one
   under test, or float32 if that is narrower and `wide`), an element, and whether it is taken as
   given: its gradient is no derivative. */
struct fill {
    const char *name;
    bool real, wide;
    enum ct_dtype dtype;
    double (*element)(uint64_t stream, int64_t i);
    bool given;
};

static double uniform(uint64_t stream, int64_t i)
{
    return (double)ct_uniform(ct_philox(7, stream, (uint64_t)i).v[0]);
}

static double normal(uint64_t stream, int64_t i)
{
    return (double)ct_normal(7, stream, (uint64_t)i);
}

static double positive(uint64_t stream, int64_t i)
{
    return 0.5 + uniform(stream, i);
}

/* Where a formula has different forms on both sides. */
static double zero(uint64_t stream, int64_t i)
{
    (void)stream, (void)i;
    return 0;
}

static double below_six(uint64_t stream, int64_t i)
{
    return (double)(int)(uniform(stream, i) * 6);
}

static double label(uint64_t stream, int64_t i)
{
    return i % 3 == 1 ? -100 : below_six(stream, i);
}

static double zero_or_one(uint64_t stream, int64_t i)
{
    return (double)(int)(uniform(stream, i) * 2);
}

static double document(uint64_t stream, int64_t i)
{
    (void)stream;
    return (double)(i / 4);
}

static double nibble(uint64_t stream, int64_t i)
{
    return (double)(int)(uniform(stream, i) * 16);
}

static double code(uint64_t stream, int64_t i)
{
    return (double)(int)(uniform(stream, i) * 256);
}

/* Boundaries fall inside of sequences of any length above 3. */
static double packed(uint64_t stream, int64_t i)
{
    (void)stream;
    return (double)(i / 3);
}

static double position(uint64_t stream, int64_t i)
{
    (void)stream;
    return (double)(i * 5 % 7);
}

static const struct fill fills[] = {
    {"real", true, false, CT_DTYPE_COUNT, normal},
    {"zero", true, false, CT_DTYPE_COUNT, zero},
    {"fixed", true, false, CT_DTYPE_COUNT, normal, true},
    {"positive", true, false, CT_DTYPE_COUNT, positive},
    {"statistic", true, true, CT_DTYPE_COUNT, positive},
    {"given", true, true, CT_DTYPE_COUNT, positive, true},
    {"square", true, false, CT_F64, positive},
    {"factor", true, false, CT_F32, positive},
    {"offloaded", true, false, CT_DTYPE_COUNT, positive},
    {"quantised", true, false, CT_E4M3, normal, true},
    {"nibble", false, false, CT_U4, nibble},
    {"code", false, false, CT_U8, code},
    {"index", false, false, CT_I32, below_six},
    {"small", false, false, CT_I32, zero_or_one},
    {"label", false, false, CT_I32, label},
    {"document", false, false, CT_I32, document},
    {"packed", false, false, CT_I32, packed},
    {"position", false, false, CT_I32, position},
};

static const struct fill *fill_find(const char *name)
{
    for (size_t i = 0; i < CT_COUNT(fills); i++)
        if (!strcmp(fills[i].name, name))
            return &fills[i];
    return NULL;
}

bool fill_has_gradient(const char *name)
{
    const struct fill *fill = fill_find(name);

    return fill && fill->real && fill->dtype != CT_F32 && !fill->given;
}

static enum ct_dtype dtype_of(const struct fill *fill, enum ct_dtype compute)
{
    if (fill->dtype != CT_DTYPE_COUNT)
        return fill->dtype;
    return fill->wide && compute != CT_F64 ? CT_F32 : compute;
}

struct ct_tensor *ct_trial_tensor(struct ct_trial *m, const struct ct_value *v)
{
    struct ct_tensor *t;

    m->memory = ct_arena_grow(&m->arena, m->memory, &m->room, v->id + 1, sizeof(*m->memory));
    t = &m->memory[v->id];
    if (!t->data)
        *t = ct_tensor_dense(
            ct_arena_alloc(&m->arena, (size_t)ct_shape_count(v->ndim, v->shape) * 8 + 8), v->dtype,
            v->ndim, v->shape);
    return t;
}

void ct_trial_fill(struct ct_trial *m, const struct ct_value *value, const char *name)
{
    struct ct_tensor *t = ct_trial_tensor(m, value);
    const struct fill *fill = fill_find(name);

    assert(fill);
    for (int64_t i = 0; i < ct_tensor_count(t); i++)
        ct_tensor_store(t, i, fill->element(value->id + 1, i));
}

static int parse_attrs(struct ct_trial *m, const struct ct_op_type *type, const char *text,
                       void **attrs)
{
    char *copy = ct_arena_strdup(&m->arena, text ? text : ""), *save = NULL;
    int rc = 0;

    *attrs = ct_arena_alloc(&m->arena, type->attrs_size + 1);
    if (type->attrs)
        rc = ct_attributes_reset(type->attrs, *attrs);
    for (char *word = strtok_r(copy, " ", &save); rc == 0 && word;
         word = strtok_r(NULL, " ", &save)) {
        char *value = strchr(word, '=');

        if (!value || !type->attrs)
            return ct_fail(CT_EINVAL, "sample of %s: %s: expected an attribute, KEY=VALUE",
                           type->name, word);
        *value++ = '\0';
        rc = ct_attribute_set(NULL, type->attrs, *attrs, word, value, "sample");
    }
    return rc;
}

static int source(struct ct_trial *m, const char *name, enum ct_dtype dtype, int ndim,
                  const int64_t *shape, int i, struct ct_value **value)
{
    const struct fill *fill = fill_find(name);

    if (!fill)
        return ct_fail(CT_EINVAL, "sample: there is no fill %s", name);
    *value =
        ct_graph_source(m->graph, fill->real ? CT_ROLE_PARAM : CT_ROLE_INPUT,
                        ct_arena_printf(&m->arena, "in%d", i), dtype_of(fill, dtype), ndim, shape);
    (*value)->space = strcmp(name, "offloaded") ? CT_SPACE_DEVICE : CT_SPACE_HOST;
    ct_trial_fill(m, *value, name);
    return 0;
}

int ct_trial_create(struct ct_trial *m, const struct ct_sample *sample, enum ct_dtype dtype)
{
    const struct ct_op_type *type = ct_op_find(sample->type);
    const char *p = sample->inputs;
    struct ct_value *in[CHECK_OPERANDS];
    int64_t shape[CT_MAX_DIMS];
    struct ct_builder b;
    char fill[32];
    int ins = 0, ndim, rc;
    void *attrs;

    memset(m, 0, sizeof(*m));
    if (!type)
        return CT_EINVAL;
    m->graph = ct_graph_create(&m->arena, sample->type);
    b = ct_builder_at_end(m->graph, CT_PART_F, "");
    while (ct_sample_operand(&p, fill, &ndim, shape)) {
        assert(ins < CHECK_OPERANDS);
        in[ins] = NULL;
        rc = ndim < 0 ? 0 : source(m, fill, dtype, ndim, shape, ins, &in[ins]);
        if (rc < 0)
            return rc;
        ins++;
    }
    rc = parse_attrs(m, type, sample->attrs, &attrs);
    if (rc < 0)
        return rc;
    m->op = ct_emit(&b, sample->type, NULL, in, ins, attrs);
    return b.status;
}

void ct_trial_finish(struct ct_trial *m)
{
    ct_arena_finish(&m->arena);
}

int launch(const struct ct_graph *graph, const struct ct_mesh *mesh, int64_t rank,
           const struct ct_op *op, const struct ct_tensor *in, const struct ct_tensor *out,
           uint32_t accumulate)
{
    return op->type->reference(&(struct ct_launch){.op = op,
                                                   .in = in,
                                                   .out = out,
                                                   .ins = op->ins,
                                                   .outs = op->outs,
                                                   .accumulate = accumulate,
                                                   .rank = rank,
                                                   .mesh = mesh,
                                                   .graph = graph});
}

int ct_trial_run(struct ct_trial *m, const struct ct_op *op)
{
    struct ct_tensor *in = ct_arena_array(&m->arena, struct ct_tensor, op->ins + op->outs + 1);
    struct ct_tensor *out = in + op->ins;

    if (!op->type->reference)
        return ct_fail(CT_EINVAL, "op %s has no reference kernel", op->type->name);
    for (int i = 0; i < op->ins; i++)
        if (op->in[i])
            in[i] = *ct_trial_tensor(m, op->in[i]);
    for (int i = 0; i < op->outs; i++)
        out[i] = *ct_trial_tensor(m, op->out[i]);
    return launch(m->graph, NULL, 0, op, in, out, 0);
}

int ct_trial_run_from(struct ct_trial *m, const struct ct_op *op)
{
    int rc = 0;

    for (; rc == 0 && op; op = op->next)
        rc = ct_trial_run(m, op);
    return rc;
}
