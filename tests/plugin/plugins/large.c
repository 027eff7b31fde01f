#include "common.h"

/* Of this version by its word, and yet with more than this version has. */
static const struct {
    struct ct_verb_ops ops;
    int (*more)(void);
} larger = {{.size = sizeof(larger), .run = verb_nothing}, NULL};

CT_PLUGIN(.name = "large", .version = "1", .summary = "s",
          .offers = CT_OFFERS({CT_VERB, "p", &larger.ops}));
