/*
 * Descriptions of families: INI files in folders called "families", beside plugins. A description
 * begins with all that the one called by `like` says.
 *
 *     [family]  model_type, architecture, like, outer
 *     [model]   property = value
 *     [config]  key of config.json = property, or "property default"; "recurrent a=b|c|d": the
 *               types of linear layers, of those of feed-forward alone (may be left out), and of
 *               attention
 *     [fixed]   key of config.json = the only value that is supported, as JSON; "VALUE warn"
 *     [weights] part = its name in files
 *     [stored]  how files store weights that are several of ours, or one of several
 *     [flavor.NAME] property = value
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/patterns.h>
#include <ctitan/recipe.h>

#include "decoder.h"

#define DEPTH 8 /* of descriptions that are like another */

static struct ct_arena arena; /* of all descriptions */

static const char *const weight_names[] = {
#define X(id, name, usual) name,
    DECODER_WEIGHTS(X)
#undef X
};
static const char *const usual_weights[] = {
#define X(id, name, usual) usual,
    DECODER_WEIGHTS(X)
#undef X
};

/* ---- finding one ---- */

static int find(const char *name, const char **path)
{
    char file[PATH_MAX];
    int rc = 0;

    *path = name;
    if (strchr(name, '/'))
        return 0;
    rc = ct_hf_family(name, file, sizeof(file));
    if (rc == 0)
        *path = ct_arena_strdup(&arena, file);
    return rc;
}

/* ---- reading it ---- */

static const struct ct_setting *setting_of(const struct ct_recipe *file, const char *section,
                                           const char *key)
{
    for (size_t i = 0; i < file->count; i++)
        if (!strcmp(file->settings[i].section, section) && !strcmp(file->settings[i].key, key))
            return &file->settings[i];
    return NULL;
}

/* Put what `from` says under what `file` says: an own setting stays. */
static void inherit(struct ct_recipe *file, const struct ct_recipe *from)
{
    for (size_t i = 0; i < from->count; i++) {
        const struct ct_setting *s = &from->settings[i];

        if (setting_of(file, s->section, s->key) ||
            (!strcmp(s->section, "family") && !strcmp(s->key, "like")) ||
            !strncmp(s->section, "flavor.", 7))
            continue;
        file->settings = ct_arena_grow(&arena, file->settings, &file->room, file->count + 1,
                                       sizeof(*file->settings));
        file->settings[file->count++] = *s;
    }
}

static int read_file(const char *name, int depth, struct ct_recipe **file)
{
    const char *path = NULL, *like;
    struct ct_recipe *from;
    int rc = depth > DEPTH ? ct_fail(CT_ECONFIG, "descriptions are like each other in a circle")
                           : find(name, &path);

    if (rc == 0)
        rc = ct_recipe_read(&arena, path, file);
    like = rc == 0 ? ct_recipe_get(*file, "family", "like") : NULL;
    if (!like)
        return rc;
    rc = read_file(like, depth + 1, &from);
    if (rc == 0)
        inherit(*file, from);
    return rc < 0 ? ct_context(rc, "%s", path) : 0;
}

/* ---- rows of config.json ---- */

/* Properties that are no options. */
static const struct special {
    const char *name;
    enum ct_hf_kind kind;
    size_t offset;
    const char *words; /* of CT_HF_TYPES */
    size_t sets;       /* that can be told apart by these */
} specials[] = {
    {"rope", CT_HF_ROPE, offsetof(struct ct_model, sizes.rope)},
    {"local_rope", CT_HF_LOCAL_ROPE, offsetof(struct ct_model, local_rope)},
    {"sliding", CT_HF_SLIDING, offsetof(struct ct_model, sliding)},
    {"rotated", CT_HF_FLAGS, offsetof(struct ct_model, rotated)},
    {"attending", CT_HF_LAYERS, offsetof(struct ct_model, attending)},
    {"recurrent", CT_HF_TYPES, offsetof(struct ct_model, types), "linear_attention|full_attention",
     CT_COUNT(((struct ct_model *)NULL)->types)},
    {"dense", CT_HF_LAYERS, offsetof(struct ct_model, dense)},
    {"dense_types", CT_HF_TYPES, offsetof(struct ct_model, dense), "dense|sparse", 1},
    {"padding", CT_HF_TOKEN, offsetof(struct ct_model, sizes.padding)},
};

/* Numbers that may be 0, which is something else than null. */
static const char *const with_zero[] = {
    "window_from",     "window_until", "full_every",      "plain_every", "dense_layers",
    "attention_every", "sparse_every", "shared_dim",      "shared",      "experts",
    "chosen",          "norm_eps",     "time_step_least", "balance",     "predicted"};

