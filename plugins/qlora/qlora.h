/*
 * QLoRA: interface between the sources of the plugin.
 *
 *   qlora.c     options, transforms, hooks      codes.c   numbers to codes, and back
 *   quantise.c  codes in the graph              mean.c    the mean of scales, as torch computes it
 *   weights.c   codes in a run's memory         ops.c     the op that decodes
 *   cuda.c      its kernel for CUDA             qlora.cu  on the device
 *
 * A weight [rows, columns] is taken as one row of numbers, and cut into blocks of BLOCK numbers, so
 * blocks go from one row to the next. Each block has a scale, its largest magnitude; a number is
 * the nearest entry of a table, times the scale. In the graph the weight's parameter has codes. A
 * second one, "NAME.absmax" [rows, slots], has for each row the scales of the blocks that it has a
 * part of: a row can be decoded by itself, on whichever ranks its columns are. Where rows have
 * whole blocks no scale is there twice; else that of a block is there for each row that it is in.
 *
 * Double quantisation: the scales less their mean are quantised in turn, in groups of GROUP, to 8
 * bits. "NAME.absmax" has these codes, and "NAME.nested" the scale of each group, then the mean.
 */
#ifndef QLORA_H
#define QLORA_H

#include <ctitan/state.h>

#include "qlora_cuda.h"

enum qlora_base { QLORA_NF4, QLORA_INT8 };

extern struct qlora_config {
    unsigned base; /* enum qlora_base */
    bool double_quantisation;
    const char *keep, *adapters;
} qlora_config;

/* ---- codes.c ---- */

/* The dtype of codes. */
enum ct_dtype qlora_dtype(unsigned base);
/* The table of numbers from -1 to 1, in rising order; *count: entries. */
const float *qlora_table(unsigned base, int *count);
/* The entry nearest to x, by middles of two that are float32, too; of those, the lower one. Not a
   number: `none`. */
int qlora_nearest(const float *table, int count, float x, int none);

/* The code of x in a block with this largest magnitude. */
int qlora_code(unsigned base, float x, float absmax);

/* Sizes of a weight in blocks. */
struct qlora_blocks {
    int64_t rows, columns, blocks, groups;
    int64_t slots; /* scales of a row */
};
struct qlora_blocks qlora_blocks_of(int64_t rows, int64_t columns);
/* The first block that a row has a part of. */
int64_t qlora_first(const struct qlora_blocks *b, int64_t row);

/* Scales quantised in turn. codes has b->blocks bytes, nested b->groups + 1 numbers. */
void qlora_nest(const struct qlora_blocks *b, const float *absmax, uint8_t *codes, float *nested);

/* Decodes part of a row. */
struct qlora_row {
    const struct qlora_blocks *blocks;
    unsigned base;
    float (*pairs)[2];   /* of each byte of NF4: qlora_pairs */
    int64_t row, column; /* of the first number, in the whole */
    int64_t slot;        /* of the first scale */
    const float *absmax; /* of the row; NULL: quantised */
    const uint8_t *codes;
    const float *nested;
};
void qlora_pairs(float pairs[256][2]);
void qlora_decode(const struct qlora_row *r, const uint8_t *codes, int64_t count, float *to);

/* ---- mean.c ---- */

/* The mean of n numbers, in the order in which torch adds them on one thread of a processor with
   vectors of 256 bits. */
float qlora_mean(const float *x, int64_t n);

/* ---- ops.c ---- */

struct qlora_dequantise {
    enum ct_dtype dtype; /* of the weight */
    unsigned base;       /* enum qlora_base */
    bool together;       /* columns and scales are split alike: shards have whole blocks */
};
extern const struct ct_op_type qlora_op_dequantise;
extern const struct ct_kernel qlora_cpu_kernels[];

/* ---- cuda.c ---- */

extern const struct ct_kernel qlora_cuda_kernels[];
extern const struct ct_cuda_code qlora_cuda_code;

/* ---- quantise.c ---- */

int qlora_quantise(struct ct_graph *graph, struct ct_run *run);
/* Weights are decoded again for the backward, so that none lives until then. */
int qlora_again(struct ct_graph *graph, struct ct_run *run);

/* ---- weights.c ---- */

#define QLORA_ABSMAX ".absmax"
#define QLORA_NESTED ".nested"

const struct ct_coding *qlora_coding(void);

#endif
