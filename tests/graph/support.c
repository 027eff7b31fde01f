#include <stdio.h>

#include "support.h"
#include "reference.h"

#include <ctitan/app/verify.h>
#include <ctitan/pass.h>
#include <ctitan/text.h>

/* ---- graphs ---- */

static int64_t or_else(int64_t size, int64_t otherwise)
{
    return size ? size : otherwise;
}

static struct tiny with_defaults(struct tiny t)
{
    t.batch = or_else(t.batch, 2);
    t.tokens = or_else(t.tokens, 5);
    t.vocabulary = or_else(t.vocabulary, 11);
    t.layers = or_else(t.layers, 2);
    t.heads = or_else(t.heads, 2);
    t.kv_heads = or_else(t.kv_heads, 1);
    t.ffn = or_else(t.ffn, 12);
    return t;
}

enum { HEAD = 4 };

struct model {
    struct ct_builder b;
    struct tiny t;
    struct ct_value *x, *documents;
    int64_t dim;
    char region[16];
};

static struct ct_value *matrix(struct model *m, const char *name, int64_t rows, int64_t columns)
{
    char full[64];

    snprintf(full, sizeof(full), "%s.%s", m->region, name);
    return ct_parameter(&m->b, full, 2, (int64_t[]){rows, columns}, CT_INIT_STD(0.4));
}

static struct ct_value *norm_of(struct model *m, const char *name)
{
    struct ct_init init = {CT_INIT_NORMAL, .a = 0.5, .truncate = 2};
    char full[64];
    struct ct_value *w;

    snprintf(full, sizeof(full), "%s.%s.weight", m->region, name);
    w = ct_parameter(&m->b, full, 1, &m->dim, init);
    snprintf(full, sizeof(full), "%s.%s", m->region, name);
    return ct_rms_norm(&m->b, full, m->x, w, 1e-5);
}

static struct ct_value *sinks_of(struct model *m)
{
    char full[64];

    snprintf(full, sizeof(full), "%s.sinks", m->region);
    return ct_parameter(&m->b, full, 1, &m->t.heads, CT_INIT_STD(1));
}

static void add(struct model *m, const char *name, struct ct_value *y)
{
    char full[64];

    snprintf(full, sizeof(full), "%s.%s", m->region, name);
    m->x = ct_add(&m->b, full, m->x, y);
}

static void attention_layer(struct model *m)
{
    static const struct ct_rope rope = {.theta = 100,
                                        .factor = 1,
                                        .low_freq_factor = 1,
                                        .high_freq_factor = 4,
                                        .original_max_position = 8};
    int64_t q_dim = m->t.heads * HEAD, kv_dim = m->t.kv_heads * HEAD;
    int64_t q_shape[] = {m->t.batch, m->t.tokens, m->t.heads, HEAD};
    int64_t kv_shape[] = {m->t.batch, m->t.tokens, m->t.kv_heads, HEAD};
    int64_t flat[] = {m->t.batch, m->t.tokens, q_dim};
    struct ct_value *x = norm_of(m, "norm1"), *y[3];
    struct ct_value *w[] = {matrix(m, "wq", q_dim, m->dim), matrix(m, "wk", kv_dim, m->dim),
                            matrix(m, "wv", kv_dim, m->dim)};

    for (int i = 0; i < 3; i++)
        y[i] = ct_linear(&m->b, (const char *const[]){"q", "k", "v"}[i], x, w[i]);
    y[0] = ct_rope(&m->b, "q.rope", ct_view(&m->b, "q.heads", y[0], 4, q_shape), NULL, &rope);
    y[1] = ct_rope(&m->b, "k.rope", ct_view(&m->b, "k.heads", y[1], 4, kv_shape), NULL, &rope);
    y[2] = ct_view(&m->b, "v.heads", y[2], 4, kv_shape);
    if (m->t.sinks)
        x = ct_attention_with_sink(&m->b, "attention", y[0], y[1], y[2], m->documents, sinks_of(m),
                                   NULL);
    else
        x = ct_attention(&m->b, "attention", y[0], y[1], y[2], m->documents, NULL);
    x = ct_view(&m->b, "attention.flat", x, 3, flat);
    add(m, "sum1", ct_linear(&m->b, "o", x, matrix(m, "wo", m->dim, q_dim)));
}

