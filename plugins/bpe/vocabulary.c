#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "unicode.h"
#include "vocabulary.h"

#define CACHED_BYTES 24
#define CACHED_IDS 7
#define CACHE_BITS 15

struct merge {
    int32_t left, right; /* left -1: free */
    uint32_t rank;
    int32_t id;
};

struct cached {
    char bytes[CACHED_BYTES]; /* padded with zeros */
    uint8_t size, count;      /* size 0: free */
    int32_t ids[CACHED_IDS];
};

/* A part while it is merged: a list of tokens in an array, each at its first byte. */
#define LAST UINT32_MAX /* no next one */
struct symbol {
    int32_t id; /* -1: merged into the one before */
    uint32_t previous, next;
    uint32_t end; /* of its bytes, which begin at its index */
};

struct vocabulary_table {
    int32_t *ids; /* by hash of their bytes; -1: free */
    size_t id_mask;
    struct merge *merges; /* by hash of the pair */
    size_t merge_mask;
    struct cached *cache;
    struct symbol *symbols;
    uint64_t *heap; /* rank << 32 | left symbol */
    size_t symbol_room, heap_count;
    uint32_t head, tail; /* of the list; LAST: it is empty */
};

/* ---- hashing ---- */

static uint64_t mix(uint64_t x)
{
    x *= UINT64_C(0x9E3779B97F4A7C15);
    return x ^ x >> 29;
}

static uint64_t hash_bytes(const char *bytes, size_t size)
{
    uint64_t hash = size, word = 0;

    for (; size > 8; bytes += 8, size -= 8) {
        memcpy(&word, bytes, 8);
        hash = mix(hash ^ word);
    }
    word = 0;
    memcpy(&word, bytes, size);
    return mix(mix(hash ^ word));
}

static uint64_t hash_pair(int32_t left, int32_t right)
{
    return mix(mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right));
}

/* At most half of a table is used. */
static size_t table_size(size_t entries)
{
    size_t size = 16;

    while (size < 2 * entries)
        size *= 2;
    return size;
}

/* ---- filling ---- */

int vocabulary_open(struct vocabulary *v, size_t count)
{
    struct vocabulary_table *t;
    size_t ids = table_size(count);

    *v = (struct vocabulary){0};
    v->table = t = calloc(1, sizeof(*t));
    if (!t)
        return ct_fail(CT_ENOMEM, "a vocabulary");
    v->tokens = calloc(count ? count : 1, sizeof(*v->tokens));
    t->ids = malloc(ids * sizeof(*t->ids));
    t->cache = calloc((size_t)1 << CACHE_BITS, sizeof(*t->cache));
    if (!v->tokens || !t->ids || !t->cache)
        return ct_fail(CT_ENOMEM, "%zu tokens", count);
    memset(t->ids, -1, ids * sizeof(*t->ids));
    memset(v->byte, -1, sizeof(v->byte));
    v->fallback[0] = v->unknown = -1;
    t->id_mask = ids - 1;
    v->count = count;
    return 0;
}

int vocabulary_open_merges(struct vocabulary *v, size_t merges)
{
    size_t pairs = table_size(merges);

    v->table->merges = malloc(pairs * sizeof(*v->table->merges));
    if (!v->table->merges)
        return ct_fail(CT_ENOMEM, "%zu merges", merges);
    memset(v->table->merges, -1, pairs * sizeof(*v->table->merges));
    v->table->merge_mask = pairs - 1;
    return 0;
}

void vocabulary_close(struct vocabulary *v)
{
    if (v->table) {
        free(v->table->ids);
        free(v->table->merges);
        free(v->table->cache);
        free(v->table->symbols);
        free(v->table->heap);
    }
    free(v->table);
    free(v->tokens);
    ct_arena_finish(&v->arena);
    *v = (struct vocabulary){0};
}

/* The place of these bytes, or where they belong. */
static int32_t *place(const struct vocabulary *v, const char *bytes, size_t size)
{
    const struct vocabulary_table *t = v->table;
    size_t at = hash_bytes(bytes, size) & t->id_mask;

    for (; t->ids[at] >= 0; at = (at + 1) & t->id_mask) {
        const struct vocabulary_token *token = &v->tokens[t->ids[at]];

        if (token->size == size && !memcmp(token->bytes, bytes, size))
            break;
    }
    return &t->ids[at];
}

