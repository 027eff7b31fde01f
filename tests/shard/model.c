#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/ops.h>
#include <ctitan/train.h>

#include "model.h"

#define POOL 32

struct model {
    struct ct_builder b;
    struct random shape; /* the same draws with and without a mesh */
    struct random split; /* for shardings only */
    bool meshed;
    int64_t batch, tokens, vocabulary;
    struct ct_value *ids, *labels, *documents, *positions;
    struct ct_value *pool[POOL]; /* activations [batch, tokens, features] */
    int count, names;
};

static const char *name(struct model *m, const char *what)
{
    return ct_arena_printf(m->b.graph->arena, "%s%d", what, m->names++);
}

static struct ct_value *source(struct model *m, enum ct_role role, const char *called,
                               enum ct_dtype dtype, int rank, const int64_t *shape)
{
    struct ct_value *v = ct_graph_source(m->b.graph, role, called, dtype, rank, shape);

    if (m->meshed)
        v->sharding = random_sharding(&m->split, &m->b.graph->mesh, rank,
                                      role == CT_ROLE_INPUT && dtype == CT_F64);
    return v;
}

static struct ct_sharding any_sharding(struct model *m, const struct ct_value *v)
{
    return random_sharding(&m->split, &m->b.graph->mesh, v->ndim, false);
}

/* Sometimes, and only on a mesh, the same value under another sharding. */
static struct ct_value *perhaps_moved(struct model *m, struct ct_value *v)
{
    struct ct_sharding to, gradient;
    bool given;

    if (!v || !m->meshed || !random_chance(&m->split, 30))
        return v;
    to = any_sharding(m, v);
    given = random_chance(&m->split, 50);
    if (given)
        gradient = any_sharding(m, v);
    return ct_redistribute(&m->b, ct_arena_printf(m->b.graph->arena, "%s.moved", v->name), v, &to,
                           given ? &gradient : NULL);
}

static struct ct_value *weight(struct model *m, int rank, int64_t rows, int64_t columns)
{
    struct ct_value *w =
        source(m, CT_ROLE_PARAM, name(m, "w"), CT_F64, rank, (int64_t[]){rows, columns});

    return perhaps_moved(m, w);
}

static int64_t features(const struct ct_value *x)
{
    return x->shape[x->ndim - 1];
}

static void keep(struct model *m, struct ct_value *x)
{
    if (x && m->count < POOL)
        m->pool[m->count++] = perhaps_moved(m, x);
}

static struct ct_value *pick(struct model *m)
{
    return m->pool[m->count - 1 - random_below(&m->shape, m->count < 3 ? m->count : 3)];
}

/* Another activation of x's shape; x itself if there is none. */
static struct ct_value *partner(struct model *m, struct ct_value *x)
{
    for (int i = 0; i < m->count; i++)
        if (features(m->pool[i]) == features(x))
            return m->pool[i];
    return x;
}

/* ---- layers ---- */

static void linear(struct model *m)
{
    struct ct_value *x = pick(m);

    keep(m, ct_linear(&m->b, name(m, "y"), x,
                      weight(m, 2, 1 + random_below(&m->shape, 8), features(x))));
}

static void gated(struct model *m)
{
    struct ct_value *x = pick(m), *y[2], *w[2];
    int64_t hidden = 1 + random_below(&m->shape, 8);

    for (int i = 0; i < 2; i++)
        w[i] = weight(m, 2, hidden, features(x));
    ct_linears(&m->b, (const char *const[]){name(m, "gate"), name(m, "up")}, x, w, 2, y);
    keep(m, ct_swiglu(&m->b, name(m, "swiglu"), y[0], y[1]));
}

