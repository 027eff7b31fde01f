/*
 * Decoders by description: a family is a file (family.c), its sizes are those of a folder's
 * config.json or of a flavor.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/rows.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/json.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>

#include "decoder.h"

static struct config {
    const char *family;
    struct ct_decoder_options sizes;
    struct ct_mixture_options mixture;
    struct ct_predictions predictions;
    double rate;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(
        struct config, family, "family", "",
        "Family of a model that begins with random weights: mistral, qwen2, gemma3_text, "
        "..; or the path of a description. Empty: what config.json in [model] init_from says, "
        "or llama"),
    CT_DECODER_OPTIONS(struct config, sizes),
    CT_MIXTURE_OPTIONS(struct config, mixture),
    CT_PREDICTION_OPTIONS(struct config, predictions),
    CT_OPT_FLOAT(struct config, rate, "load_balance_coeff", "0", 0, 1,
                 "What a step adds to the bias of an expert that was chosen too rarely, and takes "
                 "from that of others; 0: biases stay as they are"),
    {0}};

/* ---- which family ---- */

static int type_of(const json_t *root, const char *path, char *type, size_t room)
{
    const char *found = ct_hf_model_type(root);

    if (!found || strlen(found) >= room)
        return ct_fail(CT_ECONFIG, "%s: model_type is %s", path, found ? found : "missing");
    strcpy(type, found);
    return 0;
}

static int read_type(const char *folder, char *type, size_t room)
{
    struct ct_arena scratch = {0};
    json_t *root;
    int rc = ct_hf_read_root(folder, &root);

    if (rc < 0)
        return ct_context(CT_ECONFIG, "[model] init_from");
    rc = type_of(root, ct_arena_printf(&scratch, "%s/config.json", folder), type, room);
    json_decref(root);
    ct_arena_finish(&scratch);
    return rc;
}

static int choose_family(const struct family **family)
{
    const char *folder = ct_config.model.init_from;
    char type[64];
    int rc;

    if (*config.family || !*folder)
        return family_read(*config.family ? config.family : "llama", family);
    rc = read_type(folder, type, sizeof(type));
    return rc < 0 ? rc : family_read(type, family);
}

/* ---- sizes ---- */

static void replace(int64_t *size, int64_t value)
{
    if (value)
        *size = value;
}

/* Whether config.json has a key for a field of struct ct_model. */
static bool has_key(const struct family *f, size_t offset)
{
    for (const struct ct_hf_key *k = f->config.keys; k->key; k++)
        if (k->offset == offset)
            return true;
    return false;
}

/* Sizes that follow from others. A head_dim of 0 stays where heads do not divide the width. */
static void follow(struct ct_decoder_sizes *z)
{
    if (!z->kv_heads)
        z->kv_heads = z->heads;
    if (!z->head_dim && z->heads && z->dim % z->heads == 0)
        z->head_dim = z->dim / z->heads;
}

/* Heads of Mamba-2 without a size share the expanded width. */
static void follow_state(struct ct_model *m)
{
    struct decoder_state *s = &m->state;

    if (!s->head_dim && s->heads)
        s->head_dim = s->expand * m->sizes.dim / s->heads;
}

/* The width of feed-forward layers that a file gives in another way. */
static void adjust_width(struct ct_model *m)
{
    int64_t width, multiple = m->ffn_multiple ? m->ffn_multiple : 1;

    if (!m->ffn_whole)
        return;
    if (config.sizes.ffn_dim) {
        m->ffn_whole = config.sizes.ffn_dim;
        m->ffn_adjusted = false;
    }
    width = m->ffn_adjusted ? 2 * m->ffn_whole / 3 : m->ffn_whole;
    if (m->ffn_adjusted && m->ffn_multiplier > 0) {
        width = (int64_t)fmin(m->ffn_multiplier * (double)width, INT32_MAX);
        width = (width + multiple - 1) / multiple * multiple;
    }
    m->sizes.ffn_dim = width;
}

/* The width of feed-forward layers that files may leave to that of the model. */
static void follow_width(struct ct_model *m)
{
    if (!m->ffn_times)
        return;
    if (config.sizes.ffn_dim)
        m->ffn_whole = config.sizes.ffn_dim;
    m->sizes.ffn_dim = m->ffn_whole ? m->ffn_whole : m->ffn_times * m->sizes.dim;
}

