/*
 * Names and boxes by a model's rules. In a tensor a parameter has lost its first dimension if that
 * numbers tensors, begins at its part, and then has its two dimensions swapped.
 */
#include <string.h>

#include <ctitan/lib/stored.h>

bool ct_stored_stacked(const struct ct_stored_rule *rule)
{
    return rule && rule->stored && strchr(rule->stored, '#');
}

static bool transposed(const struct ct_stored_rule *rule)
{
    return rule && rule->transposed;
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t size = strlen(name), end = strlen(suffix);

    return size >= end && !strcmp(name + size - end, suffix);
}

const struct ct_stored_rule *ct_stored_rule(const struct ct_stored_rule *rules, const char *name)
{
    for (const struct ct_stored_rule *r = rules; r && r->suffix; r++)
        if (has_suffix(name, r->suffix))
            return r;
    return NULL;
}

bool ct_stored_absent(const struct ct_stored_rule *rule)
{
    return rule && rule->stored && !*rule->stored;
}

enum ct_dtype ct_stored_dtype(const struct ct_stored_rule *rule, enum ct_dtype own, int files)
{
    if (files < 0 || !ct_dtype_is_float(own) || (rule && rule->whole_dtype))
        return own;
    return (enum ct_dtype)files;
}

static size_t count_rules(const struct ct_stored_rule *rules)
{
    size_t count = 0;

    while (rules && rules[count].suffix)
        count++;
    return count;
}

void ct_stored_add(struct ct_run *run, const struct ct_stored_rule *rules)
{
    const struct ct_model_ops *ops = run->model_ops;
    size_t own = count_rules(ops->stored), added = count_rules(rules);
    struct ct_stored_rule *all;
    struct ct_model_ops *changed;

    if (ct_stored_rule(ops->stored, rules->suffix) &&
        ct_stored_rule(ops->stored, rules->suffix)->suffix == rules->suffix)
        return;
    all = ct_arena_array(&run->arena, struct ct_stored_rule, own + added + 1);
    memcpy(all, rules, sizeof(*all) * added);
    if (own)
        memcpy(all + added, ops->stored, sizeof(*all) * own);
    changed = ct_arena_copy(&run->arena, ops, sizeof(*ops));
    changed->stored = all;
    run->model_ops = changed;
}

int64_t ct_stored_count(const struct ct_stored_rule *rule, const struct ct_state *param)
{
    return ct_stored_stacked(rule) ? param->shape[0] : 1;
}

static void swap(int64_t *sizes, int ndim)
{
    int64_t last = sizes[ndim - 1];

    sizes[ndim - 1] = sizes[ndim - 2];
    sizes[ndim - 2] = last;
}

struct ct_weight ct_stored_tensor(struct ct_arena *arena, const struct ct_stored_rule *rule,
                                  const struct ct_state *param, int64_t index)
{
    struct ct_weight w = {.name = param->name, .dtype = param->dtype};
    int first = ct_stored_stacked(rule);
    size_t base, before;

    w.ndim = param->ndim - first;
    memcpy(w.shape, param->shape + first, sizeof(*w.shape) * (size_t)w.ndim);
    if (!rule)
        return w;
    if (rule->parts)
        w.shape[0] *= rule->parts;
    if (rule->transposed)
        swap(w.shape, w.ndim);
    base = strlen(param->name) - strlen(rule->suffix);
    before = strcspn(rule->stored, "#");
    w.name = first ? ct_arena_printf(arena, "%.*s%.*s%lld%s", (int)base, param->name, (int)before,
                                     rule->stored, (long long)index, rule->stored + before + 1)
                   : ct_arena_printf(arena, "%.*s%s", (int)base, param->name, rule->stored);
    return w;
}

struct ct_stored_box ct_stored_to_tensor(const struct ct_stored_rule *rule,
                                         const struct ct_state *param,
                                         const struct ct_stored_box *box)
{
    int first = ct_stored_stacked(rule);
    struct ct_stored_box t = {.ndim = box->ndim - first};

    memcpy(t.shape, box->shape + first, sizeof(*t.shape) * (size_t)t.ndim);
    memcpy(t.offset, box->offset + first, sizeof(*t.offset) * (size_t)t.ndim);
    if (rule && rule->parts)
        t.offset[0] += rule->part * param->shape[first];
    if (transposed(rule)) {
        swap(t.shape, t.ndim);
        swap(t.offset, t.ndim);
    }
    return t;
}

bool ct_stored_to_param(const struct ct_stored_rule *rule, const struct ct_state *param,
                        int64_t index, const struct ct_stored_box *tensor,
                        struct ct_stored_box *box)
{
    int first = ct_stored_stacked(rule);

    *box = (struct ct_stored_box){.ndim = param->ndim};
    if (first)
        box->shape[0] = 1, box->offset[0] = index;
    memcpy(box->shape + first, tensor->shape, sizeof(*box->shape) * (size_t)tensor->ndim);
    memcpy(box->offset + first, tensor->offset, sizeof(*box->offset) * (size_t)tensor->ndim);
    if (transposed(rule)) {
        swap(box->shape, box->ndim);
        swap(box->offset, box->ndim);
    }
    if (rule && rule->parts) {
        int64_t begin = box->offset[first] - rule->part * param->shape[first];
        int64_t end = begin + box->shape[first];

        begin = begin < 0 ? 0 : begin;
        end = end < param->shape[first] ? end : param->shape[first];
        box->offset[first] = begin;
        box->shape[first] = end - begin;
        return begin < end;
    }
    return true;
}

void ct_stored_transpose(const void *from, const int64_t shape[2], size_t item, void *to)
{
    for (int64_t i = 0; i < shape[0]; i++)
        for (int64_t j = 0; j < shape[1]; j++)
            memcpy((char *)to + (size_t)(j * shape[0] + i) * item,
                   (const char *)from + (size_t)(i * shape[1] + j) * item, item);
}
