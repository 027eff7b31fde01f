/*
 * Sizes of launches, operands, and names of functions.
 */
#include <stdio.h>

#include <ctitan/lib/cuda.h>

int ct_cuda_launch_as(const struct ct_launch *l, const struct ct_cuda_code *code, const char *name,
                      enum ct_dtype dtype, bool vector, struct ct_cuda_size grid,
                      struct ct_cuda_size block, size_t shared, const void *arguments)
{
    char full[80];

    snprintf(full, sizeof(full), "%s_%s%s", name, ct_dtype_name(dtype), vector ? "_vector" : "");
    return ct_cuda_launch(l, code, full, grid, block, shared, arguments);
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
