/* Inference of shapes and dtypes from a signature. Private to the sources of op types. */
#ifndef CT_IR_RULE_H
#define CT_IR_RULE_H

#include "ir/signature.h"

/* Set the dtypes of op's outputs; check presence and dtypes of its inputs. */
int ct_rule_infer_dtypes(struct ct_op *op, const struct ct_expansion *expansion);
/* Set the shapes of op's outputs, if the signature has factors; check those of its inputs. */
int ct_rule_infer(struct ct_op *op, const struct ct_expansion *expansion);

#endif
