/* See mixture.h. */
#include <fnmatch.h>

#include <ctitan/error.h>
#include <ctitan/lib/mixture.h>
#include <ctitan/lib/names.h>
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
    if (m->scaled_inputs && choice->k > CT_MAX_DIMS) /* outputs of a split */
        return ct_fail(CT_ECONFIG,
                       "a token chooses %lld experts whose inputs are scaled: at most %d",
                       (long long)choice->k, CT_MAX_DIMS);
    return ct_top_k_check_groups(choice, m->experts) < 0 ? CT_ECONFIG : 0;
}

static struct ct_value *expert_weight(struct ct_decoder *d, const struct ct_mixture *m,
                                      const char *what, int64_t rows, int64_t columns, double std)
{
    const char *name;

    name = ct_decoder_text(d, "%s.%s", m->where ? m->where : "mlp.experts", what);
    return ct_decoder_weight(d, name, 3, (int64_t[]){m->experts, rows, columns},
                             ct_init_weight(std, 1));
}

static const char *router_of(const struct ct_mixture *m)
{
    return m->router ? m->router : "mlp.gate";
}

/* In the dtype that it is stored in, whatever the forward pass computes in: an update moves it by
   less than bfloat16 could tell. */
static struct ct_value *correction(struct ct_decoder *d, const struct ct_mixture *m)
{
    struct ct_value *bias;
    const char *name;

    if (!m->corrected)
        return NULL;
    name = ct_decoder_text(d, "%s" CT_MIXTURE_CORRECTION, router_of(m));
    bias = ct_decoder_parameter(d, name, m->correction_row ? 2 : 1,
                                m->correction_row ? (int64_t[]){1, m->experts} : &m->experts,
                                (struct ct_init){.kind = CT_INIT_ZERO});
    if (bias)
        bias->dtype_fixed = true;
    return m->correction_row
               ? ct_view(&d->b, ct_decoder_named(d, "correction"), bias, 1, &m->experts)
               : bias;
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
    const char *where = router_of(m);
    struct ct_value *logits, *product;

    logits = m->biased
                 ? ct_decoder_biased(d, "router", h, where, m->experts, d->sizes->dim, 0.02, 0.02)
                 : ct_decoder_linear(d, "router", h, where, m->experts, d->sizes->dim, 0.02);
    product = m->biased && logits ? logits->producer->in[0] : logits;
    if (product)
        product->producer->in[1]->marks |= ct_mark(CT_MARK_ROUTER);
    return logits;
}

static struct ct_value *sum(struct ct_decoder *d, const char *name, struct ct_value *so_far,
                            struct ct_value *more)
{
    return so_far ? ct_add(&d->b, ct_decoder_named(d, name), so_far, more) : more;
}

static int64_t shared_dim(const struct ct_mixture *m)
{
    return m->shared_dim ? m->shared_dim : m->shared * m->expert_dim;
}

/* The shared experts' result for h. */
static struct ct_value *shared_experts(struct ct_decoder *d, struct ct_value *h,
                                       const struct ct_mixture *m)
{
    const char *where = m->shared_where ? m->shared_where : "mlp.shared_experts";
    struct ct_value *y = m->shared_part ? m->shared_part(d, h, where, shared_dim(m))
                                        : ct_decoder_swiglu(d, "shared_", h, where, shared_dim(m));
    struct ct_value *gate;

    if (!m->shared_gate)
        return y;
    gate = ct_decoder_linear(d, "shared_router", h, m->shared_gate, 1, d->sizes->dim, 0.02);
    gate = ct_sigmoid(&d->b, ct_decoder_named(d, "shared_sigmoid"), gate);
    gate = ct_view(&d->b, ct_decoder_named(d, "shared_weights"), gate, 2,
                   (int64_t[]){d->request->batch, d->request->seq_len});
    return ct_scale_rows(&d->b, ct_decoder_named(d, "shared_weighted"), y, gate);
}

static void add_up(struct ct_decoder *d, struct ct_mixture_sums *sums, struct ct_value *logits,
                   struct ct_value *load)
{
    struct ct_value *score = ct_softmax_sum(&d->b, ct_decoder_named(d, "score"), logits);

    sums->load = sum(d, "load_sum", sums->load, load);
    sums->score = sum(d, "score_sum", sums->score, score);
    sums->layers++;
}

