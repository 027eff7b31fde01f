/*
 * How two checkpoints differ: the second is read box by box, and each compared with the same box of
 * the first, so memory holds some chunks only.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/json.h>

#include "ckpt.h"

struct comparison {
    const struct ckpt *c; /* the first */
    struct ckpt_seek seek;
    struct ct_arena arena;
    bool *both;         /* by tensor: the two have it alike */
    char *own, *other;  /* a box of each, aligned */
    int64_t *different; /* by tensor */
    double *most;
};

/* The differences, as JSON; NULL: lines are printed instead. */
struct told {
    json_t *tensors, *options;
};

/* A tensor that the two do not have alike. */
static void tell(const struct told *told, const char *name, const char *difference)
{
    if (told->tensors)
        json_array_append_new(told->tensors, json_pack("{s:o, s:s}", "name", ct_json_text(name),
                                                       "difference", difference));
    else
        printf("%s: %s\n", name, difference);
}

static size_t index_of(const struct comparison *w, const char *name)
{
    const struct ct_checkpoint_tensor *t = ckpt_find(w->c, name);

    return t ? (size_t)(t - w->c->tensors) : SIZE_MAX;
}

static bool want(void *context, const struct ckpt_box *box, size_t *from, size_t *to)
{
    const struct comparison *w = context;
    size_t tensor = index_of(w, box->name);

    *from = 0;
    *to = box->bytes;
    return tensor != SIZE_MAX && w->both[tensor];
}

/* A box of the second, of a chunk's bytes at most. */
static int put(void *context, const struct ckpt_box *box, const int64_t *offset,
               const int64_t *shape, const void *data)
{
    struct comparison *w = context;
    size_t tensor = index_of(w, box->name);
    const struct ct_checkpoint_tensor *t = &w->c->tensors[tensor];
    int64_t count = ct_shape_count(t->ndim, shape);
    size_t item = ct_dtype_bytes(t->dtype, 0, NULL),
           bytes = ct_dtype_bytes(t->dtype, t->ndim, shape);
    bool packed = ct_dtype_bits(t->dtype) < 8;
    struct ct_tensor a = ct_tensor_dense(w->own, t->dtype, t->ndim, shape);
    struct ct_tensor b = ct_tensor_dense(w->other, t->dtype, t->ndim, shape);
    int rc = ckpt_seek_read(&w->seek, t, offset, shape, w->own);

    if (rc < 0 || !memcmp(w->own, data, bytes))
        return rc;
    memcpy(w->other, data, bytes);
    for (int64_t i = 0; i < count; i++) {
        double by;

        if (!packed && !memcmp(w->own + (size_t)i * item, w->other + (size_t)i * item, item))
            continue;
        by = fabs(ct_tensor_load(&a, i) - ct_tensor_load(&b, i));
        if (packed && by == 0)
            continue;
        w->different[tensor]++;
        w->most[tensor] = by > w->most[tensor] || isnan(by) ? by : w->most[tensor];
    }
    return 0;
}

static int begin(struct comparison *w, const struct ckpt *a, const struct ckpt *b)
{
    *w = (struct comparison){.c = a};
    w->both = ct_arena_array(&w->arena, bool, a->tensor_count + 1);
    w->different = ct_arena_array(&w->arena, int64_t, a->tensor_count + 1);
    w->most = ct_arena_array(&w->arena, double, a->tensor_count + 1);
    w->own = ct_arena_alloc(&w->arena, b->chunk);
    w->other = ct_arena_alloc(&w->arena, b->chunk);
    return ckpt_seek_begin(&w->seek, a);
}

/* Tensors that the two do not have alike are left out of the comparison of values. */
static int compare_lists(struct comparison *w, const struct ckpt *b, const struct told *told)
{
    int count = 0;

    for (size_t i = 0; i < w->c->tensor_count; i++) {
        const struct ct_checkpoint_tensor *t = &w->c->tensors[i], *other = ckpt_find(b, t->name);

        w->both[i] = other && other->ndim == t->ndim && other->dtype == t->dtype &&
                     !memcmp(other->shape, t->shape, sizeof(*t->shape) * (size_t)t->ndim);
        if (w->both[i])
            continue;
        tell(told, t->name, other ? "another shape or dtype" : "only in the first");
        count++;
    }
    for (size_t i = 0; i < b->tensor_count; i++)
        if (index_of(w, b->tensors[i].name) == SIZE_MAX) {
            tell(told, b->tensors[i].name, "only in the second");
            count++;
        }
    return count;
}

