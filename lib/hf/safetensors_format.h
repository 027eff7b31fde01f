/*
 * Shared by the reader and writer of safetensors: the names of dtypes and of the index, and the
 * prefix of a file.
 */
#ifndef CT_SAFETENSORS_FORMAT_H
#define CT_SAFETENSORS_FORMAT_H

#include <string.h>

#include <ctitan/lib/safetensors.h>
#include <ctitan/tensor.h>

#define CT_SAFETENSORS_INDEX "model.safetensors.index.json"
#define CT_SAFETENSORS_PREFIX 8 /* bytes of the header's length, little endian */

static const struct {
    const char *name;
    enum ct_dtype dtype;
} ct_safetensors_dtypes[] = {
    {"F64", CT_F64},      {"F32", CT_F32}, {"F16", CT_F16}, {"BF16", CT_BF16}, {"F8_E4M3", CT_E4M3},
    {"F8_E5M2", CT_E5M2}, {"I64", CT_I64}, {"I32", CT_I32}, {"U8", CT_U8},
};

/* -1: no dtype has that name. */
static inline int ct_safetensors_dtype(const char *name, enum ct_dtype *dtype)
{
    for (size_t i = 0; i < CT_COUNT(ct_safetensors_dtypes); i++)
        if (!strcmp(ct_safetensors_dtypes[i].name, name)) {
            *dtype = ct_safetensors_dtypes[i].dtype;
            return 0;
        }
    return -1;
}

static inline const char *ct_safetensors_dtype_name(enum ct_dtype dtype)
{
    for (size_t i = 0; i < CT_COUNT(ct_safetensors_dtypes); i++)
        if (ct_safetensors_dtypes[i].dtype == dtype)
            return ct_safetensors_dtypes[i].name;
    return NULL;
}

static inline size_t ct_safetensors_bytes(const struct ct_weight *weight)
{
    return ct_dtype_bytes(weight->dtype, weight->ndim, weight->shape);
}

#endif
