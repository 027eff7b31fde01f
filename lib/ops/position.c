/*
 * Ops of the positions of tokens, beside rope: the temperature of queries, and chunks of documents.
 */
#include <math.h>

#include "list.h"

/* Position of a token, by its number in input 0 [b, t, ..]; positions, if there are any, are input
   1. */
static double position_of(const struct ct_launch *l, const struct ct_reference *r, int64_t token)
{
    return r->in[1] ? r->in[1][token]
                    : (double)ct_launch_position(l, l->op->in[0], 1, token % l->in[0].shape[1]);
}

static int temper_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct ct_temper *how = l->op->attrs;
    int64_t n = l->in[0].shape[2] * l->in[0].shape[3];

    for (int64_t token = 0; token < l->in[0].shape[0] * l->in[0].shape[1]; token++) {
        double past = floor((position_of(l, &r, token) + (double)how->added) / (double)how->every);

        for (int64_t i = token * n; i < (token + 1) * n; i++)
            r.out[0][i] = r.in[0][i] * (1 + how->scale * log1p(past));
    }
    return ct_reference_end(&r, 0);
}

static int temper_vjp(struct ct_vjp *v)
{
    return ct_emit_gradients(v, &ct_op_temper,
                             (struct ct_value *[]){v->dout[0], ct_op_input(v->op, 1)}, 2,
                             v->op->attrs, (int[]){0}, 1);
}

static const struct ct_option temper_attrs[] = {
    CT_OPT_FLOAT(struct ct_temper, scale, "scale", "0.1", 0, 1e6, "Factor of the logarithm"),
    CT_OPT_INT(struct ct_temper, every, "every", "8192", 1, 0x1p53,
               "Tokens after which the logarithm is taken of one more"),
    CT_OPT_INT(struct ct_temper, added, "added", "1", 0, 1, "Added to positions"),
    {0},
};

const struct ct_op_type ct_op_temper = {
    .size = sizeof(struct ct_op_type),
    .name = "temper",
    .summary = "x times a factor that grows with the logarithm of the position",
    .signature = "x[bthd] T, ?positions[bt] i -> y[bthd] T | @t",
    .attrs = temper_attrs,
    .attrs_size = sizeof(struct ct_temper),
    .inplace = (const int8_t[][2]){{0, 0}, {-1, -1}},
    .vjp = temper_vjp,
    .cache = ct_cache_positions,
    .reference = temper_reference,
    .samples = "scale=0.5 every=2: real[2,4,2,6] position[2,4];"
               " scale=0.5 every=3: real[2,4,2,6] -;"
               " scale=0.5 every=2 added=0: real[2,4,2,6] -",
};

static int document_chunks_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    const struct ct_document_chunks *how = l->op->attrs;

    for (int64_t token = 0; token < ct_tensor_count(&l->in[0]); token++) {
        int64_t document = r.in[2] ? (int64_t)r.in[2][token] : 0;
        int64_t chunk = (int64_t)position_of(l, &r, token) / how->tokens;

        r.out[0][token] = (int32_t)(uint32_t)(document * how->most + chunk);
    }
    return ct_reference_end(&r, 0);
}

static const struct ct_option document_chunks_attrs[] = {
    CT_OPT_INT(struct ct_document_chunks, tokens, "tokens", "8192", 1, 0x1p53, "Tokens of a chunk"),
    CT_OPT_INT(struct ct_document_chunks, most, "most", "1", 1, 0x1p31,
               "Chunks of a document, at most"),
    {0},
};

const struct ct_op_type ct_op_document_chunks = {
    .size = sizeof(struct ct_op_type),
    .name = "document_chunks",
    .summary = "ids of chunks of documents",
    .signature = "tokens[bt] i, ?positions[bt] i, ?documents[bt] i -> chunks[bt] i | @t",
    .attrs = document_chunks_attrs,
    .attrs_size = sizeof(struct ct_document_chunks),
    .cache = ct_cache_positions,
    .reference = document_chunks_reference,
    .samples = "tokens=2 most=4: index[2,4] position[2,4] document[2,4];"
               " tokens=3 most=4: index[2,4]",
};

struct ct_value *ct_temper(struct ct_builder *b, const char *name, struct ct_value *x,
                           struct ct_value *positions, const struct ct_temper *how)
{
    return ct_emit_type1(b, &ct_op_temper, name, (struct ct_value *[]){x, positions}, 2, how);
}

struct ct_value *ct_document_chunks(struct ct_builder *b, const char *name, struct ct_value *tokens,
                                    struct ct_value *positions, struct ct_value *documents,
                                    const struct ct_document_chunks *how)
{
    return ct_emit_type1(b, &ct_op_document_chunks, name,
                         (struct ct_value *[]){tokens, positions, documents}, 3, how);
}

bool ct_give_positions(struct ct_graph *graph, struct ct_op *op, struct ct_value *positions)
{
    bool chunks = op->type == &ct_op_document_chunks;

    if (op->type != &ct_op_rope && op->type != &ct_op_temper && !chunks)
        return false;
    if (!ct_op_input(op, 1))
        ct_op_set_inputs(graph, op, (struct ct_value *[]){op->in[0], positions, ct_op_input(op, 2)},
                         chunks ? 3 : 2);
    return true;
}
