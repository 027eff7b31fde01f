/* Shards of the plugins that the loader's tests load. */
#ifndef COMMON_H
#define COMMON_H

#include <ctitan/model.h>
#include <ctitan/plugin.h>

static inline int verb_nothing(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return 0;
}

#define OFFER_VERB(name)                                                                           \
    CT_OFFERS({CT_VERB, name,                                                                      \
               &(const struct ct_verb_ops){sizeof(struct ct_verb_ops), "Does nothing", "ARGUMENT", \
                                           verb_nothing}})

#endif
