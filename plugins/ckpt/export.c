/*
 * Whole tensors from the boxes of a checkpoint: as a Hugging Face folder, and to compare two
 * checkpoints. What is read goes to its place in a file at once, so memory holds some chunks only.
 */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/file.h>
#include <ctitan/lib/safetensors.h>

#include "ckpt.h"

#define AT_ONCE 65536 /* elements that are converted at a time */

/* A file with some tensors of a checkpoint, whole. */
struct whole {
    const struct ckpt *c;
    struct ct_arena arena;
    const char *path;
    struct ckpt_io io;
    int dtype;  /* of floating-point tensors; -1: their own */
    size_t *at; /* by tensor: its first byte; SIZE_MAX: not in the file */
    char *block, *other;
    /* diff: by tensor */
    int64_t *different;
    double *most;
};

static enum ct_dtype dtype_in(const struct whole *w, const struct ckpt_tensor *t)
{
    return w->dtype >= 0 && ct_dtype_is_float(t->dtype) ? (enum ct_dtype)w->dtype : t->dtype;
}

static size_t index_of(const struct whole *w, const char *name)
{
    const struct ckpt_tensor *t = ckpt_find(w->c, name);

    return t ? (size_t)(t - w->c->tensors) : SIZE_MAX;
}

typedef int part_work(struct whole *w, size_t tensor, int64_t element, int64_t count,
                      const char *data);

/* Call work for the parts of a box that are contiguous in the whole tensor, AT_ONCE elements at
   most. */
static int for_each_part(struct whole *w, size_t index, const int64_t *offset, const int64_t *shape,
                         const char *data, part_work *work)
{
    const struct ckpt_tensor *t = &w->c->tensors[index];
    int64_t run = 1, runs;
    int outer = t->ndim, rc = 0;

    for (bool whole = true; whole && outer > 0;) {
        outer--;
        run *= shape[outer];
        whole = shape[outer] == t->shape[outer];
    }
    runs = ct_shape_count(t->ndim, shape) / run;
    for (int64_t r = 0; rc == 0 && r < runs; r++) {
        int64_t rest = r, at = 0, stride = 1;

        for (int d = t->ndim - 1; d >= 0; d--) {
            at += (offset[d] + (d < outer ? rest % shape[d] : 0)) * stride;
            rest /= d < outer ? shape[d] : 1;
            stride *= t->shape[d];
        }
        for (int64_t i = 0; rc == 0 && i < run; i += AT_ONCE) {
            int64_t n = run - i < AT_ONCE ? run - i : AT_ONCE;

            rc = work(w, index, at + i, n, data);
            data += (size_t)n * ct_dtype_size(t->dtype);
        }
    }
    return rc;
}

static int write_part(struct whole *w, size_t tensor, int64_t element, int64_t count,
                      const char *data)
{
    const struct ckpt_tensor *t = &w->c->tensors[tensor];
    struct ct_weight part = {t->name, t->dtype, 1, {count}, data};
    enum ct_dtype dtype = dtype_in(w, t);
    size_t item = ct_dtype_size(dtype);
    int64_t zero = 0;
    int rc = ct_weights_read(&part, &zero, &count, dtype, w->block);

    return rc < 0 ? rc
                  : ckpt_io_write(&w->io, w->block, (size_t)count * item,
                                  w->at[tensor] + (size_t)element * item);
}

static bool want(void *context, const struct ckpt_box *box, size_t *from, size_t *to)
{
    const struct whole *w = context;
    size_t tensor = index_of(w, box->name);

    *from = 0;
    *to = box->bytes;
    return tensor != SIZE_MAX && w->at[tensor] != SIZE_MAX;
}

static int put(void *context, const struct ckpt_box *box, const int64_t *offset,
               const int64_t *shape, const void *data)
{
    struct whole *w = context;

    return for_each_part(w, index_of(w, box->name), offset, shape, data, write_part);
}

/* Give every tensor of the role its place from `begin` on, largest elements first. */
static size_t place(struct whole *w, bool states, size_t begin)
{
    for (size_t i = 0; i < w->c->tensor_count; i++)
        w->at[i] = SIZE_MAX;
    for (size_t size = 8; size; size /= 2)
        for (size_t i = 0; i < w->c->tensor_count; i++) {
            const struct ckpt_tensor *t = &w->c->tensors[i];

            if (ct_dtype_size(dtype_in(w, t)) != size || (t->role != CT_ROLE_PARAM && !states))
                continue;
            w->at[i] = begin;
            begin += (size_t)ct_shape_count(t->ndim, t->shape) * size;
        }
    return begin;
}

