/*
 * Reading the files of all ranks, while they are written or afterwards.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/hook.h>
#include <ctitan/stream.h>

#include "read.h"

#define START 60 /* seconds in which the ranks of one start begin */

/* ---- inside a file ---- */

const char *ct_flight_string(const struct ct_flight_header *h, uint32_t at)
{
    return (const char *)h + h->strings + at;
}

const struct ct_flight_instruction *ct_flight_instruction(const struct ct_flight_header *h,
                                                          int program, int64_t index)
{
    const struct ct_flight_program *p;

    if (program < 0 || program >= CT_FLIGHT_PROGRAMS)
        return NULL;
    p = &h->program[program];
    if (index < -p->init_count || index >= p->step_count)
        return NULL;
    return (const struct ct_flight_instruction *)((const char *)h + p->instructions) +
           (index + p->init_count);
}

bool ct_flight_is_group(const struct ct_flight_header *h, int64_t group)
{
    return group >= 0 && group < (int64_t)h->group_count;
}

struct ct_flight_group *ct_flight_group(const struct ct_flight_header *h, int group)
{
    return (struct ct_flight_group *)CT_FLIGHT_AT(h, h->groups) + group;
}

const struct ct_flight_record *ct_flight_at(const struct ct_flight_header *h, uint64_t id)
{
    const struct ct_flight_record *ring = CT_FLIGHT_AT(h, h->ring);
    const struct ct_flight_record *r = &ring[(id - 1) & (h->ring_count - 1)];

    return atomic_load(&r->id) == id ? r : NULL;
}

uint64_t ct_flight_first(const struct ct_flight_header *h)
{
    uint64_t written = atomic_load(&h->written);

    return written > h->ring_count ? written - h->ring_count + 1 : 1;
}

const struct ct_flight_record *ct_flight_find(const struct ct_flight_header *h,
                                              const struct ct_flight_query *q)
{
    uint64_t first = ct_flight_first(h);

    for (uint64_t id = atomic_load(&h->written); id >= first; id--) {
        const struct ct_flight_record *r = ct_flight_at(h, id);

        if (r && r->kind == q->kind && r->group == q->group &&
            (q->sequence ? r->sequence == q->sequence
                         : r->program == q->program && r->index == q->index && r->step == q->step))
            return r;
    }
    return NULL;
}

struct ct_flight_position ct_flight_position(const struct ct_flight_header *h)
{
    return h->position;
}

const char *ct_flight_call_name(int32_t kind)
{
    return kind >= 0 && kind < CT_CALL_KINDS ? ct_call_name((enum ct_call_kind)kind) : "a call";
}

double ct_flight_time(const struct ct_flight_header *h, double monotonic)
{
    return monotonic + h->clock;
}

/* ---- processes ---- */

/* The letter of proc(5); 'X' if the process is gone, even if its number is in use again. */
static char process_state(const struct ct_flight_header *h)
{
    char path[64], line[1024], here[64] = "", *at;
    double start;
    FILE *file;
    bool read;

    gethostname(here, sizeof(here) - 1);
    if (strncmp(here, h->host, sizeof(here)) != 0)
        return '?';
    snprintf(path, sizeof(path), "/proc/%d/stat", h->pid);
    file = fopen(path, "re");
    if (!file)
        return 'X';
    read = fgets(line, sizeof(line), file) != NULL;
    fclose(file);
    at = read ? strrchr(line, ')') : NULL;
    if (!at || at[1] != ' ' || !at[2])
        return 'X';
    if (at[2] == 'Z')
        return 'X';
    at += 2;
    line[0] = *at;
    for (int field = 3; field < 22 && at; field++)
        at = strchr(at + 1, ' ');
    start = at ? strtod(at, NULL) / (double)sysconf(_SC_CLK_TCK) : 0;
    return start < h->begin + 1 ? line[0] : 'X';
}

/* ---- files ---- */

/* Whether `count` entries of `size` bytes at an offset end before another. */
static bool has_room(uint64_t at, uint64_t count, size_t size, uint64_t end)
{
    return at % 8 == 0 && at <= end && count <= (end - at) / size;
}

static bool has_tables(const struct ct_flight_header *h)
{
    uint64_t at[] = {h->header_bytes, h->waits,  h->groups, h->ranks,
                     h->strings,      h->recipe, h->ring,   h->bytes};
    const char *bytes = (const char *)h;

    for (size_t i = 1; i < CT_COUNT(at); i++)
        if (!has_room(at[i - 1], 0, 1, at[i]))
            return false;
    return h->strings < h->recipe && !bytes[h->recipe - 1] && h->recipe < h->ring &&
           !bytes[h->ring - 1] && h->ring_count && !(h->ring_count & (h->ring_count - 1)) &&
           has_room(h->ring, h->ring_count, sizeof(struct ct_flight_record), h->bytes) &&
           has_room(h->groups, h->group_count, sizeof(struct ct_flight_group), h->ranks);
}

