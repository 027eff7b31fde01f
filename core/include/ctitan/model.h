/*
 * The interfaces of plugins: models, optimizers, learning-rate schedules, data sources, tokenizers,
 * mesh axes, orders and verbs.
 */
#ifndef CT_MODEL_H
#define CT_MODEL_H

#include <ctitan/arena.h>
#include <ctitan/core_ops.h>
#include <ctitan/input.h>

CT_BEGIN_DECLS

struct ct_run;

/* ---- models ---- */

struct ct_model_request {
    int64_t batch;   /* sequences in one microbatch, over all data-parallel ranks */
    int64_t seq_len; /* tokens in a sequence */
    bool logits;     /* fetch "logits"; true, unless a program asks for a loss of its own */
    bool documents;  /* the data has document ids: attention must not cross them */
    bool loss; /* an objective makes a loss of the logits: what is fetched is read each step */
};

/* One entry of a model's shard plan: how ranks that compute a layer together split its weights.
   Patterns are those of fnmatch(3), on parameter names. Rows and columns are the last two
   dimensions. */
struct ct_shard_rule {
    const char *pattern;
    enum { CT_SHARD_COLWISE = 1, CT_SHARD_ROWWISE, CT_SHARD_VOCAB, CT_SHARD_REPLICATE } how;
};

/*
 * How Hugging Face's files store a parameter that is not the tensor of its own name and layout. The
 * first rule whose suffix the parameter's name has applies.
 */
struct ct_stored_rule {
    const char *suffix; /* of the parameter's name; begins with '.', or is all of it */
    /* Replaces the suffix. With one '#', each index of the parameter's dimension 0 is a tensor of
       its own, and the index stands in the place of '#'. NULL: tensors of the files with this
       suffix are no parameters, and are ignored. "": files lack the parameter. */
    const char *stored;
    bool transposed; /* the tensor's last two dimensions are swapped */
    /* The tensor is split into `parts` equal ranges along the parameter's dimension 0 (1 of three,
       or where 0 numbers tensors), and the parameter is the range `part`. 0: it is the whole. Rules
       with one tensor give all parts. */
    int part, parts;
    bool whole_dtype; /* files of a narrower dtype have it in its own */
    /* Parts take turns along dimension 1 instead: index i of it is the tensor's i parts + part. */
    bool interleaved;
    /* Parts of their own sizes along dimension 0, each in blocks: of the parameter's `own` rows,
       row i is row offset + i / block * stride + i % block of the tensor's `all`. all 0: parts are
       equal. Not with '#', transposed or interleaved. */
    struct ct_stored_rows {
        int64_t own, all, offset, block, stride;
    } rows;
    /* Files have `copied` further tensors that are the same, under this whole name with a number
       from first_copy on in the place of '#'. They are written, and not read. Not with '#' in
       `stored`, nor with parts. */
    const char *copies;
    int64_t first_copy, copied;
};

struct ct_model; /* one model, defined by the plugin: its sizes */

/* A size that a model has by name, [model] flavor. Help shows the count; a test should compare it
   with that of a plan. */
struct ct_flavor {
    const char *name;
    int64_t parameters;
};

/*
 * The files that a folder of a model has beside its weights, in an arena: how the model is
 * described, and small files, such as a tokenizer's. A checkpoint keeps them, so that weights are
 * written from it without the run.
 */
#define CT_SMALL_FILE_MOST ((size_t)64 << 20) /* bytes of a file; a larger one is left out */
struct ct_small_file {
    const char *name, *data;
    size_t size;
};
struct ct_small_files {
    struct ct_small_file *list;
    size_t count;
};

