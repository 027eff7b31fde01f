#include "common.h"

extern CT_API const struct ct_plugin ct_plugin_v1;
const struct ct_plugin ct_plugin_v1 = {.abi = {CT_MAGIC, 99, 0, sizeof(struct ct_plugin)},
                                       .name = "wrong_abi",
                                       .version = "1",
                                       .summary = "s",
                                       .offers = OFFER_VERB("b")};
