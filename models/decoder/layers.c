/*
 * The kind of each layer of a model, and values that follow from its sizes.
 */
#include <math.h>

#include <ctitan/error.h>

#include "decoder.h"

static bool is_listed_with_rope(const struct ct_model *m, int64_t layer)
{
    if (m->rotated.given)
        return ct_hf_has_layer(&m->rotated, layer);
    return !m->plain_every || (layer + 1) % m->plain_every;
}

bool decoder_slides(const struct ct_model *m, int64_t layer)
{
    if (!m->windowed || !m->window)
        return false;
    if (m->sliding.given)
        return ct_hf_has_layer(&m->sliding, layer);
    return layer >= m->window_from && layer < m->window_until &&
           (!m->full_every || (layer + !m->full_first) % m->full_every) &&
           (!m->window_plain || !is_listed_with_rope(m, layer));
}

bool decoder_rotates(const struct ct_model *m, int64_t layer)
{
    if (m->positions != POSITIONS_ROPE)
        return false;
    if (m->plain_full && m->windowed && m->window && !decoder_slides(m, layer))
        return false;
    return is_listed_with_rope(m, layer);
}

enum decoder_mixer decoder_mixer(const struct ct_model *m, int64_t layer)
{
    bool attends = m->attention_every && (layer + 1) % m->attention_every == 0;

    if (m->attending.given)
        attends = ct_hf_has_layer(&m->attending, layer);
    if (m->types[0].given)
        attends = !ct_hf_has_layer(&m->types[0], layer);
    return attends ? MIXER_ATTENTION : m->mixer;
}

bool decoder_forwards(const struct ct_model *m, int64_t layer)
{
    if (!m->single)
        return true;
    if (m->types[1].given)
        return ct_hf_has_layer(&m->types[1], layer) || ct_hf_has_layer(&m->types[2], layer);
    return m->forward_every && (layer + 1) % m->forward_every == 0;
}

bool decoder_mixes(const struct ct_model *m, int64_t layer)
{
    return !m->single || !decoder_forwards(m, layer);
}

bool decoder_is_mixture(const struct ct_model *m, int64_t layer)
{
    if (m->single && m->types[1].given)
        return ct_hf_has_layer(&m->types[2], layer);
    if (m->single && !m->sparse_every)
        return false;
    if (!m->dense.given && layer < m->dense_layers) /* a list counts alone */
        return false;
    if (m->sparse_last && layer > m->sparse_last)
        return false;
    return m->mixture.experts && !ct_hf_has_layer(&m->dense, layer) &&
           (!m->sparse_every || (layer + 1) % m->sparse_every == 0);
}

bool decoder_squares(const struct ct_model *m)
{
    return !m->gated && m->activation == ACTIVATION_RELU2;
}

int64_t decoder_like(const struct ct_model *m, int64_t layer)
{
    if (layer < m->sizes.layers)
        return layer;
    layer = m->sizes.layers - 1;
    while (layer > 0 && decoder_mixer(m, layer) != MIXER_ATTENTION)
        layer--;
    return layer;
}

double decoder_scale(const struct ct_model *m)
{
    double of = (double)(m->scale_of ? m->scale_of : m->sizes.head_dim);

    return m->scale > 0 ? m->scale : 1 / sqrt(of);
}

/* A share is rounded as transformers rounds it. */
int64_t decoder_rotated(const struct ct_model *m, const struct ct_rope *rope)
{
    int64_t size = m->sizes.head_dim;
    double share = rope->partial;

    if (share <= 0 && m->rotary_dim)
        share = (double)m->rotary_dim / (double)size;
    return share > 0 && share < 1 ? (int64_t)((double)size * share) : size;
}

int decoder_rope(const struct ct_model *m, int64_t layer, const struct ct_model_request *request,
                 struct ct_rope *rope)
{
    int64_t size = m->sizes.head_dim, rotated;

    *rope = m->local && decoder_slides(m, layer) ? m->local_rope : m->sizes.rope;
    rope->interleaved = m->sizes.rope.interleaved;
    rotated = decoder_rotated(m, rope);
    rope->rotated = rotated < size ? rotated : 0;
    if (rope->amplitude > 0 && rope->amplitude != 1)
        rope->magnitude = rope->amplitude;
    if (rope->alpha > 0)
        rope->theta *= pow(rope->alpha, (double)size / (double)(size - 2));
    return ct_decoder_fit_rope(&m->sizes, request, rotated, rope);
}
