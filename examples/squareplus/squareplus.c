/*
 * An op that is its formula: y = (x + sqrt(x^2 + bend)) / 2, a smooth relu (Barron 2021). Its
 * reference, its gradient, the kernels for each instruction set of CPUs, and the code of `fuse`
 * follow from it. A model adds it to its graph with ct_emit1(b, "squareplus", name, &x, 1, &attrs).
 */
#include <ctitan/lib/rows.h>
#include <ctitan/plugin.h>

struct attrs {
    double bend;
};

static const struct ct_option attrs[] = {
    CT_OPT_FLOAT(struct attrs, bend, "bend", "4", 1e-6, 1e6, "How wide the bend at 0 is, squared"),
    {0}};

/* '.' is any number of dimensions, and T any floating dtype: shapes, dtypes and how ranks may split
   x follow from that. y may take the memory of x. */
static const struct ct_op_type op_type = {
    .size = sizeof(struct ct_op_type),
    .name = "squareplus",
    .summary = "(x + root of x^2 + bend) / 2",
    .signature = "x[.] T -> y[.] T",
    .attrs = attrs,
    .attrs_size = sizeof(struct attrs),
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    CT_FORMULA("y = (x + sqrt(x * x + bend)) / 2"),
};

CT_PLUGIN(.name = "squareplus", .version = "1.0", .summary = "Op: a smooth relu, by its formula",
          .offers = CT_OFFERS({CT_OP, "squareplus", &op_type},
                              {CT_KERNELS, "cpu", formula_kernels}));
