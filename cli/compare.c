/*
 * compare: is recipe B better than recipe A?
 *
 * Both run on this machine in pairs, A before B and B before A in turn, so that what else the
 * machine does hits both alike. A run counts as the median of its step times, without the first
 * steps. Each pair gives one ratio; the ratios give an interval and a verdict. Folders of finished
 * runs are compared by their metrics, in blocks of steps.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/measure.h>
#include <ctitan/recipe.h>
#include <ctitan/run.h>

#include "child.h"
#include "cli.h"
#include "compare_plan.h"
#include "compare_statistics.h"
#include "compare_validations.h"
#include "runs.h"

#define ENOUGH 5  /* pairs, to conclude anything */
#define BLOCKS 10 /* of a finished run */
#define LONGEST 100000
#define SHOWN 40   /* differences of options */
#define UNEQUAL 10 /* percent of the processors: a load that differs by more is told */

struct side {
    const char *name, *path;
    struct argv changes; /* --set and the like */
    bool finished;       /* path is a run's folder */
    struct run_log first;
    double others; /* percent of the processors that other processes took; sum over runs */
    struct run_recipe recipe; /* resolved, as the run saved it */
    json_t *plan;
};

struct comparison {
    struct ct_arena arena;
    struct side side[2];
    int64_t ranks; /* 0: not given */
    int64_t runs, steps, pairs;
    bool json, plan;
    struct compare_plan with_plan;
    const char *folder; /* of its runs */
    double *ratio;      /* step time of A over that of B, by pair */
    double loss_difference, noise;
    int64_t worst_step, common_steps;
    bool identical;      /* losses, bit for bit */
    int64_t last_step;   /* that both have logged; 0: none */
    double last_loss[2]; /* of it */
};

/* ---- arguments ---- */

/* --set, --unset, --with, --without: for both sides; --a-set and the like: for one. */
static int take_change(void *at, struct ct_arena *arena, const char *option, const char *value)
{
    struct comparison *c = at;
    int side = !strncmp(option, "--a-", 4) ? 0 : !strncmp(option, "--b-", 4) ? 1 : -1;
    const char *plain = side < 0 ? option : ct_arena_printf(arena, "--%s", option + 4);

    for (int s = 0; s < 2; s++)
        if (side < 0 || s == side)
            argv_add(arena, &c->side[s].changes, plain, value);
    return 0;
}

#define CHANGE(name, value, doc)                                                                   \
    CT_ARG_TAKE(struct comparison, arena, name, 0, value, doc " of both", take_change),            \
        CT_ARG_TAKE(struct comparison, arena, "a-" name, 0, value, doc " of A", take_change),      \
        CT_ARG_TAKE(struct comparison, arena, "b-" name, 0, value, doc " of B", take_change)

static const struct ct_argument arguments[] = {
    CT_ARG_WORD(struct comparison, side[0].path, "A", "A recipe, or the folder of a finished run"),
    CT_ARG_OPTIONAL(struct comparison, side[1].path, "B",
                    "Another one; by default A again, with other options"),
    CT_ARG_INT(struct comparison, ranks, "ranks", 'n', "RANKS", 1, MOST_RANKS,
               "How many ranks train together"),
    CT_ARG_INT(struct comparison, runs, "runs", 0, "PAIRS", 1, LONGEST,
               "How many pairs of runs, 6 by default"),
    CT_ARG_INT(struct comparison, steps, "steps", 0, "N", 1, LONGEST,
               "Steps of a run, 12 by default"),
    CHANGE("set", "SECTION.KEY=VALUE", "Set an option"),
    CHANGE("unset", "SECTION.KEY", "Leave out an option"),
    CHANGE("with", "PLUGIN", "Load a plugin, in the recipe"),
    CHANGE("without", "PLUGIN", "Leave out a plugin"),
    CT_ARG_FLAG(struct comparison, plan, "plan", 0,
                "Compare a step of run A that the plugin profile timed with the plan of it"),
    CT_ARG_TEXT(struct comparison, with_plan.device, "device", 0, "NAME",
                "With --plan: the description of the machine; `this` if left out"),
    CT_ARG_INT(struct comparison, with_plan.step, "step", 0, "N", 1, 1e15,
               "With --plan: the step; if left out, the profiled one of median length"),
    CT_ARG_INT(struct comparison, with_plan.rank, "rank", 0, "RANK", 0, MOST_RANKS,
               "With --plan: the rank in the tables, from 0"),
    CT_ARG_TEXT(struct comparison, with_plan.trace, "trace", 0, "FILE",
                "With --plan: write a trace for Perfetto, planned beside measured, of all ranks"),
    CT_ARG_FLAG(struct comparison, json, "json", 0, "Print JSON"),
    {0}};

