#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/json.h>

#include "cli.h"
#include "profiles.h"
#include "slices.h"

#define STEPS 4096 /* profiled, that are looked at */

const char *profile_path(struct ct_arena *arena, const char *folder, int64_t step, int64_t rank)
{
    return ct_arena_printf(arena, "%s/profile/step-%lld/rank-%lld.json", folder, (long long)step,
                           (long long)rank);
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static void take_largest(struct ct_arena *arena, const json_t *list, struct profile_summary *s)
{
    for (size_t i = 0; i < json_array_size(list) && s->count < PROFILE_LARGEST; i++) {
        const json_t *o = json_array_get(list, i);
        const char *op = json_string_value(json_object_get(o, "op"));

        s->largest[s->count].op = ct_arena_strdup(arena, op ? op : "");
        s->largest[s->count].calls = json_integer_value(json_object_get(o, "calls"));
        s->largest[s->count++].seconds = number(o, "seconds");
    }
}

static int read_summary(struct ct_arena *arena, const char *folder, int64_t step,
                        struct profile_summary *s)
{
    const char *path =
        ct_arena_printf(arena, "%s/profile/step-%lld/summary.json", folder, (long long)step);
    const json_t *time, *memory;
    json_t *o = NULL;
    int rc = ct_json_read_file(path, 0, &o);

    if (rc < 0)
        return rc;
    time = json_object_get(o, "time");
    memory = json_object_get(o, "memory");
    *s = (struct profile_summary){
        .step = step,
        .world = json_integer_value(json_object_get(o, "world")),
        .began = number(o, "began"),
        .seconds = number(o, "seconds"),
        .instructions = number(time, "instructions"),
        .products = number(time, "products"),
        .others = number(time, "others"),
        .exposed = number(time, "exposed"),
        .waiting = number(time, "waiting"),
        .planned_bytes = number(memory, "planned"),
        .beside_bytes = number(memory, "beside"),
        .used_bytes = number(memory, "used"),
    };
    take_largest(arena, json_object_get(o, "largest"), s);
    json_decref(o);
    return s->world > 0 && s->world <= MOST_RANKS && s->seconds > 0
               ? 0
               : ct_fail(CT_ECONFIG, "%s: expected a profile's summary", path);
}

/* Steps with a folder, at most STEPS of them, and the last of all (0: there is none). */
static size_t list_steps(const char *path, int64_t *step, int64_t *last)
{
    DIR *folder = opendir(path);
    struct dirent *entry;
    size_t count = 0;
    long long number;

    *last = 0;
    while (folder && (entry = readdir(folder))) {
        if (sscanf(entry->d_name, "step-%lld", &number) != 1)
            continue;
        if (count < STEPS)
            step[count++] = number;
        *last = number > *last ? number : *last;
    }
    if (folder)
        closedir(folder);
    return count;
}

static int by_seconds(const void *a, const void *b)
{
    const struct profile_summary *x = a, *y = b;

    if (x->seconds != y->seconds)
        return x->seconds < y->seconds ? -1 : 1;
    return x->step < y->step ? -1 : x->step > y->step;
}

int profile_find(struct ct_arena *arena, const char *folder, int64_t step,
                 struct profile_summary *summary)
{
    const char *path = ct_arena_printf(arena, "%s/profile", folder);
    int64_t *steps = ct_arena_array(arena, int64_t, STEPS);
    struct profile_summary *list;
    int64_t last;
    size_t all = list_steps(path, steps, &last), count = 0;

    if (step)
        return ct_context(read_summary(arena, folder, step, summary), "--step %lld",
                          (long long)step);
    list = ct_arena_array(arena, struct profile_summary, all + 1);
    for (size_t i = 0; i < all; i++)
        count += read_summary(arena, folder, steps[i], &list[count]) == 0;
    if (!count)
        return ct_fail(CT_ECONFIG, "%s: no step was profiled: train --with profile", folder);
    qsort(list, count, sizeof(*list), by_seconds);
    *summary = list[(count - 1) / 2];
    return 0;
}

struct profile_summary profile_last(struct ct_arena *arena, const char *folder, int64_t known)
{
    int64_t *steps = ct_arena_array(arena, int64_t, STEPS);
    struct profile_summary last = {.step = 0};
    int64_t newest;

    list_steps(ct_arena_printf(arena, "%s/profile", folder), steps, &newest);
    if (newest != known && read_summary(arena, folder, newest, &last) < 0)
        last.step = 0;
    return last;
}

int profile_slices(struct ct_arena *arena, const char *folder, const struct profile_summary *s,
                   struct slices *slices)
{
    int rc = 0;

    for (int64_t rank = 0; rc == 0 && rank < s->world; rank++)
        rc = slices_read(arena, profile_path(arena, folder, s->step, rank), s->began, slices);
    return rc;
}

const char *profile_used(const struct profile_summary *s, char text[32])
{
    return s->used_bytes > 0 ? human_bytes(s->used_bytes, text) : "unknown";
}

double profile_idle(const struct profile_summary *s)
{
    return s->seconds - s->instructions + s->waiting;
}

static void print_share(const char *what, double seconds, double all, FILE *out)
{
    fprintf(out, "  %-36s %10.3f ms %6.1f %%\n", what, seconds * 1e3, 100 * seconds / all);
}

void profile_print(struct ct_arena *arena, const char *folder, const struct profile_summary *s,
                   FILE *out)
{
    char planned[32], used[32];

    fprintf(out, "profile of step %lld, rank 0: %.3f ms\n", (long long)s->step, s->seconds * 1e3);
    print_share("ops with FLOPs", s->products, s->seconds, out);
    print_share("other ops that compute", s->others, s->seconds, out);
    print_share("communication, exposed", s->exposed, s->seconds, out);
    print_share("idle, data, host", profile_idle(s), s->seconds, out);
    fprintf(out, "  the largest ops\n");
    for (size_t i = 0; i < s->count; i++) {
        char what[64];

        snprintf(what, sizeof(what), "  %s x %lld", s->largest[i].op,
                 (long long)s->largest[i].calls);
        print_share(what, s->largest[i].seconds, s->seconds, out);
    }
    fprintf(out, "  memory: %s planned, in use: %s\n",
            human_bytes(s->planned_bytes + s->beside_bytes, planned), profile_used(s, used));
    fprintf(out, "  trace: %s\n", profile_path(arena, folder, s->step, 0));
}