int vocabulary_add(struct vocabulary *v, int64_t id, const char *bytes, size_t size, bool found)
{
    if (id < 0 || (size_t)id >= v->count)
        return ct_fail(CT_ECONFIG, "token '%.*s': id %lld", size < 64 ? (int)size : 64, bytes,
                       (long long)id);
    if (size > VOCABULARY_BYTES)
        return ct_fail(CT_ECONFIG, "token %lld has %zu bytes; at most %d are supported",
                       (long long)id, size, VOCABULARY_BYTES);
    if (v->tokens[id].bytes)
        return ct_fail(CT_ECONFIG, "tokens '%.*s' and '%.*s' have the same id, %lld",
                       size < 64 ? (int)size : 64, bytes,
                       v->tokens[id].size < 64 ? (int)v->tokens[id].size : 64, v->tokens[id].bytes,
                       (long long)id);
    v->tokens[id] = (struct vocabulary_token){ct_arena_copy(&v->arena, bytes, size), size, NULL, 0};
    if (found)
        *place(v, v->tokens[id].bytes, size) = (int32_t)id;
    if (found && size == 1)
        v->byte[(unsigned char)*bytes] = (int32_t)id;
    return 0;
}

void vocabulary_show(struct vocabulary *v, int32_t id, const char *bytes, size_t size)
{
    v->tokens[id].shown = bytes;
    v->tokens[id].shown_size = size;
}

int32_t vocabulary_find(const struct vocabulary *v, const char *bytes, size_t size)
{
    return *place(v, bytes, size);
}

static struct merge *pair(const struct vocabulary_table *t, int32_t left, int32_t right)
{
    size_t at = hash_pair(left, right) & t->merge_mask;

    while (t->merges[at].left >= 0 && (t->merges[at].left != left || t->merges[at].right != right))
        at = (at + 1) & t->merge_mask;
    return &t->merges[at];
}

int vocabulary_merge(struct vocabulary *v, int32_t left, int32_t right, uint32_t rank)
{
    const struct vocabulary_token *l = &v->tokens[left], *r = &v->tokens[right];
    size_t size = l->size + r->size;
    char both[2 * VOCABULARY_BYTES];
    int32_t id;

    memcpy(both, l->bytes, l->size);
    memcpy(both + l->size, r->bytes, r->size);
    id = vocabulary_find(v, both, size);
    if (id < 0)
        return ct_fail(CT_ECONFIG, "merge %u makes '%.*s', which is not in the vocabulary", rank,
                       size < 64 ? (int)size : 64, both);
    *pair(v->table, left, right) = (struct merge){left, right, rank, id};
    return 0;
}

int vocabulary_seal(struct vocabulary *v)
{
    for (int b = 0; b < 256; b++)
        if (v->byte[b] < 0 && b != 0xC0 && b != 0xC1 && b < 0xF5)
            return ct_fail(CT_ECONFIG,
                           "the vocabulary has no token for byte 0x%02X: it is not one "
                           "of bytes",
                           (unsigned)b);
    return 0;
}

/* ---- merging ---- */

static void heap_push(struct vocabulary_table *t, uint64_t entry)
{
    size_t at = t->heap_count++;

    for (; at > 0 && t->heap[(at - 1) / 2] > entry; at = (at - 1) / 2)
        t->heap[at] = t->heap[(at - 1) / 2];
    t->heap[at] = entry;
}

static uint64_t heap_pop(struct vocabulary_table *t)
{
    uint64_t top = t->heap[0], last = t->heap[--t->heap_count];
    size_t at = 0, child;

    while ((child = 2 * at + 1) < t->heap_count) {
        child += child + 1 < t->heap_count && t->heap[child + 1] < t->heap[child];
        if (t->heap[child] >= last)
            break;
        t->heap[at] = t->heap[child];
        at = child;
    }
    t->heap[at] = last;
    return top;
}

/* The merge of a symbol with its next one; NULL: none. */
static const struct merge *merge_at(const struct vocabulary_table *t, uint32_t at)
{
    const struct symbol *s = &t->symbols[at];
    const struct merge *m;

    if (s->id < 0 || s->next == LAST)
        return NULL;
    m = pair(t, s->id, t->symbols[s->next].id);
    return m->left < 0 ? NULL : m;
}

static void push_merge(struct vocabulary_table *t, uint32_t at)
{
    const struct merge *m = merge_at(t, at);

    if (m)
        heap_push(t, (uint64_t)m->rank << 32 | at);
}

/* An entry of the heap is out of date if the symbols there merge at another rank by now. */
static void merge_all(struct vocabulary_table *t)
{
    t->heap_count = 0;
    for (uint32_t i = t->head; i != LAST; i = t->symbols[i].next)
        push_merge(t, i);
    while (t->heap_count) {
        uint64_t entry = heap_pop(t);
        uint32_t at = (uint32_t)entry;
        const struct merge *m = merge_at(t, at);
        struct symbol *s = &t->symbols[at], *next;

        if (!m || m->rank != entry >> 32)
            continue;
        next = &t->symbols[s->next];
        s->id = m->id;
        s->end = next->end;
        s->next = next->next;
        next->id = -1;
        if (s->next != LAST)
            t->symbols[s->next].previous = at;
        push_merge(t, at);
        if (s->previous != LAST)
            push_merge(t, s->previous);
    }
}

