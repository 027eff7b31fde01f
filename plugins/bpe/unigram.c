#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "unicode.h"
#include "unigram.h"

#define PENALTY 10 /* of an unknown character, below the lowest score */

/* The best way to split the text up to here. */
struct unigram_node {
    double score;
    size_t from; /* its last token begins here; SIZE_MAX: there is no way, yet */
    int32_t id;
};

/* ---- opening ---- */

static const struct vocabulary *sorting;

static int compare(const void *a, const void *b)
{
    const struct vocabulary_token *x = &sorting->tokens[*(const int32_t *)a];
    const struct vocabulary_token *y = &sorting->tokens[*(const int32_t *)b];
    size_t size = x->size < y->size ? x->size : y->size;
    int order = size ? memcmp(x->bytes, y->bytes, size) : 0;

    return order ? order : (x->size > y->size) - (x->size < y->size);
}

int unigram_open(struct unigram *u, const struct vocabulary *v, double *scores, size_t count)
{
    double least = count ? scores[0] : 0;

    *u = (struct unigram){.scores = scores, .unknown = -1};
    u->sorted = malloc((count ? count : 1) * sizeof(*u->sorted));
    if (!u->sorted)
        return ct_fail(CT_ENOMEM, "%zu tokens", count);
    for (size_t i = 0; i < count; i++) {
        const struct vocabulary_token *token = &v->tokens[i];

        least = scores[i] < least ? scores[i] : least;
        if (token->size && vocabulary_find(v, token->bytes, token->size) == (int32_t)i)
            u->sorted[u->count++] = (int32_t)i;
    }
    sorting = v;
    qsort(u->sorted, u->count, sizeof(*u->sorted), compare);
    for (size_t i = u->count; i-- > 0;)
        u->first[(unsigned char)v->tokens[u->sorted[i]].bytes[0]] = i;
    u->first[256] = u->count;
    for (int b = 256; b-- > 0;)
        if (u->first[b] >= u->count ||
            (unsigned char)v->tokens[u->sorted[u->first[b]]].bytes[0] != b)
            u->first[b] = u->first[b + 1];
    u->unknown_score = least - PENALTY;
    return 0;
}

void unigram_close(struct unigram *u)
{
    free(u->scores);
    free(u->sorted);
    free(u->nodes);
    *u = (struct unigram){0};
}

/* ---- the best way ---- */

static void offer(struct unigram *u, size_t from, size_t to, int32_t id, double score)
{
    struct unigram_node *node = &u->nodes[to];
    double sum = score + u->nodes[from].score;

    if (node->from == SIZE_MAX || sum > node->score)
        *node = (struct unigram_node){sum, from, id};
}

/* The first of sorted[low, high) whose byte number `depth` is at least `byte`. */
static size_t lower(const struct unigram *u, const struct vocabulary *v, size_t low, size_t high,
                    size_t depth, int byte)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if ((unsigned char)v->tokens[u->sorted[middle]].bytes[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Offer all tokens that begin here. Returns whether one is a single character. */
static bool offer_all(struct unigram *u, const struct vocabulary *v, const char *part, size_t from,
                      size_t size, size_t width)
{
    size_t low = u->first[(unsigned char)part[from]];
    size_t high = u->first[(unsigned char)part[from] + 1];
    bool single = false;

    for (size_t depth = 1; low < high; depth++) {
        int32_t id = u->sorted[low];

        if (v->tokens[id].size == depth) {
            offer(u, from, from + depth, id, u->scores[id]);
            single |= depth == width;
            low++;
        }
        if (from + depth == size)
            break;
        low = lower(u, v, low, high, depth, (unsigned char)part[from + depth]);
        high = lower(u, v, low, high, depth, (unsigned char)part[from + depth] + 1);
    }
    return single;
}

static int search(struct unigram *u, const struct vocabulary *v, const char *part, size_t size)
{
    size_t width;

    for (size_t i = 0; i <= size; i++)
        u->nodes[i] = (struct unigram_node){0, SIZE_MAX, -1};
    for (size_t from = 0; from < size; from += width) {
        unicode_at(part + from, &width);
        if (offer_all(u, v, part, from, size, width))
            continue;
        if (u->unknown < 0 && u->nodes[from + width].from == SIZE_MAX)
            return ct_fail(CT_EINVAL, "no token for '%.*s', and model: unk_id is null", (int)width,
                           part + from);
        if (u->unknown >= 0)
            offer(u, from, from + width, u->unknown, u->unknown_score);
    }
    return 0;
}

/* Adjacent unknown characters are one. Its bytes have tokens, or it is unknown. */
static void put(const struct unigram *u, const struct vocabulary *v, const char *part, size_t from,
                size_t to, struct ids *out)
{
    int32_t id = vocabulary_find(v, part + from, to - from);

    if (id < 0 && u->byte_fallback && v->fallback[0] >= 0)
        for (size_t i = from; i < to; i++)
            ids_put(out, v->fallback[(unsigned char)part[i]], from, to);
    else
        ids_put(out, id < 0 ? u->unknown : id, from, to);
}

/* Turn the way back into one that goes forth: from becomes the end of the token that begins
   here. */
static void turn(struct unigram *u, size_t size)
{
    size_t at = size, next = SIZE_MAX;
    int32_t id = -1;

    for (;;) {
        struct unigram_node *node = &u->nodes[at], back = *node;

        node->from = next;
        node->id = id;
        if (at == 0)
            return;
        next = at;
        id = back.id;
        at = back.from;
    }
}

int unigram_encode(struct unigram *u, const struct vocabulary *v, const char *part, size_t size,
                   struct ids *out)
{
    struct unigram_node *nodes;
    int rc;

    if (size + 1 > u->room) {
        nodes = realloc(u->nodes, 2 * (size + 1) * sizeof(*nodes));
        if (!nodes)
            return ct_fail(CT_ENOMEM, "splitting %zu bytes", size);
        u->nodes = nodes;
        u->room = 2 * (size + 1);
    }
    rc = search(u, v, part, size);
    if (rc < 0)
        return rc;
    turn(u, size);
    for (size_t at = 0; at < size;) {
        size_t from = at;
        bool unknown = u->nodes[at].id == u->unknown;

        do
            at = u->nodes[at].from;
        while (unknown && at < size && u->nodes[at].id == u->unknown);
        put(u, v, part, from, at, out);
    }
    return 0;
}
