#include "common.h"

static int64_t vocabulary(void)
{
    return 1;
}

static int32_t none(void)
{
    return -1;
}

static int64_t encode(const char *text, size_t size, int32_t *tokens, size_t room)
{
    (void)text, (void)size, (void)tokens, (void)room;
    return 0;
}

static int decode(int32_t token, char *text, size_t room)
{
    (void)token, (void)text, (void)room;
    return 0;
}

static const struct ct_tokenizer_ops ops = {.size = sizeof(struct ct_tokenizer_ops),
                                            .vocabulary = vocabulary,
                                            .bos = none,
                                            .eos = none,
                                            .encode = encode,
                                            .decode = decode};

CT_PLUGIN(.name = "words", .version = "1", .summary = "A tokenizer in name only",
          .offers = CT_OFFERS({CT_TOKENIZER, "words", &ops}));
