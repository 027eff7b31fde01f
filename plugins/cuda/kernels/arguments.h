/*
 * Arguments of kernels on the device: one struct each, the same for C and CUDA. Strides count
 * elements; addresses are the device's. `accumulate` has a bit for each output to add to.
 */
#ifndef GPU_ARGUMENTS_H
#define GPU_ARGUMENTS_H

#include <ctitan/lib/cuda/arguments.h>

/* ---- elementwise ---- */

struct gpu_map {
    void *out[2];
    const void *in[3];
    int64_t out_stride[2], in_stride[3]; /* of rows */
    int64_t rows, columns;
};

/* The same, with the largest magnitude of each row of an output. */
struct gpu_map_rows {
    struct gpu_map map;
    float *largest[2];
};

struct gpu_scalar {
    void *out;
    const void *in;
    int64_t count;
    double numerator;
};

#define GPU_TERMS 64

struct gpu_sum {
    void *out;
    const void *in[GPU_TERMS]; /* added in this order */
    int64_t count, terms;
};

struct gpu_add_numbers {
    double *out;
    const double *a, *b;
};

/* ---- compiled when a run is planned (rows.cuh) ---- */

struct gpu_compiled_operand {
    void *data;
    int64_t stride; /* of rows */
};

struct gpu_compiled {
    struct gpu_compiled_operand in[16], out[8];
    int64_t rows, columns;
    int64_t chunk; /* of one long row, for each block; 0: blocks take rows */
    float *sums;   /* [sum_count][blocks][columns] */
    int64_t sum_count;
};

/* ---- norm ---- */

#define GPU_NARROW_THREADS 256 /* of a block that has many rows */

struct gpu_norm {
    void *y, *sum;
    float *rstd, *largest; /* largest magnitudes of rows of y; NULL: not wanted */
    const void *x, *r, *w;
    int64_t rows, columns;
    float eps, offset; /* offset: added to w */
};

struct gpu_norm_grad {
    void *dx;
    float *partial; /* [blocks][columns] */
    float *largest; /* magnitudes of rows of dx; NULL: not wanted */
    const void *dy, *x, *w, *dres;
    const float *rstd;
    int64_t rows, columns;
    uint32_t accumulate;
    float offset;
};

/* out[column] = sum over rows of in, float32 -> a floating dtype */
struct gpu_column_sum {
    void *out;
    const float *in;
    int64_t rows, columns;
    int32_t kind, accumulate;
};

/* ---- rope ---- */

#define GPU_ROPE_PAIRS 128

struct gpu_rope {
    void *y;
    const void *x;
    const int32_t *positions;                             /* NULL: in order, from first on */
    int64_t x_stride[3], y_stride[3], position_stride[2]; /* batch, token, head */
    int64_t batch, tokens, first;
    int32_t heads, pairs, inverse;
    int32_t unrotated, copied;    /* features before the pairs; all beside them, 0: in place */
    float magnitude;              /* of cosines and sines */
    double turns[GPU_ROPE_PAIRS]; /* of a pair, by position: frequency / 2 pi */
};

struct gpu_temper {
    void *y;
    const void *x;
    const int32_t *positions;                             /* NULL: in order, from first on */
    int64_t x_stride[3], y_stride[3], position_stride[2]; /* batch, token, head */
    int64_t rows, tokens, heads, first, every, added;
    int32_t size, lanes; /* lanes: threads of a row, a power of two */
    float scale;
};

struct gpu_document_chunks {
    int32_t *out;
    const int32_t *positions, *documents; /* NULL: in order, from first on; zeros */
    int64_t out_stride[2], position_stride[2], document_stride[2];
    int64_t count, tokens, first, of_chunk, most; /* count: of tokens in all sequences */
};

/* ---- rows times a number each ---- */

struct gpu_scale_rows {
    void *out; /* y; dx */
    const void *x, *dy;
    const float *w; /* by row: a factor, or rstd */
    float *of_row;  /* rstd; dw */
    int64_t rows, columns;
    float eps;
    int32_t lanes; /* threads of a row, a power of two */
    uint32_t accumulate;
};

