#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/rng.h>

#include "sample.h"

const struct sample samples[] = {
    {"embedding", NULL, "index[2,4] real[6,4]"},
    {"embedding_grad", "rows=6", "real[2,4,4] index[2,4]"},
    {"linear", NULL, "real[4,6] real[2,6]"},
    {"linear", NULL, "real[2,4,6] real[8,6] real[2,6] real[4,6]", 7},
    {"linear_dx", NULL, "real[4,8] real[8,6]"},
    {"linear_dx", NULL, "real[2,4,8] real[2,4,2] real[8,6] real[2,6]"},
    {"linear_dw", NULL, "real[2,4,6] real[2,4,8] real[2,4,2]"},
    {"rms_norm", "eps=0.01", "real[2,4,6] real[6]"},
    {"add_rms_norm", "eps=0.01", "real[2,4,6] real[2,4,6] real[6]", 3},
    {"rms_norm_grad", NULL, "real[2,4,6] real[2,4,6] real[6] statistic[2,4] real[2,4,6]"},
    {"rms_norm_grad", NULL, "real[2,4,6] real[2,4,6] real[6] statistic[2,4] -"},
    {"add", NULL, "real[2,4] real[2,4]"},
    {"add", NULL, "real[] real[]"},
    {"rope", "theta=100", "real[2,4,2,6] position[2,4]"},
    {"rope", "theta=100 factor=8 original_max_position=32", "real[2,4,2,6] -"},
    {"rope", "inverse=true", "real[2,4,2,2] position[2,4]"},
    {"attention", NULL, "real[2,6,4,4] real[2,6,2,4] real[2,6,2,4] document[2,6]"},
    {"attention", NULL, "real[2,5,4,2] real[2,5,4,2] real[2,5,4,2] -"},
    {"attention", NULL, "real[2,5,6,2] real[2,5,2,2] real[2,5,2,2] -"},
    {"attention", NULL,
     "real[2,4,4,4] real[2,6,2,4] real[2,6,2,4] document[2,4] document[2,6] position[2,4] "
     "position[2,6]"},
    {"attention", NULL, "real[2,6,2,4] real[2,4,2,4] real[2,4,2,4] document[2,6] document[2,4]"},
    {"attention", NULL, "real[2,4,2,2] real[2,3,2,2] real[2,3,2,2] - - position[2,4]"},
    {"attention", "blockwise=true",
     "real[2,8,4,2] real[2,8,2,2] real[2,8,2,2] document[2,8] document[2,8] position[2,8] "
     "position[2,8]"},
    {"attention_grad", NULL,
     "real[2,4,4,4] real[2,4,4,4] real[2,6,2,4] real[2,6,2,4] real[2,4,4,4] statistic[2,4,4] "
     "document[2,4] document[2,6] position[2,4] position[2,6]"},
    {"attention_grad", "blockwise=true",
     "real[2,8,2,2] real[2,8,2,2] real[2,8,2,2] real[2,8,2,2] real[2,8,2,2] statistic[2,2,8] "
     "document[2,8] document[2,8]"},
    {"ring_attention", NULL, "real[2,6,4,4] real[2,6,2,4] real[2,6,2,4] document[2,6] -",
     .replaced = 't'},
    {"ring_attention", NULL, "real[2,4,2,2] real[2,4,2,2] real[2,4,2,2] - position[2,4]",
     .replaced = 't'},
    {"ring_attention_grad", NULL,
     "real[2,6,4,4] real[2,6,4,4] real[2,6,2,4] real[2,6,2,4] real[2,6,4,4] statistic[2,4,6] "
     "document[2,6] -",
     .replaced = 't'},
    {"attention_merge", NULL, "real[2,4,2,4] statistic[2,2,4] real[2,4,2,4] statistic[2,2,4]"},
    {"attention_grad", NULL,
     "real[2,6,4,4] real[2,6,4,4] real[2,6,2,4] real[2,6,2,4] real[2,6,4,4] statistic[2,4,6] "
     "document[2,6]"},
    {"attention_grad", NULL,
     "real[2,6,4,4] real[2,6,4,4] real[2,6,4,4] real[2,6,4,4] real[2,6,4,4] statistic[2,4,6] -"},
    {"attention", "causal=false", "real[2,3,4,2] real[2,5,2,2] real[2,5,2,2] -"},
    {"attention", "window=2 scale=0.3", "real[2,6,2,2] real[2,6,2,2] real[2,6,2,2] document[2,6]"},
    {"attention", "causal=false window=2", "real[1,6,2,2] real[1,6,2,2] real[1,6,2,2] -"},
    {"bias", NULL, "real[2,4,6] real[6]"},
    {"bias", NULL, "real[6] real[6]"},
    {"bias_grad", NULL, "real[2,4,6]"},
    {"layer_norm", "eps=0.01", "real[2,4,6] real[6] real[6]"},
    {"layer_norm", "eps=0.01", "real[2,4,6] real[6]"},
    {"layer_norm_grad", NULL, "real[2,4,6] real[2,4,6] real[6] statistic[2,4] statistic[2,4]"},
    {"mul", NULL, "real[2,4,6] real[2,4,6]"},
    {"scale", "factor=-3", "real[2,4]"},
    {"silu", NULL, "real[2,4,6]"},
    {"silu_grad", NULL, "real[2,4,6] real[2,4,6]"},
    {"gelu", NULL, "real[2,4,6]"},
    {"gelu", "approximate=tanh", "real[2,4,6]"},
    {"gelu_grad", NULL, "real[2,4,6] real[2,4,6]"},
    {"gelu_grad", "approximate=tanh", "real[2,4,6] real[2,4,6]"},
    {"softmax", NULL, "real[2,4,6]"},
    {"softmax_grad", NULL, "real[2,4,6] positive[2,4,6]"},
    {"top_k", "k=2", "real[2,3,5]"},
    {"top_k", "k=3 normalised=false", "real[4,4]"},
    {"top_k_grad", "k=2", "statistic[3,2] index[3,2] real[3,6]"},
    {"experts", NULL,
     "real[2,3,4] statistic[2,3,2] index[2,3,2] real[6,2,4] real[6,2,4] real[6,4,2]"},
    {"experts_dx", NULL,
     "real[3,4] real[3,4] statistic[3,2] index[3,2] real[6,2,4] real[6,2,4] real[6,4,2]"},
    {"experts_dw", NULL,
     "real[3,4] real[3,4] statistic[3,2] index[3,2] real[6,2,4] real[6,2,4] real[6,4,2]"},
    {"swiglu", NULL, "real[2,4,6] real[2,4,6]"},
    {"swiglu_grad", NULL, "real[2,4,6] real[2,4,6] real[2,4,6]"},
    {"view", "shape=2,4,2,4", "real[2,4,8]"},
    {"view", "shape=2,8,4", "real[2,4,2,4]"},
    {"view", "shape=2,4", "real[2,4]"},
    {"narrow", "dim=1 from=1 size=2", "real[2,4,3]"},
    {"narrow", "from=1 size=0", "real[2]"},
    {"concat", "dim=1", "real[2,4,3] real[2,1,3] real[2,2,3]"},
    {"concat", NULL, "real[2]"},
    {"cast", "dtype=float32", "real[2,4]", .step = 0.5},
    {"cast", "dtype=float64", "real[2,4]"},
    {"linear_cross_entropy", NULL, "real[2,4,4] real[6,4] label[2,4]"},
    {"linear_cross_entropy_grad", NULL, "positive[] real[2,4,4] real[6,4] label[2,4]"},
    {"cross_entropy", NULL, "real[2,4,6] label[2,4]"},
    {"cross_entropy_grad", NULL, "positive[] real[2,4,6] label[2,4] statistic[2,4]"},
    {"cross_entropy_partial", NULL, "real[2,4,6] label[2,4]", .joint = true},
    {"cross_entropy_partial", "shards=2", "real[2,4,6] label[2,4]", .joint = true},
    {"cross_entropy_partial_grad", NULL,
     "statistic[2,4,2,3] statistic[2,4,2,3] real[2,4,6] label[2,4]"},
    {"cross_entropy_merge", NULL, "statistic[2,4,3,3] label[2,4]", .joint = true},
    {"cross_entropy_merge_grad", NULL, "positive[] statistic[2,4,2,3] label[2,4] statistic[2,4]"},
    {"squared_norm", NULL, "real[4,6] real[2,2]"},
    {"clip_coefficient", "max_norm=0.5", "square[] square[]"},
    {"reciprocal", NULL, "positive[2,4]"},
    {"load", NULL, "offloaded[2,4]"},
    {"store", NULL, "offloaded[4,6] real[4,6]"},
    {"offload", NULL, "real[2,4]"},
    {"init_normal", "std=2 truncate=1.5 seed=3", "real[4,6]"},
    {"init_constant", "value=2", "real[4,6]"},
    {"init_uniform", "low=-1 high=2 seed=3", "real[4,6]"},
    {"float8_amax", "grid=1,1,1", "real[2,4,6]"},
    {"float8_amax", "grid=2,4,1", "real[2,4,6]"},
    {"float8_amax", "grid=2,2,6", "real[2,4,6]"},
    {"float8_scale", "rule=power_of_two", "factor[4,6]"},
    {"float8_scale", "rule=mx_rceil", "factor[4,6]"},
    {"float8_quantise", NULL, "real[2,4,6] factor[1,1,6]"},
    {"float8_quantise", "dtype=float8_e5m2", "real[2,4,6] factor[2,4,2]"},
    {"linear_float8", "dtype=float64", "real[2,3,4] real[5,4]"},
    {"linear_float8_dx", "dtype=float64", "real[2,3,6] real[6,4] factor[2,3,2] factor[2,4]"},
    {"linear_float8_dx", "dtype=float64", "real[2,3,6] real[6,4] factor[2,3,1] factor[1,1]"},
    {"linear_float8_dw", "dtype=float64", "real[2,4,6] real[2,4,3] factor[1,1,6] factor[1,1,3]"},
    {NULL},
};

