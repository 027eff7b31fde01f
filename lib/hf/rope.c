/*
 * Rope in config.json: theta, and what rope_scaling (transformers 4) or rope_parameters (5) says of
 * it, for all layers or for a type of them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/arena.h>
#include <ctitan/error.h>
#include <ctitan/lib/json.h>

#include "config.h"

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
    return hf_read_number(json_object_get(scaling, key), key, 0, number);
}

static int read_optional_number(const json_t *scaling, const char *key, double fallback,
                                double *number)
{
    const json_t *value = json_object_get(scaling, key);

    *number = fallback;
    return hf_absent(value) ? 0 : hf_read_number(value, key, 0, number);
}

/* The original context: transformers prefers that of the config to that of the scaling. */
static int read_original(const json_t *root, const json_t *scaling, int64_t *original)
{
    static const char key[] = "original_max_position_embeddings";
    const json_t *value = either(root, scaling, key);

    if (hf_absent(value))
        value = json_object_get(root, "max_position_embeddings");
    return hf_read_size(value, key, -1, original);
}

static int read_factor(const json_t *root, const json_t *scaling, struct ct_rope *rope)
{
    int rc;

    if ((rc = read_scaling_number(scaling, "factor", &rope->factor)) < 0 ||
        (rc = read_original(root, scaling, &rope->original_max_position)) < 0)
        return rc;
    return rope->factor < 1 ? ct_fail(CT_ECONFIG, "a factor of %g is below 1", rope->factor) : 0;
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
static double yarn_amplitude(double factor, double mscale)
{
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

static int read_amplitude(const json_t *scaling, struct ct_rope *rope)
{
    double mscale, all = rope->mscale_all_dim, amplitude;
    int rc = read_optional_number(scaling, "mscale", 0, &mscale);

    amplitude = mscale > 0 && all > 0
                    ? yarn_amplitude(rope->factor, mscale) / yarn_amplitude(rope->factor, all)
                    : yarn_amplitude(rope->factor, 1);
    return rc < 0 ? rc
                  : read_optional_number(scaling, "attention_factor", amplitude, &rope->amplitude);
}

static int read_yarn_scaling(const json_t *scaling, struct ct_rope *rope)
{
    const json_t *truncate = json_object_get(scaling, "truncate");
    bool whole = true;
    int rc = truncate ? hf_read_bool(truncate, "truncate", 1, &whole) : 0;

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

/* ---- LongRoPE ---- */

#define DIVISORS_MOST 50000 /* of the largest head */
#define DIVISOR_ROOM 26     /* characters, with the colon */

/* A list of divisors as text, "1:1.5:4", which lives as long as the process. */
static int read_divisors(const json_t *scaling, const char *key, const char **text)
{
    static struct ct_arena arena;
    const json_t *list = json_object_get(scaling, key);
    size_t count = json_array_size(list);
    struct ct_line line = {.room = count * DIVISOR_ROOM + 1};

    *text = "";
    if (!count || count > DIVISORS_MOST)
        return ct_fail(CT_ECONFIG, "%s is not a list of numbers, at most %d", key, DIVISORS_MOST);
    line.text = ct_arena_alloc(&arena, line.room);
    for (size_t i = 0; i < count; i++) {
        const json_t *divisor = json_array_get(list, i);

        if (!json_is_number(divisor) || !(json_number_value(divisor) > 0))
            return ct_fail(CT_ECONFIG, "%s: entry %zu is not a positive number", key, i);
        ct_line_add(&line, "%s%.17g", i ? ":" : "", json_number_value(divisor));
    }
    *text = line.text;
    return 0;
}

/* The factor, which only the amplitude needs, is by how much the context has grown. */
static int read_long_scaling(const json_t *root, const json_t *scaling,
                             const struct ct_hf_config *config, struct ct_rope *rope)
{
    static const char original_key[] = "original_max_position_embeddings";
    const json_t *most_key = json_object_get(root, "max_position_embeddings");
    const json_t *value = config->original ? json_object_get(root, original_key)
                                           : either(root, scaling, original_key);
    int64_t original, most;
    double factor, amplitude = 1;
    int rc;

    if (hf_absent(value) && !config->original)
        value = most_key;
    rope->scaling = CT_ROPE_LONG;
    if ((rc = read_divisors(scaling, "short_factor", &rope->longrope.near)) < 0 ||
        (rc = read_divisors(scaling, "long_factor", &rope->longrope.far)) < 0 ||
        (rc = hf_read_size(value, original_key, config->original ? config->original : -1,
                           &original)) < 0 ||
        (rc = hf_read_size(most_key, "max_position_embeddings", original, &most)) < 0 ||
        (rc = read_optional_number(scaling, "factor", (double)most / (double)original, &factor)) <
            0)
        return rc;
    rope->original_max_position = original;
    if (factor > 1)
        amplitude = sqrt(1 + log(factor) / log((double)original));
    return read_optional_number(scaling, "attention_factor", amplitude, &rope->amplitude);
}

/* ---- all types ---- */

/* The scale of queries' temperature, beside any type of rope. */
static int read_temper(const json_t *root, const json_t *object, const struct ct_hf_config *config,
                       struct ct_rope *rope)
{
    static const char key[] = "llama_4_scaling_beta";
    int rc;

    if (!config->tempers || hf_absent(json_object_get(object, key)))
        return 0;
    rc = read_scaling_number(object, key, &rope->temper);
    return rc < 0 ? rc : read_original(root, object, &rope->original_max_position);
}

/* Also by one factor. An alpha stretches theta, whatever the factor and the context are. */
static int read_stretch(const json_t *scaling, const struct ct_hf_config *config, bool dynamic,
                        struct ct_rope *rope)
{
    const json_t *alpha = dynamic ? json_object_get(scaling, "alpha") : NULL;
    int rc;

    if (!hf_absent(alpha) && !config->alpha)
        return ct_fail(CT_ECONFIG, "alpha of type dynamic is not supported");
    if (!hf_absent(alpha))
        return hf_read_number(alpha, "alpha", 0, &rope->alpha);
    rc = read_scaling_number(scaling, "factor", &rope->factor);
    rope->scaling = CT_ROPE_LINEAR;
    rope->dynamic = dynamic;
    return rc == 0 && rope->factor < 1
               ? ct_fail(CT_ECONFIG, "a factor of %g is below 1", rope->factor)
               : rc;
}

/* DeepSeek-V3 of transformers scales attention by them with any type; here only yarn has them. */
static int check_no_mscale(const json_t *scaling, const char *name)
{
    static const char *const keys[] = {"mscale", "mscale_all_dim"};

    for (size_t i = 0; i < CT_COUNT(keys); i++)
        if (!hf_absent(json_object_get(scaling, keys[i])))
            return ct_fail(CT_ECONFIG, "%s of rope_type %s is not supported; that of yarn is",
                           keys[i], name);
    return 0;
}

static int read_scaling(const json_t *root, const json_t *object, const char *name,
                        const struct ct_hf_config *config, struct ct_rope *rope)
{
    int rc;

    if (!strcmp(name, "default") || !strcmp(name, "mrope")) /* text has one position a token */
        return 0;
    if ((strcmp(name, "yarn") || config->original) && check_no_mscale(object, name) < 0)
        return CT_ECONFIG;
    if (!strcmp(name, "longrope") || !strcmp(name, "su") ||
        (config->original && !strcmp(name, "yarn")))
        return read_long_scaling(root, object, config, rope);
    if (!strcmp(name, "linear") || !strcmp(name, "dynamic"))
        return read_stretch(object, config, *name == 'd', rope);
    if (strcmp(name, "llama3") && strcmp(name, "yarn"))
        return ct_fail(CT_ECONFIG,
                       "rope_type %s is not supported; llama3, yarn, linear, dynamic, longrope and "
                       "default are",
                       name);
    rc = read_factor(root, object, rope);
    if (rc < 0)
        return rc;
    return *name == 'y' ? read_yarn_scaling(object, rope) : read_llama3_scaling(object, rope);
}

static int read_type(const json_t *root, const json_t *object, const struct ct_hf_config *config,
                     struct ct_rope *rope)
{
    json_t *type = json_object_get(object, "rope_type");

    if (hf_absent(type))
        type = json_object_get(object, "type");
    if (hf_absent(type) && !hf_absent(json_object_get(object, "factor")))
        return ct_fail(CT_ECONFIG, "a factor, but no rope_type");
    if (!hf_absent(type) && !json_is_string(type))
        return ct_fail(CT_ECONFIG, "rope_type is not a string");
    return read_scaling(root, object, hf_absent(type) ? "default" : json_string_value(type), config,
                        rope);
}

/* ---- of types of layers ---- */

static bool by_types(const json_t *object)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)object, key,
                        value) if (json_is_object(value)) return true;
    return false;
}

