/*
 * States of sequences in segments: what the segments before one make of a state of zeros. The
 * segments of a sequence follow each other by position, whatever the order in which they are fed;
 * where a document begins, the state is zero. Backwards, the gradient of the state behind a segment
 * is what the next segment itself has of it, and what it passes on.
 */
#include "list.h"

/* Sizes of gain [b, segments, h, k, v], and operands. */
struct fold {
    int64_t batch, segments, heads, k, v, factor; /* factor: size of keeps' columns, 1 or k */
    const double *keeps, *gain, *ends;
    int64_t *at; /* by position: index of the segment */
};

static struct fold fold_of(const struct ct_launch *l, struct ct_reference *r)
{
    const int64_t *shape = l->in[1].shape;
    struct fold f = {shape[0], shape[1], shape[2], shape[3], shape[4]};

    f.keeps = r->in[0];
    f.gain = r->in[1];
    f.ends = l->ins > 2 ? r->in[2] : NULL;
    f.factor = f.keeps ? l->in[0].shape[4] : 0;
    f.at = ct_arena_array(&r->arena, int64_t, f.segments);
    ct_launch_order(l, l->op->in[1], 1, f.at);
    return f;
}

/* Whether the segment at a position goes on with the document of the one before. */
static bool goes_on(const struct fold *f, int64_t b, int64_t position)
{
    const double *ends = f->ends ? f->ends + b * f->segments * 2 : NULL;

    return !ends || ends[2 * f->at[position - 1] + 1] == ends[2 * f->at[position]];
}

/* The element of keeps at row i, column j of a segment and a head. */
static double kept(const struct fold *f, int64_t segment, int64_t i, int64_t j)
{
    if (f->factor == 1)
        return i == j ? f->keeps[segment] : 0;
    return f->keeps[(segment * f->k + i) * f->k + j];
}

/* to += keeps from, or its transpose's product */
static void pass(const struct fold *f, int64_t segment, bool back, const double *from, double *to)
{
    for (int64_t i = 0; f->keeps && i < f->k; i++)
        for (int64_t j = 0; j < f->k; j++) {
            double w = back ? kept(f, segment, j, i) : kept(f, segment, i, j);

            for (int64_t v = 0; w != 0 && v < f->v; v++)
                to[i * f->v + v] += w * from[j * f->v + v];
        }
}

/* One head, from one position to the next: of `own`, and of what it passes on. */
static void fold_step(const struct fold *f, int64_t b, int64_t h, int64_t from, int64_t to,
                      bool back, double *states)
{
    int64_t size = f->k * f->v, own = (b * f->segments + f->at[from]) * f->heads + h;
    int64_t next = (b * f->segments + f->at[to]) * f->heads + h;

    if (!goes_on(f, b, back ? from : to))
        return;
    for (int64_t i = 0; i < size; i++)
        states[next * size + i] = f->gain[own * size + i];
    pass(f, own, back, states + own * size, states + next * size);
}

static int fold_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    struct fold f = fold_of(l, &r);
    bool back = ((const struct ct_fold *)l->op->attrs)->back;

    for (int64_t i = 0; i < f.batch * f.heads; i++)
        for (int64_t p = 1; p < f.segments; p++) {
            int64_t from = back ? f.segments - p : p - 1, to = back ? from - 1 : p;

            fold_step(&f, i / f.heads, i % f.heads, from, to, back, r.out[0]);
        }
    return ct_reference_end(&r, 0);
}

static int fold_infer(struct ct_op *op)
{
    const struct ct_value *keeps = op->in[0], *gain = op->in[1];
    const int64_t *size = keeps ? keeps->shape + 3 : NULL;

    if (!keeps || (size[0] == size[1] && (size[0] == 1 || size[0] == gain->shape[3])))
        return 0;
    return ct_fail(CT_EINVAL, "keeps is no factor, and no square of gain's rows");
}

static double fold_flops(const struct ct_op *op, const struct ct_tensor *in,
                         const struct ct_tensor *out)
{
    (void)op;
    return in[0].data || in[0].ndim
               ? 2.0 * (double)ct_tensor_count(&out[0]) * (double)in[0].shape[4]
               : 0;
}

static const struct ct_option fold_attrs[] = {
    CT_OPT_BOOL(struct ct_fold, back, "back", "false",
                "From gradients of the states before segments to those of the states behind"),
    {0},
};

const struct ct_op_type ct_op_fold_states = {
    .size = sizeof(struct ct_op_type),
    .name = "fold_states",
    .summary = "the state before each segment of a sequence",
    .signature = "?keeps[bShKJ] T, gain[bShMv] T, ?ends[bSE] i -> state[bShMv] T | @S",
    .attrs = fold_attrs,
    .attrs_size = sizeof(struct ct_fold),
    .infer = fold_infer,
    .flops = fold_flops,
    .reference = fold_reference,
    .samples = "@flops=1152: real[2,6,2,2,2] real[2,6,2,2,6] small[2,6,2];"
               " @flops=192 back=true: real[2,4,2,1,1] real[2,4,2,2,3] small[2,4,2];"
               " @flops=1152 back=true: real[2,6,2,2,2] real[2,6,2,2,6];"
               " @flops=0: - real[2,4,1,3,4] small[2,4,2]",
};

static int ends_reference(const struct ct_launch *l)
{
    struct ct_reference r = ct_reference_begin(l);
    int64_t n = ct_columns(&l->in[0]);

    for (int64_t i = 0; i < ct_rows(&l->in[0]); i++) {
        r.out[0][2 * i] = r.in[0][i * n];
        r.out[0][2 * i + 1] = r.in[0][i * n + n - 1];
    }
    return ct_reference_end(&r, 0);
}

static int two_ends(struct ct_op *op)
{
    op->out[0]->shape[op->out[0]->ndim - 1] = 2;
    return 0;
}

const struct ct_op_type ct_op_document_ends = {
    .size = sizeof(struct ct_op_type),
    .name = "document_ends",
    .summary = "the first and the last document of each segment",
    .signature = "documents[.T] i -> ends[.E] i",
    .infer = two_ends,
    .reference = ends_reference,
    .samples = "document[2,4]; packed[2,2,6]",
};

struct ct_value *ct_document_ends(struct ct_builder *b, const char *name,
                                  struct ct_value *documents)
{
    return ct_emit_type1(b, &ct_op_document_ends, name, &documents, 1, NULL);
}

struct ct_value *ct_fold_states(struct ct_builder *b, const char *name, struct ct_value *keeps,
                                struct ct_value *gain, struct ct_value *ends)
{
    return ct_emit_type1(b, &ct_op_fold_states, name, (struct ct_value *[]){keeps, gain, ends}, 3,
                         &(struct ct_fold){.back = false});
}

bool ct_states_are_passed(const struct ct_value *state)
{
    return state && state->producer && state->producer->type == &ct_op_fold_states;
}

struct ct_value *ct_fold_back(struct ct_builder *b, const struct ct_value *state,
                              struct ct_value *own)
{
    struct ct_value *const *in = state->producer->in;

    return ct_emit_type1(b, &ct_op_fold_states,
                         ct_arena_printf(b->graph->arena, "d.%s", state->name),
                         (struct ct_value *[]){in[0], own, ct_op_input(state->producer, 2)}, 3,
                         &(struct ct_fold){.back = true});
}
