/*
 * Memory of a planned step over its instructions, and what is alive where it is largest.
 *
 * Sizes are those of the buffers that are alive, in multiples of their alignment. The plan may take
 * more where free memory is in parts that are too small.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/lib/json.h>
#include <ctitan/lib/rates.h>
#include <ctitan/text.h>

#include "cli.h"

#define POINTS 400 /* of a curve */
#define SHOWN 12   /* kinds of values at the peak */

/* Values whose names differ only in their numbers: "layers.*.ffn_sum". */
struct kind {
    char name[128];
    enum ct_category category;
    size_t values, bytes;
};

static size_t size_of(const struct ct_buffer *b)
{
    return (b->bytes + CT_BUFFER_ALIGNMENT - 1) / CT_BUFFER_ALIGNMENT * CT_BUFFER_ALIGNMENT;
}

/* Live bytes by instruction and category. */
static size_t (*sweep(const struct ct_program *p, struct ct_arena *arena))[CT_CATEGORY_COUNT]
{
    int64_t count = (int64_t)p->step_count;
    size_t(*live)[CT_CATEGORY_COUNT] = ct_arena_alloc(arena, sizeof(*live) * (p->step_count + 1));

    for (size_t i = 0; i < p->buffer_count; i++) {
        const struct ct_buffer *b = &p->buffers[i];
        int64_t from = b->first > 0 ? b->first : 0;

        if (b->space != CT_SPACE_DEVICE || b->last < 0 || from >= count)
            continue;
        live[from][b->category] += size_of(b);
        if (b->last < count - 1)
            live[b->last + 1][b->category] -= size_of(b); /* wraps until the sums are taken */
    }
    for (int64_t n = 1; n < count; n++)
        for (int c = 0; c < CT_CATEGORY_COUNT; c++)
            live[n][c] += live[n - 1][c];
    return live;
}

static size_t total(const size_t category[CT_CATEGORY_COUNT])
{
    size_t sum = 0;

    for (int c = 0; c < CT_CATEGORY_COUNT; c++)
        sum += category[c];
    return sum;
}

static size_t find_peak(size_t (*const live)[CT_CATEGORY_COUNT], size_t from, size_t to)
{
    size_t at = from;

    for (size_t n = from + 1; n < to; n++)
        if (total(live[n]) > total(live[at]))
            at = n;
    return at;
}

/* ---- what is alive ---- */

/* "layers.12.x.0" -> "layers.*.x.*" */
static void generalise(const char *name, char *out, size_t room)
{
    size_t used = 0;

    while (*name && used + 1 < room) {
        bool begins = used == 0 || !isalnum((unsigned char)out[used - 1]);
        size_t digits = strspn(name, "0123456789");

        if (digits && begins && !isalnum((unsigned char)name[digits])) {
            out[used++] = '*';
            name += digits;
        } else {
            out[used++] = *name++;
        }
    }
    out[used] = '\0';
}

static int by_bytes(const void *a, const void *b)
{
    const struct kind *x = a, *y = b;

    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return strcmp(x->name, y->name);
}

/* Without what is always there. */
static size_t collect(const struct ct_program *p, int64_t at, struct kind *list)
{
    size_t count = 0, n;

    for (size_t i = 0; i < p->buffer_count; i++) {
        const struct ct_buffer *b = &p->buffers[i];
        char name[128] = "workspace";

        if (b->space != CT_SPACE_DEVICE || b->first == INT32_MIN || b->first > at || b->last < at)
            continue;
        if (b->value)
            generalise(b->value->name, name, sizeof(name));
        for (n = count; n-- > 0;) /* mostly one of the last */
            if (list[n].category == b->category && !strcmp(list[n].name, name))
                break;
        if (n == SIZE_MAX) {
            n = count++;
            list[n].category = b->category;
            memcpy(list[n].name, name, sizeof(name));
        }
        list[n].values++;
        list[n].bytes += size_of(b);
    }
    qsort(list, count, sizeof(*list), by_bytes);
    return count;
}