static bool has_zero(const char *name)
{
    for (size_t i = 0; i < CT_COUNT(with_zero); i++)
        if (!strcmp(with_zero[i], name))
            return true;
    return false;
}

static enum ct_hf_kind kind_of(const struct ct_option *o)
{
    switch (o->type) {
    case CT_INT:
        return !strcmp(o->name, "layers") ? CT_HF_DEPTH
               : has_zero(o->name)        ? CT_HF_COUNT
                                          : CT_HF_PART;
    case CT_FLOAT:
        return has_zero(o->name) ? CT_HF_OPTIONAL : CT_HF_FACTOR;
    case CT_BOOL:
        return CT_HF_BOOL;
    default:
        return CT_HF_CHOICE;
    }
}

/* The default of a key as a row has it. */
static int read_fallback(const struct ct_setting *s, const struct ct_option *o, const char *text,
                         double *fallback)
{
    struct ct_model model = {0};
    int rc;

    if (!*text) {
        *fallback = o->type == CT_BOOL ? 0 : -1;
        return 0;
    }
    rc = ct_options_set(decoder_properties, &model, o->name, text, s->source);
    if (rc < 0)
        return rc;
    if (o->type == CT_INT)
        *fallback = (double)*(const int64_t *)((const char *)&model + o->offset);
    else if (o->type == CT_FLOAT)
        *fallback = *(const double *)((const char *)&model + o->offset);
    else if (o->type == CT_BOOL)
        *fallback = *(const bool *)((const char *)&model + o->offset);
    else
        *fallback = *(const unsigned *)((const char *)&model + o->offset);
    return 0;
}

static int fail_property(const struct ct_setting *s, const char *name)
{
    const char **names = NULL;
    size_t count = 0, room = 0;

    for (const struct ct_option *o = decoder_properties; o->name; o++) {
        names = ct_arena_grow(&arena, names, &room, count + 1, sizeof(*names));
        names[count++] = o->name;
    }
    for (size_t i = 0; i < CT_COUNT(specials); i++) {
        names = ct_arena_grow(&arena, names, &room, count + 1, sizeof(*names));
        names[count++] = specials[i].name;
    }
    return ct_fail(CT_ECONFIG, "%s: [%s] %s: there is no property %s%s", s->source, s->section,
                   s->key, name, ct_did_you_mean(name, names, count));
}

/* As many types as there are sets of layers, and one more for the rest. */
static int read_words(const struct ct_setting *s, const char *words, size_t sets,
                      struct ct_hf_key *key)
{
    size_t count = 1;

    for (const char *at = words; *at; at++)
        count += *at == '|';
    key->words = words;
    return count < 2 || count > 1 + sets
               ? ct_fail(CT_ECONFIG, "%s: %s is %zu types of layers; 2 to %zu can be told apart",
                         s->source, words, count, 1 + sets)
               : 0;
}

/* "VALUE", or "VALUE WORDS" of a key that values beside null leave out. */
static const char *split_words(const char *text, struct ct_hf_key *key)
{
    size_t size = strcspn(text, " ");

    if (key->kind != CT_HF_PART || !text[size])
        return text;
    key->words = text + size + strspn(text + size, " ");
    return ct_arena_printf(&arena, "%.*s", (int)size, text);
}

static int read_key(const struct ct_setting *s, struct ct_hf_key *key)
{
    size_t size = strcspn(s->value, " ");
    const char *name = ct_arena_printf(&arena, "%.*s", (int)size, s->value);
    const char *text = s->value + size + strspn(s->value + size, " ");
    const struct ct_option *o = ct_option_find(decoder_properties, name);
    char *end;

    key->key = s->key;
    for (size_t i = 0; i < CT_COUNT(specials); i++)
        if (!strcmp(specials[i].name, name)) {
            key->kind = specials[i].kind;
            key->words = specials[i].words;
            key->offset = specials[i].offset;
            if (*text && key->kind == CT_HF_TYPES)
                return read_words(s, text, specials[i].sets, key);
            key->fallback = *text ? strtod(text, &end) : 0;
            if (*text && key->kind == CT_HF_TOKEN)
                key->fallback += 1;
            return *text && *end ? ct_fail(CT_ECONFIG, "%s: %s is not a number", s->source, text)
                                 : 0;
        }
    if (!o)
        return fail_property(s, name);
    key->kind = kind_of(o);
    key->offset = o->offset;
    key->words = o->type == CT_ENUM ? decoder_words(o) : NULL;
    return read_fallback(s, o, split_words(text, key), &key->fallback);
}