static void ffn_layer(struct model *m)
{
    struct ct_value *x = norm_of(m, "norm2"), *gate, *up;
    struct ct_value *w[] = {matrix(m, "gate", m->t.ffn, m->dim), matrix(m, "up", m->t.ffn, m->dim)};

    gate = ct_linear(&m->b, "gate", x, w[0]);
    up = ct_linear(&m->b, "up", x, w[1]);
    x = ct_mul(&m->b, "swiglu", ct_silu(&m->b, "silu", gate), up);
    add(m, "sum2", ct_linear(&m->b, "down", x, matrix(m, "down", m->dim, m->t.ffn)));
}

/* Parameters made in float32 become dtype, and the rest follows. */
static void set_dtype(struct ct_graph *graph, enum ct_dtype dtype)
{
    for (size_t i = 0; i < graph->value_count; i++)
        if (graph->values[i]->role == CT_ROLE_PARAM)
            graph->values[i]->dtype = dtype;
    assert_ok(ct_graph_infer(graph));
    if (dtype == CT_F64)
        ct_graph_source(graph, CT_ROLE_SCALAR, "valid_tokens", CT_F64, 0, NULL);
}

static void head(struct model *m, struct ct_value *table)
{
    struct ct_graph *graph = m->b.graph;
    int64_t shape[] = {m->t.batch, m->t.tokens};
    struct ct_value *x, *w, *labels, *y;

    strcpy(m->region, "head");
    m->b.region = m->region;
    x = norm_of(m, "norm");
    w = m->t.tied ? table : matrix(m, "weight", m->t.vocabulary, m->dim);
    labels = m->t.logits ? NULL : ct_graph_source(graph, CT_ROLE_INPUT, "labels", CT_I32, 2, shape);
    y = ct_linear(&m->b, "logits", x, w);
    if (labels)
        y = ct_cross_entropy(&m->b, "loss", y, labels);
    ct_graph_fetch(graph, labels ? "loss" : "logits", y);
}

struct ct_graph *tiny_llama(struct ct_arena *arena, struct tiny tiny)
{
    struct ct_graph *graph = ct_graph_create(arena, "tiny");
    struct model m = {.b = ct_builder_at_end(graph, CT_PART_F, ""), .t = with_defaults(tiny)};
    int64_t shape[] = {m.t.batch, m.t.tokens};
    struct ct_value *tokens, *table;

    m.dim = m.t.heads * HEAD;
    graph->seed = 7;
    strcpy(m.region, "embedding");
    m.b.region = m.region;
    tokens = ct_graph_source(graph, CT_ROLE_INPUT, "tokens", CT_I32, 2, shape);
    if (m.t.documents)
        m.documents = ct_graph_source(graph, CT_ROLE_INPUT, "documents", CT_I32, 2, shape);
    table = matrix(&m, "table", m.t.vocabulary, m.dim);
    m.x = ct_embedding(&m.b, "embedding", tokens, table);
    for (int64_t layer = 0; layer < m.t.layers; layer++) {
        snprintf(m.region, sizeof(m.region), "layers.%d", (int)layer);
        attention_layer(&m);
        ffn_layer(&m);
    }
    head(&m, table);
    assert_ok(m.b.status);
    set_dtype(graph, m.t.dtype);
    if (!m.t.plain)
        join(graph);
    return graph;
}

void join(struct ct_graph *graph)
{
    const struct ct_transform *transform;

    for (size_t i = 0; (transform = ct_transform_at(i)); i++)
        if (transform->phase == CT_PHASE_JOIN)
            assert_ok(transform->apply(graph, NULL));
}

void fetch_gradients(struct ct_graph *graph)
{
    for (size_t i = 0; i < graph->value_count; i++) {
        struct ct_value *v = graph->values[i];

        if (v->role == CT_ROLE_PARAM && v->grad)
            ct_graph_fetch(graph, ct_arena_printf(graph->arena, "d %s", v->name), v->grad);
    }
}

