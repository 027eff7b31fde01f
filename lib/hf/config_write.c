/*
 * config.json of a model that is written: that of the folder it came from, with what is not so any
 * more, or the whole table's.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/ops.h>

#include "config.h"

static json_t *list_layers(const struct ct_hf_layers *layers)
{
    json_t *list = json_array();

    for (int i = 0; i < CT_HF_MAX_LAYERS; i++)
        if (ct_hf_has_layer(layers, i))
            json_array_append_new(list, json_integer(i));
    return list;
}

static json_t *list_flags(const json_t *root, const struct ct_hf_layers *layers)
{
    json_int_t count = json_integer_value(json_object_get(root, "num_hidden_layers"));
    json_t *list = json_array();

    for (int64_t i = 0; i < count && i < CT_HF_MAX_LAYERS; i++)
        json_array_append_new(list, json_integer(ct_hf_has_layer(layers, i)));
    return list;
}

static bool is_given(const void *layers)
{
    return ((const struct ct_hf_layers *)layers)->given;
}

static json_t *token_of(int32_t token)
{
    return token ? json_integer(token < 0 ? token : token - 1) : json_null();
}

/* A part that is left out: the number that says so, or null. */
static json_t *none_of(const struct ct_hf_key *k)
{
    char *end = NULL;
    long long none = k->words ? strtoll(k->words, &end, 10) : 0;

    return none < 0 && !*end ? json_integer(none) : json_null();
}

/* The word that is written for a choice. */
static json_t *word_of(const char *words, unsigned choice)
{
    const char *word = words;
    size_t size = 0;

    for (unsigned i = 0; i <= choice && hf_next(&words, &word, &size); i++)
        ;
    return json_stringn(word, strcspn(word, "|="));
}

static json_t *list_types(const json_t *root, const struct ct_hf_layers *layers, const char *words)
{
    json_int_t count = json_integer_value(json_object_get(root, "num_hidden_layers"));
    json_t *list = json_array();

    for (int64_t i = 0; i < count; i++) {
        unsigned last = (unsigned)hf_words(words) - 1, at = 0;

        while (at < last && !ct_hf_has_layer(&layers[at], i))
            at++;
        json_array_append_new(list, word_of(words, at));
    }
    return list;
}

static json_t *value_of(const json_t *root, const struct ct_hf_key *k, const void *field)
{
    switch (k->kind) {
    case CT_HF_SIZE:
    case CT_HF_DEPTH:
        return *(const int64_t *)field ? json_integer(*(const int64_t *)field) : json_null();
    case CT_HF_PART:
        return *(const int64_t *)field ? json_integer(*(const int64_t *)field) : none_of(k);
    case CT_HF_COUNT:
        return json_integer(*(const int64_t *)field);
    case CT_HF_NUMBER:
    case CT_HF_OPTIONAL:
        return json_real(*(const double *)field);
    case CT_HF_FACTOR:
        return *(const double *)field > 0 ? json_real(*(const double *)field) : json_null();
    case CT_HF_CHOICE:
        return word_of(k->words, *(const unsigned *)field);
    case CT_HF_BOOL:
        return json_boolean(*(const bool *)field);
    case CT_HF_ROPE:
    case CT_HF_LOCAL_ROPE:
        return json_real(((const struct ct_rope *)field)->theta);
    case CT_HF_LAYERS:
        return k->fallback < 0 && !is_given(field) ? json_null() : list_layers(field);
    case CT_HF_SLIDING:
        return list_types(root, field, "sliding_attention|full_attention");
    case CT_HF_CHUNKED:
        return is_given(field) ? list_types(root, field, "chunked_attention|full_attention")
                               : json_null();
    case CT_HF_TYPES:
        return is_given(field) ? list_types(root, field, k->words) : json_null();
    case CT_HF_FLAGS:
        return is_given(field) ? list_flags(root, field) : json_null();
    case CT_HF_TOKEN:
        return token_of(*(const int32_t *)field);
    }
    return NULL;
}

/* ---- what the file says already ---- */

/* The part for text of the object; the object itself is released. */
static json_t *take_text(json_t *root, const struct ct_hf_config *config)
{
    json_t *text = json_incref(hf_part_for_text(root, config));

    json_decref(root);
    return text;
}

/* The config.json of [model] init_from: its values, and what is written, with numbers as they are
   there; empty: the model is not from a folder. */
static int first_config(const struct ct_hf_config *config, json_t **values, json_t **written)
{
    int rc = 0;

    if (!*ct_config.model.init_from) {
        *values = json_object();
        *written = json_object();
        return 0;
    }
    rc = hf_first_config(ct_config.model.init_from, values, written);
    if (rc < 0)
        return ct_context(CT_ECONFIG, "[model] init_from");
    *values = take_text(*values, config);
    *written = take_text(*written, config);
    json_object_del(*written, "quantization_config");
    hf_count_layers(*values, config);
    hf_count_layers(*written, config);
    return 0;
}

/* Whether one of the names "a|b" is there, null or not. */
static bool has_key(const json_t *root, const char *names)
{
    const char *name;
    size_t size;

    while (hf_next(&names, &name, &size))
        if (json_object_getn(root, name, size))
            return true;
    return false;
}

