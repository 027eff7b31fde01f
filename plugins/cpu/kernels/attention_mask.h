/*
 * Who sees whom in attention, by tiles of queries and keys.
 *
 * A query sees the keys of its document at its own position or before, and of these only a window
 * of the last ones, if there is one; without causality it sees all of its document. Positions and
 * documents are given by token, or not at all: then tokens are in order, from the one on that this
 * rank's shard begins with, and of one document. Bounds of both, for each tile, say of most pairs
 * of tiles that nothing is seen, and they are skipped; or that everything is, and nothing is
 * masked.
 */
#ifndef CPU_KERNELS_ATTENTION_MASK_H
#define CPU_KERNELS_ATTENTION_MASK_H

#include <ctitan/op.h>

#include "attention.h"

struct tile_bounds {
    int32_t document[2], position[2]; /* least and greatest */
    bool run;                         /* positions rise by one from token to token */
    int64_t tokens;
};

/* Queries, or keys. */
struct side {
    const int32_t *documents, *positions;           /* [batch][tokens]; NULL: none, in order */
    int64_t document_stride[2], position_stride[2]; /* by sequence, by token */
    int64_t first;                                  /* position, where they are in order */
    bool behind;                                    /* queries after all keys */
    int64_t tokens, tiles;
    struct tile_bounds *bounds; /* [batch][tiles] */
};

struct attention_mask {
    struct side queries, keys;
    int64_t window; /* a query sees keys closer than this */
};

/* A window around a query would need two bounds of its keys. */
static inline bool can_mask(const struct ct_op *op)
{
    return ct_op_bool(op, "causal") || !ct_op_int(op, "window");
}

static inline size_t mask_bytes(const struct attention *a)
{
    return (size_t)(a->batch * (a->query_tiles + a->key_tiles)) * sizeof(struct tile_bounds);
}

static inline int32_t document_of(const struct side *s, int64_t b, int64_t token)
{
    return s->documents ? s->documents[b * s->document_stride[0] + token * s->document_stride[1]]
                        : 0;
}

static inline int32_t position_of(const struct side *s, int64_t b, int64_t token)
{
    if (s->behind)
        return INT32_MAX - 1;
    return s->positions ? s->positions[b * s->position_stride[0] + token * s->position_stride[1]]
                        : (int32_t)(s->first + token);
}

static inline void widen(int32_t bounds[2], int32_t value)
{
    bounds[0] = value < bounds[0] ? value : bounds[0];
    bounds[1] = value > bounds[1] ? value : bounds[1];
}

static inline struct tile_bounds bounds_of(const struct side *s, int64_t b, int64_t tile)
{
    int64_t begin = tile * TILE, n = tokens_in(s->tokens, tile);
    int32_t document = document_of(s, b, begin), position = position_of(s, b, begin);
    struct tile_bounds t = {{document, document}, {position, position}, !s->behind, n};

    for (int64_t i = 1; i < n && s->documents; i++)
        widen(t.document, document_of(s, b, begin + i));
    for (int64_t i = 1; i < n && s->positions; i++) {
        int32_t next = position_of(s, b, begin + i);
        widen(t.position, next);
        t.run &= next == position + i;
    }
    if (!s->positions && !s->behind)
        t.position[1] = (int32_t)(position + n - 1);
    return t;
}

static inline struct tile_bounds *bounds_at(const struct side *s, int64_t b, int64_t tile)
{
    return s->bounds + b * s->tiles + tile;
}

static inline void side_bound(struct side *s, int64_t batch)
{
    for (int64_t b = 0; b < batch; b++)
        for (int64_t tile = 0; tile < s->tiles; tile++)
            *bounds_at(s, b, tile) = bounds_of(s, b, tile);
}

/* An optional input; data NULL: absent. */
static inline struct ct_tensor optional(const struct ct_launch *launch, int i)
{
    return i < launch->ins ? launch->in[i] : (struct ct_tensor){0};
}

/* The queries are input `at`, keys the next; documents and positions are the inputs from `more`
   on. */
