/*
 * Helpers for reference kernels.
 */
#include <ctitan/error.h>
#include <ctitan/lib/ops.h>

int ct_checked_index(const double *indices, int64_t i, int64_t limit, const char *what)
{
    if (indices[i] >= 0 && indices[i] < (double)limit)
        return 0;
    return ct_fail(CT_EINVAL, "%s %.0f at position %lld is not below %lld", what, indices[i],
                   (long long)i, (long long)limit);
}