static bool same_layers(const struct ct_hf_layers *a, const struct ct_hf_layers *b, int sets)
{
    for (int i = 0; i < sets; i++)
        if (memcmp(a[i].bits, b[i].bits, sizeof(a[i].bits)) != 0)
            return false;
    return true;
}

static bool same_value(const struct ct_hf_key *k, const void *a, const void *b)
{
    switch (k->kind) {
    case CT_HF_SIZE:
    case CT_HF_DEPTH:
    case CT_HF_PART:
    case CT_HF_COUNT:
        return *(const int64_t *)a == *(const int64_t *)b;
    case CT_HF_NUMBER:
    case CT_HF_OPTIONAL:
    case CT_HF_FACTOR:
        return *(const double *)a == *(const double *)b;
    case CT_HF_CHOICE:
        return *(const unsigned *)a == *(const unsigned *)b;
    case CT_HF_BOOL:
        return *(const bool *)a == *(const bool *)b;
    case CT_HF_ROPE:
    case CT_HF_LOCAL_ROPE:
        return hf_same_rope(a, b);
    case CT_HF_LAYERS:
    case CT_HF_SLIDING:
    case CT_HF_CHUNKED:
    case CT_HF_FLAGS:
        return same_layers(a, b, 1);
    case CT_HF_TYPES:
        return same_layers(a, b, hf_words(k->words) - 1);
    case CT_HF_TOKEN:
        return *(const int32_t *)a == *(const int32_t *)b;
    }
    return false;
}

static bool is_rope(const struct ct_hf_key *k)
{
    return k->kind == CT_HF_ROPE || k->kind == CT_HF_LOCAL_ROPE;
}

/* Whether the file gives a field the value that it has, so that its keys stay as they are. */
static bool says_already(const json_t *root, const struct ct_hf_config *config,
                         const struct ct_hf_key *k, const void *field)
{
    union {
        int64_t size;
        double number;
        bool flag;
        unsigned choice;
        struct ct_rope rope;
        struct ct_hf_layers layers[CT_HF_MAX_WORDS - 1];
    } own = {0};
    bool rope = is_rope(k);

    if (rope)
        own.rope = *(const struct ct_rope *)field;
    if (!has_key(root, rope ? "rope_theta|rope_scaling|rope_parameters" : k->key))
        return false;
    return hf_read_key(root, config, k, &own) == 0 && same_value(k, &own, field);
}

/* Whether it gives all ropes, which share keys. */
static bool says_ropes(const json_t *root, const struct ct_hf_config *config, const void *sizes)
{
    for (const struct ct_hf_key *k = config->keys; k->key; k++)
        if (is_rope(k) && !says_already(root, config, k, (const char *)sizes + k->offset))
            return false;
    return true;
}

/* ---- changes ---- */

/* Delete the keys of other parts, which a description ignores at the root of a whole. */
static void drop_others(json_t *root, const struct ct_hf_config *config)
{
    const char *key;
    json_t *value;
    void *next;

    json_object_foreach_safe(root, next, key, value)
    {
        if (config->ignored && hf_is_listed(config->ignored, key))
            json_object_del(root, key);
    }
}

/* Set the first of the names "a|b", and delete the others. */
static int set_key(json_t *root, const char *names, json_t *value)
{
    const char *first, *name;
    size_t first_size, size;

    hf_next(&names, &first, &first_size);
    while (hf_next(&names, &name, &size))
        json_object_deln(root, name, size);
    return json_object_setn_new(root, first, first_size, value);
}

/* The first of the JSON values "a|b". */
static json_t *first_value(const char *values)
{
    json_t *value;

    return ct_json_read(values, strcspn(values, "|"), NULL, 0, &value) < 0 ? NULL : value;
}

int ct_hf_write_config(const struct ct_hf_config *config, const void *sizes, FILE *out)
{
    json_t *values, *root;
    int failed, rc = first_config(config, &values, &root);
    bool made = rc == 0 && !json_object_size(root), ropes;
    bool alone = config->alone[0] != NULL; /* other keys may be silent there, so all are written */

    if (rc < 0)
        return rc;
    if (alone)
        drop_others(root, config);
    ropes = says_ropes(values, config, sizes);
    failed = json_object_update_new(root, json_pack("{s:[s], s:s}", "architectures",
                                                    alone ? config->alone[1] : config->architecture,
                                                    "model_type",
                                                    alone ? config->alone[0] : config->model_type));
    for (const struct ct_hf_fixed *f = config->fixed; made && f->key; f++)
        if (f->value)
            failed |= json_object_set_new(root, f->key, first_value(f->value));
    for (const struct ct_hf_key *k = config->keys; k->key; k++) {
        const void *field = (const char *)sizes + k->offset;

        if (!alone && (is_rope(k) ? ropes : says_already(values, config, k, field)))
            continue;
        failed |= set_key(root, k->key, value_of(root, k, field));
        if (k->kind == CT_HF_DEPTH) /* a list of another length does not say the value */
            failed |= set_key(values, k->key, value_of(root, k, field));
        if (k->kind == CT_HF_ROPE)
            failed |= hf_set_rope(root, config, field);
    }
    failed = failed || ct_json_write(root, out) < 0;
    json_decref(values);
    json_decref(root);
    return failed ? ct_fail(CT_EIO, "config.json cannot be written") : 0;
}