/* "VALUE", or "VALUE warn" */
static void read_fixed(const struct ct_setting *s, struct ct_hf_fixed *fixed)
{
    size_t size = strlen(s->value);

    fixed->key = s->key;
    fixed->warn = ct_ends_in(s->value, " warn");
    fixed->value = ct_arena_printf(&arena, "%.*s", (int)(fixed->warn ? size - 5 : size), s->value);
    if (!strcmp(fixed->value, "null"))
        fixed->value = NULL;
}

/* Layers come first, as rows for each layer need their number. */
static int read_rows(const struct ct_recipe *file, struct family *f)
{
    struct ct_hf_key *keys = ct_arena_array(&arena, struct ct_hf_key, file->count + 1);
    struct ct_hf_fixed *fixed = ct_arena_array(&arena, struct ct_hf_fixed, file->count + 1);
    size_t key_count = 0, fixed_count = 0;
    int rc = 0;

    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; rc == 0 && i < file->count; i++) {
            const struct ct_setting *s = &file->settings[i];
            bool layers = !strncmp(s->value, "layers", 6);

            if (strcmp(s->section, "config") || !strcmp(s->value, "-") || layers == (pass > 0))
                continue;
            rc = read_key(s, &keys[key_count++]);
        }
    for (size_t i = 0; i < file->count; i++)
        if (!strcmp(file->settings[i].section, "fixed") && strcmp(file->settings[i].value, "-"))
            read_fixed(&file->settings[i], &fixed[fixed_count++]);
    f->config.keys = keys;
    f->config.fixed = fixed;
    return rc;
}

/* ---- the rest ---- */

static const char *get(const struct ct_recipe *file, const char *section, const char *key)
{
    const struct ct_setting *s = setting_of(file, section, key);

    return s && strcmp(s->value, "-") ? s->value : NULL;
}

static int check_names(const struct ct_recipe *file)
{
    static const struct {
        const char *section, *keys;
    } known[] = {
        {"family", " model_type architecture like outer alone alone_architecture partial original "
                   "ignored alpha plugin tempers rope "},
        {"stored",
         " qkv qkv_by gate_up expert_gate expert_up expert_down correction q_norms k_norms "
         "linear_by down experts_gate_up experts_down experts_by ignored embedding_copies "
         "head_copies "},
    };

    for (size_t i = 0; i < file->count; i++) {
        const struct ct_setting *s = &file->settings[i];
        const char *spaced = ct_arena_printf(&arena, " %s ", s->key);

        for (size_t k = 0; k < CT_COUNT(known); k++)
            if (!strcmp(s->section, known[k].section) && !strstr(known[k].keys, spaced))
                return ct_fail(CT_ECONFIG, "%s: [%s] has no key %s; it has%s", s->source,
                               s->section, s->key, known[k].keys);
        if (!strcmp(s->section, "weights")) {
            size_t w = 0;

            while (w < WEIGHT_COUNT && strcmp(weight_names[w], s->key))
                w++;
            if (w == WEIGHT_COUNT)
                return ct_fail(CT_ECONFIG, "%s: there are no weights called %s%s", s->source,
                               s->key, ct_did_you_mean(s->key, weight_names, WEIGHT_COUNT));
        }
    }
    for (size_t i = 0; i < file->section_count; i++) {
        const struct ct_setting *s = &file->sections[i];

        if (!strstr(" family model config fixed weights stored ",
                    ct_arena_printf(&arena, " %s ", s->section)) &&
            strncmp(s->section, "flavor.", 7))
            return ct_fail(CT_ECONFIG,
                           "%s: there is no section [%s]: expected family, model, config, fixed, "
                           "weights, stored or flavor.NAME",
                           s->source, s->section);
    }
    return 0;
}

/* Tensors of each layer of predictions: their whole name, with '#' for the layer's number. */
static int read_copies(const struct ct_recipe *file, struct family *f)
{
    static const char *const keys[] = {"embedding_copies", "head_copies"};

    for (size_t i = 0; i < CT_COUNT(keys); i++) {
        const char *name = f->copies[i] = get(file, "stored", keys[i]);

        if (name && (!strchr(name, '#') || !strchr(name, '.')))
            return ct_fail(CT_ECONFIG,
                           "%s: %s = %s: expected the whole name of a tensor, with # for the "
                           "number of a layer: model.layers.#.embed_tokens",
                           setting_of(file, "stored", keys[i])->source, keys[i], name);
    }
    return 0;
}

