/*
 * The mesh of a run: every plugin offers its axes, each with its place and its degree.
 */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>
#include <ctitan/plugins.h>
#include <ctitan/recipe.h>

#include "run/mesh.h"

/* An axis offered by a plugin. */
struct offered {
    const struct ct_offer *offer;
    const struct ct_axis_ops *ops;
    int64_t degree; /* -1: the remaining ranks */
};

struct offers {
    struct offered item[CT_MAX_AXES];
    size_t count;
};

/* Insert by place, then by name, so that all ranks agree. */
static void insert(struct offers *all, struct offered axis)
{
    size_t i = all->count++;

    while (i > 0 && (all->item[i - 1].ops->place > axis.ops->place ||
                     (all->item[i - 1].ops->place == axis.ops->place &&
                      strcmp(all->item[i - 1].offer->name, axis.offer->name) > 0))) {
        all->item[i] = all->item[i - 1];
        i--;
    }
    all->item[i] = axis;
}

static int check_degree(const struct offered *axis)
{
    if (axis->degree >= 1 || (axis->degree == -1 && axis->ops->fills))
        return 0;
    return ct_fail(CT_ECONFIG, "axis %s has degree %lld: it must be at least 1%s",
                   axis->offer->name, (long long)axis->degree,
                   axis->ops->fills ? ", or -1 for what is left" : "");
}

static int find_axes(struct offers *all)
{
    const struct ct_offer *offer;

    for (size_t n = 0; (offer = ct_offer_at(CT_AXIS, n)); n++) {
        struct offered axis = {.offer = offer, .ops = offer->ops};
        int rc;

        if (all->count == CT_MAX_AXES)
            return ct_fail(CT_ECONFIG, "axis %s: a mesh has at most %d axes", offer->name,
                           CT_MAX_AXES);
        axis.degree = axis.ops->degree();
        rc = check_degree(&axis);
        if (rc < 0)
            return rc;
        insert(all, axis);
    }
    return 0;
}

/* "pp 2 x dp_shard -1 x tp 4" */
static void describe(const struct offers *all, char *text, size_t room)
{
    struct ct_line line = {text, room, 0};

    ct_line_add(&line, "%s", all->count ? "" : "without axes");
    for (size_t i = 0; i < all->count; i++)
        ct_line_add(&line, "%s%s %lld", i ? " x " : "", all->item[i].offer->name,
                    (long long)all->item[i].degree);
}

/* The product of the given degrees. CT_ECONFIG: more than one axis takes the remaining ranks. */
static int multiply(const struct offers *all, int64_t *product, struct offered **rest)
{
    char text[512];

    *product = 1;
    *rest = NULL;
    for (size_t i = 0; i < all->count; i++) {
        const struct offered *axis = &all->item[i];

        if (axis->degree < 0 && *rest)
            return ct_fail(CT_ECONFIG, "both %s and %s take what is left: give one a degree",
                           (*rest)->offer->name, axis->offer->name);
        if (axis->degree < 0)
            *rest = (struct offered *)axis;
        else if (__builtin_mul_overflow(*product, axis->degree, product)) {
            describe(all, text, sizeof(text));
            return ct_fail(CT_ECONFIG, "the mesh %s makes more ranks than can be counted", text);
        }
    }
    return 0;
}

/* The plugin that offers an axis, if its option "degree" says how many ranks it has. */
static const struct ct_plugin *plugin_of(const struct ct_offer *axis)
{
    const struct ct_plugin *p;

    for (size_t i = 0; (p = ct_plugin_at(i)); i++)
        for (const struct ct_offer *o = p->offers; o->kind != CT_NOTHING; o++)
            if (o->kind == CT_AXIS && !strcmp(o->name, axis->name))
                return ct_option_find(p->options, "degree") ? p : NULL;
    return NULL;
}