/* Heads of keys that files cannot say are those of the family, or as many as of queries. */
static int keep_heads(const struct family *f, int64_t own, struct ct_decoder_sizes *z)
{
    int64_t asked = config.sizes.n_kv_heads;

    if (has_key(f, offsetof(struct ct_model, sizes.kv_heads)))
        return 0;
    z->kv_heads = own ? own : z->heads;
    return !asked || asked == z->kv_heads
               ? 0
               : ct_fail(CT_ECONFIG,
                         "n_kv_heads = %lld: models of type %s with %lld heads have %lld",
                         (long long)asked, f->config.model_type, (long long)z->heads,
                         (long long)z->kv_heads);
}

static void apply_options(struct ct_decoder_sizes *z)
{
    const struct ct_decoder_options *o = &config.sizes;

    replace(&z->dim, o->dim);
    replace(&z->layers, o->n_layers);
    replace(&z->heads, o->n_heads);
    replace(&z->kv_heads, o->n_kv_heads ? o->n_kv_heads : o->n_heads);
    replace(&z->vocabulary, o->vocab_size);
    replace(&z->ffn_dim, o->ffn_dim);
    if (o->head_dim || o->dim || o->n_heads)
        z->head_dim = o->head_dim;
    follow(z);
    if (o->rope_theta > 0)
        z->rope.theta = o->rope_theta;
    if (o->norm_eps > 0)
        z->norm_eps = o->norm_eps;
    if (o->tie_embeddings != CT_TIE_AUTO)
        z->tied = o->tie_embeddings == CT_TIE_TRUE;
}

static int check_state(const struct ct_model *m)
{
    const struct decoder_state *s = &m->state;

    if (s->heads < 1 || s->head_dim < 1 || s->size < 1 || s->groups < 1 || s->conv_size < 1)
        return ct_fail(CT_ECONFIG, "every size of a Mamba-2 layer must be at least 1");
    if (s->heads % s->groups)
        return ct_fail(CT_ECONFIG, "%lld heads of Mamba-2 cannot share %lld groups evenly",
                       (long long)s->heads, (long long)s->groups);
    if (s->expand && s->heads * s->head_dim != s->expand * m->sizes.dim)
        return ct_fail(CT_ECONFIG, "%lld heads of Mamba-2 of %lld features are not %lld times %lld",
                       (long long)s->heads, (long long)s->head_dim, (long long)s->expand,
                       (long long)m->sizes.dim);
    return 0;
}

static int check_linear(const struct decoder_linear *z)
{
    if (z->key_heads < 1 || z->value_heads < 1 || z->key_dim < 1 || z->value_dim < 1 || z->taps < 1)
        return ct_fail(CT_ECONFIG, "every size of linear layers must be at least 1");
    if (z->value_heads % z->key_heads)
        return ct_fail(CT_ECONFIG, "%lld heads of values cannot share %lld heads of keys evenly",
                       (long long)z->value_heads, (long long)z->key_heads);
    return 0;
}

/* Features are rotated in pairs. */
static int check_rope(const struct ct_model *m, const struct ct_rope *rope)
{
    int64_t size = m->sizes.head_dim, rotated = decoder_rotated(m, rope);

    if (m->rotary_dim > size)
        return ct_fail(CT_ECONFIG, "rotary_dim is %lld, but heads have %lld features",
                       (long long)m->rotary_dim, (long long)size);
    if (rope->alpha > 0 && size < 3)
        return ct_fail(CT_ECONFIG, "alpha of rope needs heads of more than 2 features");
    if (m->positions != POSITIONS_ROPE)
        return 0;
    if (rotated > 0 && rotated % 2 == 0)
        return ct_decoder_check_rope(rope, rotated);
    if (rope->partial <= 0 && m->rotary_dim)
        return ct_fail(CT_ECONFIG,
                       "%lld rotated features of heads of %lld: expected an even number",
                       (long long)m->rotary_dim, (long long)size);
    return rotated == size
               ? ct_fail(CT_ECONFIG, "heads of %lld features are odd, which rope needs in pairs",
                         (long long)size)
               : ct_fail(CT_ECONFIG,
                         "%s = %g of heads of %lld features rotates %lld of them: expected an even "
                         "number above 0",
                         m->family->config.partial ? m->family->config.partial : "partial",
                         rope->partial, (long long)size, (long long)rotated);
}

