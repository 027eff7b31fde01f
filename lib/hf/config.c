/*
 * config.json by a model's table. The keys are those of transformers, of version 4 and 5.
 */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/arena.h>
#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/ops.h>
#include <ctitan/log.h>

#include "config.h"

#define SIZE_MOST (INT32_MAX - 1)

bool hf_absent(const json_t *value)
{
    return !value || json_is_null(value);
}

bool hf_next(const char **names, const char **name, size_t *size)
{
    *name = *names;
    *size = strcspn(*name, "|");
    *names += *size + ((*name)[*size] != 0);
    return *size > 0;
}

static int fail_unsupported(const json_t *value, const struct ct_hf_fixed *fixed)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    int rc = 0;

    if (fixed->warn)
        ct_warn("config.json: %s = %.200s is ignored", fixed->key, text ? text : "?");
    else
        rc = ct_fail(CT_ECONFIG, "%s = %.200s is not supported", fixed->key, text ? text : "?");
    free(text);
    return rc;
}

/* Whether value is one of the JSON values "a|b". */
static bool is_one_of(const json_t *value, const char *values)
{
    bool same = false;
    const char *at;
    size_t size;

    while (!same && hf_next(&values, &at, &size)) {
        json_t *expected;

        if (ct_json_read(at, size, NULL, 0, &expected) < 0)
            return false;
        same = json_equal(value, expected) ||
               (json_is_number(value) && json_is_number(expected) &&
                json_number_value(value) == json_number_value(expected));
        json_decref(expected);
        at += size + (at[size] != 0);
    }
    return same;
}

/* Python takes null for false: it is no default of what is true, or a name or a list. */
static bool null_is_one_of(const char *values)
{
    json_t *no = json_false(), *zero = json_integer(0), *none = json_null();
    bool same = is_one_of(none, values) || is_one_of(no, values) || is_one_of(zero, values);

    json_decref(zero);
    return same;
}

int hf_check_value(const json_t *value, const struct ct_hf_fixed *fixed)
{
    bool same = !value || (!fixed->value && json_is_null(value));

    if (!same && fixed->value)
        same = json_is_null(value) ? null_is_one_of(fixed->value) : is_one_of(value, fixed->value);
    if (same)
        return 0;
    return fail_unsupported(value, fixed);
}

static int check_quantization(const json_t *root, const struct ct_hf_config *config)
{
    static const struct ct_hf_fixed none = {"quantization_config", NULL, false};
    const json_t *value = json_object_get(root, none.key);
    const char *method = json_string_value(json_object_get(value, "quant_method"));

    if (method && config->quant_method && !strcmp(method, config->quant_method))
        return 0;
    return hf_check_value(value, &none);
}

bool hf_is_outer(const struct ct_hf_config *config, const char *type)
{
    return config->outer && type && hf_is_name_of(config->outer, type);
}

/* Whether a model of several kinds of input has the settings of its part for text at the root: its
   description knows the keys of the others. */
static bool is_flat(const struct ct_hf_config *config, const char *type)
{
    return hf_is_outer(config, type) && config->ignored &&
           hf_is_listed(config->ignored, "vision_config");
}

static int check_fixed(const json_t *root, const struct ct_hf_config *config)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    int rc = 0;

    if (!type || (strcmp(type, config->model_type) != 0 && !is_flat(config, type)))
        return ct_fail(CT_ECONFIG, "model_type is %s; this plugin builds %s",
                       type ? type : "missing", config->model_type);
    for (const struct ct_hf_fixed *f = config->fixed; rc == 0 && f->key; f++)
        rc = hf_check_value(json_object_get(root, f->key), f);
    return rc < 0 ? rc : check_quantization(root, config);
}

/* ---- one key ---- */

int hf_read_number(const json_t *value, const char *key, double fallback, double *number)
{
    if (hf_absent(value) && fallback > 0)
        *number = fallback;
    else if (json_is_number(value) && json_number_value(value) > 0)
        *number = json_number_value(value);
    else
        return ct_fail(CT_ECONFIG, "%s is %s", key,
                       hf_absent(value) ? "missing" : "not a positive number");
    return 0;
}

