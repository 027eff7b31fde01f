#include "common.h"

int absent_function(int argc, char **argv);

CT_PLUGIN(.name = "unbound_library", .version = "1", .summary = "Its library cannot be found",
          .offers = CT_OFFERS({CT_VERB, "m",
                               &(const struct ct_verb_ops){sizeof(struct ct_verb_ops), "", "",
                                                           absent_function}}));