static void norm(struct model *m)
{
    struct ct_value *x = pick(m), *r = partner(m, x), *sum;
    struct ct_value *w = weight(m, 1, features(x), 0);

    if (random_chance(&m->shape, 50)) {
        keep(m, ct_rms_norm(&m->b, name(m, "norm"), x, w, 0.1));
        return;
    }
    if (random_chance(&m->shape, 30)) {
        r = ct_linear(&m->b, name(m, "score"), x, weight(m, 2, 1, features(x)));
        r = ct_view(&m->b, name(m, "scores"), r, 2, (int64_t[]){m->batch, m->tokens});
        x = ct_rms_norm_plain(&m->b, name(m, "plain"), x, 0.1);
        keep(m, ct_scale_rows(&m->b, name(m, "scaled"), x, r));
        return;
    }
    x = ct_add_rms_norm(&m->b, name(m, "norm"), x, r, w, 0.1, &sum);
    keep(m, sum);
    keep(m, x);
}

static void add(struct model *m)
{
    struct ct_value *x = pick(m);

    keep(m, ct_add(&m->b, name(m, "sum"), x, partner(m, x)));
}

static void cast(struct model *m)
{
    keep(m, ct_cast(&m->b, name(m, "cast"), pick(m), CT_F64));
}

/* A product on [batch x tokens, features]. */
static void flat(struct model *m)
{
    struct ct_value *x = pick(m);
    int64_t n = 1 + random_below(&m->shape, 6), rows = m->batch * m->tokens;

    x = ct_view(&m->b, name(m, "flat"), x, 2, (int64_t[]){rows, features(x)});
    x = ct_linear(&m->b, name(m, "flat.y"), x, weight(m, 2, n, x ? features(x) : 1));
    keep(m, ct_view(&m->b, name(m, "unflat"), x, 3, (int64_t[]){m->batch, m->tokens, n}));
}

static struct ct_value *heads(struct model *m, struct ct_value *x, int64_t count, int64_t size)
{
    return ct_view(&m->b, name(m, "heads"), x, 4, (int64_t[]){m->batch, m->tokens, count, size});
}

static void attention(struct model *m)
{
    static const struct ct_rope rope = {.theta = 100,
                                        .factor = 1,
                                        .low_freq_factor = 1,
                                        .high_freq_factor = 4,
                                        .original_max_position = 8};
    int64_t groups = 1 + random_below(&m->shape, 4),
            count = groups * (1 + random_below(&m->shape, 2));
    int64_t size = 2 + 2 * random_below(&m->shape, 2), of_v = 1 + random_below(&m->shape, 4);
    bool documents = random_chance(&m->shape, 50), positions = random_chance(&m->shape, 50);
    struct ct_value *x = pick(m), *w[3], *y[3];
    struct ct_value *ids = documents ? m->documents : NULL;

    for (int i = 0; i < 3; i++)
        w[i] = weight(m, 2, (i ? groups : count) * (i < 2 ? size : of_v), features(x));
    ct_linears(&m->b, (const char *const[]){name(m, "q"), name(m, "k"), name(m, "v")}, x, w, 3, y);
    for (int i = 0; i < 3; i++)
        y[i] = heads(m, y[i], i ? groups : count, i < 2 ? size : of_v);
    for (int i = 0; i < 2; i++)
        y[i] = ct_rope(&m->b, name(m, "rope"), y[i], positions ? m->positions : NULL, &rope);
    if (random_chance(&m->shape, 30))
        y[0] = ct_temper(&m->b, name(m, "temper"), y[0], positions ? m->positions : NULL,
                         &(struct ct_temper){0.5, 2, 1});
    if (random_chance(&m->shape, 30))
        ids = ct_document_chunks(&m->b, name(m, "chunks"), m->ids, positions ? m->positions : NULL,
                                 ids, &(struct ct_document_chunks){3, 9});
    if (random_chance(&m->shape, 50))
        x = ct_attention_with_sink(&m->b, name(m, "attention"), y[0], y[1], y[2], ids,
                                   weight(m, 1, count, 0), NULL);
    else
        x = ct_attention(&m->b, name(m, "attention"), y[0], y[1], y[2], ids, NULL);
    keep(m,
         ct_view(&m->b, name(m, "concat"), x, 3, (int64_t[]){m->batch, m->tokens, count * of_v}));
}