/* No axis can have the ranks: the plugins in the folders that have axes may be meant. */
static int choose(const char *mesh, int64_t product, int64_t world)
{
    struct ct_arena scratch = {0};
    const char **names, *list = "";
    size_t count = ct_plugin_providers(
        &scratch, ct_arena_printf(&scratch, "%s:*", ct_kind_name(CT_AXIS)), &names);

    for (size_t i = 0; i < count; i++)
        if (!ct_plugin_is_registered(names[i]))
            list = ct_arena_printf(&scratch, "%s%s%s", list, *list ? ", " : "", names[i]);
    (void)ct_fail(CT_ECONFIG,
                  "the mesh %s makes %lld rank%s, but there %s %lld: choose degrees that multiply "
                  "to that%s%s%s",
                  mesh, (long long)product, ct_plural(product), world == 1 ? "is" : "are",
                  (long long)world, *list ? ", or add one of " : "", list,
                  *list ? " to [plugins] load (--with), which splits the work" : "");
    ct_arena_finish(&scratch);
    return CT_ECONFIG;
}

/* The mesh has `product` ranks. The options that give an axis of one rank all that are missing. */
static int too_few(const struct offers *all, int64_t product, int64_t world)
{
    char text[512], words[512] = "";
    struct ct_line line = {words, sizeof(words), 0};

    describe(all, text, sizeof(text));
    for (size_t i = 0; world % product == 0 && world > product && i < all->count; i++) {
        const struct ct_plugin *p = all->item[i].degree == 1 ? plugin_of(all->item[i].offer) : NULL;

        if (p)
            ct_line_add(&line, "%s--set %s.degree=%lld", line.used ? " or " : "", p->name,
                        (long long)(world / product));
    }
    if (line.used)
        return ct_fail(CT_ECONFIG, "the mesh %s makes %lld rank%s, but there are %lld: add %s",
                       text, (long long)product, ct_plural(product), (long long)world, words);
    return choose(text, product, world);
}

/* The one axis whose plugin has a degree that nobody has set, and that can take all missing ranks;
   NULL: there is none, or there are several. */
static struct offered *only_taker(const struct ct_run *run, struct offers *all)
{
    struct offered *only = NULL;

    for (size_t i = 0; i < all->count; i++) {
        const struct ct_plugin *p = all->item[i].degree == 1 ? plugin_of(all->item[i].offer) : NULL;

        if (!p)
            continue;
        if (only || ct_recipe_source(run->recipe, p->name, "degree"))
            return NULL;
        only = &all->item[i];
    }
    return only;
}

/* Give the ranks that no degree uses to the only axis that can take them. */
static int give_rest(struct ct_run *run, struct offers *all, int64_t *product)
{
    bool fits = *product < run->world && run->world % *product == 0;
    struct offered *taker = run->recipe && fits ? only_taker(run, all) : NULL;
    const char *plugin = taker ? plugin_of(taker->offer)->name : NULL;
    char degree[24];
    int rc;

    if (!taker)
        return 0;
    snprintf(degree, sizeof(degree), "%lld", (long long)(run->world / *product));
    rc = ct_recipe_give(run->recipe, plugin, "degree", degree, "the ranks that were left");
    if (rc < 0)
        return rc;
    taker->degree = taker->ops->degree();
    *product *= taker->degree;
    if (run->rank == 0)
        ct_info("%s takes the %s ranks that are left: [%s] degree = %s", taker->offer->name, degree,
                plugin, degree);
    return 0;
}

int ct_run_make_mesh(struct ct_run *run)
{
    struct offers all = {.count = 0};
    struct offered *rest = NULL;
    int64_t product = 1;
    int rc = find_axes(&all);

    if (rc == 0)
        rc = multiply(&all, &product, &rest);
    if (rc < 0)
        return rc;
    if (rest) {
        rest->degree = run->world / product ? run->world / product : 1;
        product *= rest->degree;
    }
    rc = give_rest(run, &all, &product);
    if (rc < 0)
        return rc;
    if (product != run->world)
        return too_few(&all, product, run->world);
    for (size_t i = 0; i < all.count; i++) {
        if (all.item[i].degree == 1)
            continue;
        if (all.item[i].ops->splits_batch)
            run->batch_axes |= (ct_axes)1 << run->mesh.count;
        if (all.item[i].ops->splits_heads)
            run->head_axes |= (ct_axes)1 << run->mesh.count;
        run->mesh.axis[run->mesh.count++] =
            (struct ct_axis){all.item[i].offer->name, all.item[i].degree};
    }
    return 0;
}

/* ---- the batch ---- */

