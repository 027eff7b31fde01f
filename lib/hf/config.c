/*
 * config.json by a model's table. The keys are those of transformers, of version 4 and 5.
 */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/arena.h>
#include <ctitan/error.h>
#include <ctitan/lib/file.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/ops.h>
#include <ctitan/log.h>
#include <ctitan/recipe.h>

#include "config.h"

#define SIZE_MOST (INT32_MAX - 1)

bool hf_absent(const json_t *value)
{
    return !value || json_is_null(value);
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

    for (const char *at = values; !same && *at;) {
        size_t size = strcspn(at, "|");
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

static int check_value(const json_t *value, const struct ct_hf_fixed *fixed)
{
    if (hf_absent(value) || (fixed->value && is_one_of(value, fixed->value)))
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
    return check_value(value, &none);
}

static int check_fixed(const json_t *root, const struct ct_hf_config *config)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    int rc = 0;

    if (!type || strcmp(type, config->model_type))
        return ct_fail(CT_ECONFIG, "model_type is %s; this plugin builds %s",
                       type ? type : "missing", config->model_type);
    for (const struct ct_hf_fixed *f = config->fixed; rc == 0 && f->key; f++)
        rc = check_value(json_object_get(root, f->key), f);
    return rc < 0 ? rc : check_quantization(root, config);
}

/* ---- one key ---- */

static int read_number(const json_t *value, const char *key, double fallback, double *number)
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

static int read_token(const json_t *value, const char *key, int32_t *token)
{
    json_int_t id = json_integer_value(value);

    *token = 0;
    if (hf_absent(value))
        return 0;
    if (!json_is_integer(value) || id <= INT32_MIN || id >= INT32_MAX)
        return ct_fail(CT_ECONFIG, "%s is not a token", key);
    *token = (int32_t)(id < 0 ? id : id + 1);
    return 0;
}

static int read_bool(const json_t *value, const char *key, double fallback, bool *flag)
{
    if (!hf_absent(value) && !json_is_boolean(value))
        return ct_fail(CT_ECONFIG, "%s is neither true nor false", key);
    *flag = value ? json_is_true(value) : fallback > 0;
    return 0;
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

bool hf_is_layer(const struct ct_hf_layers *layers, int64_t layer)
{
    return layers->bits[layer / 64] >> layer % 64 & 1;
}

static void set_layer(struct ct_hf_layers *layers, size_t layer, bool in)
{
    layers->bits[layer / 64] &= ~(UINT64_C(1) << layer % 64);
    layers->bits[layer / 64] |= (uint64_t)in << layer % 64;
}

/* Whether value is a list of as many entries as there are layers. */
static bool lists_layers(const json_t *root, const json_t *value)
{
    json_int_t count = json_integer_value(json_object_get(root, "num_hidden_layers"));

    return json_is_array(value) && (json_int_t)json_array_size(value) == count &&
           count <= CT_HF_MAX_LAYERS;
}

/* The layers of a type; others have full_attention. */
static int read_types(const json_t *root, const json_t *value, const char *key, const char *type,
                      struct ct_hf_layers *layers)
{
    layers->given = !hf_absent(value);
    if (!layers->given)
        return 0;
    if (!lists_layers(root, value))
        return ct_fail(CT_ECONFIG, "%s is not a list of num_hidden_layers, at most %d, types", key,
                       CT_HF_MAX_LAYERS);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *own = json_string_value(json_array_get(value, i));

        if (!own || (strcmp(own, type) && strcmp(own, "full_attention")))
            return ct_fail(CT_ECONFIG, "%s: layer %zu is %s; %s and full_attention are supported",
                           key, i, own ? own : "no string", type);
        set_layer(layers, i, !strcmp(own, type));
    }
    return 0;
}

static int read_sliding(const json_t *root, const json_t *value, const char *key,
                        struct ct_hf_layers *layers)
{
    for (size_t i = 0; i < CT_COUNT(layers->bits); i++)
        layers->bits[i] = CT_HF_EVERY_SECOND;
    return read_types(root, value, key, "sliding_attention", layers);
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

/* ---- rope ---- */

/* The value of a key in an object, or else in another one. */
static json_t *either(const json_t *object, const json_t *other, const char *key)
{
    json_t *value = json_object_get(object, key);

    return hf_absent(value) ? json_object_get(other, key) : value;
}

/* The object that describes rope, or NULL. transformers 5 takes rope_scaling, if it has entries,
   in the place of all of rope_parameters. */
static int find_rope(const json_t *root, const char **key, json_t **found)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};

    *found = NULL;
    for (size_t i = 0; i < CT_COUNT(keys) && !*found; i++) {
        json_t *value = json_object_get(root, keys[i]);

        *key = keys[i];
        if (!hf_absent(value) && !json_is_object(value))
            return ct_fail(CT_ECONFIG, "%s is not an object", *key);
        *found = json_object_size(value) ? value : NULL;
    }
    return 0;
}

static int read_scaling_number(const json_t *scaling, const char *key, double *number)
{
    return read_number(json_object_get(scaling, key), key, 0, number);
}