bool next_operand(const char **text, char word[32], int *rank, int64_t *shape)
{
    const char *p = *text + strspn(*text, " ");
    size_t n = strcspn(p, " [");

    if (!*p)
        return false;
    assert(n < 32);
    memcpy(word, p, n);
    word[n] = '\0';
    p += n;
    *rank = strcmp(word, "-") ? 0 : -1;
    if (*p == '[')
        for (p++; *p != ']'; p += *p == ',') {
            char *end;

            shape[(*rank)++] = strtoll(p, &end, 10);
            p = end;
        }
    *text = p + (*p == ']');
    return true;
}

struct ct_tensor *machine_tensor(struct machine *m, const struct ct_value *v)
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

bool is_real(const char *fill)
{
    return !strcmp(fill, "real") || !strcmp(fill, "positive") || !strcmp(fill, "statistic") ||
           !strcmp(fill, "square") || !strcmp(fill, "factor") || !strcmp(fill, "offloaded");
}

/* Of an input filled so, in a call that computes in `compute`. */
static enum ct_dtype dtype_of(const char *fill, enum ct_dtype compute)
{
    if (!is_real(fill))
        return CT_I32;
    if (!strcmp(fill, "square"))
        return CT_F64;
    if (!strcmp(fill, "factor"))
        return CT_F32;
    return strcmp(fill, "statistic") || compute == CT_F64 ? compute : CT_F32;
}

