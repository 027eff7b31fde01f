/*
 * Tensors as matrices.
 */
#include "gpu.h"

bool gpu_as_rows(const struct ct_tensor *t, struct gpu_rows *rows)
{
    *rows = (struct gpu_rows){1, t->rank ? t->shape[t->rank - 1] : 1, 0};
    if (t->rank && t->stride[t->rank - 1] != 1 && rows->columns > 1)
        return false;
    for (int d = t->rank - 2; d >= 0; d--) {
        if (t->shape[d] == 1)
            continue;
        if (rows->rows == 1)
            rows->stride = t->stride[d];
        else if (t->stride[d] != rows->stride * rows->rows)
            return false;
        rows->rows *= t->shape[d];
    }
    if (rows->rows <= 1)
        rows->stride = rows->columns;
    return rows->stride >= rows->columns;
}

bool gpu_matrices(const struct ct_tensor *const *t, int count, struct gpu_rows *rows)
{
    bool dense = true;

    for (int i = 0; i < count; i++) {
        if (!gpu_as_rows(t[i], &rows[i]) || rows[i].rows != rows[0].rows ||
            rows[i].columns != rows[0].columns)
            return false;
        dense &= rows[i].stride == rows[i].columns;
    }
    for (int i = 0; dense && i < count; i++) {
        int64_t all = rows[i].rows * rows[i].columns;

        rows[i] = (struct gpu_rows){1, all, all};
    }
    return true;
}

bool gpu_vectors(const struct ct_tensor *const *t, const struct gpu_rows *rows, int count,
                 int64_t elements)
{
    for (int i = 0; i < count; i++)
        if (rows[i].columns % elements || rows[i].stride % elements ||
            (uintptr_t)t[i]->data % ((size_t)elements * ct_dtype_size(t[i]->dtype)))
            return false;
    return true;
}