/* Folders of weights in one format. All ranks call these. <ctitan/lib/hf.h> has Hugging Face's. */
struct ct_weights_ops {
    size_t size; /* of this struct */
    /* Fill all parameters of a run from a folder: [model] init_from, before RUN_READY. */
    int (*load)(struct ct_run *run, const char *folder);
    /* Write all parameters to a folder: [model] save_to, after the last step. */
    int (*save)(struct ct_run *run, const char *folder);
    /* Write what ranks compare of a folder before load reads it: lines "reads WHAT: VALUE". */
    int (*identify)(const char *folder, FILE *out);
    /* Fill a second set of weights from its folder, before RUN_READY. load fills the sets that have
       none as the parameters themselves. NULL: a run with such a set fails. */
    int (*load_set)(struct ct_run *run, const struct ct_weight_set *set);
    /* On rank 0: what a folder of the run's model has beside weights. *description: its text; NULL:
       the model has none, and then no files. NULL: checkpoints keep nothing. */
    int (*small_files)(struct ct_arena *arena, const struct ct_run *run, const char **description,
                       struct ct_small_files *files);
    /* On rank 0: a checkpoint was loaded which has such files in this folder. `save` and
       `small_files` have them from now on. */
    int (*take_small_files)(const char *folder);
    /* Whether `save` could write to folder: before the first step of a run that is to end with it,
       after PLAN_READY. NULL: it is found out at the end. */
    int (*check_save)(struct ct_run *run, const char *folder);
};

/* Where this process's weights come from: the folder or checkpoint that was loaded last; "": none
   was. Who loads weights notes it. */
CT_API void ct_weights_note(const char *path);
CT_API const char *ct_weights_noted(void);

struct ct_model_ops {
    size_t size; /* of this struct */
    /* Create a model of the sizes that the recipe asks for ([model] flavor, init_from's
       config.json, the plugin's section). A process may have several, of different sizes. */
    int (*create)(struct ct_run *run, struct ct_model **model);
    /* NULL: nothing is to be freed. */
    void (*destroy)(struct ct_model *model);
    /* Build the forward pass of one microbatch. Declare with ct_input (input.h) the inputs
       "tokens", "documents" if requested, and "positions" if the model uses them (with documents,
       they begin again with each), all [batch, seq_len], and with ct_input_tensor other streams of
       the data. Give parameters their Hugging Face names. Fetch "logits", [batch, seq_len,
       vocabulary]: the objective (objective.h) makes the loss. A model whose loss is not made of
       logits fetches "loss" in their place, a scalar: the sum over unmasked labels. Regions are
       "embedding", "layers.N", "head". A transform may feed sequences in another order: what
       depends on positions must use the input, or ct_launch_position (op.h). An objective may build
       a model twice in one graph. */
    int (*build)(struct ct_model *model, struct ct_graph *graph,
                 const struct ct_model_request *request);
    int64_t (*vocabulary)(const struct ct_model *model);
    /* Model FLOPs per trained token, forward and backward, at a sequence length, with causal
       attention counted whole (TorchTitan's convention) and halved. */
    void (*flops_per_token)(const struct ct_model *model, int64_t seq_len, double *whole,
                            double *halved);
    const struct ct_shard_rule *shard_plan; /* ended by {0}; NULL: none */
    /* The table by which `weights` reads and writes what a folder says of a model; the format
       defines its type. NULL: it is neither read nor written, and save_to is an error. */
    const void *description;
    const struct ct_stored_rule *stored; /* ended by {0}; NULL: parameters are stored as they are */
    /* Rules of a plugin whose rules depend on sizes, for a model of this config.json, given as
       text, in the arena. It sets run->model_ops to a copy with such rules, and with the shard
       plan, when it creates a model. NULL: they are always `stored`. */
    int (*stored_for)(const char *config, struct ct_arena *arena,
                      const struct ct_stored_rule **rules);
    /* An array of structs of flavor_size bytes, each of which begins with a struct ct_flavor; the
       last has no name. A constant, for help reads it from the plugin's file. NULL: none; a model
       whose sizes ct_hf_sizes (lib/hf_config.h) fills must have some. */
    const void *flavors;
    size_t flavor_size;
    /* The format of init_from and save_to. NULL: a run that is to read or write weights fails. */
    const struct ct_weights_ops *weights;
};

/* ---- optimizers ---- */

