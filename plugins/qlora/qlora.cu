/*
 * Decodes a weight: a thread has QLORA_NUMBERS of a row. They are of one block or of two, as a row
 * may begin within a block. Each product and sum is rounded, as on CPUs, whose bits these are.
 */
#include <ctitan/lib/cuda/device.cuh>

#include "qlora_cuda.h"

DEVICE float scale_of(const qlora_decode_call &a, const float *map, int64_t row, int64_t block)
{
    int64_t first = (a.row + row) * a.whole_columns / QLORA_BLOCK + a.slot;
    int64_t at = row * a.absmax_stride + block - first;

    if (!a.nested)
        return ((const float *)a.absmax)[at];
    return __fadd_rn(__fmul_rn(map[((const uint8_t *)a.absmax)[at]], a.nested[block / QLORA_GROUP]),
                     a.nested[a.groups]);
}

/* The codes of `count` numbers of a row, from column c, which is even. */
template <bool NF4>
DEVICE void read_codes(const uint8_t *row, int64_t c, int count, int (&code)[QLORA_NUMBERS])
{
#pragma unroll
    for (int i = 0; i < QLORA_NUMBERS; i++)
        if (i < count)
            code[i] = NF4 ? row[(c + i) / 2] >> (i % 2 ? 0 : 4) & 15 : row[c + i];
}

template <typename T, bool NF4> DEVICE void decode(const qlora_decode_call &a)
{
    __shared__ float table[NF4 ? 16 : 256], map[256];
    int64_t per_row = (a.columns + QLORA_NUMBERS - 1) / QLORA_NUMBERS;
    int64_t at = (int64_t)blockIdx.x * QLORA_THREADS + threadIdx.x;
    int64_t row = at / per_row, c = at % per_row * QLORA_NUMBERS;
    int code[QLORA_NUMBERS] = {},
        count = (int)(a.columns - c < QLORA_NUMBERS ? a.columns - c : QLORA_NUMBERS);
    float w[QLORA_NUMBERS];
    T *to = (T *)a.weight + row * a.weight_stride + c;

    if (threadIdx.x < (NF4 ? 16 : 256))
        table[threadIdx.x] = a.table[threadIdx.x];
    map[threadIdx.x] = a.map[threadIdx.x];
    __syncthreads();
    if (row >= a.rows)
        return;
    int64_t number = (a.row + row) * a.whole_columns + a.column + c, block = number / QLORA_BLOCK;
    int64_t last = (number + count - 1) / QLORA_BLOCK;

    read_codes<NF4>(a.codes + row * a.code_stride, c, count, code);
    float scale = scale_of(a, map, row, block);
    float next = last == block ? scale : scale_of(a, map, row, last);
#pragma unroll
    for (int i = 0; i < QLORA_NUMBERS; i++)
        w[i] = __fmul_rn(table[code[i]], (number + i) / QLORA_BLOCK == block ? scale : next);
    if (count == QLORA_NUMBERS && (uintptr_t)to % (sizeof(T) * QLORA_NUMBERS) == 0) {
        store<QLORA_NUMBERS>(to, w);
        return;
    }
#pragma unroll
    for (int i = 0; i < QLORA_NUMBERS; i++)
        if (i < count)
            to[i] = from_float<T>(w[i]);
}

#define DECODE(T, dtype)                                                                           \
    KERNEL(qlora_nf4_##dtype, qlora_decode_call, QLORA_THREADS)                                    \
    {                                                                                              \
        decode<T, true>(a);                                                                        \
    }                                                                                              \
    KERNEL(qlora_int8_##dtype, qlora_decode_call, QLORA_THREADS)                                   \
    {                                                                                              \
        decode<T, false>(a);                                                                       \
    }
FOR_DTYPES(DECODE)