struct gpu_ones {
    float *out;
    int64_t count;
};

struct gpu_scale {
    void *out;
    const void *x;
    int64_t count;
    float factor;
};

/* ---- latent ---- */

#define GPU_PARTS 6

/* The columns of a matrix, and matrices that are its parts. */
struct gpu_parts {
    void *whole, *part[GPU_PARTS];                /* NULL: zeros */
    int64_t whole_stride, part_stride[GPU_PARTS]; /* of rows */
    int64_t end[GPU_PARTS];                       /* of a part, as a column of the whole */
    int64_t rows, columns;
};

/* Operands of each head: kv has keys, then values; k has keys, then what all heads share; v has
   values. */
struct gpu_latent {
    void *kv, *shared, *k, *v;                                        /* k, v: NULL for zeros */
    int64_t kv_stride[3], k_stride[3], v_stride[3], shared_stride[3]; /* batch, token, head */
    int64_t batch, tokens;
    int32_t heads, keys, values, columns; /* columns: keys, values and what is shared */
};

/* Heads [rows][heads][size] that are copies of [rows][groups][size]. Both are shards of a whole in
   which each group has `share` copies; count: elements that are written. */
struct gpu_copy_heads {
    void *to;
    const void *from;
    int64_t count, heads, groups, size, first, first_group, share;
};

/* ---- embedding ---- */

#define GPU_EMBEDDING_VECTOR 8  /* columns of a thread */
#define GPU_EMBEDDING_SPAN 1024 /* rows whose counts a block adds up */
#define GPU_EMBEDDING_CHUNK 64  /* rows of a frequent token that a block adds up */

struct gpu_embedding {
    void *y;
    const void *table;
    const int32_t *tokens;
    int64_t count, columns, rows, first, limit; /* rows: of this rank's shard, first on */
    struct ct_cuda_fault *fault;
};

struct gpu_embedding_grad {
    void *dtable;
    const void *dy;
    const int32_t *tokens;
    int32_t *counts, *begin, *chunk; /* by row: positions, the first in `sorted`, the first chunk */
    int32_t *totals;                 /* by span of rows: positions, chunks */
    int32_t *rank, *sorted;          /* by position */
    float *partial;                  /* [chunks][columns] */
    int64_t count, columns, rows, first, limit;
    int32_t padding; /* a token that adds nothing; -1: none */
    int32_t accumulate;
    struct ct_cuda_fault *fault;
};

/* ---- loss ---- */

struct gpu_loss_rows {
    const void *logits;
    void *dlogits;          /* NULL: not wanted; may be logits */
    float *lse;             /* written; NULL: not wanted */
    const float *given_lse; /* NULL: to be found */
    float *loss;            /* by row; NULL: not wanted */
    const int32_t *labels;
    const void *dloss;
    int64_t rows, columns, stride, first_position;
    int32_t dloss_kind, kept; /* kept: vectors of a row in shared memory */
    struct ct_cuda_fault *fault;
};

/* out = sum of count losses */
struct gpu_loss_sum {
    void *out;
    const float *losses;
    int64_t count;
    int32_t kind, accumulate;
};

struct gpu_shards {
    const void *logits;
    void *dlogits;
    float *stats; /* [rows][shards][3]: largest, sum, label's logit */
    const float *dstats;
    const int32_t *labels;
    int64_t rows, shards, first,
        limit;                 /* shards that lie here; their first column, and all columns */
    int64_t shard, all_shards; /* the first that lies here, and the number of all */
    int64_t row_columns;       /* of all shards that lie here */
    struct ct_cuda_fault *fault;
};

struct gpu_merge {
    float *lse, *losses, *dstats;
    const float *stats, *given_lse;
    const int32_t *labels;
    const void *dloss;
    int64_t rows, shards;
    int32_t dloss_kind;
};

/* ---- layer norm ---- */

struct gpu_layer_norm {
    void *y;
    float *mean, *rstd;
    const void *x, *w, *bias; /* bias NULL: none */
    int64_t columns;
    float eps;
};

struct gpu_layer_norm_grad {
    void *dx;
    const void *dy, *x, *w;
    const float *mean, *rstd;
    int64_t columns;
    int32_t kind, accumulate; /* of dx */
};

