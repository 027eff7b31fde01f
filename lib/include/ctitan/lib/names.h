/*
 * Names on which models and techniques agree: regions of a model (model.h), and marks (ct_mark).
 */
#ifndef CT_NAMES_H
#define CT_NAMES_H

#include <ctitan/graph.h>

CT_BEGIN_DECLS

/* Regions before the first layer, and behind the last. */
#define CT_REGION_EMBEDDING "embedding"
#define CT_REGION_HEAD "head"

/* A mark of ops whose products stay in the dtype of their operands: plugins that compute products
   in fewer bits leave them alone. */
#define CT_MARK_FULL_PRECISION "full_precision"
/* A mark of parameters: the weight of a router, whose rows are experts. */
#define CT_MARK_ROUTER "router"

CT_END_DECLS

#endif
