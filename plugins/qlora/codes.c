/*
 * Numbers to codes, and back, as bitsandbytes computes them. NF4 has quantiles of a normal
 * distribution (Dettmers et al. 2023); 8 bits are the signed dynamic map (Dettmers et al. 2022),
 * with more entries near zero.
 */
#include <math.h>
#include <pthread.h>

#include "qlora.h"

#define GRID 65536.0f

static const float nf4[16] = {-1.0f,        -0.6961928f,  -0.52507305f,  -0.3949175f,
                              -0.28444138f, -0.18477343f, -0.091050036f, 0.0f,
                              0.0795803f,   0.1609302f,   0.2461123f,    0.33791524f,
                              0.44070983f,  0.562617f,    0.72295684f,   1.0f};

/* The positive entries of the dynamic map without 1. The negative ones are their opposites. */
static const float dynamic[127] = {
    5.5000004e-07f, 3.2500002e-06f, 7.75e-06f,      2.1249998e-05f, 4.375e-05f,     6.625e-05f,
    8.875e-05f,     0.00015625001f, 0.00026875004f, 0.00038125002f, 0.00049375003f, 0.0006062501f,
    0.00071875006f, 0.00083125f,    0.0009437501f,  0.0012812499f,  0.00184375f,    0.00240625f,
    0.00296875f,    0.0035312497f,  0.00409375f,    0.0046562497f,  0.0052187503f,  0.00578125f,
    0.00634375f,    0.00690625f,    0.00746875f,    0.00803125f,    0.00859375f,    0.009156249f,
    0.00971875f,    0.01140625f,    0.01421875f,    0.01703125f,    0.019843752f,   0.02265625f,
    0.02546875f,    0.028281251f,   0.03109375f,    0.03390625f,    0.036718752f,   0.03953125f,
    0.042343747f,   0.04515625f,    0.04796875f,    0.05078125f,    0.05359375f,    0.05640625f,
    0.059218753f,   0.06203125f,    0.06484375f,    0.067656256f,   0.070468746f,   0.07328125f,
    0.07609375f,    0.07890625f,    0.08171876f,    0.08453125f,    0.08734375f,    0.09015625f,
    0.092968754f,   0.09578126f,    0.09859375f,    0.107031256f,   0.12109375f,    0.13515624f,
    0.14921875f,    0.16328125f,    0.17734376f,    0.19140625f,    0.20546874f,    0.21953125f,
    0.23359375f,    0.24765624f,    0.26171875f,    0.27578127f,    0.28984374f,    0.30390626f,
    0.31796873f,    0.33203125f,    0.34609374f,    0.36015624f,    0.37421876f,    0.38828123f,
    0.40234375f,    0.41640624f,    0.43046874f,    0.44453126f,    0.45859373f,    0.47265625f,
    0.4867187f,     0.50078124f,    0.5148437f,     0.5289062f,     0.54296875f,    0.5570313f,
    0.5710938f,     0.58515626f,    0.5992187f,     0.61328125f,    0.6273438f,     0.6414063f,
    0.65546876f,    0.6695312f,     0.68359375f,    0.6976563f,     0.7117188f,     0.72578126f,
    0.7398437f,     0.75390625f,    0.7679688f,     0.78203124f,    0.79609376f,    0.8101562f,
    0.82421875f,    0.8382813f,     0.85234374f,    0.86640626f,    0.8804687f,     0.89453125f,
    0.9085938f,     0.92265624f,    0.93671876f,    0.9507812f,     0.96484375f,    0.9789063f,
    0.99296874f};

enum ct_dtype qlora_dtype(unsigned base)
{
    return base == QLORA_NF4 ? CT_U4 : CT_U8;
}

static float map[256];

static void make_map(void)
{
    for (int i = 0; i < 127; i++) {
        map[126 - i] = -dynamic[i];
        map[128 + i] = dynamic[i];
    }
    map[255] = 1;
}

static const float *dynamic_map(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_map);
    return map;
}

const float *qlora_table(unsigned base, int *count)
{
    *count = base == QLORA_NF4 ? 16 : 256;
    return base == QLORA_NF4 ? nf4 : dynamic_map();
}