static int check_with_plan(const struct comparison *c)
{
    const struct compare_plan *p = &c->with_plan;

    if (!c->plan && (p->device || p->step || p->rank || p->trace))
        return ct_fail(CT_ECONFIG, "compare: --device, --step, --rank and --trace go with --plan");
    if (c->plan &&
        (c->side[1].path || c->ranks || c->side[0].changes.count || c->side[1].changes.count))
        return ct_fail(CT_ECONFIG, "compare: --plan takes one run, as it was");
    return 0;
}

/* Runs that are there to be read, or recipes to be run; not one of each. */
static int check_sides(const struct comparison *c, int given)
{
    const struct side *run = &c->side[!c->side[0].finished], *other = &c->side[run == c->side];
    struct stat st;

    for (int s = 0; s < given; s++)
        if (stat(c->side[s].path, &st) < 0)
            return ct_fail(CT_ECONFIG, "compare: %s: there is no run or recipe of that name",
                           c->side[s].path);
    if (given == 1 && run->finished)
        return ct_fail(CT_ECONFIG,
                       "compare: %s is a run that has been trained: give a second one, or "
                       "%s/recipe.ini to train it again",
                       run->path, run->path);
    if (run->finished != other->finished)
        return ct_fail(CT_ECONFIG,
                       "compare: %s is a finished run and %s is not: give two of one kind, as "
                       "%s/recipe.ini",
                       run->path, other->path, run->path);
    return 0;
}

static int parse(struct comparison *c, int argc, char **argv)
{
    int sides, rc;

    *c = (struct comparison){.runs = 6, .steps = 12};
    rc = args_explain_unknown(arguments, argc, argv);
    if (rc == 0)
        rc = ct_arguments_parse(arguments, argc, argv, &c->arena, c);
    if (rc == 0)
        rc = check_with_plan(c);
    if (rc < 0 || c->plan)
        return rc;
    sides = c->side[1].path ? 2 : 1;
    if (sides == 1)
        c->side[1].path = c->side[0].path;
    for (int s = 0; s < 2; s++) {
        c->side[s].name = s ? "B" : "A";
        c->side[s].finished = run_is(c->side[s].path);
    }
    return check_sides(c, sides);
}

/* The steps of a run; two at least. */
static int read_log(struct comparison *c, const char *folder, struct run_log *log)
{
    int rc = run_read_log(&c->arena, folder, log);
    const char *why;

    if (rc < 0 || log->count > 1)
        return rc;
    why = run_read_status(&c->arena, folder).message;
    return ct_fail(CT_ECONFIG,
                   "%s/metrics.jsonl: expected the metrics of two steps at least, but the run has "
                   "logged %zu%s%s",
                   folder, log->count, *why ? ": it failed: " : "", why);
}

/* ---- losses ---- */

/* The largest relative difference of losses of steps that both have logged. */
static double compare_losses(const struct run_log *a, const struct run_log *b, int64_t *step,
                             int64_t *common)
{
    double worst = 0;

    *common = 0;
    for (size_t i = 0, j = 0; i < a->count && j < b->count;) {
        if (a->step[i].step == b->step[j].step) {
            double difference = fabs(a->step[i].loss - b->step[j].loss) / fabs(a->step[i].loss);

            if (!(difference <= worst) && !isnan(worst)) {
                worst = difference;
                *step = a->step[i].step;
            }
            (*common)++;
            i++;
            j++;
        } else if (a->step[i].step < b->step[j].step) {
            i++;
        } else {
            j++;
        }
    }
    return worst;
}