/* How often each expert is among the best by logits alone: the auxiliary loss of the whole batch
   knows neither corrections nor groups. */
static struct ct_value *plain_load(struct ct_decoder *d, struct ct_value *logits,
                                   const struct ct_mixture *m, struct ct_value *load)
{
    struct ct_value *ids;

    if (!m->corrected && m->choice.groups <= 1)
        return load;
    ct_top_k(&d->b, ct_decoder_named(d, "plain_choice"), logits, NULL,
             &(struct ct_top_k){.k = m->choice.k}, &ids);
    ct_expert_load(&d->b, ct_decoder_named(d, "plain_load"), ids, logits, &load);
    return load;
}

static struct ct_value *choose(struct ct_decoder *d, struct ct_value *h, const struct ct_mixture *m,
                               struct ct_value **ids)
{
    struct ct_value *logits, *weights, *bias, *load;

    logits = route(d, h, m);
    bias = correction(d, m);
    weights = ct_top_k(&d->b, ct_decoder_named(d, "choice"), logits, bias, &m->choice, ids);
    if (!d->request->loss || (!m->reported && !m->sums))
        return weights;
    ct_expert_load(&d->b, ct_decoder_named(d, "load"), *ids, logits, &load);
    if (m->reported)
        load_fetch(d->b.graph, d->layer, load);
    if (m->sums)
        add_up(d, m->sums, logits, plain_load(d, logits, m, load));
    return weights;
}

/* Choice i of each token: h times its weight, and a weight of 1. */
static struct ct_value *scale_input(struct ct_decoder *d, struct ct_value *h,
                                    struct ct_value **weight)
{
    struct ct_value *scores = ct_view(&d->b, ct_decoder_named(d, "scores"), *weight, 2, h->shape);

    h = ct_scale_rows(&d->b, ct_decoder_named(d, "experts_input"), h, scores);
    *weight = ct_ones(&d->b, ct_decoder_named(d, "experts_weights"), *weight);
    return h;
}

/* Experts whose inputs are scaled: one choice of all tokens after the other. */
static struct ct_value *scaled_experts(struct ct_decoder *d, const struct ct_expert_operands *all,
                                       const struct ct_mixture *m)
{
    const char *names[CT_MAX_DIMS];
    int64_t widths[CT_MAX_DIMS];
    struct ct_value *weight[CT_MAX_DIMS] = {all->weights}, *y = NULL, *sum_of_one;
    struct ct_expert_operands one = *all;

    for (int i = 0; i < m->choice.k; i++) {
        names[i] =
            ct_arena_printf(d->b.graph->arena, "layers.%lld.choice_%d", (long long)d->layer, i);
        widths[i] = 1;
    }
    if (m->choice.k > 1)
        ct_split(&d->b, names, all->weights, widths, (int)m->choice.k, weight);
    for (int i = 0; all->x && i < m->choice.k; i++) {
        if (m->choice.k > 1)
            one.ids = ct_narrow(&d->b, ct_decoder_named(d, "ids"), all->ids, 2, i, 1);
        one.x = scale_input(d, all->x, &weight[i]);
        one.weights = weight[i];
        sum_of_one = ct_experts(&d->b, ct_decoder_named(d, "experts"), &one, &m->activation);
        y = sum(d, "experts_added", y, sum_of_one);
    }
    return y;
}