struct ct_optimizer_ops {
    size_t size; /* of this struct */
    /* Append to the post part the update of all parameters with a gradient (value->grad), and
       create states. Scalars: "lr"; "step", float64, 1 for the first applied update; and `clip`,
       float32: multiply gradients by it, or skip this update if it is negative. */
    int (*build)(struct ct_builder *b, struct ct_value *const *params, size_t count,
                 struct ct_value *lr, struct ct_value *step, struct ct_value *clip);
    /* Peak learning rate of the recipe. With several optimizers, all use the rate of the one
       without `takes`. */
    double (*lr)(void);
    /* Whether it updates a parameter: several optimizers share the parameters then. Each goes to
       the first loaded optimizer that takes it. NULL: it updates the parameters that no other one
       takes; exactly one optimizer is such. */
    bool (*takes)(const struct ct_value *param);
    /* Its parameters' gradients are not gradients of the loss; the norm leaves them out. */
    bool no_norm;
};

struct ct_lr_schedule_ops {
    size_t size; /* of this struct */
    /* Factor of the learning rate for a 0-based step of total. It replaces the rule of
       [lr_scheduler], whose keys are errors then, except for total_steps. */
    double (*factor)(int64_t step, int64_t total);
};

/* ---- data ---- */

struct ct_tokenizer;

struct ct_data_request {
    int64_t seq_len;
    uint64_t seed;
    bool validation;                          /* the held-out part */
    const struct ct_tokenizer_ops *tokenizer; /* NULL: none loaded */
    int64_t vocabulary; /* the model's; 0: unknown. A source may check its tokens by it. */
    /* In a later stage of a run (stage.h): the source's data of the stage before, and how many of
       its samples are read by then, as the recipe plans it. A source goes on behind them with its
       sample 0 where it has the same files, and in other cases begins anew. NULL: there is none. It
       is open as long as this data is. */
    const struct ct_data *before;
    int64_t before_samples;
};

struct ct_data; /* defined by the source */
struct ct_validation_set;

/*
 * A source of text has `read` and `has_documents`: its streams (input.h) are tokens, labels and
 * documents. One with other streams has `streams` and `read_streams` in their place.
 */
struct ct_data_ops {
    size_t size; /* of this struct */
    int (*open)(const struct ct_data_request *request, struct ct_data **data);
    void (*close)(struct ct_data *data);
    /* Read sample `index` of the endless or finite sequence. A sample is a pure function of the
       index and the request, so the position of a run is one number, and any rank can read any
       sample. tokens and labels have seq_len entries; label -100 is masked. documents (may be NULL)
       gets ids that change at document boundaries. Returns 0, or 1 at a normal end of the data
       (nothing written). After the first index that has no sample, none has: ranks, which read
       different ones, would not agree on the end otherwise. Used by one thread at a time. */
    int (*read)(struct ct_data *data, int64_t index, int32_t *tokens, int32_t *labels,
                int32_t *documents);
    /* Whether `read` gives documents. Depends on the options only, as planning opens no data. */
    bool (*has_documents)(void);
    /* Smallest vocabulary that holds all tokens; 0: unknown. */
    int64_t (*vocabulary)(struct ct_data *data);
    /* A hash of what the samples are made of: the tokens and their order, or what they depend on.
       Equal hashes and options: equal samples. Checkpoints keep it, and a run that goes on warns if
       it has changed; the numbers are for that message, -1: unknown. Called while another thread
       reads. NULL: nothing is known. */
    uint64_t (*identity)(const struct ct_data *data, int64_t *documents, int64_t *tokens);
    /* Name of the format in which conversations are written (lib/chat.h); NULL: the data has none.
       Depends on the options only. NULL: it has none. */
    const char *(*chat)(void);
    /* The streams of a sample, ended by {0}, in memory that lives as long as the process, or in the
       arena. Depends on the options and the request only, as planning opens no data. */
    int (*streams)(const struct ct_data_request *request, struct ct_arena *arena,
                   const struct ct_data_stream **streams);
    /* As `read`. sample[i] is the memory of stream i, dense; NULL: it is not needed. */
    int (*read_streams)(struct ct_data *data, int64_t index, void *const *sample);
    /* It needs a tokenizer: that of the model's folder is loaded, where a recipe lists none. */
    bool tokenizes;
    /* Samples of an epoch; 0: it cannot tell. The data has as many at least. NULL: 0. */
    int64_t (*samples)(const struct ct_data *data);
    /* As `open`, of data that a section [validation.NAME] names (config.h). NULL: it takes none. */
    int (*open_set)(const struct ct_data_request *request, const struct ct_validation_set *set,
                    struct ct_data **data);
    /* With open_set: whether the options name held-out data, so that `open` has some. */
    bool (*has_validation)(void);
    /* Work that sample `index` makes beyond what all samples make alike, such as attention within
       its documents, in a unit of the source's. The samples of a step are given to ranks and
       microbatches so that their work is as equal as it may be; a step has the same samples in any
       case. A pure function of the index and the request. Called as `read` is. Returns 0, or 1 for
       a source whose samples are to stay in their order. NULL: 1. */
    int (*cost)(struct ct_data *data, int64_t index, double *cost);
};

