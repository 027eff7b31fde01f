/*
 * Sizes of launches, operands, and names of functions.
 */
#include <stdio.h>

#include <ctitan/error.h>
#include <ctitan/lib/cuda.h>

#define NAME 80 /* bytes of a function's name */

/* CT_EINVAL: it is longer than NAME. */
static int expand(char *to, const char *name, const char *op, const char *dtype)
{
    size_t at = 0;

    for (; *name && at < NAME; name++)
        at += (size_t)(*name == '@'   ? snprintf(to + at, NAME - at, "%s", op)
                       : *name == '*' ? snprintf(to + at, NAME - at, "%s", dtype)
                                      : snprintf(to + at, NAME - at, "%c", *name));
    return at < NAME ? 0
                     : ct_fail(CT_EINVAL, "the name of a function of %s is longer than %d bytes",
                               op, NAME - 1);
}

int ct_cuda_find(const struct ct_prepare *p, const struct ct_cuda_code *code, enum ct_dtype dtype,
                 const char *const *names, struct ct_cuda_function **functions)
{
    int rc = 0;

    for (int i = 0; rc == 0 && names[i]; i++) {
        char name[NAME] = "";

        rc = expand(name, names[i], p->op->type->name, ct_dtype_name(dtype));
        if (rc == 0)
            rc = ct_cuda_of(p->device)->find(p->device, code, name, &functions[i]);
    }
    return rc;
}

int ct_cuda_prepare(struct ct_prepare *p, const struct ct_cuda_code *code, enum ct_dtype dtype,
                    const char *const *names)
{
    size_t count = 0;

    while (names[count])
        count++;
    p->state = ct_arena_array(p->arena, struct ct_cuda_function *, count);
    return ct_cuda_find(p, code, dtype, names, p->state);
}

bool ct_cuda_matrices(const struct ct_tensor *const *t, int count, struct ct_matrix *rows)
{
    bool dense = true;

    for (int i = 0; i < count; i++) {
        if (!ct_tensor_as_matrix(t[i], &rows[i]) || rows[i].rows != rows[0].rows ||
            rows[i].columns != rows[0].columns)
            return false;
        dense &= rows[i].stride == rows[i].columns;
    }
    for (int i = 0; dense && i < count; i++) {
        int64_t all = rows[i].rows * rows[i].columns;

        rows[i] = (struct ct_matrix){1, all, all};
    }
    return true;
}

bool ct_cuda_vectors(const struct ct_tensor *const *t, const struct ct_matrix *rows, int count,
                     int64_t elements)
{
    for (int i = 0; i < count; i++)
        if (rows[i].columns % elements || rows[i].stride % elements ||
            (uintptr_t)t[i]->data % ((size_t)elements * ct_dtype_size(t[i]->dtype)))
            return false;
    return true;
}

bool ct_cuda_starts_vectors(const void *data, const int64_t *stride, int count, int64_t lanes)
{
    bool all = (uintptr_t)data % 16 == 0;

    for (int d = 0; data && d < count; d++)
        all = all && stride[d] % lanes == 0;
    return all;
}

int32_t ct_cuda_threads_of_row(int64_t columns, int64_t lanes)
{
    int32_t threads = 1;

    while (threads < 32 && threads < columns / lanes)
        threads *= 2;
    return threads;
}

struct ct_cuda_size ct_cuda_cover(const struct ct_matrix *rows, int64_t lanes, int64_t threads,
                                  struct ct_cuda_size *block)
{
    int64_t vectors = ct_cuda_blocks(rows->columns, lanes), across = 1, y;

    while (across < threads && across < vectors)
        across *= 2;
    *block = (struct ct_cuda_size){(unsigned)across, (unsigned)(threads / across), 1};
    y = ct_cuda_blocks(rows->rows, block->y);
    return (struct ct_cuda_size){(unsigned)ct_cuda_blocks(vectors, across),
                                 (unsigned)(y < 65535 ? y : 65535), 1};
}
