/*
 * compare RUN --plan: where a measured step parts from its plan.
 *
 * The run is planned again from its recipe, and simulated on a described machine as `simulate`
 * does. A profile (plugin profile) has when each instruction of a step began and ended on each
 * rank. Both are the same program, so instructions are compared one by one.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>
#include <ctitan/run.h>
#include <ctitan/stage.h>

#include "cli.h"
#include "compare_plan.h"
#include "profiles.h"
#include "slices.h"

#define SHOWN 20   /* rows of a table */
#define LISTED 200 /* instructions in JSON */

struct beside {
    const struct compare_plan *asked;
    struct args args;
    struct profile_summary profile;
    struct planned planned;
    struct ct_simulate_request request;
    struct ct_simulated plan, measured;
};

/* Instructions of one op type, or one instruction. */
struct row {
    const struct ct_instruction *first;
    size_t index;
    int64_t calls;
    double plan, measured;
};

/* ---- reading ---- */

/* The instructions of a rank, as they are read from its trace. */
struct reading {
    const struct ct_program *program;
    const char *path;
    double *start, *end; /* by instruction */
    bool *seen;
    size_t count;
};

static int check_instruction(const struct reading *r, const struct slice *s)
{
    int64_t n = s->instruction;
    char planned[256];

    if (n < 0 || (size_t)n >= r->program->step_count)
        return ct_fail(CT_ECONFIG, "%s: there is no instruction %lld in the plan, which has %zu",
                       r->path, (long long)n, r->program->step_count);
    if (r->seen[n])
        return ct_fail(CT_ECONFIG, "%s: instruction %lld is there twice", r->path, (long long)n);
    ct_instruction_name(&r->program->step[n], planned, sizeof(planned));
    if (s->name && !strcmp(s->name, planned))
        return 0;
    return ct_fail(CT_ECONFIG,
                   "%s: instruction %lld is '%s', and the plan's is '%s': the plan is of another "
                   "program. Did plugins change since, or does --device choose other ops?",
                   r->path, (long long)n, s->name ? s->name : "", planned);
}

static int take_slices(struct reading *r, const struct slices *slices)
{
    int rc = 0;

    for (size_t i = 0; i < slices->count; i++) {
        const struct slice *s = &slices->list[i];

        if (s->instruction == -1)
            continue;
        rc = check_instruction(r, s);
        if (rc < 0)
            return rc;
        r->seen[s->instruction] = true;
        r->start[s->instruction] = s->start;
        r->end[s->instruction] = s->end;
        r->count++;
    }
    if (r->count != r->program->step_count)
        return ct_fail(CT_ECONFIG,
                       "%s has %zu instructions, and the plan %zu: the plan is of another program",
                       r->path, r->count, r->program->step_count);
    return 0;
}

static int read_rank(struct beside *b, int index)
{
    struct ct_arena *arena = &b->args.arena;
    struct reading r = {
        .program = b->request.program[index],
        .path = profile_path(arena, b->asked->run, b->profile.step, b->request.rank[index])};
    struct slices slices = {.count = 0};
    int rc = slices_read(arena, r.path, b->profile.began, &slices);

    if (rc < 0)
        return ct_context(rc, "the profile of rank %lld", (long long)b->request.rank[index]);
    r.start = ct_arena_array(arena, double, r.program->step_count + 1);
    r.end = ct_arena_array(arena, double, r.program->step_count + 1);
    r.seen = ct_arena_array(arena, bool, r.program->step_count + 1);
    rc = take_slices(&r, &slices);
    b->measured.start[index] = r.start;
    b->measured.end[index] = r.end;
    return rc;
}

static int read_ranks(struct beside *b)
{
    int rc = 0;

    b->measured.start = ct_arena_array(&b->args.arena, double *, b->request.count);
    b->measured.end = ct_arena_array(&b->args.arena, double *, b->request.count);
    for (int index = 0; rc == 0 && index < b->request.count; index++)
        rc = read_rank(b, index);
    return rc < 0 ? rc : ct_simulated_measured(&b->request, &b->measured);
}

/* ---- rows ---- */

static double length_of(const struct ct_simulated *s, int index, size_t n)
{
    return s->end[index][n] - s->start[index][n];
}

static double lost(const struct row *r)
{
    return r->measured - r->plan;
}

