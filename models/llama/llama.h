/*
 * Llama 3, 3.1 and 3.2: the sizes of one model, and their sources.
 *
 * A flavor is one line of a table. [model] init_from replaces it by the sizes in the folder's
 * config.json. The [llama] section then overrides single sizes.
 */
#ifndef LLAMA_H
#define LLAMA_H

#include <stdio.h>

#include <ctitan/lib/ops.h>

struct llama_sizes {
    int64_t dim, layers, heads, kv_heads, head_dim, ffn_dim, vocabulary;
    int64_t max_position; /* written to config.json only */
    double norm_eps;
    struct ct_rope rope;
    bool tied; /* the head's weight is the embedding */
};

/* The sizes of a flavor. CT_ECONFIG lists the flavors. */
int llama_flavor(const char *name, struct llama_sizes *sizes);

/*
 * Width of the feed-forward layer as Llama derives it: two thirds of 4 dim, times multiplier,
 * rounded up to a multiple.
 */
int64_t llama_ffn_dim(int64_t dim, double multiplier, int64_t multiple);

/* CT_ECONFIG if no model has these sizes. */
int llama_check(const struct llama_sizes *sizes);

/* Number of parameters, and of those in the embedding table that no matrix product reads. */
int64_t llama_parameters(const struct llama_sizes *sizes);
int64_t llama_lookup_parameters(const struct llama_sizes *sizes);

/* Read folder/config.json of Hugging Face. CT_ECONFIG: a setting is unsupported or missing. */
int llama_read_config(const char *folder, struct llama_sizes *sizes);
int llama_write_config(const struct llama_sizes *sizes, FILE *out);

#endif
