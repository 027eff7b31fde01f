#include "common.h"

int ct_from_the_future(int argc, char **argv);

static int call(int argc, char **argv)
{
    return ct_from_the_future(argc, argv);
}

static const struct ct_verb_ops ops = {.size = sizeof(struct ct_verb_ops), "", "", call};

extern CT_API const struct ct_plugin ct_plugin_v1;
const struct ct_plugin ct_plugin_v1 = {
    .abi = {CT_MAGIC, CT_ABI_MAJOR, CT_ABI_MINOR + 1, sizeof(struct ct_plugin)},
    .name = "newer",
    .version = "1",
    .summary = "s",
    .offers = CT_OFFERS({CT_VERB, "e", &ops})};
