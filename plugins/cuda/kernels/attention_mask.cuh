/* Which keys a query sees: those of its own document, by the positions of both. */
#ifndef GPU_ATTENTION_MASK_CUH
#define GPU_ATTENTION_MASK_CUH

#include <ctitan/lib/cuda/device.cuh>

#include "arguments.h"

DEVICE int32_t position_of(const gpu_side &s, int64_t b, int64_t token)
{
    return s.positions ? s.positions[b * s.tokens + token] : (int32_t)(s.first + token);
}

DEVICE int32_t document_of(const gpu_side &s, int64_t b, int64_t token)
{
    return s.documents ? s.documents[b * s.tokens + token] : 0;
}

DEVICE bool is_near(int32_t key, int32_t query, int32_t causal, int64_t window)
{
    int64_t before = (int64_t)query - key;

    return (!causal || before >= 0) && (!window || (before < window && before > -window));
}

DEVICE bool is_wanted(const gpu_attention &a)
{
    return !a.wanted || *a.wanted;
}

/* ROWS tokens; a position of INT32_MAX: there is none. */
template <int ROWS> struct tile_ids {
    int32_t position[ROWS], document[ROWS];
};

/* Loads the tokens from `begin` on, by the first ROWS threads. */
template <int ROWS>
DEVICE void read_ids(const gpu_side &s, int64_t b, int64_t begin, tile_ids<ROWS> *ids)
{
    int64_t token = begin + threadIdx.x;

    if (threadIdx.x >= ROWS)
        return;
    ids->position[threadIdx.x] = token < s.tokens ? position_of(s, b, token) : INT32_MAX;
    ids->document[threadIdx.x] = token < s.tokens ? document_of(s, b, token) : 0;
}

#endif
