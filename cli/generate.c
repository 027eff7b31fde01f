/*
 * generate: the recipe's model continues a prompt.
 *
 * The graph is the model's own with its logits fetched, for one sequence of [training] seq_len
 * tokens, with the same transforms and kernels as in training. Each token takes one forward pass
 * over the last seq_len tokens. Positions after the newest token are padding, which causal
 * attention ignores.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/recipe.h>
#include <ctitan/rng.h>
#include <ctitan/run.h>

#include "cli.h"

struct options {
    const char *prompt;
    int64_t tokens, top_k, seed;
    double temperature;
};

struct candidate {
    int32_t token;
    double weight; /* logit, then unnormalised probability */
};

struct generator {
    struct ct_run *run;
    struct options options;
    struct ct_value *input, *logits;
    int64_t seq_len, vocabulary; /* tokens that the tokenizer can write */
    int32_t *history;
    int64_t count;
    int32_t *window;
    void *row; /* logits of one position */
    struct candidate *candidates;
};

/* ---- the command line ---- */

static int take_option(struct options *o, const char *name, const char *text)
{
    char *end = NULL;

    errno = 0;
    if (!strcmp(name, "--prompt"))
        o->prompt = text;
    else if (!strcmp(name, "--tokens"))
        o->tokens = strtoll(text, &end, 10);
    else if (!strcmp(name, "--top-k"))
        o->top_k = strtoll(text, &end, 10);
    else if (!strcmp(name, "--seed"))
        o->seed = strtoll(text, &end, 10);
    else if (!strcmp(name, "--temperature"))
        o->temperature = strtod(text, &end);
    else
        return 0;
    if (end && (end == text || *end || errno))
        return ct_fail(CT_ECONFIG, "%s %s: not a number", name, text);
    if (o->tokens < 0 || o->top_k < 0 || !(o->temperature >= 0))
        return ct_fail(CT_ECONFIG, "%s %s: must not be negative", name, text);
    return 1;
}

/* Remove this verb's own options from argv; args_parse gets the others. */
static int take_options(int *argc, char **argv, struct options *o)
{
    int kept = 1, total = *argc;

    for (int i = 1; i < total; i++) {
        const char *value = i + 1 < total ? argv[i + 1] : NULL;
        int rc = take_option(o, argv[i], value ? value : "");

        if (rc < 0)
            return rc;
        if (rc == 0)
            argv[kept++] = argv[i];
        else if (!value)
            return ct_fail(CT_ECONFIG, "generate: %s lacks its value", argv[i]);
        else
            i++;
    }
    argv[kept] = NULL;
    *argc = kept;
    return 0;
}

/* ---- the model ---- */

/* Use the weights that the recipe trained, or else the ones that it would start from. */
static int choose_weights(struct args *args)
{
    struct ct_model_config *model = &ct_config.model;
    const char *trained = ct_arena_printf(&args->arena, "%s/config.json", model->save_to);

    if (*model->save_to && !access(trained, R_OK))
        model->init_from = model->save_to;
    else if (!*model->init_from && *model->save_to)
        return ct_fail(CT_ECONFIG, "there is no model in %s yet; train it: ctitan train %s",
                       model->save_to, args->path);
    else if (!*model->init_from)
        return ct_fail(CT_ECONFIG, "no model to generate with: [model] save_to says where training "
                                   "puts it, [model] init_from where one is");
    ct_info("generating with the model in %s", model->init_from);
    return 0;
}

/* Done once, because positions are the same for each token. */
static int write_positions(struct generator *g)
{
    const struct ct_value *positions = ct_graph_find_input(g->run->graph, "positions");

    for (int64_t i = 0; i < g->seq_len; i++)
        g->window[i] = (int32_t)i;
    return positions ? ct_executor_write(g->run->executor, positions, 0, g->window,
                                         (size_t)g->seq_len * sizeof(*g->window))
                     : 0;
}

static int open_generator(struct args *args, struct ct_recipe *recipe, struct generator *g)
{
    const struct ct_run_options options = {
        .depth = CT_RUN_READY, .world = 1, .logits = true, .load = ct_hf_load};
    int64_t own;
    int rc = ct_run_open(recipe, &options, &g->run);

    if (rc < 0)
        return rc;
    if (!g->run->tokenizer)
        return ct_fail(CT_ECONFIG, "generate needs a tokenizer: add --with bytes");
    g->input = ct_graph_find_input(g->run->graph, "tokens");
    g->logits = ct_graph_fetched(g->run->graph, "logits");
    own = g->run->tokenizer->vocabulary();
    g->seq_len = g->logits->shape[1];
    g->vocabulary = own < g->logits->shape[2] ? own : g->logits->shape[2];
    g->window = ct_arena_array(&args->arena, int32_t, g->seq_len);
    g->row =
        ct_arena_alloc(&args->arena, (size_t)g->logits->shape[2] * ct_dtype_size(g->logits->dtype));
    g->candidates = ct_arena_array(&args->arena, struct candidate, g->vocabulary);
    return write_positions(g);
}

