/*
 * A data source: arithmetic sequences modulo a number, a task whose answer is known.
 *
 * Sample i is a, a + d, a + 2d, .. modulo `modulus`. The seed and i determine a and d. Two tokens
 * tell the rest of a sequence, so the loss of a model that has understood it tends to 0. Nothing is
 * read from a file, and the data has no end.
 */
#include <stdlib.h>

#include <ctitan/error.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>
#include <ctitan/rng.h>

static struct config {
    int64_t modulus;
} config;

static const struct ct_option options[] = {
    CT_OPT_INT(struct config, modulus, "modulus", "97", 2, 1 << 20, "Tokens are below this number"),
    {0}};

struct ct_data {
    int64_t seq_len;
    uint64_t seed;
    bool validation;
};

static int open_data(const struct ct_data_request *request, struct ct_data **data)
{
    *data = malloc(sizeof(**data));
    if (!*data)
        return ct_fail(CT_ENOMEM, "a data source");
    **data = (struct ct_data){request->seq_len, request->seed, request->validation};
    return 0;
}

static void close_data(struct ct_data *data)
{
    free(data);
}

/* A pure function of index and request: any rank may read any sample, in any order, and a run that
   resumes needs no state of the source. */
static int read_sample(struct ct_data *data, int64_t index, int32_t *tokens, int32_t *labels,
                       int32_t *documents)
{
    struct ct_philox random = ct_philox(data->seed, data->validation, (uint64_t)index);
    uint64_t modulus = (uint64_t)config.modulus, at = random.v[0] % modulus,
             difference = random.v[1] % modulus;

    (void)documents; /* `has_documents` is false: a sample is one document */
    for (int64_t i = 0; i < data->seq_len; i++) {
        tokens[i] = (int32_t)at;
        at = (at + difference) % modulus;
        labels[i] = (int32_t)at; /* the next token */
    }
    return 0; /* 1 would be the end of the data */
}

static bool has_documents(void)
{
    return false;
}

static int64_t vocabulary(struct ct_data *data)
{
    (void)data;
    return config.modulus;
}

static const struct ct_data_ops ops = {.size = sizeof(struct ct_data_ops),
                                       .open = open_data,
                                       .close = close_data,
                                       .read = read_sample,
                                       .has_documents = has_documents,
                                       .vocabulary = vocabulary};

CT_PLUGIN(.name = "counting", .version = "1.0", .summary = "Data: arithmetic sequences",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_DATA, "counting", &ops}));