/* Sums over a share of the rows, [shares][columns]. */
struct gpu_column_shares {
    float *of_y, *of_z;
    const void *dy, *x; /* x NULL: of_z is not wanted */
    const float *mean, *rstd;
    int64_t rows, columns, dy_stride;
};

/* ---- mixtures of experts ---- */

#define GPU_NO_EXPERT (-1) /* a choice that is not one */
#define GPU_SORT_THREADS 1024
#define GPU_EXPERTS_TILE 64 /* rows and columns of a tile of a product */
#define GPU_TENSOR_TILE 128 /* those on tensor cores; by so many threads: */
#define GPU_TENSOR_THREADS 256
#define GPU_WGMMA_ROWS 128 /* those on Hopper's, by as many threads */
#define GPU_WGMMA_COLUMNS 256
#define GPU_WGMMA_SHARED 197632

struct gpu_top_k {
    float *weights;
    int32_t *ids;
    void *dx; /* of the gradient: dx, from dweights and the chosen */
    const float *dweights;
    const int32_t *chosen;
    const void *x;
    const float *bias, *load; /* or NULL; load: of each sequence */
    int64_t rows, experts, k, tokens;
    int64_t groups, groups_chosen; /* 0: none */
    int32_t kind, out_kind, normalised, sigmoid;
    float scale, balance; /* balance: what load counts in dp */
    struct ct_cuda_fault *fault;
};

/* Loads of each expert, by sequence and of all: the number, or the excess over the mean. */
struct gpu_expert_load {
    float *load, *total;
    const int32_t *ids;
    int64_t sequences, choices, experts, k; /* choices of a sequence */
    struct ct_cuda_fault *fault;
};

/* Choices sorted by expert: `order` lists them, `tokens` whose they are; `place` says where each
   is, -1: its expert is not here. */
struct gpu_experts {
    int32_t *counts, *order, *tokens, *place;
    const int32_t *ids;
    int64_t choices, k, first, experts, all; /* experts: of this rank, from number `first` on */
    struct ct_cuda_fault *fault;
};

/* Rows of the sorted choices: their own, or those of their tokens. */
struct gpu_expert_rows {
    const void *x;
    int64_t columns;
    int32_t kind, of_tokens;
};

struct gpu_experts_product {
    float *c;
    struct gpu_expert_rows in;
    const void *weight; /* [experts][columns][in.columns]; turned: the last two swapped */
    const int32_t *counts, *tokens;
    int64_t experts, columns;
    int32_t weight_kind, turned, accumulate;
};

/* The gated layer (struct ct_experts). limit: infinite where there is none. Values above `beyond`
   are beyond the limit, also after they were rounded. */
struct gpu_gate {
    float alpha, limit, offset, beyond;
};

/* Operands in bfloat16. */
struct gpu_experts_gated {
    void *h, *g, *u; /* h, or g and u, or all; NULL: not wanted */
    struct gpu_expert_rows in;
    const void *gate, *up;           /* [experts][f][in.columns] */
    const void *gate_bias, *up_bias; /* [experts][f], or NULL */
    const int32_t *counts, *tokens;
    int64_t experts, f;
    struct gpu_gate how;
};

struct gpu_experts_tensor {
    void *c; /* sum of the parts' products */
    struct gpu_expert_rows in[2];
    const void *weight[2]; /* as those of gpu_experts_product */
    const int32_t *counts, *tokens;
    int64_t experts, columns;
    int32_t parts;
};

struct gpu_experts_outer {
    void *out;
    struct gpu_expert_rows left, right;
    const int32_t *counts, *tokens;
    int32_t kind, accumulate;
};

struct gpu_experts_rows {
    struct gpu_experts all;
    /* float32, or bfloat16 for the kernels on tensor cores. from_g and from_u may be g and u. */
    const void *from_g, *from_u;
    void *g, *u, *dh;
    float *dweights; /* NULL: not wanted */
    const float *weights;
    const void *gate_bias, *up_bias; /* to be added to g and u, or NULL */
    int64_t f;
    struct gpu_gate how;
    int32_t bias_kind, accumulate; /* dweights */
    int32_t kind;                  /* of g, u and dh, for kernels on any */
};