static int start_history(struct args *args, struct generator *g)
{
    const struct ct_tokenizer_ops *tokenizer = g->run->tokenizer;
    const char *prompt = g->options.prompt;
    int64_t count = tokenizer->encode(prompt, strlen(prompt), NULL, 0);

    if (count < 0)
        return ct_context((int)count, "--prompt");
    g->history = ct_arena_array(&args->arena, int32_t, count + g->options.tokens + 1);
    if (tokenizer->bos() >= 0)
        g->history[g->count++] = tokenizer->bos();
    count = tokenizer->encode(prompt, strlen(prompt), g->history + g->count, (size_t)count);
    if (count < 0)
        return ct_context((int)count, "--prompt");
    g->count += count;
    if (!g->count)
        return ct_fail(CT_ECONFIG, "--prompt is needed: the tokenizer has no token that begins a "
                                   "document");
    for (int64_t i = 0; i < g->count; i++)
        if (g->history[i] >= g->logits->shape[2])
            return ct_fail(CT_ECONFIG, "token %d of the prompt is outside the model's vocabulary",
                           (int)g->history[i]);
    return 0;
}

/* ---- tokens ---- */

/* Compute the logits after the history, in g->row. */
static int forward(struct generator *g)
{
    int64_t used = g->count < g->seq_len ? g->count : g->seq_len;
    struct ct_tensor logits;
    int rc;

    memcpy(g->window, g->history + g->count - used, (size_t)used * sizeof(*g->window));
    rc = ct_executor_write(g->run->executor, g->input, 0, g->window,
                           (size_t)g->seq_len * sizeof(*g->window));
    if (rc == 0)
        rc = ct_executor_step(g->run->executor);
    if (rc < 0)
        return rc;
    logits = ct_executor_tensor(g->run->executor, g->logits, -1);
    return g->run->device_ops->copy_out(g->run->device, g->row,
                                        (const char *)logits.data +
                                            (size_t)((used - 1) * logits.stride[1]) *
                                                ct_dtype_size(logits.dtype),
                                        (size_t)logits.shape[2] * ct_dtype_size(logits.dtype));
}

static int by_weight(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->weight != y->weight)
        return x->weight < y->weight ? 1 : -1;
    return (x->token > y->token) - (x->token < y->token);
}

static int32_t sample(const struct generator *g)
{
    const struct options *o = &g->options;
    struct ct_tensor row = ct_tensor_dense(g->row, g->logits->dtype, 1, &g->logits->shape[2]);
    struct ct_philox random =
        ct_philox((uint64_t)o->seed, ct_rng_stream("generate"), (uint64_t)g->count);
    int64_t kept = o->top_k && o->top_k < g->vocabulary ? o->top_k : g->vocabulary;
    struct candidate *c = g->candidates;
    double sum = 0, best, at;

    for (int64_t i = 0; i < g->vocabulary; i++)
        c[i] = (struct candidate){(int32_t)i, ct_tensor_load(&row, i)};
    qsort(c, (size_t)g->vocabulary, sizeof(*c), by_weight);
    if (o->temperature == 0)
        return c[0].token;
    best = c[0].weight;
    for (int64_t i = 0; i < kept; i++)
        sum += c[i].weight = exp((c[i].weight - best) / o->temperature);
    at = (double)ct_uniform(random.v[0]) * sum;
    for (int64_t i = 0; i < kept; i++)
        if ((at -= c[i].weight) < 0)
            return c[i].token;
    return c[0].token;
}

static int write_token(const struct generator *g, int32_t token)
{
    char text[512];
    int size = g->run->tokenizer->decode(token, text, sizeof(text));

    if (size > 0)
        fwrite(text, 1, (size_t)size, stdout);
    fflush(stdout);
    return size < 0 ? size : 0;
}

static int write_text(struct generator *g)
{
    int32_t eos = g->run->tokenizer->eos(), token = -1;
    int rc = 0;

    fputs(g->options.prompt, stdout);
    for (int64_t i = 0; rc == 0 && i < g->options.tokens; i++) {
        rc = forward(g);
        if (rc < 0)
            break;
        token = sample(g);
        if (token == eos)
            break;
        g->history[g->count++] = token;
        rc = write_token(g, token);
    }
    putchar('\n');
    return rc;
}

static int generate(struct args *args, const struct options *options)
{
    struct generator g = {.options = *options};
    struct ct_recipe *recipe;
    int rc = args_recipe(args, &recipe);

    if (rc == 0)
        rc = choose_weights(args);
    if (rc == 0)
        rc = open_generator(args, recipe, &g);
    if (rc == 0)
        rc = start_history(args, &g);
    if (rc == 0)
        rc = write_text(&g);
    ct_run_close(g.run);
    return rc;
}

int verb_generate(int argc, char **argv)
{
    struct options options = {.prompt = "", .tokens = 256, .seed = 1, .temperature = 0.8};
    struct args args;
    int rc = take_options(&argc, argv, &options);

    if (rc == 0)
        rc = args_parse(argc, argv, 0, &args);
    if (rc < 0)
        return rc;
    log_to_terminal(CT_LOG_INFO);
    rc = generate(&args, &options);
    args_finish(&args);
    return rc;
}
