/*
 * Multi-token prediction: the depths behind a decoder, their losses beside the objective's.
 */
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/input.h>
#include <ctitan/lib/decoder.h>
#include <ctitan/lib/names.h>
#include <ctitan/lib/stored.h>

/* A weight's whole name: '#' is the number of the current layer. */
static const char *expand(const struct ct_decoder *d, const char *name)
{
    return ct_stored_numbered(d->b.graph->arena, name, d->layer);
}

static struct ct_value *project(struct ct_decoder *d, struct ct_value *x, const char *name)
{
    int64_t dim = d->sizes->dim;
    struct ct_value *w;

    w = ct_parameter(&d->b, ct_decoder_text(d, "%s.weight", expand(d, name)), 2,
                     (int64_t[]){dim, 2 * dim}, ct_init_weight(0.02, 1));
    return ct_linear(&d->b, ct_decoder_named(d, "ahead"), x, w);
}

/* The input of depth k at each token: of the token k places behind it, and of the depth before. */
static struct ct_value *join(struct ct_decoder *d, struct ct_value *x, int64_t k,
                             const struct ct_predictions *p,
                             const struct ct_prediction_parts *parts)
{
    int64_t shape[] = {d->request->batch, d->request->seq_len};
    struct ct_value *tokens, *pair[2];
    const char *name;

    name = ct_decoder_text(d, "tokens_ahead_%lld", (long long)k);
    tokens = d->request->loss ? ct_input(&d->b, name, shape) : d->tokens;
    pair[0] = parts->embed(d, "ahead_embedding", tokens);
    pair[0] = parts->norm(d, "ahead_embedding_norm", pair[0], expand(d, p->embedding_norm));
    pair[1] = parts->norm(d, "ahead_hidden_norm", x, expand(d, p->hidden_norm));
    x = ct_concat(&d->b, ct_decoder_named(d, "ahead_pair"), pair, 2, 2);
    return project(d, x, p->projection);
}

static void add_loss(struct ct_decoder *d, struct ct_value *x, int64_t k,
                     const struct ct_predictions *p, const struct ct_prediction_parts *parts)
{
    int64_t shape[] = {d->request->batch, d->request->seq_len};
    struct ct_value *labels, *count;
    const char *name[3];

    name[0] = ct_decoder_text(d, "logits_ahead_%lld", (long long)k);
    name[1] = ct_decoder_text(d, "labels_ahead_%lld", (long long)k);
    name[2] = ct_decoder_text(d, "mtp_loss_%lld", (long long)k);
    labels = ct_input(&d->b, name[1], shape);
    count = ct_input(&d->b, "valid_tokens", NULL);
    x = parts->logits(d, name[0], x);
    x = ct_cross_entropy(&d->b, name[2], x, labels);
    ct_graph_fetch_loss(d->b.graph, name[2], x, count, p->weight / (double)p->depths);
}

/* The current layer is that of depth k. */
static void begin(struct ct_decoder *d, int64_t k, const struct ct_predictions *p)
{
    d->layer = d->sizes->layers + k - 1;
    d->depth_std = ct_decoder_depth_std(d->layer);
    d->b.region = ct_arena_printf(d->b.graph->arena, "layers.%lld", (long long)d->layer);
    if (p->layers) {
        d->layers = p->layers;
        d->from = d->sizes->layers;
    }
}

/* The losses are means over the labels, so an objective that counts something else has none. */
static int check_count(const struct ct_graph *graph)
{
    const char *labels = ct_default_counts[0].name;

    for (const struct ct_count *c = ct_graph_counts(graph); c->name; c++)
        if (!strcmp(c->name, labels))
            return 0;
    return ct_fail(CT_ECONFIG,
                   "mtp: its losses are means over %s, but this objective counts %s: set mtp = 0, "
                   "or take another [objective]",
                   labels, ct_graph_counts(graph)->name);
}

/* The losses stand behind all depths, in the head, so that regions follow each other and a pipeline
   may be cut between any two. */
void ct_decoder_predict(struct ct_decoder *d, struct ct_value *x, const struct ct_predictions *p,
                        const struct ct_prediction_parts *parts)
{
    struct ct_graph *graph = d->b.graph;
    struct ct_decoder before = *d;
    struct ct_value **read = ct_arena_array(graph->arena, struct ct_value *, p->depths + 1);
    bool same = graph->same_parameters;

    if (d->request->loss && p->depths && d->b.status == 0)
        d->b.status = check_count(graph);
    for (int64_t k = 1; k <= p->depths; k++) {
        begin(d, k, p);
        x = join(d, x, k, p, parts);
        x = parts->layer(d, x);
        x = read[k] = parts->norm(d, "ahead_norm", x, expand(d, p->norm));
        graph->same_parameters = true; /* depths may share them */
    }
    d->b.region = CT_REGION_HEAD;
    for (int64_t k = 1; d->request->loss && k <= p->depths; k++)
        add_loss(d, read[k], k, p, parts);
    graph->same_parameters = same;
    d->layer = before.layer;
    d->layers = before.layers;
    d->from = before.from;
    d->depth_std = before.depth_std;
    d->b.region = before.b.region;
}

void ct_decoder_predicted(struct ct_decoder *d, const struct ct_predictions *p)
{
    if (p->depths && !d->request->loss && d->b.status == 0)
        ct_graph_sweep(d->b.graph);
}

double ct_prediction_flops(const struct ct_decoder_sizes *s)
{
    return 6 * (double)s->dim * (double)(2 * s->dim + s->vocabulary);
}

/* ---- copies in files ---- */

int ct_prediction_stored(struct ct_arena *arena, const struct ct_predictions *p, int64_t layers,
                         const char *embedding, const char *head, struct ct_stored_rule *rules)
{
    const char *copies[] = {p->embedding_copies, head ? p->head_copies : NULL};
    const char *names[] = {embedding, head};
    int count = 0;

    for (int64_t i = 0; i < 2 * p->depths; i++)
        if (copies[i % 2])
            rules[count++].suffix = ct_arena_printf(
                arena, "%s.weight",
                ct_stored_numbered(arena, strchr(copies[i % 2], '.'), layers + i / 2));
    for (int i = 0; i < 2; i++)
        if (copies[i] && p->depths)
            rules[count++] =
                (struct ct_stored_rule){.suffix = ct_arena_printf(arena, "%s.weight", names[i]),
                                        .stored = ct_arena_printf(arena, "%s.weight", names[i]),
                                        .copies = ct_arena_printf(arena, "%s.weight", copies[i]),
                                        .first_copy = layers,
                                        .copied = p->depths};
    return count;
}
