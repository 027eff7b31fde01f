/*
 * The rules by which files store a model's weights, and by which ranks split them: both follow from
 * the names of its parts and from its sizes.
 */
#include <stdio.h>
#include <string.h>

#include "decoder.h"

#define MOST 64 /* rules, without those of predictions */

struct rules {
    struct ct_arena *arena;
    struct ct_stored_rule *rule;
    size_t count;
};

static struct ct_stored_rule *add(struct rules *r, const char *what, const char *kind,
                                  const char *stored)
{
    struct ct_stored_rule *rule = &r->rule[r->count++];

    rule->suffix = ct_arena_printf(r->arena, ".%s.%s", what, kind);
    rule->stored = ct_arena_printf(r->arena, ".%s", stored);
    return rule;
}

/* Rows of q, k and v in one tensor: those of each head in turn, or of all heads. */
static struct ct_stored_rows rows_of(const struct ct_model *m, int part)
{
    const struct ct_decoder_sizes *z = &m->sizes;
    int64_t q = z->heads * z->head_dim, kv = z->kv_heads * z->head_dim, own = part ? kv : q;

    if (m->family->fused == FUSED_HEADS)
        return (struct ct_stored_rows){.own = own,
                                       .all = q + 2 * kv,
                                       .offset = part * z->head_dim,
                                       .block = z->head_dim,
                                       .stride = 3 * z->head_dim};
    return (struct ct_stored_rows){.own = own,
                                   .all = q + 2 * kv,
                                   .offset = part ? q + (part - 1) * kv : 0,
                                   .block = own,
                                   .stride = q + 2 * kv};
}

static void add_fused(const struct ct_model *m, struct rules *r)
{
    static const char *const kinds[] = {"weight", "bias"};
    const char *const *w = m->family->weight;

    for (int kind = 0; kind < 2; kind++) {
        const char *name = kinds[kind];

        for (int part = 0; m->family->qkv && part < 3; part++) {
            struct ct_stored_rule *rule =
                add(r, w[WEIGHT_Q + part], name,
                    ct_arena_printf(r->arena, "%s.%s", m->family->qkv, name));

            rule->part = part;
            rule->parts = 3;
            rule->rows = rows_of(m, part);
        }
        for (int part = 0; m->family->gate_up && part < 2; part++) {
            struct ct_stored_rule *rule =
                add(r, w[WEIGHT_GATE + part], name,
                    ct_arena_printf(r->arena, "%s.%s", m->family->gate_up, name));

            rule->part = part;
            rule->parts = 2;
        }
        if (m->family->down)
            add(r, w[WEIGHT_DOWN], name, ct_arena_printf(r->arena, "%s.%s", m->family->down, name));
    }
}

/* A part of a tensor whose parts have rows of their own. */
static void add_part(struct rules *r, const char *what, const char *stored, int part, int parts,
                     struct ct_stored_rows rows)
{
    struct ct_stored_rule *rule =
        add(r, what, "weight", ct_arena_printf(r->arena, "%s.weight", stored));

    rule->part = part;
    rule->parts = parts;
    rule->rows = rows;
}

/* Rows of parts of these sizes that take turns, by head of keys. */
static void add_by_heads(const struct ct_model *m, struct rules *r, const char *stored,
                         const char *const *names, const int64_t *sizes, int parts)
{
    const char *where = m->family->weight[WEIGHT_LINEAR];
    int64_t stride = 0, at = 0;

    for (int i = 0; i < parts; i++)
        stride += sizes[i];
    for (int i = 0; i < parts; at += sizes[i++])
        add_part(r, ct_arena_printf(r->arena, "%s.%s_proj", where, names[i]),
                 ct_arena_printf(r->arena, "%s.%s", where, stored), i, parts,
                 (struct ct_stored_rows){m->linear.key_heads * sizes[i],
                                         m->linear.key_heads * stride, at, sizes[i], stride});
}

/* Rows of all of q, then k, then v: "%s_proj" in in_proj_qkv, "%s_conv" in conv1d. */
static void add_by_rows(const struct ct_model *m, struct rules *r, const char *stored,
                        const char *kind)
{
    static const char *const names[] = {"q", "k", "v"};
    const struct decoder_linear *z = &m->linear;
    const char *where = m->family->weight[WEIGHT_LINEAR];
    int64_t sizes[] = {z->key_heads * z->key_dim, z->key_heads * z->key_dim,
                       z->value_heads * z->value_dim},
            all = sizes[0] + sizes[1] + sizes[2], at = 0;

    for (int i = 0; i < 3; at += sizes[i++])
        add_part(r, ct_arena_printf(r->arena, "%s.%s_%s", where, names[i], kind),
                 ct_arena_printf(r->arena, "%s.%s", where, stored), i, 3,
                 (struct ct_stored_rows){sizes[i], all, at, sizes[i], all});
}

