/*
 * config.json in the form that transformers writes for LlamaForCausalLM. Unsupported settings that
 * change the computation are errors; everything else in the file is ignored.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>

#include "llama.h"

/* Sizes. A key is required unless its fallback, the default of transformers, is not negative. */
struct size_key {
    const char *key;
    size_t offset;
    int64_t fallback;
};
#define SIZE(key, field, fallback)                                                                 \
    {                                                                                              \
        key, offsetof(struct llama_sizes, field), fallback                                         \
    }

static const struct size_key size_keys[] = {
    SIZE("vocab_size", vocabulary, -1),     SIZE("hidden_size", dim, -1),
    SIZE("intermediate_size", ffn_dim, -1), SIZE("num_hidden_layers", layers, -1),
    SIZE("num_attention_heads", heads, -1), SIZE("num_key_value_heads", kv_heads, 0),
    SIZE("head_dim", head_dim, 0),          SIZE("max_position_embeddings", max_position, 2048),
};

/* Keys that must be absent, null, or equal to what this model computes. */
static const struct {
    const char *key, *expected; /* as JSON; NULL: key must be absent or null */
} fixed_keys[] = {
    {"hidden_act", "\"silu\""},      {"attention_bias", "false"},      {"mlp_bias", "false"},
    {"pretraining_tp", "1"},         {"partial_rotary_factor", "1.0"}, {"sliding_window", NULL},
    {"use_sliding_window", "false"}, {"quantization_config", NULL},
};

static bool absent(const json_t *value)
{
    return !value || json_is_null(value);
}

static int check_fixed(const json_t *root)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));

    if (!type || strcmp(type, "llama"))
        return ct_fail(CT_ECONFIG, "model_type is %s; this plugin builds llama",
                       type ? type : "missing");
    for (size_t i = 0; i < CT_COUNT(fixed_keys); i++) {
        json_t *value = json_object_get(root, fixed_keys[i].key), *expected;
        bool same;

        if (absent(value))
            continue;
        expected = fixed_keys[i].expected
                       ? json_loads(fixed_keys[i].expected, JSON_DECODE_ANY, NULL)
                       : NULL;
        same = json_equal(value, expected) ||
               (json_is_number(value) && json_is_number(expected) &&
                json_number_value(value) == json_number_value(expected));
        json_decref(expected);
        if (!same) {
            char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
            int rc = ct_fail(CT_ECONFIG, "%s = %.200s is not supported", fixed_keys[i].key,
                             text ? text : "?");

            free(text);
            return rc;
        }
    }
    return 0;
}

static int read_sizes(const json_t *root, struct llama_sizes *sizes)
{
    for (size_t i = 0; i < CT_COUNT(size_keys); i++) {
        const struct size_key *k = &size_keys[i];
        json_t *value = json_object_get(root, k->key);
        int64_t *field = (int64_t *)(void *)((char *)sizes + k->offset);

        if (absent(value) && k->fallback >= 0)
            *field = k->fallback;
        else if (json_is_integer(value) && json_integer_value(value) > 0 &&
                 json_integer_value(value) < INT32_MAX)
            *field = json_integer_value(value);
        else
            return ct_fail(CT_ECONFIG, "%s is %s", k->key,
                           absent(value) ? "missing" : "not a size");
    }
    if (!sizes->kv_heads)
        sizes->kv_heads = sizes->heads;
    if (!sizes->head_dim)
        sizes->head_dim = sizes->dim / sizes->heads;
    return 0;
}

static int read_number(const json_t *object, const char *key, double fallback, double *number)
{
    json_t *value = json_object_get(object, key);

    if (absent(value) && fallback > 0)
        *number = fallback;
    else if (json_is_number(value) && json_number_value(value) > 0)
        *number = json_number_value(value);
    else
        return ct_fail(CT_ECONFIG, "%s is %s", key,
                       absent(value) ? "missing" : "not a positive number");
    return 0;
}

