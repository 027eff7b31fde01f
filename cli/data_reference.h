#ifndef DATA_REFERENCE_H
#define DATA_REFERENCE_H

#include <ctitan/model.h>
#include <ctitan/recipe.h>

/* An open data source, and the memory of a sample. */
struct data_samples {
    const struct ct_data_ops *ops;
    struct ct_data *data;
    void **sample;
    const int32_t *tokens, *labels; /* in it */
    int64_t seq_len;
};

/* ct_recipe_apply, for a run that begins with the weights of the first step. */
int data_reference_apply(struct ct_recipe *recipe, const char *path);
/* Write the log-probabilities of the labels of all samples to a file. On one rank. */
int data_reference_write(struct ct_recipe *recipe, const struct data_samples *samples,
                         struct ct_arena *arena, const char *path);

#endif
