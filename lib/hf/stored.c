/*
 * Names and boxes by a model's rules. In a tensor a parameter has lost its first dimension if that
 * numbers tensors, is a part along one dimension, perhaps in blocks, and then has its last two
 * dimensions swapped.
 */
#include <string.h>

#include <ctitan/lib/patterns.h>
#include <ctitan/lib/stored.h>

bool ct_stored_stacked(const struct ct_stored_rule *rule)
{
    return rule && rule->stored && strchr(rule->stored, '#');
}

static bool transposed(const struct ct_stored_rule *rule)
{
    return rule && rule->transposed;
}

static bool in_blocks(const struct ct_stored_rule *rule)
{
    return rule && rule->rows.all;
}

/* The tensor's row of a parameter's. */
static int64_t row_of(const struct ct_stored_rows *r, int64_t row)
{
    return r->offset + row / r->block * r->stride + row % r->block;
}

/* How many of the parameter's rows are before a row of the tensor. */
static int64_t rows_before(const struct ct_stored_rows *r, int64_t row)
{
    int64_t past = row - r->offset, in_block = past % r->stride, before;

    if (past <= 0)
        return 0;
    before = past / r->stride * r->block + (in_block < r->block ? in_block : r->block);
    return before < r->own ? before : r->own;
}

int ct_stored_part_dim(const struct ct_stored_rule *rule, int ndim)
{
    bool stacked = ct_stored_stacked(rule);

    if (!rule || !rule->parts)
        return -1;
    return stacked + (rule->interleaved || (!stacked && !rule->rows.all && ndim == 3));
}

const struct ct_stored_rule *ct_stored_rule(const struct ct_stored_rule *rules, const char *name)
{
    for (const struct ct_stored_rule *r = rules; r && r->suffix; r++)
        if (ct_ends_in(name, r->suffix))
            return r;
    return NULL;
}

bool ct_stored_absent(const struct ct_stored_rule *rule)
{
    return rule && rule->stored && !*rule->stored;
}

bool ct_stored_dense(const struct ct_stored_rule *rule)
{
    return !rule || (!rule->transposed && !rule->interleaved && rule->rows.block >= rule->rows.own);
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
    return ct_stored_stacked(rule) ? param->shape[0]
                                   : 1 + (rule && rule->copies ? rule->copied : 0);
}

const char *ct_stored_numbered(struct ct_arena *arena, const char *text, int64_t number)
{
    int before = (int)strcspn(text, "#");

    if (!text[before])
        return ct_arena_strdup(arena, text);
    return ct_arena_printf(arena, "%.*s%lld%s", before, text, (long long)number, text + before + 1);
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
    size_t base;

    w.ndim = param->ndim - first;
    memcpy(w.shape, param->shape + first, sizeof(*w.shape) * (size_t)w.ndim);
    if (!rule)
        return w;
    if (in_blocks(rule))
        w.shape[0] = rule->rows.all;
    else if (rule->parts)
        w.shape[ct_stored_part_dim(rule, param->ndim) - first] *= rule->parts;
    if (rule->transposed)
        swap(w.shape, w.ndim);
    if (!first && index) {
        w.name = ct_stored_numbered(arena, rule->copies, rule->first_copy + index - 1);
        return w;
    }
    base = strlen(param->name) - strlen(rule->suffix);
    w.name = ct_arena_printf(arena, "%.*s%s", (int)base, param->name,
                             first ? ct_stored_numbered(arena, rule->stored, index) : rule->stored);
    return w;
}