struct ct_value *ct_decoder_mixture_of(struct ct_decoder *d, struct ct_value *h,
                                       const struct ct_mixture *m)
{
    /* relu(u)^2 is u times u sigmoid(alpha u) for a large alpha: a gate of the same weights. */
    static const struct ct_experts squares = {.alpha = 1e9};
    const struct ct_experts *how = m->squared ? &squares : &m->activation;
    int64_t dim = m->latent ? m->latent : d->sizes->dim, f = m->expert_dim;
    struct ct_expert_operands of = {.x = h};
    struct ct_value *bias, *sum;

    if (d->b.status == 0 && m->squared && (m->scaled_inputs || m->biased))
        d->b.status = ct_fail(CT_EINVAL, "experts without a gate take inputs as they are, and have "
                                         "no biases");
    of.weights = choose(d, h, m, &of.ids);
    if (m->latent)
        of.x = ct_decoder_linear(d, "experts_latent", h, m->latent_in, dim, d->sizes->dim, 0.02);
    of.gate = m->squared ? NULL : expert_weight(d, m, "gate_proj", f, dim, 0.02);
    of.up = expert_weight(d, m, "up_proj", f, dim, m->squared ? 0.02 : d->depth_std);
    of.gate = of.gate ? of.gate : of.up;
    of.down = expert_weight(d, m, "down_proj", dim, f, d->depth_std);
    of.gate_bias = expert_bias(d, m, "mlp.experts.gate_proj.bias", f);
    of.up_bias = expert_bias(d, m, "mlp.experts.up_proj.bias", f);
    sum = m->scaled_inputs ? scaled_experts(d, &of, m)
                           : ct_experts(&d->b, ct_decoder_named(d, "experts"), &of, how);
    bias = expert_bias(d, m, "mlp.experts.down_proj.bias", dim);
    if (bias) {
        bias = ct_expert_bias(&d->b, ct_decoder_named(d, "experts_bias"), of.weights, of.ids, bias);
        sum = ct_add(&d->b, ct_decoder_named(d, "experts_biased"), sum, bias);
    }
    if (m->latent)
        sum = ct_decoder_linear(d, "experts_wide", sum, m->latent_out, d->sizes->dim, dim,
                                d->depth_std);
    if (shared_dim(m)) {
        h = shared_experts(d, h, m);
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

struct ct_value *ct_decoder_balance(struct ct_decoder *d, struct ct_value *x,
                                    const struct ct_mixture *m)
{
    const struct ct_mixture_sums *sums = m->sums;
    int64_t batch = m->whole.batch;
    struct ct_value *loss;
    double tokens, factor;

    if (!sums || !sums->load || !d->request->loss)
        return x;
    tokens = (double)(sums->layers * batch * d->request->seq_len);
    if (d->request->batch != batch && d->b.status == 0)
        d->b.status = ct_fail(CT_ECONFIG,
                              "the auxiliary loss of experts is one of the whole batch of %lld "
                              "sequences, but a microbatch has %lld: train without microbatches "
                              "(a larger [training] local_batch_size, and in a pipeline as large a "
                              "microbatch_size), or without that loss",
                              (long long)batch, (long long)d->request->batch);
    factor = (double)sums->load->shape[0] / (tokens * tokens);
    loss = ct_balance_loss(&d->b, "aux_products", sums->load, sums->score, 1);
    ct_graph_fetch_mean(d->b.graph, "aux_loss", ct_scale(&d->b, "aux_loss", loss, factor),
                        ct_ones(&d->b, "aux_losses", loss));
    return ct_balanced(&d->b, "norm_balanced", x, sums->load, sums->score,
                       m->whole.weight * factor);
}

double ct_mixture_balance(const struct ct_run *run, const struct ct_mixture *m, int64_t mixtures,
                          double weight)
{
    const struct ct_training_config *t = &ct_config.training;
    double sequences = (double)ct_run_batch(run);

    if (!mixtures || weight <= 0)
        return 0;
    return weight * (double)m->experts /
           ((double)t->seq_len * (double)t->seq_len * sequences * (double)mixtures);
}

int ct_mixture_apply_balance(const struct ct_run *run, struct ct_mixture *m, int64_t mixtures,
                             double weight)
{
    if (weight > 0 && m->whole.wanted)
        return ct_fail(CT_ECONFIG,
                       "router_aux_loss_coef = %g is the weight of the auxiliary loss "
                       "of each sequence, but config.json asks for that of the whole "
                       "batch (output_router_logits): leave out one of them",
                       weight);
    m->choice.balance = ct_mixture_balance(run, m, mixtures, weight);
    m->whole.batch = ct_run_batch(run);
    return 0;
}

double ct_mixture_flops(const struct ct_mixture *m, int64_t dim)
{
    int parts = m->squared ? 2 : 3; /* products of a feed-forward layer */
    int64_t width = m->latent ? m->latent : dim;

    return 6 * (double)dim *
               (double)(m->experts + parts * shared_dim(m) + 2 * m->latent +
                        (m->shared_gate ? 1 : 0)) +
           6 * (double)width * (double)(parts * m->choice.k * m->expert_dim);
}