static int check_experts(const struct ct_model *m)
{
    if (m->mixture.expert_dim < 1)
        return ct_fail(CT_ECONFIG, "the width of experts must be at least 1");
    if (m->mixture.choice.k < 1)
        return ct_fail(CT_ECONFIG, "a token must choose at least 1 of %lld experts",
                       (long long)m->mixture.experts);
    if (!decoder_squares(m) && (m->activation != ACTIVATION_SILU || !m->gated))
        return ct_fail(CT_ECONFIG, "experts have silu and a gate, or relu2 and none; no other "
                                   "activation");
    if (m->mlp_bias)
        return ct_fail(CT_ECONFIG, "experts have no biases: mlp_bias must be false");
    if (m->mixture.latent && (!m->mixture.latent_in || !m->mixture.latent_out))
        return ct_fail(CT_ECONFIG, "latent = %lld: [weights] of %s has no latent_in and latent_out",
                       (long long)m->mixture.latent, m->family->name);
    return 0;
}

/* A layer without a window has the other rope, whatever its type is called. */
static int check_local(const struct ct_model *m)
{
    if (!m->local || m->window || !m->windowed)
        return 0;
    return ct_fail(CT_ECONFIG, "layers that slide have a rope of their own: sliding_window must be "
                               "a number");
}

static int check_window(const struct ct_model *m)
{
    if (!m->sliding.given || (m->windowed && m->window))
        return 0;
    for (int64_t i = 0; i < m->sizes.layers; i++)
        if (ct_hf_has_layer(&m->sliding, i))
            return ct_decoder_fail_window(i);
    return 0;
}

static int check(const struct ct_model *m)
{
    const struct ct_decoder_sizes *z = &m->sizes;
    int rc = 0;

    if (z->dim < 1 || z->layers < 1 || z->heads < 1 || z->kv_heads < 1 || z->vocabulary < 1 ||
        (z->ffn_dim < 1 && !m->mixture.experts))
        return ct_fail(CT_ECONFIG, "every size of the model must be at least 1");
    if (z->layers > CT_HF_MAX_LAYERS)
        return ct_fail(CT_ECONFIG, "%lld layers are more than %d", (long long)z->layers,
                       CT_HF_MAX_LAYERS);
    if (z->head_dim < 1)
        return ct_fail(CT_ECONFIG, "a width of %lld does not divide by %lld heads",
                       (long long)z->dim, (long long)z->heads);
    if (m->embedding_dim && m->embedding_dim != z->dim)
        return ct_fail(CT_ECONFIG,
                       "embeddings of %lld features in a model of %lld: other widths than "
                       "the model's are not supported",
                       (long long)m->embedding_dim, (long long)z->dim);
    if (m->positions == POSITIONS_LEARNED && !m->family->weight[WEIGHT_PLACES])
        return ct_fail(CT_ECONFIG, "positions = learned: [weights] of %s has no positions",
                       m->family->name);
    if (z->heads % z->kv_heads)
        return ct_fail(CT_ECONFIG, "%lld heads cannot share %lld key/value heads evenly",
                       (long long)z->heads, (long long)z->kv_heads);
    if (m->mixer == MIXER_MAMBA && check_state(m) < 0)
        return CT_ECONFIG;
    if (m->family->fused == FUSED_HEADS && z->heads != z->kv_heads)
        return ct_fail(CT_ECONFIG, "%s stores keys and values of each head, not of %lld of %lld",
                       m->family->name, (long long)z->kv_heads, (long long)z->heads);
    if (z->padding > z->vocabulary || z->padding < -z->vocabulary)
        return ct_fail(CT_ECONFIG, "pad_token_id is %lld, but there are %lld tokens",
                       (long long)z->padding - (z->padding > 0), (long long)z->vocabulary);
    if (z->tied && !has_key(m->family, offsetof(struct ct_model, sizes.tied)))
        return ct_fail(CT_ECONFIG, "tie_embeddings: models of type %s have a head of their own",
                       m->family->config.model_type);
    rc = check_rope(m, &z->rope);
    if (rc == 0 && m->local)
        rc = check_rope(m, &m->local_rope);
    if (rc == 0)
        rc = check_local(m);
    if (rc == 0)
        rc = check_window(m);
    if (rc == 0 && m->mixer == MIXER_DELTA)
        rc = check_linear(&m->linear);
    if (rc == 0 && m->mixer == MIXER_CONV && m->state.conv_size < 1)
        rc = ct_fail(CT_ECONFIG, "a convolution sees at least 1 token");
    if (rc < 0)
        return rc;
    for (int64_t i = 0; !m->mixture.experts && i < z->layers; i++)
        if (decoder_is_mixture(m, i))
            return ct_fail(CT_ECONFIG, "layer %lld is a mixture of no experts", (long long)i);
    return m->mixture.experts ? check_experts(m) : 0;
}