static int by_lost(const void *a, const void *b)
{
    const struct row *x = a, *y = b;

    if (lost(x) != lost(y))
        return lost(x) > lost(y) ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* Rows of the rank, by op type or by instruction, the largest loss first. */
static size_t make_rows(struct beside *b, bool by_op, struct row **rows)
{
    int index = (int)b->asked->rank;
    const struct ct_program *p = b->request.program[index];
    struct row *list = ct_arena_array(&b->args.arena, struct row, p->step_count + 1);
    size_t count = 0;

    for (size_t n = 0, k; n < p->step_count; n++) {
        for (k = by_op ? 0 : count; k < count && list[k].first->op->type != p->step[n].op->type;
             k++)
            ;
        if (k == count)
            list[count++] = (struct row){.first = &p->step[n], .index = n};
        list[k].calls++;
        list[k].plan += length_of(&b->plan, index, n);
        list[k].measured += length_of(&b->measured, index, n);
    }
    qsort(list, count, sizeof(*list), by_lost);
    *rows = list;
    return count;
}

/* ---- for people ---- */

static void print_line(const char *what, double plan, double measured)
{
    printf("  %-42s %10.3f ms %10.3f ms %+10.3f ms\n", what, plan * 1e3, measured * 1e3,
           (measured - plan) * 1e3);
}

static void print_totals(const struct beside *b)
{
    const struct ct_rank_times *p = &b->plan.times[b->asked->rank],
                               *m = &b->measured.times[b->asked->rank];

    printf("\n  %-42s %13s %13s %13s\n", "", "planned", "measured", "lost");
    print_line("ops with FLOPs", p->products, m->products);
    print_line("other ops that compute", p->others, m->others);
    print_line("communication, exposed", p->exposed, m->exposed);
    print_line("idle: other ranks, bubble, host", p->waiting, m->waiting);
    print_line("step", b->plan.seconds, b->measured.seconds);
    print_line("(communication, hidden)", p->hidden, m->hidden);
}

static void print_rows(struct beside *b, bool by_op)
{
    struct row *row;
    size_t count = make_rows(b, by_op, &row);

    for (size_t i = 0; i < count && i < SHOWN; i++) {
        const struct ct_instruction *at = row[i].first;
        char name[256], what[512];

        ct_instruction_name(at, name, sizeof(name));
        if (by_op)
            snprintf(what, sizeof(what), "%s x %lld", at->op->type->name, (long long)row[i].calls);
        else
            snprintf(what, sizeof(what), "%zu %s", row[i].index, name);
        print_line(what, row[i].plan, row[i].measured);
    }
    if (count > SHOWN)
        printf("  and %zu more\n", count - SHOWN);
}

static void print_people(struct beside *b)
{
    const struct ct_machine *m = b->args.machine;
    char planned[32], used[32], bound[UPPER_BOUND];

    printf("step %lld of %s, rank %lld of %d, beside its plan for %s (%s)%s%s\n",
           (long long)b->profile.step, b->asked->run, (long long)b->asked->rank, b->request.count,
           m->name, m->path, ct_machine_is_measured(m) ? "" : ": an upper bound of speed, as ",
           ct_machine_is_measured(m) ? "" : upper_bound(m, bound));
    print_totals(b);
    printf("\nby op, the largest loss first\n");
    print_rows(b, true);
    printf("\nby instruction\n");
    print_rows(b, false);
    printf("\nmemory: %s planned, in use%s: %s\n",
           human_bytes(b->profile.planned_bytes + b->profile.beside_bytes, planned),
           b->planned.run->device->host_memory ? " by the process of rank 0" : " on the device",
           profile_used(&b->profile, used));
}

/* ---- for programs ---- */

static json_t *times(const struct ct_simulated *s, int64_t rank)
{
    const struct ct_rank_times *t = &s->times[rank];

    return json_pack("{so so so so so so}", "step", ct_json_number(s->seconds), "products",
                     ct_json_number(t->products), "others", ct_json_number(t->others), "exposed",
                     ct_json_number(t->exposed), "hidden", ct_json_number(t->hidden), "idle",
                     ct_json_number(t->waiting));
}

static json_t *rows_json(struct beside *b, bool by_op)
{
    struct row *row;
    size_t count = make_rows(b, by_op, &row);
    json_t *all = json_array();

    for (size_t i = 0; i < count && (by_op || i < LISTED); i++) {
        const struct ct_op *op = row[i].first->op;
        json_t *o = json_pack(
            "{ss so so so}", "op", op->type->name, "planned", ct_json_number(row[i].plan),
            "measured", ct_json_number(row[i].measured), "lost", ct_json_number(lost(&row[i])));
        char name[256];

        if (by_op) {
            json_object_set_new(o, "calls", json_integer((json_int_t)row[i].calls));
        } else {
            ct_instruction_name(row[i].first, name, sizeof(name));
            json_object_set_new(o, "instruction", json_integer((json_int_t)row[i].index));
            json_object_set_new(o, "name", ct_json_text(name));
            json_object_set_new(o, "section", ct_json_text(op->section->name));
            json_object_set_new(o, "microbatch", json_integer(row[i].first->microbatch));
            json_object_set_new(o, "layer", ct_json_text(op->region ? op->region : ""));
        }
        json_array_append_new(all, o);
    }
    return all;
}

static int print_json(struct beside *b)
{
    const struct ct_machine *m = b->args.machine;

    return ct_json_print(
        json_pack("{sI sI si so sb so so so so so}", "step", (json_int_t)b->profile.step, "rank",
                  (json_int_t)b->asked->rank, "ranks", b->request.count, "device",
                  ct_json_text(m->name), "described_by_measure", ct_machine_is_measured(m),
                  "planned", times(&b->plan, b->asked->rank), "measured",
                  times(&b->measured, b->asked->rank), "ops", rows_json(b, true), "instructions",
                  rows_json(b, false), "memory",
                  json_pack("{so so so}", "planned", ct_json_number(b->profile.planned_bytes),
                            "beside", ct_json_number(b->profile.beside_bytes), "used",
                            ct_json_number(b->profile.used_bytes))),
        stdout);
}

/* ---- the trace ---- */

/* A rank of one of both, with the times of the other as an argument. */
static void put_rank(struct ct_trace *t, const struct beside *b, int index, bool measured)
{
    const struct ct_program *p = b->request.program[index];
    const struct ct_simulated *own = measured ? &b->measured : &b->plan;
    const struct ct_simulated *other = measured ? &b->plan : &b->measured;
    int process = 2 * index + !measured;
    char name[96];

    snprintf(name, sizeof(name), "rank %lld, %s", (long long)b->request.rank[index],
             measured ? "measured" : "planned");
    ct_trace_name(t, process, -1, name);
    ct_trace_streams(t, process, p);
    for (size_t n = 0; n < p->step_count; n++) {
        ct_trace_instruction(t, process, &p->step[n], own->start[index][n], own->end[index][n]);
        ct_trace_integer(t, "instruction", (int64_t)n);
        ct_trace_number(t, measured ? "planned_us" : "measured_us",
                        1e6 * length_of(other, index, n));
        ct_trace_close(t);
    }
}

static int write_trace(const struct beside *b)
{
    struct ct_new_file file;
    struct ct_trace t;
    int rc = ct_file_begin(&file, b->asked->trace);

    if (rc < 0)
        return ct_context(CT_ECONFIG, "--trace");
    ct_trace_begin(&t, file.out);
    for (int index = 0; index < b->request.count; index++) {
        put_rank(&t, b, index, true);
        put_rank(&t, b, index, false);
    }
    rc = ct_file_end(&file, ct_trace_end(&t, NULL));
    if (rc == 0)
        fprintf(stderr, "wrote %s\n", b->asked->trace);
    return rc;
}

/* ---- all ---- */

static int plan(struct beside *b)
{
    struct ct_recipe *recipe;
    int rc = args_recipe(&b->args, &recipe);

    if (rc == 0)
        rc = plan_open(recipe, &b->args, &b->planned);
    if (rc == 0 && ct_stage_of(b->profile.step))
        rc = plan_look_at(&b->planned, ct_stage_of(b->profile.step));
    if (rc < 0)
        return rc;
    return plan_simulate(&b->planned, &b->args, &b->request, &b->plan);
}

static int compare(struct beside *b)
{
    int rc = profile_find(&b->args.arena, b->asked->run, b->asked->step, &b->profile);

    if (rc == 0 && b->asked->rank >= b->profile.world)
        rc = ct_fail(CT_ECONFIG, "--rank: there is no rank %lld among %lld",
                     (long long)b->asked->rank, (long long)b->profile.world);
    if (rc < 0)
        return rc;
    b->args.ranks = b->args.local = b->profile.world;
    rc = plan(b);
    if (rc == 0)
        rc = read_ranks(b);
    if (rc == 0 && b->asked->json)
        rc = print_json(b);
    else if (rc == 0)
        print_people(b);
    return rc == 0 && b->asked->trace ? write_trace(b) : rc;
}

int compare_with_plan(const struct compare_plan *asked)
{
    struct beside b = {.asked = asked,
                       .args = {.path = asked->run,
                                .device = asked->device ? asked->device : CT_MACHINE_THIS,
                                .all_ranks = true}};
    int rc = compare(&b);

    if (b.planned.run)
        plan_close(&b.planned);
    return args_finish(&b.args, rc);
}
