/* Shared by the sources that call oneDNN: one engine, statuses as failures, matrices. */
#ifndef CPU_ONEDNN_H
#define CPU_ONEDNN_H

#include <dnnl.h>

#include "gemm.h"

extern dnnl_engine_t cpu_onednn_engine;
extern dnnl_stream_t cpu_onednn_stream;

/* Returns 0, or a failure that names `what` could not be created. */
int cpu_onednn_check(dnnl_status_t status, const char *what);

dnnl_data_type_t cpu_onednn_type(enum ct_dtype dtype);

int cpu_onednn_matrix(dnnl_memory_desc_t *md, int64_t rows, int64_t columns, enum ct_dtype dtype,
                      int64_t row_stride, int64_t column_stride);

/* A product whose scratchpad the caller provides. */
int cpu_onednn_product(dnnl_primitive_desc_t *out, const dnnl_memory_desc_t *a,
                       const dnnl_memory_desc_t *b, const dnnl_memory_desc_t *c, bool accumulate);

/* The layout of a packed weight w[n, k] for a use. */
int cpu_onednn_packed(dnnl_memory_desc_t *md, enum cpu_use use, int64_t n, int64_t k,
                      enum ct_dtype dtype);

#endif
