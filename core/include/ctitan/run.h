/*
 * A run: one recipe on one rank.
 *
 * ct_run_open does everything up to the first step (mesh, graph, transforms, program, memory,
 * weights). train.h runs the steps. `plan` and `explain` stop half way.
 */
#ifndef CT_RUN_H
#define CT_RUN_H

#include <stdio.h>

#include <ctitan/clock.h>
#include <ctitan/config.h>
#include <ctitan/device/comm.h>
#include <ctitan/hook.h>
#include <ctitan/model.h>
#include <ctitan/objective.h>
#include <ctitan/pass.h>
#include <ctitan/program.h>

CT_BEGIN_DECLS

struct ct_step_result {
    int64_t step; /* 1-based */
    double loss, grad_norm, lr;
    int64_t tokens;      /* trained in this step, over all ranks, masked ones included */
    int64_t tokens_seen; /* since step 1, this step included */
    double seconds;      /* of this step, data included */
    double data_seconds; /* spent waiting for samples and copying them to the device */
    bool skipped;        /* non-finite, or withheld (train.h): nothing was updated */
    bool goes_back;      /* skipped, and a hook on STEP_END must set the steps back */
};

/*
 * Progress of a run. A hook on RUN_LOAD, RUN_READY or STEP_END may set it, equally on all ranks.
 * The run then continues from there, with the learning rate of that step and the next samples. On
 * STEP_BEGIN a hook may set the samples. After a step that goes_back, a hook must set the steps
 * back.
 */
struct ct_progress {
    int64_t step;    /* being run; between two steps, the next one. 1-based */
    int64_t updates; /* applied so far; fewer than steps if one was skipped */
    int64_t tokens;  /* trained so far, over all ranks, masked ones included */
    int64_t samples; /* read so far, over all ranks: number of the next one */
};

/* A parameter or state of the whole run, whichever ranks hold it. */
struct ct_state {
    const char *name;
    enum ct_role role; /* CT_ROLE_PARAM or CT_ROLE_STATE (the optimizer's) */
    enum ct_dtype dtype;
    int ndim;
    int64_t shape[CT_MAX_DIMS];     /* of the whole */
    struct ct_sharding sharding;    /* over the run's mesh */
    struct ct_ranks holders;        /* as in struct ct_value */
    const struct ct_value *value;   /* in run->graph; NULL: not on this rank */
    const struct ct_coding *coding; /* its elements are codes of numbers (state.h); NULL: numbers */
    const struct ct_weight_set
        *set; /* a parameter of this second set of weights (graph.h), which is
                                        a state here, as it is not trained; NULL: it is none */
};

/* Memory of a plugin that belongs to a run's state. */
struct ct_kept {
    const char *name;
    void *data;
    size_t bytes;
};

/* A scalar that a model, an objective or a transform fetches, besides the loss and the norm: the
   sum over the step (or the validation), or the mean, if something divides it. */
struct ct_metric {
    const char *name; /* of the fetch */
    double value;     /* NAN: there was nothing to divide by */
};

/* Streams of a plugin beside those of the data source: some of run->streams. */
struct ct_run_beside {
    const struct ct_beside_ops *ops;
    struct ct_beside *open;
    size_t first, count;
};

/* Files of one kind that a run writes to the disk. */
struct ct_written {
    const char *what, *folder; /* "checkpoints" */
    double bytes;              /* of one */
    int64_t count;             /* from here on to the end of the run; 0: unknown */
    int64_t most;              /* that are there at once; 0: all */
    bool last;                 /* one, at the end of the run */
};

/* Causes for which a run does not train though it goes on. */
enum ct_lost { CT_LOST_DATA, CT_LOST_SAVE, CT_LOST_VALIDATION, CT_LOST_COUNT };

/* Data of a set of [validation.NAME]. */
struct ct_named_data {
    const char *name;
    struct ct_data *data;
};

/* The best validation so far. */
struct ct_best {
    double loss;
    int64_t step;  /* after which it was; 0: there was none */
    int64_t since; /* validations after it */
};

/* Where the time goes from ct_run_open to the end of the first step, in the order of the work. */
#define CT_START_PARTS(X)                                                                          \
    X(GRAPH, "graph and data")                                                                     \
    X(RENDEZVOUS, "rendezvous")                                                                    \
    X(COMPARE, "comparing ranks")                                                                  \
    X(LOWER, "lowering")                                                                           \
    X(GROUPS, "groups")                                                                            \
    X(WEIGHTS, "memory and weights")                                                               \
    X(LOAD, "checkpoint and hooks")                                                                \
    X(FIRST_STEP, "first step")