static int read_size(const json_t *value, const char *key, double fallback, int64_t least,
                     int64_t most, int64_t *size)
{
    if (hf_absent(value) && fallback >= 0)
        *size = (int64_t)fallback;
    else if (json_is_integer(value) && json_integer_value(value) >= least &&
             json_integer_value(value) <= most)
        *size = json_integer_value(value);
    else if (json_is_integer(value))
        return ct_fail(CT_ECONFIG, "%s is %lld; expected %lld to %lld", key,
                       (long long)json_integer_value(value), (long long)least, (long long)most);
    else
        return ct_fail(CT_ECONFIG, "%s is %s", key,
                       hf_absent(value) ? "missing" : "not a whole number");
    return 0;
}

int hf_read_size(const json_t *value, const char *key, int64_t fallback, int64_t *size)
{
    return read_size(value, key, (double)fallback, 1, SIZE_MOST, size);
}

/* Whether a value says as null does that there is no such part. */
static bool leaves_out(const json_t *root, const json_t *value, const char *words)
{
    const char *word = json_string_value(value);

    if (json_is_null(value) || !words)
        return json_is_null(value);
    if (*words == '-')
        return json_is_integer(value) && json_integer_value(value) == atoi(words);
    if (*words == '!')
        return json_is_integer(value) && json_integer_value(value) == 0 &&
               !json_is_true(json_object_get(root, words + 1));
    return word && !strcmp(word, words);
}

static int read_part(const json_t *root, const json_t *value, const struct ct_hf_key *k,
                     int64_t *size)
{
    if (leaves_out(root, value, k->words)) {
        *size = 0;
        return 0;
    }
    return hf_read_size(value, k->key, (int64_t)k->fallback, size);
}

/* The number that a list has for each layer; other values: themselves. */
static const json_t *one_for_all(const json_t *value)
{
    const json_t *first = json_array_get(value, 0);

    for (size_t i = 1; i < json_array_size(value); i++)
        if (!json_equal(json_array_get(value, i), first))
            return value;
    return first ? first : value;
}

static int read_token(const json_t *value, const char *key, double fallback, int32_t *token)
{
    json_int_t id = json_integer_value(value);

    *token = value ? 0 : (int32_t)fallback;
    if (hf_absent(value))
        return 0;
    if (!json_is_integer(value) || id <= INT32_MIN || id >= INT32_MAX)
        return ct_fail(CT_ECONFIG, "%s is not a token", key);
    *token = (int32_t)(id < 0 ? id : id + 1);
    return 0;
}

int hf_read_bool(const json_t *value, const char *key, double fallback, bool *flag)
{
    if (!hf_absent(value) && !json_is_boolean(value))
        return ct_fail(CT_ECONFIG, "%s is neither true nor false", key);
    *flag = value ? json_is_true(value) : fallback > 0;
    return 0;
}

static int read_optional(const json_t *value, const char *key, double fallback, double *number)
{
    if (!hf_absent(value) && (!json_is_number(value) || !(json_number_value(value) >= 0)))
        return ct_fail(CT_ECONFIG, "%s is neither null nor a number from 0 on", key);
    *number = !value ? fallback : json_number_value(value);
    return 0;
}

static int read_factor(const json_t *value, const char *key, double fallback, double *number)
{
    if (!value && fallback < 0)
        return ct_fail(CT_ECONFIG, "%s is missing", key);
    if (!hf_absent(value) && (!json_is_number(value) || !(json_number_value(value) > 0)))
        return ct_fail(CT_ECONFIG, "%s is neither null nor a number above 0", key);
    *number = !value ? fallback : json_number_value(value);
    return 0;
}

/* Whether word is one of "b=c", which ends at size. */
static bool means(const char *words, size_t size, const char *word)
{
    for (size_t at = 0, n; at < size; at += n + 1) {
        n = strcspn(words + at, "=|");
        if (strlen(word) == n && !memcmp(words + at, word, n))
            return true;
    }
    return false;
}

/* The position of word among "a|b=c"; -1: it is not there. */
static int position(const char *words, const char *word)
{
    const char *at;
    size_t size;

    for (int i = 0; hf_next(&words, &at, &size); i++)
        if (means(at, size, word))
            return i;
    return -1;
}

static int read_choice(const json_t *value, const struct ct_hf_key *k, unsigned *choice)
{
    const char *word = json_string_value(value);
    int at = word ? position(k->words, word) : -1;

    if (hf_absent(value) && k->fallback >= 0) {
        *choice = (unsigned)k->fallback;
        return 0;
    }
    if (at >= 0) {
        *choice = (unsigned)at;
        return 0;
    }
    if (!word)
        return ct_fail(CT_ECONFIG, "%s is %s", k->key,
                       hf_absent(value) ? "missing" : "not a string");
    return ct_fail(CT_ECONFIG, "%s = \"%s\" is not supported; %s are", k->key, word, k->words);
}