/* Sums of each expert's rows. */
struct gpu_experts_sum {
    void *out; /* [experts][in.columns] */
    struct gpu_expert_rows in;
    const float *weights; /* of choices; NULL: 1 */
    const int32_t *counts, *order, *tokens;
    int32_t kind, accumulate;
};

struct gpu_expert_bias {
    void *y; /* from weights, or dweights from dy */
    float *dweights;
    const float *weights;
    const void *dy, *bias;
    const int32_t *ids;
    int64_t tokens, columns, k, first, experts, all; /* experts: of this rank, from `first` on */
    int32_t kind;                                    /* of y, dy and bias */
    struct ct_cuda_fault *fault;
};

struct gpu_experts_combine {
    void *y;
    float *dweights;  /* NULL; else 0 for choices that are not here */
    const void *rows; /* as g, u and dh above */
    const float *weights;
    const int32_t *place;
    int64_t tokens, columns, k;
    int32_t kind, accumulate;
};

/* ---- experts in 8 bits ---- */

#define GPU_CODES_LARGEST 448.0f /* of float8_e4m3 */
#define GPU_CODES_BLOCK 128 /* numbers of a square's side; experts' numbers begin at multiples */
#define GPU_CODES_MX 32     /* numbers with one factor in MXFP8 */
#define GPU_CODES_CHUNK 32  /* lines that a block writes at once */
#define GPU_CODES_SHARED 203776 /* bytes that Hopper's products take */

/* Lines of float8_e4m3 codes, along which products sum. Number k of line i is its code times
   factors[i / share * line + k / 128 * block], in MXFP8 k / 32; those of expert e begin `each`
   later for every one before it. Where experts share a line, rows of choices, e's numbers begin at
   gpu_codes_begin. */
struct gpu_codes {
    uint8_t *codes;
    float *factors;
    int64_t stride; /* bytes of a line, a multiple of 16: zeros fill it up */
    int64_t share, line, block, each;
};

enum { GPU_CODES_EXACT, GPU_CODES_POWER_OF_TWO, GPU_CODES_MX_RCEIL };

/* to = codes of x[rows, columns], of each expert. `rows` of choices are as many as counts say.
   Scales are of so many rows or columns: `along`, those of one line; in squares, of
   GPU_CODES_BLOCK x GPU_CODES_BLOCK. */
struct gpu_encode {
    struct gpu_codes to;
    const void *x;
    const int32_t *counts; /* NULL: x are weights, or rows of tokens */
    const int32_t *tokens; /* row i of x is row tokens[i]; NULL: row i */
    const int32_t *order;
    const float
        *weights; /* row i is multiplied by weights[order[i]], and rounded; NULL: it is not */
    int64_t rows, columns, experts, along;
    int32_t kind, rule; /* of scales: GPU_CODES_* */
};

/* c[row][i] = in's line times the expert's line i of weight; + bias[expert][i], or + c */
struct gpu_codes_product {
    void *c;
    struct gpu_codes in, weight;
    const void *bias;      /* of kind, or NULL */
    const int32_t *counts; /* of rows of c */
    const int32_t *tokens; /* in has a line for each token; NULL: for each row */
    int64_t experts, columns, depth;
    int32_t kind, accumulate;
};

/* out[expert][i][j] = left's line i times right's line j, of the expert's numbers */
struct gpu_codes_outer {
    void *out;
    struct gpu_codes left, right;
    const int32_t *counts;
    int64_t rows, columns;
    int32_t kind, accumulate;
};

/* ---- rows on their way to the ranks of experts ---- */

#define GPU_ROW_BLOCK 128 /* numbers of a row with one factor */

/* Rows of x[rows, columns] and their codes. */
struct gpu_row_codes {
    void *x;
    uint8_t *codes;
    float *factors;
    int64_t rows, columns, blocks;
    int32_t kind; /* of x */
};