/* List the layers that slide, have rope and attend, one by one: config.json is written so. */
static void list_layers(struct ct_model *m)
{
    struct ct_hf_layers sliding = {.given = true}, rotated = {.given = true},
                        attending = {.given = true}, linear = {.given = true},
                        forward = {.given = true}, mixtures = {.given = true};

    for (int64_t i = 0; i < m->sizes.layers; i++) {
        bool mixes = decoder_mixes(m, i), attends = decoder_mixer(m, i) == MIXER_ATTENTION;

        sliding.bits[i / 64] |= (uint64_t)decoder_slides(m, i) << i % 64;
        linear.bits[i / 64] |= (uint64_t)(mixes && !attends) << i % 64;
        forward.bits[i / 64] |= (uint64_t)(!mixes && !decoder_is_mixture(m, i)) << i % 64;
        mixtures.bits[i / 64] |= (uint64_t)(!mixes && decoder_is_mixture(m, i)) << i % 64;
        attending.bits[i / 64] |= (uint64_t)(mixes && attends) << i % 64;
        rotated.bits[i / 64] |= (uint64_t)decoder_rotates(m, i) << i % 64;
    }
    m->sliding = sliding;
    m->rotated = rotated;
    m->attending = attending;
    m->types[0] = linear;
    m->types[1] = forward;
    m->types[2] = mixtures;
}

/* Where files have predictions, as many as the file has. */
static void name_predictions(struct ct_model *m)
{
    const char *const *w = m->family->weight;
    struct ct_predictions *p = &m->predictions;

    p->layers = w[WEIGHT_AHEAD_LAYERS];
    p->embedding_norm = w[WEIGHT_AHEAD_EMBEDDING_NORM];
    p->hidden_norm = w[WEIGHT_AHEAD_HIDDEN_NORM];
    p->projection = w[WEIGHT_AHEAD_PROJECTION];
    p->norm = w[WEIGHT_AHEAD_NORM];
    p->embedding_copies = m->family->copies[0];
    p->head_copies = m->family->copies[1];
}

/* The recipe says how many are trained. */
static int apply_predictions(struct ct_model *m)
{
    name_predictions(m);
    m->predictions.depths = config.predictions.depths;
    m->predictions.weight = config.predictions.weight;
    if (m->predictions.depths && !m->predictions.projection)
        return ct_fail(CT_ECONFIG,
                       "mtp = %lld: the description of %s has no multi-token prediction",
                       (long long)m->predictions.depths, m->family->name);
    return 0;
}

/* Where the layers without rope slide, use_sliding_window counts only if no list says which do. */
static void follow_list(struct ct_model *m)
{
    for (int64_t i = 0; m->window_plain && m->sliding.given && i < m->sizes.layers; i++)
        m->windowed |= ct_hf_has_layer(&m->sliding, i);
}

