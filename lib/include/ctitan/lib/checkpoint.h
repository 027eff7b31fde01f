/*
 * Checkpoints without a run: parameters and states of an optimizer, read box by box, and weights
 * written as a checkpoint to start from.
 *
 * A plugin that keeps checkpoints offers {CT_CHECKPOINTS, "its name", &ops}. Those who read or
 * write them outside of a run get these functions by ct_checkpoints_find, and know nothing of the
 * format.
 */
#ifndef CT_CHECKPOINT_H
#define CT_CHECKPOINT_H

#include <ctitan/model.h>
#include <ctitan/run.h>

CT_BEGIN_DECLS

struct ct_checkpoint_tensor {
    const char *name;
    enum ct_role role;
    enum ct_dtype dtype;
    int ndim;
    int64_t shape[CT_MAX_DIMS];
    bool absent;  /* a parameter that the model's files of weights lack */
    bool follows; /* a state that follows a parameter: no run needs it */
};

struct ct_checkpoint {
    const char *path; /* of the checkpoint */
    int64_t step;     /* after which it was saved; 0: before the first one */
    /* The files beside weights (struct ct_weights_ops): the model's description, as config.json is
       one (NULL: none), and small files. */
    const char *config;
    struct ct_small_files files;
    struct ct_checkpoint_tensor *tensors;
    size_t count;
    void *own; /* of the format, while it is open */
};

/* A box of a parameter to write: dense data, or what `read` gives. */
struct ct_checkpoint_box {
    size_t tensor; /* its index */
    int64_t offset[CT_MAX_DIMS], shape[CT_MAX_DIMS];
    const void *data;
    /* The elements [at, at + count) of the box, in order. Called by any thread. */
    void (*read)(const void *context, int64_t at, int64_t count, void *to);
    const void *context;
};

struct ct_checkpoint_ops {
    size_t size; /* of this struct */
    /* Open the checkpoint that path names: one, or the newest good one of a folder of checkpoints
       or of a run's dump folder. The texts are in arena. Fails with the path and the cause. */
    int (*open)(struct ct_arena *arena, const char *path, struct ct_checkpoint *c);
    /* A box of a tensor, dense. CT_EDAMAGED, CT_EIO. */
    int (*read)(const struct ct_checkpoint *c, size_t tensor, const int64_t *offset,
                const int64_t *shape, void *to);
    /* One that failed to open is closed, too. */
    void (*close)(struct ct_checkpoint *c);
    /* Write c as the checkpoint before the first step, in a folder of checkpoints, complete or
       absent, and set c->path. The boxes of a tensor are all of it, without common elements.
       CT_ECONFIG: there is one, and replace is false. */
    int (*write)(struct ct_arena *arena, const char *folder, bool replace, struct ct_checkpoint *c,
                 const struct ct_checkpoint_box *boxes, size_t count);
};

/* The format of the plugin that has one, among those in the folders of plugins. CT_ENOENT: none
   has, and the message begins with subject, "export needs"; CT_ECONFIG: several have. */
CT_API int ct_checkpoints_find(const char *subject, const struct ct_checkpoint_ops **ops);

CT_END_DECLS

#endif
