#ifndef DATA_BALANCE_H
#define DATA_BALANCE_H

#include <ctitan/model.h>
#include <ctitan/recipe.h>

/* Print how equal the work of the ranks is that share the first `samples` samples, in steps of the
   recipe on so many ranks: in their order, and as a run gives them out. CT_ECONFIG: the source does
   not say what samples cost, or has too few for a step. */
int data_balance_print(struct ct_recipe *recipe, int64_t world, const struct ct_data_ops *ops,
                       struct ct_data *data, int64_t samples);

#endif
