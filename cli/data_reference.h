#ifndef DATA_REFERENCE_H
#define DATA_REFERENCE_H

#include <ctitan/recipe.h>

struct reader;

/* ct_recipe_apply, for a run that begins with the weights of the first step. */
int data_reference_apply(struct ct_recipe *recipe, const char *path);
/* Write the log-probabilities of the labels of all samples to a file. On one rank. */
int data_reference_write(const struct reader *reader, struct ct_recipe *recipe, const char *path);

#endif
