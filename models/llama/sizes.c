#include <math.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/plugin.h>

#include "llama.h"

/*
 * Published sizes. Llama 3.1 scales RoPE by 8 from 8192 positions, Llama 3.2 by 32. The debug model
 * follows TorchTitan's, which is a small Llama 3.1. kv_heads 0: the same as heads.
 */
static const struct flavor {
    const char *name;
    int64_t dim, layers, heads, kv_heads, vocabulary;
    double ffn_multiplier;
    int64_t ffn_multiple;
    double rope_factor;
    bool tied;
} flavors[] = {
    {"debug", 256, 6, 16, 0, 2048, 1.0, 256, 8, false},
    {"1B", 2048, 16, 32, 8, 128256, 1.5, 256, 32, true},
    {"3B", 3072, 28, 24, 8, 128256, 1.0, 256, 32, true},
    {"8B", 4096, 32, 32, 8, 128256, 1.3, 1024, 8, false},
    {"70B", 8192, 80, 64, 8, 128256, 1.3, 4096, 8, false},
    {"405B", 16384, 126, 128, 8, 128256, 1.2, 4096, 8, false},
};

int64_t llama_ffn_dim(int64_t dim, double multiplier, int64_t multiple)
{
    int64_t width = (int64_t)(multiplier * (double)(2 * 4 * dim / 3));

    return (width + multiple - 1) / multiple * multiple;
}

static const struct flavor *find(const char *name)
{
    for (size_t i = 0; i < CT_COUNT(flavors); i++)
        if (!strcmp(flavors[i].name, name))
            return &flavors[i];
    return NULL;
}

int llama_flavor(const char *name, struct llama_sizes *sizes)
{
    const struct flavor *f = find(name);

    if (!f)
        return ct_fail(CT_ECONFIG, "[model] flavor = %s: llama has debug, 1B, 3B, 8B, 70B and 405B",
                       name);
    *sizes = (struct llama_sizes){
        .dim = f->dim,
        .layers = f->layers,
        .heads = f->heads,
        .kv_heads = f->kv_heads ? f->kv_heads : f->heads,
        .head_dim = f->dim / f->heads,
        .ffn_dim = llama_ffn_dim(f->dim, f->ffn_multiplier, f->ffn_multiple),
        .vocabulary = f->vocabulary,
        .max_position = 131072,
        .norm_eps = 1e-5,
        .rope = {.theta = 500000,
                 .factor = f->rope_factor,
                 .low_freq_factor = 1,
                 .high_freq_factor = 4,
                 .original_max_position = 8192},
        .tied = f->tied,
    };
    return 0;
}

int llama_check(const struct llama_sizes *s)
{
    if (s->dim < 1 || s->layers < 1 || s->heads < 1 || s->kv_heads < 1 || s->head_dim < 1 ||
        s->ffn_dim < 1 || s->vocabulary < 1)
        return ct_fail(CT_ECONFIG, "every size of the model must be at least 1");
    if (s->heads % s->kv_heads)
        return ct_fail(CT_ECONFIG, "%lld heads cannot share %lld key/value heads evenly",
                       (long long)s->heads, (long long)s->kv_heads);
    if (s->head_dim % 2)
        return ct_fail(CT_ECONFIG, "a head of %lld features cannot be rotated in pairs",
                       (long long)s->head_dim);
    return 0;
}

int64_t llama_lookup_parameters(const struct llama_sizes *s)
{
    return s->tied ? 0 : s->vocabulary * s->dim;
}

int64_t llama_parameters(const struct llama_sizes *s)
{
    int64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    int64_t attention = s->dim * (2 * q + 2 * kv), ffn = 3 * s->dim * s->ffn_dim;
    int64_t embeddings = (s->tied ? 1 : 2) * s->vocabulary * s->dim;

    return embeddings + s->layers * (attention + ffn + 2 * s->dim) + s->dim;
}
