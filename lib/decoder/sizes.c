/*
 * The sizes of a decoder: flavors, config.json, overrides of the recipe, and what follows from
 * them.
 */
#include <stdlib.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/lib/decoder.h>
#include <ctitan/log.h>
#include <ctitan/run.h>

static const struct ct_decoder_sizes *sizes_of(const void *model)
{
    return model;
}

static void override(int64_t *size, int64_t value)
{
    if (value)
        *size = value;
}

/* Two thirds of 4 dim, rounded up to a multiple of 256: Llama's rule. */
static int64_t usual_ffn_dim(int64_t dim)
{
    return (2 * 4 * dim / 3 + 255) / 256 * 256;
}

static int check(const struct ct_decoder_family *f, const struct ct_decoder_sizes *s)
{
    if (s->dim < 1 || s->layers < 1 || s->heads < 1 || s->kv_heads < 1 || s->head_dim < 1 ||
        (s->ffn_dim < 1 && !f->no_ffn) || s->vocabulary < 1)
        return ct_fail(CT_ECONFIG, "every size of the model must be at least 1");
    if (s->padding > s->vocabulary || s->padding < -s->vocabulary)
        return ct_fail(CT_ECONFIG, "pad_token_id = %lld is not in a vocabulary of %lld",
                       (long long)s->padding - (s->padding > 0), (long long)s->vocabulary);
    if (s->heads % s->kv_heads)
        return ct_fail(CT_ECONFIG, "%lld heads cannot share %lld key/value heads evenly",
                       (long long)s->heads, (long long)s->kv_heads);
    if (s->rope.factor > 1 && s->rope.scaling == CT_ROPE_YARN && s->rope.theta <= 1)
        return ct_fail(CT_ECONFIG, "yarn needs a rope_theta above 1, not %g", s->rope.theta);
    if (s->head_dim % 2)
        return ct_fail(CT_ECONFIG, "a head of %lld features cannot be rotated in pairs",
                       (long long)s->head_dim);
    return ct_decoder_check_rope(&s->rope, s->head_dim);
}

int ct_decoder_fail_window(int64_t layer)
{
    return ct_fail(CT_ECONFIG,
                   "layer_types: layer %lld is sliding_attention, but there is no window: "
                   "sliding_window is null or 0, or use_sliding_window is not true",
                   (long long)layer);
}

static int apply(const struct ct_decoder_family *f, const struct ct_decoder_options *o,
                 struct ct_decoder_sizes *sizes)
{
    if (o->n_heads || !sizes->kv_heads)
        sizes->kv_heads = o->n_heads ? o->n_heads : sizes->heads;
    override(&sizes->dim, o->dim);
    override(&sizes->layers, o->n_layers);
    override(&sizes->heads, o->n_heads);
    override(&sizes->kv_heads, o->n_kv_heads);
    override(&sizes->vocabulary, o->vocab_size);
    if (o->dim)
        sizes->ffn_dim = usual_ffn_dim(o->dim);
    override(&sizes->ffn_dim, o->ffn_dim);
    if (!f->own_heads && (o->dim || o->n_heads || !sizes->head_dim) && !o->head_dim) {
        if (sizes->dim % sizes->heads)
            return ct_fail(CT_ECONFIG, "a width of %lld does not divide by %lld heads",
                           (long long)sizes->dim, (long long)sizes->heads);
        sizes->head_dim = sizes->dim / sizes->heads;
    }
    override(&sizes->head_dim, o->head_dim);
    if (o->rope_theta > 0)
        sizes->rope.theta = o->rope_theta;
    if (o->norm_eps > 0)
        sizes->norm_eps = o->norm_eps;
    if (o->tie_embeddings != CT_TIE_AUTO)
        sizes->tied = o->tie_embeddings == CT_TIE_TRUE;
    return check(f, sizes);
}