static double element(const char *fill, uint64_t stream, int64_t i)
{
    double uniform = (double)ct_uniform(ct_philox(7, stream, (uint64_t)i).v[0]);

    if (!strcmp(fill, "real"))
        return (double)ct_normal(7, stream, (uint64_t)i);
    if (is_real(fill))
        return 0.5 + uniform;
    if (!strcmp(fill, "label") && i % 3 == 1)
        return -100;
    if (!strcmp(fill, "document"))
        return (double)(i / 4);
    if (!strcmp(fill, "position"))
        return (double)(i * 5 % 7);
    assert(!strcmp(fill, "index") || !strcmp(fill, "label"));
    return (double)(int)(uniform * 6);
}

void machine_fill(struct machine *m, const struct ct_value *value, const char *fill)
{
    struct ct_tensor *t = machine_tensor(m, value);

    for (int64_t i = 0; i < ct_tensor_count(t); i++)
        ct_tensor_store(t, i, element(fill, value->id + 1, i));
}

static int parse_attrs(struct machine *m, const struct ct_op_type *type, const char *text,
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

        *value++ = '\0';
        rc = ct_attribute_set(NULL, type->attrs, *attrs, word, value, "sample");
    }
    return rc;
}

static struct ct_value *source(struct machine *m, const char *fill, enum ct_dtype dtype, int rank,
                               const int64_t *shape, int i)
{
    struct ct_value *v =
        ct_graph_source(m->graph, is_real(fill) ? CT_ROLE_PARAM : CT_ROLE_INPUT,
                        ct_arena_printf(&m->arena, "in%d", i), dtype_of(fill, dtype), rank, shape);

    v->space = strcmp(fill, "offloaded") ? CT_SPACE_DEVICE : CT_SPACE_HOST;
    machine_fill(m, v, fill);
    return v;
}

