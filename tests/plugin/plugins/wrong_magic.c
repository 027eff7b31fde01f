#include "common.h"

extern CT_API const struct ct_plugin ct_plugin_v1;
const struct ct_plugin ct_plugin_v1 = {
    .abi = {0x12345678, CT_ABI_MAJOR, CT_ABI_MINOR, sizeof(struct ct_plugin)},
    .name = "wrong_magic",
    .version = "1",
    .summary = "s",
    .offers = OFFER_VERB("a")};
