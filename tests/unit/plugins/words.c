#include "common.h"

static const struct ct_tokenizer_ops ops = {.size = sizeof(struct ct_tokenizer_ops)};

CT_PLUGIN(.name = "words", .version = "1", .summary = "A tokenizer in name only",
          .offers = CT_OFFERS({CT_TOKENIZER, "words", &ops}));
