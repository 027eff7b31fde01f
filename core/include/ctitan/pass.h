/*
 * Transforms of the graph, and the manager that runs them.
 *
 * A transform declares its phase. Within a phase, transforms are ordered by the properties that
 * they need and give (names such as "gradients"), so their order in the manifest does not matter.
 * After each transform the manager verifies the graph and times the transform. A watch may print
 * the graph, and what reproduces a failure.
 *
 * Properties are names that transforms agree on; the core attaches no meaning to them.
 * docs/plugins.md lists those in use.
 */
#ifndef CT_PASS_H
#define CT_PASS_H

#include <ctitan/graph.h>

CT_BEGIN_DECLS

enum ct_phase {
    CT_PHASE_PARTITION,
    CT_PHASE_SHARD,
    CT_PHASE_PRECISION,
    CT_PHASE_JOIN, /* joins plain ops into ops that compute several at once */
    CT_PHASE_DIFFERENTIATE,
    CT_PHASE_UPDATE,     /* gradient norm, clipping, optimizer */
    CT_PHASE_COLLECTIVE, /* propagates shardings through the above, inserts collectives */
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
    const char *const *breaks; /* properties that no longer hold afterwards */
    const char *const *after;  /* as needs, but only for the order: may be missing */
    bool evaluation;           /* runs on graphs without a backward too */
    int (*apply)(struct ct_graph *graph, struct ct_run *run);
    /* The result depends on run->rank, in more than offsets. Before the first such transform the
       graph is the same on all ranks, and a plan of several ranks makes it once. */
    bool by_rank;
    bool required; /* numbers are wrong without it: [training] skip cannot leave it out */
};

/* "partition", "shard" and so on. */
CT_API const char *ct_phase_name(enum ct_phase phase);

/*
 * Register a library's transform. Every run of this process uses it, beside those of the core and
 * of the run's plugins. CT_EINVAL: its name is registered already.
 */
CT_API int ct_transform_register(const struct ct_transform *transform);
/* The i-th registered transform, NULL after the last. */
CT_API const struct ct_transform *ct_transform_at(size_t index);
/*
 * Put the transform that failed with rc before the message; returns rc. Where a library's transform
 * finds the recipe to blame (CT_ECONFIG), the message stays: no recipe asks for it by name.
 */
CT_API int ct_transform_context(int rc, const struct ct_transform *transform);

/* Which of the ordered transforms are run. */
enum ct_pass_range {
    CT_PASSES_ALL,
    CT_PASSES_OF_ALL_RANKS, /* those before the first by_rank */
    CT_PASSES_OF_ONE_RANK,  /* from there on */
};

struct ct_dump; /* text.h */

struct ct_pass_options {
    bool training; /* false: only transforms with .evaluation */
    enum ct_pass_range range;
    const char *behind;   /* only those after this transform; NULL: all of range */
    struct ct_dump *dump; /* of the graph while it is transformed; NULL: none */
};

/*
 * Run the transforms (an array of pointers, in any order) on graph. CT_ECONFIG: no transform gives
 * a property that another one needs, or there is a cycle.
 */
CT_API int ct_passes_run(struct ct_graph *graph, const struct ct_transform *const *transforms,
                         size_t count, struct ct_run *run, const struct ct_pass_options *options);

/*
 * The core's own transforms, always there: "differentiate", and "propagate" (shardings and the
 * collectives that follow from them).
 */
CT_API extern const struct ct_transform ct_pass_differentiate, ct_pass_propagate;
/* Passes of every training: "precision" (casts for [training] mixed_precision_param) and "update"
   (norm, clipping and the chosen optimizer). */
CT_API extern const struct ct_transform ct_pass_precision, ct_pass_update;
/* CT_EINVAL names a parameter that no op updates in place: its optimizer's `build` left it out. */
CT_API int ct_check_updates(struct ct_value *const *params, size_t count);

/*
 * Reverse-mode differentiation of the fetch called "loss": appends I and W ops, and sets
 * value->grad of every parameter. The seed is 1 / the scalar that divides the loss ("valid_tokens"
 * if none does), so gradients are those of the mean over the global batch. An op that only the
 * gradients of parameters need is W; all others are I.
 */
CT_API int ct_differentiate(struct ct_graph *graph);

CT_END_DECLS

#endif