static void take_last_losses(struct comparison *c)
{
    const struct run_log *a = &c->side[0].first, *b = &c->side[1].first;
    size_t i = a->count, j = b->count;

    while (i && j && a->step[i - 1].step != b->step[j - 1].step)
        if (a->step[i - 1].step > b->step[j - 1].step)
            i--;
        else
            j--;
    if (!i || !j)
        return;
    c->last_step = a->step[i - 1].step;
    c->last_loss[0] = a->step[i - 1].loss;
    c->last_loss[1] = b->step[j - 1].loss;
}

static void take_losses(struct comparison *c)
{
    take_last_losses(c);
    c->loss_difference =
        compare_losses(&c->side[0].first, &c->side[1].first, &c->worst_step, &c->common_steps);
    c->identical = c->common_steps > 0 && c->loss_difference == 0;
}

/* ---- runs ---- */

/* The arguments that every child of a side has. */
static void begin(struct comparison *c, const struct side *s, const char *verb, struct argv *argv)
{
    argv_add(&c->arena, argv, "ctitan", verb, s->path);
    if (c->ranks)
        argv_add(&c->arena, argv, "-n", ct_arena_printf(&c->arena, "%lld", (long long)c->ranks));
    if (s->changes.count)
        argv_add_list(&c->arena, argv, s->changes.list);
}

static int plan(struct comparison *c, struct side *s)
{
    struct argv argv = {0};
    struct child child;
    const char *last;
    FILE *out;
    int status, rc;

    begin(c, s, "plan", &argv);
    argv_add(&c->arena, &argv, "--json");
    rc = child_start(THIS_PROGRAM, argv.list, 0, &child);
    if (rc < 0)
        return rc;
    status = child_finish(&c->arena, &child, &out, &last);
    rc = status == 0 && out ? ct_json_read_stream(out, "its plan", 0, &s->plan) : 0;
    if (out)
        fclose(out);
    if (rc < 0)
        return ct_context(rc, "%s", s->name);
    return s->plan ? 0 : ct_fail(status == 2 ? CT_ECONFIG : CT_EINVAL, "%s: %s", s->name, last);
}

/* The first steps of a run warm caches up, and are not counted. */
static size_t warm(size_t count)
{
    return count > 5 ? 2 : 1;
}

static double median_seconds(struct comparison *c, const struct run_log *log, size_t from,
                             size_t count)
{
    double *seconds = ct_arena_array(&c->arena, double, count);

    for (size_t i = 0; i < count; i++)
        seconds[i] = log->step[from + i].seconds;
    return ct_median(seconds, count);
}

static int train(struct comparison *c, struct side *s, double *seconds, double *others)
{
    const char *folder = ct_arena_printf(&c->arena, "%s/%s", c->folder, s->name), *last;
    struct argv argv = {0};
    struct child child;
    struct run_log log;
    int status, rc;

    begin(c, s, "train", &argv);
    /* metrics logs what is compared. */
    argv_add(&c->arena, &argv, "--with", "metrics", "--set",
             ct_recipe_assign(&c->arena, "job.dump_folder", folder), "--set",
             "model.save_to=", "--set",
             ct_arena_printf(&c->arena, "training.steps=%lld", (long long)c->steps), "--set",
             "training.epochs=0", "--set", "metrics.log_freq=1");
    scratch_remove(folder);
    rc = child_start(THIS_PROGRAM, argv.list, 0, &child);
    if (rc < 0)
        return rc;
    status = child_finish(&c->arena, &child, NULL, &last);
    if (status != 0)
        return ct_fail(status == 2 ? CT_ECONFIG : CT_EINVAL, "%s: %s", s->name, last);
    rc = read_log(c, folder, &log);
    if (rc < 0)
        return rc;
    if (!s->first.count) {
        s->first = log;
        rc = run_read_recipe(&c->arena, folder, &s->recipe);
        if (rc < 0)
            return rc;
    } else {
        int64_t step, common;

        c->noise = fmax(c->noise, compare_losses(&s->first, &log, &step, &common));
    }
    *seconds = median_seconds(c, &log, warm(log.count), log.count - warm(log.count));
    *others = run_others(&log);
    s->others += *others;
    return 0;
}

/* " (others 12 %)", or "" */
static const char *beside(double others, char text[64])
{
    *text = '\0';
    if (isfinite(others))
        snprintf(text, 64, " (others %.0f %%)", others);
    return text;
}

