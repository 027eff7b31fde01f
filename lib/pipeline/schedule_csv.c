/*
 * Schedules in the format of torch's pipelining: a row for each rank, a cell for each action.
 *
 * From 2.15 on torch's files with communication also say when a send or a reduction has to be done:
 * WAIT_SEND_F, WAIT_SEND_B, WAIT_REDUCE_GRAD. Programs here wait by events, so these cells are
 * checked and dropped. They are written as torch places them: after the backward of the microbatch
 * whose activation was sent, right after a reduction, and at the end of the row.
 */
#include <limits.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>

#include "schedule_internal.h"

#define MOST_BYTES ((size_t)1 << 30)
#define MOST_STAGES (1 << 20)

struct reader {
    const char *path;
    struct ct_arena *arena;
    struct ct_schedule *schedule;
    int *rank_of; /* by stage; -1: not seen yet */
    size_t room;
    int row, column; /* from 1 */
};

static int wrong(const struct reader *x)
{
    return ct_context(CT_ECONFIG, "%s, row %d, column %d", x->path, x->row, x->column);
}

/* ---- cells ---- */

static void add_stage(struct reader *x, int stage)
{
    size_t had = x->room;

    if (stage >= x->schedule->stages)
        x->schedule->stages = stage + 1;
    if ((size_t)stage < x->room)
        return;
    x->rank_of =
        ct_arena_grow(x->arena, x->rank_of, &x->room, (size_t)stage + 1, sizeof(*x->rank_of));
    for (; had < x->room; had++)
        x->rank_of[had] = -1;
}

static int note_action(struct reader *x, const struct ct_action *part)
{
    int rank = x->row - 1;

    if (part->stage >= MOST_STAGES || part->microbatch >= MOST_STAGES)
        return ct_fail(CT_ECONFIG, "stages and microbatches must be below %d", MOST_STAGES);
    add_stage(x, part->stage);
    if (part->microbatch >= x->schedule->microbatches)
        x->schedule->microbatches = part->microbatch + 1;
    if (x->rank_of[part->stage] >= 0 && x->rank_of[part->stage] != rank)
        return ct_fail(CT_ECONFIG, "stage %d is on rank %d, and cannot be on rank %d too",
                       part->stage, x->rank_of[part->stage], rank);
    x->rank_of[part->stage] = rank;
    return 0;
}

static bool same(const struct ct_action *a, const struct ct_action *b)
{
    return a->type == b->type && a->stage == b->stage && a->microbatch == b->microbatch;
}

/* "2WAIT_SEND_F0": 2SEND_F0 must have come before. */
static int read_wait(struct reader *x, const char *text, size_t digits)
{
    const struct ct_action_list *list = &x->schedule->lists[x->row - 1];
    struct ct_action awaited;
    char what[64];
    int rc;

    snprintf(what, sizeof(what), "%.*s%s", (int)digits, text, text + digits + strlen("WAIT_"));
    rc = ct_action_parse(what, &awaited);
    if (rc == 0 && awaited.type != CT_ACTION_SEND_F && awaited.type != CT_ACTION_SEND_B &&
        awaited.type != CT_ACTION_REDUCE_GRAD)
        rc = ct_fail(CT_ECONFIG, "%s: only sends and reductions have waits", text);
    for (size_t i = list->count; rc == 0 && i-- > 0;)
        if (same(&list->item[i], &awaited))
            return 0;
    return rc < 0 ? wrong(x)
                  : (ct_fail(CT_ECONFIG, "%s, but there is no %s before it", text, what), wrong(x));
}

static int read_action(struct reader *x, const char *text)
{
    size_t digits = strspn(text, "0123456789");
    struct ct_action action, part[2];
    int rc, parts;

    if (digits && digits < 16 && !strncmp(text + digits, "WAIT_", strlen("WAIT_")))
        return read_wait(x, text, digits);
    rc = ct_action_parse(text, &action);
    if (rc < 0)
        return wrong(x);
    parts = ct_action_parts(&action, part);
    for (int p = 0; rc == 0 && p < parts; p++)
        rc = note_action(x, &part[p]);
    if (rc < 0)
        return wrong(x);
    if (!ct_action_computes(&action))
        x->schedule->communicates = true;
    ct_action_append(x->arena, &x->schedule->lists[x->row - 1], action);
    return 0;
}

/* Read the text up to `end`, without blanks around it; empty: idle. */
static int read_cell(struct reader *x, char *cell, char *end)
{
    while (cell < end && strchr(" \t\r", *cell))
        cell++;
    while (cell < end && strchr(" \t\r", end[-1]))
        end--;
    *end = '\0';
    return cell < end ? read_action(x, cell) : 0;
}

static int read_row(struct reader *x, char *row)
{
    char *end;
    int rc = 0;

    for (x->column = 1; rc == 0; x->column++, row = end + 1) {
        bool last;

        end = row + strcspn(row, ",");
        last = !*end;
        rc = read_cell(x, row, end);
        if (last)
            break;
    }
    return rc;
}

/* ---- rows ---- */

