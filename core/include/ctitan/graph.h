/*
 * The graph: one training step as data.
 *
 * A graph holds values and a list of operations ("ops") in an order in which they may run. Every
 * value is global: it has the shape of the whole tensor, and its sharding says how the tensor is
 * distributed over the mesh. A graph has no tensor memory.
 *
 * Every op is in a section. A section has a name, and belongs to a part of the step:
 *
 *   init  once, before the first step: fills parameters and states. What reads a parameter and has
 *         no outputs, as it makes a state from it, runs again after the host has written parameters
 *   pre   once per step, before what uses it in a microbatch: casts, layout changes, gathers
 *   F     forward, once per microbatch
 *   I     the backward towards the inputs, once per microbatch
 *   W     the rest of the backward, towards the weights; may run later (zero bubble schedules)
 *   post  once per step, after the last microbatch: reductions, clipping, the optimizer
 *
 * A part may have several sections, which a step may run separately and in any order that their
 * values allow: "0F" and "1F", "1SEND_F", "0UNSHARD". Sections with one group number belong
 * together: the backward of an op in section "1F" is in "1I" and "1W". Without groups each part has
 * one section, with the part's name. struct ct_order lists what a step runs, in order.
 *
 * A value made in F, I or W and used in post (or fetched) stands for its sum over the microbatches
 * of the step. Gradient accumulation follows from this rule; kernels add in place where they can.
 *
 * A value is made once and never changes. Only parameters and states are updated in place, by ops
 * with '!' in their signatures: in init and post, states in F too. If a parameter or state lies in
 * host memory, such an op updates a copy of it in device memory.
 *
 * Everything is in the graph's arena. Names are unique in a graph. Users see them in
 * `ctitan explain`, in plans and in checkpoints. Values without a producer are sources.
 */
#ifndef CT_GRAPH_H
#define CT_GRAPH_H

#include <stdio.h>

#include <ctitan/arena.h>
#include <ctitan/sharding.h>

CT_BEGIN_DECLS

enum ct_part { CT_PART_INIT, CT_PART_PRE, CT_PART_F, CT_PART_I, CT_PART_W, CT_PART_POST };
#define CT_PARTS 6
#define CT_NO_GROUP (-1)

struct ct_section {
    const char *name; /* unique in its graph */
    enum ct_part part;
    int group;   /* CT_NO_GROUP, or at least 0 */
    uint32_t id; /* dense, in order of creation; index for side tables */
    bool main;   /* the one of its part and group; others stand beside it, such as transfers */
};

enum ct_role {
    CT_ROLE_TEMP,   /* made by an op */
    CT_ROLE_PARAM,  /* trained; lives as long as the run */
    CT_ROLE_STATE,  /* optimizer state and the like; as long as the run */
    CT_ROLE_INPUT,  /* fed by the runtime for each microbatch: tokens, labels */
    CT_ROLE_SCALAR, /* fed by the runtime for each step: learning rate, token count */
};

/* The memory of a device in which a value lies. */
enum ct_space {
    CT_SPACE_DEVICE, /* where kernels compute */
    CT_SPACE_HOST,   /* larger and slower: ops with CT_OP_SPACES copy from and to it */
};

struct ct_op;
struct ct_op_type;
struct ct_coding;
struct ct_data_stream;
struct ct_count;

/*
 * One input of an op in the graph, as an element of its value's list of uses. Only the functions
 * below maintain these lists and write op->in[].
 */
struct ct_use {
    struct ct_op *op;
    int index; /* op->in[index] is the value */
    struct ct_use *prev, *next;
};

/* A set of marks: bit i is the mark with number i. */
typedef uint64_t ct_marks;

/* A set of ranks, by their coordinates along an axis: bit r % 64 of word r / 64 is rank r. The
   words live as long as the graph. Without words it has all ranks. */
struct ct_ranks {
    const uint64_t *word;
    int words;
};
CT_API bool ct_ranks_have(const struct ct_ranks *set, int64_t rank);
/* How many ranks below `rank` a set with words has. */
CT_API int64_t ct_ranks_below(const struct ct_ranks *set, int64_t rank);
CT_API bool ct_ranks_equal(const struct ct_ranks *a, const struct ct_ranks *b);