/* Some parts may have no use, and no gradient. */
static void parts(struct model *m)
{
    struct ct_value *x = pick(m), *y[2];
    int64_t n = x ? features(x) : 1, widths[2] = {(n + 1) / 2, n / 2};

    if (n < 2)
        return;
    ct_split(&m->b, (const char *const[]){name(m, "part"), name(m, "part")}, x, widths, 2, y);
    keep(m, y[0]);
    keep(m, y[1]);
}

/* Latent attention: keys and values of all heads from one normalised latent, and from what is
   rotated for all heads at once. */
static void latent(struct model *m)
{
    int64_t rotated = 2 + 2 * random_below(&m->shape, 2), keys = 1 + random_below(&m->shape, 3);
    int64_t count = 1 + random_below(&m->shape, 4), n = 1 + random_below(&m->shape, 4);
    int64_t key = keys + rotated;
    const struct ct_rope rope = {.theta = 100, .factor = 1, .interleaved = true};
    struct ct_rope of_query = rope;
    struct ct_value *x = pick(m), *p[2], *q, *kv, *k, *v;

    of_query.first = keys;
    q = ct_linear(&m->b, name(m, "q"), x, weight(m, 2, count * key, features(x)));
    q = ct_rope(&m->b, name(m, "q_rope"), heads(m, q, count, key), NULL, &of_query);
    kv = ct_linear(&m->b, name(m, "kv_a"), x, weight(m, 2, n + rotated, features(x)));
    ct_split(&m->b, (const char *const[]){name(m, "latent"), name(m, "shared")}, kv,
             (const int64_t[]){n, rotated}, 2, p);
    p[0] = ct_rms_norm(&m->b, name(m, "norm"), p[0], weight(m, 1, n, 0), 0.1);
    kv = ct_linear(&m->b, name(m, "kv_b"), p[0], weight(m, 2, count * (keys + key), n));
    p[1] = ct_rope(&m->b, name(m, "k_rope"), heads(m, p[1], 1, rotated), NULL, &rope);
    p[1] = ct_view(&m->b, name(m, "k_rotated"), p[1], 3, (int64_t[]){m->batch, m->tokens, rotated});
    k = ct_expand_latent(&m->b, (const char *const[]){name(m, "k"), name(m, "v")},
                         heads(m, kv, count, keys + key), p[1], keys, &v);
    x = ct_attention(&m->b, name(m, "attention"), q, k, v, NULL, NULL);
    keep(m, ct_view(&m->b, name(m, "concat"), x, 3, (int64_t[]){m->batch, m->tokens, count * key}));
}

static void (*const layers[])(struct model *) = {linear, linear, gated,     norm,  norm,  add,
                                                 cast,   flat,   attention, parts, latent};

/* ---- ends ---- */

static void begin(struct model *m)
{
    int64_t shape[] = {m->batch, m->tokens, 0};

    m->ids = source(m, CT_ROLE_INPUT, "tokens", CT_I32, 2, shape);
    m->labels = source(m, CT_ROLE_INPUT, "labels", CT_I32, 2, shape);
    m->documents = source(m, CT_ROLE_INPUT, "documents", CT_I32, 2, shape);
    m->positions = source(m, CT_ROLE_INPUT, "positions", CT_I32, 2, shape);
    ct_graph_source(m->b.graph, CT_ROLE_SCALAR, "valid_tokens", CT_F64, 0, NULL);
    shape[2] = 1 + random_below(&m->shape, 6);
    keep(m,
         ct_embedding(&m->b, name(m, "embedding"), m->ids, weight(m, 2, m->vocabulary, shape[2])));
    if (random_chance(&m->shape, 50))
        keep(m, source(m, CT_ROLE_INPUT, name(m, "x"), CT_F64, 3, shape));
}

static struct ct_value *loss_in_shards(struct model *m, struct ct_value *logits)
{
    int64_t shards = 1 + random_below(&m->shape, m->vocabulary);
    struct ct_value *stats;

