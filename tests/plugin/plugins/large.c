#include "common.h"

/* A descriptor that names this version and has more than this version. */
static const struct {
    struct ct_verb_ops ops;
    int (*more)(void);
} larger = {{.size = sizeof(larger), .run = verb_nothing}, NULL};

CT_PLUGIN(.name = "large", .version = "1", .summary = "s",
          .offers = CT_OFFERS({CT_VERB, "p", &larger.ops}));