struct ct_value {
    const char *name;
    uint32_t id; /* dense, in order of creation; index for side tables */
    enum ct_role role;
    enum ct_dtype dtype;
    bool dtype_fixed; /* kept by `infer`, where CT_OP_ANY_DTYPE; of a parameter: by all */
    int ndim;
    int64_t shape[CT_MAX_DIMS]; /* global */
    struct ct_sharding sharding;
    size_t opaque_bytes;     /* bytes on a rank if only its ops know the layout; else 0 */
    enum ct_space space;     /* set it before adding ops that use the value */
    ct_marks marks;          /* set by plugins: ct_mark */
    struct ct_op *producer;  /* NULL: a source */
    struct ct_value *grad;   /* set by differentiation (ct_value_set_grad); NULL: none */
    struct ct_ranks holders; /* coordinates along the graph's partition_axis of the ranks that have
                                a parameter or state */
    struct ct_use *first_use, *last_use;  /* in order of creation */
    uint32_t use_count, fetch_count;      /* inputs of ops; fetches */
    struct ct_value *grad_of, *next_grad; /* first value with this as its grad; next one */
    int sequence;                         /* of an input: see ct_input_sequence */
    const struct ct_coding *coding; /* of a parameter whose elements are codes (state.h); or NULL */
    bool beside;                    /* a parameter that belongs to another one: scales of codes */
    const struct ct_weight_set *set; /* of a parameter; NULL: the model's own weights */
};

struct ct_op {
    const struct ct_op_type *type;
    const char *region; /* "layers.3", "embedding", ""; interned by the graph */
    const struct ct_section *section;
    int stream; /* ct_stream */
    int ins, outs;
    bool in_graph;        /* between ct_graph_insert and ct_graph_remove */
    ct_marks marks;       /* set by plugins: ct_mark */
    struct ct_value **in; /* NULL entries: optional inputs that are absent; ct_op_set_input */
    struct ct_value **out;
    struct ct_use *use; /* by input */
    void *attrs;        /* struct of type->attrs_size, or NULL */
    const char *why;    /* what added it, for `explain`; NULL: the model */
    struct ct_op *prev, *next;
};

struct ct_fetch {
    const char *name; /* "loss": read by the host after each step */
    struct ct_value *value;
    const char *over; /* name of the fetch that divides it; NULL: it is a sum */
    double weight;    /* how often it is a part of what is differentiated */
};

/*
 * A second set of the model's weights, beside those that are trained: frozen, of the same shapes,
 * and split in the same way. Its parameters are called NAME.PARAM. It lives as long as the run.
 * An objective runs a forward pass with it (ct_objective_forward_set, objective.h).
 */
struct ct_weight_set {
    size_t size;        /* of this struct */
    const char *name;   /* "reference": letters, digits and '_' */
    const char *option; /* the option that names the folder, for messages: "[dpo] reference_from" */
    /* Its weights, in the format of [model] init_from, of a model with the same forward. They are
       read whenever a run opens, and checkpoints leave them out. NULL or "": the set begins as the
       weights that training begins with, and checkpoints have it. */
    const char *folder;
};

struct ct_graph {
    struct ct_arena *arena;
    const char *name;
    struct ct_mesh mesh;
    struct ct_op *first, *last;
    struct ct_op *last_init;  /* last known init op at the front; NULL: unknown */
    struct ct_value **values; /* all, by id; with unused ones until ct_graph_sweep */
    size_t value_count, value_room;
    struct ct_section **sections; /* all, by id */
    size_t section_count, section_room;
    struct ct_fetch *fetches;
    size_t fetch_count, fetch_room;
    int partition_axis; /* of the mesh: its ranks run different groups of sections; -1: none */
    uint64_t seed;      /* of the initial weights: copied into init ops */
    int chunks;         /* sequences are split into equal chunks and reordered; 0: in order */
    const int32_t *chunk_order; /* numbers of the chunks, in the order of feeding */
    struct ct_name_table *names;
    /* Streams of the data that feeds it, ended by {0}. NULL: those of text (input.h). */
    const struct ct_data_stream *streams;
    const struct ct_count *counts; /* scalars counted in the data, ended by {0}; NULL: ct_counts */
    bool same_parameters;          /* a parameter that is declared again is the one of that name */
    const struct ct_weight_set
        *set; /* of the parameters that are declared; NULL: the model's own */
};

