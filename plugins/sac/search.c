/*
 * Chooses the saved values by search: within a budget, or within the device's memory.
 *
 * The plans of budget.c give the bytes that are kept, but not the peak of memory, which is known
 * only for a lowered program. `auto` therefore lowers some plans, starting with the one whose
 * memory should just fit, and takes the fastest that fits.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/log.h>

#include "sac.h"

#define TRIES 16
#define PROBES 32
#define MOST_BYTES 0x1p62

/* ---- amounts ---- */

/* "0.5" of whole, or "12.5GiB". */
static int read_amount(const char *key, const char *text, double whole, size_t *bytes)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"B", 1},
                 {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
    char *end;
    double number = strtod(text, &end), unit = number <= 1 ? whole : 1;
    bool known;

    end += strspn(end, " ");
    known = !*end;
    for (size_t i = 0; i < CT_COUNT(units) && !known; i++) {
        known = !strcmp(end, units[i].name);
        unit = units[i].bytes;
    }
    if (end == text || !(number >= 0 && number * unit < MOST_BYTES))
        return ct_fail(CT_ECONFIG, "[sac] %s = %s: expected a fraction or bytes, as 0.5 or 12GiB",
                       key, text);
    if (!known)
        return ct_fail(CT_ECONFIG, "[sac] %s = %s: %s is no unit; KiB, MiB, GiB, TiB, KB .. are",
                       key, text, end);
    *bytes = (size_t)(number * unit);
    return 0;
}

/* ---- microbatches in flight ---- */

const struct sac_flight *sac_flight_of(const struct sac *s, int group)
{
    static const struct sac_flight one = {.group = CT_NO_GROUP, .until_i = 1, .until_w = 1};

    for (int i = 0; i < s->flights; i++)
        if (s->flight[i].group == group)
            return &s->flight[i];
    return &one;
}

static struct sac_flight *flight_of(struct sac *s, int group, size_t *room)
{
    for (int i = 0; i < s->flights; i++)
        if (s->flight[i].group == group)
            return &s->flight[i];
    s->flight =
        ct_arena_grow(&s->scratch, s->flight, room, (size_t)s->flights + 1, sizeof(*s->flight));
    s->flight[s->flights] = (struct sac_flight){.group = group};
    return &s->flight[s->flights++];
}

static void most(int *value, int at_least)
{
    if (*value < at_least)
        *value = at_least;
}

static void count_span(struct sac *s, const struct ct_span *span, size_t *room)
{
    for (int i = 0; i < 2 && span->section[i]; i++) {
        const struct ct_section *section = span->section[i];
        struct sac_flight *f;

        if (!section->main || !ct_part_is_microbatch(section->part))
            continue;
        f = flight_of(s, section->group, room);
        f->now_i += (section->part == CT_PART_F) - (section->part == CT_PART_I);
        f->now_w += (section->part == CT_PART_F) - (section->part == CT_PART_W);
        most(&f->until_i, f->now_i);
        most(&f->until_w, f->now_w);
    }
}

static void find_flights(struct sac *s, const struct ct_order *order)
{
    size_t room = 0;

    for (size_t i = 0; i < order->count; i++) {
        if (order->item[i].release)
            continue;
        count_span(s, &order->item[i].run, &room);
        count_span(s, &order->item[i].beside, &room);
    }
    for (int i = 0; i < s->flights; i++)
        if (s->flight[i].now_w > 0) /* there is no W */
            s->flight[i].until_w = s->flight[i].until_i;
}

/* ---- trying ---- */

/* Lower the graph with what is kept now; the program is in arena. */
static int lower(const struct sac *s, struct ct_run *run, struct ct_arena *arena,
                 struct ct_program **program)
{
    struct sac trial = *s;
    int rc;

    trial.graph = ct_graph_clone(s->graph, arena);
    trial.scratch = (struct ct_arena){0};
    rc = sac_replay(&trial);
    if (rc == 0)
        rc = ct_run_try(run, trial.graph, "sac", program);
    ct_arena_finish(&trial.scratch);
    return rc < 0 ? ct_context(rc, "planning a choice of sac") : 0;
}