static bool has_texts(const struct ct_flight_header *h)
{
    return !h->host[sizeof(h->host) - 1] && !h->job[sizeof(h->job) - 1] &&
           !h->start[sizeof(h->start) - 1] && !h->message[sizeof(h->message) - 1] &&
           !h->slow[sizeof(h->slow) - 1] && !h->diverged[sizeof(h->diverged) - 1];
}

static bool has_groups(const struct ct_flight_header *h)
{
    const int32_t *ranks = (const int32_t *)((const char *)h + h->ranks);
    uint64_t room = (h->strings - h->ranks) / sizeof(*ranks);

    for (uint64_t n = 0; n < h->group_count; n++) {
        const struct ct_flight_group *g = ct_flight_group(h, (int)n);

        if (g->size < 1 || g->ranks > room || (uint64_t)g->size > room - g->ranks ||
            g->name >= h->recipe - h->strings)
            return false;
        for (int i = 0; i < g->size; i++)
            if (ranks[g->ranks + (uint32_t)i] < 0 || ranks[g->ranks + (uint32_t)i] >= h->world)
                return false;
    }
    return true;
}

static bool is_instruction(const struct ct_flight_header *h, const struct ct_flight_instruction *f)
{
    const uint32_t strings[] = {f->op,    f->value, f->section, f->region,     f->why,
                                f->sizes, f->dtype, f->item,    f->stream_name};
    uint64_t room = (h->groups - h->waits) / sizeof(int32_t);

    for (size_t i = 0; i < CT_COUNT(strings); i++)
        if (strings[i] >= h->recipe - h->strings)
            return false;
    return f->stream >= 0 && f->stream < CT_STREAMS && f->group >= -1 &&
           f->group < (int64_t)h->group_count && f->waits <= room &&
           f->wait_count <= room - f->waits;
}

static bool has_programs(const struct ct_flight_header *h)
{
    for (int p = 0; p < CT_FLIGHT_PROGRAMS; p++) {
        int64_t init = h->program[p].init_count, step = h->program[p].step_count;

        if (init < 0 || step < 0 || init > INT32_MAX || step > INT32_MAX)
            return false;
        if (init + step && (h->program[p].instructions < h->header_bytes ||
                            !has_room(h->program[p].instructions, (uint64_t)(init + step),
                                      sizeof(struct ct_flight_instruction), h->waits)))
            return false;
        for (int64_t i = -init; i < step; i++)
            if (!is_instruction(h, ct_flight_instruction(h, p, i)))
                return false;
    }
    return true;
}

/* Nothing in the file leads out of it. Values that a live rank changes are checked at their use. */
static bool is_sound(const struct ct_flight_header *h)
{
    return h->world > 0 && h->world < 1 << 20 && h->rank >= 0 && h->rank < h->world &&
           atomic_load(&h->written) < UINT64_C(1) << 62 && has_tables(h) && has_texts(h) &&
           has_groups(h) && has_programs(h);
}

static int map(const char *path, bool writable, struct ct_flight_rank *r)
{
    int file = ct_file_open(path, writable ? CT_FILE_WRITE : 0);
    struct stat s;
    void *data = MAP_FAILED;
    struct ct_flight_header *h;

    if (file < 0)
        return file;
    if (fstat(file, &s) == 0 && (size_t)s.st_size >= sizeof(struct ct_flight_header))
        data = mmap(NULL, (size_t)s.st_size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED,
                    file, 0);
    close(file);
    if (data == MAP_FAILED)
        return ct_fail(CT_EINVAL, "%s: not a rank's record", path);
    h = data;
    if (h->magic != CT_FLIGHT_MAGIC || h->layout != CT_FLIGHT_LAYOUT ||
        h->header_bytes != sizeof(struct ct_flight_header) || h->bytes != (uint64_t)s.st_size) {
        munmap(data, (size_t)s.st_size);
        return ct_fail(CT_EINVAL,
                       "%s: truncated, or not written by this version of flight_recorder", path);
    }
    if (!is_sound(h)) {
        munmap(data, (size_t)s.st_size);
        return ct_fail(CT_EINVAL, "%s: damaged: its tables are inconsistent", path);
    }
    *r = (struct ct_flight_rank){.h = h, .bytes = (size_t)s.st_size};
    return 0;
}