enum ct_start_part {
#define X(id, text) CT_START_##id,
    CT_START_PARTS(X)
#undef X
        CT_START_PART_COUNT
};

struct ct_run_set;

struct ct_run {
    struct ct_arena arena;
    struct ct_recipe *recipe;
    int64_t rank, world;
    struct ct_mesh mesh;
    ct_axes batch_axes; /* these split the sequences of a batch */
    ct_axes head_axes;  /* these split the heads of attention */

    const struct ct_model_ops *model_ops;
    struct ct_model *model;
    const struct ct_optimizer_ops *optimizer;
    const struct ct_lr_schedule_ops *lr_schedule; /* NULL: ct_lr_factor */
    const struct ct_tokenizer_ops *tokenizer;     /* NULL: none */
    const struct ct_data_ops *data_ops;
    struct ct_data *data;
    const struct ct_device_ops *device_ops;
    struct ct_device *device;
    struct ct_communicator communicator; /* comm NULL: one rank */

    struct ct_graph *graph; /* after all transforms */
    struct ct_program *program;
    struct ct_executor *executor;
    double start_time;       /* of ct_run_open, seconds of CLOCK_MONOTONIC */
    size_t arena_bytes;      /* on the device: training and validation */
    size_t host_bytes;       /* in its host memory */
    int64_t parameters;      /* elements over all ranks, each counted once */
    struct ct_state *states; /* every parameter and state, the same list on all ranks */
    size_t state_count;
    struct ct_progress progress;
    const char *stop; /* why the run ends early (ct_run_stop); NULL: it does not; read and written
                         atomically */
    struct ct_group *world_group;
    struct ct_kept *kept;
    size_t kept_count, kept_room;

    /* Only with peers: the graphs before the first transform by_rank. */
    struct ct_graph *common_graph, *common_validation_graph;
    const struct ct_run *peer_of; /* its device and model are used; NULL: this run has its own */
    struct ct_run *next_open;     /* of the runs of this process that have a group of all ranks */

    struct ct_graph *validation_graph; /* NULL: no validation */
    struct ct_program *validation_program;
    struct ct_executor *validation_executor;
    struct ct_data *validation_data; /* held out by the data source; NULL: none */
    int64_t began; /* the step that this process's training began with; 0: there is none */
    /* Streams of the data source, then those beside it; ended by {0}. */
    const struct ct_data_stream *streams;
    const struct ct_objective_ops *objective;
    /* Metrics of the step or validation that ended last, for hooks on STEP_END and VALIDATED. */
    const struct ct_metric *metrics;
    size_t metric_count;
    bool rewinds; /* a hook on RUN_LOAD sets it: it sets the steps back after one that was skipped,
                     as [training] non_finite = rewind asks. Its plugin offers it as {CT_HOOK,
                     "rewind", ..}, so that messages name the plugin. */
    struct ct_named_data *sets; /* beside validation_data, which may be NULL then */
    size_t set_count;
    struct ct_best best;
    double spent[CT_START_PART_COUNT]; /* seconds of each part, by enum ct_start_part */
    struct ct_run_set *weight_sets;    /* second sets of weights (core/run/weights.c) */
    size_t weight_set_count;
    struct ct_run_beside *beside;
    size_t beside_count;
    /* Inputs of the graph, for hooks on STEP_BEGIN: see CT_UPDATE_FACTOR in train.h. INFINITY: any.
       Equal on all ranks. */
    double loss_limit, norm_limit;
    struct ct_written *writes; /* ct_run_foresee */
    size_t write_count, write_room;
    double lost[CT_LOST_COUNT];     /* seconds of this process; who knows a cause adds to it */
    const char *withheld_goes_back; /* a hook on RUN_READY sets it: steps go back if their update
                                       was withheld; the option that says so. NULL: they do not */
    int stop_signal; /* number of the signal that made a hook call ct_run_stop; 0: none. Equal on
                        all ranks */
    int64_t saved;   /* set by hooks that save: last step with which the same command would go on;
                        0: none */
    size_t stage;    /* of stage.h, whose graphs, programs, data and options this run
                                       and ct_config have now */
    struct ct_run_stage *stages; /* core/run/stages.c */
    int64_t samples_since;       /* the step with which the stage began whose data
                                       progress.samples counts; 0: not known */
};