/* The uses of a value, in order of creation. The body of the safe form may change the current
   one. */
#define ct_for_each_use(use, value)                                                                \
    for (struct ct_use *use = (value)->first_use; use; use = use->next)
#define ct_for_each_use_safe(use, value)                                                           \
    for (struct ct_use *use = (value)->first_use, *use##_next = use ? use->next : NULL; use;       \
         use = use##_next, use##_next = use ? use->next : NULL)

#define ct_for_each_op(op, graph) for (struct ct_op *op = (graph)->first; op; op = op->next)
/* op may be removed in the body. */
#define ct_for_each_op_safe(op, graph)                                                             \
    for (struct ct_op *op = (graph)->first, *op##_next = op ? op->next : NULL; op;                 \
         op = op##_next, op##_next = op ? op->next : NULL)

/* "init", "pre", "F", "I", "W", "post". */
CT_API const char *ct_part_name(enum ct_part part);
/* "param", "state" and so on, as in graph text. */
CT_API const char *ct_role_name(enum ct_role role);
/* True for F, I and W: run once per microbatch. */
CT_API bool ct_part_is_microbatch(enum ct_part part);

/*
 * The main section of a part and group: "F", or "1F" for group 1. init, pre and post have no groups
 * and ignore group. Created if missing.
 */
CT_API const struct ct_section *ct_graph_section(struct ct_graph *graph, enum ct_part part,
                                                 int group);
/* A section besides the main one of its part and group; created unless one has that name. */
CT_API const struct ct_section *ct_graph_section_named(struct ct_graph *graph, const char *name,
                                                       enum ct_part part, int group);
/* The section called name, or NULL. */
CT_API const struct ct_section *ct_graph_section_find(const struct ct_graph *graph,
                                                      const char *name);
/* Move op to the main section of a part, in the same group; its place in the list stays. */
CT_API void ct_op_set_part(struct ct_graph *graph, struct ct_op *op, enum ct_part part);

/* An empty graph on a mesh of one rank. It and all that is added to it live in arena. */
CT_API struct ct_graph *ct_graph_create(struct ct_arena *arena, const char *name);

/* A new source. name is made unique by a suffix. */
CT_API struct ct_value *ct_graph_source(struct ct_graph *graph, enum ct_role role, const char *name,
                                        enum ct_dtype dtype, int ndim, const int64_t *shape);
/* The value called name, or NULL. */
CT_API struct ct_value *ct_graph_find(const struct ct_graph *graph, const char *name);
/* Whether value is a parameter of the model's own weights, not of a second set. */
CT_API bool ct_value_is_own_param(const struct ct_value *value);
/* The name that the model gives a parameter: without that of its set. */
CT_API const char *ct_value_model_name(const struct ct_value *value);
/* Give value another name, made unique by a suffix. */
CT_API void ct_value_rename(struct ct_graph *graph, struct ct_value *value, const char *name);
/* Let the host read value after each step, under this name. */
CT_API void ct_graph_fetch(struct ct_graph *graph, const char *name, struct ct_value *value);
/* The same for a mean: the host divides the sum by the scalar `over`, which is fetched, too. */
CT_API void ct_graph_fetch_mean(struct ct_graph *graph, const char *name, struct ct_value *value,
                                struct ct_value *over);
/* The same for a mean that is differentiated: `weight` times it is added to the loss, whose own
   fetch (ct_graph_fetch_mean) does not show it. */
CT_API void ct_graph_fetch_loss(struct ct_graph *graph, const char *name, struct ct_value *value,
                                struct ct_value *over, double weight);
/* Drop the last fetch of this name. Returns its value; NULL: there is none. */
CT_API struct ct_value *ct_graph_unfetch(struct ct_graph *graph, const char *name);
/* The name of the fetch that divides it; NULL: it is a sum, or there is none. */
CT_API const char *ct_graph_fetched_over(const struct ct_graph *graph, const char *name);
/* The value that is fetched under this name, or NULL. */
CT_API struct ct_value *ct_graph_fetched(const struct ct_graph *graph, const char *name);
/* Make fetch number index read another value. */
CT_API void ct_graph_set_fetch(struct ct_graph *graph, size_t index, struct ct_value *value);
/* grad may be NULL. */
CT_API void ct_value_set_grad(struct ct_value *value, struct ct_value *grad);

/* The position of the token that is fed at `index`, in a sequence of this many tokens. */
CT_API int64_t ct_graph_position(const struct ct_graph *graph, int64_t tokens, int64_t index);

/* Adds ops to a graph: where they go, and which section and region they get. */
struct ct_builder {
    struct ct_graph *graph;
    struct ct_op *before; /* insert before this op; NULL: at the end */
    const struct ct_section *section;
    const char *region;
    const char *why;
    ct_marks marks; /* of the ops that are emitted */
    int status;     /* first failure; sticky: later calls do nothing and return NULL */
};

/* Adds ops after all others, in the main section of a part. */
CT_API struct ct_builder ct_builder_at_end(struct ct_graph *graph, enum ct_part part,
                                           const char *region);
/* Before op, with its section and region. */
CT_API struct ct_builder ct_builder_before(struct ct_graph *graph, struct ct_op *op);
/* After op, with its section and region. */
CT_API struct ct_builder ct_builder_after(struct ct_graph *graph, struct ct_op *op);
/* Continue in the main section of a part, in the builder's group. */
CT_API void ct_builder_set_part(struct ct_builder *builder, enum ct_part part);

/*
 * Add an op. Its type is registered if it is new to the process. name is the name of its first
 * output ("layers.0.q"; NULL: made from the region and the type). Further outputs have the names in
 * the signature as a suffix. attrs: the type's attribute struct (copied), NULL for the defaults.
 * Shapes and dtypes of the outputs are inferred. Returns the op, or NULL with builder->status set
 * and the failure recorded.
 */
CT_API struct ct_op *ct_emit_type(struct ct_builder *builder, const struct ct_op_type *type,
                                  const char *name, struct ct_value *const *in, int ins,
                                  const void *attrs);
/* The same; returns the first output. */
CT_API struct ct_value *ct_emit_type1(struct ct_builder *builder, const struct ct_op_type *type,
                                      const char *name, struct ct_value *const *in, int ins,
                                      const void *attrs);
/* The same for the name of a registered type, as in graph text. */
CT_API struct ct_op *ct_emit(struct ct_builder *builder, const char *type, const char *name,
                             struct ct_value *const *in, int ins, const void *attrs);
CT_API struct ct_value *ct_emit1(struct ct_builder *builder, const char *type, const char *name,
                                 struct ct_value *const *in, int ins, const void *attrs);

/* Run `infer` again on every op in order. Needed after changes to dtypes or shapes of sources. */
CT_API int ct_graph_infer(struct ct_graph *graph);

/*
 * Editing. The cost of each function grows with the uses that it changes, not with the graph.
 */

/* Remove an op from the list, and from the uses of its inputs. */
CT_API void ct_graph_remove(struct ct_graph *graph, struct ct_op *op);
/* Insert a removed op before `before`; NULL: at the end. */
CT_API void ct_graph_insert(struct ct_graph *graph, struct ct_op *op, struct ct_op *before);
/* Move an op before another one; NULL: to the end. */
CT_API void ct_op_move(struct ct_graph *graph, struct ct_op *op, struct ct_op *before);
/* Replace one input. value may be NULL for an optional input. */
CT_API void ct_op_set_input(struct ct_op *op, int index, struct ct_value *value);
/* Replace all inputs; their number may change. */
CT_API void ct_op_set_inputs(struct ct_graph *graph, struct ct_op *op, struct ct_value *const *in,
                             int ins);
/* Change the type, inputs and attributes (NULL: zeroed) of op; its outputs stay. */
CT_API void ct_op_become(struct ct_graph *graph, struct ct_op *op, const struct ct_op_type *type,
                         struct ct_value *const *in, int ins, const void *attrs);
/* Make value, which another op produced, output number index of op. */
CT_API void ct_op_set_output(struct ct_op *op, int index, struct ct_value *value);
/* Make everything that uses old (inputs, fetches, values of which it is the gradient) use value
   instead. The op that makes value keeps old, so f(old) can replace old. */
CT_API void ct_value_replace(struct ct_graph *graph, struct ct_value *old, struct ct_value *value);
/* The only op that uses value, or NULL if there are none or several; a fetch counts as a user. */
CT_API struct ct_op *ct_value_only_user(const struct ct_value *value);

/*
 * The users of every value in the order of the ops, for passes that depend on it. Invalid after the
 * next edit. users.op[users.first[v->id] .. users.first[v->id + 1]] are the ops that use v.
 */
struct ct_users {
    uint32_t *first;
    struct ct_op **op;
};
/* The lists are in arena. */
CT_API struct ct_users ct_graph_users(const struct ct_graph *graph, struct ct_arena *arena);

/*
 * Emit a copy of op: type, attributes, stream and marks, and of its outputs dtype, sharding, layout
 * and marks. in: its inputs; NULL: those of op. Outputs have the names of op's with a suffix,
 * "x.again" for "again". If the builder has no `why`, the copy has that of op.
 */
CT_API struct ct_op *ct_op_clone(struct ct_builder *builder, const struct ct_op *op,
                                 struct ct_value *const *in, const char *suffix);

/*
 * Marks are labels that plugins set on ops and values to find them again: "fsdp.gather" on the
 * gather of a parameter, "save" on a value that is to be kept for the backward. A name gets its
 * number, for the whole process, when it is first used; there are 64. Clones keep marks, and so do
 * the collectives that a redistribution becomes. The text form prints them.
 */
#define CT_MARKS 64
/* The mark of the ops of a forward pass into which no gradient flows (objective.h). */
#define CT_REFERENCE "reference"
/*
 * The mark of ops of post that run as soon as the sums that they take are complete, beside the rest
 * of the backward, instead of behind the last microbatch. That holds for ops whose inputs are all
 * such sums, results of others that run so, or views of these; with other inputs, and in a section
 * that the step's order lists, an op runs where it would without the mark. An op that runs so
 * never writes its output over an input.
 */
#define CT_SOON "soon"
/* The set with only this mark; empty, with the failure recorded, if all numbers are taken. */
CT_API ct_marks ct_mark(const char *name);
/* The name of mark number index, NULL if there is none (yet). */
CT_API const char *ct_mark_name(int index);

/* Bytes of value on a rank of the graph's mesh; rank -1: of the whole. */
CT_API size_t ct_value_bytes(const struct ct_graph *graph, const struct ct_value *value,
                             int64_t rank);
/* Floating-point operations of one call of op on a rank; rank -1: of the whole. */
CT_API double ct_op_flops(const struct ct_graph *graph, const struct ct_op *op, int64_t rank);

/*
 * A copy with the same ids, in another arena. Strings (attributes, reasons, names of mesh axes) are
 * shared with the original, which must outlive it.
 */
CT_API struct ct_graph *ct_graph_clone(const struct ct_graph *graph, struct ct_arena *arena);

/* Drop ops that have no effect and change no input, and whose outputs nobody needs (parameters with
   gradients, the gradients, and fetches are needed). Then drop the values that nothing refers to,
   except inputs and scalars. Ids are renewed, and names of dropped values are free. */
CT_API void ct_graph_sweep(struct ct_graph *graph);

CT_END_DECLS

#endif