static int read_stored(const struct ct_recipe *file, struct family *f)
{
    static const char *const by[] = {"", "rows", "heads"};
    const struct ct_setting *order = setting_of(file, "stored", "qkv_by");
    const struct ct_setting *linear = setting_of(file, "stored", "linear_by");
    const char *experts;

    f->qkv = get(file, "stored", "qkv");
    f->gate_up = get(file, "stored", "gate_up");
    f->down = get(file, "stored", "down");
    f->experts_gate_up = get(file, "stored", "experts_gate_up");
    f->experts_down = get(file, "stored", "experts_down");
    if (!f->experts_gate_up != !f->experts_down)
        return ct_fail(CT_ECONFIG,
                       "%s: [stored] needs both experts_gate_up and experts_down, or none",
                       file->path);
    experts = get(file, "stored", "experts_by");
    if (experts && strcmp(experts, "inputs") != 0)
        return ct_fail(CT_ECONFIG, "%s: experts_by is inputs, not %s", file->path, experts);
    f->experts_transposed = experts != NULL;
    f->expert[0] = get(file, "stored", "expert_gate");
    f->expert[1] = get(file, "stored", "expert_up");
    f->expert[2] = get(file, "stored", "expert_down");
    f->correction = get(file, "stored", "correction");
    f->ignored = get(file, "stored", "ignored");
    f->each_norm[0] = get(file, "stored", "q_norms");
    f->each_norm[1] = get(file, "stored", "k_norms");
    if (read_copies(file, f) < 0)
        return CT_ECONFIG;
    f->fused = f->qkv ? FUSED_ROWS : FUSED_NONE;
    if (linear && strcmp(linear->value, "heads") && strcmp(linear->value, "rows"))
        return ct_fail(CT_ECONFIG, "%s: linear_by is heads or rows, not %s", linear->source,
                       linear->value);
    f->linear = !linear                           ? LINEAR_NONE
                : !strcmp(linear->value, "heads") ? LINEAR_HEADS
                                                  : LINEAR_ROWS;
    if (!order)
        return 0;
    if (strcmp(order->value, by[FUSED_ROWS]) && strcmp(order->value, by[FUSED_HEADS]))
        return ct_fail(CT_ECONFIG, "%s: qkv_by is rows or heads, not %s", order->source,
                       order->value);
    f->fused = !strcmp(order->value, "heads") ? FUSED_HEADS : FUSED_ROWS;
    return 0;
}

/* A share that config.json could not say would be lost in it. */
static int check_shares(const struct ct_recipe *file, const struct family *f)
{
    for (size_t i = 0; !f->config.partial && i < file->count; i++) {
        const struct ct_setting *s = &file->settings[i];
        double share = strtod(s->value, NULL);

        if (!strcmp(s->key, "partial") && share != 0 && share != 1 &&
            (!strcmp(s->section, "model") || !strncmp(s->section, "flavor.", 7)))
            return ct_fail(CT_ECONFIG,
                           "%s: partial = %s: [family] needs partial = the key of it, as "
                           "partial_rotary_factor",
                           s->source, s->value);
    }
    return 0;
}

/* A rope that is assumed is read as a row says. */
static int check_rope(const struct family *f)
{
    for (const struct ct_hf_key *k = f->config.keys; f->config.assumed_rope && k->key; k++)
        if (k->kind == CT_HF_ROPE)
            return 0;
    return f->config.assumed_rope
               ? ct_fail(CT_ECONFIG,
                         "%s: [family] rope needs a key of [config] for rope, as "
                         "rope_theta = rope 10000",
                         f->path)
               : 0;
}

static int read_family(const char *name, struct family *f)
{
    struct ct_recipe *file;
    struct ct_model probe = {0};
    const char *original;
    int rc = read_file(name, 0, &file);

    if (rc < 0)
        return rc;
    f->name = ct_arena_strdup(&arena, name);
    f->path = file->path;
    f->description = file;
    f->config.model_type = ct_recipe_get(file, "family", "model_type");
    f->config.architecture = ct_recipe_get(file, "family", "architecture");
    f->config.outer = ct_recipe_get(file, "family", "outer");
    f->config.alone[0] = ct_recipe_get(file, "family", "alone");
    f->config.alone[1] = ct_recipe_get(file, "family", "alone_architecture");
    f->config.partial = get(file, "family", "partial");
    f->config.ignored = ct_recipe_get(file, "family", "ignored");
    f->config.alpha = ct_recipe_get(file, "family", "alpha") != NULL;
    f->config.tempers = ct_recipe_get(file, "family", "tempers") != NULL;
    f->config.assumed_rope = ct_recipe_get(file, "family", "rope");
    original = ct_recipe_get(file, "family", "original");
    f->config.original = original ? strtoll(original, NULL, 10) : 0;
    if (!f->config.model_type || !f->config.architecture)
        return ct_fail(CT_ECONFIG, "%s: [family] needs model_type and architecture", f->path);
    if (!f->config.alone[0] != !f->config.alone[1])
        return ct_fail(CT_ECONFIG, "%s: [family] needs both alone and alone_architecture, or none",
                       f->path);
    for (int w = 0; w < WEIGHT_COUNT; w++) {
        const char *own = get(file, "weights", weight_names[w]);

        f->weight[w] = own ? own : usual_weights[w];
    }
    if ((rc = check_names(file)) < 0 || (rc = check_shares(file, f)) < 0 ||
        (rc = read_stored(file, f)) < 0 || (rc = read_rows(file, f)) < 0 ||
        (rc = check_rope(f)) < 0)
        return rc;
    return family_apply(f, &probe);
}

