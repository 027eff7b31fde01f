/*
 * Built before struct ct_plugin had `brings`: that is not there, and what lies in its place
 * must not be read.
 */
#include "common.h"

#include <ctitan/hook.h>

static int call(const struct ct_event_data *data, void *context)
{
    (void)data;
    (void)context;
    return 0;
}

static const struct ct_hook hook = {
    .size = sizeof(struct ct_hook), .events = 1u << CT_EVENT_STEP_END, .call = call};

extern CT_API const struct ct_plugin ct_plugin_v1;
const struct ct_plugin ct_plugin_v1 = {
    .abi = {CT_MAGIC, CT_ABI_MAJOR, 0, offsetof(struct ct_plugin, brings)},
    .name = "older",
    .version = "1",
    .summary = "Was built before plugins could bring others",
    .offers = CT_OFFERS({CT_HOOK, "o", &hook}),
    .brings = "what is behind its descriptor",
    .brings_kind = CT_VERB};
