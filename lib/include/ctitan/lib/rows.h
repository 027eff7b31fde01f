/*
 * Formulas as kernels: written as code in the language of rows (compiler.h), and run in host
 * memory.
 *
 * plugins/fuse writes chains of ops and has them compiled while a graph is lowered. The program
 * `formula-kernels` writes the op types of a plugin while that is built, once for all instruction
 * sets (cpu.h): every type with a formula that it registers or offers gets a kernel for the cpu.
 */
#ifndef CT_ROWS_H
#define CT_ROWS_H

#include <ctitan/pointwise.h>
#include <ctitan/lib/compiler.h>

CT_BEGIN_DECLS

/* ---- writing ---- */

/* Formulas, applied one after the other, over inputs and outputs of these dtypes. */
struct ct_rows_program {
    struct ct_pointwise p;
    int outs, out[CT_COMPILED_OUTPUTS]; /* nodes */
    int ins;
    enum ct_dtype in_dtype[CT_COMPILED_INPUTS], out_dtype[CT_COMPILED_OUTPUTS];
};

struct ct_rows_code {
    char *text;   /* a ROW_KERNEL, without the header that it needs */
    char *levels; /* of inputs, then of outputs: '0' + CT_BY_ROW, ..; '0' where none is read */
    int buffers;  /* rows of float32 that a call needs besides its operands */
    int sums;     /* outputs that are sums over rows, in the order of the outputs */
    bool flat;    /* neither rows nor columns matter */
};

#define CT_ROWS_KEPT 1u  /* rows in scratch memory are cheaper than computing values again */
#define CT_ROWS_ADDED 2u /* results may be added to what is there: ADDS(i), host memory only */

/* code is in arena. A node is of the level of its output; an output with columns only is a
   column_sum, rounded or not. */
CT_API void ct_rows_write(const struct ct_rows_program *program, unsigned flags,
                          struct ct_arena *arena, struct ct_rows_code *code);
/* Passes over a row that the program's reductions need; ct_rows_write takes at most 32. */
CT_API int ct_rows_count_passes(const struct ct_rows_program *program, struct ct_arena *arena);
#define CT_ROWS_PASSES 32
/* Input k in the text of a program is called by its level and number: x0 varies along rows and
   columns, r1 along rows, c2 along columns, s3 along neither. */
#define CT_ROWS_LEVELS "scrx" /* by level */
/* The program as a formula of its inputs, for y0, y1, ..; in arena. NULL: no memory. */
CT_API char *ct_rows_text(const struct ct_rows_program *program, struct ct_arena *arena);

/* ---- running, in host memory ---- */

/* Rows [row, row_end) of columns [column, column_end), which are all of them unless the code is
   flat. scratch: `buffers` rows; sums: `sums` rows, zeroed before the first call. add: bit i: add
   to output i. */
typedef void ct_rows_function(const struct ct_compiled_operand *in,
                              const struct ct_compiled_operand *out, int64_t row, int64_t row_end,
                              int64_t column, int64_t column_end, float *scratch, float *sums,
                              uint32_t add);

struct ct_rows_kernel {
    ct_rows_function *function;
    int buffers, sums; /* of its code */
    bool flat;
};

/* A kernel for operands of certain levels. */
struct ct_rows_call {
    struct ct_rows_kernel kernel;
    const char *levels; /* as in its code */
    int ins, outs;
    float number[CT_COMPILED_INPUTS]; /* inputs of the kernel behind those of the op */
    int numbers;
};

/* Bytes that ct_rows_run needs at l->workspace, for operands of the same shapes. */
CT_API size_t ct_rows_workspace(const struct ct_rows_call *call, const struct ct_tensor *in,
                                const struct ct_tensor *out);
/* `run` of a kernel whose state is a struct ct_rows_call: run it on l's operands, whose strides may
   be any with a last one of 1. Outputs with columns alone may be float32 or bfloat16; what is added
   is what l->accumulate says. Rows are divided into blocks whose number depends on the rows alone,
   so that results do not depend on the number of threads. */
CT_API int ct_rows_run(const struct ct_launch *l);

/* ---- kernels that were written when a plugin was built ---- */

/* One of the functions of an op type. */
struct ct_rows_variant {
    const char *dtypes;  /* of operands, inputs first: f, b, d (float64), '-' absent, '*' f or b */
    const char *levels;  /* of operands, as in its code */
    const char *choices; /* of attributes that are truth values or enumerations: a digit each */
    struct ct_rows_kernel kernel;
};

/* An op type in one instruction set. */
struct ct_rows_formula {
    const char *op;
    int ins, outs;
    const struct ct_rows_variant *variant; /* ended by {0} */
};

/* `accepts` and `prepare` of kernels that ct_rows_run runs, on a list of formulas that {0} ends. */
CT_API bool ct_rows_accepts(const struct ct_rows_formula *list, const struct ct_prepare *p);
CT_API int ct_rows_prepare(const struct ct_rows_formula *list, struct ct_prepare *p);

/* The table that `formula-kernels` writes; each plugin with `formulas = yes` in its Makefile
   (share/ctitan/kit/plugin.mk) has its own. {CT_KERNELS, "cpu", formula_kernels} offers it. */
extern const struct ct_kernel formula_kernels[];

CT_END_DECLS

#endif