struct gpu_route {
    int32_t *slot, *counts, *most; /* [tokens][ranks], [ranks], [1] */
    const int32_t *ids;
    int64_t tokens, k, experts, ranks;
    struct ct_cuda_fault *fault;
};

/* Rows [ranks][capacity] of a round, `size` bytes or elements each. */
struct gpu_rows {
    void *y;
    const void *x, *previous; /* previous NULL: none */
    const int32_t *slot;
    int64_t tokens, ranks, capacity, round, size;
    int32_t kind, previous_kind, out_kind;
};

/* ---- attention ---- */

struct gpu_side {
    const int32_t *documents, *positions; /* [batch][tokens]; NULL: one document; in order */
    int64_t first, tokens;
};

#define GPU_ATTENTION_ROWS 64 /* of a block on tensor cores */
#define GPU_ATTENTION_THREADS 128

/* Elements of a token in one head. */
struct gpu_head {
    int32_t size, padded; /* padded: of a row in shared memory */
};

struct gpu_attention {
    void *o, *dq, *dk, *dv;
    float *lse, *delta;
    const void *q, *k, *v, *d_o;
    const void *o_in;
    const float *lse_in;
    int64_t q_stride[3], k_stride[3], v_stride[3], o_stride[3], do_stride[3]; /* b, t, h */
    int64_t dq_stride[3], dk_stride[3], dv_stride[3], oin_stride[3];
    struct gpu_side queries, keys;
    int64_t batch, window;      /* 0: none */
    struct gpu_head key, value; /* of q and k; of v and o */
    int32_t heads, groups;
    int32_t causal;
    int32_t out_kind[3];
    float scale;
    float softcap, alibi; /* 0: none */
    int32_t first_head, all_heads;
    const int32_t *wanted; /* NULL: always; else only if it is not 0 */
};

#define GPU_PACKED 9         /* tensors of packed sequences: in the backward */
#define GPU_PACKED_FORWARD 5 /* the first ones */
#define GPU_PACKERS 1024     /* threads of attention_documents */

/* Documents as packed sequences: of tokens [row][token] that follow each other, those of one
   document. If there are more than `most`, or two of a row have one id, there are no sequences, and
   *unpacked is 1. */
struct gpu_packing {
    const int32_t *documents; /* [rows][tokens] */
    int32_t *first;           /* [most]: the first token, for the kernel itself */
    int32_t *lengths;         /* [most]; 0: there is none */
    int64_t *begins;          /* [tensors][pitch]: elements before a sequence, most + 1 of them */
    int32_t *unpacked;
    int64_t rows, tokens, most, pitch;
    int64_t stride[GPU_PACKED]; /* of a token, in each tensor */
    int32_t tensors;
};

/* of_rows[row, head, token] = of_tokens[row, token, head], or the other way round */
struct gpu_pack_statistics {
    float *of_rows, *of_tokens;
    int64_t rows, tokens, heads;
    int32_t pack; /* write of_tokens */
};

/* Tokens of [batch, tokens, heads, size] but [from, to) become 0, and their lse -infinity. */
struct gpu_unseen {
    void *x;
    float *lse; /* NULL: not wanted */
    int64_t stride[3], batch, tokens, from, to;
    int32_t heads, size, kind;
};

/* cache[b, position, g, d] = x[b, t, g, d] */
struct gpu_cache_write {
    void *cache;
    const void *x;
    const int32_t *positions;
    int64_t cache_stride[3], stride[3], slots, tokens, rows; /* rows: batch x tokens x groups */
    int32_t groups, bytes;                                   /* of a vector */
    struct ct_cuda_fault *fault;
};

struct gpu_attention_merge {
    void *o;
    float *lse;
    const void *a, *b;
    const float *a_lse, *b_lse;
    int64_t batch, tokens, heads, size;
    int32_t a_kind, out_kind;
};

/* attention_sink, and its gradient */
struct gpu_sink {
    const void *x, *y; /* o; dy and y */
    const float *lse;
    const void *sink;
    void *out;    /* y; do */
    float *dsink; /* by row */
    int64_t rows, tokens, heads;
    int64_t x_stride[3], y_stride[3], out_stride[3], lse_stride[2];
    int32_t size, lanes; /* lanes: threads of a row, a power of two */
    int32_t accumulate;  /* into do */
};

