/*
 * A run without a recipe's file: one process, the cpu device, a model of one embedding and one
 * head, and data that is a pure function of the index. Everything the run asks of plugins but the
 * device and the optimizer is here; a test sets `toy` before it opens a run.
 */
#ifndef TOY_H
#define TOY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/ops.h>
#include <ctitan/plugin.h>
#include <ctitan/recipe.h>
#include <ctitan/run.h>
#include <ctitan/train.h>

#define TOY_VOCABULARY 16
#define TOY_WIDTH 8
#define TOY_LENGTH 6

struct ct_data {
    int64_t samples; /* 0: endless */
};

static struct {
    bool no_tokens, no_ops, no_loss;
    const char *declare; /* one more input */
    bool positions;      /* use the positions */
    bool ordinals;       /* declare the ordinals of tokens */
    bool occupy;         /* call the output of an op "positions" */
    int64_t samples;
    int64_t missing; /* a sample before the end that is not there; 0: none */
    int width;       /* of the input "pairs" [b, t, width] that is declared, and of "kind" [b]; 0 */
    bool metrics;    /* fetch the sum of the hidden states' squares, and its mean */
} toy;

static int toy_create(struct ct_run *run, struct ct_model **model)
{
    (void)run;
    *model = NULL;
    return 0;
}

static void toy_destroy(struct ct_model *model)
{
    (void)model;
}

static struct ct_value *toy_body(struct ct_builder *b, struct ct_value *tokens,
                                 const int64_t *shape)
{
    struct ct_init normal = {0.1, 0};
    struct ct_value *table =
        ct_parameter(b, "table", 2, (int64_t[]){TOY_VOCABULARY, TOY_WIDTH}, normal);
    struct ct_value *x = ct_embedding(b, toy.occupy ? "positions" : "embedding", tokens, table),
                    *at;

    if (toy.ordinals)
        ct_input(b, "ordinals", shape);
    if (!toy.positions)
        return x;
    at = ct_parameter(b, "places", 2, (int64_t[]){TOY_LENGTH, TOY_WIDTH}, normal);
    return ct_add(b, "sum", x, ct_embedding(b, "place", ct_input(b, "positions", shape), at));
}

/* Inputs of streams that text lacks. */
static void toy_streams(struct ct_builder *b, const int64_t *shape)
{
    ct_input_tensor(b, "pairs", 3, (int64_t[]){shape[0], shape[1], toy.width});
    ct_input_tensor(b, "kind", 1, shape);
}

static void toy_metrics(struct ct_builder *b, struct ct_value *x)
{
    struct ct_value *squares = ct_emit1(b, "squared_norm", "squares", &x, 1, NULL);

    ct_graph_fetch(b->graph, "squares", squares);
    ct_graph_fetch_mean(b->graph, "mean_square", squares, ct_input(b, "valid_tokens", NULL));
}

static int toy_build(struct ct_model *model, struct ct_graph *graph,
                     const struct ct_model_request *request)
{
    struct ct_builder b = ct_builder_at_end(graph, CT_PART_F, "head");
    int64_t shape[] = {request->batch, request->seq_len};
    struct ct_value *tokens = toy.no_tokens ? NULL : ct_input(&b, "tokens", shape);
    struct ct_value *labels = ct_input(&b, "labels", shape), *x, *w;

    (void)model;
    if (toy.declare)
        ct_input(&b, toy.declare, shape);
    if (toy.no_ops || b.status < 0)
        return b.status;
    x = toy_body(&b, toy.no_tokens ? labels : tokens, shape);
    if (toy.width)
        toy_streams(&b, shape);
    if (toy.metrics)
        toy_metrics(&b, x);
    w = ct_parameter(&b, "head", 2, (int64_t[]){TOY_VOCABULARY, TOY_WIDTH}, CT_INIT_STD(0.1));
    x = ct_linear_cross_entropy(&b, "loss", x, w, labels);
    if (x && !toy.no_loss)
        ct_graph_fetch(graph, "loss", x);
    return b.status;
}

static int64_t toy_vocabulary(const struct ct_model *model)
{
    (void)model;
    return TOY_VOCABULARY;
}

static void toy_flops(const struct ct_model *model, int64_t seq_len, double *whole, double *halved)
{
    (void)model;
    *whole = *halved = (double)seq_len;
}

static int toy_open_data(const struct ct_data_request *request, struct ct_data **data)
{
    (void)request;
    *data = malloc(sizeof(**data));
    (*data)->samples = toy.samples;
    return 0;
}

static void toy_close_data(struct ct_data *data)
{
    free(data);
}

static int toy_read(struct ct_data *data, int64_t index, int32_t *tokens, int32_t *labels,
                    int32_t *documents)
{
    if ((data->samples && index >= data->samples) || (toy.missing && index == toy.missing))
        return 1;
    for (int64_t t = 0; t < TOY_LENGTH; t++) {
        tokens[t] = (int32_t)((index * 7 + t * t) % TOY_VOCABULARY);
        labels[t] = (int32_t)((index * 7 + (t + 1) * (t + 1)) % TOY_VOCABULARY);
        if (documents)
            documents[t] = 0;
    }
    return 0;
}