/* A rotary embedding extrapolates beyond the positions that the model was made for. */
static void warn_of_positions(const struct ct_run *run, const struct ct_decoder_sizes *s)
{
    if (run && run->rank == 0 && ct_config.training.seq_len > s->max_position)
        ct_warn("[training] seq_len = %lld is beyond the %lld positions of the model "
                "(max_position_embeddings)",
                (long long)ct_config.training.seq_len, (long long)s->max_position);
}

int ct_decoder_create(const struct ct_run *run, const struct ct_decoder_family *f,
                      const struct ct_decoder_options *options, struct ct_model **out)
{
    void *model = calloc(1, f->ops->flavor_size);
    int rc = model ? ct_hf_sizes(f->ops, f->name, model) : ct_fail(CT_ENOMEM, "a model");

    if (rc == 0) {
        rc = apply(f, options, model);
        if (rc == 0 && f->apply)
            rc = f->apply(run, model);
        if (rc < 0)
            ct_context(rc, "[%s]", f->name);
    }
    if (rc < 0) {
        free(model);
        return rc;
    }
    warn_of_positions(run, model);
    *out = model;
    return 0;
}

void ct_decoder_destroy(struct ct_model *model)
{
    free(model);
}

int64_t ct_decoder_vocabulary(const struct ct_model *model)
{
    return sizes_of(model)->vocabulary;
}

/* Parameters of the whole model. */
static int64_t count_parameters(const struct ct_decoder_sizes *s)
{
    int64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    int64_t attention = s->dim * (2 * q + 2 * kv) + (s->qk_norm ? 2 * s->head_dim : 0);
    int64_t ffn = 3 * s->dim * s->ffn_dim;
    int64_t embeddings = (s->tied ? 1 : 2) * s->vocabulary * s->dim;

    return embeddings + s->layers * (attention + ffn + 2 * s->dim) + s->dim;
}

void ct_decoder_flops(const struct ct_model *model, int64_t seq_len, double *whole, double *halved)
{
    const struct ct_decoder_sizes *s = sizes_of(model);
    int64_t lookup = s->tied ? 0 : s->vocabulary * s->dim;
    double products = 6 * (double)(count_parameters(s) - lookup);
    double features = (double)(s->heads * s->head_dim);
    struct ct_decoder_seen seen = ct_decoder_seen_by_all(s, seq_len);

    *whole = products + 12 * features * seen.whole;
    *halved = products + 12 * features * seen.halved;
}

struct ct_decoder_seen ct_decoder_seen(int64_t window, int64_t tokens)
{
    double w = (double)window, t = (double)tokens;

    if (!window || w >= t)
        return (struct ct_decoder_seen){t, t / 2};
    return (struct ct_decoder_seen){w, w - w * (w - 1) / (2 * t)};
}

struct ct_decoder_seen ct_decoder_seen_by_all(const struct ct_decoder_sizes *s, int64_t tokens)
{
    struct ct_decoder_seen sum = {0};

    for (int64_t layer = 0; layer < s->layers; layer++) {
        struct ct_decoder_seen seen =
            ct_decoder_seen(ct_hf_has_layer(&s->sliding, layer) ? s->window : 0, tokens);

        sum.whole += seen.whole;
        sum.halved += seen.halved;
    }
    return sum;
}

const struct ct_shard_rule ct_decoder_shard_plan[] = {
    {"model.embed_tokens.weight", CT_SHARD_VOCAB},
    {"*.self_attn.[qkv]_proj.*", CT_SHARD_COLWISE},
    {"*.self_attn.o_proj.weight", CT_SHARD_ROWWISE},
    {"*.self_attn.o_proj.bias", CT_SHARD_REPLICATE},
    {"*.gate_proj.*", CT_SHARD_COLWISE},
    {"*.up_proj.*", CT_SHARD_COLWISE},
    {"*.down_proj.weight", CT_SHARD_ROWWISE},
    {"*.down_proj.bias", CT_SHARD_REPLICATE},
    {"*.mlp.gate.weight", CT_SHARD_REPLICATE},
    {"*norm.weight", CT_SHARD_REPLICATE},
    {"lm_head.weight", CT_SHARD_VOCAB},
    {0},
};