/* ---- optimizer ---- */

#define GPU_TENSORS 64 /* in one launch */
#define GPU_GRAIN 8192 /* elements of a block */

/* Block i works on the tensor t with first_block[t] <= i < first_block[t + 1]. */
struct gpu_squares {
    double *sums; /* by block */
    const void *tensor[GPU_TENSORS];
    int64_t count[GPU_TENSORS];
    int32_t first_block[GPU_TENSORS + 1];
    uint8_t kind[GPU_TENSORS];
    int32_t tensors;
};

struct gpu_add_doubles {
    double *out;
    const double *in;
    int64_t count;
    int32_t accumulate;
};

#define GPU_NORMS 64
struct gpu_clip {
    float *norm, *coefficient;
    const double *in[GPU_NORMS];
    int32_t count;
    double max_norm;
};

struct gpu_withhold {
    float *out;
    const float *coefficient, *norm, *count;
    const double *norm_limit, *loss_limit;
    const void *loss;
    int32_t wide; /* the loss is float64 */
};

/* Scalars of a step of AdamW, made by one thread. */
struct gpu_adamw_step {
    float decay, step_size, root_correction, clip;
};

struct gpu_adamw_begin {
    struct gpu_adamw_step *step;
    const double *lr, *number;
    const float *clip;
    double beta1, beta2, weight_decay, lr_factor;
};

struct gpu_adamw {
    const struct gpu_adamw_step *step;
    void *tensor[GPU_TENSORS][5]; /* p, g, m, v, copy; NULL: no copy */
    int64_t count[GPU_TENSORS];
    int32_t first_block[GPU_TENSORS + 1];
    uint8_t kind[GPU_TENSORS][5];
    int32_t tensors;
    float beta1, beta2, rest1, rest2, eps;
};

/* Rows of `blocks` blocks of `count` elements; size, offset, global: of this rank's shard, where
   it begins, of the whole. */
struct gpu_adamw_codes {
    const struct gpu_adamw_step *step;
    const double *number;
    void *p, *m, *v;
    const void *g;
    float *m_scale, *v_scale;
    int64_t rows, blocks, count, size[6], offset[6], global[6];
    int32_t dims, coded, p_kind, g_kind; /* coded: moments are e4m3, else float32 */
    float beta1, beta2, rest1, rest2, eps;
};

struct gpu_average {
    float *average;
    const void *p;
    const double *step;
    int64_t count;
    double decay;
    int32_t kind;
};

struct gpu_sign_step {
    void *p;
    const void *g;
    const float *clip;
    int64_t count;
    int32_t kind[2]; /* of p, g */
    float rate;
};

struct gpu_muon {
    void *y, *m; /* m: the momentum, or the parameter */
    const void *x;
    const double *lr, *squares;
    const float *clip;
    int64_t count;
    int32_t kind[3]; /* of y, x, m */
    float keep, rest;
};

struct gpu_muon_polynomial {
    void *to; /* of kind; of_x x + of_y y. It may be y in float32 */
    const float *x, *y;
    int64_t count;
    float of_x, of_y;
    int32_t kind;
};

/* ---- float8 ---- */

enum { GPU_PER_TENSOR, GPU_PER_ROW, GPU_PER_COLUMN, GPU_PER_ROW_BLOCK, GPU_PER_COLUMN_BLOCK };

#define GPU_FLOAT8_PART 16384 /* elements of a block that finds the largest of all */
#define GPU_FLOAT8_FEW 65536  /* float32 of which one block finds the largest */
#define GPU_FLOAT8_STRIP 128  /* rows of a block that finds the largest of columns */
#define GPU_FLOAT8_VECTOR 8   /* columns of a thread */
#define GPU_FLOAT8_ROWS 128   /* of a tile that is transposed */
#define GPU_FLOAT8_COLUMNS 64 /* likewise */

enum { GPU_SCALE_EXACT, GPU_SCALE_POWER_OF_TWO, GPU_SCALE_MX_FLOOR, GPU_SCALE_MX_RCEIL };