static int count_rows(const char *text)
{
    int rows = 0;

    for (; *text; rows++) {
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    return rows;
}

static int read_rows(struct reader *x, char *text)
{
    int rc = 0;

    while (rc == 0 && *text) {
        char *end = text + strcspn(text, "\n");
        bool more = *end;

        *end = '\0';
        x->row++;
        rc = read_row(x, text);
        text = end + more;
    }
    return rc;
}

/* ---- the whole ---- */

static int expect(const struct reader *x, const char *what, int expected, int found)
{
    if (expected < 0 || expected == found)
        return 0;
    return ct_fail(CT_ECONFIG, "%s: the schedule is for %d %s, not %d", x->path, found, what,
                   expected);
}

static bool has_backward(const struct ct_schedule *s)
{
    for (int r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < s->lists[r].count; i++)
            if (s->lists[r].item[i].type != CT_ACTION_F && ct_action_computes(&s->lists[r].item[i]))
                return true;
    return false;
}

static int check_file(const struct reader *x, int ranks, int stages, int microbatches)
{
    const struct ct_schedule *s = x->schedule;
    int rc = expect(x, "ranks", ranks, s->ranks);

    if (rc == 0)
        rc = expect(x, "stages", stages, s->stages);
    if (rc == 0)
        rc = expect(x, "microbatches", microbatches, s->microbatches);
    if (rc == 0 && (!s->stages || !s->microbatches))
        rc = ct_fail(CT_ECONFIG, "%s: it has no action", x->path);
    if (rc == 0 && (int64_t)s->stages * s->microbatches > INT_MAX / 8)
        rc = ct_fail(CT_ECONFIG, "%s: %d stages of %d microbatches are too many actions", x->path,
                     s->stages, s->microbatches);
    for (int k = 0; rc == 0 && k < s->stages; k++)
        if (x->rank_of[k] < 0)
            rc = ct_fail(CT_ECONFIG, "%s: stage %d is on no rank, though there is a stage %d",
                         x->path, k, s->stages - 1);
    return rc;
}

int ct_schedule_read_csv(struct ct_arena *arena, const char *path, int ranks, int stages,
                         int microbatches, struct ct_schedule **schedule)
{
    struct ct_schedule *s = ct_arena_new(arena, struct ct_schedule);
    struct reader x = {.path = path, .arena = arena, .schedule = s};
    size_t size;
    char *text;
    int rc = ct_file_read(arena, path, MOST_BYTES, &text, &size);

    if (rc < 0)
        return rc == CT_EINVAL ? CT_ECONFIG : rc;
    if (strlen(text) != size)
        return ct_fail(CT_ECONFIG, "%s: not a text file: it has a zero byte", path);
    s->name = ct_arena_strdup(arena, path);
    s->arena = arena;
    s->ranks = count_rows(text);
    s->lists = ct_arena_array(arena, struct ct_action_list, s->ranks + 1);
    rc = read_rows(&x, text);
    if (rc == 0)
        rc = check_file(&x, ranks, stages, microbatches);
    if (rc < 0)
        return rc;
    s->rank_of = x.rank_of;
    s->forward_only = !has_backward(s);
    *schedule = s;
    return 0;
}

/* ---- writing ---- */

struct writer {
    FILE *out;
    const struct ct_action **pending; /* sends that nothing has waited for, in order */
    size_t count;
    bool any; /* in this row */
};

static void write_cell(struct writer *w, const char *text)
{
    fprintf(w->out, "%s%s", w->any ? "," : "", text);
    w->any = true;
}

static void write_wait(struct writer *w, const struct ct_action *a)
{
    char text[64], wait[80];
    size_t digits;

    ct_action_print(a, text, sizeof(text));
    digits = strspn(text, "0123456789");
    snprintf(wait, sizeof(wait), "%.*sWAIT_%s", (int)digits, text, text + digits);
    write_cell(w, wait);
}

/* The backward of a microbatch follows that of the next stage, which has its activation. */
static void wait_for_forward(struct writer *w, const struct ct_action *backward)
{
    struct ct_action sent = *backward;

    sent.type = CT_ACTION_SEND_F;
    for (size_t i = 0; i < w->count; i++)
        if (same(w->pending[i], &sent)) {
            write_wait(w, &sent);
            memmove(&w->pending[i], &w->pending[i + 1], sizeof(*w->pending) * (--w->count - i));
            return;
        }
}

static void write_action(struct writer *w, const struct ct_action *a)
{
    struct ct_action part[2];
    int parts = ct_action_parts(a, part);
    char text[64];

    ct_action_print(a, text, sizeof(text));
    write_cell(w, text);
    if (a->type == CT_ACTION_SEND_F || a->type == CT_ACTION_SEND_B)
        w->pending[w->count++] = a;
    if (a->type == CT_ACTION_REDUCE_GRAD)
        write_wait(w, a);
    for (int p = 0; p < parts; p++)
        if (part[p].type == CT_ACTION_B || part[p].type == CT_ACTION_I)
            wait_for_forward(w, &part[p]);
}

void ct_schedule_write_csv(const struct ct_schedule *schedule, FILE *out)
{
    for (int r = 0; r < schedule->ranks; r++) {
        const struct ct_action_list *list = &schedule->lists[r];
        struct ct_arena scratch = {0};
        struct writer w = {.out = out,
                           .pending =
                               ct_arena_array(&scratch, const struct ct_action *, list->count + 1)};

        for (size_t i = 0; i < list->count; i++)
            write_action(&w, &list->item[i]);
        for (size_t i = 0; i < w.count; i++)
            write_wait(&w, w.pending[i]);
        fputc('\n', out);
        ct_arena_finish(&scratch);
    }
}