static bool has_local(const struct ct_hf_config *config)
{
    for (const struct ct_hf_key *k = config->keys; k->key; k++)
        if (k->kind == CT_HF_LOCAL_ROPE)
            return true;
    return false;
}

/* The object for full_attention or sliding_attention in that for all; NULL: it has none. */
static int find_type(const json_t *all, const struct ct_hf_config *config, bool local,
                     json_t **object)
{
    static const char *const types[] = {"full_attention", "sliding_attention"};
    const char *key;
    json_t *value;

    *object = json_object_get(all, types[local]);
    json_object_foreach((json_t *)(uintptr_t)all, key, value)
    {
        if (!json_is_object(value))
            return ct_fail(CT_ECONFIG, "%s is beside types of layers", key);
        if (!has_local(config) || (strcmp(key, types[0]) && strcmp(key, types[1])))
            return ct_fail(CT_ECONFIG, "%s: rope of a type of layers is not supported", key);
    }
    return 0;
}

/* ---- the whole ---- */

/* The share of features that is rotated. */
static int read_partial(const json_t *root, const json_t *object, const struct ct_hf_config *config,
                        struct ct_rope *rope)
{
    static const struct ct_hf_fixed all = {"partial_rotary_factor", "1.0", false};
    json_t *value = either(object, root, all.key);
    int rc;

