/*
 * A step as one CUDA graph: what the device's calls between `events` and `synchronize` do is
 * captured in the third step that begins with the same launch, and launched whole from then on.
 * The first steps run as usual: they choose algorithms and load code, which must not be captured.
 */
#ifndef GPU_GRAPH_H
#define GPU_GRAPH_H

#include "gpu.h"

/* Programs come or go: what was captured is of memory that may no longer be theirs, and launches of
   new programs may have old addresses. Communicators end after the graphs that call them. */
void gpu_graph_forget(struct gpu *gpu);
/* A step begins. */
void gpu_graph_begin(struct gpu *gpu);
/* Its first launch decides; 1: this launch is part of what will be replayed, skip it. */
int gpu_graph_enqueue(struct gpu *gpu, const struct ct_launch *launch);
/* Are calls to be skipped, as the graph replaces them? */
bool gpu_graph_replays(const struct gpu *gpu);
/* Is the step neither captured nor replayed, so that its events can be asked for? */
bool gpu_graph_is_plain(const struct gpu *gpu);
/* The step that has begun is timed: it is not replayed, and its capture is launched once. */
void gpu_graph_time(struct gpu *gpu);
/* Has the step not had its first launch? */
bool gpu_graph_is_undecided(const struct gpu *gpu);
/* The step ends: close the capture, launch the graph. */
int gpu_graph_end(struct gpu *gpu);
/* Refuses a graph for this program: a kernel waits for the device and so cannot be captured. */
void gpu_graph_refuse(struct gpu *gpu, const char *why);

#endif
