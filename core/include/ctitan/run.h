/*
 * A run: one recipe brought to life on one rank.
 *
 * ct_run_open does everything up to the first step (mesh, graph, transforms, program, memory,
 * weights); ct_run_train walks it. `plan` and `explain` stop half way.
 */
#ifndef CT_RUN_H
#define CT_RUN_H

#include <ctitan/comm.h>
#include <ctitan/hook.h>
#include <ctitan/model.h>
#include <ctitan/pass.h>
#include <ctitan/program.h>
#include <ctitan/recipe.h>

struct ct_step_result {
    int64_t step; /* 1-based */
    double loss, grad_norm, lr;
    int64_t tokens;      /* trained in this step, over all ranks, masked ones included */
    int64_t tokens_seen; /* since the run's first step */
    double seconds;      /* of this step, data included */
    double data_seconds;
    bool skipped; /* non-finite: nothing was updated */
};

/* A parameter of the whole model, wherever it lies. */
struct ct_weight_place {
    const char *name;
    enum ct_dtype dtype;
    int rank;
    int64_t shape[CT_MAX_RANK];
    struct ct_sharding sharding;
    uint64_t holders; /* coordinates along pp, as bits */
};

struct ct_run {
    struct ct_arena arena;
    struct ct_recipe *recipe;
    int64_t rank, world;
    struct ct_mesh mesh;

    const struct ct_model_ops *model;
    const struct ct_optimizer_ops *optimizer;
    const struct ct_tokenizer_ops *tokenizer; /* NULL: none */
    const struct ct_data_ops *data_ops;
    struct ct_data *data;
    const struct ct_device_ops *device_ops;
    struct ct_device *device;
    struct ct_communicator communicator; /* comm NULL: one rank */

    struct ct_graph *graph; /* after all transforms */
    struct ct_program *program;
    struct ct_executor *executor;
    double start_time;               /* of the process, seconds of CLOCK_MONOTONIC */
    size_t arena_bytes;              /* on the device: training and validation */
    size_t offloaded_bytes;          /* in its second memory */
    int64_t parameters;              /* elements, each once, over all ranks */
    struct ct_weight_place *weights; /* all parameters of the model, in its order */
    size_t weight_count;

    struct ct_graph *validation_graph; /* NULL: no validation */
    struct ct_program *validation_program;
    struct ct_executor *validation_executor;
    struct ct_data *validation_data;
};

enum ct_run_depth {
    CT_RUN_GRAPH,   /* graph and transforms */
    CT_RUN_PROGRAM, /* lowered and planned; the device is open, no memory is taken */
    CT_RUN_READY,   /* memory, weights, data */
};

struct ct_run_options {
    enum ct_run_depth depth;
    int64_t rank, world;         /* world 0: one rank */
    int local_rank, local_ranks; /* on this host; local_ranks 0: one */
    const char *job;             /* unique on this host; with more than one rank */
    bool logits;                 /* no training: a forward of one sequence that fetches "logits" */
    struct ct_pass_options passes; /* dumps; `training` is set here */
};

/* recipe has been applied. On failure everything is undone. */
CT_API int ct_run_open(struct ct_recipe *recipe, const struct ct_run_options *options,
                       struct ct_run **run);
CT_API void ct_run_close(struct ct_run *run);
/* All steps of the recipe, validation included; hooks see each. 0 at the end of steps or data. */
CT_API int ct_run_train(struct ct_run *run);
/* Write the weights as a Hugging Face folder. */
CT_API int ct_run_save(struct ct_run *run, const char *folder);

/* Seconds of CLOCK_MONOTONIC. */
CT_API double ct_now(void);

#endif
