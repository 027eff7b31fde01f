/*
 * The sizes of the model that a recipe asks for: those of a flavor, or of a config.json.
 */
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/lib/hf_config.h>
#include <ctitan/model.h>

static const char *flavor_at(const struct ct_model_ops *ops, size_t index)
{
    return ((const struct ct_flavor *)((const char *)ops->flavors + index * ops->flavor_size))
        ->name;
}

/* There is no flavor of this name. */
static int refuse_flavor(const struct ct_model_ops *ops, const char *plugin, const char *name)
{
    const char *names[64], *flavor;
    char known[512] = "";
    struct ct_line line = {known, sizeof(known), 0};
    size_t count = 0;

    for (; count < CT_COUNT(names) && (flavor = flavor_at(ops, count)); count++) {
        bool last = !flavor_at(ops, count + 1);

        ct_line_add(&line, "%s%s", !count ? "" : last ? " and " : ", ", flavor);
        names[count] = flavor;
    }
    return ct_fail(CT_ECONFIG, "[model] flavor = %s: %s has %s%s", name, plugin, known,
                   ct_did_you_mean(name, names, count));
}

int ct_hf_sizes(const struct ct_model_ops *ops, const char *plugin, void *sizes)
{
    const struct ct_model_config *asked = &ct_config.model;
    size_t at = 0;

    if (!ops->flavors)
        return ct_fail(CT_ECONFIG,
                       "%s has no flavors (`flavors` of struct ct_model_ops), and fields that a "
                       "config.json lacks would be those of the first",
                       plugin);
    if (*asked->init_from && !ops->description)
        return ct_fail(CT_ECONFIG,
                       "[model] init_from = %s: %s reads no config.json (`description` of struct "
                       "ct_model_ops)",
                       asked->init_from, plugin);
    while (!*asked->init_from && flavor_at(ops, at) && strcmp(flavor_at(ops, at), asked->flavor))
        at++;
    if (!flavor_at(ops, at))
        return refuse_flavor(ops, plugin, asked->flavor);
    memcpy(sizes, (const char *)ops->flavors + at * ops->flavor_size, ops->flavor_size);
    return *asked->init_from ? ct_hf_read_config(ops->description, asked->init_from, sizes) : 0;
}
