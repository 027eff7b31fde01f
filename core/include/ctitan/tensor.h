/*
 * Tensors as kernels see them: an address, a dtype, a shape and strides.
 *
 * Strides count elements, not bytes. The last dimension usually has stride 1, but this is not
 * guaranteed: a kernel that needs it checks it in its `accepts`. A scalar has ndim 0 and one
 * element. Nothing here owns memory.
 *
 * Elements may be smaller than a byte: uint4 is the codes of numbers in 4 bits, two in a byte, the
 * first in the high half. Each row (the last dimension) begins with a byte of its own: dense rows
 * of an odd number of codes have a stride of one more, and a shard is a tensor like others wherever
 * the whole was split. So sizes in bytes are those of a shape, not of a count: ct_dtype_bytes.
 * Such a tensor moves in whole rows. An op whose signature has 'A' refuses it unless it is of
 * CT_OP_PACKED. What the codes mean is the matter of the op that has them as an operand.
 */
#ifndef CT_TENSOR_H
#define CT_TENSOR_H

#include <ctitan/number.h>

CT_BEGIN_DECLS

#define CT_MAX_DIMS 6

/* id, name as in recipes and graph text, bits, whether it is a floating-point type */
#define CT_DTYPES(X)                                                                               \
    X(F32, "float32", 32, 1)                                                                       \
    X(BF16, "bfloat16", 16, 1)                                                                     \
    X(F64, "float64", 64, 1)                                                                       \
    X(F16, "float16", 16, 1)                                                                       \
    X(E4M3, "float8_e4m3", 8, 1)                                                                   \
    X(E5M2, "float8_e5m2", 8, 1)                                                                   \
    X(I32, "int32", 32, 0)                                                                         \
    X(I64, "int64", 64, 0)                                                                         \
    X(U8, "uint8", 8, 0)                                                                           \
    X(U4, "uint4", 4, 0)

enum ct_dtype {
#define X(id, name, bytes, floating) CT_##id,
    CT_DTYPES(X)
#undef X
        CT_DTYPE_COUNT
};

struct ct_shape {
    int ndim;
    int64_t size[CT_MAX_DIMS];
};

struct ct_tensor {
    void *data;
    enum ct_dtype dtype;
    int ndim;
    int64_t shape[CT_MAX_DIMS];
    int64_t stride[CT_MAX_DIMS];
};

/* "bfloat16": the name as in recipes and graph text. */
CT_API const char *ct_dtype_name(enum ct_dtype dtype);
/* Bits of an element. */
CT_API int ct_dtype_bits(enum ct_dtype dtype);
/* Bytes of an element. The dtype has at least a byte. */
CT_API size_t ct_dtype_size(enum ct_dtype dtype);
/* Bytes of a dense tensor. Rows are of whole bytes. */
CT_API size_t ct_dtype_bytes(enum ct_dtype dtype, int ndim, const int64_t *shape);
/* True for floating-point dtypes, those of 8 bits included. */
CT_API bool ct_dtype_is_float(enum ct_dtype dtype);

/* The dtype called name; CT_EINVAL with the nearest name if there is none. */
CT_API int ct_dtype_parse(const char *name, enum ct_dtype *dtype);

/* A shape with these sizes; ndim is at most CT_MAX_DIMS. */
CT_API struct ct_shape ct_shape_of(int ndim, const int64_t *sizes);
/* "8,256": sizes separated by commas; "" for a scalar. Prints as snprintf does; CT_EINVAL. */
CT_API int ct_shape_print(const struct ct_shape *shape, char *text, size_t room);
CT_API int ct_shape_parse(const char *text, struct ct_shape *shape);
/* Product of the dimensions; 1 for a scalar; INT64_MAX if it is larger. */
CT_API int64_t ct_shape_count(int ndim, const int64_t *shape);
/* Number of elements. */
CT_API int64_t ct_tensor_count(const struct ct_tensor *t);

/* A dense row-major tensor over data. */
CT_API struct ct_tensor ct_tensor_dense(void *data, enum ct_dtype dtype, int ndim,
                                        const int64_t *shape);
/* True: elements are contiguous in row-major order, and rows of smaller ones end with a byte. */
CT_API bool ct_tensor_is_dense(const struct ct_tensor *t);
/* Bytes of a dense tensor. */
CT_API size_t ct_tensor_bytes(const struct ct_tensor *t);
/* Bytes from the first element to the end of the last one; t has elements. */
CT_API size_t ct_tensor_extent(const struct ct_tensor *t);
/* The bytes of a dense tensor of elements smaller than a byte, as uint8: rows of whole bytes. Other
   tensors are returned as they are. */
CT_API struct ct_tensor ct_tensor_packed(const struct ct_tensor *t);

/* A tensor as a matrix: the last dimension gives the columns, the others the rows. stride is the
   distance of rows in elements; within a row the stride is 1. */
struct ct_matrix {
    int64_t rows, columns, stride;
};
/* False: the rows do not have one common stride, or overlap, or are not contiguous. */
CT_API bool ct_tensor_as_matrix(const struct ct_tensor *t, struct ct_matrix *matrix);

/*
 * One element as a double, whatever the dtype, by its row-major index in the shape (strides are
 * honoured). For reference kernels and tests: slow, exact, any dtype. Stores round to nearest even;
 * float8 saturates.
 */
CT_API double ct_tensor_load(const struct ct_tensor *t, int64_t index);
CT_API void ct_tensor_store(const struct ct_tensor *t, int64_t index, double value);

CT_END_DECLS

#endif