int qlora_nearest(const float *table, int count, float x, int none)
{
    int low = 0, high = count - 1;

    if (isnan(x))
        return none;
    while (low < high) { /* the entry is in [low, high] */
        int middle = (low + high) / 2;

        if (x > (table[middle] + table[middle + 1]) / 2)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* As bitsandbytes: times the reciprocal. In a block of zeros that is no number. For 8 bits it looks
   up the nearest of GRID numbers between -1 and 1, and has the code of that. */
int qlora_code(unsigned base, float x, float absmax)
{
    int count;
    const float *table = qlora_table(base, &count);

    x *= 1 / absmax;
    if (base == QLORA_NF4)
        return qlora_nearest(table, count, x, count / 2 - 1);
    x = x < -1 ? -1 : x > 1 ? 1 : x;
    if (!isnan(x))
        x = (float)(int)((x + 1) * (GRID - 1) / 2 + 0.5f) * (2.0f / (GRID - 1)) - 1;
    return qlora_nearest(table, count, x, 0);
}

struct qlora_blocks qlora_blocks_of(int64_t rows, int64_t columns)
{
    struct qlora_blocks b = {.rows = rows, .columns = columns};
    int64_t power = 1;

    b.blocks = (rows * columns + QLORA_BLOCK - 1) / QLORA_BLOCK;
    b.groups = (b.blocks + QLORA_GROUP - 1) / QLORA_GROUP;
    /* of a row that begins as late in a block as one can: rows begin at multiples of this power */
    while (columns % (2 * power) == 0 && power < QLORA_BLOCK)
        power *= 2;
    b.slots = (columns + 2 * QLORA_BLOCK - 1 - power) / QLORA_BLOCK;
    b.slots = b.slots < b.blocks ? b.slots : b.blocks;
    return b;
}

int64_t qlora_first(const struct qlora_blocks *b, int64_t row)
{
    return row * b->columns / QLORA_BLOCK;
}

static float largest(const float *x, int64_t n)
{
    float most = 0;

    for (int64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

void qlora_nest(const struct qlora_blocks *b, const float *absmax, uint8_t *codes, float *nested)
{
    float mean = qlora_mean(absmax, b->blocks), less[QLORA_GROUP];

    for (int64_t g = 0; g < b->groups; g++) {
        int64_t from = g * QLORA_GROUP, left = b->blocks - from;
        int64_t n = left < QLORA_GROUP ? left : QLORA_GROUP;

        for (int64_t i = 0; i < n; i++)
            less[i] = absmax[from + i] - mean;
        nested[g] = largest(less, n);
        for (int64_t i = 0; i < n; i++)
            codes[from + i] = (uint8_t)qlora_code(QLORA_INT8, less[i], nested[g]);
    }
    nested[b->groups] = mean;
}

void qlora_pairs(float pairs[256][2])
{
    for (int i = 0; i < 256; i++) {
        pairs[i][0] = nf4[i >> 4];
        pairs[i][1] = nf4[i & 15];
    }
}

static float scale_of(const struct qlora_row *r, int64_t block)
{
    int64_t slot = block - qlora_first(r->blocks, r->row) - r->slot;

    if (r->absmax)
        return r->absmax[slot];
    return dynamic_map()[r->codes[slot]] * r->nested[block / QLORA_GROUP] +
           r->nested[r->blocks->groups];
}

/* Numbers [at, end) of a row, which have one scale. */
static void decode_nf4(const struct qlora_row *r, const uint8_t *codes, int64_t at, int64_t end,
                       float scale, float *to)
{
    if (at % 2 && at < end) {
        to[at] = r->pairs[codes[at / 2]][1] * scale;
        at++;
    }
    for (; at + 1 < end; at += 2) {
        const float *pair = r->pairs[codes[at / 2]];

        to[at] = pair[0] * scale;
        to[at + 1] = pair[1] * scale;
    }
    if (at < end)
        to[at] = r->pairs[codes[at / 2]][0] * scale;
}

void qlora_decode(const struct qlora_row *r, const uint8_t *codes, int64_t count, float *to)
{
    int64_t first = r->row * r->blocks->columns + r->column;
    const float *all = dynamic_map();

    for (int64_t at = 0, end; at < count; at = end) {
        int64_t block = (first + at) / QLORA_BLOCK;
        float scale = scale_of(r, block);

        end = (block + 1) * QLORA_BLOCK - first;
        end = end < count ? end : count;
        if (r->base == QLORA_NF4)
            decode_nf4(r, codes, at, end, scale, to);
        for (int64_t i = at; r->base != QLORA_NF4 && i < end; i++)
            to[i] = all[codes[i]] * scale;
    }
}