static void whole_init(struct whole *w, const struct ckpt *c)
{
    *w = (struct whole){.c = c, .dtype = -1};
    w->at = ct_arena_array(&w->arena, size_t, c->tensor_count + 1);
    w->different = ct_arena_array(&w->arena, int64_t, c->tensor_count + 1);
    w->most = ct_arena_array(&w->arena, double, c->tensor_count + 1);
    w->block = ct_arena_alloc(&w->arena, AT_ONCE * 8);
    w->other = ct_arena_alloc(&w->arena, AT_ONCE * 8);
}

/* ---- export ---- */

static char *header_of(struct whole *w, size_t *bytes)
{
    struct ct_weight *weights = ct_arena_array(&w->arena, struct ct_weight, w->c->tensor_count + 1);
    size_t count = 0;

    for (size_t i = 0; i < w->c->tensor_count; i++) {
        const struct ckpt_tensor *t = &w->c->tensors[i];

        if (t->role != CT_ROLE_PARAM)
            continue;
        weights[count] =
            (struct ct_weight){.name = t->name, .dtype = dtype_in(w, t), .ndim = t->ndim};
        memcpy(weights[count++].shape, t->shape, sizeof(t->shape));
    }
    return ct_safetensors_header(weights, count, NULL, 8, bytes);
}

static int write_weights(struct whole *w)
{
    struct ct_new_file file;
    size_t bytes;
    char *header = header_of(w, &bytes);
    int rc = header ? ct_file_begin(&file, w->path) : ct_fail(CT_ENOMEM, "%s", w->path);

    if (rc == 0) {
        w->io = (struct ckpt_io){.path = w->path, .fd = fileno(file.out)};
        place(w, false, bytes);
        rc = ckpt_io_write(&w->io, header, bytes, 0);
        if (rc == 0)
            rc = ckpt_read(w->c, &(struct ckpt_sink){want, put, w, false});
        rc = ct_file_end(&file, rc);
    }
    free(header);
    return rc;
}

static int export_to(const struct ckpt *c, const char *folder, int dtype)
{
    struct whole w;
    const char *config;
    int rc;

    whole_init(&w, c);
    w.dtype = dtype;
    w.path = ct_arena_printf(&w.arena, "%s/model.safetensors", folder);
    config = ct_arena_printf(&w.arena, "%s/config.json", folder);
    rc = ct_file_make_folder(folder);
    if (rc == 0)
        rc = write_weights(&w);
    if (rc == 0 && c->config)
        rc = ct_file_write(config, c->config, strlen(c->config));
    else if (rc == 0)
        fprintf(stderr,
                "ctitan: the model wrote no config.json into the checkpoint; %s lacks one\n",
                folder);
    ct_arena_finish(&w.arena);
    return rc;
}

int ckpt_export(int argc, char **argv)
{
    struct ct_arena scratch = {0};
    enum ct_dtype dtype = CT_F32;
    bool cast = argc == 5 && !strcmp(argv[3], "--dtype");
    struct ckpt c;
    int rc;

    if (argc != 3 && !cast)
        return ct_fail(CT_ECONFIG, "export: expected CHECKPOINT HF_FOLDER [--dtype DTYPE]");
    rc = cast ? ct_dtype_parse(argv[4], &dtype) : 0;
    if (rc < 0 || !ct_dtype_is_float(dtype))
        return ct_fail(CT_ECONFIG, "--dtype %s: expected float32, bfloat16 or float16", argv[4]);
    rc = ckpt_locate(&scratch, argv[1], &c);
    if (rc == 0)
        rc = export_to(&c, argv[2], cast ? (int)dtype : -1);
    if (rc == 0)
        printf("%s: weights after step %lld, in %s/model.safetensors\n", c.path,
               (long long)c.progress.step - 1, argv[2]);
    ct_arena_finish(&scratch);
    return rc;
}

/* ---- import ---- */