/* Each merge removes a symbol and adds two entries. */
static int reserve(struct vocabulary_table *t, size_t size)
{
    size_t room = 2 * size;
    void *symbols, *heap;

    if (size <= t->symbol_room)
        return 0;
    if (size > UINT32_MAX / 4)
        return ct_fail(CT_EINVAL, "%zu bytes without a place to split them", size);
    symbols = realloc(t->symbols, room * sizeof(*t->symbols));
    if (symbols)
        t->symbols = symbols;
    heap = realloc(t->heap, 3 * room * sizeof(*t->heap));
    if (heap)
        t->heap = heap;
    if (!symbols || !heap)
        return ct_fail(CT_ENOMEM, "merging %zu bytes", size);
    t->symbol_room = room;
    return 0;
}

/* ---- the symbols that merging begins with ---- */

static void append(struct vocabulary_table *t, int32_t id, uint32_t begin, uint32_t end)
{
    t->symbols[begin] = (struct symbol){id, t->tail, LAST, end};
    if (t->tail == LAST)
        t->head = begin;
    else
        t->symbols[t->tail].next = begin;
    t->tail = begin;
}

void vocabulary_find_fallback(struct vocabulary *v)
{
    for (unsigned b = 0; b < 256; b++) {
        char name[8];

        snprintf(name, sizeof(name), "<0x%02X>", b);
        v->fallback[b] = vocabulary_find(v, name, 6);
        if (v->fallback[b] < 0) {
            v->fallback[0] = -1;
            return;
        }
    }
}

/* An unknown character stays pending, as the next one may be fused with it. Bytes do not end that,
   as in the library. */
static void append_characters(struct vocabulary *v, const char *part, uint32_t size)
{
    struct vocabulary_table *t = v->table;
    uint32_t begin = 0, end = 0;
    bool pending = false;
    size_t width;

    for (uint32_t i = 0; i < size; i += (uint32_t)width) {
        int32_t id;

        unicode_at(part + i, &width);
        id = vocabulary_find(v, part + i, width);
        if (id < 0 && v->fallback[0] >= 0) {
            for (uint32_t b = i; b < i + width; b++)
                append(t, v->fallback[(unsigned char)part[b]], b, b + 1);
            continue;
        }
        if (pending && (id >= 0 || !v->fuse_unknown)) {
            append(t, v->unknown, begin, end);
            pending = false;
        }
        if (id >= 0)
            append(t, id, i, i + (uint32_t)width);
        else if (v->unknown >= 0) {
            begin = pending ? begin : i;
            end = i + (uint32_t)width;
            pending = true;
        }
    }
    if (pending)
        append(t, v->unknown, begin, end);
}

static int encode_part(struct vocabulary *v, const char *part, size_t size, struct ids *out)
{
    struct vocabulary_table *t = v->table;
    int32_t whole = v->whole_first ? vocabulary_find(v, part, size) : -1;
    int rc;

    if (whole >= 0) {
        ids_put(out, whole, 0, size);
        return 0;
    }
    rc = reserve(t, size);
    if (rc < 0)
        return rc;
    t->head = t->tail = LAST;
    if (v->characters)
        append_characters(v, part, (uint32_t)size);
    else
        for (uint32_t i = 0; i < size; i++)
            append(t, v->byte[(unsigned char)part[i]], i, i + 1);
    merge_all(t);
    for (uint32_t i = t->head; i != LAST; i = t->symbols[i].next)
        ids_put(out, t->symbols[i].id, i, t->symbols[i].end);
    return 0;
}

/* ---- the cache ---- */

static int encode_and_cache(struct vocabulary *v, const char *part, size_t size,
                            struct cached *cached, struct ids *out)
{
    int32_t room[CACHED_BYTES];
    struct ids ids = {room, 0, CACHED_BYTES, NULL};
    int rc = encode_part(v, part, size, &ids);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < ids.count; i++)
        ids_put(out, room[i], 0, 0);
    if (ids.count > CACHED_IDS)
        return 0;
    memset(cached->bytes, 0, CACHED_BYTES);
    memcpy(cached->bytes, part, size);
    memcpy(cached->ids, room, ids.count * sizeof(*room));
    cached->size = (uint8_t)size;
    cached->count = (uint8_t)ids.count;
    return 0;
}

int vocabulary_encode(struct vocabulary *v, const char *part, size_t size, struct ids *out)
{
    struct cached *cached;

    if (size == 0)
        return 0;
    if (size > CACHED_BYTES || out->spans)
        return encode_part(v, part, size, out);
    cached = &v->table->cache[hash_bytes(part, size) >> (64 - CACHE_BITS)];
    if (cached->size != size || memcmp(cached->bytes, part, size))
        return encode_and_cache(v, part, size, cached, out);
    for (int i = 0; i < cached->count; i++)
        ids_put(out, cached->ids[i], 0, 0);
    return 0;
}