/*
 * The streams of a source, ended by {0}, in this build's layout, whichever functions it has.
 * CT_EINVAL: they are no streams, or one has the name of an input that the run makes.
 */
CT_API int ct_data_streams(const struct ct_data_ops *ops, const struct ct_data_request *request,
                           struct ct_arena *arena, const struct ct_data_stream **streams);
/* Read a sample into the memory of its streams, as `read_streams` does. */
CT_API int ct_data_read(const struct ct_data_ops *ops, struct ct_data *data, int64_t index,
                        void *const *sample);

/* A hash of the tokens of a sample up to its last label, and of its labels: whatever padding is
   behind them. For files that hold something of each sample. */
CT_API uint64_t ct_labels_hash(const int32_t *tokens, const int32_t *labels, int64_t count);

/* ---- streams beside those of the data source ---- */

/* A sample that the data source has read. */
struct ct_data_sample {
    int64_t index, seq_len;
    const int32_t *tokens, *labels;
};

struct ct_beside; /* defined by the plugin */

/*
 * Further streams of the training data: values that a plugin has for each sample, such as the
 * logits of another model. The data source must have the streams tokens and labels.
 */
struct ct_beside_ops {
    size_t size; /* of this struct */
    /* As struct ct_data_ops has it. An empty list: the recipe asks for none. */
    int (*streams)(const struct ct_data_request *request, struct ct_arena *arena,
                   const struct ct_data_stream **streams);
    /* Called if the list has a stream, once the model was built. */
    int (*open)(const struct ct_data_request *request, struct ct_beside **streams);
    void (*close)(struct ct_beside *streams);
    /* values[i] is the memory of stream i of the list, dense; NULL: it is not needed. Used by one
       thread at a time. Returns 0 or a failure. */
    int (*read)(struct ct_beside *streams, const struct ct_data_sample *sample,
                void *const *values);
};

/* Bytes [begin, end) of a text. */
struct ct_text_span {
    size_t begin, end;
};

/* A file that a tokenizer reads, in a folder or by its path. */
struct ct_tokenizer_file {
    const char *name;   /* "tokenizer.json" */
    const char *begins; /* it begins with these bytes */
    int order;          /* of files of several tokenizers, that of the lowest order is read */
};

struct ct_decoding; /* defined by the tokenizer */