void declare_streams(void)
{
    ct_stream("gather", CT_STREAM_KEEPS);
    ct_stream("copy_out", CT_STREAM_KEEPS);
    ct_stream("chunk", CT_STREAM_KEEPS);
    ct_stream("reduce", 0);
    ct_stream("replicas", 0);
    ct_stream("p2p", 0);
    ct_stream("copy_in", 0);
    ct_stream("send", 0);
    ct_stream("receive", 0);
}

struct ct_graph *parse(struct ct_arena *arena, const char *text)
{
    struct ct_graph *graph;

    declare_streams();
    graph = ct_graph_parse(arena, text);

    if (!graph)
        fail_msg("%s", ct_error_message());
    return graph;
}

size_t count_ops(const struct ct_graph *graph, const char *type)
{
    size_t count = 0;

    ct_for_each_op (op, graph)
        count += !strcmp(op->type->name, type);
    return count;
}

struct ct_op *find_op(const struct ct_graph *graph, const char *type, size_t nth)
{
    ct_for_each_op (op, graph)
        if (!strcmp(op->type->name, type) && nth-- == 0)
            return op;
    fail_msg("there is no such %s", type);
    return NULL;
}

/* ---- golden files ---- */

static void write_golden(const char *path, const char *text)
{
    FILE *out = fopen(path, "w");

    assert_non_null(out);
    fputs(text, out);
    assert_int_equal(fclose(out), 0);
}

static void compare_lines(const char *path, FILE *in, const char *text)
{
    char line[4096];

    for (int n = 1; fgets(line, sizeof(line), in); n++) {
        size_t length = strcspn(text, "\n");

        length += text[length] == '\n';
        if (strlen(line) != length || memcmp(line, text, length))
            fail_msg("%s:%d:\nis   %.*sgold %s", path, n, (int)length, text, line);
        text += length;
    }
    if (*text)
        fail_msg("%s ends before:\n%.200s", path, text);
}

void assert_golden_in(const char *folder, const char *name, const char *text)
{
    char path[1024];
    FILE *in;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    if (getenv("CTITAN_UPDATE_GOLDEN"))
        write_golden(path, text);
    in = fopen(path, "r");
    if (!in)
        fail_msg("%s is not there", path);
    compare_lines(path, in, text);
    fclose(in);
}

/* ---- running ---- */

struct ct_device *reference_device(void)
{
    struct ct_device *device;

    assert_ok(ct_device_reference.open(&(struct ct_device_request){0}, &device));
    return device;
}

static void append(struct machine *m, struct ct_order *order, const char *name, int microbatch)
{
    struct ct_graph *graph = (struct ct_graph *)m->graph;
    struct ct_order_item item = {.name = ct_arena_printf(&m->arena, "%s%d", name, microbatch),
                                 .run = {.microbatch = microbatch},
                                 .beside = {.microbatch = -1}};
    bool both = !strcmp(name, "B");

    item.run.section[0] = ct_graph_section_named(graph, both ? "I" : name, CT_PART_F, CT_NO_GROUP);
    if (both)
        item.run.section[1] = ct_graph_section(graph, CT_PART_W, CT_NO_GROUP);
    ct_order_append(&m->arena, order, item);
}

static void list_sections(struct machine *m, struct ct_order *list, int count, enum order order)
{
    ct_graph_section((struct ct_graph *)m->graph, CT_PART_F, CT_NO_GROUP);
    ct_graph_section((struct ct_graph *)m->graph, CT_PART_I, CT_NO_GROUP);
    ct_graph_section((struct ct_graph *)m->graph, CT_PART_W, CT_NO_GROUP);
    for (int i = 0; i < count; i++) {
        append(m, list, "F", i);
        if (order == IN_TURN)
            append(m, list, "B", i);
    }
    for (int i = 0; order == SPLIT && i < count; i++)
        append(m, list, "I", i);
    for (int i = count; order == SPLIT && i-- > 0;)
        append(m, list, "W", i);
    for (int i = count; order == FORWARDS_FIRST && i-- > 0;)
        append(m, list, "B", i);
}

