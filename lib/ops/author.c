/*
 * Helpers for reference kernels.
 */
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

double ct_rounded(enum ct_dtype dtype, double value)
{
    double room = 0;
    struct ct_tensor t = ct_tensor_dense(&room, dtype, 0, NULL);

    ct_tensor_store(&t, 0, value);
    return ct_tensor_load(&t, 0);
}

int ct_checked_index(const double *indices, int64_t i, int64_t limit, const char *what)
{
    if (indices[i] >= 0 && indices[i] < (double)limit)
        return 0;
    return ct_fail(CT_EINVAL, "%s %.0f at position %lld is not below %lld", what, indices[i],
                   (long long)i, (long long)limit);
}
