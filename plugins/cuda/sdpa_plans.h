/*
 * Plans of cuDNN for attention. They are made once for a shape, when a kernel is first asked
 * whether it accepts a call: what cuDNN has no plan for is left to the other kernels.
 */
#ifndef GPU_SDPA_PLANS_H
#define GPU_SDPA_PLANS_H

#include "sdpa.h"

struct sdpa_plan {
    struct sdpa_plan *next;
    struct sdpa_shape shape;
    struct dnn_graph graph;
    bool works;
};

/* Is cuDNN there, and wanted? */
bool sdpa_is_offered(struct gpu *gpu);
/* NULL: there is none. Padding of *shape is compared too. */
const struct sdpa_plan *sdpa_find_plan(struct gpu *gpu, const struct sdpa_shape *shape);

/* Strides of batch, token, head; false: rows do not begin at vectors. */
bool sdpa_take_strides(int64_t to[3], const struct ct_tensor *t);
/* Has cuDNN kernels for heads of size and of_v? */
bool sdpa_has_heads(const struct gpu *gpu, const struct sdpa_shape *s);

/* ---- running ---- */

/* The addresses of a plan's tensors. */
struct sdpa_pack {
    int64_t ids[SDPA_IDS];
    void *addresses[SDPA_IDS];
    int count;
    float scale, lowest, window, one;
};

void sdpa_give(struct sdpa_pack *pack, int64_t id, void *address);
/* The numbers that the plan takes: scale is that of l. */
void sdpa_give_numbers(const struct ct_launch *l, const struct sdpa_plan *plan,
                       struct sdpa_pack *pack);
int sdpa_execute(const struct ct_launch *l, const struct sdpa_plan *plan, struct sdpa_pack *pack,
                 void *workspace);

#endif
