/* Declarations that the sources that build a graph share. */
#ifndef DECODER_BUILD_H
#define DECODER_BUILD_H

#include "decoder.h"

/* State while one graph is built; the functions of lib/decoder take its first member. */
struct build {
    struct ct_decoder d;
    const struct ct_model *m;
    int64_t like;               /* layer whose kind the current one has */
    struct ct_value *head_bias; /* NULL: not yet there, or none */
    struct ct_mixture mixture;
    struct ct_mixture_sums sums;
};

/* The mixer of a linear layer, applied to h, which is normed (linear.c). */
struct ct_value *linear_mixer(struct build *s, struct ct_value *h);
/* The same of a gated convolution (conv.c). */
struct ct_value *gated_conv(struct build *s, struct ct_value *h);

#endif