static int run_pairs(struct comparison *c)
{
    int rc = 0;

    c->folder = scratch_folder(&c->arena, "compare");
    if (!c->folder)
        return CT_EIO;
    c->ratio = ct_arena_array(&c->arena, double, c->runs);
    for (; rc == 0 && c->pairs < c->runs; c->pairs++) {
        int first = (int)c->pairs % 2;
        double seconds[2] = {1, 1}, others[2] = {NAN, NAN};
        char text[2][64];

        for (int s = 0; rc == 0 && s < 2; s++)
            rc = train(c, &c->side[first ^ s], &seconds[first ^ s], &others[first ^ s]);
        c->ratio[c->pairs] = seconds[0] / seconds[1];
        if (rc == 0 && !c->json)
            fprintf(stderr, "pair %lld of %lld: A %.4f s%s, B %.4f s%s a step\n",
                    (long long)c->pairs + 1, (long long)c->runs, seconds[0],
                    beside(others[0], text[0]), seconds[1], beside(others[1], text[1]));
    }
    for (int s = 0; s < 2; s++)
        c->side[s].others /= (double)c->runs;
    scratch_remove(c->folder);
    return rc;
}

static int compare_finished(struct comparison *c)
{
    size_t count, per;

    for (int s = 0; s < 2; s++) {
        int rc = read_log(c, c->side[s].path, &c->side[s].first);

        if (rc < 0)
            return rc;
        rc = run_read_recipe(&c->arena, c->side[s].path, &c->side[s].recipe);
        if (rc < 0)
            return rc;
        c->side[s].others = run_others(&c->side[s].first);
    }
    count = c->side[0].first.count < c->side[1].first.count ? c->side[0].first.count
                                                            : c->side[1].first.count;
    count -= warm(count);
    per = count / BLOCKS ? count / BLOCKS : 1;
    c->ratio = ct_arena_array(&c->arena, double, BLOCKS);
    for (size_t at = warm(count); c->pairs < BLOCKS && at + per <= count + warm(count); at += per)
        c->ratio[c->pairs++] = median_seconds(c, &c->side[0].first, at, per) /
                               median_seconds(c, &c->side[1].first, at, per);
    return 0;
}

/* ---- what differs ---- */

/* Options that compare itself sets say nothing. */
static bool is_own(const char *name)
{
    return !strcmp(name, "job.dump_folder") || !strcmp(name, "training.steps") ||
           !strcmp(name, "training.epochs") || !strcmp(name, "metrics.log_freq");
}

/* One that both have, or one of them. */
static void print_option(const struct run_option *a, const struct run_option *b, json_t *list,
                         int *count)
{
    if (list) {
        json_array_append_new(
            list, json_pack("{so so so so so}", "option", ct_json_text(a ? a->name : b->name), "a",
                            ct_json_text(a ? a->value : ""), "a_source",
                            ct_json_text(a ? a->source : ""), "b", ct_json_text(b ? b->value : ""),
                            "b_source", ct_json_text(b ? b->source : "")));
    } else if (*count < SHOWN) {
        printf("  %-32s", a ? a->name : b->name);
        printf(a ? " %s (%s)" : " not loaded", a ? a->value : "", a ? a->source : "");
        printf(b ? "  ->  %s (%s)\n" : "  ->  not loaded\n", b ? b->value : "", b ? b->source : "");
    }
    (*count)++;
}

/* Print them, or add them to a list. */
static int print_options(const struct comparison *c, json_t *list)
{
    const struct run_recipe *a = &c->side[0].recipe, *b = &c->side[1].recipe;
    struct run_option one, other;
    int count = 0;

    for (size_t at = 0; run_option_next(a, &at, &one);) {
        if (is_own(one.name))
            continue;
        if (!run_option_find(b, one.name, &other))
            print_option(&one, NULL, list, &count);
        else if (strcmp(one.value, other.value))
            print_option(&one, &other, list, &count);
    }
    for (size_t at = 0; run_option_next(b, &at, &other);)
        if (!is_own(other.name) && !run_option_find(a, other.name, &one))
            print_option(NULL, &other, list, &count);
    if (!list && count > SHOWN)
        printf("  and %d more\n", count - SHOWN);
    return count;
}