enum ct_run_depth {
    CT_RUN_MODEL,   /* the model's sizes */
    CT_RUN_GRAPH,   /* graph and transforms */
    CT_RUN_PROGRAM, /* lowered and planned; the device is open, no memory is taken */
    CT_RUN_READY,   /* memory, weights, data */
};

struct ct_run_options {
    enum ct_run_depth depth;
    int64_t rank, world;         /* world 0: one rank */
    int local_rank, local_ranks; /* on this host; local_ranks 0: one */
    const char *job;             /* unique on this host; needed for more than one rank */
    /* No training: a forward of `sequences` (0: one; more where data-parallel ranks do not divide
       them) that fetches "logits". A step takes `tokens` of each sequence (0: [training] seq_len).
       With tokens above 0 there is a second graph, for one token of each, in the place of
       validation's. One rank has no mesh, whatever the recipe's is. */
    bool logits;
    int64_t sequences, tokens;
    bool peers;                    /* ct_run_open_peer will be called */
    struct ct_pass_options passes; /* for dumps; ct_run_open sets `training` */
    /* Folder to read weights from in the place of [model] init_from, which still names the model's
       sizes and its tokenizer. NULL: init_from. */
    const char *weights;
    /* With logits, and tokens 0: the graph takes documents, which the caller feeds, as tokens and
       positions. */
    bool documents;
};

/* recipe must have been applied. On failure everything is undone. */
CT_API int ct_run_open(struct ct_recipe *recipe, const struct ct_run_options *options,
                       struct ct_run **run);
/* Free everything that ct_run_open made. run may be NULL. */
CT_API void ct_run_close(struct ct_run *run);
/*
 * Open the same run as another rank sees it: its graphs and programs, made from what all ranks have
 * in common. run must have been opened with .peers to CT_RUN_PROGRAM. Close the peer before run.
 */
CT_API int ct_run_open_peer(const struct ct_run *run, int64_t rank, struct ct_run **peer);

/* Before a run trains, or where it does not: let run have the graphs and programs of a stage, and
   ct_config its options. Who looks at stages goes back to the one that the run had. */
CT_API int ct_run_look_at_stage(struct ct_run *run, size_t stage);
/* Sequences of a step, over all data-parallel ranks. */
CT_API int64_t ct_run_batch(const struct ct_run *run);
/* Sequences in a microbatch over all data-parallel ranks, and microbatches in a step. CT_ECONFIG:
   the recipe's numbers do not fit each other. */
CT_API int ct_run_batch_sizes(const struct ct_run *run, int64_t *batch, int *microbatches);

/*
 * For transforms that choose by trying: the program that this rank would get if the transform
 * called `behind` turned its input into `graph`, a clone. The program is allocated in the
 * graph's arena. The run's recipe and graphs do not change, but its device is opened if it was not,
 * and the transforms behind may keep what they like in their own memory. They log warnings alone.
 */
CT_API int ct_run_try(struct ct_run *run, struct ct_graph *graph, const char *behind,
                      struct ct_program **program);

/*
 * For hooks on PLAN_READY: memory that belongs to the state of the run, besides parameters, states
 * and progress. Checkpoints save rank 0's bytes as they are, and restore them on all ranks at
 * RUN_READY. name ("metrics.seconds") and data live as long as the run.
 */
CT_API void ct_run_keep(struct ct_run *run, const char *name, void *data, size_t bytes);

/* For hooks on PLAN_READY: what the run will write, shown by `plan`. The texts live as long as the
   run. */
CT_API void ct_run_foresee(struct ct_run *run, const struct ct_written *written);
/* Bytes of all that was foreseen for the end of the run on the disk of folder. Of folders that are
   not there yet, the disk is not known: they do not count. */
CT_API double ct_run_foreseen_last(const struct ct_run *run, const char *folder);

/*
 * The group of all ranks, for hooks: ct_group_barrier(group), ct_group_all_gather and the like
 * (comm.h), on host memory. All ranks make the same calls, on the main thread. In a run of
 * one rank, calls act as in a group of one.
 */
CT_API struct ct_group *ct_run_world(const struct ct_run *run);
/* Check that all ranks read the same files. text: lines "reads WHAT: VALUE", in the same order on
   all. Collective, as the calls above. CT_ECONFIG on all ranks, with the first line that differs
   from rank 0's. */
CT_API int ct_run_compare(struct ct_run *run, const char *text);
/* "rendezvous" */
CT_API const char *ct_start_part_name(enum ct_start_part part);
/* The open run that has this group of all ranks; NULL: none. */
CT_API struct ct_run *ct_run_of_world(const struct ct_group *world);

CT_END_DECLS

#endif
