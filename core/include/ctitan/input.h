/*
 * Inputs: what a run feeds to a graph.
 *
 * Inputs are fed for each microbatch, scalars once per step. There are two kinds of each.
 *
 * The data source feeds its streams (struct ct_data_stream): a stream of samples of shape [s..] is
 * an input of shape [batch, s..]. A source of text has
 *
 *   tokens        int32 [batch, seq_len]  the tokens
 *   labels        int32 [batch, seq_len]  the token that follows each; -100 where it is masked
 *   documents     int32 [batch, seq_len]  ids that change where a document begins, if it has them
 *
 * Others have streams of their own. The objective counts in the data what its means divide by
 * (struct ct_count), which are scalars: the default one
 *
 *   valid_tokens  float32                 unmasked labels of the step, on this rank
 *
 * The run makes the rest:
 *
 *   positions     int32 [batch, seq_len]  the position of each token in its sequence, or, if the
 *                                         graph takes documents, in its document there
 *   ordinals      int32 [batch, seq_len]  the number of each token among those of its stage,
 *                                         which counts on from the stage before if samples are
 *                                         the same; modulo 2^32: the same on any mesh, and
 *                                         after a resume
 *   S_ahead_N     int32 [batch, seq_len]  of the int32 stream S, [seq_len]: the entry
 *                                         that is N places behind each token; 0, or
 *                                         -100 of labels, where its sequence or
 *                                         document ends before
 *   lr            float64                 the learning rate of the step
 *   step          float64                 1 for the first update that is applied
 *   loss_limit    float64                 the largest loss, and the largest norm of the gradients,
 *   norm_limit    float64                 of a step that is applied (CT_UPDATE_FACTOR, train.h)
 *
 * Models, objectives and transforms declare the inputs that they use; only these are read. Nobody
 * would feed an input or scalar that is none of the above, so the run refuses it before the first
 * step. generate feeds tokens and positions, and, to what a cache adds (struct ct_cache, op.h),
 *
 *   slots         int32 [batch, seq_len]  the positions, or -1 for a token that only fills a row
 *
 * The names of inputs are reserved: any other value with such a name is renamed. Parameters and
 * states keep their names, so they must not have the name of an input.
 */
#ifndef CT_INPUT_H
#define CT_INPUT_H

#include <ctitan/graph.h>

CT_BEGIN_DECLS

/* A named stream of a data source: one tensor of each sample. */
struct ct_data_stream {
    size_t size;      /* of this struct */
    const char *name; /* letters, digits and '_' */
    enum ct_dtype dtype;
    int ndim;                   /* of a sample, below CT_MAX_DIMS; 0: one number */
    int64_t shape[CT_MAX_DIMS]; /* of a sample */
    /* The dimension of the sample that has an entry for each of the seq_len tokens: where sequences
       are split or reordered (cp), it is. -1: none, all ranks that share a sample get it whole. */
    int sequence;
    const char *summary;
};

/* A scalar that is counted in the data of a step: a float32 input of its name. */
struct ct_count {
    size_t size; /* of this struct */
    const char *name, *summary;
    /* The streams in which it is counted, at most 8, ended by NULL, all of one shape; NULL: samples
       are. */
    const char *const *streams;
    /* Part of the count that is in elements of these streams: a rank calls it for its part of each
       sample, and the counts of all ranks are added up. data: by stream. */
    double (*count)(const void *const *data, int64_t elements);
    double per_sample; /* without streams: what one sample counts */
};

/* The streams of text with documents, whose seq_len (shape[0]) is 0 here; {0} ends. */
CT_API extern const struct ct_data_stream ct_default_streams[];
/* valid_tokens, in labels; {0} ends. */
CT_API extern const struct ct_count ct_default_counts[];
#define CT_MASKED (-100) /* a label that does not count */
/* For `count`: the elements of the first stream, of int32, that are not CT_MASKED. */
CT_API double ct_count_unmasked(const void *const *data, int64_t elements);

/*
 * The input of that name, created if the graph has none yet. shape: [batch, seq_len]; ignored for
 * scalars. CT_EINVAL: no such input, or it was declared with another shape, or a parameter has that
 * name. CT_ECONFIG: no such input, and the objective counts in it: the data lacks a stream.
 */
CT_API int ct_graph_input(struct ct_graph *graph, const char *name, const int64_t *shape,
                          struct ct_value **input);
/* The same for an input of any number of dimensions, the first of which is the batch. */
CT_API int ct_graph_input_tensor(struct ct_graph *graph, const char *name, int ndim,
                                 const int64_t *shape, struct ct_value **input);
/* The same for models and objectives. On failure NULL, with builder->status set. */
CT_API struct ct_value *ct_input(struct ct_builder *builder, const char *name,
                                 const int64_t *shape);
CT_API struct ct_value *ct_input_tensor(struct ct_builder *builder, const char *name, int ndim,
                                        const int64_t *shape);
/* Whether the run makes the input of that name, as "positions": no stream may have it. */
CT_API bool ct_input_is_made(const char *name);
/* The input or scalar of that name; NULL: none. Other values do not count. */
CT_API struct ct_value *ct_graph_find_input(const struct ct_graph *graph, const char *name);
/* The stream of that name, which feeds the graph; NULL: none. */
CT_API const struct ct_data_stream *ct_graph_find_stream(const struct ct_graph *graph,
                                                         const char *name);
/* The stream of which an input called "S_ahead_N" is made, and N; NULL: it is no such input. */
CT_API const struct ct_data_stream *ct_graph_stream_ahead(const struct ct_graph *graph,
                                                          const char *name, int64_t *ahead);
/* The dimension of an input that runs along sequences; -1: none. value->sequence is that, or 0 for
   dimension 1 of an input that has one. */
CT_API int ct_input_sequence(const struct ct_value *input);
/* The first input that runs along sequences; NULL: none. */
CT_API struct ct_value *ct_graph_sequence_input(const struct ct_graph *graph);
/* Samples in a microbatch; 0: the graph has no inputs. */
CT_API int64_t ct_graph_batch(const struct ct_graph *graph);
/* How the inputs are split that run along sequences, as the sharding of [batch, seq_len]. */
CT_API struct ct_sharding ct_graph_sequence_sharding(const struct ct_graph *graph);
/* Tokens of a sequence; 0: no input runs along sequences. */
CT_API int64_t ct_graph_seq_len(const struct ct_graph *graph);
/* The counts of the graph's data: graph->counts, or ct_default_counts. */
CT_API const struct ct_count *ct_graph_counts(const struct ct_graph *graph);
/* CT_EINVAL, or CT_ECONFIG as above: graph has an input or scalar that nobody feeds. all: as in
   training; else as generate feeds. */
CT_API int ct_graph_check_inputs(const struct ct_graph *graph, bool all);

CT_END_DECLS

#endif
