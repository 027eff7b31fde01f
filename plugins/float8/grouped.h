/*
 * Matrices of an expert, rounded to 8 bits and back, and their products: for float8.experts on
 * CPUs.
 */
#ifndef FLOAT8_GROUPED_H
#define FLOAT8_GROUPED_H

#include <ctitan/op.h>

#include "float8.h"

/* The numbers of a matrix that share a scale: blocks of so many rows and columns; 0: all. */
struct float8_tile {
    int64_t rows, columns;
    enum float8_rule rule;
};

/* Tiles of the operands of a recipe's products. Tokens are rows of x, h and of gradients. */
struct float8_tiles {
    struct float8_tile token;    /* of rows, summed over along them */
    struct float8_tile weight;   /* of w in x w^T */
    struct float8_tile weight_t; /* of w in dy w */
    struct float8_tile column;   /* of rows that are summed over themselves: a gradient of w */
};

/* Replace each number of x[rows, columns] by the one that its code and its scale stand for. */
void float8_round_trip(const struct ct_launch *l, float *x, int64_t rows, int64_t columns,
                       const struct float8_tile *tile);

/* c[m, n] = a[m, k] b[n, k]^T, and c[m, n] (+)= a[m, k] b[k, n]. */
void float8_multiply_nt(const struct ct_launch *l, float *c, const float *a, const float *b,
                        int64_t m, int64_t n, int64_t k);
void float8_multiply_nn(const struct ct_launch *l, float *c, const float *a, const float *b,
                        int64_t m, int64_t n, int64_t k, bool add);
/* c[m, n] = a[k, m]^T b[k, n] */
void float8_multiply_tn(const struct ct_launch *l, float *c, const float *a, const float *b,
                        int64_t m, int64_t n, int64_t k);

#endif