static const char *section_of(const struct ct_instruction *i)
{
    return i->op->section ? i->op->section->name : "";
}

void print_peak(const struct ct_program *p)
{
    struct ct_arena scratch = {0};
    const struct ct_instruction *i;
    struct kind *kind;
    size_t at, count;
    char human[32], exact[32];

    if (!p->step_count)
        return;
    kind = ct_arena_array(&scratch, struct kind, p->buffer_count + 1);
    at = find_peak(sweep(p, &scratch), 0, p->step_count);
    i = &p->step[at];
    count = collect(p, (int64_t)at, kind);
    printf("\nthe peak is at instruction %zu of %zu: %s in section %s", at, p->step_count,
           i->op->type->name, section_of(i));
    if (i->microbatch >= 0)
        printf(", microbatch %d", (int)i->microbatch);
    printf("%s%s; alive there, beside what always is:\n", i->op->region ? ", " : "",
           i->op->region ? i->op->region : "");
    for (size_t n = 0; n < count && n < SHOWN; n++)
        printf("  %-18s %12s %18s %6zu x %s\n", ct_category_name(kind[n].category),
               human_bytes((double)kind[n].bytes, human), ct_grouped((int64_t)kind[n].bytes, exact),
               kind[n].values, kind[n].name);
    if (count > SHOWN)
        printf("  and %zu more kinds\n", count - SHOWN);
    ct_arena_finish(&scratch);
}

/* ---- JSON ---- */

static json_t *curve_json(const struct ct_program *p, size_t (*const live)[CT_CATEGORY_COUNT])
{
    json_t *points = json_array(), *columns = json_pack("[s]", "instruction");
    size_t per = p->step_count / POINTS + 1;

    for (size_t n = 0; n < p->step_count; n += per) {
        size_t to = n + per < p->step_count ? n + per : p->step_count;
        size_t at = find_peak(live, n, to);
        json_t *point = json_pack("[I]", (json_int_t)at);

        for (int c = 0; c < CT_CATEGORY_COUNT; c++)
            json_array_append_new(point, json_integer((json_int_t)live[at][c]));
        json_array_append_new(points, point);
    }
    for (int c = 0; c < CT_CATEGORY_COUNT; c++)
        json_array_append_new(columns, json_string(ct_category_name((enum ct_category)c)));
    return json_pack("{s:I, s:o, s:o}", "instructions", (json_int_t)p->step_count, "columns",
                     columns, "points", points);
}

static json_t *peak_json(const struct ct_program *p, size_t at, size_t bytes, struct kind *kind)
{
    const struct ct_instruction *i = &p->step[at];
    size_t count = collect(p, (int64_t)at, kind);
    json_t *largest = json_array();

    for (size_t n = 0; n < count && n < SHOWN; n++)
        json_array_append_new(largest, json_pack("{s:o, s:I, s:s, s:I}", "values",
                                                 ct_json_text(kind[n].name), "count",
                                                 (json_int_t)kind[n].values, "category",
                                                 ct_category_name(kind[n].category), "bytes",
                                                 (json_int_t)kind[n].bytes));
    return json_pack("{s:I, s:I, s:s, s:s, s:i, s:o, s:o}", "instruction", (json_int_t)at, "bytes",
                     (json_int_t)bytes, "op", i->op->type->name, "section", section_of(i),
                     "microbatch", (int)i->microbatch, "layer",
                     ct_json_text(i->op->region ? i->op->region : ""), "largest", largest);
}

void add_memory_json(const struct ct_program *p, json_t *plan)
{
    struct ct_arena scratch = {0};
    size_t(*live)[CT_CATEGORY_COUNT], at;

    if (!p->step_count)
        return;
    live = sweep(p, &scratch);
    at = find_peak(live, 0, p->step_count);
    json_object_set_new(plan, "over_step", curve_json(p, live));
    json_object_set_new(plan, "peak",
                        peak_json(p, at, total(live[at]),
                                  ct_arena_array(&scratch, struct kind, p->buffer_count + 1)));
    ct_arena_finish(&scratch);
}
