/*
 * Graphs of cuDNN, through its backend interface: tensors with four dimensions and any strides,
 * operations on them, a plan for the whole, which cuDNN compiles to one or a few kernels. The
 * matrices of a packed tensor begin where another tensor says, instead of one stride after the
 * other.
 *
 * A graph is described once, for a shape; tensors that are not virtual get an id, by which their
 * addresses are given at each run. The first failure is kept: later calls do nothing.
 */
#ifndef GPU_DNN_H
#define GPU_DNN_H

#include "dnn_library.h"
#include "gpu.h"

#define DNN_DESCRIPTORS 256
#define DNN_OPERATIONS 40

struct dnn_graph {
    cudnnBackendDescriptor_t all[DNN_DESCRIPTORS]; /* of which these are operations: */
    cudnnBackendDescriptor_t operation[DNN_OPERATIONS];
    cudnnBackendDescriptor_t plan;
    int descriptors, operations;
    int virtuals;    /* tensors without an id of their own */
    uint64_t hash;   /* of all that was described; equal for equal graphs */
    int passed_over; /* engines that the heuristic ranked higher, but that gave no plan */
    size_t workspace;
    int status;
};

typedef cudnnBackendDescriptor_t dnn_tensor;

/* CT_ENOENT: cuDNN 9 is not installed. */
int dnn_load(void);
/* 91900: 9.19.0. After dnn_load. */
int dnn_version(void);

/* id 0: virtual. type: CUDNN_DATA_* */
dnn_tensor dnn_tensor_new(struct dnn_graph *g, int64_t id, int type, const int64_t size[4],
                          const int64_t stride[4]);
/* The elements of index i of the first dimension begin at offsets[i]: int64, one more than the
   first dimension. */
dnn_tensor dnn_packed_tensor_new(struct dnn_graph *g, int64_t id, int type, const int64_t size[4],
                                 const int64_t stride[4], dnn_tensor offsets);
/* One float, given by value at each run. */
dnn_tensor dnn_scalar_new(struct dnn_graph *g, int64_t id);
/* y = mode(x, b, t); b and t may be NULL. axis: of CUDNN_POINTWISE_GEN_INDEX, else -1. */
void dnn_pointwise(struct dnn_graph *g, int mode, int precision, dnn_tensor x, dnn_tensor b,
                   dnn_tensor t, dnn_tensor y, int axis);
/* c = a b, for each matrix of only so many rows, columns and inner elements as these tensors of
   int32 say; NULL: of all. */
struct dnn_extent {
    dnn_tensor rows, columns, inner;
    bool zero_outside; /* of c */
};
void dnn_matmul(struct dnn_graph *g, dnn_tensor a, dnn_tensor b, dnn_tensor c,
                const struct dnn_extent *extent);
void dnn_reduce(struct dnn_graph *g, int op, dnn_tensor x, dnn_tensor y);
void dnn_reshape(struct dnn_graph *g, dnn_tensor x, dnn_tensor y);

/* Find a plan for the operations on this device (properties: cuDNN's text about one, instead of
   handle, to see what plan there would be). CT_EINVAL: cuDNN has none. */
int dnn_graph_plan(struct dnn_graph *g, cudnnHandle_t handle, const char *properties);
/* A plan as text, and the plan of such a text, in the place of dnn_graph_plan; the operations must
   be those that it was made for. Negative: cuDNN gives none, or does not take it. */
int dnn_graph_text(const struct dnn_graph *g, struct ct_arena *arena, char **text, size_t *size);
int dnn_graph_restore(struct dnn_graph *g, cudnnHandle_t handle, const char *properties,
                      const char *text, size_t size);
void dnn_graph_destroy(struct dnn_graph *g);

/* addresses[i] is that of the tensor ids[i]; of scalars, on the host. */
int dnn_run(const struct dnn_graph *g, cudnnHandle_t handle, void *stream, const int64_t *ids,
            void **addresses, int count, void *workspace);

int dnn_handle_create(cudnnHandle_t *handle);
void dnn_handle_destroy(cudnnHandle_t handle);

#endif
