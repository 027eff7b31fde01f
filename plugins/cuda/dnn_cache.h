/* Plans of cuDNN, kept in files for later runs (dnn_cache.c says where). */
#ifndef GPU_DNN_CACHE_H
#define GPU_DNN_CACHE_H

#include "dnn.h"

/* dnn_graph_plan on the device, or the plan that an earlier run made of the same graph. Sets *added
   if it was made here. */
int dnn_cache_plan(struct gpu *gpu, struct dnn_graph *g, cudnnHandle_t handle, bool *added);
/* Removes plans that nobody has read for a month, when the run has read those that it needs. */
void dnn_cache_remove_unread(void);

#endif