static int finish(const struct ct_run *run, struct ct_model *m)
{
    int64_t own = m->sizes.kv_heads;
    int rc;

    if (!m->qk_normed)
        m->qk_norm = QK_NORM_NONE;
    if (!m->normed_after && m->norms == NORMS_BOTH)
        m->norms = NORMS_BEFORE;
    m->q_bias |= m->attention_bias || m->all_bias;
    m->o_bias |= m->attention_bias || m->all_bias;
    m->mlp_bias |= m->all_bias;
    adjust_width(m);
    apply_options(&m->sizes);
    follow_width(m);
    follow_state(m);
    follow_list(m);
    m->mixture.router = m->family->weight[WEIGHT_ROUTER];
    m->mixture.where = m->family->weight[WEIGHT_EXPERTS];
    m->mixture.shared_where = m->family->weight[WEIGHT_SHARED];
    m->mixture.squared = decoder_squares(m);
    m->mixture.shared_part = m->mixture.squared ? decoder_squared : NULL;
    m->mixture.latent_in = m->family->weight[WEIGHT_LATENT_IN];
    m->mixture.latent_out = m->family->weight[WEIGHT_LATENT_OUT];
    m->mixture.shared_gate = m->shared_gated ? m->family->weight[WEIGHT_SHARED_GATE] : NULL;
    if (!m->mixture.experts && !m->sizes.ffn_dim)
        m->sizes.ffn_dim = m->mixture.shared_dim;
    if (m->mixture.experts && !m->mixture.expert_dim)
        m->mixture.expert_dim = m->sizes.ffn_dim;
    rc = keep_heads(m->family, own, &m->sizes);
    if (rc == 0)
        rc = check(m);
    if (rc == 0)
        rc = apply_predictions(m);
    if (rc == 0 && m->mixture.experts)
        rc = ct_mixture_apply(&config.mixture, &m->mixture);
    m->mixture.whole.batch = ct_run_batch(run);
    if (rc == 0)
        list_layers(m);
    return rc < 0 ? ct_context(rc, "[decoder]") : 0;
}

/* ---- the model ---- */

static const struct ct_model_ops ops;

static void use_family(struct ct_run *run, const struct ct_model *m)
{
    struct ct_model_ops *own = ct_arena_copy(&run->arena, &ops, sizeof(ops));

    own->description = &m->family->config;
    own->stored = decoder_stored(m, &run->arena);
    own->shard_plan = decoder_shard_plan(m, &run->arena);
    run->model_ops = own;
}

static int create(struct ct_run *run, struct ct_model **out)
{
    struct ct_model *m = calloc(1, sizeof(*m));
    const struct family *family;
    int rc = m ? choose_family(&family) : ct_fail(CT_ENOMEM, "a model");

    if (rc == 0)
        rc = family_apply(family, m);
    if (rc == 0)
        rc = *ct_config.model.init_from
                 ? ct_hf_read_config(&family->config, ct_config.model.init_from, m)
                 : family_flavor(family, ct_config.model.flavor, m);
    if (rc == 0)
        rc = finish(run, m);
    if (rc < 0) {
        free(m);
        return rc;
    }
    use_family(run, m);
    *out = m;
    return 0;
}

static int stored_for(const char *text, struct ct_arena *arena, const struct ct_stored_rule **rules)
{
    struct ct_model m = {0};
    const struct family *family;
    char type[64];
    json_t *root;
    int rc = ct_json_read(text, strlen(text), "config.json", 0, &root);

    if (rc < 0)
        return rc;
    rc = type_of(root, "config.json", type, sizeof(type));
    json_decref(root);
    if (rc < 0 || (rc = family_read(type, &family)) < 0 || (rc = family_apply(family, &m)) < 0 ||
        (rc = ct_hf_read_config_text(&family->config, text, "config.json", &m)) < 0)
        return rc;
    follow(&m.sizes);
    follow_state(&m);
    name_predictions(&m);
    *rules = decoder_stored(&m, arena);
    return 0;
}

static void destroy(struct ct_model *model)
{
    free(model);
}

/* ---- facts ---- */

/* FLOPs of a Mamba-2 layer: its projections, the convolution, and the state, written and read. */
static double state_flops(const struct ct_model *m)
{
    const struct decoder_state *s = &m->state;
    double width = (double)(s->heads * s->head_dim), shared = 2 * (double)(s->groups * s->size);

    return 6 * (double)m->sizes.dim * (3 * width + shared + (double)s->heads) +
           6 * (double)s->conv_size * (width + shared) + 12 * width * (double)s->size;
}

/* FLOPs of a linear layer: its projections, its convolution, and three products with the state. */
static double linear_flops(const struct decoder_linear *z, double dim)
{
    double keys = (double)(z->key_heads * z->key_dim);
    double values = (double)(z->value_heads * z->value_dim);

    return 6 * (dim * (2 * keys + 3 * values + 2 * (double)z->value_heads) +
                (2 * keys + values) * (double)z->taps + 3 * values * (double)z->key_dim);
}

