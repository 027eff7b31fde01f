#include <string.h>

#include <jansson.h>

#include <ctitan/lib/json.h>

#include "cli.h"
#include "slices.h"

static int64_t integer_or_none(const json_t *args, const char *key)
{
    const json_t *value = json_object_get(args, key);

    return value ? json_integer_value(value) : -1;
}

static const char *text_of(struct ct_arena *arena, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? ct_arena_strdup(arena, text) : NULL;
}

/* The name of a rank, which exists from now on. */
static const char **rank_at(struct ct_arena *arena, struct slices *s, int64_t rank)
{
    while (s->ranks <= (size_t)rank) {
        s->rank = ct_arena_grow(arena, s->rank, &s->rank_room, s->ranks + 1, sizeof(*s->rank));
        s->rank[s->ranks++] = NULL;
    }
    return &s->rank[rank];
}

static void add_slice(struct ct_arena *arena, struct slices *s, const json_t *event, double shift)
{
    const json_t *args = json_object_get(event, "args");
    double start = json_number_value(json_object_get(event, "ts")) * 1e-6 + shift;

    s->list = ct_arena_grow(arena, s->list, &s->room, s->count + 1, sizeof(*s->list));
    s->list[s->count++] = (struct slice){
        .rank = (int)json_integer_value(json_object_get(event, "pid")),
        .stream = (int)json_integer_value(json_object_get(event, "tid")),
        .name = text_of(arena, event, "name"),
        .section = text_of(arena, args, "section"),
        .step = integer_or_none(args, "step"),
        .instruction = integer_or_none(args, "instruction"),
        .microbatch = integer_or_none(args, "microbatch"),
        .validation = json_is_true(json_object_get(args, "validation")),
        .start = start,
        .end = start + json_number_value(json_object_get(event, "dur")) * 1e-6,
    };
}

static void add_event(struct ct_arena *arena, struct slices *s, const json_t *event, double shift)
{
    const char *phase = json_string_value(json_object_get(event, "ph"));
    const char *name = json_string_value(json_object_get(event, "name"));
    int64_t rank = integer_or_none(event, "pid");

    if (!phase || rank < 0 || rank >= MOST_RANKS)
        return;
    if (!strcmp(phase, "X")) {
        add_slice(arena, s, event, shift);
        rank_at(arena, s, rank);
    }
    if (!strcmp(phase, "M") && name && !strcmp(name, "process_name"))
        *rank_at(arena, s, rank) = text_of(arena, json_object_get(event, "args"), "name");
}

int slices_read(struct ct_arena *arena, const char *path, double began, struct slices *slices)
{
    json_t *trace = NULL;
    const json_t *events, *own;
    int rc = ct_json_read_file(path, 0, &trace);
    double shift;

    if (rc < 0)
        return rc;
    events = json_object_get(trace, "traceEvents");
    own = json_object_get(json_object_get(trace, "otherData"), "began");
    shift = own && began > 0 ? json_number_value(own) - began : 0;
    for (size_t i = 0; i < json_array_size(events); i++)
        add_event(arena, slices, json_array_get(events, i), shift);
    json_decref(trace);
    return 0;
}
