/*
 * Mixtures of experts in the layers of a decoder. A model keeps a struct ct_mixture beside its
 * sizes, and gives ct_decoder_build_with a part that calls ct_decoder_mixture where a layer is one.
 *
 * The weights of a layer's experts are stacked; files have a tensor for each expert. The step's
 * loads, how often each expert is chosen, can be reported.
 */
#ifndef CT_MIXTURE_H
#define CT_MIXTURE_H

#include <ctitan/hook.h>
#include <ctitan/lib/decoder.h>

CT_BEGIN_DECLS

/* Sums over the choices of all layers of one graph: begins as {0}. */
struct ct_mixture_sums {
    struct ct_value *load, *score; /* [experts]: choices, and sums of probabilities */
    int64_t layers;
};

/* The auxiliary loss over the whole batch (ct_decoder_balance). */
struct ct_mixture_whole {
    bool wanted;   /* config.json: output_router_logits */
    double weight; /* router_aux_loss_coef */
    int64_t batch; /* sequences of a step */
};
/* Rows of a table of struct ct_hf_key. T: a struct ct_model with a struct ct_mixture m. */
#define CT_MIXTURE_WHOLE_KEYS(T, m, usual)                                                         \
    {"output_router_logits", CT_HF_BOOL, offsetof(T, m.whole.wanted), 0},                          \
    {                                                                                              \
        "router_aux_loss_coef", CT_HF_OPTIONAL, offsetof(T, m.whole.weight), usual                 \
    }

struct ct_mixture {
    int64_t experts, expert_dim;
    int64_t shared;         /* SwiGLU of so many times expert_dim for every token; 0: none */
    struct ct_top_k choice; /* choice.k experts for each token */
    bool corrected; /* a parameter, "ROUTER.e_score_correction_bias", is added to the scores for the
                       choice */
    bool correction_row; /* that parameter has a row of them: [1, experts] */
    bool reported;       /* loads are fetched for ct_mixture_report */
    bool biased;         /* the router and the experts have biases */
    /* The experts' inputs are multiplied by their scores, not their results. */
    bool scaled_inputs;
    const char *router;            /* where its weights are; NULL: "mlp.gate" */
    const char *where;             /* the weights of the experts; NULL: "mlp.experts" */
    const char *shared_where;      /* of the shared ones; NULL: "mlp.shared_experts" */
    struct ct_experts activation;  /* of the experts */
    struct ct_mixture_sums *sums;  /* its choices are added to these; NULL: they are not */
    struct ct_mixture_whole whole; /* what ct_decoder_balance makes of the sums */
    int64_t shared_dim;            /* width of the shared ones; 0: `shared` times expert_dim */
    /* Weights [1, n]: the sigmoid of their product multiplies what the shared ones give; NULL: none
       are there. */
    const char *shared_gate;
    /* Experts have no gate, and the square of relu: h = relu(up[e] x)^2. Without biases. */
    bool squared;
    /* The shared experts' result for h, with weights at `where`, of this width; NULL: SwiGLU. */
    struct ct_value *(*shared_part)(struct ct_decoder *d, struct ct_value *h, const char *where,
                                    int64_t width);
    /* Width of what the routed experts read and give: weights [latent, n] and [n, latent] are in
       front of them and behind; 0: they have the model's width. */
    int64_t latent;
    const char *latent_in, *latent_out; /* where these weights are */
};

/* The recipe's changes: options of the plugin's section. */
struct ct_mixture_options {
    int64_t n_experts, n_chosen, expert_dim, log_load;
};

/* Rows of an option table. T: a struct with a member m of the type above. */
#define CT_MIXTURE_OPTIONS(T, m)                                                                   \
    CT_OPT_INT(T, m.n_chosen, "n_chosen", "0", 0, 1e6,                                             \
               "Experts that a token chooses; 0: the flavor's"),                                   \
        CT_MIXTURE_SIZE_OPTIONS(T, m)

/* The same where a token chooses as many experts as in every flavor. */
#define CT_MIXTURE_SIZE_OPTIONS(T, m)                                                              \
    CT_OPT_INT(T, m.n_experts, "n_experts", "0", 0, 1e6, "Experts of a layer; 0: the flavor's"),   \
        CT_OPT_INT(T, m.expert_dim, "expert_dim", "0", 0, 1e7,                                     \
                   "Width of an expert; 0: the flavor's"),                                         \
        CT_OPT_INT(T, m.log_load, "log_load", "0", 0, 1e15,                                        \
                   "Steps between two reports of how often each expert is chosen; 0: none")

