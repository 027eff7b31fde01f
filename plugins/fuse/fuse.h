/*
 * Shared by the sources of the fuse plugin.
 *
 * group.c finds ops that can be computed together, and plans one op "fused" for each group.
 * lib/rows writes such an op as code. compile.c has it compiled, by the system's C
 * compiler (system.c) or the device's own, and keeps the results on disk. kernel.c runs them in
 * host memory, device.c on devices with a compiler. fuse.c is the transform: plan, compile,
 * replace.
 */
#ifndef FUSE_H
#define FUSE_H

#include <ctitan/lib/rows.h>
#include <ctitan/run.h>

struct fuse_config {
    const char *cache, *compiler, *flags, *dump;
    bool always;
};
extern struct fuse_config fuse_config;

/* ---- the op ---- */

/* Inputs of the program are named as in ct_rows_text. Outputs are y0, y1, ..; one that is
   bfloat16(..) has that dtype, all others are float32. */
struct fuse_attrs {
    struct ct_shape outputs; /* the level of each */
    const char *program;
};
extern const struct ct_op_type fuse_op;

/* Read a program; in_dtype is not set. CT_EINVAL: it has a fault. */
int fuse_parse(const struct fuse_attrs *attrs, int ins, int outs, struct ct_arena *arena,
               struct ct_rows_program *f);
/* Read the program of an op. CT_EINVAL: it has a fault. */
int fuse_read(const struct ct_op *op, struct ct_arena *arena, struct ct_rows_program *f);
/* ---- compiled code ---- */

/* The target of compiled code. */
struct fuse_target {
    const struct ct_compiler_ops *ops; /* NULL: host memory, by the system's C compiler */
    struct ct_device *device;          /* NULL: not open */
};
/* CT_ENOENT: devices of this name run no compiled code. */
int fuse_find_target(const char *name, struct ct_device *device, struct fuse_target *target);

struct fuse_result {
    int compiled, found;
    double seconds;
};
/* Have all of them compiled that are not in the cache; nothing if the target's device is not there.
   CT_ENOENT: there is no compiler; CT_EIO: it refused one, and said why; .. */
int fuse_compile(const struct fuse_target *target, const struct ct_rows_code *code, int count,
                 struct fuse_result *result);
/* The header that code for host memory includes: its text, its name, and a copy in a folder. */
extern const char fuse_header_text[];
const char *fuse_header_name(void);
int fuse_write_header(const char *folder);
/* The function of a code, which was compiled before, or is now. NULL: the device is not there. */
int fuse_load(const struct fuse_target *target, const struct ct_rows_code *code, void **function);

/* ---- kernels ---- */

/* The largest operand, which has the call's rows and columns. */
const struct ct_tensor *fuse_whole(const struct ct_tensor *in, int ins);
/* Floating-point matrices with rows, or dense parts of one. */
bool fuse_accepts(const struct ct_prepare *p);
extern const struct ct_kernel fuse_cpu_kernels[], fuse_device_kernel;

/* ---- groups ---- */

struct fuse_group {
    struct ct_op **op; /* in the graph's order */
    int count;
    struct ct_value *in[CT_COMPILED_INPUTS], *out[CT_COMPILED_OUTPUTS];
    struct ct_rows_program program;
    struct fuse_attrs attrs;
    double saved; /* bytes that a run of the op need not move, on this rank */
    double lost;  /* nanoseconds that compiled code takes longer than the device's kernels */
    bool lone;    /* one op, which the device has no kernel for */
};

struct fuse_plan {
    struct ct_arena *arena;
    struct ct_graph *graph;
    const char *device;
    struct fuse_target target;
    int64_t rank;
    struct fuse_group **group;
    size_t count, room;
    double moved, moved_by_formula; /* bytes of all ops in a microbatch, and of those to fuse */
};
int fuse_find(struct fuse_plan *plan);

#endif