struct ct_stored_box ct_stored_to_tensor(const struct ct_stored_rule *rule,
                                         const struct ct_state *param,
                                         const struct ct_stored_box *box)
{
    int first = ct_stored_stacked(rule), d = ct_stored_part_dim(rule, param->ndim) - first;
    struct ct_stored_box t = {.ndim = box->ndim - first};

    memcpy(t.shape, box->shape + first, sizeof(*t.shape) * (size_t)t.ndim);
    memcpy(t.offset, box->offset + first, sizeof(*t.offset) * (size_t)t.ndim);
    if (in_blocks(rule)) {
        int64_t begin = t.offset[0], end = begin + t.shape[0];

        t.offset[0] = row_of(&rule->rows, begin);
        t.shape[0] = begin < end ? row_of(&rule->rows, end - 1) + 1 - t.offset[0] : 0;
    } else if (rule && rule->parts && rule->interleaved) {
        t.offset[d] *= rule->parts;
        t.shape[d] *= rule->parts;
    } else if (rule && rule->parts) {
        t.offset[d] += rule->part * param->shape[d + first];
    }
    if (transposed(rule)) {
        swap(t.shape, t.ndim);
        swap(t.offset, t.ndim);
    }
    return t;
}

static int64_t ceiling(int64_t a, int64_t b)
{
    return a <= 0 ? 0 : (a + b - 1) / b;
}

bool ct_stored_to_param(const struct ct_stored_rule *rule, const struct ct_state *param,
                        int64_t index, const struct ct_stored_box *tensor,
                        struct ct_stored_box *box)
{
    int first = ct_stored_stacked(rule), d = ct_stored_part_dim(rule, param->ndim);
    int64_t begin, end;

    *box = (struct ct_stored_box){.ndim = param->ndim};
    if (first)
        box->shape[0] = 1, box->offset[0] = index;
    memcpy(box->shape + first, tensor->shape, sizeof(*box->shape) * (size_t)tensor->ndim);
    memcpy(box->offset + first, tensor->offset, sizeof(*box->offset) * (size_t)tensor->ndim);
    if (transposed(rule)) {
        swap(box->shape, box->ndim);
        swap(box->offset, box->ndim);
    }
    if (d < 0)
        return true;
    begin = box->offset[d];
    end = begin + box->shape[d];
    if (in_blocks(rule)) {
        begin = rows_before(&rule->rows, begin);
        end = rows_before(&rule->rows, end);
    } else if (rule->interleaved) {
        begin = ceiling(begin - rule->part, rule->parts);
        end = ceiling(end - rule->part, rule->parts);
    } else {
        begin -= rule->part * param->shape[d];
        end -= rule->part * param->shape[d];
    }
    begin = begin < 0 ? 0 : begin;
    end = end < param->shape[d] ? end : param->shape[d];
    box->offset[d] = begin;
    box->shape[d] = end - begin;
    return begin < end;
}

struct ct_stored_rule ct_stored_rule_for(const struct ct_stored_rule *rule,
                                         const struct ct_weight *weight)
{
    struct ct_stored_rule own = *rule;

    own.transposed &= !weight->scales;
    return own;
}

/* ---- copying ---- */

struct ct_stored_places ct_stored_places(const struct ct_stored_rule *rule,
                                         const struct ct_state *param,
                                         const struct ct_stored_box *box,
                                         const struct ct_stored_box *tensor)
{
    struct ct_stored_box at = ct_stored_to_tensor(rule, param, box);
    struct ct_stored_places p = {.ndim = box->ndim};
    int first = ct_stored_stacked(rule), d = ct_stored_part_dim(rule, param->ndim);
    int64_t stride = 1;

    memcpy(p.shape, box->shape, sizeof(*p.shape) * (size_t)p.ndim);
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        p.first += (at.offset[i] - tensor->offset[i]) * stride;
        p.stride[i + first] = stride;
        stride *= tensor->shape[i];
    }
    if (transposed(rule))
        swap(p.stride, p.ndim);
    if (in_blocks(rule)) {
        if (p.ndim == 1)
            p.shape[p.ndim] = p.stride[p.ndim] = 1, p.ndim++; /* its elements are rows */
        p.row = box->offset[0];
        p.block = rule->rows.block;
        p.gap = (rule->rows.stride - p.block) * p.stride[0];
    } else if (d >= 0 && rule->interleaved) {
        p.first += rule->part * p.stride[d];
        p.stride[d] *= rule->parts;
    }
    return p;
}

