/*
 * Keys of config.json that change nothing of what is trained. All others must be in a model's
 * table: a key that nobody knows may change the computation, so it is refused by name.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/error.h>

#include "config.h"

/* Ids of tokens and defaults of generation and of classifiers, names, and how transformers runs a
   model. */
static const char *const harmless[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "_sliding_window_pattern",
    "add_bos_token",
    "add_prefix_space",
    "architectures",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chat_template",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "generation_config",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "model_max_length",
    "model_type",
    "n_ctx",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "use_bfloat16",
    "use_cache",
    "use_mambapy",
};

/* Keys that the rows of all models read. */
static const char *const read[] = {"quantization_config", "rope_parameters", "rope_scaling",
                                   "partial_rotary_factor", "original_max_position_embeddings"};

static bool is_in(const char *const *list, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (!strcmp(list[i], key))
            return true;
    return false;
}

bool hf_is_name_of(const char *names, const char *key)
{
    const char *name;
    size_t size;

    while (hf_next(&names, &name, &size))
        if (size == strlen(key) && !memcmp(name, key, size))
            return true;
    return false;
}

bool hf_is_listed(const char *names, const char *key)
{
    static const char between[] = ", ";
    size_t size = strlen(key);

    for (names += strspn(names, between); *names; names += strspn(names, between)) {
        size_t n = strcspn(names, between);

        if (n == size && !memcmp(names, key, size))
            return true;
        names += n;
    }
    return false;
}

static bool is_known(const struct ct_hf_config *config, const char *key)
{
    for (const struct ct_hf_key *k = config->keys; k->key; k++)
        if (hf_is_name_of(k->key, key))
            return true;
    for (const struct ct_hf_fixed *f = config->fixed; f->key; f++)
        if (!strcmp(f->key, key))
            return true;
    return (config->partial && !strcmp(config->partial, key)) ||
           (config->ignored && hf_is_listed(config->ignored, key)) ||
           is_in(harmless, CT_COUNT(harmless), key) || is_in(read, CT_COUNT(read), key);
}

/* Whether a key that only other kinds of models set to true has its default here. */
static bool is_default(const char *key, const json_t *value)
{
    static const char *const keys[] = {"is_encoder_decoder", "is_decoder", "add_cross_attention"};

    return json_is_false(value) && is_in(keys, CT_COUNT(keys), key);
}

int hf_check_known(const json_t *root, const struct ct_hf_config *config)
{
    const char *key, *ignored = ct_config.model_ignore ? ct_config.model_ignore : "";
    json_t *value;
    char *text;
    int rc;

    json_object_foreach((json_t *)(uintptr_t)root, key, value)
    {
        if (hf_absent(value) || is_known(config, key) || is_default(key, value) ||
            hf_is_listed(ignored, key))
            continue;
        text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
        rc =
            ct_fail(CT_ECONFIG,
                    "%s = %.200s is not known here, and may change what the model computes: if you "
                    "know that it does not, --set model.ignore=%s",
                    key, text ? text : "?", key);
        free(text);
        return rc;
    }
    return 0;
}