static int read_optional_number(const json_t *scaling, const char *key, double fallback,
                                double *number)
{
    const json_t *value = json_object_get(scaling, key);

    *number = fallback;
    return hf_absent(value) ? 0 : read_number(value, key, 0, number);
}

/* The factor, and the original context: transformers prefers that of the config to that of the
   scaling. */
static int read_factor(const json_t *root, const json_t *scaling, struct ct_rope *rope)
{
    static const char original_key[] = "original_max_position_embeddings";
    json_t *value = either(root, scaling, original_key);
    double original = 0;
    int rc;

    if (hf_absent(value))
        value = json_object_get(root, "max_position_embeddings");
    if ((rc = read_scaling_number(scaling, "factor", &rope->factor)) < 0 ||
        (rc = read_number(value, original_key, 0, &original)) < 0)
        return rc;
    if (rope->factor < 1)
        return ct_fail(CT_ECONFIG, "a factor of %g is below 1", rope->factor);
    rope->original_max_position = (int64_t)original;
    return 0;
}

static int read_llama3_scaling(const json_t *scaling, struct ct_rope *rope)
{
    int rc;

    if ((rc = read_scaling_number(scaling, "low_freq_factor", &rope->low_freq_factor)) < 0 ||
        (rc = read_scaling_number(scaling, "high_freq_factor", &rope->high_freq_factor)) < 0)
        return rc;
    if (rope->low_freq_factor > rope->high_freq_factor)
        return ct_fail(CT_ECONFIG, "low_freq_factor is above high_freq_factor");
    return 0;
}

/* By what YaRN multiplies cosines and sines, for one mscale (Peng et al. 2023, section 3.4). */
double hf_yarn_amplitude(double factor, double mscale)
{
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

static int read_amplitude(const json_t *scaling, struct ct_rope *rope)
{
    double mscale, all = rope->mscale_all_dim, amplitude;
    int rc = read_optional_number(scaling, "mscale", 0, &mscale);

    amplitude = mscale > 0 && all > 0
                    ? hf_yarn_amplitude(rope->factor, mscale) / hf_yarn_amplitude(rope->factor, all)
                    : hf_yarn_amplitude(rope->factor, 1);
    return rc < 0 ? rc
                  : read_optional_number(scaling, "attention_factor", amplitude, &rope->amplitude);
}

static int read_yarn_scaling(const json_t *scaling, struct ct_rope *rope)
{
    const json_t *truncate = json_object_get(scaling, "truncate");
    bool whole = true;
    int rc = truncate ? read_bool(truncate, "truncate", 1, &whole) : 0;

    rope->scaling = CT_ROPE_YARN;
    rope->fractional = !whole;
    if (rc < 0 || (rc = read_optional_number(scaling, "beta_fast", 32, &rope->beta_fast)) < 0 ||
        (rc = read_optional_number(scaling, "beta_slow", 1, &rope->beta_slow)) < 0 ||
        (rc = read_optional_number(scaling, "mscale_all_dim", 0, &rope->mscale_all_dim)) < 0)
        return rc;
    if (rope->beta_slow > rope->beta_fast)
        return ct_fail(CT_ECONFIG, "beta_slow is above beta_fast");
    if (rope->theta <= 1)
        return ct_fail(CT_ECONFIG, "yarn needs a rope_theta above 1, not %g", rope->theta);
    return read_amplitude(scaling, rope);
}

static int read_rope_type(const json_t *root, const json_t *object, struct ct_rope *rope)
{
    json_t *type = json_object_get(object, "rope_type"), *value;
    const char *key, *name;
    int rc;

    json_object_foreach((json_t *)(uintptr_t)object, key, value) if (
        json_is_object(value)) return ct_fail(CT_ECONFIG,
                                              "%s: rope of a type of layers is not supported", key);
    if (hf_absent(type))
        type = json_object_get(object, "type");
    if (hf_absent(type) && !hf_absent(json_object_get(object, "factor")))
        return ct_fail(CT_ECONFIG, "a factor, but no rope_type");
    name = hf_absent(type) ? "default" : json_string_value(type);
    if (!name)
        return ct_fail(CT_ECONFIG, "rope_type is not a string");
    if (!strcmp(name, "default"))
        return 0;
    if (strcmp(name, "llama3") && strcmp(name, "yarn"))
        return ct_fail(CT_ECONFIG, "rope_type %s is not supported; llama3, yarn and default are",
                       name);
    rc = read_factor(root, object, rope);
    if (rc < 0)
        return rc;
    return *name == 'y' ? read_yarn_scaling(object, rope) : read_llama3_scaling(object, rope);
}

/* rope_theta, and what rope_scaling or rope_parameters says. Which features are rotated is not said
   there. */
static int read_rope(const json_t *root, double fallback, const struct ct_rope *assumed,
                     struct ct_rope *rope)
{
    static const struct ct_hf_fixed whole = {"partial_rotary_factor", "1.0", false};
    const char *key;
    json_t *object;
    int rc = find_rope(root, &key, &object);

    *rope = (struct ct_rope){.factor = 1, .first = rope->first, .interleaved = rope->interleaved};
    if (!object && assumed && hf_absent(json_object_get(root, "rope_parameters")))
        *rope = *assumed;
    if (rc == 0)
        rc = check_value(either(object, root, whole.key), &whole);
    if (rc == 0)
        rc = read_number(either(object, root, "rope_theta"), "rope_theta", fallback, &rope->theta);
    if (rc < 0)
        return rc;
    rc = read_rope_type(root, object, rope);
    return rc < 0 ? ct_context(rc, "%s", key) : 0;
}

/* ---- all keys ---- */

/* The value of a key with the names "a|b", null if it has no other; NULL: it has none. */
static int find_key(const json_t *root, const char *names, json_t **found)
{
    *found = NULL;
    for (const char *at = names; *at;) {
        size_t size = strcspn(at, "|");
        json_t *value = json_object_getn(root, at, size);

        if (!hf_absent(*found) && !hf_absent(value) && !json_equal(value, *found))
            return ct_fail(CT_ECONFIG, "%s: these names of one setting have different values",
                           names);
        if (!hf_absent(value) || !*found)
            *found = value;
        at += size + (at[size] != 0);
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
        return read_size(value, k->key, k->fallback, 1, SIZE_MOST, field);
    case CT_HF_DEPTH:
        return read_size(value, k->key, k->fallback, 1, CT_HF_MAX_LAYERS, field);
    case CT_HF_COUNT:
        return read_size(value, k->key, k->fallback, 0, SIZE_MOST, field);
    case CT_HF_NUMBER:
        return read_number(value, k->key, k->fallback, field);
    case CT_HF_BOOL:
        return read_bool(value, k->key, k->fallback, field);
    case CT_HF_ROPE:
        return read_rope(root, k->fallback, config->rope, field);
    case CT_HF_LAYERS:
        return read_layers(value, k->key, field);
    case CT_HF_PART:
        return read_size(value, k->key, json_is_null(value) ? 0 : k->fallback, 1, SIZE_MOST, field);
    case CT_HF_SLIDING:
        return read_sliding(root, value, k->key, field);
    case CT_HF_CHUNKED:
        *(struct ct_hf_layers *)field = (struct ct_hf_layers){0};
        return read_types(root, value, k->key, "chunked_attention", field);
    case CT_HF_FLAGS:
        return read_flags(root, value, k->key, field);
    case CT_HF_TOKEN:
        return read_token(value, k->key, field);
    }
    return ct_fail(CT_EINVAL, "the table's kind of %s is unknown", k->key);
}

/* The part for text of a model for several kinds of input; of another model, all of it. */
json_t *hf_part_for_text(json_t *root, const struct ct_hf_config *config)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    json_t *text = json_object_get(root, "text_config");

    return config->outer && type && !strcmp(type, config->outer) && json_is_object(text) ? text
                                                                                         : root;
}

