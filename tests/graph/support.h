/*
 * Shared parts of the tests of the compiler: a tiny llama, a machine that runs a graph on the
 * reference device, and golden files.
 */
#ifndef GRAPH_TEST_SUPPORT_H
#define GRAPH_TEST_SUPPORT_H

#include <math.h>
#include <stdlib.h>

#include "assertions.h"

#include <ctitan/lib/ops.h>
#include <ctitan/pass.h>
#include <ctitan/program.h>

/* rc must be 0; else the test fails with the failure's message. */
#define assert_ok(rc)                                                                              \
    do {                                                                                           \
        if ((rc) != 0)                                                                             \
            fail_msg("%s: %s", #rc, ct_error_message());                                           \
    } while (0)

/* a is b within tolerance, relative to b where that is above 1. */
#define assert_near(a, b, tolerance)                                                               \
    do {                                                                                           \
        double is_ = (a), should_ = (b), size_ = fabs(should_) > 1 ? fabs(should_) : 1;            \
        if (!(fabs(is_ - should_) <= (tolerance)*size_))                                           \
            fail_msg("%s is %.15g, not %.15g", #a, is_, should_);                                  \
    } while (0)

/* ---- graphs ---- */

/* Zeroed fields get the size in the comment. */
struct tiny {
    int64_t batch, tokens;      /* 2, 5 */
    int64_t vocabulary, layers; /* 11, 2 */
    int64_t heads, kv_heads;    /* 2, 1; a head has 4 features */
    int64_t ffn;                /* 12 */
    bool tied, documents, logits, sinks;
    bool plain;          /* as a model says it: join is not run */
    enum ct_dtype dtype; /* of parameters; 0 is float32 */
};

/*
 * The forward of a small Llama: inputs tokens, labels (and documents), fetch "loss" (or "logits").
 * In float64, the scalar "valid_tokens" is there too, so that the whole step is in float64.
 */
struct ct_graph *tiny_llama(struct ct_arena *arena, struct tiny tiny);

/* Run the transforms of the phase join. */
void join(struct ct_graph *graph);

/* Fetch the gradient of every parameter that has one as "d <parameter>". */
void fetch_gradients(struct ct_graph *graph);

struct ct_graph *parse(struct ct_arena *arena, const char *text);
/* Streams that techniques declare: texts have them. `parse` does so. */
void declare_streams(void);

size_t count_ops(const struct ct_graph *graph, const char *type);
struct ct_op *find_op(const struct ct_graph *graph, const char *type, size_t nth);

/*
 * text must equal the file golden/<name>; the failure shows the first line that differs. With
 * CTITAN_UPDATE_GOLDEN set, the file is written instead.
 */
void assert_golden_in(const char *folder, const char *name, const char *text);
#define assert_golden(name, text) assert_golden_in(GOLDEN_FOLDER, name, text)

/* ---- running ---- */

/* A graph lowered and bound on a device. */
struct machine {
    struct ct_arena arena;
    const struct ct_graph *graph;
    struct ct_device *device;
    struct ct_program *program;
    struct ct_executor *executor;
};

/* The list in which a step runs its microbatches. */
enum order {
    FORWARD,        /* F0 F1 .. */
    IN_TURN,        /* F0 B0 F1 B1 .. */
    FORWARDS_FIRST, /* F0 F1 .. B1 B0 */
    SPLIT,          /* F0 F1 .. I0 I1 .. W1 W0: weights last, backwards */
};

/* Lowered and verified; device NULL: the reference device. */
void machine_lower(struct machine *m, const struct ct_graph *graph, struct ct_device *device,
                   int microbatches, enum order order);
/* The same on the reference device, one microbatch, of a rank of the graph's mesh. */
void machine_lower_rank(struct machine *m, const struct ct_graph *graph, int64_t rank);
/* Lowered, bound, and its init part run. */
void machine_start(struct machine *m, const struct ct_graph *graph, struct ct_device *device,
                   int microbatches, enum order order);
void machine_finish(struct machine *m);

struct ct_device *reference_device(void);

/*
 * Fill the inputs from samples that depend on their number only; sample i goes to microbatch
 * i / batch, and every fifth label is masked. Sets the scalar valid_tokens if there is one.
 */
void feed_samples(struct machine *m);

/* All elements of a value that has a place after the step, as doubles in the machine's arena. */
double *read_value(struct machine *m, const struct ct_value *value, int64_t *count);
double *read_fetch(struct machine *m, const char *name, int64_t *count);

#endif
