#include "common.h"

/* No library has it. */
int ct_from_the_future(int argc, char **argv);

static int call(int argc, char **argv)
{
    return ct_from_the_future(argc, argv);
}

CT_PLUGIN(.name = "undefined_symbol", .version = "1", .summary = "Does not link",
          .offers = CT_OFFERS({CT_VERB, "d",
                               &(const struct ct_verb_ops){sizeof(struct ct_verb_ops), "", "",
                                                           call}}));