static void add_linear(const struct ct_model *m, struct rules *r)
{
    const struct decoder_linear *z = &m->linear;
    const char *where = m->family->weight[WEIGHT_LINEAR];
    int64_t share = z->key_heads ? z->value_heads / z->key_heads : 0, v = share * z->value_dim;

    if (m->family->linear == LINEAR_NONE)
        return;
    add_by_rows(m, r, "conv1d", "conv");
    if (m->family->linear == LINEAR_HEADS) {
        add_by_heads(m, r, "in_proj_qkvz", (const char *const[]){"q", "k", "v", "z"},
                     (int64_t[]){z->key_dim, z->key_dim, v, v}, 4);
        add_by_heads(m, r, "in_proj_ba", (const char *const[]){"b", "a"}, (int64_t[]){share, share},
                     2);
        return;
    }
    add_by_rows(m, r, "in_proj_qkv", "proj");
    for (int i = 0; i < 3; i++) {
        const char *name = (const char *const[]){"z", "b", "a"}[i];

        add(r, ct_arena_printf(r->arena, "%s.%s_proj", where, name), "weight",
            ct_arena_printf(r->arena, "%s.in_proj_%s.weight", where, name));
    }
}

/* Queries of a head, then its gate. */
static void add_output_gate(const struct ct_model *m, struct rules *r)
{
    static const char *const kinds[] = {"weight", "bias"};
    const char *const *w = m->family->weight;
    int64_t size = m->sizes.head_dim, own = m->sizes.heads * size;

    for (int i = 0; m->output_gate && i < 4; i++) {
        const char *kind = kinds[i / 2];
        struct ct_stored_rule *rule = add(r, w[i % 2 ? WEIGHT_Q_GATE : WEIGHT_Q], kind,
                                          ct_arena_printf(r->arena, "%s.%s", w[WEIGHT_Q], kind));

        rule->part = i % 2;
        rule->parts = 2;
        rule->rows = (struct ct_stored_rows){own, 2 * own, i % 2 * size, size, 2 * size};
    }
}

/* Tensors of experts, of each or of all, and of each head's norm. */
static void add_stacked(const struct ct_model *m, struct rules *r)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    const struct family *f = m->family;

    for (int i = decoder_squares(m); m->mixture.experts && !f->experts_down && i < 3; i++)
        add(r, ct_arena_printf(r->arena, "%s.%s", f->weight[WEIGHT_EXPERTS], parts[i]), "weight",
            ct_arena_printf(r->arena, "%s.#.%s.weight", f->weight[WEIGHT_EXPERTS],
                            f->expert[i] ? f->expert[i] : parts[i]));
    for (int i = 0; m->mixture.experts && f->experts_down && i < 3; i++) {
        struct ct_stored_rule *rule = add(
            r, ct_arena_printf(r->arena, "%s.%s", f->weight[WEIGHT_EXPERTS], parts[i]), "weight",
            ct_arena_printf(r->arena, "%s%s", i < 2 ? f->experts_gate_up : f->experts_down,
                            f->experts_transposed ? "" : ".weight"));

        rule->transposed = f->experts_transposed;
        rule->part = i % 2;
        rule->parts = i < 2 ? 2 : 0;
    }
    for (int i = 0; i < 2; i++)
        if (f->each_norm[i])
            add(r, f->weight[WEIGHT_Q_NORM + i], "weight",
                ct_arena_printf(r->arena, "%s.#.weight", f->each_norm[i]));
}

/* Parts of the projection and of the convolution of Mamba-2, whose tensors have all of their rows
   in this order. */
