/*
 * For kernels of the plugin's ops on CPUs: parts of rows as float32. Tensors are matrices (struct
 * ct_matrix, tensor.h) of float32 or bfloat16.
 */
#ifndef LORA_FLOATS_H
#define LORA_FLOATS_H

#include <ctitan/op.h>
#include <ctitan/tensor.h>

#define LORA_CHUNK 256 /* elements of a row that are in hand at a time */

/* Whether kernels take the tensor. */
static inline bool lora_floats_taken(const struct ct_tensor *t)
{
    struct ct_matrix m;

    return (t->dtype == CT_F32 || t->dtype == CT_BF16) && ct_tensor_as_matrix(t, &m);
}

static inline struct ct_matrix lora_floats_matrix(const struct ct_tensor *t)
{
    struct ct_matrix m = {0};

    (void)ct_tensor_as_matrix(t, &m);
    return m;
}

/* n elements from index `at` in memory: where they are, or in room. */
static inline const float *lora_floats_get(const struct ct_tensor *t, int64_t at, int64_t n,
                                           float *room)
{
    const uint16_t *half = (const uint16_t *)t->data + at;

    if (t->dtype == CT_F32)
        return (const float *)t->data + at;
    for (int64_t i = 0; i < n; i++)
        room[i] = ct_bf16_to_f32(half[i]);
    return room;
}

/* Store them, or add them to what is there. */
static inline void lora_floats_put(const struct ct_tensor *t, int64_t at, int64_t n, bool add,
                                   const float *from)
{
    float *whole = (float *)t->data + at;
    uint16_t *half = (uint16_t *)t->data + at;

    for (int64_t i = 0; t->dtype == CT_F32 && i < n; i++)
        whole[i] = add ? whole[i] + from[i] : from[i];
    for (int64_t i = 0; t->dtype == CT_BF16 && i < n; i++)
        half[i] = ct_f32_to_bf16(add ? ct_bf16_to_f32(half[i]) + from[i] : from[i]);
}

/* y += factor x */
static inline void lora_floats_add(float *y, float factor, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += factor * x[i];
}

/* Columns [at, at + n) of some rows of matrix e of w + scale b a. The launch's inputs w, a and b
   are stacks of matrices, or single ones (e = 0). In stack.c. */
void lora_sum_rows(const struct ct_launch *l, int64_t e, int64_t row, int64_t rows, int64_t at,
                   int64_t n, float sum[][LORA_CHUNK]);

/* x . y, in sums side by side. */
static inline float lora_floats_dot(const float *x, const float *y, int64_t n)
{
    float sum[16] = {0}, rest = 0;
    int64_t i = 0;

    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++)
            sum[k] += x[i + k] * y[i + k];
    for (; i < n; i++)
        rest += x[i] * y[i];
    for (int k = 0; k < 16; k++)
        rest += sum[k];
    return rest;
}

#endif