static void copy(const char *from, int64_t from_step, char *to, int64_t to_step, int64_t count,
                 size_t item)
{
    if (from_step == 1 && to_step == 1)
        memcpy(to, from, (size_t)count * item);
    else if (item == 2)
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * to_step * 2, from + i * from_step * 2, 2);
    else if (item == 4)
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * to_step * 4, from + i * from_step * 4, 4);
    else
        for (int64_t i = 0; i < count; i++)
            memcpy(to + (size_t)(i * to_step) * item, from + (size_t)(i * from_step) * item, item);
}

/* One of the two is dense, the other the tensor. */
struct transfer {
    const struct ct_stored_places *places;
    const char *from;
    char *to;
    size_t item;
    bool scatters;
};

static int64_t place_of_row(const struct ct_stored_places *p, int64_t row)
{
    int64_t place = p->first;

    for (int d = p->ndim - 2; d >= 0; d--) {
        place += row % p->shape[d] * p->stride[d];
        if (p->block && d == 0)
            place += ((p->row + row % p->shape[0]) / p->block - p->row / p->block) * p->gap;
        row /= p->shape[d];
    }
    return place;
}

/* The columns [column, column + count) of some rows of the box, which begin at `at` in the dense
   elements. Some columns of all rows at a time: of a transposed tensor, these are near. */
static void move(const struct transfer *t, int64_t row, int64_t rows, int64_t column, int64_t count,
                 int64_t at)
{
    const struct ct_stored_places *p = t->places;
    int64_t step = p->ndim ? p->stride[p->ndim - 1] : 1, most = step == 1 ? count : 64;

    for (int64_t c = 0; c < count; c += most)
        for (int64_t r = 0; r < rows; r++) {
            int64_t place = place_of_row(p, row + r) + (column + c) * step;
            int64_t dense = at + r * count + c, n = count - c < most ? count - c : most;

            if (t->scatters)
                copy(t->from + (size_t)dense * t->item, 1, t->to + (size_t)place * t->item, step, n,
                     t->item);
            else
                copy(t->from + (size_t)place * t->item, step, t->to + (size_t)dense * t->item, 1, n,
                     t->item);
        }
}

static void move_range(const struct transfer *t, int64_t at, int64_t count)
{
    const struct ct_stored_places *p = t->places;
    int64_t columns = p->ndim ? p->shape[p->ndim - 1] : 1, done = 0;

    while (done < count) {
        int64_t row = (at + done) / columns, column = (at + done) % columns, left = count - done;
        int64_t rows = column || left < columns ? 1 : left / columns;
        int64_t n = column + left < columns ? left : columns - column;

        move(t, row, rows, column, n, done);
        done += rows * n;
    }
}

void ct_stored_gather(const struct ct_stored_places *places, int64_t at, int64_t count, size_t item,
                      const void *tensor, void *dense)
{
    move_range(&(struct transfer){places, tensor, dense, item, false}, at, count);
}

void ct_stored_scatter(const struct ct_stored_places *places, int64_t at, int64_t count,
                       size_t item, const void *dense, void *tensor)
{
    move_range(&(struct transfer){places, dense, tensor, item, true}, at, count);
}

void ct_stored_read(const struct ct_stored_places *p, int64_t at, int64_t count,
                    const struct ct_weight *weight, void *dense)
{
    int64_t columns = p->ndim ? p->shape[p->ndim - 1] : 1, done = 0;
    size_t item = ct_dtype_size(weight->dtype);

    if (!weight->scales) {
        ct_stored_gather(p, at, count, item, weight->data, dense);
        return;
    }
    while (done < count) {
        int64_t column = (at + done) % columns, left = count - done;
        int64_t n = column + left < columns ? left : columns - column;

        ct_weights_read_run(weight, place_of_row(p, (at + done) / columns) + column, n,
                            weight->dtype, (char *)dense + (size_t)done * item);
        done += n;
    }
}