static inline struct attention_mask mask_of(const struct ct_launch *launch, int at, int more,
                                            const struct attention *a, void *workspace)
{
    struct attention_mask s = {.queries = {.tokens = a->queries, .tiles = a->query_tiles},
                               .keys = {.tokens = a->keys, .tiles = a->key_tiles}};
    struct side *sides[2] = {&s.queries, &s.keys};
    int64_t window = ct_op_int(launch->op, "window");

    s.window = window ? window : INT64_MAX;
    s.queries.behind = !ct_op_bool(launch->op, "causal");
    s.queries.bounds = workspace;
    s.keys.bounds = s.queries.bounds + a->batch * a->query_tiles;
    for (int i = 0; i < 2; i++) {
        struct ct_tensor d = optional(launch, more + i), p = optional(launch, more + 2 + i);

        if (!d.data)
            d = optional(launch, more); /* shared */
        sides[i]->documents = d.data;
        sides[i]->positions = p.data;
        memcpy(sides[i]->document_stride, d.stride, 2 * sizeof(*d.stride));
        memcpy(sides[i]->position_stride, p.stride, 2 * sizeof(*p.stride));
        sides[i]->first = ct_launch_offset(launch, launch->op->in[at + i], 1);
        side_bound(sides[i], a->batch);
    }
    return s;
}

/* Visibility of a pair of tiles. */
enum {
    HIDDEN = 1,      /* no query sees a key */
    DIAGONAL = 2,    /* query i sees keys 0 .. i */
    BY_POSITION = 4, /* scores are to be masked by position; */
    BY_DOCUMENT = 8, /* by document */
};

static inline unsigned mask_between(const struct attention_mask *s, int64_t b, int64_t query_tile,
                                    int64_t key_tile)
{
    const struct tile_bounds *q = bounds_at(&s->queries, b, query_tile);
    const struct tile_bounds *k = bounds_at(&s->keys, b, key_tile);
    unsigned how = 0;

    if (k->position[0] > q->position[1] || k->document[0] > q->document[1] ||
        k->document[1] < q->document[0] || (int64_t)q->position[0] - k->position[1] >= s->window)
        return HIDDEN;
    if ((int64_t)q->position[1] - k->position[0] >= s->window)
        how = BY_POSITION;
    else if (q->run && k->run && q->position[0] == k->position[0] &&
             (k->tokens == TILE || k->tokens >= q->tokens))
        how = DIAGONAL;
    else if (k->position[1] > q->position[0] || k->tokens < TILE)
        how = BY_POSITION;
    if (k->document[0] != q->document[1] || k->document[1] != q->document[0])
        how |= BY_DOCUMENT;
    return how;
}

/* Does one of the query tiles first, first + step, .. see a key of the tile? */
static inline bool is_seen(const struct attention_mask *s, int64_t b, int64_t first, int64_t step,
                           int64_t key_tile)
{
    int64_t last = s->queries.tiles - 1;

    for (int64_t i = last - (last - first) % step; i >= first; i -= step)
        if (!(mask_between(s, b, i, key_tile) & HIDDEN))
            return true;
    return false;
}

/* Does a query of the tile see one of the key tiles [begin, end)? */
static inline bool sees_any(const struct attention_mask *s, int64_t b, int64_t query_tile,
                            int64_t begin, int64_t end)
{
    for (int64_t j = begin; j < end; j++)
        if (!(mask_between(s, b, query_tile, j) & HIDDEN))
            return true;
    return false;
}

struct places {
    int32_t position[TILE], document[TILE];
};

/* Tokens that do not exist come after all others. */
static inline void find_places(const struct side *s, int64_t b, int64_t tile, bool in_order,
                               struct places *p)
{
    int64_t begin = tile * TILE, n = tokens_in(s->tokens, tile);

    for (int64_t i = 0; i < TILE; i++) {
        p->document[i] = i < n ? document_of(s, b, begin + i) : 0;
        p->position[i] = in_order ? (int32_t)i : i < n ? position_of(s, b, begin + i) : INT32_MAX;
    }
}

/* Scores of pairs that may not see each other become MASKED. */
static inline void mask_scores(const struct attention_mask *s, int64_t b, int64_t query_tile,
                               int64_t key_tile, unsigned how, float *scores)
{
    bool diagonal = how & DIAGONAL;
    struct places queries, keys;

    if (!how)
        return;
    find_places(&s->queries, b, query_tile, diagonal, &queries);
    find_places(&s->keys, b, key_tile, diagonal, &keys);
    for (int64_t q = 0; q < TILE; q += CPU_LANES) {
        int64_t begin = how == DIAGONAL ? q / GRAIN * GRAIN : 0, end = keys_of(diagonal, q);
        vi position, document;

        memcpy(&position, queries.position + q, sizeof(position));
        memcpy(&document, queries.document + q, sizeof(document));
        for (int64_t k = begin; k < end; k++) {
            vi seen = position >= keys.position[k];

            if (how & BY_POSITION && s->window < INT32_MAX)
                seen &= position - keys.position[k] < (int32_t)s->window;
            if (how & BY_DOCUMENT)
                seen &= document == keys.document[k];
            v_store(scores + k * TILE + q,
                    v_select(seen, v_load(scores + k * TILE + q), v_set(MASKED)));
        }
    }
}

#endif