static int try_plan(struct sac *s, struct ct_run *run, struct sac_plan *plan)
{
    struct ct_arena arena = {0};
    struct ct_program *program;
    int rc;

    sac_keep_plan(s, plan);
    rc = lower(s, run, &arena, &program);
    if (rc == 0) {
        plan->planned = program->memory.bytes;
        plan->planned_host = program->host.bytes;
    }
    ct_arena_finish(&arena);
    return rc;
}

/* The memory of a step without sac, and its order. */
static int try_without(struct sac *s, struct ct_run *run, size_t *planned)
{
    struct ct_arena arena = {0};
    struct ct_program *program;
    int rc;

    rc = lower(s, run, &arena, &program);
    if (rc == 0) {
        find_flights(s, &program->order);
        *planned = program->memory.bytes;
    }
    ct_arena_finish(&arena);
    return rc;
}

/* ---- output for people ---- */

static void print_row(const struct sac *s, const struct sac_plan *plan, const char *note)
{
    char planned[32] = "", away[64] = "";

    if (plan->planned)
        snprintf(planned, sizeof(planned), "%.1f", (double)plan->planned / 0x1p20);
    if (s->offloads)
        snprintf(away, sizeof(away), " %12.1f %14.1f", plan->copied / 0x1p20,
                 (double)plan->planned_host / 0x1p20);
    ct_info("sac: %12.1f %8.1f %12.3f %10.1f %14s%s  %s", (double)plan->bytes / 0x1p20,
            s->saved ? 100 * (double)plan->bytes / (double)s->saved : 0, 1e3 * plan->seconds,
            s->forward_flops > 0 ? 100 * plan->flops / s->forward_flops : 0, planned, away, note);
}

#define ROWS 12

/* Layers of which not all choices were compared. */
static void tell_partial(const struct sac *s)
{
    const char *first = NULL;
    int count = 0;

    for (int n = 0; n < s->layers; n++)
        if (s->front[n].partial && !count++)
            first = s->layer[n].name;
    if (count)
        ct_info("sac: %d of %d layers, such as %s, have too many choices to compare all: some that "
                "take less time may be missing",
                count, s->layers, first);
}

/* The basis of the choice: some of the plans, those that were lowered, and the chosen one. */
static void print_table(const struct sac *s, const struct sac_plan *chosen, size_t without)
{
    struct sac_plan none = {.bytes = s->saved, .planned = without};

    ct_info("sac: %12s %8s %12s %10s %14s%s", "kept, MiB", "% of all", "longer, ms", "% of FLOPs",
            "planned, MiB", s->offloads ? "    away, MiB      host, MiB" : "");
    for (int i = 0, last = -1; i < s->plans; i++) {
        const struct sac_plan *plan = &s->plan[i];
        int row = i * ROWS / s->plans;

        if (row != last || plan->planned || plan == chosen || i == s->plans - 1)
            print_row(s, plan, plan == chosen ? "<- chosen" : "");
        last = row;
    }
    if (chosen == s->plan + s->plans)
        print_row(s, chosen, "<- chosen, as mode = op does");
    tell_partial(s);
    print_row(s, &none, chosen ? "without sac" : "without sac <- chosen");
}

/* ---- the modes ---- */

/* The fastest plan within the given bytes; -1: none. */
static int plan_within(const struct sac *s, double bytes)
{
    int best = -1;

    for (int i = 0; i < s->plans && (double)s->plan[i].bytes <= bytes; i++)
        best = i;
    return best;
}

static int choose_budget(struct sac *s, size_t without)
{
    size_t budget;
    int best, rc = read_amount("budget", sac_config.budget, (double)s->saved, &budget);

    if (rc < 0)
        return rc;
    best = plan_within(s, (double)budget);
    if (best < 0)
        return ct_fail(CT_ECONFIG,
                       "[sac] budget = %s: the layers keep at least %zu bytes (%zu without sac): "
                       "raise the budget",
                       sac_config.budget, s->plan[0].bytes, s->saved);
    print_table(s, &s->plan[best], without);
    sac_keep_plan(s, &s->plan[best]);
    return 0;
}

/* The fastest plan whose program takes no more than limit; -1: none. The estimate is memory without
   sac, less what is no longer kept; the error of each try corrects the next. Every other try halves
   what is left, since the error changes with the plan. */
