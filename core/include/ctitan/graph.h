/*
 * The graph: one training step as data.
 *
 * A graph holds values and a list of operations ("ops") in an order in which they may run. Every
 * value is global: it has the shape of the whole tensor, and its sharding says how that lies over
 * the mesh. No memory is touched.
 *
 * Ops belong to a part of the step:
 *
 *   init  once, before the first step: fills parameters and states
 *   pre   once per step, before the first microbatch: casts, layout changes, gathers
 *   F     forward, once per microbatch
 *   I     the backward towards a stage's inputs, once per microbatch
 *   W     the rest of the backward, towards the weights; may be run later (zero bubble schedules)
 *   post  once per step, after the last microbatch: reductions, clipping, the optimizer
 *
 * A value made in F, I or W and used in post (or fetched) stands for its sum over the microbatches
 * of the step. That is all there is to gradient accumulation; kernels add in place where they can.
 *
 * Values are made once and never changed, but for parameters and states, which ops that say so
 * (`ct_op_type.mutates`) update in place; of what lies in another memory, a copy that was loaded.
 *
 * Everything lives in the graph's arena. Names are unique in a graph, and are what people see: in
 * `ctitan explain`, in plans, in checkpoints. Values without a producer are sources.
 */
#ifndef CT_GRAPH_H
#define CT_GRAPH_H

#include <stdio.h>

#include <ctitan/arena.h>
#include <ctitan/sharding.h>

enum ct_part { CT_PART_INIT, CT_PART_PRE, CT_PART_F, CT_PART_I, CT_PART_W, CT_PART_POST };
#define CT_PARTS 6

enum ct_role {
    CT_ROLE_TEMP,   /* made by an op */
    CT_ROLE_PARAM,  /* trained; lives as long as the run */
    CT_ROLE_STATE,  /* optimizer state and the like; as long as the run */
    CT_ROLE_INPUT,  /* fed by the runtime for each microbatch: tokens, labels */
    CT_ROLE_SCALAR, /* fed by the runtime for each step: learning rate, token count */
};

struct ct_op;
struct ct_op_type;

struct ct_value {
    const char *name;
    uint32_t id; /* dense, by creation; index for side tables */
    enum ct_role role;
    enum ct_dtype dtype;
    bool dtype_fixed; /* chosen by a transform: `infer` leaves it (types with CT_OP_ANY_DTYPE only)
                       */
    int rank;
    int64_t shape[CT_MAX_RANK]; /* global */
    struct ct_sharding sharding;
    size_t opaque_bytes; /* not 0: in a layout known only to its ops, this many bytes on a rank */
    bool offloaded;      /* lies in the device's second memory: `load` brings it, `store` puts it */
    struct ct_op *producer; /* NULL: a source */
    struct ct_value *grad;  /* after differentiation; NULL where none flows */
};

struct ct_op {
    const struct ct_op_type *type;
    const char *region; /* "layers.3", "embedding", ""; interned by the graph */
    enum ct_part part;
    int stage;  /* of the pipeline */
    int stream; /* CT_STREAM_* */
    int ins, outs;
    struct ct_value **in; /* NULL entries: optional inputs that are absent */
    struct ct_value **out;
    void *attrs;     /* struct of type->attrs_size, or NULL */
    const char *why; /* what put it here, for `explain`; NULL: the model said so */
    struct ct_op *prev, *next;
};

struct ct_fetch {
    const char *name; /* "loss": read by the host after each step */
    struct ct_value *value;
};

/* Two ranks of a pipeline, by their coordinates, of which one sends to the other. */
struct ct_peers {
    int from, to;
};

struct ct_graph {
    struct ct_arena *arena;
    const char *name;
    struct ct_mesh mesh;
    struct ct_op *first, *last;
    struct ct_value **values; /* all, by id; unused ones too until ct_graph_sweep */
    size_t value_count, value_room;
    struct ct_fetch *fetches;
    size_t fetch_count, fetch_room;
    bool update_by_region; /* one optimizer op for each region's parameters, not one for all */
    int stages;            /* of the pipeline, at least 1 */
    const int *stage_rank; /* by stage: coordinate along pp of the rank that runs it; NULL: all 0 */
    struct ct_peers *peers; /* every pair of which one sends to the other, sorted: of all ranks */
    size_t peer_count;
    uint64_t seed; /* of the initial weights: copied into init ops */
    int chunks;    /* sequences are fed in another order: cut into so many equal chunks.. */
    const int32_t *chunk_order; /* ..of which these come one after the other; 0: as they are */
    struct ct_name_table *names;
};

