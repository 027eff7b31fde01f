/*
 * Models of several kinds of input, whose part for text alone is trained: a folder that is written
 * has the other parts of [model] init_from, as they are there.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/lib/json.h>

#include "config.h"
#include "parts.h"

bool ct_hf_is_part(const struct ct_run *run)
{
    const struct ct_hf_config *config = run->model_ops->description;
    json_t *values, *literal;
    bool is;

    if (!config || !config->outer || !*ct_config.model.init_from ||
        hf_first_config(ct_config.model.init_from, &values, &literal) < 0)
        return false;
    is = hf_is_outer(config, json_string_value(json_object_get(values, "model_type")));
    json_decref(values);
    json_decref(literal);
    return is;
}

/* ---- tensors ---- */

/* A tensor of the whole, by its name in the part for text. */
struct named {
    const char *name;
    const struct ct_weight *weight;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

static struct named *list_whole(struct ct_arena *arena, const struct ct_weights *whole)
{
    size_t count = ct_weights_count(whole);
    struct named *list = ct_arena_array(arena, struct named, count + 1);

    for (size_t i = 0; i < count; i++) {
        list[i].weight = ct_weights_at(whole, i);
        list[i].name = ct_weights_text_name(list[i].weight->name);
        if (!list[i].name)
            list[i].name = list[i].weight->name;
    }
    qsort(list, count, sizeof(*list), by_name);
    return list;
}

/* The folder's tensors stay mapped, as it may be gone when a model is written. */
static int open_first(const struct ct_weights **whole)
{
    static struct ct_weights *weights;
    int rc = weights ? 0 : ct_weights_open_whole(ct_config.model.init_from, &weights);

    *whole = weights;
    return rc < 0 ? ct_context(CT_ECONFIG, "[model] init_from: the parts that are not trained") : 0;
}

/* A head beside the embedding that it is equal to has its values, which are trained. */
static bool is_stale(const struct named *one)
{
    return !strcmp(one->name, "lm_head.weight");
}

int hf_add_parts(struct ct_hf_writer *w)
{
    const struct ct_weights *whole;
    struct ct_weight *others;
    struct named *list;
    size_t count, rest = 0;
    int rc = open_first(&whole);

    if (rc < 0)
        return rc;
    count = ct_weights_count(whole);
    list = list_whole(&w->arena, whole);
    for (size_t i = 0; i < w->count; i++) {
        struct named *own =
            bsearch(&(struct named){w->weights[i].name, NULL}, list, count, sizeof(*list), by_name);

        if (!own)
            return ct_fail(CT_ECONFIG, "%s has no tensor %s, which the model has now",
                           ct_config.model.init_from, w->weights[i].name);
        w->weights[i].name = own->weight->name;
        own->weight = NULL;
    }
    others = ct_arena_array(&w->arena, struct ct_weight, count + 1);
    for (size_t i = 0; i < count; i++)
        if (list[i].weight && !is_stale(&list[i]))
            others[rest++] = *list[i].weight;
    hf_writer_add(w, others, rest);
    return 0;
}

/* ---- config.json ---- */

/* Give a key of the text part the value that it has in another object, or none. */
static void restore(json_t *text, const json_t *from, const char *key)
{
    json_t *value = json_object_get(from, key);

    if (value)
        json_object_set(text, key, value);
    else
        json_object_del(text, key);
}

/* The whole of which text is the part; both are released. */
static json_t *join(json_t *root, json_t *text)
{
    static const char tied[] = "tie_word_embeddings";
    json_t *part = json_object_get(root, "text_config");
    const json_t *from = json_is_object(part) ? part : root;

    restore(text, from, "architectures");
    restore(text, from, "model_type");
    if (from == root) {
        json_decref(root);
        return text;
    }
    if (json_object_get(root, tied))
        json_object_set(root, tied, json_object_get(text, tied));
    if (json_object_get(root, tied) &&
        (json_is_true(json_object_get(root, tied)) || !json_object_get(from, tied)))
        restore(text, from, tied);
    json_object_set_new(root, "text_config", text);
    json_object_del(root, "quantization_config");
    return root;
}

int hf_whole_config(struct ct_arena *arena, const struct ct_run *run, const char **text)
{
    struct ct_hf_config config = *(const struct ct_hf_config *)run->model_ops->description;
    json_t *values = NULL, *root = NULL, *own = NULL;
    int rc;

    config.alone[0] = NULL;
    rc = hf_make_config(arena, run, &config, text);
    if (rc == 0)
        rc = ct_json_read(*text, strlen(*text), "config.json", CT_JSON_LITERALS, &own);
    if (rc == 0)
        rc = hf_first_config(ct_config.model.init_from, &values, &root);
    json_decref(values);
    if (rc < 0) {
        json_decref(own);
        return rc;
    }
    root = join(root, own);
    *text = hf_print(arena, root);
    json_decref(root);
    return *text ? 0 : ct_fail(CT_ENOMEM, "config.json");
}
