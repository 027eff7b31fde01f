/*
 * The generator: sequences, and the steps that compute what is new in them.
 *
 * A step feeds a chunk of each sequence's new tokens. A sequence with fewer repeats its last token
 * at the same position, without a slot, so that caches do not see it.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/lib/app/generate.h>
#include <ctitan/lib/ops.h>
#include <ctitan/state.h>

#include "cache.h"

#define CHUNK 128 /* tokens of a sequence in one step, at most */

struct sequence {
    int32_t *tokens;
    int64_t count, room;
    int64_t begin;    /* the first token in the context */
    int64_t computed; /* tokens from begin on that the caches know */
    float *logits;
};

struct ct_generator {
    struct ct_run *run;
    bool cache;
    int64_t count, context, chunk, vocabulary; /* count: sequences, those that only fill included */
    int64_t asked, first, own;                 /* sequences; those that this rank feeds */
    struct sequence *sequences;
    int32_t *tokens, *positions, *slots; /* [count][chunk] */
    void *row;
};

struct ct_run *ct_generator_run(struct ct_generator *g)
{
    return g->run;
}

size_t ct_generator_cache_bytes(const struct ct_generator *g)
{
    size_t bytes = 0;

    for (size_t i = 0; i < g->run->state_count; i++)
        if (g->run->states[i].role == CT_ROLE_STATE)
            bytes += ct_run_shard_bytes(g->run, &g->run->states[i]);
    return bytes;
}

int64_t ct_generator_vocabulary(const struct ct_generator *g)
{
    return g->vocabulary;
}

static int allocate(struct ct_generator *g)
{
    const struct ct_value *logits = ct_graph_fetched(g->run->graph, "logits");
    const struct ct_value *tokens = ct_graph_find_input(g->run->graph, "tokens");
    struct ct_arena *arena = &g->run->arena;
    int64_t own[CT_MAX_DIMS], first[CT_MAX_DIMS];

    ct_sharding_local(&tokens->sharding, &g->run->mesh, g->run->rank, tokens->ndim, tokens->shape,
                      own, first);
    g->count = tokens->shape[0];
    g->own = own[0];
    g->first = first[0];
    g->chunk = logits->shape[1];
    g->vocabulary = logits->shape[2];
    g->sequences = ct_arena_array(arena, struct sequence, g->count);
    g->tokens = ct_arena_array(arena, int32_t, g->count * g->chunk);
    g->positions = ct_arena_array(arena, int32_t, g->count * g->chunk);
    g->slots = ct_arena_array(arena, int32_t, g->count * g->chunk);
    g->row = ct_arena_alloc(arena, (size_t)g->vocabulary * ct_dtype_size(logits->dtype));
    for (int64_t i = 0; i < g->asked; i++)
        g->sequences[i].logits = ct_arena_array(arena, float, g->vocabulary);
    return 0;
}

int ct_generator_open(struct ct_recipe *recipe, const struct ct_generate_request *request,
                      struct ct_generator **out)
{
    static bool registered;
    struct ct_generator *g = calloc(1, sizeof(*g));
    int64_t context = ct_config.training.seq_len;
    struct ct_run_options options = {.depth = CT_RUN_READY,
                                     .rank = request->rank,
                                     .world = request->world,
                                     .local_rank = request->local_rank,
                                     .local_ranks = request->local_ranks,
                                     .job = request->job,
                                     .logits = true,
                                     .weights = request->weights,
                                     .sequences = request->sequences};
    int rc = 0;

    if (!g)
        return ct_fail(CT_ENOMEM, "a generator");
    if (!registered)
        rc = ct_transform_register(&ct_cache);
    registered = true;
    g->cache = request->cache;
    ct_generating = g->cache ? CT_GENERATING_PARTS : CT_GENERATING_WHOLE;
    if (request->cache)
        options.tokens = context < CHUNK ? context : CHUNK;
    g->asked = request->sequences;
    g->context = context;
    if (rc == 0)
        rc = ct_run_open(recipe, &options, &g->run);
    ct_generating = CT_GENERATING_NOT;
    if (rc == CT_ENOENT && request->cache && strstr(ct_error_message(), "has no kernel for"))
        rc = ct_context(rc, "generating with a cache (--no-cache turns it off)");
    if (rc == 0)
        rc = allocate(g);
    if (rc < 0)
        ct_generator_close(g);
    else
        *out = g;
    return rc;
}

void ct_generator_close(struct ct_generator *g)
{
    if (!g)
        return;
    for (int64_t i = 0; g->sequences && i < g->count; i++)
        free(g->sequences[i].tokens);
    ct_run_close(g->run);
    free(g);
}

