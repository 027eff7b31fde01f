/*
 * Rows of operands along sequences, [.., tokens, heads, n], [.., tokens, heads] or [.., tokens],
 * with any dimensions of a batch in front and any strides: read as float32, padded with zeros.
 */
#ifndef CPU_KERNELS_ROWS_H
#define CPU_KERNELS_ROWS_H

#include <string.h>

#include <ctitan/op.h>

#include "vector.h"

#define ROW_WIDTH(n) (((n) + 15) & ~(int64_t)15) /* floats of a padded row */

/* One sequence of an operand. Strides are in bytes. */
struct rows {
    char *at; /* NULL: absent */
    int64_t token, head, size;
    enum ct_dtype dtype;
};

/* Sequence b of an operand that has `dims` dimensions behind those of the batch. */
static inline struct rows rows_of(const struct ct_tensor *t, int64_t b, int dims)
{
    int64_t bytes = (int64_t)ct_dtype_size(t->dtype), at = 0;
    int first = t->ndim - dims;

    if (!t->data)
        return (struct rows){NULL};
    for (int d = first - 1; d >= 0; d--) {
        at += b % t->shape[d] * t->stride[d];
        b /= t->shape[d];
    }
    return (struct rows){(char *)t->data + at * bytes, t->stride[first] * bytes,
                         dims > 1 ? t->stride[first + 1] * bytes : 0, t->shape[t->ndim - 1],
                         t->dtype};
}

static inline struct rows rows_of_input(const struct ct_launch *l, int i, int64_t b, int dims)
{
    return i < l->ins ? rows_of(&l->in[i], b, dims) : (struct rows){NULL};
}

static inline char *row_at(const struct rows *r, int64_t token, int64_t head)
{
    return r->at + token * r->token + head * r->head;
}

/* The row as floats, padded with zeros. */
static inline void row_load(const struct rows *r, int64_t token, int64_t head, float *to)
{
    const char *from = row_at(r, token, head);

    for (int64_t i = 0; i < ROW_WIDTH(r->size); i += CPU_LANES)
        v_store(to + i, i >= r->size         ? v_set(0)
                        : r->dtype == CT_F32 ? v_get(CT_F32, from, i, r->size)
                                             : v_get(CT_BF16, from, i, r->size));
}

static inline void row_store(const struct rows *r, int64_t token, int64_t head, bool add,
                             const float *from)
{
    char *to = row_at(r, token, head);

    for (int64_t i = 0; i < r->size; i += CPU_LANES)
        if (r->dtype == CT_F32)
            v_put(CT_F32, to, i, r->size,
                  v_load(from + i) + (add ? v_get(CT_F32, to, i, r->size) : v_set(0)));
        else
            v_put(CT_BF16, to, i, r->size,
                  v_load(from + i) + (add ? v_get(CT_BF16, to, i, r->size) : v_set(0)));
}

static inline float row_number(const struct rows *r, int64_t token, int64_t head)
{
    const char *at = row_at(r, token, head);
    uint16_t half;

    if (r->dtype == CT_F32)
        return *(const float *)(const void *)at;
    memcpy(&half, at, sizeof(half));
    return ct_bf16_to_f32(half);
}

static inline void row_set(const struct rows *r, int64_t token, int64_t head, bool add, float value)
{
    char *at = row_at(r, token, head);
    uint16_t half;

    value += add ? row_number(r, token, head) : 0;
    half = ct_f32_to_bf16(value);
    memcpy(at, r->dtype == CT_F32 ? (const void *)&value : &half, ct_dtype_size(r->dtype));
}

/* Whether a document begins at a token, other than the first. */
static inline bool row_begins(const struct rows *documents, int64_t token)
{
    return token > 0 && documents->at &&
           *(const int32_t *)(const void *)row_at(documents, token, 0) !=
               *(const int32_t *)(const void *)row_at(documents, token - 1, 0);
}

#endif