int family_read(const char *name, const struct family **family)
{
    static struct read {
        struct family family;
        struct read *next;
    } * all;
    struct read *one;
    int rc;

    for (one = all; one; one = one->next)
        if (!strcmp(one->family.name, name)) {
            *family = &one->family;
            return 0;
        }
    one = ct_arena_new(&arena, struct read);
    rc = read_family(name, &one->family);
    if (rc < 0)
        return rc;
    one->next = all;
    all = one;
    *family = &one->family;
    return 0;
}

/* ---- values ---- */

static int set_all(const struct family *f, const char *section, struct ct_model *model)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < f->description->count; i++) {
        const struct ct_setting *s = &f->description->settings[i];

        if (strcmp(s->section, section))
            continue;
        if (!strcmp(s->key, "rope_theta")) {
            char *end;

            model->sizes.rope.theta = strtod(s->value, &end);
            rc = *end ? ct_fail(CT_ECONFIG, "%s: rope_theta is not a number", s->source) : 0;
        } else {
            rc = ct_options_set(decoder_properties, model, s->key, s->value, s->source);
        }
    }
    return rc;
}

int family_apply(const struct family *f, struct ct_model *model)
{
    int rc = ct_options_reset(decoder_properties, model);

    model->family = f;
    model->sizes.rope.factor = 1;
    for (const struct ct_hf_key *k = f->config.keys; k->key; k++)
        model->local |= k->kind == CT_HF_LOCAL_ROPE;
    return rc < 0 ? rc : set_all(f, "model", model);
}

/* Set what config.json would say where it is silent. */
static int set_fallbacks(const struct family *f, struct ct_model *m)
{
    for (const struct ct_hf_key *k = f->config.keys; k->key; k++) {
        void *field = (char *)m + k->offset;

        if (k->fallback < 0)
            continue;
        if (k->kind == CT_HF_PART || k->kind == CT_HF_DEPTH || k->kind == CT_HF_COUNT)
            *(int64_t *)field = (int64_t)k->fallback;
        else if (k->kind == CT_HF_OPTIONAL || k->kind == CT_HF_FACTOR)
            *(double *)field = k->fallback;
        else if (k->kind == CT_HF_BOOL)
            *(bool *)field = k->fallback > 0;
        else if (k->kind == CT_HF_CHOICE)
            *(unsigned *)field = (unsigned)k->fallback;
        else if (k->kind == CT_HF_ROPE || k->kind == CT_HF_LOCAL_ROPE)
            ((struct ct_rope *)field)->theta = k->fallback, ((struct ct_rope *)field)->factor = 1;
    }
    return f->config.assumed_rope ? ct_hf_assumed_rope(&f->config, &m->sizes.rope) : 0;
}

int family_flavor(const struct family *f, const char *flavor, struct ct_model *model)
{
    const char *section = ct_arena_printf(&arena, "flavor.%s", flavor), *names[64], *known = "";
    size_t count = 0;

    if (set_fallbacks(f, model) < 0)
        return ct_context(CT_ECONFIG, "%s: [family] rope", f->path);
    for (size_t i = 0; i < f->description->section_count; i++) {
        const char *name = f->description->sections[i].section;

        if (!strcmp(name, section)) {
            model->sizes.flavor = section + 7;
            return set_all(f, section, model);
        }
        if (!strncmp(name, "flavor.", 7) && count < CT_COUNT(names)) {
            names[count++] = name + 7;
            known = ct_arena_printf(&arena, "%s%s%s", known, *known ? ", " : "", name + 7);
        }
    }
    return ct_fail(CT_ECONFIG, "[model] flavor = %s: %s has %s%s", flavor, f->path,
                   count ? known : "no flavors: set [model] init_from",
                   ct_did_you_mean(flavor, names, count));
}