    if (config->partial && hf_absent(value))
        value = json_object_get(root, config->partial);
    if (!config->partial || hf_absent(value))
        return hf_check_value(value, &all);
    rc = hf_read_number(value, all.key, 0, &rope->partial);
    return rc == 0 && rope->partial > 1
               ? ct_fail(CT_ECONFIG, "%s = %g is above 1", all.key, rope->partial)
               : rc;
}

/* The value of a key with the names "a|b" in root. */
static json_t *named(const json_t *root, const char *names)
{
    json_t *value = NULL;
    const char *name;
    size_t size;

    while (hf_absent(value) && hf_next(&names, &name, &size))
        value = json_object_getn(root, name, size);
    return value;
}

int hf_read_rope(const json_t *root, const struct ct_hf_key *k, const struct ct_hf_config *config,
                 struct ct_rope *rope)
{
    bool local = k->kind == CT_HF_LOCAL_ROPE;
    const char *key;
    json_t *object, *theta;
    int rc = find_rope(root, &key, &object);

    *rope = (struct ct_rope){.factor = 1,
                             .first = rope->first,
                             .interleaved = rope->interleaved,
                             .partial = rope->partial};
    if (!object && config->rope && !local && hf_absent(json_object_get(root, "rope_parameters")))
        *rope = *config->rope;
    if (rc == 0 && by_types(object))
        rc = find_type(object, config, local, &object);
    else if (local)
        object = NULL;
    if (rc == 0)
        rc = read_partial(root, object, config, rope);
    theta = json_object_get(object, "rope_theta");
    if (rc == 0)
        rc = hf_read_number(hf_absent(theta) ? named(root, k->key) : theta, k->key, k->fallback,
                            &rope->theta);
    if (rc < 0)
        return rc;
    rc = read_type(root, object, config, rope);
    if (rc == 0)
        rc = read_temper(root, object, config, rope);
    return rc < 0 ? ct_context(rc, "%s", key) : 0;
}

int hf_assume_rope(json_t *root, const struct ct_hf_config *config)
{
    const char *key;
    json_t *rope;
    int rc = find_rope(root, &key, &rope);

    if (rc < 0 || rope || !config->assumed_rope)
        return rc;
    rc = ct_json_read(config->assumed_rope, strlen(config->assumed_rope), "rope", 0, &rope);
    return rc < 0 ? rc : json_object_set_new(root, "rope_parameters", rope);
}

int ct_hf_assumed_rope(const struct ct_hf_config *config, struct ct_rope *rope)
{
    const struct ct_hf_key *k = config->keys;
    json_t *root = json_object();
    int rc = hf_assume_rope(root, config);

    while (k->kind != CT_HF_ROPE)
        k++;
    if (rc == 0)
        rc = hf_read_rope(root, k, config, rope);
    json_decref(root);
    return rc;
}

/* ---- writing ---- */

static void set_given(json_t *object, const char *key, double value)
{
    if (value > 0)
        json_object_set_new(object, key, json_real(value));
}

/* An attention factor is written if it is not the one that transformers assumes. */
static json_t *yarn_scaling(const struct ct_rope *rope)
{
    double amplitude = rope->amplitude > 0 ? rope->amplitude : 1;
    double assumed = rope->mscale_all_dim > 0 ? 1 : yarn_amplitude(rope->factor, 1);
    json_t *scaling =
        json_pack("{s:s, s:f, s:I}", "rope_type", "yarn", "factor", rope->factor,
                  "original_max_position_embeddings", (json_int_t)rope->original_max_position);

    set_given(scaling, "beta_fast", rope->beta_fast);
    set_given(scaling, "beta_slow", rope->beta_slow);
    set_given(scaling, "mscale", rope->mscale_all_dim);
    set_given(scaling, "mscale_all_dim", rope->mscale_all_dim);
    set_given(scaling, "attention_factor", amplitude != assumed ? amplitude : 0);
    if (rope->fractional)
        json_object_set_new(scaling, "truncate", json_false());
    return scaling;
}

