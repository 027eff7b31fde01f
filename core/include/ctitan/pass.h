/*
 * Transforms of the graph, and the manager that runs them.
 *
 * A transform declares its phase; within a phase, what it needs and gives (names of properties,
 * such as "gradients") orders it, so the order of the manifest does not matter. The manager, not
 * the transform, verifies after each, times it, dumps on request, and on failure writes a
 * reproducer: the graph before it and the list of transforms.
 *
 * Properties are words between transforms; nothing else is known of them. docs/plugins.md lists
 * those in use.
 */
#ifndef CT_PASS_H
#define CT_PASS_H

#include <ctitan/graph.h>

CT_BEGIN_DECLS

enum ct_phase {
    CT_PHASE_PARTITION,
    CT_PHASE_SHARD,
    CT_PHASE_PRECISION,
    CT_PHASE_JOIN, /* plain ops become ops that do several at once */
    CT_PHASE_DIFFERENTIATE,
    CT_PHASE_UPDATE,     /* gradient norm, clipping, optimizer */
    CT_PHASE_COLLECTIVE, /* shardings propagated through all of that, collectives inserted */
    CT_PHASE_MEMORY,
    CT_PHASE_OVERLAP,
    CT_PHASE_FUSE,
};

struct ct_run; /* run.h: recipe, device, mesh, rank */

struct ct_transform {
    size_t size; /* of this struct */
    const char *name;
    const char *summary;
    enum ct_phase phase;
    const char *const *needs; /* property names, NULL ends; NULL: none */
    const char *const *gives;
    const char *const *breaks; /* properties that are gone afterwards */
    const char *const *after;  /* as needs, but only an order: nobody has to give them */
    bool evaluation;           /* runs on graphs without a backward too */
    int (*apply)(struct ct_graph *graph, struct ct_run *run);
    /* What it makes depends on run->rank, in more than offsets. Up to the first such transform the
       graph is the same on all ranks, and a plan of several ranks makes it once. */
    bool by_rank;
};

CT_API const char *ct_phase_name(enum ct_phase phase);

/*
 * Transforms of libraries, which every run of this process takes beside the core's and those of its
 * plugins. CT_EINVAL on a second one of one name.
 */
CT_API int ct_transform_register(const struct ct_transform *transform);
/* The i-th registered one, NULL after the last. */
CT_API const struct ct_transform *ct_transform_at(size_t index);

/* Which transforms are run, of those in their order. */
enum ct_pass_range {
    CT_PASSES_ALL,
    CT_PASSES_OF_ALL_RANKS, /* those before the first by_rank */
    CT_PASSES_OF_ONE_RANK,  /* from there on */
};

struct ct_pass_options {
    bool training; /* false: only transforms with .evaluation */
    enum ct_pass_range range;
    const char *behind;     /* only those behind the transform of that name; NULL: all of range */
    const char *dump_after; /* NULL, a name, "all" or "changed" */
    FILE *dump;             /* where dumps go */
    const char *reproducer; /* path written on failure; NULL: none */
};

/*
 * Run the transforms (an array of pointers, any order) on graph. CT_ECONFIG: a need that nobody
 * gives, or a cycle. On success *seconds (may be NULL) is the time spent in them.
 */
CT_API int ct_passes_run(struct ct_graph *graph, const struct ct_transform *const *transforms,
                         size_t count, struct ct_run *run, const struct ct_pass_options *options);

/*
 * The core's own transforms, always there: "precision" (casts for [training]
 * mixed_precision_param), "differentiate", "update" (norm, clipping and the chosen optimizer),
 * "propagate" (shardings and the collectives that follow from them).
 */
CT_API extern const struct ct_transform ct_pass_precision, ct_pass_differentiate, ct_pass_update,
    ct_pass_propagate;

/*
 * Reverse-mode differentiation of the fetch called "loss": appends I and W ops; sets value->grad of
 * every parameter. The seed is 1 / (scalar "valid_tokens"), so gradients are those of the mean over
 * the global batch's unmasked tokens. I and W are told apart by reachability: what only a
 * parameter's gradient needs is W.
 */
CT_API int ct_differentiate(struct ct_graph *graph);

CT_END_DECLS

#endif