static int read_layers(const json_t *value, const char *key, struct ct_hf_layers *layers)
{
    *layers = (struct ct_hf_layers){.given = !hf_absent(value)};
    if (!hf_absent(value) && !json_is_array(value))
        return ct_fail(CT_ECONFIG, "%s is not a list", key);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *layer = json_array_get(value, i);
        json_int_t at = json_integer_value(layer);

        if (!json_is_integer(layer) || at < 0 || at >= CT_HF_MAX_LAYERS)
            return ct_fail(CT_ECONFIG, "%s: entry %zu is not a layer from 0 to %d", key, i,
                           CT_HF_MAX_LAYERS - 1);
        layers->bits[at / 64] |= UINT64_C(1) << at % 64;
    }
    return 0;
}

static void set_layer(struct ct_hf_layers *layers, size_t layer, bool in)
{
    layers->bits[layer / 64] &= ~(UINT64_C(1) << layer % 64);
    layers->bits[layer / 64] |= (uint64_t)in << layer % 64;
}

/* Entries of a list, or letters of a word; -1: it is neither. */
static int64_t types_in(const json_t *value)
{
    return json_is_array(value)    ? (int64_t)json_array_size(value)
           : json_is_string(value) ? (int64_t)json_string_length(value)
                                   : -1;
}

int hf_words(const char *words)
{
    const char *word;
    int count = 0;
    size_t size;

    while (hf_next(&words, &word, &size))
        count++;
    return count;
}

/* Entry i of a list of words, or a letter of a word. */
static const char *entry(const json_t *value, size_t i, char letter[2])
{
    if (json_is_array(value))
        return json_string_value(json_array_get(value, i));
    letter[0] = json_string_value(value)[i];
    letter[1] = 0;
    return letter;
}

/* For each of the words "a=b|c" but the last, the layers that it is the type of. */
static int read_types(const json_t *root, const json_t *value, const char *key, const char *words,
                      struct ct_hf_layers *layers)
{
    int64_t count = json_integer_value(json_object_get(root, "num_hidden_layers"));
    int sets = hf_words(words) - 1;
    char letter[2];

    for (int k = 0; k < sets; k++)
        layers[k].given = !hf_absent(value);
    if (!layers->given)
        return 0;
    if (count > CT_HF_MAX_LAYERS || types_in(value) != count)
        return ct_fail(CT_ECONFIG, "%s is not a list of num_hidden_layers, at most %d, types", key,
                       CT_HF_MAX_LAYERS);
    for (int64_t i = 0; i < count; i++) {
        const char *own = entry(value, (size_t)i, letter);
        int at = own ? position(words, own) : -1;

        if (at < 0)
            return ct_fail(CT_ECONFIG, "%s: layer %lld is %s; %s are supported", key, (long long)i,
                           own ? own : "no string", words);
        for (int k = 0; k < sets; k++)
            set_layer(&layers[k], (size_t)i, at == k);
    }
    return 0;
}

static int read_sliding(const json_t *root, const json_t *value, const char *key,
                        struct ct_hf_layers *layers)
{
    for (size_t i = 0; i < CT_COUNT(layers->bits); i++)
        layers->bits[i] = CT_HF_EVERY_SECOND;
    return read_types(root, value, key, "sliding_attention|full_attention", layers);
}

static int read_flags(const json_t *root, const json_t *value, const char *key,
                      struct ct_hf_layers *layers)
{
    json_int_t count = json_integer_value(json_object_get(root, "num_hidden_layers"));

    *layers = (struct ct_hf_layers){.given = json_array_size(value) > 0};
    if (hf_absent(value) || (json_is_array(value) && !layers->given))
        return 0;
    if (!json_is_array(value) || (json_int_t)json_array_size(value) < count ||
        count > CT_HF_MAX_LAYERS)
        return ct_fail(CT_ECONFIG, "%s is not a list of num_hidden_layers, at most %d, numbers",
                       key, CT_HF_MAX_LAYERS);
    for (size_t i = 0; i < (size_t)count; i++) {
        const json_t *flag = json_array_get(value, i);

        if (!json_is_integer(flag) || json_integer_value(flag) < 0 || json_integer_value(flag) > 1)
            return ct_fail(CT_ECONFIG, "%s: entry %zu is neither 0 nor 1", key, i);
        set_layer(layers, i, json_integer_value(flag));
    }
    return 0;
}

