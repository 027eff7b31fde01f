/*
 * The properties of a model: what descriptions set and config.json gives, by name.
 */
#include <string.h>

#include "decoder.h"

#define MODEL struct ct_model
#define SIZE(field, name, doc) CT_OPT_INT(MODEL, field, name, "0", 0, 0x1p31, doc)
#define NUMBER(field, name, doc) CT_OPT_FLOAT(MODEL, field, name, "0", 0, 1e300, doc)
#define FLAG(field, name, fallback, doc) CT_OPT_BOOL(MODEL, field, name, fallback, doc)

const struct ct_option decoder_properties[] = {
    SIZE(sizes.vocabulary, "vocabulary", "Tokens that there are"),
    SIZE(sizes.dim, "dim", "Width of the model"),
    SIZE(sizes.layers, "layers", "Number of layers"),
    SIZE(sizes.heads, "heads", "Heads of queries"),
    SIZE(sizes.kv_heads, "kv_heads", "Heads of keys and values; 0: as many"),
    SIZE(sizes.head_dim, "head_dim", "Features of a head; 0: dim / heads"),
    SIZE(sizes.ffn_dim, "ffn_dim", "Width of feed-forward layers"),
    SIZE(sizes.max_position, "max_position", "Tokens of the longest context"),
    NUMBER(sizes.norm_eps, "norm_eps", "Added to the mean square, or variance, in norms"),
    FLAG(sizes.tied, "tied", "false", "The head's weight is the embedding"),
    CT_OPT_ENUM(MODEL, norm, "norm", "rms", "rms|rms_one|layer|layer_one|layer_plain",
                "one: weights are near 0, and 1 is added; layer: with the mean and a bias; plain: "
                "without both weights and bias"),
    FLAG(norm_bias, "norm_bias", "true", "Layer norms have biases"),
    CT_OPT_ENUM(MODEL, norms, "norms", "before", "before|after|both",
                "Where attention and feed-forward layers have norms"),
    FLAG(normed_after, "normed_after", "true", "Norms that are both are not before alone"),
    CT_OPT_ENUM(MODEL, qk_norm, "qk_norm", "none", "none|head|whole|each",
                "Norms of q and k: of each head by one weight, of all heads together, or of each "
                "head by a weight of its own (layer norm without bias)"),
    FLAG(qk_normed, "qk_normed", "true", "Whether there is qk_norm"),
    FLAG(qk_rotated, "qk_rotated", "false", "qk_norm comes after rope"),
    FLAG(qk_bias, "qk_bias", "true", "Layer norms of q and k have biases"),
    FLAG(q_bias, "q_bias", "false", "q, k and v have biases"),
    FLAG(o_bias, "o_bias", "false", "Attention's output has a bias"),
    FLAG(mlp_bias, "mlp_bias", "false", "Feed-forward layers have biases"),
    FLAG(attention_bias, "attention_bias", "false", "q_bias and o_bias in one"),
    FLAG(all_bias, "all_bias", "false", "attention_bias and mlp_bias in one"),
    FLAG(head_bias, "head_bias", "false", "The head has a bias"),
    NUMBER(scale, "scale", "Scale of attention's scores; 0: scale_of^-0.5"),
    SIZE(scale_of, "scale_of", "Its inverse square; 0: head_dim"),
    NUMBER(soft_cap, "soft_cap", "Bound of scores, by tanh; 0: none"),
    NUMBER(clip, "clip", "Bound of q, k and v; 0: none"),
    SIZE(window, "window", "Tokens that sliding layers see; 0: all"),
    FLAG(windowed, "windowed", "true", "Whether there are sliding layers"),
    SIZE(window_from, "window_from", "The first layer that slides"),
    CT_OPT_INT(MODEL, window_until, "window_until", "1024", 0, 0x1p31,
               "The first layer behind those that slide"),
    FLAG(window_plain, "window_plain", "false", "Layers with rope do not slide"),
    SIZE(full_every, "full_every", "Every so many layers does not slide; 0: all do"),
    FLAG(full_first, "full_first", "false", "The first of so many does not, not the last"),
    SIZE(plain_every, "plain_every", "Every so many layers has no rope; 0: none is without"),
    FLAG(plain_full, "plain_full", "false", "Where layers slide, those that do not have no rope"),
    FLAG(sizes.rope.interleaved, "rope_interleaved", "false", "Pairs of neighbours are rotated"),
    CT_OPT_ENUM(MODEL, positions, "positions", "rope", "rope|none|learned",
                "none: no layer has rope; learned: nor that, embeddings of positions are added"),
    SIZE(first_position, "first_position", "Row of the first one among learned positions"),
    NUMBER(sizes.rope.partial, "partial", "Share of a head's features that is rotated; 0: all"),
    SIZE(rotary_dim, "rotary_dim", "How many are, where no share is given; 0: all"),
    FLAG(output_gate, "output_gate", "false",
         "Attention's result is gated by the sigmoid of a "
         "projection"),
    CT_OPT_ENUM(MODEL, mixer, "mixer", "attention", "attention|delta|mamba|conv",
                "Mixer of linear layers: the gated delta net, Mamba-2, or a gated convolution; "
                "attention: there are no such layers"),
    SIZE(attention_every, "attention_every", "Every so many layers has attention; 0: none"),
    SIZE(linear.key_heads, "linear_key_heads", "Heads of keys of linear layers"),
    SIZE(linear.value_heads, "linear_value_heads", "Their heads of values"),
    SIZE(linear.key_dim, "linear_key_dim", "Features of a head of keys"),
    SIZE(linear.value_dim, "linear_value_dim", "Features of a head of values"),
    SIZE(linear.taps, "linear_taps", "Tokens that their convolution sees"),
    CT_OPT_ENUM(MODEL, activation, "activation", "silu", "silu|gelu|gelu_tanh|relu|relu2",
                "Of feed-forward layers"),
    FLAG(gated, "gated", "true", "Feed-forward layers have a gate"),
    SIZE(ffn_whole, "ffn_whole", "What ffn_dim follows from; 0: nothing"),
    FLAG(ffn_adjusted, "ffn_adjusted", "false",
         "It is two thirds of that, times ffn_multiplier, as a multiple of ffn_multiple"),
    NUMBER(ffn_multiplier, "ffn_multiplier", "0: no factor, and no multiple"),
    SIZE(ffn_multiple, "ffn_multiple", "See ffn_adjusted"),
    SIZE(embedding_dim, "embedding_dim", "Width of embeddings, that of the model; 0: the same"),
    SIZE(ffn_times, "ffn_times", "Without ffn_whole, ffn_dim is so many times dim; 0: it is not"),
    SIZE(state.heads, "state_heads", "Heads of Mamba-2"),
    SIZE(state.head_dim, "state_head_dim", "Features of such a head"),
    SIZE(state.size, "state_size", "Size of its state for each of these"),
    SIZE(state.groups, "state_groups", "Groups of heads that share B and C"),
    SIZE(state.expand, "state_expand", "Width of all these heads over that of the model; 0: any"),
    SIZE(state.conv_size, "conv_size", "Tokens that the convolution of Mamba-2 sees"),
    FLAG(state.conv_bias, "conv_bias", "true", "It has a bias"),
    NUMBER(state.least, "time_step_least", "Lower limit of time steps"),
    FLAG(single, "single", "false", "A layer is a mixer or feed-forward, behind one norm"),
    SIZE(forward_every, "forward_every", "Then every so many layers is feed-forward; 0: none"),
    FLAG(parallel, "parallel", "false", "Attention and feed-forward are side by side"),
    FLAG(shared_norm, "shared_norm", "false", "They have one norm, where they are so"),
    NUMBER(embedding_multiplier, "embedding_multiplier", "Factor of embeddings; 0: 1"),
    FLAG(embedding_root, "embedding_root", "false", "The root of dim is such a factor"),
    NUMBER(residual_multiplier, "residual_multiplier", "Factor of what is added; 0: 1"),
    NUMBER(logits_divisor, "logits_divisor", "Divisor of logits; 0: 1"),
    NUMBER(logits_multiplier, "logits_multiplier", "Factor of logits; 0: 1"),
    NUMBER(logits_soft_cap, "logits_soft_cap", "Bound of logits, by tanh; 0: none"),
    SIZE(mixture.experts, "experts", "Experts of a layer; 0: none"),
    SIZE(mixture.choice.k, "chosen", "Experts of a token"),
    SIZE(mixture.expert_dim, "expert_dim", "Width of an expert"),
    SIZE(mixture.latent, "latent", "Width of what experts read and give; 0: that of the model"),
    SIZE(mixture.shared, "shared", "Experts that every token has, as one"),
    FLAG(mixture.choice.normalised, "normalised", "false",
         "Weights of a token's experts are divided by their sum"),
    CT_OPT_ENUM(MODEL, mixture.choice.scores, "scores", "softmax", "softmax|sigmoid",
                "What experts are chosen by"),
    FLAG(mixture.corrected, "corrected", "false", "A bias is added to them for the choice"),
    FLAG(mixture.correction_row, "correction_row", "false", "Files have it as a row of a matrix"),
    SIZE(mixture.choice.groups, "groups", "Groups of experts; 0: none"),
    SIZE(mixture.choice.groups_chosen, "groups_chosen", "Groups that a token chooses"),
    NUMBER(mixture.choice.scale, "routed_scale", "Factor of the weights of experts; 0: 1"),
    FLAG(mixture.whole.wanted, "balanced", "false", "The loss has an auxiliary loss of experts"),
    NUMBER(mixture.whole.weight, "balance", "Its weight"),
    SIZE(mixture.shared_dim, "shared_dim", "Width of the shared ones; 0: as many times expert_dim"),
    FLAG(shared_gated, "shared_gated", "false", "What they give is gated by a sigmoid"),
    SIZE(sparse_every, "sparse_every", "Every so many layers has experts; 0: all have"),
    SIZE(sparse_last, "sparse_last", "The last layer with experts; 0: any"),
    SIZE(predictions.depths, "predicted", "Depths of multi-token prediction"),
    SIZE(dense_layers, "dense_layers", "The first layers, without experts"),
    {0},
};

const char *decoder_words(const struct ct_option *property)
{
    if (!strcmp(property->name, "positions"))
        return "rope|nope|learned";
    return strcmp(property->name, "activation")
               ? property->choices
               : "silu=swish|gelu=gelu_python|gelu_pytorch_tanh=gelu_new=gelu_fast|relu|relu2";
}