static void take_weights(const struct ct_weights *weights, struct ckpt *c, struct ckpt_file *file)
{
    size_t count = ct_weights_count(weights);

    c->tensors = ct_arena_array(c->arena, struct ckpt_tensor, count + 1);
    file->boxes = ct_arena_array(c->arena, struct ckpt_box, count + 1);
    for (size_t size = 8; size; size /= 2)
        for (size_t i = 0; i < count; i++) {
            const struct ct_weight *w = ct_weights_at(weights, i);
            struct ckpt_tensor *t = &c->tensors[c->tensor_count];
            struct ckpt_box *b = &file->boxes[file->box_count];

            if (ct_dtype_size(w->dtype) != size || !ct_shape_count(w->ndim, w->shape))
                continue;
            *t = (struct ckpt_tensor){w->name, CT_ROLE_PARAM, w->dtype, w->ndim, {0}};
            *b = (struct ckpt_box){.name = w->name,
                                   .dtype = w->dtype,
                                   .ndim = w->ndim,
                                   .at = file->bytes,
                                   .bytes = (size_t)ct_shape_count(w->ndim, w->shape) * size,
                                   .data = w->data};
            memcpy(t->shape, w->shape, sizeof(t->shape));
            memcpy(b->shape, w->shape, sizeof(b->shape));
            file->bytes += b->bytes;
            c->tensor_count++;
            file->box_count++;
        }
    file->hash = ct_arena_array(c->arena, uint64_t, ckpt_chunks(file, CHUNK) + 1);
    c->files = file;
    c->file_count = 1;
}

static int import_weights(struct ckpt *c, struct ckpt_file *file, const char *temporary)
{
    struct ckpt_write w = {.file = file, .ring = {aligned_alloc(PAGE, 2 * CHUNK), 2, CHUNK}};
    char *header = NULL;
    int rc = w.ring.memory ? ckpt_make_header(file, &header) : ct_fail(CT_ENOMEM, "a ring");

    w.path = ct_arena_printf(c->arena, "%s/%s", temporary, file->name);
    w.header = header;
    if (rc == 0)
        rc = ct_file_make_folder(temporary);
    if (rc == 0)
        rc = ckpt_write(&w);
    if (rc == 0)
        rc = ckpt_index_write(c, temporary);
    free(header);
    free(w.ring.memory);
    return rc;
}

int ckpt_import(int argc, char **argv)
{
    struct ct_arena scratch = {0};
    struct ckpt c = {.arena = &scratch,
                     .progress = {.step = 1},
                     .world = 1,
                     .time = (int64_t)time(NULL),
                     .model_only = true,
                     .mesh = "one rank",
                     .recipe = "",
                     .chunk = CHUNK};
    struct ckpt_file file = {.name = "rank-00000.safetensors"};
    struct ct_weights *weights = NULL;
    const char *path, *temporary;
    char *config;
    size_t size;
    int rc;

    if (argc != 3)
        return ct_fail(CT_ECONFIG, "import: expected HF_FOLDER CHECKPOINTS");
    path = ckpt_step_path(&scratch, argv[2], 0);
    temporary = ct_arena_printf(&scratch, "%s.tmp-%ld", path, (long)getpid());
    rc = ct_weights_open(argv[1], &weights);
    if (rc == 0 && ct_file_read(&scratch, ct_arena_printf(&scratch, "%s/config.json", argv[1]),
                                1 << 20, &config, &size) == 0)
        c.config = config;
    if (rc == 0) {
        take_weights(weights, &c, &file);
        rc = import_weights(&c, &file, temporary);
        if (rc == 0)
            rc = ckpt_publish(temporary, path);
        else
            ct_context(rc, "importing %s", argv[1]);
    }
    if (rc == 0)
        printf("%s: %zu tensors of %s\n", path, c.tensor_count, argv[1]);
    ct_weights_close(weights);
    ct_arena_finish(&scratch);
    return rc;
}

/* ---- diff ---- */