/* ---- a source of streams ---- */

static inline int toy_list_streams(const struct ct_data_request *request, struct ct_arena *arena,
                                   const struct ct_data_stream **streams)
{
    const size_t size = sizeof(struct ct_data_stream);
    const struct ct_data_stream list[] = {
        {size, "kind", CT_I32, 0, {0}, -1, "one number"},
        {size, "tokens", CT_I32, 1, {request->seq_len}, 0, "tokens"},
        {size, "labels", CT_I32, 1, {request->seq_len}, 0, "labels"},
        {size, "pairs", CT_F32, 2, {request->seq_len, 2}, 0, "two numbers for each token"},
        {size, "unused", CT_F64, 1, {1 << 20}, -1, "nobody reads it"},
        {0}};

    *streams = ct_arena_copy(arena, list, sizeof(list));
    return 0;
}

static inline int toy_read_streams(struct ct_data *data, int64_t index, void *const *sample)
{
    (void)data;
    assert_null(sample[4]);
    if (sample[0])
        *(int32_t *)sample[0] = (int32_t)index;
    for (int t = 0; t < TOY_LENGTH; t++) {
        ((int32_t *)sample[1])[t] = (int32_t)((index + t) % TOY_VOCABULARY);
        ((int32_t *)sample[2])[t] = t % 2 ? -100 : (int32_t)((index + t + 1) % TOY_VOCABULARY);
        for (int k = 0; sample[3] && k < 2; k++)
            ((float *)sample[3])[2 * t + k] = (float)(100 * index + 10 * t + k);
    }
    return 0;
}

/* Each sample makes twice the work of the one before, in eights. */
static inline int toy_cost(struct ct_data *data, int64_t index, double *cost)
{
    (void)data;
    *cost = 1 << index % 8;
    return 0;
}

static bool toy_documents(void)
{
    return false;
}

static int64_t toy_data_vocabulary(struct ct_data *data)
{
    (void)data;
    return TOY_VOCABULARY;
}

static struct ct_model_ops toy_model = {.size = sizeof(struct ct_model_ops),
                                        .create = toy_create,
                                        .destroy = toy_destroy,
                                        .build = toy_build,
                                        .vocabulary = toy_vocabulary,
                                        .flops_per_token = toy_flops};

static struct ct_data_ops toy_data = {.size = sizeof(struct ct_data_ops),
                                      .open = toy_open_data,
                                      .close = toy_close_data,
                                      .read = toy_read,
                                      .has_documents = toy_documents,
                                      .vocabulary = toy_data_vocabulary};

static const struct ct_plugin toy_plugin = {
    .abi = {CT_MAGIC, CT_ABI_MAJOR, CT_ABI_MINOR, sizeof(struct ct_plugin)},
    .name = "toy",
    .version = "1.0",
    .summary = "A model and its data",
    .offers = CT_OFFERS({CT_MODEL, "toy", &toy_model}, {CT_DATA, "toy", &toy_data})};

/* Let the recipe have these sections, too. */
static inline int toy_apply(const char *more)
{
    static struct ct_arena arena;
    struct ct_recipe *recipe;
    const char *text = ct_arena_printf(&arena,
                                       "[plugins]\nload = cpu, adamw\n[model]\nname = toy\n"
                                       "[training]\nseq_len = 6\nlocal_batch_size = 4\nsteps = 4\n"
                                       "dtype = float32\nmixed_precision_param = float32\n"
                                       "[adamw]\nlr = 0.01\n%s",
                                       more);
    int rc = ct_recipe_parse(&arena, "toy.ini", text, &recipe);

    if (rc == 0)
        rc = ct_recipe_apply(recipe);
    if (rc < 0)
        fprintf(stderr, "%s\n", ct_error_message());
    return rc;
}

/* Once in a process, before any run. */
static inline int toy_start(void **state)
{
    int rc = ct_ops_register();

    (void)state;
    if (rc == 0)
        rc = ct_plugin_register(&toy_plugin);
    return rc < 0 ? rc : toy_apply("");
}

static inline int toy_open(struct ct_run **run)
{
    const struct ct_run_options options = {.depth = CT_RUN_READY, .world = 1};

    return ct_run_open(NULL, &options, run);
}

static inline struct ct_run *toy_opened(void)
{
    struct ct_run *run = NULL;

    if (toy_open(&run) < 0)
        fail_msg("%s", ct_error_message());
    return run;
}

static inline int toy_reset(void **state)
{
    (void)state;
    memset(&toy, 0, sizeof(toy));
    toy_data.streams = NULL;
    toy_data.read_streams = NULL;
    ct_config.training.steps = 4;
    return 0;
}

static inline void assert_refused(const char *words)
{
    struct ct_run *run = NULL;

    assert_int_equal(toy_open(&run), CT_EINVAL);
    if (!strstr(ct_error_message(), words) || !strstr(ct_error_message(), "model toy"))
        fail_msg("\"%s\" is not in \"%s\"", words, ct_error_message());
}

#endif
