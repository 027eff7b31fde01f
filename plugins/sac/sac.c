/*
 * Selective activation checkpointing (Chen et al. 2016, Korthikanti et al. 2022).
 *
 * Some of the forward's values that the backward needs are kept, on the device or in host memory;
 * the rest are recomputed in front of their use. forward.c finds the values of each layer. policy.c
 * chooses what to keep by a rule. search.c chooses by bytes and time, from the plans that pareto.c
 * (one layer) and budget.c (all layers) find. replay.c lets the backward recompute the others.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/option_use.h>
#include <ctitan/plugin.h>
#include <ctitan/recipe.h>
#include <ctitan/text.h>

#include "sac.h"

#define FOR_SEARCH "it is for mode = budget or auto"

struct sac_config sac_config;

static const struct ct_option options[] = {
    CT_OPT_ENUM(struct sac_config, mode, "mode", "full", "none|full|layer|op|budget|auto",
                "What is recomputed. none; full: all of a layer except its output; layer: the "
                "same in every few layers; op: all except the results of the ops in save_ops; "
                "budget: what costs least time, so that no more is kept than a budget; auto: so "
                "that the step fits into memory"),
    CT_OPT_INT(struct sac_config, every, "every", "2", 1, 1 << 20,
               "mode = layer: recompute one in this many layers"),
    CT_OPT_STRING(struct sac_config, save_ops, "save_ops", "default",
                  "mode = op: ops whose results are kept, comma-separated, with their variants; "
                  "NAME/2: except every second one of a layer; default: TorchTitan's list"),
    CT_OPT_STRING(struct sac_config, offload, "offload", "",
                  "Ops whose kept results go to the device's host memory, or with budget and auto "
                  "may go there; all: every op in a layer"),
    CT_OPT_STRING(struct sac_config, budget, "budget", "0.5",
                  "mode = budget: what a rank's layers keep for the backward, as a fraction of "
                  "what they keep without sac, or in bytes (12GiB)"),
    CT_OPT_STRING(
        struct sac_config, memory, "memory", "0.9",
        "mode = auto: memory of a step, as a fraction of the device's memory, or in bytes"),
    CT_OPT_BOOL(struct sac_config, measure, "measure", "false",
                "Measure the time of each distinct op on the device; for one rank only, as all "
                "ranks must choose alike"),
    CT_OPT_FLOAT(struct sac_config, tflops, "tflops", "0", 0, 1e9,
                 "FLOPs per second to assume, in 1e12; 0: the device's peak, or 100"),
    CT_OPT_FLOAT(struct sac_config, memory_gbps, "memory_gbps", "0", 0, 1e9,
                 "Bytes per second of the device's memory to assume, in 1e9; 0: one byte for 200 "
                 "FLOPs, on a CPU for 20"),
    CT_OPT_FLOAT(struct sac_config, link_gbps, "link_gbps", "0", 0, 1e9,
                 "Bytes per second between ranks to assume, in 1e9; 0: a tenth of the memory's"),
    CT_OPT_FLOAT(struct sac_config, host_gbps, "host_gbps", "0", 0, 1e9,
                 "Bytes per second to host memory, and as many back, to assume, in 1e9; 0: a "
                 "hundredth of the memory's, on a CPU a tenth"),
    {0}};

static int choose(struct sac *s, struct ct_run *run)
{
    if (sac_config.mode == SAC_BUDGET || sac_config.mode == SAC_AUTO)
        return sac_choose_by_search(s, run);
    return sac_choose_by_rule(s);
}

/* Warnings: to try another mode, only `mode` is set, by `ctitan tune` too. */
static void warn_of_unused(const struct ct_recipe *recipe)
{
    enum sac_mode mode = sac_config.mode;
    bool searches = mode == SAC_BUDGET || mode == SAC_AUTO;
    const struct ct_option_use uses[] = {{"every", mode == SAC_LAYER, "it is for mode = layer"},
                                         {"save_ops", mode == SAC_OP, "it is for mode = op"},
                                         {"budget", mode == SAC_BUDGET, "it is for mode = budget"},
                                         {"memory", mode == SAC_AUTO, "it is for mode = auto"},
                                         {"measure", searches, FOR_SEARCH},
                                         {"tflops", searches, FOR_SEARCH},
                                         {"memory_gbps", searches, FOR_SEARCH},
                                         {"link_gbps", searches, FOR_SEARCH},
                                         {"host_gbps", searches, FOR_SEARCH},
                                         {0}};
    static bool told;
    char name[16];

    ct_option_format(ct_option_find(options, "mode"), &sac_config, name, sizeof(name));
    for (const struct ct_option_use *u = uses;
         !told && (u = ct_options_unused(options, &sac_config, u)); u++) {
        const char *source = ct_recipe_source(recipe, "sac", u->name);

        ct_warn("%s%s[sac] %s has no effect: %s, and mode is %s", source ? source : "",
                source ? ": " : "", u->name, u->why, name);
    }
    told = true;
}

static int apply(struct ct_graph *graph, struct ct_run *run)
{
    struct sac s;
    int rc;

    if (run && run->rank == 0)
        warn_of_unused(run->recipe);
    if (sac_config.mode == SAC_NONE && !*sac_config.offload)
        return 0;
    rc = sac_begin(&s, graph, run);
    if (rc == 0)
        rc = sac_find_leaving(&s);
    if (rc == 0)
        rc = choose(&s, run);
    if (rc == 0)
        rc = sac_replay(&s);
    sac_finish(&s);
    return rc;
}

static const struct ct_transform transform = {
    .size = sizeof(struct ct_transform),
    .name = "sac",
    .summary = "chooses which activations are kept, and recomputes the others for the backward",
    .phase = CT_PHASE_MEMORY,
    .after = CT_NAMES("regathered"),
    .apply = apply,
};

static const char *varies(void)
{
    return sac_config.measure ? "[sac] measure = true chooses what is recomputed by times that "
                                "differ from run to run"
                              : NULL;
}

CT_PLUGIN(.name = "sac", .version = "1.0", .summary = "Selective activation checkpointing",
          .options = options, .config = &sac_config, .config_size = sizeof(sac_config),
          .offers = CT_OFFERS({CT_TRANSFORM, "sac", &transform}), .varies = varies);
