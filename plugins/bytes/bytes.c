/*
 * Bytes as tokens: a lossless tokenizer that needs no files.
 *
 * Token i below 256 is the byte i. Text that is not valid UTF-8 is treated like any other. Token
 * 256 begins a document and 257 ends one. The vocabulary is 258 tokens.
 */
#include <ctitan/error.h>
#include <ctitan/model.h>
#include <ctitan/plugin.h>

enum { BOS = 256, EOS = 257, VOCABULARY = 258 };

static struct config {
    bool add_bos, add_eos;
} config;

static const struct ct_option options[] = {
    CT_OPT_BOOL(struct config, add_bos, "add_bos", "true", "Begin each document with token 256"),
    CT_OPT_BOOL(struct config, add_eos, "add_eos", "true", "End each document with token 257"),
    {0},
};

static int64_t vocabulary(void)
{
    return VOCABULARY;
}

static int32_t bos(void)
{
    return config.add_bos ? BOS : -1;
}

static int32_t eos(void)
{
    return config.add_eos ? EOS : -1;
}

static int32_t end(void)
{
    return EOS;
}

static int64_t encode(const char *text, size_t size, int32_t *tokens, size_t room)
{
    for (size_t i = 0; tokens && i < size && i < room; i++)
        tokens[i] = (unsigned char)text[i];
    return (int64_t)size;
}

static int64_t encode_spans(const char *text, size_t size, int32_t *tokens,
                            struct ct_text_span *spans, size_t room)
{
    for (size_t i = 0; i < size && i < room; i++)
        spans[i] = (struct ct_text_span){i, i + 1};
    return encode(text, size, tokens, room);
}

static int decode(int32_t token, char *text, size_t room)
{
    if (token < 0 || token >= VOCABULARY)
        return ct_fail(CT_EINVAL, "token %d is not in the vocabulary of 258", (int)token);
    if (token >= BOS)
        return 0;
    if (!room)
        return ct_fail(CT_EINVAL, "no room for a byte");
    *text = (char)token;
    return 1;
}

static uint64_t identity(void)
{
    return 0x6279746573; /* no file and no option changes the ids */
}

static const struct ct_tokenizer_ops ops = {.size = sizeof(struct ct_tokenizer_ops),
                                            .vocabulary = vocabulary,
                                            .bos = bos,
                                            .eos = eos,
                                            .encode = encode,
                                            .decode = decode,
                                            .identity = identity,
                                            .end = end,
                                            .encode_spans = encode_spans};

CT_PLUGIN(.name = "bytes", .version = "1.0", .summary = "Bytes as tokens: a vocabulary of 258",
          .options = options, .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_TOKENIZER, "bytes", &ops}));
