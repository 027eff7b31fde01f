/*
 * What the sources of the op types share.
 */
#ifndef CT_LIB_OPS_LIST_H
#define CT_LIB_OPS_LIST_H

#include <ctitan/op_author.h>
#include <ctitan/pass.h>
#include <ctitan/lib/ops.h>

/* Plain ops that stand beside each other become the op that does them at once. */
extern const struct ct_transform ct_join;

#endif