/* ---- all keys ---- */

/* The value of a key with the names "a|b", null if it has no other; NULL: it has none. */
static int find_key(const json_t *root, const char *names, json_t **found)
{
    const char *at = names, *name;
    size_t size;

    *found = NULL;
    while (hf_next(&at, &name, &size)) {
        json_t *value = json_object_getn(root, name, size);

        if (!hf_absent(*found) && !hf_absent(value) && !json_equal(value, *found))
            return ct_fail(CT_ECONFIG, "%s: these names of one setting have different values",
                           names);
        if (!hf_absent(value) || !*found)
            *found = value;
    }
    return 0;
}

int hf_read_key(const json_t *root, const struct ct_hf_config *config, const struct ct_hf_key *k,
                void *field)
{
    json_t *value;
    int rc = find_key(root, k->key, &value);

    if (rc < 0)
        return rc;
    switch (k->kind) {
    case CT_HF_SIZE:
        return hf_read_size(value, k->key, (int64_t)k->fallback, field);
    case CT_HF_DEPTH:
        return read_size(value, k->key, k->fallback > 0 ? k->fallback : -1, 1, CT_HF_MAX_LAYERS,
                         field);
    case CT_HF_COUNT:
        return read_size(one_for_all(value), k->key, k->fallback, 0, SIZE_MOST, field);
    case CT_HF_NUMBER:
        return hf_read_number(value, k->key, k->fallback, field);
    case CT_HF_BOOL:
        return hf_read_bool(value, k->key, k->fallback, field);
    case CT_HF_ROPE:
    case CT_HF_LOCAL_ROPE:
        return hf_read_rope(root, k, config, field);
    case CT_HF_LAYERS:
        return read_layers(value, k->key, field);
    case CT_HF_PART:
        return read_part(root, value, k, field);
    case CT_HF_SLIDING:
        return read_sliding(root, value, k->key, field);
    case CT_HF_CHUNKED:
        *(struct ct_hf_layers *)field = (struct ct_hf_layers){0};
        return read_types(root, value, k->key, "chunked_attention|full_attention", field);
    case CT_HF_TYPES:
        for (int i = 0; i < hf_words(k->words) - 1; i++)
            ((struct ct_hf_layers *)field)[i] = (struct ct_hf_layers){0};
        return read_types(root, value, k->key, k->words, field);
    case CT_HF_FLAGS:
        return read_flags(root, value, k->key, field);
    case CT_HF_TOKEN:
        return read_token(value, k->key, k->fallback, field);
    case CT_HF_OPTIONAL:
        return read_optional(value, k->key, k->fallback, field);
    case CT_HF_FACTOR:
        return read_factor(value, k->key, k->fallback, field);
    case CT_HF_CHOICE:
        return read_choice(value, k, field);
    }
    return ct_fail(CT_EINVAL, "the table's kind of %s is unknown", k->key);
}

/* Whether the head is tied may be said at the root, alone or beside the part. */
json_t *hf_part_for_text(json_t *root, const struct ct_hf_config *config)
{
    static const char tied[] = "tie_word_embeddings";
    const char *type = json_string_value(json_object_get(root, "model_type"));
    json_t *text = json_object_get(root, "text_config"), *own = json_object_get(root, tied);

    if (!hf_is_outer(config, type) || !json_is_object(text))
        return root;
    if (own && (json_is_true(own) || !json_object_get(text, tied)))
        json_object_set(text, tied, own);
    return text;
}

void hf_count_layers(json_t *root, const struct ct_hf_config *config)
{
    const struct ct_hf_key *depth = NULL;
    json_t *types = NULL;

    for (const struct ct_hf_key *k = config->keys; k->key; k++) {
        if (k->kind == CT_HF_DEPTH && k->fallback == 0)
            depth = k;
        if (k->kind == CT_HF_TYPES && depth && find_key(root, k->key, &types) == 0 &&
            hf_absent(json_object_get(root, depth->key)) && types_in(types) > 0)
            json_object_set_new(root, depth->key, json_integer(types_in(types)));
    }
}