int ct_generator_append(struct ct_generator *g, int64_t sequence, const int32_t *tokens,
                        int64_t count)
{
    struct sequence *s = &g->sequences[sequence];

    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= g->vocabulary)
            return ct_fail(CT_ECONFIG, "token %d is outside the model's vocabulary of %lld",
                           (int)tokens[i], (long long)g->vocabulary);
    if (s->count + count > s->room) {
        int64_t room = 2 * (s->count + count);
        int32_t *larger = realloc(s->tokens, (size_t)room * sizeof(*larger));

        if (!larger)
            return ct_fail(CT_ENOMEM, "%lld tokens", (long long)room);
        s->tokens = larger;
        s->room = room;
    }
    memcpy(s->tokens + s->count, tokens, (size_t)count * sizeof(*tokens));
    s->count += count;
    return 0;
}

/* ---- a step ---- */

/* Tokens in the context that are still to be computed. */
static int64_t pending(const struct sequence *s)
{
    return s->count - s->begin - s->computed;
}

/* Let the context hold the newest token. */
static void move_context(const struct ct_generator *g, struct sequence *s)
{
    if (!g->cache)
        s->computed = 0;
    if (s->count - s->begin <= g->context)
        return;
    s->begin = s->count - (g->cache ? (g->context + 1) / 2 : g->context);
    s->computed = 0;
}

/* The next tokens of a sequence, as row `at` of the inputs. */
static void fill_row(struct ct_generator *g, const struct sequence *s, int64_t at, int64_t size)
{
    int64_t left = pending(s), used = left < size ? left : size;

    for (int64_t i = 0; !s->count && i < size; i++)
        g->tokens[at * size + i] = g->positions[at * size + i] = 0, g->slots[at * size + i] = -1;
    for (int64_t i = 0; s->count && i < size; i++) {
        int64_t position = s->computed + (i < used ? i : used - 1);

        g->tokens[at * size + i] = s->tokens[s->begin + position];
        g->positions[at * size + i] = (int32_t)position;
        g->slots[at * size + i] = i < used ? (int32_t)position : -1;
    }
}

static int read_logits(struct ct_generator *g, struct ct_executor *executor,
                       const struct ct_value *value, int64_t row, int64_t token, float *logits)
{
    struct ct_tensor t = ct_executor_tensor(executor, value, -1), dense;
    size_t at = (size_t)(row * t.stride[0] + token * t.stride[1]) * ct_dtype_size(t.dtype);
    int rc = g->run->device_ops->copy_out(g->run->device, g->row, (const char *)t.data + at,
                                          (size_t)g->vocabulary * ct_dtype_size(t.dtype));

    dense = ct_tensor_dense(g->row, t.dtype, 1, &g->vocabulary);
    for (int64_t i = 0; rc == 0 && i < g->vocabulary; i++)
        logits[i] = (float)ct_tensor_load(&dense, i);
    return rc;
}

static int write_input(struct ct_generator *g, const struct ct_graph *graph,
                       struct ct_executor *executor, const char *name, const int32_t *data,
                       int64_t size)
{
    const struct ct_value *input = ct_graph_find_input(graph, name);

    return input ? ct_executor_write(executor, input, 0, data,
                                     (size_t)(g->own * size) * sizeof(*data))
                 : 0;
}

/* Feed up to `size` new tokens of every sequence. */
static int feed(struct ct_generator *g, const struct ct_graph *graph, struct ct_executor *executor,
                int64_t size)
{
    const struct ct_value *logits = ct_graph_fetched(graph, "logits");
    int rc;

    for (int64_t i = 0; i < g->own; i++)
        fill_row(g, &g->sequences[g->first + i], i, size);
    rc = write_input(g, graph, executor, "tokens", g->tokens, size);
    if (rc == 0)
        rc = write_input(g, graph, executor, "positions", g->positions, size);
    if (rc == 0)
        rc = write_input(g, graph, executor, "slots", g->slots, size);
    if (rc == 0)
        rc = ct_executor_step(executor);
    for (int64_t i = 0; rc == 0 && i < g->asked; i++) {
        struct sequence *s = &g->sequences[i];
        int64_t left = pending(s), done = left < size ? left : size;

        s->computed += done;
        if (left && left <= size)
            rc = read_logits(g, executor, logits, i, done - 1, s->logits);
    }
    return rc;
}

int ct_generator_step(struct ct_generator *g)
{
    int64_t most = 0;
    int rc = 0;

    for (int64_t i = 0; i < g->asked; i++) {
        struct sequence *s = &g->sequences[i];

        if (!s->count)
            return ct_fail(CT_EINVAL, "sequence %lld has no token", (long long)i);
        move_context(g, s);
        most = pending(s) > most ? pending(s) : most;
    }
    if (g->cache && most == 1)
        return feed(g, g->run->validation_graph, g->run->validation_executor, 1);
    for (; rc == 0 && most > 0; most -= g->chunk)
        rc = feed(g, g->run->graph, g->run->executor, g->chunk);
    return rc;
}

const float *ct_generator_logits(const struct ct_generator *g, int64_t sequence)
{
    return g->sequences[sequence].logits;
}
