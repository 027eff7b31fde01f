/*
 * Ops that only some decoders have. Each is a formula, from which the rest follows.
 */
#include <ctitan/pointwise.h>
#include <ctitan/op_author.h>

#include "decoder.h"

#define OVER_FIRST ((const int8_t[][2]){{0, 0}, {-1, -1}})

/* ---- soft cap ---- */

struct cap {
    double cap;
};

static const struct ct_option cap_attrs[] = {
    CT_OPT_FLOAT(struct cap, cap, "cap", "50", 1e-6, 1e9, "Largest magnitude of a result"), {0}};

const struct ct_op_type op_soft_cap = {
    .size = sizeof(struct ct_op_type),
    .name = "soft_cap",
    .summary = "cap tanh(x / cap)",
    .signature = "x[.] T -> y[.] T",
    .samples = "cap=2: real[2,4,6]",
    .attrs = cap_attrs,
    .attrs_size = sizeof(struct cap),
    .inplace = OVER_FIRST,
    CT_FORMULA("y = cap * tanh(x / cap)"),
};

struct ct_value *soft_cap(struct ct_builder *b, const char *name, struct ct_value *x, double cap)
{
    return ct_emit_type1(b, &op_soft_cap, name, &x, 1, &(struct cap){cap});
}

/* ---- clip ---- */

struct most {
    double most;
};

static const struct ct_option most_attrs[] = {
    CT_OPT_FLOAT(struct most, most, "most", "1", 0, 1e300, "Largest magnitude of a result"), {0}};

const struct ct_op_type op_clip = {
    .size = sizeof(struct ct_op_type),
    .name = "clip",
    .summary = "x between -most and most",
    .signature = "x[.] T -> y[.] T",
    .samples = "most=0.7: real[2,4,6]",
    .attrs = most_attrs,
    .attrs_size = sizeof(struct most),
    .inplace = OVER_FIRST,
    CT_FORMULA("y = x > most ? most : x < 0 - most ? 0 - most : x"),
};

struct ct_value *clip(struct ct_builder *b, const char *name, struct ct_value *x, double most)
{
    return ct_emit_type1(b, &op_clip, name, &x, 1, &(struct most){most});
}

/* ---- relu, and its square ---- */

struct relu {
    bool squared;
};

static const struct ct_option relu_attrs[] = {
    CT_OPT_BOOL(struct relu, squared, "squared", "false", "The square of what is above 0"), {0}};

const struct ct_op_type op_relu = {
    .size = sizeof(struct ct_op_type),
    .name = "relu",
    .summary = "max(x, 0), or its square",
    .signature = "x[.] T -> y[.] T",
    .samples = "squared=false: real[2,4,6]; squared=true: real[2,4,6]",
    .attrs = relu_attrs,
    .attrs_size = sizeof(struct relu),
    .inplace = OVER_FIRST,
    CT_FORMULA("r = max(x, 0); y = squared ? r * r : r"),
};

struct ct_value *relu(struct ct_builder *b, const char *name, struct ct_value *x, bool squared)
{
    return ct_emit_type1(b, &op_relu, name, &x, 1, &(struct relu){squared});
}

/* ---- rows without mean, of deviation 1 ---- */

static const struct ct_option whiten_attrs[] = {
    CT_OPT_FLOAT(struct ct_layer_norm, eps, "eps", "1e-05", 0, 1, "Added to the variance"), {0}};

const struct ct_op_type op_whiten = {
    .size = sizeof(struct ct_op_type),
    .name = "whiten",
    .summary = "(x - mean) / standard deviation, of rows",
    .signature = "x[.K] T -> y[.K] T, mean[.] W, rstd[.] W",
    .samples = "eps=0.01: real[2,4,6]",
    .attrs = whiten_attrs,
    .attrs_size = sizeof(struct ct_layer_norm),
    CT_FORMULA("mean = row_mean(x); c = x - mean; rstd = 1 / sqrt(row_mean(c * c) + eps);"
               "y = c * rstd"),
};

struct ct_value *whiten(struct ct_builder *b, const char *name, struct ct_value *x, double eps)
{
    return ct_emit_type1(b, &op_whiten, name, &x, 1, &(struct ct_layer_norm){eps});
}

const struct ct_op_type op_scale_columns = {
    .size = sizeof(struct ct_op_type),
    .name = "scale_columns",
    .summary = "x times a number for each column",
    .signature = "x[.K] T, w[K] T -> y[.K] T",
    .samples = "real[2,4,6] real[6]",
    .inplace = OVER_FIRST,
    CT_FORMULA("y = x * w"),
};

struct ct_value *scale_columns(struct ct_builder *b, const char *name, struct ct_value *x,
                               struct ct_value *w)
{
    return ct_emit_type1(b, &op_scale_columns, name, (struct ct_value *[]){x, w}, 2, NULL);
}
