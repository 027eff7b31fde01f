#include <ctitan/arena.h>
#include <ctitan/error.h>

#include "data_logits.h"

int data_logits_open(struct data_logits *d, struct ct_recipe *recipe, struct ct_arena *arena,
                     int64_t seq_len, bool documents)
{
    /* Logits of one sequence at a time: those of a batch may not fit into the host's memory. */
    struct ct_run_options options = {
        .depth = CT_RUN_READY, .logits = true, .sequences = 1, .documents = documents};
    int rc;

    *d = (struct data_logits){.arena = arena, .seq_len = seq_len};
    rc = ct_run_open(recipe, &options, &d->run);
    if (rc < 0)
        return rc;
    d->output = ct_graph_fetched(d->run->graph, "logits");
    d->vocabulary = d->output->shape[2];
    d->sample.tokens = ct_arena_array(arena, int32_t, seq_len);
    d->sample.labels = ct_arena_array(arena, int32_t, seq_len);
    if (documents)
        d->sample.documents = ct_arena_array(arena, int32_t, seq_len);
    d->positions = ct_arena_array(arena, int32_t, seq_len);
    d->row = ct_arena_array(arena, double, d->vocabulary);
    d->bytes = (size_t)(seq_len * d->vocabulary) * ct_dtype_size(d->output->dtype);
    d->logits = ct_arena_alloc(arena, d->bytes);
    return 0;
}

static int write_input(struct data_logits *d, const char *name, const int32_t *data)
{
    const struct ct_value *input = ct_graph_find_input(d->run->graph, name);

    return input && data ? ct_executor_write(d->run->executor, input, 0, data,
                                             (size_t)d->seq_len * sizeof(*data))
                         : 0;
}

static bool is_beyond(const struct data_logits *d, int32_t token)
{
    return token < 0 || token >= d->vocabulary;
}

static int check_tokens(const struct data_logits *d, int64_t index)
{
    const struct data_sample *s = &d->sample;

    for (int64_t i = 0; i < d->seq_len; i++)
        if (is_beyond(d, s->tokens[i]) || (s->labels[i] != CT_MASKED && is_beyond(d, s->labels[i])))
            return ct_fail(
                CT_ECONFIG, "sample %lld has token %d, and the model a vocabulary of %lld",
                (long long)index, (int)(is_beyond(d, s->tokens[i]) ? s->tokens[i] : s->labels[i]),
                (long long)d->vocabulary);
    return 0;
}

/* Positions begin again with each document. */
static void set_positions(struct data_logits *d)
{
    const int32_t *documents = d->sample.documents;

    for (int64_t i = 1; i < d->seq_len; i++)
        d->positions[i] =
            documents && documents[i] != documents[i - 1] ? 0 : d->positions[i - 1] + 1;
}

int data_logits_compute(struct data_logits *d, int64_t index)
{
    int rc = check_tokens(d, index);

    set_positions(d);
    if (rc == 0)
        rc = write_input(d, "tokens", d->sample.tokens);
    if (rc == 0)
        rc = write_input(d, "positions", d->positions);
    if (rc == 0)
        rc = write_input(d, "documents", d->sample.documents);
    if (rc == 0)
        rc = ct_executor_step(d->run->executor);
    return rc < 0 ? rc : ct_executor_read(d->run->executor, d->output, d->logits, d->bytes);
}

const double *data_logits_at(struct data_logits *d, int64_t position)
{
    size_t size = ct_dtype_size(d->output->dtype);
    struct ct_tensor t = ct_tensor_dense(d->logits + (size_t)(position * d->vocabulary) * size,
                                         d->output->dtype, 1, &d->vocabulary);

    for (int64_t k = 0; k < d->vocabulary; k++)
        d->row[k] = ct_tensor_load(&t, k);
    return d->row;
}

void data_logits_close(struct data_logits *d)
{
    ct_run_close(d->run);
}
