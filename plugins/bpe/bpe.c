/*
 * The tokenizer of a Hugging Face folder: see tokenizer.h for its forms.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>
#include <ctitan/recipe.h>

#include "tokenizer.h"

static struct config {
    const char *path, *bos_token, *eos_token;
    bool add_bos, add_eos;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, path, "path", "",
                  "tokenizer.json, tiktoken's tokenizer.model, or a folder with one of them; "
                  "empty: [model] init_from"),
    CT_OPT_BOOL(struct config, add_bos, "add_bos", "true",
                "Begin each document of the data with bos_token, unless it is eos_token as well"),
    CT_OPT_BOOL(struct config, add_eos, "add_eos", "true",
                "End each document of the data with eos_token"),
    CT_OPT_STRING(struct config, bos_token, "bos_token", "",
                  "The token that begins documents; empty: that of tokenizer_config.json"),
    CT_OPT_STRING(struct config, eos_token, "eos_token", "",
                  "The token that ends documents, and what `generate` writes; empty: that of "
                  "tokenizer_config.json"),
    {0},
};

static struct tokenizer tokenizer;

static int choose(const char *key, const char *content, int32_t *id)
{
    if (!*content)
        return 0;
    *id = tokenizer_id(&tokenizer, content);
    return *id >= 0 ? 0
                    : ct_fail(CT_ECONFIG, "[bpe] %s: '%s' is not in the vocabulary", key, content);
}

static int open_tokenizer(void)
{
    const char *path = *config.path ? config.path : ct_config.model.init_from;
    int rc;

    if (!*path)
        return ct_fail(
            CT_ECONFIG,
            "neither [bpe] path nor [model] init_from is set: set one of them to a tokenizer");
    tokenizer_close(&tokenizer);
    rc = tokenizer_open(&tokenizer, path);
    if (rc < 0)
        return ct_context(rc, *config.path ? "[bpe] path" : "bpe: [model] init_from");
    rc = choose("bos_token", config.bos_token, &tokenizer.bos);
    return rc < 0 ? rc : choose("eos_token", config.eos_token, &tokenizer.eos);
}

static int64_t vocabulary(void)
{
    return (int64_t)tokenizer.vocabulary.count;
}

static int32_t eos(void)
{
    return config.add_eos ? tokenizer.eos : -1;
}

static int32_t bos(void)
{
    return config.add_bos && tokenizer.bos != eos() ? tokenizer.bos : -1;
}

static int32_t end(void)
{
    return tokenizer.eos;
}

static int64_t encode_any(const char *text, size_t size, bool special, int32_t *tokens, size_t room)
{
    struct ids ids = {tokens, 0, tokens ? room : 0, NULL};
    int rc = tokenizer_encode(&tokenizer, text, size, special, &ids);

    return rc < 0 ? rc : (int64_t)ids.count;
}

static int64_t encode(const char *text, size_t size, int32_t *tokens, size_t room)
{
    return encode_any(text, size, false, tokens, room);
}

static int64_t encode_prompt(const char *text, size_t size, int32_t *tokens, size_t room)
{
    return encode_any(text, size, true, tokens, room);
}

static int64_t encode_spans(const char *text, size_t size, int32_t *tokens,
                            struct ct_text_span *spans, size_t room)
{
    struct ids ids = {tokens, 0, room, spans};
    int rc = tokenizer_encode(&tokenizer, text, size, false, &ids);

    return rc < 0 ? rc : (int64_t)ids.count;
}

static int decode(int32_t token, char *text, size_t room)
{
    struct text bytes = {0};
    int rc = tokenizer_bytes(&tokenizer, token, &bytes), size = (int)bytes.size;

    if (rc == 0 && bytes.size > room)
        rc = ct_fail(CT_EINVAL, "no room for the %zu bytes of token %d", bytes.size, (int)token);
    if (rc == 0 && bytes.size)
        memcpy(text, bytes.data, bytes.size);
    text_finish(&bytes);
    return rc < 0 ? rc : size;
}

struct ct_decoding {
    struct decoding state;
};

static int decoding_open(struct ct_decoding **d)
{
    *d = calloc(1, sizeof(**d));
    return *d ? 0 : ct_fail(CT_ENOMEM, "decoding");
}

static int64_t decoding_add(struct ct_decoding *d, const int32_t *tokens, size_t count, bool end,
                            const char **text)
{
    int rc;

    d->state.out.size = 0;
    rc = tokenizer_decode(&tokenizer, &d->state, tokens, count, end);
    *text = d->state.out.data ? d->state.out.data : "";
    return rc < 0 ? rc : (int64_t)d->state.out.size;
}

static void decoding_close(struct ct_decoding *d)
{
    if (d)
        decoding_finish(&d->state);
    free(d);
}

static uint64_t identity(void)
{
    return tokenizer.identity;
}

static const char *path(void)
{
    return config.path;
}

static const struct ct_tokenizer_ops ops = {.size = sizeof(struct ct_tokenizer_ops),
                                            .vocabulary = vocabulary,
                                            .bos = bos,
                                            .eos = eos,
                                            .encode = encode,
                                            .decode = decode,
                                            .open = open_tokenizer,
                                            .identity = identity,
                                            .end = end,
                                            .prompt = encode_prompt,
                                            .encode_spans = encode_spans,
                                            .path = path,
                                            .decoding_open = decoding_open,
                                            .decoding_add = decoding_add,
                                            .decoding_close = decoding_close,
                                            .files = tokenizer_files};

CT_PLUGIN(.name = "bpe", .version = "1.0",
          .summary = "BPE and Unigram tokenizers from tokenizer.json or tiktoken's list",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_TOKENIZER, "bpe", &ops}));
