/*
 * The values of a recipe that the core and training read. recipe.h reads recipes and fills this
 * in, like the configurations of plugins.
 */
#ifndef CT_CONFIG_H
#define CT_CONFIG_H

#include <ctitan/tensor.h>

CT_BEGIN_DECLS

struct ct_job_config {
    const char *name, *dump_folder, *description;
};
/* [training] non_finite */
enum ct_non_finite { CT_NON_FINITE_STOP, CT_NON_FINITE_SKIP, CT_NON_FINITE_REWIND };
struct ct_training_config {
    int64_t seq_len, local_batch_size, global_batch_size, steps, seed;
    double max_norm;
    enum ct_dtype dtype, mixed_precision_param;
    enum ct_non_finite non_finite;
    const char *skip; /* names of transforms, comma-separated */
};
struct ct_model_config {
    const char *name, *flavor, *init_from, *save_to;
    double max_shard_size; /* of a file of save_to, GB */
};
enum ct_decay { CT_DECAY_LINEAR, CT_DECAY_SQRT, CT_DECAY_COSINE };
struct ct_lr_config {
    int64_t warmup_steps;
    double decay_ratio; /* negative: not set */
    enum ct_decay decay_type;
    double min_lr_factor;
};
struct ct_validation_config {
    int64_t freq, steps;
};
/* [validation.NAME] */
struct ct_validation_set {
    const char *name, *path;
};
struct ct_comm_config {
    double timeout;        /* seconds */
    double start_timeout;  /* until the first step has ended; 0: timeout */
    const char *interface; /* of the network; empty: any */
};
struct ct_config {
    struct ct_job_config job;
    struct ct_training_config training;
    struct ct_model_config model;
    struct ct_lr_config lr_scheduler;
    struct ct_validation_config validation;
    struct ct_comm_config comm;
    int64_t lr_total_steps;   /* [lr_scheduler] total_steps; 0: training.steps */
    bool model_overwrite;     /* [model] overwrite */
    const char *objective;    /* [objective] name */
    const char *model_ignore; /* [model] ignore: keys of config.json */
    double initializer_range; /* [model] initializer_range; 0: models have rules of their own */
    int64_t training_epochs;  /* [training] epochs, from which opening a run sets steps; 0: none */
    int64_t patience;         /* [validation] patience; 0: none */
    double min_delta;         /* [validation] min_delta */
    const char *best_set;     /* [validation] best_set; "": the first */
    const struct ct_validation_set *validation_sets; /* in the recipe's order */
    size_t validation_set_count;
    const char *stop_after; /* [training] stop_after, as --until; "": never */
    const char *batch_ramp; /* [training] batch_ramp, whose levels are stages (stage.h); "": none */
    bool deterministic;     /* [training] deterministic */
};
CT_API extern struct ct_config ct_config;

CT_END_DECLS

#endif