static int read_root(json_t *root, const struct ct_hf_config *config, void *sizes)
{
    int rc;

    if (!json_is_object(root))
        return ct_fail(CT_ECONFIG, "it is not a JSON object");
    rc = check_quantization(root, config);
    root = hf_part_for_text(root, config);
    if (rc == 0)
        rc = check_fixed(root, config);
    for (const struct ct_hf_key *k = config->keys; rc == 0 && k->key; k++)
        rc = hf_read_key(root, config, k, (char *)sizes + k->offset);
    return rc;
}

/* The file that was read last: the folder may be gone when a model from it is written. */
static struct {
    char folder[CT_PATH_ROOM];
    json_t *root, *literal; /* values; numbers as they are written */
} last;

static int keep(const char *folder, const char *path, json_t *root)
{
    json_decref(last.root);
    json_decref(last.literal);
    last.root = json_incref(root);
    snprintf(last.folder, sizeof(last.folder), "%s", folder);
    return ct_json_read_file(path, CT_JSON_LITERALS, &last.literal);
}

int hf_first_config(const char *folder, json_t **root, json_t **literal)
{
    char path[CT_PATH_ROOM];
    json_t *read;
    int rc = 0;

    if (!last.root || strcmp(last.folder, folder) != 0) {
        if (snprintf(path, sizeof(path), "%s/config.json", folder) >= CT_PATH_ROOM)
            return ct_fail(CT_ECONFIG, "a path of %zu characters is too long", strlen(folder));
        rc = ct_json_read_file(path, 0, &read);
        if (rc == 0) {
            rc = keep(folder, path, read);
            json_decref(read);
        }
    }
    if (rc == 0) {
        *root = json_incref(last.root);
        *literal = json_deep_copy(last.literal);
    }
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
    else if ((rc = ct_json_read_file(path, 0, &root)) == 0 &&
             (rc = read_root(root, config, sizes)) < 0)
        rc = ct_context(rc, "%s", path);
    if (rc == 0)
        rc = keep(folder, path, root);
    json_decref(root);
    ct_arena_finish(&arena);
    return rc;
}
