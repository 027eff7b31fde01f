/*
 * Stages of a run: options that change from a step on.
 *
 *     [stage.2]
 *     begin = 40000
 *     seq_len = 8192
 *     adamw.lr = 1e-4
 *
 * A stage has the options of the one before it, except those that it sets. The first one is the
 * recipe without its sections [stage.N]. The levels of [training] batch_ramp are stages, too. All
 * stages of a run train the same weights with the same optimizer, on the same mesh; opening a run
 * plans each of them, and training goes over from one to the next between two steps (hook.h).
 *
 * The list belongs to the recipe that was applied last, and is there from then on.
 */
#ifndef CT_STAGE_H
#define CT_STAGE_H

#include <ctitan/recipe.h>

CT_BEGIN_DECLS

#define CT_STAGES 256 /* of a run, at most */

struct ct_stage {
    int64_t begin;    /* its first step; 1: the first stage */
    const char *what; /* "seq_len = 8192, adamw.lr = 1e-4"; "": the first stage */
    bool own_data;    /* its samples are others than those of the stage before */
};

/* Number of stages, at least 1. */
CT_API size_t ct_stage_count(void);
CT_API const struct ct_stage *ct_stage_at(size_t index);
/* The stage that a step belongs to. */
CT_API size_t ct_stage_of(int64_t step);
/* Set the options of a stage in ct_config and the configurations of plugins. CT_ECONFIG: a value is
   wrong. */
CT_API int ct_stage_enter(size_t index);

/* Let the recipe be that of a stage alone, from the first step on. */
CT_API int ct_stage_alone(size_t index);

/* The value of a key in the stage of a step, as the text of a recipe says it, which need not have
   been applied; NULL: it sets none. */
CT_API const char *ct_recipe_get_at(const struct ct_recipe *recipe, int64_t step,
                                    const char *section, const char *key);
/* The same of a positive integer; 0: the recipe sets none. */
CT_API int64_t ct_recipe_integer_at(const struct ct_recipe *recipe, int64_t step,
                                    const char *section, const char *key);

CT_END_DECLS

#endif