static void add_mamba(const struct ct_model *m, struct rules *r)
{
    static const char *const parts[] = {"gate", "x", "b", "c", "dt"};
    const struct decoder_state *s = &m->state;
    int64_t width = s->heads * s->head_dim, shared = s->groups * s->size;
    int64_t rows[] = {width, width, shared, shared, s->heads},
            all = 2 * (width + shared) + s->heads;
    const char *mixer = m->family->weight[WEIGHT_MIXER];

    for (int i = 0, at = 0; m->mixer == MIXER_MAMBA && i < 5; at += (int)rows[i++]) {
        struct ct_stored_rule *rule =
            add(r, ct_arena_printf(r->arena, "%s.%s_proj", mixer, parts[i]), "weight",
                ct_arena_printf(r->arena, "%s.in_proj.weight", mixer));

        rule->part = i;
        rule->parts = 5;
        rule->rows = (struct ct_stored_rows){rows[i], all, at, rows[i], all};
    }
    for (int kind = 0; m->mixer == MIXER_MAMBA && kind < 2; kind++)
        for (int i = 1, at = 0; i < 4; at += (int)rows[i++]) {
            const char *name = kind ? "bias" : "weight";
            struct ct_stored_rule *rule =
                add(r, ct_arena_printf(r->arena, "%s.%s_conv", mixer, parts[i]), name,
                    ct_arena_printf(r->arena, "%s.conv1d.%s", mixer, name));

            rule->part = i - 1;
            rule->parts = 3;
            rule->rows = (struct ct_stored_rows){rows[i], width + 2 * shared, at, rows[i],
                                                 width + 2 * shared};
        }
}

/* The projections of a gated convolution, which are one tensor. */
static void add_conv(const struct ct_model *m, struct rules *r)
{
    static const char *const parts[] = {"b", "c", "x"}, *const kinds[] = {"weight", "bias"};
    const char *where = m->family->weight[WEIGHT_CONV];

    for (int i = 0; m->mixer == MIXER_CONV && i < 6; i++) {
        struct ct_stored_rule *rule =
            add(r, ct_arena_printf(r->arena, "%s.%s_proj", where, parts[i % 3]), kinds[i / 3],
                ct_arena_printf(r->arena, "%s.in_proj.%s", where, kinds[i / 3]));

        rule->part = i % 3;
        rule->parts = 3;
    }
}

/* In its own dtype whatever the files' is. */
static void add_correction(const struct ct_model *m, struct rules *r)
{
    struct ct_stored_rule *rule;

    if (!m->mixture.corrected)
        return;
    rule = &r->rule[r->count++];
    rule->suffix = rule->stored = CT_MIXTURE_CORRECTION;
    rule->whole_dtype = true;
    if (!m->family->correction)
        return;
    rule->suffix =
        ct_arena_printf(r->arena, ".%s" CT_MIXTURE_CORRECTION, m->family->weight[WEIGHT_ROUTER]);
    rule->stored = ct_arena_printf(r->arena, ".%s", m->family->correction);
}

/* One tensor has rows of no position in front of those of positions. */
static void add_places(const struct ct_model *m, struct rules *r)
{
    const char *where = m->family->weight[WEIGHT_PLACES];
    int64_t first = m->first_position, rows = m->sizes.max_position, all = first + rows;

    for (int i = 0; m->positions == POSITIONS_LEARNED && first && i < 2; i++) {
        struct ct_stored_rule *rule = &r->rule[r->count++];

        rule->suffix = ct_arena_printf(r->arena, "%s.%s", where, i ? "weight" : "unused");
        rule->stored = ct_arena_printf(r->arena, "%s.weight", where);
        rule->part = i;
        rule->parts = 2;
        rule->rows = i ? (struct ct_stored_rows){rows, all, first, rows, all}
                       : (struct ct_stored_rows){first, all, 0, first, all};
    }
}

static void add_ignored(const struct family *f, struct rules *r)
{
    char *rest = ct_arena_strdup(r->arena, f->ignored ? f->ignored : ""), *end;

    while ((end = strsep(&rest, " ")) && r->count < MOST)
        if (*end)
            r->rule[r->count++].suffix = end;
}

const struct ct_stored_rule *decoder_stored(const struct ct_model *m, struct ct_arena *arena)
{
    size_t copies = (size_t)(CT_PREDICTION_RULES * (m->predictions.depths + 1));
    struct rules r = {arena, ct_arena_array(arena, struct ct_stored_rule, MOST + copies + 1), 0};
    const char *const *w = m->family->weight;

    r.count =
        (size_t)ct_prediction_stored(arena, &m->predictions, m->sizes.layers, w[WEIGHT_EMBEDDING],
                                     m->sizes.tied ? NULL : w[WEIGHT_HEAD], r.rule);
    add_fused(m, &r);
    add_output_gate(m, &r);
    add_linear(m, &r);
    add_stacked(m, &r);
    add_mamba(m, &r);
    add_conv(m, &r);
    add_correction(m, &r);
    add_places(m, &r);
    add_ignored(m->family, &r);
    return r.rule;
}