static int search(struct sac *s, struct ct_run *run, size_t limit, size_t without, int *best)
{
    double above = (double)without - (double)s->saved;
    int fails = s->plans;

    *best = -1;
    for (int tries = 0; fails - *best > 1 && (tries < TRIES || *best < 0); tries++) {
        int at = plan_within(s, (double)limit - above), rc;

        if (tries % 2)
            at = (*best + fails) / 2;
        at = at <= *best ? *best + 1 : at >= fails ? fails - 1 : at;
        rc = try_plan(s, run, &s->plan[at]);
        if (rc < 0)
            return rc;
        above = (double)s->plan[at].planned - (double)s->plan[at].bytes;
        *(s->plan[at].planned <= limit ? best : &fails) = at;
    }
    return 0;
}

/* The peak need not grow with what is kept: try faster plans, at growing distance from the best
   (-1: none yet), and again from each that fits. */
static int probe(struct sac *s, struct ct_run *run, size_t limit, int *best)
{
    int rc = 0, tries = 0;

    for (int step = 1; rc == 0 && tries < PROBES && *best + step < s->plans;
         step = step ? 2 * step : 1) {
        struct sac_plan *plan = &s->plan[*best + step];

        if (!plan->planned) {
            rc = try_plan(s, run, plan);
            tries++;
        }
        if (rc == 0 && plan->planned <= limit) {
            *best += step;
            step = 0;
        }
    }
    return rc;
}

/* Plans of budget.c cost least for the bytes that they keep, but others may leave fewer gaps in
   memory: try what the fixed modes keep. The fastest that fits takes the place behind the last. */
static int try_rules(struct sac *s, struct ct_run *run, size_t limit, int *best)
{
    static const char *const lists[] = {"default", "attention", "linear", "linear,attention"};
    struct sac_plan plan;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < CT_COUNT(lists); i++) {
        memset(s->kept, true, s->forward->value_count);
        memset(s->away, false, s->forward->value_count);
        rc = sac_keep_listed(s, lists[i]);
        sac_settle(s);
        sac_plan_of_kept(s, &plan);
        if (rc < 0 || (*best >= 0 && plan.seconds >= s->plan[*best].seconds))
            continue;
        rc = try_plan(s, run, &plan);
        if (rc == 0 && plan.planned <= limit) {
            s->plan[s->plans] = plan;
            *best = s->plans;
        }
    }
    return rc;
}

static int choose_auto(struct sac *s, struct ct_run *run, size_t without)
{
    struct ct_device_info info = {.memory = 0};
    size_t limit;
    int best, rc;

    run->device_ops->info(run->device, CT_F32, &info);
    rc =
        read_amount("memory", sac_config.memory, (double)info.memory - (double)info.beside, &limit);
    if (rc < 0)
        return rc;
    if (without <= limit) {
        print_table(s, NULL, without);
        return 0;
    }
    rc = search(s, run, limit, without, &best);
    if (rc == 0)
        rc = probe(s, run, limit, &best);
    if (rc == 0)
        rc = try_rules(s, run, limit, &best);
    if (rc == 0 && best < 0)
        rc = ct_fail(CT_ECONFIG,
                     "[sac] memory = %s: a step takes %zu bytes even when most is recomputed, but "
                     "the limit is %zu: use more ranks or smaller microbatches",
                     sac_config.memory, s->plan[0].planned, limit);
    if (rc < 0)
        return rc;
    print_table(s, &s->plan[best], without);
    sac_keep_plan(s, &s->plan[best]);
    return 0;
}

int sac_choose_by_search(struct sac *s, struct ct_run *run)
{
    size_t without = 0;
    int rc;

    memset(s->kept, true, s->forward->value_count);
    memset(s->away, false, s->forward->value_count);
    sac_settle(s);
    rc = run ? try_without(s, run, &without) : 0;
    if (rc < 0)
        return rc;
    rc = sac_find_rates(s, run);
    if (rc < 0)
        return rc;
    sac_solve(s);
    return sac_config.mode == SAC_AUTO ? choose_auto(s, run, without) : choose_budget(s, without);
}