static int read_llama3_scaling(const json_t *scaling, struct ct_rope *rope)
{
    double original = 0;
    int rc;

    if ((rc = read_number(scaling, "factor", 0, &rope->factor)) < 0 ||
        (rc = read_number(scaling, "low_freq_factor", 0, &rope->low_freq_factor)) < 0 ||
        (rc = read_number(scaling, "high_freq_factor", 0, &rope->high_freq_factor)) < 0 ||
        (rc = read_number(scaling, "original_max_position_embeddings", 0, &original)) < 0)
        return rc;
    if (rope->low_freq_factor >= rope->high_freq_factor)
        return ct_fail(CT_ECONFIG, "low_freq_factor is not below high_freq_factor");
    rope->original_max_position = (int64_t)original;
    return 0;
}

/* rope_theta and rope_scaling; transformers 5 has both in rope_parameters. */
static int read_rope(const json_t *root, struct ct_rope *rope)
{
    json_t *parameters = json_object_get(root, "rope_parameters");
    json_t *scaling = absent(parameters) ? json_object_get(root, "rope_scaling") : parameters;
    json_t *type = json_object_get(scaling, "rope_type");
    const char *name = json_string_value(type ? type : json_object_get(scaling, "type"));
    json_t *with_theta = json_object_get(parameters, "rope_theta") ? parameters : NULL;
    int rc;

    *rope = (struct ct_rope){.factor = 1};
    rc = read_number(with_theta ? with_theta : root, "rope_theta", 10000, &rope->theta);
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

static int read_root(const json_t *root, struct llama_sizes *sizes)
{
    json_t *tied = json_object_get(root, "tie_word_embeddings");
    int rc;

    *sizes = (struct llama_sizes){.tied = json_is_true(tied)};
    if (!json_is_object(root))
        return ct_fail(CT_ECONFIG, "it is not a JSON object");
    if (!absent(tied) && !json_is_boolean(tied))
        return ct_fail(CT_ECONFIG, "tie_word_embeddings is neither true nor false");
    if ((rc = check_fixed(root)) < 0 || (rc = read_sizes(root, sizes)) < 0 ||
        (rc = read_number(root, "rms_norm_eps", 1e-6, &sizes->norm_eps)) < 0)
        return rc;
    return read_rope(root, &sizes->rope);
}

int llama_read_config(const char *folder, struct llama_sizes *sizes)
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
    else if ((rc = read_root(root, sizes)) < 0)
        rc = ct_context(rc, "%s", path);
    json_decref(root);
    ct_arena_finish(&arena);
    return rc;
}

static json_t *rope_scaling(const struct ct_rope *rope)
{
    if (rope->factor <= 1)
        return json_null();
    return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", rope->factor,
                     "low_freq_factor", rope->low_freq_factor, "high_freq_factor",
                     rope->high_freq_factor, "original_max_position_embeddings",
                     (json_int_t)rope->original_max_position);
}

int llama_write_config(const struct llama_sizes *s, FILE *out)
{
    json_t *root =
        json_pack("{s:[s], s:s, s:s, s:b, s:b, s:f, s:f, s:o, s:b}", "architectures",
                  "LlamaForCausalLM", "model_type", "llama", "hidden_act", "silu", "attention_bias",
                  0, "mlp_bias", 0, "rms_norm_eps", s->norm_eps, "rope_theta", s->rope.theta,
                  "rope_scaling", rope_scaling(&s->rope), "tie_word_embeddings", (int)s->tied);
    int failed;

    for (size_t i = 0; i < CT_COUNT(size_keys); i++)
        json_object_set_new(
            root, size_keys[i].key,
            json_integer(*(const int64_t *)(const void *)((const char *)s + size_keys[i].offset)));
    failed = !root || json_dumpf(root, out, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) ||
             fputc('\n', out) == EOF;
    json_decref(root);
    return failed ? ct_fail(CT_EIO, "config.json cannot be written") : 0;
}
