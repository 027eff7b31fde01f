/*
 * config.json by a model's table. The keys are those of transformers, of version 4 and 5.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/arena.h>
#include <ctitan/error.h>
#include <ctitan/lib/file.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/lib/ops.h>
#include <ctitan/log.h>
#include <ctitan/recipe.h>

static bool absent(const json_t *value)
{
    return !value || json_is_null(value);
}

static int fail_unsupported(const json_t *value, const struct ct_hf_fixed *fixed)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    int rc = 0;

    if (fixed->warn)
        ct_warn("config.json: %s = %.200s is ignored", fixed->key, text ? text : "?");
    else
        rc = ct_fail(CT_ECONFIG, "%s = %.200s is not supported", fixed->key, text ? text : "?");
    free(text);
    return rc;
}

static int check_fixed(const json_t *root, const struct ct_hf_config *config)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    int rc = 0;

    if (!type || strcmp(type, config->model_type))
        return ct_fail(CT_ECONFIG, "model_type is %s; this plugin builds %s",
                       type ? type : "missing", config->model_type);
    for (const struct ct_hf_fixed *f = config->fixed; rc == 0 && f->key; f++) {
        json_t *value = json_object_get(root, f->key), *expected;
        bool same;

        if (absent(value))
            continue;
        expected = f->value ? json_loads(f->value, JSON_DECODE_ANY, NULL) : NULL;
        same = json_equal(value, expected) ||
               (json_is_number(value) && json_is_number(expected) &&
                json_number_value(value) == json_number_value(expected));
        json_decref(expected);
        if (!same)
            rc = fail_unsupported(value, f);
    }
    return rc;
}

/* ---- one key ---- */

static int read_number(const json_t *value, const char *key, double fallback, double *number)
{
    if (absent(value) && fallback > 0)
        *number = fallback;
    else if (json_is_number(value) && json_number_value(value) > 0)
        *number = json_number_value(value);
    else
        return ct_fail(CT_ECONFIG, "%s is %s", key,
                       absent(value) ? "missing" : "not a positive number");
    return 0;
}

static int read_size(const json_t *value, const char *key, double fallback, int64_t *size)
{
    if (absent(value) && fallback >= 0)
        *size = (int64_t)fallback;
    else if (json_is_integer(value) && json_integer_value(value) > 0 &&
             json_integer_value(value) < INT32_MAX)
        *size = json_integer_value(value);
    else
        return ct_fail(CT_ECONFIG, "%s is %s", key, absent(value) ? "missing" : "not a size");
    return 0;
}

static int read_bool(const json_t *value, const char *key, double fallback, bool *flag)
{
    if (!absent(value) && !json_is_boolean(value))
        return ct_fail(CT_ECONFIG, "%s is neither true nor false", key);
    *flag = absent(value) ? fallback > 0 : json_is_true(value);
    return 0;
}

