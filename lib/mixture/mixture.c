/* See mixture.h. */
#include <fnmatch.h>
#include <stdio.h>

#include <ctitan/error.h>
#include <ctitan/lib/mixture.h>
#include <ctitan/run.h>

#include "load.h"

int ct_mixture_apply(const struct ct_mixture_options *o, struct ct_mixture *m)
{
    const struct ct_top_k *choice = &m->choice;

    m->experts = o->n_experts ? o->n_experts : m->experts;
    m->choice.k = o->n_chosen ? o->n_chosen : m->choice.k;
    m->expert_dim = o->expert_dim ? o->expert_dim : m->expert_dim;
    m->reported = o->log_load > 0;
    if (choice->k > m->experts)
        return ct_fail(CT_ECONFIG, "a token cannot choose %lld of %lld experts",
                       (long long)choice->k, (long long)m->experts);
    if (m->scaled_inputs && choice->k != 1)
        return ct_fail(CT_ECONFIG,
                       "a token chooses %lld experts, but one alone can have its input scaled",
                       (long long)choice->k);
    return ct_top_k_check_groups(choice, m->experts) < 0 ? CT_ECONFIG : 0;
}

static struct ct_value *expert_weight(struct ct_decoder *d, const struct ct_mixture *m,
                                      const char *what, int64_t rows, int64_t columns, double std)
{
    char name[64];

    snprintf(name, sizeof(name), "%s.%s", m->where ? m->where : "mlp.experts", what);
    return ct_decoder_weight(d, name, 3, (int64_t[]){m->experts, rows, columns},
                             ct_init_weight(std, 1));
}

/* In the dtype that it is stored in, whatever the forward pass computes in: an update moves it by
   less than bfloat16 could tell. */
static struct ct_value *correction(struct ct_decoder *d, const struct ct_mixture *m)
{
    struct ct_value *bias;

    if (!m->corrected)
        return NULL;
    snprintf(d->name, sizeof(d->name), "model.layers.%lld" CT_MIXTURE_CORRECTION,
             (long long)d->layer);
    bias = ct_parameter(&d->b, d->name, 1, &m->experts, (struct ct_init){.kind = CT_INIT_ZERO});
    if (bias)
        bias->dtype_fixed = true;
    return bias;
}

/* NULL: the mixture has none. */
static struct ct_value *expert_bias(struct ct_decoder *d, const struct ct_mixture *m,
                                    const char *what, int64_t size)
{
    return m->biased ? ct_decoder_parameter(d, what, 2, (int64_t[]){m->experts, size},
                                            (struct ct_init){0})
                     : NULL;
}

static struct ct_value *route(struct ct_decoder *d, struct ct_value *h, const struct ct_mixture *m)
{
    const char *where = m->router ? m->router : "mlp.gate";

    return m->biased
               ? ct_decoder_biased(d, "router", h, where, m->experts, d->sizes->dim, 0.02, 0.02)
               : ct_decoder_linear(d, "router", h, where, m->experts, d->sizes->dim, 0.02);
}

static struct ct_value *choose(struct ct_decoder *d, struct ct_value *h, const struct ct_mixture *m,
                               struct ct_value **ids)
{
    struct ct_value *logits, *weights, *bias, *load;

    logits = route(d, h, m);
    bias = correction(d, m);
    weights = ct_top_k(&d->b, ct_decoder_named(d, "choice"), logits, bias, &m->choice, ids);
    if (m->reported && !d->request->logits) {
        ct_expert_load(&d->b, ct_decoder_named(d, "load"), *ids, logits, &load);
        load_fetch(d->b.graph, d->layer, load);
    }
    return weights;
}

/* h times the weights of the choices, which become ones. */
static struct ct_value *scale_inputs(struct ct_decoder *d, struct ct_value *h,
                                     struct ct_value **weights)
{
    struct ct_value *scores = ct_view(&d->b, ct_decoder_named(d, "scores"), *weights, 2, h->shape);

