/* Offloading: the ops between the device's memory and its host memory. */
#ifndef OFFLOAD_H
#define OFFLOAD_H

#include <ctitan/op.h>

extern const struct ct_op_type offload_op_load, offload_op_store, offload_op_offload;

/* A copy, on the device, of what is offloaded. */
struct ct_value *offload_load(struct ct_builder *b, const char *name, struct ct_value *x);
/* Puts x, of the device, in the place of y, which is offloaded. */
struct ct_op *offload_store(struct ct_builder *b, struct ct_value *y, struct ct_value *x);
/* A copy of x that is offloaded. */
struct ct_value *offload_out(struct ct_builder *b, const char *name, struct ct_value *x);

#endif