int machine_create(struct machine *m, const struct sample *sample, enum ct_dtype dtype)
{
    const struct ct_op_type *type = ct_op_find(sample->type);
    const char *p = sample->inputs;
    struct ct_value *in[16];
    int64_t shape[CT_MAX_DIMS];
    struct ct_builder b;
    char fill[32];
    int ins = 0, rank, rc;
    void *attrs;

    memset(m, 0, sizeof(*m));
    m->graph = ct_graph_create(&m->arena, sample->type);
    b = ct_builder_at_end(m->graph, CT_PART_F, "");
    while (next_operand(&p, fill, &rank, shape)) {
        in[ins] = rank < 0 ? NULL : source(m, fill, dtype, rank, shape, ins);
        ins++;
    }
    rc = parse_attrs(m, type, sample->attrs, &attrs);
    if (rc < 0)
        return rc;
    m->op = ct_emit(&b, sample->type, NULL, in, ins, attrs);
    return b.status;
}

void machine_finish(struct machine *m)
{
    ct_arena_finish(&m->arena);
}

int launch_on(const struct ct_mesh *mesh, int64_t rank, const struct ct_op *op,
              const struct ct_tensor *in, const struct ct_tensor *out, uint32_t accumulate)
{
    return op->type->reference(&(struct ct_launch){.op = op,
                                                   .in = in,
                                                   .out = out,
                                                   .ins = op->ins,
                                                   .outs = op->outs,
                                                   .accumulate = accumulate,
                                                   .rank = rank,
                                                   .mesh = mesh});
}

int launch(const struct ct_op *op, const struct ct_tensor *in, const struct ct_tensor *out,
           uint32_t accumulate)
{
    return launch_on(NULL, 0, op, in, out, accumulate);
}

int machine_run(struct machine *m, const struct ct_op *op)
{
    struct ct_tensor in[16] = {0}, out[16] = {0};

    assert(op->ins <= 16 && op->outs <= 16);
    for (int i = 0; i < op->ins; i++)
        if (op->in[i])
            in[i] = *machine_tensor(m, op->in[i]);
    for (int i = 0; i < op->outs; i++)
        out[i] = *machine_tensor(m, op->out[i]);
    return launch(op, in, out, 0);
}

int machine_run_from(struct machine *m, const struct ct_op *op)
{
    int rc = 0;

    for (; rc == 0 && op; op = op->next)
        rc = machine_run(m, op);
    return rc;
}