struct gpu_float8_scale {
    float *scale, *inverse; /* inverse NULL: not wanted */
    const float *amax;
    int64_t count;
    float most; /* the dtype's largest number */
    int32_t rule;
};

struct gpu_float8_amax {
    float *amax;
    float *rows_of; /* of each row of a block's columns */
    float *partial; /* of parts; of strips, NULL: there is one */
    const void *x;
    int64_t rows, columns, count, parts, strip; /* count: of all elements */
    int32_t shift;                              /* of blocks: 2^shift numbers of a row or column */
    struct gpu_float8_scale made;               /* in place of amax; scale NULL: none */
};

struct gpu_float8_cells { /* parts of x that have a scale each */
    const float *scale;
    int32_t per, shift; /* GPU_PER_*; shift: of blocks */
};

/* q[rows, columns] and transposed[columns, rows] of x; NULL: not wanted. */
struct gpu_float8_quantise {
    uint8_t *q, *transposed;
    const void *x;
    int64_t rows, columns;
    struct gpu_float8_cells of_q, of_transposed;
};

struct gpu_float8_turn { /* to[columns, rows] = from[rows, columns]; multiples of 4 */
    uint8_t *to;
    const uint8_t *from;
    int64_t rows, columns;
};

/* to[i] = 1 / from[i], or 1 / from[0]: of both operands of a product. */
struct gpu_float8_invert {
    float *to[2];
    const float *from[2];
    int64_t count[2];
    int32_t one[2];
};

/* ---- blocks with a scale each, of MXFP8 and NVFP4 ---- */

#define GPU_SCALES_OUTER 128 /* rows of a tile of stored scales */
#define GPU_SCALES_INNER 4   /* blocks of a tile, along the sum */
#define GPU_NVFP4_SHIFT 4
#define GPU_NVFP4_BLOCK                                                                            \
    (1 << GPU_NVFP4_SHIFT) /* numbers with a scale; tokens transformed together */
#define GPU_NVFP4_SIDE 64  /* of a tile of codes that is transposed */

/* Stored scales of both operands of a product in cuBLASLt's tiles, from those by which numbers were
   multiplied. With NVFP4, factor: what the product is multiplied by, and what c is. */
struct gpu_block_scales {
    uint8_t *to[2];
    const float *from[2], *amax[2]; /* amax: of the tensor; NULL: E8M0 */
    int64_t outer[2];               /* rows along which the product sums */
    int64_t inner;                  /* blocks of such a row */
    float *factor;
    int32_t turned[2]; /* from[inner][outer] */
    int32_t accumulate;
};

/* to[i][k] = e2m1 of from[i][k], two to a byte, or of from[k][i]; rows of `stride` bytes, filled up
   with zeros. As e2m1 has no NaN, one becomes that of its block's stored scale. */
struct gpu_nvfp4_pack {
    uint8_t *to, *scales;
    const uint8_t *from;         /* float8_e4m3 of the same numbers */
    int64_t rows, depth, stride; /* rows of `to`, and numbers of each */
};

struct gpu_nvfp4_scale {
    float *scale;
    const float *amax, *amax_of_tensor;
    int64_t rows, columns;
    int32_t share; /* GPU_SHARE_* */
};
enum { GPU_SHARE_NONE, GPU_SHARE_ROWS, GPU_SHARE_COLUMNS };

struct gpu_nvfp4_quantise {
    uint8_t *q;
    const void *x;
    const float *scale;
    const int32_t *ordinals;      /* NULL: to nearest even */
    int64_t rows, columns, first; /* first: of the columns, in the whole */
    uint64_t seed, stream;
    int32_t per, shift, kind;
};

struct gpu_hadamard {
    void *y;
    const void *x;
    int64_t blocks, columns;
    uint32_t negative; /* signs: bit i is set if element i is negated */
    int32_t kind;
};

/* ---- init ---- */

struct gpu_init {
    void *out;
    int64_t count, size[6], offset[6], global[6];
    uint64_t seed, stream;
    double std, truncate, value; /* of uniform numbers: value the smallest, std their range */
    int32_t rank, kind;
};

#endif