/* FLOPs of the GEMMs of a layer's mixer. */
static double mixer_flops(const struct ct_model *m, int64_t layer)
{
    const struct ct_decoder_sizes *z = &m->sizes;
    double q = (double)(z->heads * z->head_dim), kv = (double)(z->kv_heads * z->head_dim);

    if (!decoder_mixes(m, layer))
        return 0;
    switch (decoder_mixer(m, layer)) {
    case MIXER_DELTA:
        return linear_flops(&m->linear, (double)z->dim);
    case MIXER_MAMBA:
        return state_flops(m);
    case MIXER_CONV:
        return 6 * (double)z->dim * (4 * (double)z->dim + (double)m->state.conv_size);
    case MIXER_ATTENTION:
        return 6 * (double)z->dim * ((2 + m->output_gate) * q + 2 * kv);
    }
    return 0;
}

static double forward_flops(const struct ct_model *m, int64_t layer)
{
    if (!decoder_forwards(m, layer))
        return 0;
    return decoder_is_mixture(m, layer)
               ? ct_mixture_flops(&m->mixture, m->sizes.dim)
               : 6 * (double)m->sizes.dim * (double)m->sizes.ffn_dim * (2 + m->gated);
}

/* Six per element of a weight that a token's products read, and for each key that a query sees 12
   per feature of all heads. Of a window, keys are counted one by one where causal pairs are. */
static void flops_per_token(const struct ct_model *m, int64_t seq_len, double *whole,
                            double *halved)
{
    const struct ct_decoder_sizes *z = &m->sizes;
    double q = (double)(z->heads * z->head_dim), pairs = 0, halves = 0;
    double products = 6 * (double)z->dim * (double)z->vocabulary;

    products += (double)m->predictions.depths * ct_prediction_flops(z);
    for (int64_t i = 0; i < z->layers + m->predictions.depths; i++) {
        int64_t layer = decoder_like(m, i);
        struct ct_decoder_seen seen =
            ct_decoder_seen(decoder_slides(m, layer) ? m->window : 0, seq_len);
        bool attends = decoder_mixes(m, layer) && decoder_mixer(m, layer) == MIXER_ATTENTION;

        products += mixer_flops(m, layer) + forward_flops(m, layer);
        pairs += attends ? seen.whole : 0;
        halves += attends ? seen.halved : 0;
    }
    *whole = products + 12 * q * pairs;
    *halved = products + 12 * q * halves;
}

static const struct ct_model_ops ops = {.size = sizeof(struct ct_model_ops),
                                        .create = create,
                                        .destroy = destroy,
                                        .build = decoder_build,
                                        .vocabulary = ct_decoder_vocabulary,
                                        .flops_per_token = flops_per_token,
                                        .shard_plan = ct_decoder_shard_plan, /* of the default */
                                        .stored_for = stored_for,
                                        .weights = &ct_hf_weights};

/* ---- the biases of the choice ---- */

static int correct(struct ct_builder *b, struct ct_value *const *params, size_t count,
                   struct ct_value *lr, struct ct_value *step, struct ct_value *clip)
{
    (void)lr, (void)step;
    return ct_mixture_correct(b, params, count, clip, config.rate);
}

static const struct ct_optimizer_ops corrects = {.size = sizeof(struct ct_optimizer_ops),
                                                 .build = correct,
                                                 .takes = ct_mixture_is_correction,
                                                 .no_norm = true};

static const struct ct_hook hook = CT_MIXTURE_HOOK(&config.mixture);

CT_PLUGIN(.name = "decoder", .version = "1.0",
          .summary = "Model: decoders by the description of their family", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_MODEL, "decoder", &ops}, {CT_HOOK, "decoder", &hook},
                              {CT_OPTIMIZER, "decoder", &corrects},
                              {CT_OP, "soft_cap", &op_soft_cap}, {CT_OP, "clip", &op_clip},
                              {CT_OP, "relu", &op_relu}, {CT_OP, "whiten", &op_whiten},
                              {CT_OP, "scale_columns", &op_scale_columns},
                              {CT_KERNELS, "cpu", formula_kernels}));