static int read_root(json_t *root, const struct ct_hf_config *config, void *sizes)
{
    int rc;

    if (!json_is_object(root))
        return ct_fail(CT_ECONFIG, "it is not a JSON object");
    rc = check_quantization(root, config);
    root = hf_part_for_text(root, config);
    hf_count_layers(root, config);
    if (rc == 0)
        rc = hf_assume_rope(root, config);
    if (rc == 0)
        rc = check_fixed(root, config);
    for (const struct ct_hf_key *k = config->keys; rc == 0 && k->key; k++)
        rc = hf_read_key(root, config, k, (char *)sizes + k->offset);
    return rc < 0 ? rc : hf_check_known(root, config);
}

/* The file that was read last: the folder may be gone when a model from it is written. */
static struct {
    char folder[CT_PATH_ROOM];
    struct stat file;
    json_t *root, *literal; /* values; numbers as they are written */
} last;

static bool is_last(const char *folder, const struct stat *now)
{
    return last.root && !strcmp(last.folder, folder) &&
           (!now ||
            (now->st_ino == last.file.st_ino && now->st_dev == last.file.st_dev &&
             now->st_size == last.file.st_size && now->st_mtim.tv_sec == last.file.st_mtim.tv_sec &&
             now->st_mtim.tv_nsec == last.file.st_mtim.tv_nsec));
}

static int read_text(const char *folder, const char *path, const struct stat *file)
{
    json_t *root = NULL, *literal = NULL;
    const void *text;
    size_t size;
    int rc = ct_file_map(path, &text, &size);

    if (rc < 0)
        return rc;
    rc = ct_json_read(text, size, path, 0, &root);
    if (rc == 0)
        rc = ct_json_read(text, size, path, CT_JSON_LITERALS, &literal);
    ct_file_unmap(text, size);
    if (rc < 0) {
        json_decref(root);
        return rc;
    }
    json_decref(last.root);
    json_decref(last.literal);
    last.root = root;
    last.literal = literal;
    last.file = *file;
    snprintf(last.folder, sizeof(last.folder), "%s", folder);
    return 0;
}

/* Have a folder's file in `last`. stale: it may be as it was, or be gone. */
static int read_folder(const char *folder, bool stale)
{
    char path[CT_PATH_ROOM];
    struct stat now = {0};

    if (stale && is_last(folder, NULL))
        return 0;
    if (snprintf(path, sizeof(path), "%s/config.json", folder) >= CT_PATH_ROOM)
        return ct_fail(CT_ECONFIG, "a path of %zu characters is too long", strlen(folder));
    if (stat(path, &now) == 0 && is_last(folder, &now))
        return 0;
    return read_text(folder, path, &now); /* or say why not */
}

int ct_hf_read_root(const char *folder, json_t **root)
{
    int rc = read_folder(folder, false);

    *root = rc == 0 ? json_deep_copy(last.root) : NULL;
    return rc == 0 && !*root ? ct_fail(CT_ENOMEM, "%s/config.json", folder) : rc;
}

int hf_first_config(const char *folder, json_t **root, json_t **literal)
{
    int rc = read_folder(folder, true);

    if (rc == 0) {
        *root = json_deep_copy(last.root);
        *literal = json_deep_copy(last.literal);
    }
    return rc;
}

int ct_hf_read_config_text(const struct ct_hf_config *config, const char *text, const char *path,
                           void *sizes)
{
    json_t *root = NULL;
    int rc = ct_json_read(text, strlen(text), path, 0, &root);

    if (rc == 0 && (rc = read_root(root, config, sizes)) < 0)
        rc = ct_context(rc, "%s", path);
    json_decref(root);
    return rc;
}

int ct_hf_read_config(const struct ct_hf_config *config, const char *folder, void *sizes)
{
    struct ct_arena arena = {0};
    const char *path = ct_arena_printf(&arena, "%s/config.json", folder);
    json_t *root = NULL;
    int rc;

    if (access(path, R_OK))
        rc = ct_fail(CT_ECONFIG, "[model] init_from: %s: %s", path, strerror(errno));
    else if ((rc = ct_hf_read_root(folder, &root)) == 0 &&
             (rc = read_root(root, config, sizes)) < 0)
        rc = ct_context(rc, "%s", path);
    json_decref(root);
    ct_arena_finish(&arena);
    return rc;
}