#define ct_for_each_op(op, graph) for (struct ct_op *op = (graph)->first; op; op = op->next)
/* op may be removed in the body. */
#define ct_for_each_op_safe(op, graph)                                                             \
    for (struct ct_op *op = (graph)->first, *op##_next = op ? op->next : NULL; op;                 \
         op = op##_next, op##_next = op ? op->next : NULL)

CT_API const char *ct_part_name(enum ct_part part);
CT_API const char *ct_role_name(enum ct_role role);
/* True for F, I and W: run once per microbatch. */
CT_API bool ct_part_is_microbatch(enum ct_part part);

CT_API struct ct_graph *ct_graph_create(struct ct_arena *arena, const char *name);

/* A new source. name is made unique by a suffix. */
CT_API struct ct_value *ct_graph_source(struct ct_graph *graph, enum ct_role role, const char *name,
                                        enum ct_dtype dtype, int rank, const int64_t *shape);
CT_API struct ct_value *ct_graph_find(const struct ct_graph *graph, const char *name);
/* Give value another name, made unique by a suffix. */
CT_API void ct_value_rename(struct ct_graph *graph, struct ct_value *value, const char *name);
CT_API void ct_graph_fetch(struct ct_graph *graph, const char *name, struct ct_value *value);
CT_API struct ct_value *ct_graph_fetched(const struct ct_graph *graph, const char *name);

/* The position, in a sequence of so many tokens, of the token that is fed as number index. */
CT_API int64_t ct_graph_position(const struct ct_graph *graph, int64_t tokens, int64_t index);

/* Where new ops go, and the part, region and stage that they get. */
struct ct_builder {
    struct ct_graph *graph;
    struct ct_op *before; /* insert in front of this op; NULL: at the end */
    enum ct_part part;
    const char *region;
    int stage;
    const char *why;
    int status; /* first failure; sticky: later calls do nothing and return NULL */
};

CT_API struct ct_builder ct_builder_at_end(struct ct_graph *graph, enum ct_part part,
                                           const char *region);
/* In front of op, with its part, region and stage. */
CT_API struct ct_builder ct_builder_before(struct ct_graph *graph, struct ct_op *op);
CT_API struct ct_builder ct_builder_after(struct ct_graph *graph, struct ct_op *op);

/*
 * Add an op of a registered type. name is given to its first output ("layers.0.q"; NULL: made from
 * the region and the type); further outputs get the type's output names as a suffix. attrs: the
 * type's attribute struct (copied), NULL for the defaults. Its outputs' shapes and dtypes come from
 * the type's `infer`. Returns the op, or NULL with builder->status set and the failure recorded.
 */
CT_API struct ct_op *ct_emit(struct ct_builder *builder, const char *type, const char *name,
                             struct ct_value *const *in, int ins, const void *attrs);
/* The same with one output wanted: returns it. */
CT_API struct ct_value *ct_emit1(struct ct_builder *builder, const char *type, const char *name,
                                 struct ct_value *const *in, int ins, const void *attrs);

/* Run `infer` again on every op in order: after dtypes or shapes of sources changed. */
CT_API int ct_graph_infer(struct ct_graph *graph);

CT_API void ct_graph_remove(struct ct_graph *graph, struct ct_op *op);
/* Put an op that was removed in front of `before`; NULL: at the end. */
CT_API void ct_graph_insert(struct ct_graph *graph, struct ct_op *op, struct ct_op *before);
/* Make every later user of old take value instead, fetches too. */
CT_API void ct_graph_replace(struct ct_graph *graph, struct ct_value *old, struct ct_value *value);
CT_API void ct_op_set_input(struct ct_op *op, int index, struct ct_value *value);
/* The only user of value, or NULL if there are none or several (a fetch counts as a user). */
CT_API struct ct_op *ct_graph_only_user(const struct ct_graph *graph, const struct ct_value *value);

/*
 * The users of every value, for passes that ask often: built once, wrong after the next edit.
 * users.op[users.first[v->id] .. users.first[v->id + 1]] are the ops that take v.
 */
struct ct_users {
    uint32_t *first;
    struct ct_op **op;
};
CT_API struct ct_users ct_graph_users(const struct ct_graph *graph, struct ct_arena *arena);

/* Drop ops whose outputs nobody needs (gradients of parameters count as needed), then the values
   that nothing refers to (ids are renewed). */
CT_API void ct_graph_sweep(struct ct_graph *graph);

/*
 * Text form, one line an op; what is printed parses back to an equal graph. ct_graph_parse records
 * "line N: ..." on a fault and returns NULL. Op types must be registered.
 */
CT_API void ct_graph_print(const struct ct_graph *graph, FILE *out);
CT_API char *ct_graph_text(const struct ct_graph *graph, struct ct_arena *arena);
CT_API struct ct_graph *ct_graph_parse(struct ct_arena *arena, const char *text);

/*
 * Every fault in the graph: undefined or twice defined values, uses before definition, shapes or
 * dtypes that `infer` would not give, parts out of order, updates of what may not be updated,
 * shardings that do not fit. Writes a line each to report (may be NULL); returns 0, or CT_EINVAL
 * with the first fault as the message.
 */
CT_API int ct_graph_verify(const struct ct_graph *graph, FILE *report);

#endif