    h = ct_scale_rows(&d->b, ct_decoder_named(d, "experts_input"), h, scores);
    *weights = ct_ones(&d->b, ct_decoder_named(d, "experts_weights"), *weights);
    return h;
}

struct ct_value *ct_decoder_mixture_of(struct ct_decoder *d, struct ct_value *h,
                                       const struct ct_mixture *m)
{
    int64_t dim = d->sizes->dim, f = m->expert_dim;
    struct ct_value *weights, *ids, *gate, *up, *down, *gate_bias, *up_bias, *bias, *sum, *input;

    weights = choose(d, h, m, &ids);
    input = m->scaled_inputs && h ? scale_inputs(d, h, &weights) : h;
    gate = expert_weight(d, m, "gate_proj", f, dim, 0.02);
    up = expert_weight(d, m, "up_proj", f, dim, d->depth_std);
    down = expert_weight(d, m, "down_proj", dim, f, d->depth_std);
    gate_bias = expert_bias(d, m, "mlp.experts.gate_proj.bias", f);
    up_bias = expert_bias(d, m, "mlp.experts.up_proj.bias", f);
    sum = ct_experts(&d->b, ct_decoder_named(d, "experts"), input, weights, ids, gate, up, down,
                     gate_bias, up_bias, &m->activation);
    bias = expert_bias(d, m, "mlp.experts.down_proj.bias", dim);
    if (bias) {
        bias = ct_expert_bias(&d->b, ct_decoder_named(d, "experts_bias"), weights, ids, bias);
        sum = ct_add(&d->b, ct_decoder_named(d, "experts_biased"), sum, bias);
    }
    if (m->shared) {
        h = ct_decoder_swiglu(d, "shared_", h,
                              m->shared_where ? m->shared_where : "mlp.shared_experts",
                              m->shared * f);
        sum = ct_add(&d->b, ct_decoder_named(d, "experts_sum"), sum, h);
    }
    return sum;
}

struct ct_value *ct_decoder_mixture(struct ct_decoder *d, struct ct_value *x,
                                    const struct ct_mixture *m)
{
    struct ct_value *h =
        ct_decoder_norm(d, "ffn_norm", x, "post_attention_layernorm", d->sizes->dim);

    return ct_add(&d->b, ct_decoder_named(d, "ffn_sum"), x, ct_decoder_mixture_of(d, h, m));
}

bool ct_mixture_is_correction(const struct ct_value *param)
{
    return !fnmatch("*" CT_MIXTURE_CORRECTION, param->name, 0);
}

int ct_mixture_correct(struct ct_builder *b, struct ct_value *const *params, size_t count,
                       struct ct_value *clip, double rate)
{
    struct ct_value **in = ct_arena_array(b->graph->arena, struct ct_value *, 1 + 2 * count);

    in[0] = clip;
    for (size_t i = 0; i < count; i++) {
        in[1 + 2 * i] = params[i];
        in[2 + 2 * i] = params[i]->grad;
    }
    ct_emit_type(b, &ct_op_sign_step, NULL, in, (int)(1 + 2 * count), &(struct ct_sign_step){rate});
    return b->status;
}

double ct_mixture_balance(const struct ct_run *run, const struct ct_mixture *m, int64_t mixtures,
                          double weight)
{
    const struct ct_training_config *t = &ct_config.training;
    double sequences = (double)t->global_batch_size;

    if (!mixtures || weight <= 0)
        return 0;
    if (t->global_batch_size < 0)
        sequences = (double)(t->local_batch_size * ct_mesh_degree(&run->mesh, run->batch_axes));
    return weight * (double)m->experts /
           ((double)t->seq_len * (double)t->seq_len * sequences * (double)mixtures);
}

double ct_mixture_flops(const struct ct_mixture *m, int64_t dim)
{
    return 6 * (double)dim * (double)(m->experts + 3 * (m->choice.k + m->shared) * m->expert_dim);
}