static json_t *list_divisors(const char *text)
{
    json_t *list = json_array();
    char *end;

    for (; *text; text = end + (*end == ':'))
        json_array_append_new(list, json_real(strtod(text, &end)));
    return list;
}

static json_t *long_scaling(const struct ct_rope *rope)
{
    json_t *scaling = json_pack(
        "{s:s, s:o, s:o, s:I}", "rope_type", "longrope", "short_factor",
        list_divisors(rope->longrope.near), "long_factor", list_divisors(rope->longrope.far),
        "original_max_position_embeddings", (json_int_t)rope->original_max_position);

    set_given(scaling, "attention_factor", rope->amplitude);
    return scaling;
}

static json_t *rope_scaling(const struct ct_rope *rope, bool assumed)
{
    bool amplified = rope->amplitude > 0 && rope->amplitude != 1;

    if (rope->scaling == CT_ROPE_LONG)
        return long_scaling(rope);
    if (rope->alpha > 0)
        return json_pack("{s:s, s:f, s:f}", "rope_type", "dynamic", "factor", 1.0, "alpha",
                         rope->alpha);
    if (rope->factor <= 1 && !amplified)
        return assumed ? json_pack("{s:s}", "rope_type", "default") : json_null();
    if (rope->scaling == CT_ROPE_YARN)
        return yarn_scaling(rope);
    if (rope->scaling == CT_ROPE_LINEAR)
        return json_pack("{s:s, s:f}", "rope_type", rope->dynamic ? "dynamic" : "linear", "factor",
                         rope->factor);
    return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", rope->factor,
                     "low_freq_factor", rope->low_freq_factor, "high_freq_factor",
                     rope->high_freq_factor, "original_max_position_embeddings",
                     (json_int_t)rope->original_max_position);
}

/* The object that scaling is, or one of the type "default" in the place of null. */
static json_t *as_object(json_t *scaling)
{
    if (json_is_object(scaling))
        return scaling;
    json_decref(scaling);
    return json_pack("{s:s}", "rope_type", "default");
}

/* A change of rope leaves the positions of images as the file has them. */
static json_t *keep_others(const json_t *root, json_t *scaling)
{
    static const char *const keys[] = {"mrope_section", "mrope_interleaved"};
    const char *key;
    json_t *object, *value;

    if (find_rope(root, &key, &object) < 0)
        return scaling;
    for (size_t i = 0; i < CT_COUNT(keys); i++)
        if ((value = json_object_get(object, keys[i]))) {
            scaling = as_object(scaling);
            json_object_set(scaling, keys[i], value);
        }
    return scaling;
}

static json_t *add_temper(json_t *scaling, const struct ct_rope *rope)
{
    scaling = as_object(scaling);
    json_object_set_new(scaling, "llama_4_scaling_beta", json_real(rope->temper));
    json_object_set_new(scaling, "original_max_position_embeddings",
                        json_integer(rope->original_max_position));
    return scaling;
}

int hf_set_rope(json_t *root, const struct ct_hf_config *config, const struct ct_rope *rope)
{
    json_t *scaling = keep_others(root, rope_scaling(rope, config->rope || config->assumed_rope));

    if (rope->temper > 0)
        scaling = add_temper(scaling, rope);
    json_object_del(root, "rope_parameters");
    if (config->partial && rope->partial > 0)
        json_object_set_new(root, config->partial, json_real(rope->partial));
    return json_object_set_new(root, "rope_scaling", scaling);
}

static bool same_text(const char *a, const char *b)
{
    return !strcmp(a ? a : "", b ? b : "");
}

bool hf_same_rope(const struct ct_rope *a, const struct ct_rope *b)
{
    return a->theta == b->theta && a->factor == b->factor &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->original_max_position == b->original_max_position && a->scaling == b->scaling &&
           a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow &&
           a->fractional == b->fractional && a->mscale_all_dim == b->mscale_all_dim &&
           a->amplitude == b->amplitude && a->partial == b->partial && a->dynamic == b->dynamic &&
           a->alpha == b->alpha && a->temper == b->temper &&
           same_text(a->longrope.near, b->longrope.near) &&
           same_text(a->longrope.far, b->longrope.far);
}