struct ct_tokenizer_ops {
    size_t size; /* of this struct */
    int64_t (*vocabulary)(void);
    /* Tokens that begin and end each document of the training data; -1: none. */
    int32_t (*bos)(void);
    int32_t (*eos)(void);
    /* Encode size bytes of UTF-8. The first `room` tokens are written to tokens (NULL: none).
       Returns the number of all, or a failure. */
    int64_t (*encode)(const char *text, size_t size, int32_t *tokens, size_t room);
    /* Write the bytes of one token to text; returns their number. May be part of a character. */
    int (*decode)(int32_t token, char *text, size_t room);
    /* Read files, before anything else is called. NULL: nothing to read. */
    int (*open)(void);
    /* A hash of what determines the tokens of a text: files, options, and the code, which counts
       its versions. Equal hashes let tokens of an earlier run be used. NULL: none. */
    uint64_t (*identity)(void);
    /* Token that ends what the model writes, also where documents of the training data do not get
       it; -1: none. NULL: eos. */
    int32_t (*end)(void);
    /* As encode, with the tokens that belong around a prompt. NULL: bos before it. */
    int64_t (*prompt)(const char *text, size_t size, int32_t *tokens, size_t room);
    /* As encode, for valid UTF-8, with the bytes of the text that each token stands for. Both
       arrays have `room` elements. NULL: unknown, and conversations cannot be labelled. */
    int64_t (*encode_spans)(const char *text, size_t size, int32_t *tokens,
                            struct ct_text_span *spans, size_t room);
    /* The file or folder that the recipe names for the tokenizer, which models that are saved get;
       "": none. NULL: none. */
    const char *(*path)(void);
    /* Decoding of a sequence whose tokens arrive in turn. The text of all of them is that of the
       tokenizer's own library. NULL: their bytes (`decode`), one after the other. */
    int (*decoding_open)(struct ct_decoding **decoding);
    /* Decode `count` more tokens; end: none follows. *text gets what no later token can change, and
       is valid until the next call. Returns its number of bytes, or a failure. */
    int64_t (*decoding_add)(struct ct_decoding *decoding, const int32_t *tokens, size_t count,
                            bool end, const char **text);
    void (*decoding_close)(struct ct_decoding *decoding); /* NULL is allowed */
    /* Files that its option `path` can name, or that its folder can have; ended by {0}. A model's
       folder chooses its tokenizer by this. NULL: nothing. */
    const struct ct_tokenizer_file *files;
};

/* ---- mesh axes ---- */

/* One axis of the mesh. The offer's name is the axis's. */
struct ct_axis_ops {
    size_t size; /* of this struct */
    /* Its position: axes of lower places are further out, those of higher places run faster. pp has
       100, dp_replicate 200, dp_shard 300, cp 400, tp 500. */
    int place;
    bool splits_batch; /* it splits the sequences of a batch */
    bool fills;        /* its degree may be -1: all remaining ranks */
    /* From the plugin's options: at least 1, or -1 if `fills`. */
    int64_t (*degree)(void);
    bool splits_heads; /* it splits the heads of attention, by the weights that make them */
};

/* ---- the order of a step ---- */

struct ct_graph;
struct ct_order;

/* Replaces the default order of a step, which is microbatch by microbatch. */
struct ct_order_ops {
    size_t size; /* of this struct */
    /* Sequences per data-parallel rank in one microbatch; 0: its whole local batch. */
    int64_t (*microbatch_size)(void);
    /* Append this rank's items for this many microbatches of training or evaluation. In training
       these may be several accumulated batches. Allocate in arena. */
    int (*order)(const struct ct_run *run, struct ct_graph *graph, int microbatches, bool training,
                 struct ct_arena *arena, struct ct_order *order);
    /* Does a rank run the I of a microbatch before other sections, and its W later? NULL: some. */
    int (*splits_backward)(struct ct_graph *graph, bool *splits);
};

/* ---- verbs ---- */

struct ct_argument;

struct ct_verb_ops {
    size_t size;                 /* of this struct */
    const char *summary, *usage; /* usage: the arguments, where there is no table of them */
    int (*run)(int argc, char **argv);
    const struct ct_argument *arguments; /* a table (verb.h) that {0} ends; NULL: none */
    const char *const *examples;         /* command lines, with what they do; NULL ends */
    const char *details; /* more sentences for the help, in lines of at most 80 columns; NULL */
};

CT_END_DECLS

#endif