const struct ct_shard_rule *decoder_shard_plan(const struct ct_model *m, struct ct_arena *arena)
{
    const char *const *w = m->family->weight;
    const struct {
        const char *pattern;
        int how;
    } rules[] = {
        {ct_arena_printf(arena, "%s.weight", w[WEIGHT_EMBEDDING]), CT_SHARD_VOCAB},
        {ct_arena_printf(arena, "%s.*", w[WEIGHT_HEAD]), CT_SHARD_VOCAB},
        {ct_arena_printf(arena, "*.%s.*", w[WEIGHT_Q]), CT_SHARD_COLWISE},
        {ct_arena_printf(arena, "*.%s.*", w[WEIGHT_Q_GATE]), CT_SHARD_COLWISE},
        {ct_arena_printf(arena, "*.%s.norm.weight", w[WEIGHT_LINEAR]), CT_SHARD_REPLICATE},
        {ct_arena_printf(arena, "*.%s.*_conv.weight", w[WEIGHT_LINEAR]), CT_SHARD_REPLICATE},
        {ct_arena_printf(arena, "*.%s.out_proj.weight", w[WEIGHT_LINEAR]), CT_SHARD_ROWWISE},
        {ct_arena_printf(arena, "*.%s.*", w[WEIGHT_LINEAR]), CT_SHARD_COLWISE},
        {ct_arena_printf(arena, "*.%s.gate_proj.weight", w[WEIGHT_SHARED]), CT_SHARD_COLWISE},
        {ct_arena_printf(arena, "*.%s.up_proj.weight", w[WEIGHT_SHARED]), CT_SHARD_COLWISE},
        {ct_arena_printf(arena, "*.%s.down_proj.weight", w[WEIGHT_SHARED]), CT_SHARD_ROWWISE},
        {ct_arena_printf(arena, "*.%s.*", w[WEIGHT_K]), CT_SHARD_COLWISE},
        {ct_arena_printf(arena, "*.%s.*", w[WEIGHT_V]), CT_SHARD_COLWISE},
        {ct_arena_printf(arena, "*.%s.weight", w[WEIGHT_O]), CT_SHARD_ROWWISE},
        {ct_arena_printf(arena, "*.%s.bias", w[WEIGHT_O]), CT_SHARD_REPLICATE},
        {ct_arena_printf(arena, "*.%s.*", w[WEIGHT_GATE]), CT_SHARD_COLWISE},
        {ct_arena_printf(arena, "*.%s.*", w[WEIGHT_UP]), CT_SHARD_COLWISE},
        {ct_arena_printf(arena, "*.%s.weight", w[WEIGHT_DOWN]), CT_SHARD_ROWWISE},
        {ct_arena_printf(arena, "*.%s.bias", w[WEIGHT_DOWN]), CT_SHARD_REPLICATE},
        {ct_arena_printf(arena, "*.%s.gate_proj.weight", w[WEIGHT_EXPERTS]), CT_SHARD_COLWISE},
        {ct_arena_printf(arena, "*.%s.up_proj.weight", w[WEIGHT_EXPERTS]), CT_SHARD_COLWISE},
        {ct_arena_printf(arena, "*.%s.down_proj.weight", w[WEIGHT_EXPERTS]), CT_SHARD_ROWWISE},
        {ct_arena_printf(arena, "*.%s.?_proj.*", w[WEIGHT_CONV]), CT_SHARD_COLWISE},
        {ct_arena_printf(arena, "*.%s.out_proj.weight", w[WEIGHT_CONV]), CT_SHARD_ROWWISE},
        {ct_arena_printf(arena, "*.%s.gate_proj.weight", w[WEIGHT_MIXER]), CT_SHARD_COLWISE},
        {ct_arena_printf(arena, "*.%s.x_proj.weight", w[WEIGHT_MIXER]), CT_SHARD_COLWISE},
        {ct_arena_printf(arena, "*.%s.dt_proj.weight", w[WEIGHT_MIXER]), CT_SHARD_COLWISE},
        {ct_arena_printf(arena, "*.%s.out_proj.weight", w[WEIGHT_MIXER]), CT_SHARD_ROWWISE},
        {"*", CT_SHARD_REPLICATE}, /* norms, routers, and what heads of Mamba-2 share */
    };
    struct ct_shard_rule *plan = ct_arena_array(arena, struct ct_shard_rule, CT_COUNT(rules) + 1);

    for (size_t i = 0; i < CT_COUNT(rules); i++) {
        plan[i].pattern = rules[i].pattern;
        plan[i].how = rules[i].how;
    }
    return plan;
}
