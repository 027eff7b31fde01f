#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "packing.h"

struct packer {
    const struct packing_request *request;
    const int64_t *start;
    struct packing_part *parts; /* in the documents' order */
    int64_t count, room;
    int64_t *row_of; /* of each part */
    /* A group: a tree over its rows, whose nodes hold the most room of a row below them */
    int64_t *tree, leaves;
    int64_t *order; /* of its parts */
    int64_t rows;   /* so far, of all groups */
};

/* ---- parts ---- */

static int add_part(struct packer *p, int64_t document, int64_t from)
{
    int64_t room = 2 * p->room + 1024;
    struct packing_part *parts = p->parts;

    if (p->count == p->room) {
        parts = realloc(parts, (size_t)room * sizeof(*parts));
        if (!parts)
            return ct_fail(CT_ENOMEM, "%lld documents", (long long)room);
        p->parts = parts;
        p->room = room;
    }
    parts[p->count++] = (struct packing_part){document, from};
    return 0;
}

static int add_document(struct packer *p, struct packing *out, int64_t document)
{
    int64_t size = p->start[document + 1] - p->start[document], width = p->request->width;
    bool is_long = size > width;
    int rc = 0;

    if (is_long && p->request->too_long == PACKING_DROP) {
        out->dropped++;
        return 0;
    }
    out->cut += is_long && p->request->too_long == PACKING_CUT;
    out->split += is_long && p->request->too_long == PACKING_SPLIT;
    for (int64_t from = 0; rc == 0 && from < size; from += width) {
        rc = add_part(p, document, from);
        if (p->request->too_long == PACKING_CUT)
            break;
    }
    return rc;
}

static int64_t size_of(const struct packer *p, int64_t part)
{
    return packing_size(&p->parts[part], p->start, p->request->width);
}

/* ---- first fit ---- */

static void set_room(struct packer *p, int64_t leaf, int64_t room)
{
    int64_t at = leaf + p->leaves;

    p->tree[at] = room;
    for (at /= 2; at; at /= 2) {
        int64_t left = p->tree[2 * at], right = p->tree[2 * at + 1];

        p->tree[at] = left > right ? left : right;
    }
}

/* The first row of the group with room for size tokens. There is always one: each part could have
   its own. */
static int64_t find_row(const struct packer *p, int64_t size)
{
    int64_t at = 1;

    while (at < p->leaves)
        at = 2 * at + (p->tree[2 * at] < size);
    return at - p->leaves;
}

/* Parts whose sizes are equal stay in their order: a sort by counting. */
static int sort_group(struct packer *p, int64_t first, int64_t count)
{
    int64_t width = p->request->width;
    int64_t *begin = calloc((size_t)width + 2, sizeof(*begin));

    if (!begin)
        return ct_fail(CT_ENOMEM, "lengths up to %lld", (long long)width);
    for (int64_t i = 0; i < count; i++)
        begin[width - size_of(p, first + i) + 1]++;
    for (int64_t n = 0; n < width; n++)
        begin[n + 1] += begin[n];
    for (int64_t i = 0; i < count; i++)
        p->order[begin[width - size_of(p, first + i)]++] = first + i;
    free(begin);
    return 0;
}

/* Parts of a group go to the rows behind those of the groups before. */
static int pack_group(struct packer *p, int64_t first, int64_t count, int64_t *place)
{
    int64_t most = -1;

    for (int64_t i = 0; i < count; i++)
        p->order[i] = first + i;
    if (p->request->how == PACKING_FIRST_FIT_DECREASING && sort_group(p, first, count) < 0)
        return CT_ENOMEM;
    for (int64_t i = 0; i < p->leaves; i++)
        p->tree[p->leaves + i] = p->request->width;
    for (int64_t at = p->leaves - 1; at; at--)
        p->tree[at] = p->request->width;
    for (int64_t i = 0; i < count; i++) {
        int64_t size = size_of(p, p->order[i]), row = find_row(p, size);

        set_room(p, row, p->tree[p->leaves + row] - size);
        p->row_of[p->order[i]] = p->rows + row;
        place[first + i] = p->order[i];
        most = row > most ? row : most;
    }
    p->rows += most + 1;
    return 0;
}

/* ---- the table ---- */

/* place: the parts in the order in which they were put into rows, which they have in their row. */
static int fill(const struct packer *p, const int64_t *place, struct packing *out)
{
    out->rows = p->rows;
    out->count = p->count;
    out->row = calloc((size_t)p->rows + 2, sizeof(*out->row));
    out->parts = calloc((size_t)p->count + 1, sizeof(*out->parts));
    if (!out->row || !out->parts)
        return ct_fail(CT_ENOMEM, "%lld rows", (long long)p->rows);
    for (int64_t i = 0; i < p->count; i++) {
        out->row[p->row_of[i] + 2]++;
        out->tokens += size_of(p, i);
    }
    for (int64_t r = 0; r < p->rows; r++)
        out->row[r + 2] += out->row[r + 1];
    for (int64_t i = 0; i < p->count; i++)
        out->parts[out->row[p->row_of[place[i]] + 1]++] = p->parts[place[i]];
    return 0;
}

static int pack_all(struct packer *p, struct packing *out)
{
    int64_t window = p->request->window < p->count ? p->request->window : p->count;
    int64_t *place = calloc((size_t)p->count + 1, sizeof(*place));
    int rc = 0;

    for (p->leaves = 1; p->leaves < window;)
        p->leaves *= 2;
    p->tree = calloc(2 * (size_t)p->leaves, sizeof(*p->tree));
    p->order = calloc((size_t)window + 1, sizeof(*p->order));
    p->row_of = calloc((size_t)p->count + 1, sizeof(*p->row_of));
    if (!place || !p->tree || !p->order || !p->row_of)
        rc = ct_fail(CT_ENOMEM, "%lld documents in rows", (long long)p->count);
    for (int64_t first = 0; rc == 0 && first < p->count; first += window)
        rc = pack_group(p, first, p->count - first < window ? p->count - first : window, place);
    if (rc == 0)
        rc = fill(p, place, out);
    free(place);
    return rc;
}

int packing_make(struct packing *out, const struct packing_request *request, const int64_t *start,
                 const int64_t *chosen, int64_t count)
{
    struct packer p = {.request = request, .start = start};
    int rc = 0;

    *out = (struct packing){0};
    for (int64_t i = 0; rc == 0 && i < count; i++)
        rc = add_document(&p, out, chosen ? chosen[i] : i);
    if (rc == 0)
        rc = pack_all(&p, out);
    free(p.parts);
    free(p.tree);
    free(p.order);
    free(p.row_of);
    if (rc < 0)
        packing_finish(out);
    return rc;
}

void packing_finish(struct packing *p)
{
    free(p->parts);
    free(p->row);
    *p = (struct packing){0};
}