int ct_run_find_order(const struct ct_order_ops **ops)
{
    const struct ct_offer *offer = ct_offer_at(CT_ORDER, 0);
    int rc = offer ? ct_offer_find(CT_ORDER, NULL, &offer) : 0;

    *ops = rc == 0 && offer ? offer->ops : NULL;
    return rc;
}

int ct_run_microbatch_size(int64_t *size)
{
    int64_t batch = ct_config.training.local_batch_size;
    const struct ct_order_ops *ops;
    int rc = ct_run_find_order(&ops);

    if (rc < 0)
        return rc;
    *size = ops ? ops->microbatch_size() : 0;
    if (*size == 0)
        *size = batch;
    if (batch % *size)
        return ct_fail(CT_ECONFIG,
                       "[training] local_batch_size = %lld is not a multiple of [%s] "
                       "microbatch_size = %lld",
                       (long long)batch, ct_offer_at(CT_ORDER, 0)->name, (long long)*size);
    return 0;
}

/* The largest divisor of n that is at most `most`. */
static int64_t divisor_below(int64_t n, int64_t most)
{
    int64_t best = 1;

    for (int64_t i = 1; i <= n / i; i++) {
        if (n % i)
            continue;
        if (n / i <= most)
            return n / i > best ? n / i : best; /* that of each greater i is less */
        if (i <= most)
            best = i;
    }
    return best;
}

int ct_run_fit_batch(struct ct_run *run)
{
    const struct ct_training_config *t = &ct_config.training;
    int64_t dp = ct_mesh_degree(&run->mesh, run->batch_axes), each = t->global_batch_size / dp;
    const struct ct_order_ops *ops;
    int64_t unit;
    char value[32];
    int rc = ct_run_find_order(&ops);

    if (rc < 0 || !ct_recipe_given(run->recipe, "training", "global_batch_size"))
        return rc;
    unit = ops && ops->microbatch_size() ? ops->microbatch_size() : 1;
    if (t->global_batch_size % (dp * unit) || each % t->local_batch_size == 0 ||
        t->local_batch_size % unit)
        return 0;
    snprintf(value, sizeof(value), "%lld",
             (long long)(unit * divisor_below(each / unit, t->local_batch_size / unit)));
    return ct_recipe_give(run->recipe, "training", "local_batch_size", value,
                          "what divides global_batch_size among the ranks");
}

/* Name the numbers next to those of the recipe that fit. */
static int refuse_batch(int64_t global, int64_t dp)
{
    int64_t local = ct_config.training.local_batch_size, step = local * dp;
    int64_t less = divisor_below(global / dp, local);
    char lower[64] = "";

    if (global % dp == 0)
        snprintf(lower, sizeof(lower), "local_batch_size = %lld, or ", (long long)less);
    return ct_fail(CT_ECONFIG,
                   "[training] global_batch_size = %lld is not a multiple of local_batch_size x "
                   "data-parallel degree = %lld x %lld: set %sglobal_batch_size = %lld",
                   (long long)global, (long long)local, (long long)dp, lower,
                   (long long)((global / step + 1) * step));
}

int64_t ct_run_batch(const struct ct_run *run)
{
    const struct ct_training_config *t = &ct_config.training;

    return t->global_batch_size < 0
               ? t->local_batch_size * ct_mesh_degree(&run->mesh, run->batch_axes)
               : t->global_batch_size;
}

int ct_run_batch_sizes(const struct ct_run *run, int64_t *batch, int *microbatches)
{
    const struct ct_training_config *t = &ct_config.training;
    int64_t dp = ct_mesh_degree(&run->mesh, run->batch_axes), global = ct_run_batch(run);
    int64_t size;
    int rc = ct_run_microbatch_size(&size);

    if (rc < 0)
        return rc;
    *batch = size * dp;
    if (global % (t->local_batch_size * dp))
        return refuse_batch(global, dp);
    if (global / *batch > INT_MAX)
        return ct_fail(CT_ECONFIG,
                       "[training] global_batch_size = %lld makes %lld microbatches: at most %d",
                       (long long)global, (long long)(global / *batch), INT_MAX);
    *microbatches = (int)(global / *batch);
    return 0;
}
