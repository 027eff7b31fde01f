/*
 * The parameters that a tensor of files holds: the reverse of ct_stored_tensor.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/stored.h>

/* A name that a rule's `stored` matches: "base" and, for '#', an index. */
static bool matches(const struct ct_stored_rule *rule, const char *name, size_t *base,
                    int64_t *index)
{
    size_t before = strcspn(rule->stored, "#"), size = strlen(name);
    const char *after = rule->stored + before + (rule->stored[before] == '#');
    size_t tail = strlen(after), end = size - tail, digits = 0;

    if (size < tail + before || strcmp(name + end, after) != 0)
        return false;
    while (rule->stored[before] && digits < end && digits < 6 && name[end - digits - 1] >= '0' &&
           name[end - digits - 1] <= '9')
        digits++;
    if ((rule->stored[before] && !digits) || end < digits + before)
        return false;
    *base = end - digits - before;
    *index = digits ? strtoll(name + end - digits, NULL, 10) : 0;
    return !memcmp(name + *base, rule->stored, before);
}

/* The box that a tensor has of a parameter, in a tensor of this shape. */
static int box_in(const struct ct_stored_rule *rule, const struct ct_weight *w,
                  struct ct_stored_box *own)
{
    bool stacked = ct_stored_stacked(rule);
    int d = ct_stored_part_dim(rule, own->ndim);

    memcpy(own->shape + stacked, w->shape, sizeof(*w->shape) * (size_t)w->ndim);
    if (rule && rule->transposed) {
        own->shape[own->ndim - 2] = w->shape[w->ndim - 1];
        own->shape[own->ndim - 1] = w->shape[w->ndim - 2];
    }
    if (rule && rule->rows.all && (own->ndim < 1 || own->shape[0] != rule->rows.all))
        return ct_fail(CT_ECONFIG, "%s does not have %lld rows", w->name,
                       (long long)rule->rows.all);
    if (rule && !rule->rows.all && rule->parts && (own->ndim <= d || own->shape[d] % rule->parts))
        return ct_fail(CT_ECONFIG, "%s does not have %d equal parts", w->name, rule->parts);
    if (rule && rule->rows.all)
        own->shape[0] = rule->rows.own;
    else if (rule && rule->parts)
        own->shape[d] /= rule->parts;
    if (stacked)
        own->shape[0] = 1;
    return 0;
}

static int hold(const struct ct_stored_rule *rule, const struct ct_weight *w, const char *name,
                int64_t index, struct ct_stored_held *held)
{
    struct ct_stored_box whole = {.ndim = w->ndim};
    struct ct_state param = {.name = name, .ndim = w->ndim + ct_stored_stacked(rule)};
    struct ct_stored_rule as_is;
    int rc;

    if (rule) {
        as_is = ct_stored_rule_for(rule, w);
        rule = &as_is;
    }
    *held = (struct ct_stored_held){.name = name, .box.ndim = param.ndim};
    rc = box_in(rule, w, &held->box);
    if (rc < 0)
        return rc;
    if (ct_stored_stacked(rule))
        held->box.offset[0] = index;
    memcpy(whole.shape, w->shape, sizeof(*w->shape) * (size_t)w->ndim);
    memcpy(param.shape, held->box.shape, sizeof(param.shape));
    held->places = ct_stored_places(rule, &param, &held->box, &whole);
    held->dense = !w->scales && ct_stored_dense(rule) &&
                  ct_stored_part_dim(rule, param.ndim) <= ct_stored_stacked(rule);
    return 0;
}

int ct_stored_each_held(struct ct_arena *arena, const struct ct_stored_rule *rules,
                        const struct ct_weight *w, ct_stored_held_work *work, void *context)
{
    const struct ct_stored_rule *first = ct_stored_rule(rules, w->name);
    struct ct_stored_held held;
    bool known = false;
    int64_t index;
    size_t base;
    int rc = 0;

    if (first && !first->stored)
        return 0;
    for (const struct ct_stored_rule *r = rules; rc == 0 && r && r->suffix; r++) {
        if (!r->stored || !matches(r, w->name, &base, &index))
            continue;
        known = true;
        if ((r->transposed && w->ndim < 2) || w->ndim + ct_stored_stacked(r) > CT_MAX_DIMS)
            return ct_fail(CT_ECONFIG, "%s is not what its name says", w->name);
        rc = hold(r, w, ct_arena_printf(arena, "%.*s%s", (int)base, w->name, r->suffix), index,
                  &held);
        if (rc == 0)
            rc = work(context, w, &held);
    }
    if (known || rc < 0)
        return rc;
    rc = hold(NULL, w, w->name, 0, &held);
    return rc < 0 ? rc : work(context, w, &held);
}