    stats = ct_emit1(&m->b, "cross_entropy_partial", name(m, "shards"),
                     (struct ct_value *[]){logits, m->labels}, 2, &shards);
    return ct_emit1(&m->b, "cross_entropy_merge", name(m, "loss"),
                    (struct ct_value *[]){perhaps_moved(m, stats), m->labels}, 2, NULL);
}

static void finish(struct model *m)
{
    struct ct_value *x = pick(m), *w = weight(m, 2, m->vocabulary, features(x)), *loss;
    int64_t kind = random_below(&m->shape, 3);

    if (kind == 0)
        loss = ct_linear_cross_entropy(&m->b, name(m, "loss"), x, w, m->labels);
    else if (kind == 1)
        loss = ct_cross_entropy(&m->b, name(m, "loss"), ct_linear(&m->b, name(m, "logits"), x, w),
                                m->labels);
    else
        loss = loss_in_shards(m, ct_linear(&m->b, name(m, "logits"), x, w));
    if (loss)
        ct_graph_fetch(m->b.graph, "loss", loss);
}

static int forward(struct model *m)
{
    int64_t steps = 1 + random_below(&m->shape, 6);

    m->batch = 1 + random_below(&m->shape, 4);
    m->tokens = 1 + random_below(&m->shape, 5);
    m->vocabulary = 4 + random_below(&m->shape, 9);
    begin(m);
    for (int64_t i = 0; m->b.status == 0 && i < steps; i++)
        layers[random_below(&m->shape, CT_COUNT(layers))](m);
    if (m->b.status == 0)
        finish(m);
    return m->b.status;
}

/* Parameters are filled by an op, as in a real step. */
static int initialize(struct ct_graph *graph)
{
    static const struct ct_init_normal normal = {0.7, 2, 5};
    struct ct_builder b = ct_builder_before(graph, graph->first);

    ct_builder_set_part(&b, CT_PART_INIT);
    b.region = "";
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM)
            ct_init_normal(&b, graph->values[i], &normal);
    return b.status;
}

struct ct_graph *random_step(struct ct_arena *arena, uint64_t seed, const struct ct_mesh *mesh,
                             const struct ct_optimizer_ops *optimizer)
{
    struct ct_graph *graph = ct_graph_create(arena, "step");
    struct ct_run run = {.optimizer = optimizer};
    struct model m = {.b = ct_builder_at_end(graph, CT_PART_F, "layer"),
                      .shape = {seed, 0},
                      .split = {seed, 1u << 20},
                      .meshed = mesh != NULL};
    int rc;

    if (mesh)
        graph->mesh = *mesh;
    rc = forward(&m);
    if (rc == 0)
        rc = initialize(graph);
    if (rc == 0)
        rc = ct_pass_differentiate.apply(graph, &run);
    if (rc == 0)
        rc = ct_pass_update.apply(graph, &run);
    if (rc == 0 && mesh)
        rc = ct_pass_propagate.apply(graph, &run);
    return rc < 0 ? NULL : graph;
}

static double label(const struct ct_value *labels, int64_t i, int64_t vocabulary)
{
    uint32_t bits = ct_philox(3, ct_rng_stream(labels->name), (uint64_t)i).v[0];

    return !strcmp(labels->name, "labels") && bits % 4 == 0 ? -100 : (double)(bits % vocabulary);
}

double source_element(const struct ct_value *v, int64_t i)
{
    const char *id = v->name;

    if (!strcmp(id, "valid_tokens"))
        return 3;
    if (!strcmp(id, "lr"))
        return 0.1;
    if (!strcmp(id, "step"))
        return 2;
    if (!strcmp(id, "documents"))
        return (double)(i / 2);
    if (!strcmp(id, "positions"))
        return (double)(i * 5 % 7);
    if (v->dtype == CT_I32)
        return label(v, i, 4); /* the smallest vocabulary */
    return (double)ct_normal(9, ct_rng_stream(id), (uint64_t)i);
}