static void tell_values(const struct told *told, const struct ct_checkpoint_tensor *t,
                        int64_t different, double most)
{
    int64_t elements = ct_shape_count(t->ndim, t->shape);

    if (told->tensors)
        json_array_append_new(told->tensors,
                              json_pack("{s:o, s:s, s:I, s:I, s:o}", "name", ct_json_text(t->name),
                                        "difference", "values", "different", (json_int_t)different,
                                        "elements", (json_int_t)elements, "most",
                                        ct_json_number(most)));
    else
        printf("%s: %lld of %lld elements differ, by up to %g\n", t->name, (long long)different,
               (long long)elements, most);
}

static int count_values(const struct comparison *w, const struct told *told)
{
    int count = 0;

    for (size_t i = 0; i < w->c->tensor_count; i++) {
        const struct ct_checkpoint_tensor *t = &w->c->tensors[i];

        if (!w->different[i])
            continue;
        tell_values(told, t, w->different[i], w->most[i]);
        count++;
    }
    return count;
}

static void tell_option(const char *section, const char *key, const char *before, const char *now,
                        void *context)
{
    const struct told *told = context;

    if (told->options)
        json_array_append_new(told->options,
                              json_pack("{s:o, s:o, s:o, s:o}", "section", ct_json_text(section),
                                        "key", ct_json_text(key), "first", ct_json_text(before),
                                        "second", ct_json_text(now)));
    else
        printf("[%s] %s: %s, %s\n", section, key, before, now);
}

static int compare(const struct ckpt *a, const struct ckpt *b, struct told *told)
{
    struct comparison w;
    int rc = begin(&w, a, b), count;

    count = compare_lists(&w, b, told);
    if (a->progress.step != b->progress.step && !told->tensors)
        printf("step: %lld, %lld\n", (long long)a->progress.step - 1,
               (long long)b->progress.step - 1);
    if (rc == 0 && *a->recipe && *b->recipe)
        rc = ct_recipe_differences("the recipe of a checkpoint", a->recipe, b->recipe, tell_option,
                                   told);
    if (rc == 0)
        rc = ckpt_read(b, &(struct ckpt_sink){want, put, &w, false});
    if (rc == 0)
        count += count_values(&w, told);
    ckpt_seek_end(&w.seek);
    ct_arena_finish(&w.arena);
    return rc < 0 ? rc : count;
}

static int print_json(const struct ckpt *a, const struct ckpt *b, struct told *told)
{
    return ct_json_print(json_pack("{s:o, s:o, s:[I, I], s:o, s:o}", "first", ct_json_text(a->path),
                                   "second", ct_json_text(b->path), "steps",
                                   (json_int_t)a->progress.step - 1,
                                   (json_int_t)b->progress.step - 1, "options", told->options,
                                   "tensors", told->tensors),
                         stdout);
}

int ckpt_diff(const char *first, const char *second, bool json)
{
    struct told told = {NULL, NULL};
    struct ct_arena scratch = {0};
    struct ckpt a, b;
    int rc = ckpt_locate(&scratch, first, &a), printed = 0;

    if (rc == 0 && json)
        told = (struct told){json_array(), json_array()};
    if (rc == 0)
        rc = ckpt_locate(&scratch, second, &b);
    if (rc == 0)
        rc = compare(&a, &b, &told);
    if (rc < 0) {
        json_decref(told.tensors);
        json_decref(told.options);
    } else if (json) {
        printed = print_json(&a, &b, &told);
    } else if (rc == 0) {
        printf("every tensor is the same\n");
    }
    ct_arena_finish(&scratch);
    if (printed < 0)
        return printed;
    return rc > 0 ? ct_fail(CT_EIO, "%d tensors differ", rc) : rc;
}