static int rank_of(const char *name)
{
    char *end;
    long rank;

    if (strncmp(name, "rank-", 5) != 0)
        return -1;
    rank = strtol(name + 5, &end, 10);
    return end > name + 5 && !strcmp(end, ".ring") && rank >= 0 && rank < 1 << 20 ? (int)rank : -1;
}

/* The files of a folder; `world` counts them. */
static int map_folder(struct ct_flight_run *run, size_t *room, const char *path, bool writable)
{
    struct dirent *entry;
    DIR *folder = opendir(path);
    int rc = 0;

    while (folder && rc == 0 && (entry = readdir(folder))) {
        if (rank_of(entry->d_name) < 0)
            continue;
        run->rank =
            ct_arena_grow(&run->arena, run->rank, room, (size_t)run->world + 1, sizeof(*run->rank));
        rc = map(ct_arena_printf(&run->arena, "%s/%s", path, entry->d_name), writable,
                 &run->rank[run->world]);
        run->world += rc == 0;
    }
    if (folder)
        closedir(folder);
    return rc;
}

/* Maps the records of this folder, and those that a launcher has copied from other hosts. */
static int map_all(struct ct_flight_run *run, const char *path, bool writable)
{
    const char *hosts = ct_arena_printf(&run->arena, "%s/hosts", path);
    struct dirent *entry;
    DIR *folder = opendir(hosts);
    size_t room = 0;
    int rc = map_folder(run, &room, path, writable), own = run->world;

    while (folder && rc == 0 && (entry = readdir(folder)))
        if (entry->d_name[0] != '.')
            rc = map_folder(run, &room, ct_arena_printf(&run->arena, "%s/%s", hosts, entry->d_name),
                            writable);
    for (int i = own; i < run->world; i++)
        run->rank[i].copied = true;
    if (folder)
        closedir(folder);
    return rc;
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

double ct_flight_progress(const struct ct_flight_header *h)
{
    double t = h->position.since;

    for (int g = 0; g < (int)h->group_count; g++)
        t = later(t,
                  later(ct_flight_group(h, g)->started.time, ct_flight_group(h, g)->finished.time));
    return t;
}

/* The last sign of life. */
static double latest(const struct ct_flight_header *h)
{
    return ct_flight_time(h,
                          later(later(h->beat, h->ended), later(h->broken, ct_flight_progress(h))));
}

/* Whether a rank is of the attempt that another began last. `ctitan launch` gives each start a name
   of its own; clocks of hosts may differ. Elsewhere, a rank that has failed at once may have ended
   before another began: what started them tells, unless it has done so before. */
static bool belongs(const struct ct_flight_header *h, const struct ct_flight_header *newest)
{
    double begin = ct_flight_time(newest, newest->begin);

    if (h->rank >= newest->world || h->world != newest->world)
        return false;
    if (!strncmp(newest->start, "launch-", strlen("launch-")))
        return !strcmp(h->start, newest->start);
    if (!strcmp(h->host, newest->host) && !strcmp(h->start, newest->start) &&
        begin - ct_flight_time(h, h->begin) < START)
        return true;
    return latest(h) >= begin;
}

static double begin_of(const struct ct_flight_rank *r)
{
    return ct_flight_time(r->h, r->h->begin);
}

/* Put files in the order of their ranks, without those of an earlier attempt. */
static void sort(struct ct_flight_run *run)
{
    struct ct_flight_rank *found = run->rank;
    int count = run->world;

    for (int i = 1; i < count; i++) /* the newest first */
        if (begin_of(&found[i]) > begin_of(&found[0])) {
            struct ct_flight_rank newest = found[i];

            found[i] = found[0];
            found[0] = newest;
        }
    run->world = found[0].h->world;
    run->rank = ct_arena_array(&run->arena, struct ct_flight_rank, run->world);
    for (int i = 0; i < count; i++) {
        struct ct_flight_header *h = found[i].h;

        if (i == 0 || (belongs(h, found[0].h) && !run->rank[h->rank].h))
            run->rank[h->rank] = found[i];
        else
            munmap(h, found[i].bytes);
    }
}

/* ---- groups of all ranks ---- */

static bool same(const struct ct_flight_members *m, const struct ct_flight_header *h,
                 const struct ct_flight_group *g)
{
    const int32_t *ranks = (const int32_t *)CT_FLIGHT_AT(h, h->ranks) + g->ranks;

    return m->size == g->size && m->instance == g->instance &&
           !strcmp(m->name, ct_flight_string(h, g->name)) &&
           !memcmp(m->ranks, ranks, sizeof(*ranks) * (size_t)g->size);
}

static int number_of(struct ct_flight_run *run, size_t *room, const struct ct_flight_header *h,
                     const struct ct_flight_group *g)
{
    struct ct_flight_members *m;

    for (int i = 0; i < run->group_count; i++)
        if (same(&run->group[i], h, g))
            return i;
    run->group = ct_arena_grow(&run->arena, run->group, room, (size_t)run->group_count + 1,
                               sizeof(*run->group));
    m = &run->group[run->group_count];
    *m = (struct ct_flight_members){.name = ct_flight_string(h, g->name),
                                    .instance = g->instance,
                                    .size = g->size,
                                    .ranks = (const int32_t *)CT_FLIGHT_AT(h, h->ranks) + g->ranks,
                                    .own = ct_arena_array(&run->arena, int, g->size)};
    for (int i = 0; i < g->size; i++)
        m->own[i] = -1;
    return run->group_count++;
}

static void join_groups(struct ct_flight_run *run)
{
    size_t room = 0;

    for (int r = 0; r < run->world; r++) {
        const struct ct_flight_header *h = run->rank[r].h;

        if (!h)
            continue;
        run->rank[r].group = ct_arena_array(&run->arena, int, h->group_count + 1);
        for (int g = 0; g < (int)h->group_count; g++) {
            int number = number_of(run, &room, h, ct_flight_group(h, g));

            run->rank[r].group[g] = number;
            for (int i = 0; i < run->group[number].size; i++)
                if (run->group[number].ranks[i] == r)
                    run->group[number].own[i] = g;
        }
    }
}

/* 0: no rank has failed. */
static double first_failure(const struct ct_flight_run *run)
{
    double first = 0;

    for (int r = 0; r < run->world; r++) {
        const struct ct_flight_header *h = run->rank[r].h;
        double t;

        if (!h || (h->broken <= 0 && h->state != CT_FLIGHT_FAILED))
            continue;
        t = ct_flight_time(h, h->broken > 0 ? h->broken : h->ended);
        if (first == 0 || t < first)
            first = t;
    }
    return first;
}

static void note_moment(struct ct_flight_run *run)
{
    for (int r = 0; r < run->world; r++) {
        const struct ct_flight_header *h = run->rank[r].h;

        run->rank[r].process = h ? process_state(h) : 'X';
        if (h)
            run->now = later(run->now, latest(h));
    }
    run->failed = first_failure(run);
}

int ct_flight_run_open(const char *folder, bool writable, struct ct_flight_run *run)
{
    const char *path;
    int rc;

    *run = (struct ct_flight_run){.folder = folder};
    path = ct_arena_printf(&run->arena, "%s/flight", folder);
    if (access(path, R_OK | X_OK) < 0) {
        rc = ct_fail(CT_ENOENT, "%s: %s; train with --with flight_recorder to get one", path,
                     strerror(errno));
        ct_flight_run_close(run);
        return rc;
    }
    rc = map_all(run, path, writable);
    if (rc == 0 && !run->world)
        rc = ct_fail(CT_ENOENT, "%s has no rank-N.ring", path);
    if (rc < 0) {
        ct_flight_run_close(run);
        return rc;
    }
    sort(run);
    join_groups(run);
    note_moment(run);
    return 0;
}

int ct_flight_run_open_rank(const char *path, struct ct_flight_run *run)
{
    struct ct_flight_rank own;
    int rc = map(path, false, &own);

    if (rc < 0)
        return rc;
    *run = (struct ct_flight_run){.world = own.h->world};
    run->rank = ct_arena_array(&run->arena, struct ct_flight_rank, run->world);
    run->rank[own.h->rank] = own;
    join_groups(run);
    note_moment(run);
    return 0;
}

const char *ct_flight_told(const struct ct_flight_run *run, int rank, double *ago)
{
    const struct ct_job_end *job = run->job;
    double time;
    const char *text = job && job->told ? job->told(job, rank, &time) : NULL;

    if (text)
        *ago = ct_now() - time;
    return text;
}

void ct_flight_run_close(struct ct_flight_run *run)
{
    for (int r = 0; run->rank && r < run->world; r++)
        if (run->rank[r].h)
            munmap(run->rank[r].h, run->rank[r].bytes);
    ct_arena_finish(&run->arena);
    *run = (struct ct_flight_run){0};
}