static double planned(const struct side *s, const char *key)
{
    return json_number_value(json_object_get(s->plan, key));
}

static const char *whole_number(double value, char text[32])
{
    snprintf(text, 32, "%.0f", value);
    return text;
}

static void print_plans(const struct comparison *c)
{
    static const struct {
        const char *key, *name;
        const char *(*write)(double value, char text[32]);
    } rows[] = {{"memory_peak_bytes", "memory of a rank", human_bytes},
                {"flops_per_step", "FLOPs of a rank", human_count},
                {"comm_bytes", "sent by a rank", human_bytes},
                {"instructions", "instructions", whole_number}};
    char one[32], other[32];

    for (size_t i = 0; i < CT_COUNT(rows); i++) {
        double a = planned(&c->side[0], rows[i].key), b = planned(&c->side[1], rows[i].key);

        printf("  %-32s %18s %18s", rows[i].name, rows[i].write(a, one), rows[i].write(b, other));
        if (a == b)
            printf("   the same\n");
        else if (a > 0)
            printf("   %+.2f %%\n", 100 * (b / a - 1));
        else
            printf("\n");
    }
}

/* ---- the verdict ---- */

static void say_speed(const struct comparison *c, char *text, size_t room)
{
    struct ratio r = c->pairs >= ENOUGH ? ratio_of(c->ratio, (size_t)c->pairs) : (struct ratio){0};

    if (c->pairs < ENOUGH)
        snprintf(text, room, "%lld pair%s too few to compare speeds: at least %d are needed",
                 (long long)c->pairs, c->pairs == 1 ? " is" : "s are", ENOUGH);
    else if (!r.differs)
        snprintf(text, room,
                 "no difference in speed is shown: B is %.3f times as fast as A, 95 %% interval "
                 "%.3f to %.3f",
                 r.value, r.low, r.high);
    else
        snprintf(text, room, "B is %.3f times as fast as A, 95 %% interval %.3f to %.3f", r.value,
                 r.low, r.high);
}

/* How busy the machine was. */
static void say_load(const struct comparison *c, char *text, size_t room)
{
    double a = c->side[0].others, b = c->side[1].others;

    if (!isfinite(a) || !isfinite(b))
        snprintf(text, room, "how busy the machine was is not known");
    else if (fabs(a - b) > UNEQUAL)
        snprintf(text, room,
                 "warning: other processes took %.0f %% of the processors in A and %.0f %% in B: "
                 "the speeds do not compare; run both again when nothing else runs",
                 a, b);
    else if (fmax(a, b) > 100 * CT_LOAD_NOTABLE)
        snprintf(text, room,
                 "the machine was busy: other processes took %.0f %% of the processors in A and "
                 "%.0f %% in B",
                 a, b);
    else
        snprintf(text, room, "other processes took %.0f %% of the processors in A and %.0f %% in B",
                 a, b);
}

static void say_loss(const struct comparison *c, char *text, size_t room)
{
    if (!c->common_steps)
        snprintf(text, room, "the runs have no step in common");
    else if (isnan(c->loss_difference))
        snprintf(text, room, "a loss of step %lld is not a number", (long long)c->worst_step);
    else if (c->identical)
        snprintf(text, room, "losses are bitwise equal over %lld step%s",
                 (long long)c->common_steps, ct_plural(c->common_steps));
    else
        snprintf(text, room,
                 "losses differ by at most %.2g (relative), at step %lld of %lld; runs of the same "
                 "recipe differ by %.2g",
                 c->loss_difference, (long long)c->worst_step, (long long)c->common_steps,
                 c->noise);
}

static double memory(const struct side *s)
{
    return s->first.step[s->first.count - 1].memory;
}

static void print_memory(double a, double b)
{
    char one[32], other[32];

    if (!isfinite(a) || !isfinite(b))
        return;
    if (a == b)
        printf("memory is the same: %s\n", human_bytes(a, one));
    else
        printf("memory of B is %.4f times that of A: %s instead of %s\n", b / a,
               human_bytes(b, other), human_bytes(a, one));
}

