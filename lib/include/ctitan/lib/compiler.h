/*
 * Compilers of devices: what one plugin writes as source code becomes kernels of another's device.
 *
 * A device's plugin offers {CT_COMPILER, "device's name", &compiler}. The source is written in the
 * language of rows below, which is C or C++ with a few macros and functions. The compiler's header,
 * included as CT_COMPILER_HEADER, defines them for the device, so the source names no device.
 *
 * The language of rows. ROW_KERNEL { .. } is the one function of a source. It goes over rows of
 * columns, and is called by one worker (a block of threads, say) of many:
 *
 *     in[k], out[k]           operands: .data, .stride (elements from row to row)
 *     FOR_ROWS(i)             the worker's rows
 *     FOR_COLUMNS(j)          LANES columns from j on; those from column_end on do not exist
 *     FOR_STEPS(j, s)         the same, for reductions: s numbers partial results
 *     PARTS(p, x)             partial results p[], which begin as x
 *     total(p), largest(p)    of all partial results; outside of loops over columns
 *     SUM(k)                  LANES-wise sums over the worker's rows: addressed by j, zero at first
 *     ROW_RESULTS             before a statement that stores results of row i
 *
 * Types: vf is LANES floats with + - * /, also with one float; vh is LANES bfloat16. v_set(x),
 * v_get(dtype, p, j, column_end) and v_put(dtype, p, j, column_end, x) for dtype CT_F32 (float *p)
 * and CT_BF16 (uint16_t *p), v_narrow, v_widen, put_narrow(p, j, column_end, vh), first(x, n, rest)
 * (the first n lanes of x, the others are rest), v_max, widen and narrow (of one number), and the
 * functions of formulas (pointwise.h) by name: f_exp of a float, w_exp of a vf. One worker does all
 * columns of its rows, and each lane reads and writes the same columns in all loops.
 */
#ifndef CT_COMPILER_H
#define CT_COMPILER_H

#include <ctitan/op.h>

CT_BEGIN_DECLS

#define CT_COMPILER_HEADER "rows.h"
#define CT_COMPILED_INPUTS 16
#define CT_COMPILED_OUTPUTS CT_MAX_DIMS

/* One call of a compiled kernel on rows x columns elements. */
struct ct_compiled_call {
    struct ct_compiled_operand {
        void *data;
        int64_t stride;
    } in[CT_COMPILED_INPUTS], out[CT_COMPILED_OUTPUTS];
    int64_t rows, columns;
    bool flat; /* one row, whose columns several workers may share */
    /* Sums over rows: SUM(k) of all workers is added up into sum[k], of dtype float32 or bfloat16.
     */
    int sums;
    void *sum[CT_COMPILED_OUTPUTS];
    enum ct_dtype sum_dtype[CT_COMPILED_OUTPUTS];
    float *scratch; /* of workers x sums x columns elements */
};

struct ct_compiler_ops {
    size_t size; /* of this struct */
    /* The compiler, its version, the device's architecture and the header: the object depends on
       them and the source. CT_ENOENT: the compiler is not installed; says what is missing. */
    int (*version)(struct ct_device *device, char *text, size_t room);
    /* Compile a source to an object in the arena. CT_EIO: the compiler's words. */
    int (*compile)(struct ct_device *device, const char *source, struct ct_arena *arena,
                   void **object, size_t *bytes);
    /* The function of an object, valid until the device is closed. */
    int (*load)(struct ct_device *device, const void *object, size_t bytes, void **function);
    /* Workers for rows of columns: a function of the sizes and the device alone. */
    int64_t (*workers)(struct ct_device *device, int64_t rows, int64_t columns);
    /* Enqueue a call on the launch's stream. */
    int (*launch)(const struct ct_launch *l, void *function, const struct ct_compiled_call *call);
};

CT_END_DECLS

#endif
