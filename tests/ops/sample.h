/*
 * Sample calls of the registered op types, in float64, and a machine that runs them.
 *
 * A machine is a graph with one op in it, and dense host memory for every value. Tests make one
 * from a sample, emit more ops if they like, and run them with the reference kernels.
 */
#ifndef TEST_SAMPLE_H
#define TEST_SAMPLE_H

#include <ctitan/op.h>

struct sample {
    const char *type;
    const char *attrs; /* "eps=0.01 seed=3"; NULL: the defaults */
    /* "real[2,3] index[2] -": inputs by what fills them. real: normal numbers; positive: 0.5
       to 1.5; statistic and square: likewise, in float32 at least and in float64; factor: likewise,
       in float32; index: 0 to 5; label: likewise, each third masked; document: runs of equal
       numbers; position; offloaded: as positive, in another memory;
       "-": absent. */
    const char *inputs;
    unsigned gradients; /* bit i: output i may be given a gradient; 0: output 0 only */
    double step;        /* of finite differences; 0: 1e-4 */
    bool joint;         /* a gradient only together with that of the op in front */
    char replaced;      /* where this factor is split, a transform replaces the op; 0: none */
};

/* {NULL} ends it. */
extern const struct sample samples[];

struct machine {
    struct ct_arena arena;
    struct ct_graph *graph;
    struct ct_op *op;
    struct ct_tensor *memory; /* by value id */
    size_t room;
};

/* The sample's op, in float64, or with every floating input in another dtype. Returns the failure
   of emitting it. */
int machine_create(struct machine *m, const struct sample *sample, enum ct_dtype dtype);
void machine_finish(struct machine *m);

/* The value's memory: dense, zeroed at first. */
struct ct_tensor *machine_tensor(struct machine *m, const struct ct_value *value);
void machine_fill(struct machine *m, const struct ct_value *value, const char *fill);

/* Run op, or all ops from there on, on the machine's memory. */
int machine_run(struct machine *m, const struct ct_op *op);
int machine_run_from(struct machine *m, const struct ct_op *op);

/* A launch of op on given tensors; absent inputs have no data. */
int launch(const struct ct_op *op, const struct ct_tensor *in, const struct ct_tensor *out,
           uint32_t accumulate);
/* On the shards that a rank of a mesh holds. */
int launch_on(const struct ct_mesh *mesh, int64_t rank, const struct ct_op *op,
              const struct ct_tensor *in, const struct ct_tensor *out, uint32_t accumulate);

/* A fill with floating-point numbers. */
bool is_real(const char *fill);

/* Read "word[2,3] word -": returns false at the end. dims: -1 for "-". */
bool next_operand(const char **text, char word[32], int *rank, int64_t *shape);

#endif
