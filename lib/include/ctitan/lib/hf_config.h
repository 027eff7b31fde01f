/*
 * config.json of a Hugging Face folder. A model describes it with one table, its `description` in
 * struct ct_model_ops, which is used to read and to write: keys that fill fields of the model's
 * sizes, in struct ct_model, and keys with the only value that the model supports. Keys that change
 * nothing, such as ids of tokens, are ignored; any other is an error, unless [model] ignore lists
 * it.
 */
#ifndef CT_HF_CONFIG_H
#define CT_HF_CONFIG_H

#include <stdio.h>

#include <ctitan/base.h>

CT_BEGIN_DECLS

struct ct_arena;
struct ct_model_ops;
struct ct_rope;
struct json_t; /* of jansson */

enum ct_hf_kind {
    CT_HF_SIZE,   /* int64_t, at least 1; a fallback of -1: the key is required, of 0: a size of 0
                     is written as null */
    CT_HF_COUNT,  /* int64_t, at least 0; also a list with this number for each layer */
    CT_HF_NUMBER, /* double, above 0; a fallback of 0: the key is required */
    CT_HF_BOOL,   /* bool; null is false */
    CT_HF_ROPE,   /* struct ct_rope (ops.h): rope_theta, and rope_scaling or rope_parameters; first
                     and interleaved are left as they are */
    CT_HF_LAYERS, /* struct ct_hf_layers: a list of layers; one that is not given is written as null
                     where the fallback is below 0 */
    CT_HF_PART,   /* as CT_HF_SIZE, of a part that null leaves out: then 0 */
    /* struct ct_hf_layers: those that layer_types calls sliding_attention; without the list, every
       second layer from 0 on. Behind the row of num_hidden_layers. */
    CT_HF_SLIDING,
    CT_HF_CHUNKED, /* struct ct_hf_layers: those that layer_types calls chunked_attention; without
                      the list, none are given */
    CT_HF_FLAGS,   /* struct ct_hf_layers: a list of 1 or 0 for each layer; null or empty: none are
                    given. Both behind the row of num_hidden_layers. */
    /* As CT_HF_SIZE, a number of layers: at most CT_HF_MAX_LAYERS. A fallback of 0: without the key
       as many as the list of CT_HF_TYPES, which comes later, has. */
    CT_HF_DEPTH,
    CT_HF_TOKEN,    /* int32_t: 1 + a token, or a token below 0, which counts from the vocabulary's
                      end; 0: none, written as null; the fallback is such a number */
    CT_HF_OPTIONAL, /* double, at least 0; null is 0 */
    CT_HF_CHOICE, /* unsigned: the position among `words`; a fallback of -1: the key is required */
    /* struct ct_rope of sliding layers: that of their type, or a theta of this key alone, without
       scaling */
    CT_HF_LOCAL_ROPE,
    /* struct ct_hf_layers[n - 1], for n `words`: for each word but the last, the layers that a list
       calls so; the list may be one word, with a letter for each layer. Without it none are given.
       Behind the row of num_hidden_layers. */
    CT_HF_TYPES,
    CT_HF_FACTOR, /* double, above 0, of a part that null leaves out: then 0 */
};

/* A set of layers: layer i is bit i % 64 of bits[i / 64]. */
#define CT_HF_MAX_LAYERS 1024
struct ct_hf_layers {
    uint64_t bits[CT_HF_MAX_LAYERS / 64];
    bool given; /* by the file */
};

/* Whether the set has a layer; it has none from CT_HF_MAX_LAYERS on. */
static inline bool ct_hf_has_layer(const struct ct_hf_layers *layers, int64_t layer)
{
    return layer < CT_HF_MAX_LAYERS && layers->bits[layer / 64] >> layer % 64 & 1;
}

#define CT_HF_MAX_WORDS 4                     /* of CT_HF_TYPES */
#define CT_HF_EVERY_SECOND 0x5555555555555555 /* of such bits, from layer 0 on */

struct ct_hf_key {
    const char *key; /* "a|b": names of it that agree; the first is written */
    enum ct_hf_kind kind;
    size_t offset;   /* of the field in the sizes */
    double fallback; /* what transformers assumes where the key is absent, or null unless that means
                        something of its own */
    /* Words of CT_HF_CHOICE, CT_HF_TYPES, "a|b=c": b and c mean the same; the first is written.
       Of CT_HF_PART, another value that leaves it out: a string, or a number below 0; or "!FLAG":
       0, where the key FLAG is not true. */
    const char *words;
};

