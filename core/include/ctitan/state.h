/*
 * Parameters and states of a run (struct ct_state, run.h), for hooks: which shards each rank holds,
 * and how the host reads and writes them. Functions are called on the main thread, between two
 * steps, unless they say otherwise.
 */
#ifndef CT_STATE_H
#define CT_STATE_H

#include <ctitan/run.h>

CT_BEGIN_DECLS

/* From now on a state whose name is `prefix` and that of a parameter follows the parameter: where a
   checkpoint has no such state, it begins with the weights. */
CT_API void ct_state_follow(const char *prefix);
/* The name of the parameter that a state of this name follows, within it; NULL: none. */
CT_API const char *ct_state_followed(const char *name);

/* Whether a state is read from its set's folder whenever a run opens: checkpoints leave it out. */
CT_API bool ct_state_reloads(const struct ct_state *state);

/* The state called name, or NULL. */
CT_API const struct ct_state *ct_run_state(const struct ct_run *run, const char *name);
/* The shard of a rank: its shape, and its offset in the whole (each may be NULL). False: the rank
   has no shard. */
CT_API bool ct_run_shard(const struct ct_run *run, const struct ct_state *state, int64_t rank,
                         int64_t *shape, int64_t *offset);
/* How many ranks have the same shard as rank, which has it too; *number: of rank among them, from
   0. */
CT_API int64_t ct_run_shard_copies(const struct ct_run *run, const struct ct_state *state,
                                   int64_t rank, int64_t *number);
/* Whether rank is the first of the ranks with the same shard. */
CT_API bool ct_run_shard_first(const struct ct_run *run, const struct ct_state *state,
                               int64_t rank);
/* Bytes of this rank's shard, dense. */
CT_API size_t ct_run_shard_bytes(const struct ct_run *run, const struct ct_state *state);

/*
 * Copy a box of this rank's shard to or from dense host memory. The box begins at offset (NULL: 0)
 * and has this shape (NULL: the whole shard). CT_EINVAL: the state is not on this rank, or the box
 * is not inside the shard. Writing a held state waits until it is released.
 */
CT_API int ct_run_read(struct ct_run *run, const struct ct_state *state, const int64_t *offset,
                       const int64_t *shape, void *host);
CT_API int ct_run_write(struct ct_run *run, const struct ct_state *state, const int64_t *offset,
                        const int64_t *shape, const void *host);
/* Write the part of a box that this rank holds, if any. The box is in coordinates of the whole
   state and dense in host. So a run can read a shard that was saved on another mesh. CT_EINVAL: the
   box is not inside the whole. */
CT_API int ct_run_fill(struct ct_run *run, const struct ct_state *state, const int64_t *offset,
                       const int64_t *shape, const void *host);

/*
 * A parameter whose elements are codes: who reads and writes weights has numbers, through this.
 * Other states beside it, such as scales, belong to it. Everything else (checkpoints, collectives)
 * moves codes and scales as they are.
 */
struct ct_coding {
    size_t size; /* of this struct */
    /* Fill this rank's shards of the parameter, and of the states that belong to it. read gives any
       box of the whole parameter, as dense float32; it may be called for the same box again. A rank
       that holds nothing of it does not call this. */
    int (*encode)(struct ct_run *run, const struct ct_state *param,
                  int (*read)(void *context, const int64_t *offset, const int64_t *shape,
                              float *to),
                  void *context);
    /* Decode a box of this rank's shard, which begins at offset in it, to dense float32. */
    int (*decode)(struct ct_run *run, const struct ct_state *param, const int64_t *offset,
                  const int64_t *shape, float *to);
};

/*
 * Copying while the next steps run. On STEP_END, which is after the optimizer's last write, the
 * main thread holds the states to copy. The run goes on, but waits before it first writes a held
 * state until that is released. Meanwhile a thread of the hook, one at a time, copies bytes of this
 * rank's dense shard to staging. Any thread releases a state; all must be released before RUN_END
 * or FAILURE ends. A state that is not on this rank is neither held nor released. CT_EINVAL: it is
 * not on this rank, the bytes are not inside the shard, or the device offers no such copies.
 */
CT_API void ct_run_hold(struct ct_run *run, const struct ct_state *state);
CT_API void ct_run_release(struct ct_run *run, const struct ct_state *state);
/* This rank's shard, if the device computes in host memory; else NULL. A thread of the hook may
   read it as long as the state is held. */
CT_API const void *ct_run_memory(const struct ct_run *run, const struct ct_state *state);
/* Whether a step waits for a held state now; of any thread. */
CT_API bool ct_run_waits(const struct ct_run *run);
/* Seconds that steps have waited for held states. */
CT_API double ct_run_waited(const struct ct_run *run);
CT_API int ct_run_copy_out(struct ct_run *run, const struct ct_state *state, size_t from,
                           size_t bytes, void *staging);
/* Zeroed whole pages of host memory that the device copies to at full speed (pinned, for a GPU). */
CT_API int ct_run_staging(struct ct_run *run, size_t bytes, void **staging);
/* bytes: as given to ct_run_staging. staging may be NULL. */
CT_API void ct_run_staging_free(struct ct_run *run, void *staging, size_t bytes);

CT_END_DECLS

#endif
