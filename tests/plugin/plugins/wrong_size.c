#include "common.h"

extern CT_API const struct ct_plugin ct_plugin_v1;
const struct ct_plugin ct_plugin_v1 = {.abi = {CT_MAGIC, CT_ABI_MAJOR, CT_ABI_MINOR, 8},
                                       .name = "wrong_size",
                                       .version = "1",
                                       .summary = "s",
                                       .offers = OFFER_VERB("c")};
