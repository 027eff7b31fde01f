/*
 * The scores of sequences, which the program of validation computes for any objective that hands
 * out logits: for each sequence of a microbatch, sums over its labels that are not masked.
 */
#ifndef SCORES_H
#define SCORES_H

#include <ctitan/op.h>
#include <ctitan/pass.h>

/* The fetches, [sequences]. */
#define SCORE_LOGP "eval.logp"   /* log-probability of the labels */
#define SCORE_WRONG "eval.wrong" /* labels that are not the likeliest token */
#define SCORE_TOKEN "eval.token" /* numbers of the likeliest tokens */

extern const struct ct_op_type scores_type;
extern const struct ct_kernel scores_kernels[], scores_cuda_kernels[];
extern const struct ct_cuda_code eval_cuda_code;
extern const struct ct_transform scores_transform;

#endif