static int read_layers(const json_t *value, const char *key, struct ct_hf_layers *layers)
{
    *layers = (struct ct_hf_layers){0};
    if (!absent(value) && !json_is_array(value))
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

static int read_scaling_number(const json_t *scaling, const char *key, double *number)
{
    return read_number(json_object_get(scaling, key), key, 0, number);
}

static int read_llama3_scaling(const json_t *scaling, struct ct_rope *rope)
{
    double original = 0;
    int rc;

    if ((rc = read_scaling_number(scaling, "factor", &rope->factor)) < 0 ||
        (rc = read_scaling_number(scaling, "low_freq_factor", &rope->low_freq_factor)) < 0 ||
        (rc = read_scaling_number(scaling, "high_freq_factor", &rope->high_freq_factor)) < 0 ||
        (rc = read_scaling_number(scaling, "original_max_position_embeddings", &original)) < 0)
        return rc;
    if (rope->low_freq_factor >= rope->high_freq_factor)
        return ct_fail(CT_ECONFIG, "low_freq_factor is not below high_freq_factor");
    rope->original_max_position = (int64_t)original;
    return 0;
}

/* rope_theta and rope_scaling; transformers 5 has both in rope_parameters. */
static int read_rope(const json_t *root, double fallback, struct ct_rope *rope)
{
    json_t *parameters = json_object_get(root, "rope_parameters");
    json_t *scaling = absent(parameters) ? json_object_get(root, "rope_scaling") : parameters;
    json_t *type = json_object_get(scaling, "rope_type");
    const char *name = json_string_value(type ? type : json_object_get(scaling, "type"));
    json_t *theta = json_object_get(parameters, "rope_theta");
    int rc;

    *rope = (struct ct_rope){.factor = 1};
    rc = read_number(theta ? theta : json_object_get(root, "rope_theta"), "rope_theta", fallback,
                     &rope->theta);
    if (rc < 0 || absent(scaling))
        return rc;
    if (!name)
        return ct_fail(CT_ECONFIG, "rope_scaling has no rope_type");
    if (!strcmp(name, "default"))
        return 0;
    if (strcmp(name, "llama3"))
        return ct_fail(CT_ECONFIG, "rope_type %s is not supported; llama3 and default are", name);
    rc = read_llama3_scaling(scaling, rope);
    return rc < 0 ? ct_context(rc, "rope_scaling") : 0;
}

/* The value of a key, by the first of its names "a|b" that the object has. */
static json_t *find_key(const json_t *root, const char *names)
{
    for (const char *at = names; *at;) {
        size_t size = strcspn(at, "|");
        json_t *value = json_object_getn(root, at, size);

        if (!absent(value))
            return value;
        at += size + (at[size] != 0);
    }
    return NULL;
}

static int read_key(const json_t *root, const struct ct_hf_key *k, void *sizes)
{
    json_t *value = find_key(root, k->key);
    void *field = (char *)sizes + k->offset;

    switch (k->kind) {
    case CT_HF_SIZE:
        return read_size(value, k->key, k->fallback, field);
    case CT_HF_NUMBER:
        return read_number(value, k->key, k->fallback, field);
    case CT_HF_BOOL:
        return read_bool(value, k->key, k->fallback, field);
    case CT_HF_ROPE:
        return read_rope(root, k->fallback, field);
    case CT_HF_LAYERS:
        return read_layers(value, k->key, field);
    }
    return ct_fail(CT_EINVAL, "the table's kind of %s is unknown", k->key);
}

static int read_root(const json_t *root, const struct ct_hf_config *config, void *sizes)
{
    int rc;

    if (!json_is_object(root))
        return ct_fail(CT_ECONFIG, "it is not a JSON object");
    rc = check_fixed(root, config);
    for (const struct ct_hf_key *k = config->keys; rc == 0 && k->key; k++)
        rc = read_key(root, k, sizes);
    return rc;
}

int ct_hf_read_config(const struct ct_hf_config *config, const char *folder, void *sizes)
{
    struct ct_arena arena = {0};
    const char *path = ct_arena_printf(&arena, "%s/config.json", folder);
    json_error_t error;
    json_t *root = NULL;
    int rc;

    if (access(path, R_OK))
        rc = ct_fail(CT_ECONFIG, "[model] init_from: %s: %s", path, strerror(errno));
    else if (!(root = json_load_file(path, JSON_REJECT_DUPLICATES, &error)))
        rc = ct_fail(CT_ECONFIG, "%s:%d: %s", path, error.line, error.text);
    else if ((rc = read_root(root, config, sizes)) < 0)
        rc = ct_context(rc, "%s", path);
    json_decref(root);
    ct_arena_finish(&arena);
    return rc;
}

/* ---- writing ---- */

static json_t *rope_scaling(const struct ct_rope *rope)
{
    if (rope->factor <= 1)
        return json_null();
    return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", rope->factor,
                     "low_freq_factor", rope->low_freq_factor, "high_freq_factor",
                     rope->high_freq_factor, "original_max_position_embeddings",
                     (json_int_t)rope->original_max_position);
}

static json_t *list_layers(const struct ct_hf_layers *layers)
{
    json_t *list = json_array();

    for (int i = 0; i < CT_HF_MAX_LAYERS; i++)
        if (layers->bits[i / 64] >> i % 64 & 1)
            json_array_append_new(list, json_integer(i));
    return list;
}

static json_t *value_of(const struct ct_hf_key *k, const void *field)
{
    switch (k->kind) {
    case CT_HF_SIZE:
        return json_integer(*(const int64_t *)field);
    case CT_HF_NUMBER:
        return json_real(*(const double *)field);
    case CT_HF_BOOL:
        return json_boolean(*(const bool *)field);
    case CT_HF_ROPE:
        return json_real(((const struct ct_rope *)field)->theta);
    case CT_HF_LAYERS:
        return list_layers(field);
    }
    return NULL;
}

/* The keys of the initial model's config.json that the table does not have, or nothing. The dtype
   is that of its files, and rope_parameters would be preferred to the keys that are written. */
static json_t *first_config(void)
{
    char path[CT_PATH_ROOM];
    json_t *root = NULL;

    if (*ct_config.model.init_from &&
        snprintf(path, sizeof(path), "%s/config.json", ct_config.model.init_from) < CT_PATH_ROOM)
        root = json_load_file(path, 0, NULL);
    if (!json_is_object(root)) {
        json_decref(root);
        return json_object();
    }
    json_object_del(root, "dtype");
    json_object_del(root, "torch_dtype");
    json_object_del(root, "rope_parameters");
    return root;
}

int ct_hf_write_config(const struct ct_hf_config *config, const void *sizes, FILE *out)
{
    json_t *root = first_config();
    int failed = json_object_update_new(root, json_pack("{s:[s], s:s}", "architectures",
                                                        config->architecture, "model_type",
                                                        config->model_type));

    for (const struct ct_hf_fixed *f = config->fixed; f->key; f++)
        if (f->value)
            failed |=
                json_object_set_new(root, f->key, json_loads(f->value, JSON_DECODE_ANY, NULL));
    for (const struct ct_hf_key *k = config->keys; k->key; k++) {
        const void *field = (const char *)sizes + k->offset;

        failed |= json_object_setn_new(root, k->key, strcspn(k->key, "|"), value_of(k, field));
        if (k->kind == CT_HF_ROPE)
            failed |= json_object_set_new(root, "rope_scaling", rope_scaling(field));
    }
    failed = failed || json_dumpf(root, out, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) ||
             fputc('\n', out) == EOF;
    json_decref(root);
    return failed ? ct_fail(CT_EIO, "config.json cannot be written") : 0;
}