/* A key that must be absent, or equal to a value; null is equal to null, false and 0, and to any
   value that is not known. */
struct ct_hf_fixed {
    const char *key;
    const char *value; /* as JSON, "a|b": also b, which means the same; NULL: none is allowed */
    bool warn;         /* another value is a warning: it is not applied */
};

struct ct_hf_config {
    const char *model_type, *architecture; /* "llama", "LlamaForCausalLM" */
    const struct ct_hf_key *keys;          /* ended by {0} */
    const struct ct_hf_fixed *fixed;       /* ended by {0} */
    const char *quant_method;   /* of quantization_config; of files that are read; NULL: none */
    const struct ct_rope *rope; /* if a file says nothing but rope_theta; NULL: no scaling */
    /* Models of several kinds of input whose part for text this is, "a|b": their model_type; NULL:
       there are none. Their config.json has it as text_config, or is flat, without one. */
    const char *outer;
    /* model_type and architecture that the part for text has where it is written without the
       others; NULL: these */
    const char *alone[2];
    /* The key at the root for the share of a head's features that is rotated; NULL: all are. */
    const char *partial;
    /* The original context of longrope where the key original_max_position_embeddings at the root
       is absent, whatever the scaling says of it; files of such a model also call longrope yarn.
       0: the scaling says it then. */
    int64_t original;
    const char *ignored; /* keys that change nothing here, "a, b"; NULL: none but those of all */
    bool alpha;          /* rope of type dynamic may have an alpha, which then counts alone */
    bool tempers;        /* llama_4_scaling_beta of rope is a temperature of queries */
    const char *assumed_rope; /* rope_parameters where a file says nothing of rope, as JSON; NULL */
};

/* Fill the sizes of a model of this plugin as [model] asks: with an entry of ops->flavors, which
   are such sizes, or from init_from's config.json by ops->description. Fields without a key are
   then those of the first flavor. CT_ECONFIG: there is no such flavor, or none at all; init_from
   is set without a description; or as below. */
CT_API int ct_hf_sizes(const struct ct_model_ops *ops, const char *plugin, void *sizes);
/* Fill sizes from folder/config.json, or its text_config; fields without a key are left as they
   are. CT_ECONFIG: a setting is missing, malformed or unsupported; the message names file and
   key. */
CT_API int ct_hf_read_config(const struct ct_hf_config *config, const char *folder, void *sizes);
/* The same from the text of a config.json; path appears in messages. */
CT_API int ct_hf_read_config_text(const struct ct_hf_config *config, const char *text,
                                  const char *path, void *sizes);
/* Write a config.json that ct_hf_read_config and transformers read. All other keys are those of
   [model] init_from's, where the run has one. */
CT_API int ct_hf_write_config(const struct ct_hf_config *config, const void *sizes, FILE *out);

/* The rope of a model whose config.json says nothing of it, by the description's row for rope,
   which it must have. CT_ECONFIG: its assumed_rope is malformed. */
CT_API int ct_hf_assumed_rope(const struct ct_hf_config *config, struct ct_rope *rope);

/* The values of a folder's config.json, which is read once while it stays as it is. *root: a copy.
   CT_ENOENT: there is none; CT_ECONFIG: it is no JSON. */
CT_API int ct_hf_read_root(const char *folder, struct json_t **root);

/* The model_type by which the plugin of a config.json is found: that of its text_config, if it has
   one. NULL: it has none. */
CT_API const char *ct_hf_model_type(const struct json_t *root);
/* The name of the plugin that builds the models of a model_type: that of the type's name, or, of
   "NAME_text", of NAME; or what the description of a family says (docs/models.md). CT_ECONFIG:
   there is none. */
CT_API int ct_hf_plugin(const char *model_type, char *name, size_t room);
/* The path of the description of a family: "families/NAME.ini" in a folder of plugins, in that of a
   plugin of the build, or beside them; else of the one whose `outer` has NAME. CT_ECONFIG: there is
   none; the message has those that there are. */
CT_API int ct_hf_family(const char *name, char *path, size_t room);
/* The names of the families that a plugin builds by description, sorted; the array is in arena. */
CT_API size_t ct_hf_families(struct ct_arena *arena, const char *plugin, const char ***names);

CT_END_DECLS

#endif