static void lower(struct machine *m, int64_t rank, int microbatches, enum order order)
{
    struct ct_order list = {0};
    struct ct_lower_request request = {.graph = m->graph,
                                       .order = &list,
                                       .microbatches = microbatches,
                                       .device = m->device,
                                       .rank = rank,
                                       .arena = &m->arena};

    list_sections(m, &list, microbatches, order);
    assert_ok(ct_lower(&request, &m->program));
    assert_ok(ct_program_verify(m->program, stderr));
}

void machine_lower(struct machine *m, const struct ct_graph *graph, struct ct_device *device,
                   int microbatches, enum order order)
{
    *m = (struct machine){.graph = graph, .device = device ? device : reference_device()};
    lower(m, 0, microbatches, order);
}

void machine_lower_rank(struct machine *m, const struct ct_graph *graph, int64_t rank)
{
    *m = (struct machine){.graph = graph, .device = reference_device()};
    lower(m, rank, 1, FORWARD);
}

void machine_start(struct machine *m, const struct ct_graph *graph, struct ct_device *device,
                   int microbatches, enum order order)
{
    machine_lower(m, graph, device, microbatches, order);
    assert_ok(ct_executor_create(m->program, m->device, NULL, &m->executor));
    assert_ok(ct_executor_init(m->executor));
}

void machine_finish(struct machine *m)
{
    ct_executor_destroy(m->executor);
    ct_arena_finish(&m->arena);
}

static int32_t token(int64_t sample, int64_t position)
{
    return (int32_t)((sample * 7 + position * 3 + sample * position) % 11);
}

static int32_t label(int64_t sample, int64_t position)
{
    return (sample + position) % 5 == 4 ? -100 : token(sample, position + 1);
}

static int32_t document(int64_t sample, int64_t position)
{
    return position > 1 + sample % 3;
}

static void feed_input(struct machine *m, const char *name,
                       int32_t (*element)(int64_t sample, int64_t position))
{
    const struct ct_value *v = ct_graph_find(m->graph, name);

    for (int i = 0; v && i < m->program->microbatches; i++) {
        int64_t batch = v->shape[0], tokens = v->shape[1];
        int32_t *data = ct_arena_array(&m->arena, int32_t, batch * tokens);

        for (int64_t k = 0; k < batch * tokens; k++)
            data[k] = element(i * batch + k / tokens, k % tokens);
        assert_ok(ct_executor_write(m->executor, v, i, data,
                                    sizeof(*data) * (size_t)batch * (size_t)tokens));
    }
}

void feed_samples(struct machine *m)
{
    const struct ct_value *labels = ct_graph_find(m->graph, "labels");
    const struct ct_value *valid = ct_graph_find(m->graph, "valid_tokens");
    double count = 0;

    feed_input(m, "tokens", token);
    feed_input(m, "labels", label);
    feed_input(m, "documents", document);
    if (!valid)
        return;
    for (int64_t s = 0; s < labels->shape[0] * m->program->microbatches; s++)
        for (int64_t t = 0; t < labels->shape[1]; t++)
            count += label(s, t) != -100;
    if (valid->dtype == CT_F64)
        assert_ok(ct_executor_write(m->executor, valid, -1, &count, sizeof(count)));
    else
        assert_ok(ct_executor_write(m->executor, valid, -1, &(float){(float)count}, sizeof(float)));
}

double *read_value(struct machine *m, const struct ct_value *value, int64_t *count)
{
    struct ct_tensor t = m->program->tensors[value->id];
    size_t bytes = (size_t)ct_tensor_count(&t) * ct_dtype_size(t.dtype);
    void *host = ct_arena_alloc(&m->arena, bytes);
    double *elements = ct_arena_array(&m->arena, double, ct_tensor_count(&t));

    assert_ok(ct_executor_read(m->executor, value, host, bytes));
    t = ct_tensor_dense(host, t.dtype, t.ndim, t.shape);
    for (int64_t i = 0; i < ct_tensor_count(&t); i++)
        elements[i] = ct_tensor_load(&t, i);
    if (count)
        *count = ct_tensor_count(&t);
    return elements;
}

double *read_fetch(struct machine *m, const char *name, int64_t *count)
{
    const struct ct_value *value = ct_graph_fetched(m->graph, name);

    if (!value)
        fail_msg("the graph does not fetch %s", name);
    return read_value(m, value, count);
}