/* CT_ECONFIG: no mixture has these sizes; the message names them. */
CT_API int ct_mixture_apply(const struct ct_mixture_options *options, struct ct_mixture *mixture);

/* A mixture of the current layer, of h[b, t, n], which is normed. */
CT_API struct ct_value *ct_decoder_mixture_of(struct ct_decoder *d, struct ct_value *h,
                                              const struct ct_mixture *m);
/* The feed-forward part of the current layer as a mixture: norm, experts, sum with x[b, t, n]. */
CT_API struct ct_value *ct_decoder_mixture(struct ct_decoder *d, struct ct_value *x,
                                           const struct ct_mixture *m);

/*
 * The auxiliary loss over all tokens of the batch and all layers at once, as transformers has it:
 * E sum_e f[e] P[e], where f[e] is the number of choices of expert e for each token and layer, by
 * probabilities alone, and P[e] its mean probability; of all layers whose mixture had these sums.
 * It is fetched as "aux_loss"; the loss of the objective, which does not show it, is differentiated
 * with whole.weight times it more. Returns x[b, t, n], which the logits are made of: the caller
 * goes on with that. Without sums, x itself. CT_ECONFIG in d->b.status: a microbatch has less than
 * the whole.batch sequences of a step, and the loss of the whole is no sum over microbatches.
 */
CT_API struct ct_value *ct_decoder_balance(struct ct_decoder *d, struct ct_value *x,
                                           const struct ct_mixture *m);

/*
 * The corrections, for an optimizer with no_norm that takes them: what arrives as their gradients
 * is by how much each expert was chosen more often than the mean. Each step takes `rate` from those
 * above it, and adds it to those below, whatever the learning rate is; none where clip is negative.
 */
CT_API bool ct_mixture_is_correction(const struct ct_value *param);
CT_API int ct_mixture_correct(struct ct_builder *b, struct ct_value *const *params, size_t count,
                              struct ct_value *clip, double rate);

/*
 * choice.balance for a loss of this weight. The loss of one sequence and mixture is that of the
 * Switch Transformer (Fedus et al. 2021), as in transformers: E sum_e f[e] P[e], where f[e] is the
 * number of choices of expert e for each token, and P[e] its mean probability. Losses are averaged
 * over the model's mixtures and the step's sequences. Sequences are never split into microbatches,
 * so the gradient is the same however a step is.
 */
CT_API double ct_mixture_balance(const struct ct_run *run, const struct ct_mixture *m,
                                 int64_t mixtures, double weight);
/* For a model with both losses: set choice.balance and whole.batch. CT_ECONFIG: both are wanted. */
CT_API int ct_mixture_apply_balance(const struct ct_run *run, struct ct_mixture *m,
                                    int64_t mixtures, double weight);
#define CT_MIXTURE_BALANCE_OPTION(T, m)                                                            \
    CT_OPT_FLOAT(T, m, "router_aux_loss_coef", "0", 0, 1e6,                                        \
                 "Weight of the loss that evens out how often each expert is chosen; 0: none")

/* FLOPs per token, forward and backward, of the products: those of the router, the chosen and the
   shared experts. */
CT_API double ct_mixture_flops(const struct ct_mixture *m, int64_t dim);

#define CT_MIXTURE_CORRECTION ".e_score_correction_bias"
/* Rows of a table of struct ct_stored_rule. */
#define CT_MIXTURE_STORED                                                                          \
    {".experts.gate_proj.weight", ".experts.#.gate_proj.weight", false, 0, 0},                     \
        {".experts.up_proj.weight", ".experts.#.up_proj.weight", false, 0, 0},                     \
        {".experts.down_proj.weight", ".experts.#.down_proj.weight", false, 0, 0},                 \
    {                                                                                              \
        CT_MIXTURE_CORRECTION, CT_MIXTURE_CORRECTION, .whole_dtype = true                          \
    }

/* For a hook on CT_EVENT_STEP_END, whose context is a struct ct_mixture_options: after the first
   step, every log_load steps, and the last one, log how even the step's choices are, and add a line
   to experts.jsonl. 0: never. */
CT_API int ct_mixture_report(const struct ct_event_data *data, void *options);
/* A hook that calls it. options: a struct ct_mixture_options. */
#define CT_MIXTURE_HOOK(options)                                                                   \
    {                                                                                              \
        .size = sizeof(struct ct_hook), .events = 1u << CT_EVENT_STEP_END,                         \
        .call = ct_mixture_report, .context = (options)                                            \
    }

CT_END_DECLS

#endif