static int compare_part(struct whole *w, size_t tensor, int64_t element, int64_t count,
                        const char *data)
{
    const struct ckpt_tensor *t = &w->c->tensors[tensor];
    size_t item = ct_dtype_size(t->dtype), bytes = (size_t)count * item;
    struct ct_tensor a = ct_tensor_dense(w->other, t->dtype, 1, &count);
    struct ct_tensor b = ct_tensor_dense(w->block, t->dtype, 1, &count);

    int rc = ckpt_io_read(&w->io, w->other, bytes, w->at[tensor] + (size_t)element * item);

    if (rc < 0)
        return rc;
    memcpy(w->block, data, bytes); /* aligned */
    for (int64_t i = 0; memcmp(w->other, w->block, bytes) && i < count; i++) {
        double by = fabs(ct_tensor_load(&a, i) - ct_tensor_load(&b, i));

        if (!memcmp(w->other + (size_t)i * item, w->block + (size_t)i * item, item))
            continue;
        w->different[tensor]++;
        w->most[tensor] = by > w->most[tensor] || isnan(by) ? by : w->most[tensor];
    }
    return 0;
}

static int put_compared(void *context, const struct ckpt_box *box, const int64_t *offset,
                        const int64_t *shape, const void *data)
{
    struct whole *w = context;

    return for_each_part(w, index_of(w, box->name), offset, shape, data, compare_part);
}

/* Tensors that the two do not have alike are left out of the comparison of values. */
static int compare_lists(struct whole *w, const struct ckpt *b)
{
    int count = 0;

    for (size_t i = 0; i < w->c->tensor_count; i++) {
        const struct ckpt_tensor *t = &w->c->tensors[i], *other = ckpt_find(b, t->name);

        if (other && other->ndim == t->ndim && other->dtype == t->dtype &&
            !memcmp(other->shape, t->shape, sizeof(*t->shape) * (size_t)t->ndim))
            continue;
        w->at[i] = SIZE_MAX;
        printf("%s: %s\n", t->name, other ? "another shape or dtype" : "only in the first");
        count++;
    }
    for (size_t i = 0; i < b->tensor_count; i++)
        if (index_of(w, b->tensors[i].name) == SIZE_MAX) {
            printf("%s: only in the second\n", b->tensors[i].name);
            count++;
        }
    return count;
}

static int print_values(const struct whole *w)
{
    int count = 0;

    for (size_t i = 0; i < w->c->tensor_count; i++) {
        const struct ckpt_tensor *t = &w->c->tensors[i];

        if (!w->different[i])
            continue;
        printf("%s: %lld of %lld elements differ, by up to %g\n", t->name,
               (long long)w->different[i], (long long)ct_shape_count(t->ndim, t->shape),
               w->most[i]);
        count++;
    }
    return count;
}

static void print_option(const char *section, const char *key, const char *before, const char *now,
                         void *context)
{
    (void)context;
    printf("[%s] %s: %s, %s\n", section, key, before, now);
}

static int compare(const struct ckpt *a, const struct ckpt *b)
{
    FILE *file = tmpfile();
    struct whole w;
    int rc = 0, count;

    if (!file)
        return ct_fail(CT_EIO, "a temporary file: %s", strerror(errno));
    whole_init(&w, a);
    w.io = (struct ckpt_io){.path = "a temporary file", .fd = fileno(file)};
    place(&w, true, 0);
    count = compare_lists(&w, b);
    if (a->progress.step != b->progress.step)
        printf("step: %lld, %lld\n", (long long)a->progress.step - 1,
               (long long)b->progress.step - 1);
    if (*a->recipe && *b->recipe)
        rc = ckpt_compare_recipes(a->recipe, b->recipe, print_option, NULL);
    if (rc == 0)
        rc = ckpt_read(a, &(struct ckpt_sink){want, put, &w, false});
    if (rc == 0)
        rc = ckpt_read(b, &(struct ckpt_sink){want, put_compared, &w, false});
    if (rc == 0)
        count += print_values(&w);
    fclose(file);
    ct_arena_finish(&w.arena);
    return rc < 0 ? rc : count;
}

int ckpt_diff(const char *first, const char *second)
{
    struct ct_arena scratch = {0};
    struct ckpt a, b;
    int rc = ckpt_locate(&scratch, first, &a);

    if (rc == 0)
        rc = ckpt_locate(&scratch, second, &b);
    if (rc == 0)
        rc = compare(&a, &b);
    if (rc == 0)
        printf("every tensor is the same\n");
    ct_arena_finish(&scratch);
    return rc > 0 ? ct_fail(CT_EIO, "%d tensors differ", rc) : rc;
}
