/*
 * Selective activation checkpointing (Chen et al. 2016, Korthikanti et al. 2022).
 *
 * Of what the backward needs of the forward, some is kept, and the rest is made again in front of
 * its use. forward.c finds the values of each layer, policy.c chooses those to keep, replay.c
 * writes the backward anew.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugin.h>

#include "sac.h"

struct sac_config sac_config;

static const struct ct_option options[] = {
    CT_OPT_CHOICE(struct sac_config, mode, "mode", "full", "none|full|layer|op",
                  "What is recomputed: nothing, layers but for their outputs, every so many of "
                  "these, or all but what the ops of a list make"),
    CT_OPT_INT(struct sac_config, every, "every", "2", 1, 1 << 20,
               "mode = layer: recompute every so many layers"),
    CT_OPT_STRING(
        struct sac_config, save_ops, "save_ops", "default",
        "mode = op: ops whose results are kept, comma-separated; NAME/2: but every second "
        "one of a layer; default: TorchTitan's list"),
    {0}};

static int apply(struct ct_graph *graph, struct ct_run *run)
{
    struct sac s;
    int rc;

    if (!strcmp(sac_config.mode, "none"))
        return 0;
    rc = sac_begin(&s, graph, run);
    if (rc == 0)
        rc = sac_choose(&s);
    if (rc == 0)
        rc = sac_replay(&s);
    sac_finish(&s);
    return rc;
}

static const struct ct_transform transform = {
    .size = sizeof(struct ct_transform),
    .name = "sac",
    .summary = "activations are kept, or made again for the backward",
    .phase = CT_PHASE_MEMORY,
    .after = CT_NAMES("regathered"),
    .apply = apply,
};

CT_PLUGIN(.name = "sac", .version = "1.0", .summary = "Selective activation checkpointing",
          .options = options, .config = &sac_config, .config_size = sizeof(sac_config),
          .offers = CT_OFFERS({CT_TRANSFORM, "sac", &transform}));
