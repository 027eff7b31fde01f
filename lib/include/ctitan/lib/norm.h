/*
 * Attributes of rms_norm, add_rms_norm and their gradient, for op types of plugins that do the same
 * and more.
 */
#ifndef CT_NORM_H
#define CT_NORM_H

#include <ctitan/lib/ops.h>

CT_BEGIN_DECLS

/* Tables for struct ct_rms_norm and struct ct_rms_norm_grad. */
CT_API extern const struct ct_option ct_rms_norm_attrs[], ct_rms_norm_grad_attrs[];

CT_END_DECLS

#endif