static void print_people(const struct comparison *c)
{
    char text[512];

    printf("A: %s\nB: %s\n\noptions that differ\n", c->side[0].path, c->side[1].path);
    if (!print_options(c, NULL))
        printf("  none\n");
    if (c->side[0].plan) {
        printf("\n  %-32s %18s %18s\n", "plan", "A", "B");
        print_plans(c);
    }
    say_speed(c, text, sizeof(text));
    printf("\n%s\n", text);
    if (c->side[0].finished)
        printf(
            "  (the runs were not interleaved, so other load on the machine affects the result)\n");
    say_load(c, text, sizeof(text));
    printf("%s\n", text);
    say_loss(c, text, sizeof(text));
    printf("%s\n", text);
    if (c->last_step && !c->identical && isfinite(c->last_loss[0]) && isfinite(c->last_loss[1]))
        printf("loss of step %lld, the last that both have: A %.5f, B %.5f\n",
               (long long)c->last_step, c->last_loss[0], c->last_loss[1]);
    compare_print_validations(&c->side[0].first, &c->side[1].first);
    print_memory(memory(&c->side[0]), memory(&c->side[1]));
}

static json_t *result_json(const struct comparison *c)
{
    struct ratio r =
        c->pairs >= 3 ? ratio_of(c->ratio, (size_t)c->pairs) : (struct ratio){.value = NAN};
    char speed[512], loss[512], load[512];
    json_t *o;

    say_speed(c, speed, sizeof(speed));
    say_loss(c, loss, sizeof(loss));
    say_load(c, load, sizeof(load));
    o = json_pack("{si ss sb ss so si so so ss so so}", "pairs", (int)c->pairs, "speed", speed,
                  "differs", c->pairs >= ENOUGH && r.differs, "loss", loss, "loss_difference",
                  ct_json_number(c->loss_difference), "steps", (int)c->common_steps, "memory_a",
                  ct_json_number(memory(&c->side[0])), "memory_b",
                  ct_json_number(memory(&c->side[1])), "load", load, "others_a",
                  ct_json_number(c->side[0].others), "others_b", ct_json_number(c->side[1].others));
    if (c->last_step) {
        json_object_set_new(o, "last_step", json_integer(c->last_step));
        json_object_set_new(o, "loss_a", ct_json_number(c->last_loss[0]));
        json_object_set_new(o, "loss_b", ct_json_number(c->last_loss[1]));
    }
    if (c->pairs >= 3) {
        json_object_set_new(o, "ratio", ct_json_number(r.value));
        json_object_set_new(o, "low", ct_json_number(r.low));
        json_object_set_new(o, "high", ct_json_number(r.high));
    }
    return o;
}

static int print_json(const struct comparison *c)
{
    json_t *options = json_array();

    print_options(c, options);
    return ct_json_print(json_pack("{so so so}", "options", options, "validations",
                                   compare_json_validations(&c->side[0].first, &c->side[1].first),
                                   "result", result_json(c)),
                         stdout);
}

static int with_plan(struct comparison *c)
{
    int rc;

    c->with_plan.run = c->side[0].path;
    c->with_plan.json = c->json;
    rc = compare_with_plan(&c->with_plan);
    ct_arena_finish(&c->arena);
    return rc;
}

static int compare(int argc, char **argv)
{
    struct comparison c;
    int rc = parse(&c, argc, argv);

    if (rc == 0 && c.plan)
        return with_plan(&c);
    for (int s = 0; rc == 0 && !c.side[0].finished && s < 2; s++)
        rc = plan(&c, &c.side[s]);
    if (rc == 0)
        rc = c.side[0].finished ? compare_finished(&c) : run_pairs(&c);
    if (rc == 0) {
        take_losses(&c);
        if (c.json)
            rc = print_json(&c);
        else
            print_people(&c);
    }
    for (int s = 0; s < 2; s++)
        json_decref(c.side[s].plan);
    ct_arena_finish(&c.arena);
    return rc;
}

const struct verb verb_compare = {
    .name = "compare",
    .summary = "compare two recipes, two finished runs, or a run with its plan",
    .run = compare,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan compare recipes/debug.ini --b-with fuse",
                         "ctitan compare outputs/one outputs/two",
                         "ctitan compare outputs/one --plan --trace both.json")};
