/*
 * Descriptors of plugins that are not loaded. The file is read as an image; before anything follows
 * a pointer in it, the pointer is checked to lead into the image, where texts and tables end in
 * zeros at the latest.
 */
#include <limits.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/model.h>
#include <ctitan/pass.h>
#include <ctitan/plugins.h>
#include <ctitan/verb.h>

#include "plugin/image.h"

static bool has_text(const struct ct_image *image, const char *text)
{
    return !text || ct_image_has(image, text, 1);
}

static bool has_names(const struct ct_image *image, const char *const *names)
{
    if (names)
        do
            if (!ct_image_has(image, names, sizeof(*names)) || !has_text(image, *names))
                return false;
        while (*names++);
    return true;
}

/* A table whose elements are too short or too long is refused when it is converted. */
static bool has_options(const struct ct_image *image, const struct ct_option *o)
{
    size_t stride;

    if (!o)
        return true;
    if (!ct_image_has(image, o, sizeof(stride)))
        return false;
    stride = o->size;
    if (stride && stride != sizeof(*o))
        return true;
    for (; o->size || o->name; o++)
        if (!has_text(image, o->name) || !has_text(image, o->fallback) ||
            !has_text(image, o->doc) || !has_text(image, o->choices) ||
            !ct_image_has(image, o + 1, sizeof(*o)))
            return false;
    return true;
}

static bool has_verb(const struct ct_image *image, const struct ct_verb_ops *verb)
{
    size_t least = offsetof(struct ct_verb_ops, run);

    return verb->size < least || (has_text(image, verb->summary) && has_text(image, verb->usage));
}

static bool has_transform(const struct ct_image *image, const struct ct_transform *t)
{
    size_t least = offsetof(struct ct_transform, evaluation);

    return t->size < least || (has_text(image, t->name) && has_text(image, t->summary) &&
                               has_names(image, t->needs) && has_names(image, t->gives) &&
                               has_names(image, t->breaks) && has_names(image, t->after));
}

/* Its format of weights is read when it is converted. */
static bool has_model(const struct ct_image *image, const struct ct_model_ops *m)
{
    size_t all = offsetof(struct ct_model_ops, weights) + sizeof(m->weights);

    return m->size < all || (ct_image_has(image, m, sizeof(*m)) &&
                             (!m->weights || ct_image_has(image, m->weights, sizeof(*m->weights))));
}

/* Only these have more that is read without loading the plugin. */
static bool has_ops(const struct ct_image *image, const struct ct_offer *o)
{
    if (!o->ops)
        return true;
    if (!ct_image_has(image, o->ops, sizeof(size_t)))
        return false;
    return o->kind == CT_VERB        ? has_verb(image, o->ops)
           : o->kind == CT_TRANSFORM ? has_transform(image, o->ops)
           : o->kind == CT_MODEL     ? has_model(image, o->ops)
                                     : true;
}

static bool has_offers(const struct ct_image *image, const struct ct_offer *o)
{
    if (!o)
        return true;
    for (; ct_image_has(image, o, sizeof(*o)); o++) {
        if (o->kind == CT_NOTHING)
            return true;
        if (!has_text(image, o->name) || !has_ops(image, o))
            return false;
    }
    return false;
}

/* A descriptor of another interface, or of another size, is refused when it is converted. */
static bool is_sound(const struct ct_image *image, const struct ct_plugin *exported)
{
    const struct ct_abi *abi = &exported->abi;
    struct ct_plugin p = {0};

    if (abi->magic != CT_MAGIC || abi->major != CT_ABI_MAJOR || abi->plugin_size > sizeof(p))
        return true;
    if (!ct_image_has(image, exported, abi->plugin_size))
        return false;
    memcpy(&p, exported, abi->plugin_size);
    return has_text(image, p.name) && has_text(image, p.version) && has_text(image, p.summary) &&
           has_text(image, p.brings) && has_names(image, p.needs) &&
           has_names(image, p.conflicts) && has_options(image, p.options) &&
           has_offers(image, p.offers);
}

int ct_plugin_describe(const char *name, const struct ct_plugin **plugin)
{
    const struct ct_plugin *exported;
    struct ct_image image;
    char path[PATH_MAX];
    int rc = ct_plugin_path(name, path, sizeof(path));

    if (rc < 0)
        return rc;
    rc = ct_image_open(path, &image);
    if (rc < 0)
        return ct_context(rc, "plugin %s", path);
    exported = ct_image_find(&image, "ct_plugin_v1", sizeof(struct ct_abi));
    if (!exported)
        rc = ct_fail(CT_EABI, "exports no ct_plugin_v1: not a ctitan plugin, or one without "
                              "CT_PLUGIN(...)");
    else if (!is_sound(&image, exported))
        rc = ct_fail(CT_EABI, "its descriptor is damaged: build the plugin again");
    else
        rc = ct_plugin_convert(exported, path, plugin);
    if (rc == 0)
        return 0;
    ct_image_close(&image);
    return ct_context(rc, "plugin %s", path);
}
