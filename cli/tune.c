/*
 * tune: the fastest plan on a described machine that fits into its memory.
 *
 * A candidate is a list of settings. `ctitan plan --json` plans it in a process of its own: a real
 * plan with its proof, and a simulated step. The search goes in rounds. The first takes all meshes
 * of the recipe's techniques; the next ones change one option at a time of the best candidates so
 * far, until none gets faster. What an option may be is in `dimensions`, and --vary adds to it.
 *
 * The sequences of a step stay those of the recipe: the data-parallel degree only divides them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/terminal.h>
#include <ctitan/recipe.h>

#include "child.h"
#include "cli.h"

#define DIMENSIONS 24
#define VALUES 16
#define KEPT 3 /* candidates that a round starts from */
#define ROUNDS 4
#define SHOWN 10

/* An option that is varied. */
struct dimension {
    const char *plugin; /* it is varied only where the recipe lists this; NULL: always */
    const char *key;    /* "tp.degree" */
    const char *values; /* separated by spaces */
    bool mesh;          /* a degree: all combinations are tried */
};

static const struct dimension dimensions[] = {
    {"tp", "tp.degree", "1 2 4 8", true},
    {"pp", "pp.degree", "1 2 4 8 16", true},
    {"cp", "cp.degree", "1 2 4 8", true},
    {"ep", "ep.degree", "1 2 4 8", true},
    {"sac", "sac.mode", "none full auto", false},
    {"pp", "pp.schedule", "1f1b interleaved_1f1b zbv", false},
    {"pp", "pp.microbatch_size", "1 2 4 8", false},
    {"fsdp", "fsdp.reshard_after_forward", "default never always", false},
    {"fsdp", "fsdp.replicate_degree", "1 2 4 8 16", false},
    {NULL, "training.local_batch_size", "1 2 4 8 16", false},
};

struct varied {
    const char *key, *value[VALUES];
    int values;
    bool mesh;
};

struct candidate {
    int choice[DIMENSIONS]; /* index of a value, by dimension */
    double seconds, bytes, tokens, exposed, waiting;
    const char *limit, *failure; /* failure NULL: it was planned */
    const char **no_kernel;      /* op types whose time is taken from bytes and FLOPs */
    size_t no_kernels;
    bool fits;
};

struct arguments {
    struct args args; /* first */
    double memory;    /* bytes; 0: not given */
    const char *out;
    struct ct_texts vary;
};

struct search {
    const struct arguments *given;
    struct args *args;
    struct varied dimension[DIMENSIONS];
    int dimensions;
    int64_t sequences; /* of a step */
    struct candidate *list;
    size_t count, room;
    double memory;
};

/* ---- dimensions ---- */

/* Whether the search reckons with the numbers: it divides ranks or sequences by them. */
static bool is_counted(const struct varied *d)
{
    return d->mesh || !strcmp(d->key, "training.local_batch_size") ||
           !strcmp(d->key, "pp.microbatch_size");
}

static bool is_count(const char *text)
{
    return *text != '0' && strlen(text) < 10 && text[strspn(text, "0123456789")] == '\0';
}

static int add_dimension(struct search *s, const char *key, char *values, const char *between,
                         bool mesh)
{
    struct varied *d = &s->dimension[s->dimensions];
    char *value;

    if (s->dimensions == DIMENSIONS)
        return ct_fail(CT_ECONFIG, "--vary: at most %d options can vary", DIMENSIONS);
    *d = (struct varied){.key = key, .mesh = mesh};
    while ((value = strsep(&values, between))) {
        if (!*value)
            continue;
        if (d->values == VALUES)
            return ct_fail(CT_ECONFIG, "--vary %s: an option can have at most %d values", key,
                           VALUES);
        if (is_counted(d) && !is_count(value))
            return ct_fail(CT_ECONFIG, "--vary %s: expected whole numbers from 1 on, not %s", key,
                           value);
        d->value[d->values++] = value;
    }
    if (!d->values)
        return ct_fail(CT_ECONFIG, "--vary %s: the values are missing", key);
    s->dimensions++;
    return 0;
}

static struct varied *find_dimension(struct search *s, const char *key)
{
    for (int i = 0; i < s->dimensions; i++)
        if (!strcmp(s->dimension[i].key, key))
            return &s->dimension[i];
    return NULL;
}

static int find_dimensions(struct search *s, const struct ct_recipe *recipe)
{
    struct ct_arena *arena = &s->args->arena;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < s->given->vary.count; i++) {
        char *text = ct_arena_strdup(arena, s->given->vary.at[i]), *equals = strchr(text, '=');

        if (!equals || !strchr(text, '.'))
            return ct_fail(CT_ECONFIG, "--vary %s: expected SECTION.KEY=VALUE,VALUE,..", text);
        *equals = '\0';
        rc = add_dimension(s, text, equals + 1, ",", strstr(text, ".degree") != NULL);
    }
    for (size_t i = 0; rc == 0 && i < CT_COUNT(dimensions); i++)
        if ((!dimensions[i].plugin || ct_recipe_loads(recipe, dimensions[i].plugin)) &&
            !find_dimension(s, dimensions[i].key))
            rc = add_dimension(s, dimensions[i].key, ct_arena_strdup(arena, dimensions[i].values),
                               " ", dimensions[i].mesh);
    return rc;
}

/* ---- candidates ---- */

static const char *value_of(const struct search *s, const struct candidate *c, const char *key)
{
    for (int i = 0; i < s->dimensions; i++)
        if (!strcmp(s->dimension[i].key, key))
            return s->dimension[i].value[c->choice[i]];
    return NULL;
}

/* Ranks that share no sequence; 0: the degrees do not divide the world. */
static int64_t data_parallel(const struct search *s, const struct candidate *c)
{
    int64_t others = 1;

    for (int i = 0; i < s->dimensions; i++)
        if (s->dimension[i].mesh)
            others *= atoll(s->dimension[i].value[c->choice[i]]);
    return others > 0 && s->args->ranks % others == 0 ? s->args->ranks / others : 0;
}

/* The settings of a candidate; returns their number, or 0 if it makes no sense. */
static size_t settings(const struct search *s, const struct candidate *c, const char **list)
{
    struct ct_arena *arena = &s->args->arena;
    int64_t dp = data_parallel(s, c), local;
    const char *stages = value_of(s, c, "pp.degree");
    bool piped = stages && atoi(stages) > 1;
    size_t count = 0;

    if (!dp || s->sequences % dp)
        return 0;
    local = s->sequences / dp;
    for (int i = 0; i < s->dimensions; i++) {
        const struct varied *d = &s->dimension[i];
        const char *value = d->value[c->choice[i]];
        bool of_pipeline = !strncmp(d->key, "pp.", 3) && strcmp(d->key, "pp.degree") != 0;

        if (!strcmp(d->key, "training.local_batch_size")) {
            if (piped)
                continue; /* the microbatches of a pipeline are [pp]'s */
            if (local % atoll(value))
                return 0;
        }
        if (of_pipeline && !piped)
            continue;
        if (!strcmp(d->key, "pp.microbatch_size") && local % atoll(value))
            return 0;
        list[count++] = ct_arena_printf(arena, "%s=%s", d->key, value);
    }
    if (piped)
        list[count++] = ct_arena_printf(arena, "training.local_batch_size=%lld", (long long)local);
    list[count++] =
        ct_arena_printf(arena, "training.global_batch_size=%lld", (long long)s->sequences);
    return count;
}

static bool same_settings(const struct search *s, const struct candidate *a,
                          const struct candidate *b)
{
    const char *x[DIMENSIONS + 2], *y[DIMENSIONS + 2];
    size_t n = settings(s, a, x), m = settings(s, b, y);

    for (size_t i = 0; n == m && i < n; i++)
        if (strcmp(x[i], y[i]))
            return false;
    return n == m;
}

static void add(struct search *s, const struct candidate *c)
{
    const char *list[DIMENSIONS + 2];

    if (!settings(s, c, list))
        return;
    for (size_t i = 0; i < s->count; i++)
        if (same_settings(s, &s->list[i], c))
            return;
    s->list = ct_arena_grow(&s->args->arena, s->list, &s->room, s->count + 1, sizeof(*s->list));
    s->list[s->count++] = *c;
}

/* ---- planning ---- */

static int spawn(struct search *s, const char *const *set, size_t sets, struct child *child)
{
    struct ct_arena *arena = &s->args->arena;
    struct argv argv = {0};

    argv_add(arena, &argv, "ctitan", "plan", s->args->path, "--json", "--world",
             ct_arena_printf(arena, "%lld", (long long)s->args->ranks), "--device",
             s->args->device);
    args_changes(s->args, &argv);
    for (size_t i = 0; i < sets; i++)
        argv_add(arena, &argv, "--set", set[i]);
    return child_start(THIS_PROGRAM, argv.list, 0, child);
}

static void take_plan(struct search *s, struct candidate *c, json_t *plan)
{
    json_t *time = json_object_get(plan, "time"), *names = json_object_get(time, "no_kernel");
    double beside = json_number_value(json_object_get(plan, "beside_bytes"));

    c->bytes = json_number_value(json_object_get(plan, "memory_peak_bytes"));
    c->seconds = json_number_value(json_object_get(time, "step_seconds"));
    c->tokens = json_number_value(json_object_get(time, "tokens_per_second_per_rank"));
    c->exposed = json_number_value(json_object_get(time, "exposed"));
    c->waiting = json_number_value(json_object_get(time, "waiting"));
    c->limit =
        ct_arena_strdup(&s->args->arena, json_string_value(json_object_get(time, "limited_by")));
    c->no_kernels = json_array_size(names);
    c->no_kernel = ct_arena_array(&s->args->arena, const char *, c->no_kernels);
    for (size_t i = 0; i < c->no_kernels; i++)
        c->no_kernel[i] =
            ct_arena_strdup(&s->args->arena, json_string_value(json_array_get(names, i)));
    c->fits = c->bytes + beside <= s->memory;
}

static void finish(struct search *s, struct candidate *c, struct child *child)
{
    FILE *out;
    int status = child_finish(&s->args->arena, child, &out, &c->failure);
    json_t *plan = NULL;

    if (status == 0 && out && ct_json_read_stream(out, "its plan", 0, &plan) < 0)
        c->failure = ct_arena_strdup(&s->args->arena, ct_error_message());
    if (plan) {
        c->failure = NULL;
        take_plan(s, c, plan);
    }
    json_decref(plan);
    if (out)
        fclose(out);
}

/* Plan the candidates from `from` on, as many at a time as there are processors. */
static int plan_all(struct search *s, size_t from)
{
    size_t most = (size_t)sysconf(_SC_NPROCESSORS_ONLN), n;
    struct child *child = ct_arena_array(&s->args->arena, struct child, most);
    const char *list[DIMENSIONS + 2];
    int rc = 0;

    for (; rc == 0 && from < s->count; from += n) {
        for (n = 0; rc == 0 && n < most && from + n < s->count; n++)
            rc = spawn(s, list, settings(s, &s->list[from + n], list), &child[n]);
        for (size_t i = 0; i < n - (rc < 0); i++)
            finish(s, &s->list[from + i], &child[i]);
        if (ct_terminal_columns(STDERR_FILENO))
            fprintf(stderr, "\r%zu plan%s", from + n, ct_plural((int64_t)(from + n)));
    }
    return rc;
}

/* ---- search ---- */

/* Plans that fit, fastest first, those with a kernel for each op before those without: the time of
   what has none is a bound; then those that do not fit, smallest first; then those that cannot be
   planned. */
static int compare(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (!x->failure != !y->failure)
        return x->failure ? 1 : -1;
    if (x->fits != y->fits)
        return x->fits ? -1 : 1;
    if (x->fits && !x->no_kernels != !y->no_kernels)
        return x->no_kernels ? 1 : -1;
    if (x->fits)
        return x->seconds < y->seconds ? -1 : x->seconds > y->seconds;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* All combinations of degrees, from dimension `at` on. */
static void add_meshes(struct search *s, struct candidate *c, int at)
{
    if (at == s->dimensions) {
        add(s, c);
        return;
    }
    for (int v = 0; v < (s->dimension[at].mesh ? s->dimension[at].values : 1); v++) {
        c->choice[at] = v;
        add_meshes(s, c, at + 1);
    }
    c->choice[at] = 0;
}

/* The neighbours of a candidate: one option changed. */
static void add_neighbours(struct search *s, struct candidate c)
{
    for (int i = 0; i < s->dimensions; i++) {
        int chosen = c.choice[i];

        for (int v = 0; v < s->dimension[i].values; v++) {
            c.choice[i] = v;
            add(s, &c);
        }
        c.choice[i] = chosen;
    }
}

static int search(struct search *s)
{
    struct candidate first = {.seconds = 0}, best;
    struct varied *mode = find_dimension(s, "sac.mode");
    int rc;

    add_meshes(s, &first, 0);
    if (mode && mode->values > 1) { /* meshes that fit only if all is recomputed */
        first.choice[mode - s->dimension] = 1;
        add_meshes(s, &first, 0);
    }
    if (!s->count)
        return ct_fail(CT_ECONFIG,
                       "no mesh of %lld ranks can share a batch of %lld sequences evenly",
                       (long long)s->args->ranks, (long long)s->sequences);
    rc = plan_all(s, 0);
    for (int round = 0; rc == 0 && round < ROUNDS; round++) {
        size_t from = s->count;

        qsort(s->list, s->count, sizeof(*s->list), compare);
        best = s->list[0];
        for (size_t i = 0; i < KEPT && i < from; i++)
            if (!s->list[i].failure)
                add_neighbours(s, s->list[i]);
        rc = plan_all(s, from);
        qsort(s->list, s->count, sizeof(*s->list), compare);
        if (s->count == from || (round > 0 && compare(&best, &s->list[0]) <= 0))
            break;
    }
    if (ct_terminal_columns(STDERR_FILENO))
        fputc('\n', stderr);
    return rc;
}

/* ---- results ---- */

static void print_candidate(const struct search *s, const struct candidate *c)
{
    const char *list[DIMENSIONS + 2];
    size_t count = settings(s, c, list);
    char bytes[32];

    printf("%10.1f ms %9.0f tok/s %12s %5.1f %% %5.1f %% ", c->seconds * 1e3, c->tokens,
           human_bytes(c->bytes, bytes), 100 * c->exposed / c->seconds,
           100 * c->waiting / c->seconds);
    for (size_t i = 0; i + 1 < count; i++)
        printf(" %s", list[i]);
    printf("%s%s\n", c->no_kernels ? "  LACKS KERNELS" : "", c->fits ? "" : "  DOES NOT FIT");
}

static void print_results(const struct search *s, const struct ct_machine *machine)
{
    size_t planned = 0, fitting = 0, failed = s->count;
    char bound[UPPER_BOUND];

    for (size_t i = 0; i < s->count; i++) {
        planned += !s->list[i].failure;
        fitting += !s->list[i].failure && s->list[i].fits;
        failed = s->list[i].failure && failed == s->count ? i : failed;
    }
    printf("%zu plan%s, %zu of them fit%s", planned, ct_plural((int64_t)planned), fitting,
           fitting == 1 ? "s" : "");
    if (failed < s->count)
        printf("; %zu cannot be planned, the first one because: %s", s->count - planned,
               s->list[failed].failure);
    printf("\n\n%13s %15s %12s %7s %7s  settings\n", "step", "per rank", "memory", "exposed",
           "waits");
    for (size_t i = 0; i < SHOWN && i < planned; i++)
        print_candidate(s, &s->list[i]);
    if (fitting)
        printf("\nthe best is limited by %s\n", s->list[0].limit);
    for (size_t i = 0; fitting && i < s->list[0].no_kernels; i++)
        printf("no kernel of %s for %s: its time is taken from bytes and FLOPs\n", machine->plugin,
               s->list[0].no_kernel[i]);
    if (!ct_machine_is_measured(machine))
        printf("these are upper bounds: %s\n", upper_bound(machine, bound));
}

static json_t *candidate_json(const struct search *s, const struct candidate *c)
{
    const char *list[DIMENSIONS + 2];
    json_t *names = ct_json_texts(list, settings(s, c, list));

    if (c->failure)
        return json_pack("{s:o, s:o}", "settings", names, "failure", ct_json_text(c->failure));
    return json_pack("{s:o, s:o, s:o, s:o, s:b, s:o, s:o, s:o, s:o}", "settings", names,
                     "step_seconds", ct_json_number(c->seconds), "tokens_per_second_per_rank",
                     ct_json_number(c->tokens), "memory_peak_bytes", ct_json_number(c->bytes),
                     "fits", c->fits, "exposed", ct_json_number(c->exposed), "waiting",
                     ct_json_number(c->waiting), "limited_by", ct_json_text(c->limit), "no_kernel",
                     ct_json_texts(c->no_kernel, c->no_kernels));
}

/* All plans, best first, and what cannot be planned. */
static int print_json(const struct search *s, const struct ct_machine *machine)
{
    json_t *plans = json_array(), *failures = json_array();

    for (size_t i = 0; i < s->count; i++)
        json_array_append_new(s->list[i].failure ? failures : plans,
                              candidate_json(s, &s->list[i]));
    return ct_json_print(json_pack("{s:o, s:b, s:o, s:I, s:I, s:o, s:o, s:o}", "device",
                                   ct_json_text(machine->name), "measured",
                                   (int)ct_machine_is_measured(machine), "published",
                                   published_json(machine), "ranks", (json_int_t)s->args->ranks,
                                   "sequences", (json_int_t)s->sequences, "memory",
                                   ct_json_number(s->memory), "plans", plans, "failures", failures),
                         stdout);
}

/* Write the recipe with the best candidate's settings. */
static int write_best(struct search *s)
{
    const char *list[DIMENSIONS + 2];
    size_t count = settings(s, &s->list[0], list);
    struct ct_recipe *recipe;
    int rc;

    for (size_t i = 0; i < count; i++)
        args_add_set(s->args, list[i]);
    s->args->device = NULL; /* the recipe keeps its own */
    rc = args_recipe(s->args, &recipe);
    if (rc == 0)
        rc = ct_recipe_save(recipe, s->given->out);
    if (rc == 0)
        fprintf(s->args->json ? stderr : stdout, "wrote %s\n", s->given->out);
    return rc;
}

/* Sequences of a step by the recipe: its global batch, or one local batch for each rank. */
static int64_t sequences(const struct search *s, const struct ct_recipe *recipe)
{
    const char *global = ct_recipe_get(recipe, "training", "global_batch_size");
    const char *local = ct_recipe_get(recipe, "training", "local_batch_size");

    if (global && atoll(global) > 0)
        return atoll(global);
    return (local ? atoll(local) : 1) * s->args->ranks;
}

static int tune(struct arguments *given)
{
    struct args *args = &given->args;
    struct search s = {.given = given, .args = args};
    const struct ct_machine *machine;
    struct ct_recipe *recipe;
    int rc = ct_machine_read(&args->arena, args->device, &machine);

    if (rc == 0)
        rc = ct_machine_check_ranks(machine, args->ranks);
    if (rc == 0)
        rc = args_read(args, &recipe);
    if (rc == 0)
        rc = find_dimensions(&s, recipe);
    if (rc < 0)
        return rc;
    s.memory = given->memory > 0 ? given->memory : machine->memory;
    s.sequences = sequences(&s, recipe);
    if (!args->json)
        printf("%lld rank%s of %s, %lld sequence%s a step\n", (long long)args->ranks,
               ct_plural(args->ranks), machine->name, (long long)s.sequences,
               ct_plural(s.sequences));
    rc = search(&s);
    if (rc < 0)
        return rc;
    if (args->json)
        rc = print_json(&s, machine);
    else
        print_results(&s, machine);
    if (rc < 0)
        return rc;
    if (s.list[0].failure)
        return ct_fail(CT_ECONFIG, "none of the candidates can be planned: %s", s.list[0].failure);
    if (!s.list[0].fits)
        return ct_fail(CT_ECONFIG, "no plan fits into memory; use techniques that save memory "
                                   "(sac, tp, pp, offload), or more ranks");
    return given->out ? write_best(&s) : 0;
}

static const struct ct_argument arguments[] = {
    ARG_RECIPE,
    ARG_CHANGES,
    ARG_DEVICE("The described machine that is tuned for: NAME or a file; required"),
    CT_ARG_INT(struct args, world, "world", 0, "RANKS", 1, MOST_RANKS,
               "How many ranks there are; required"),
    CT_ARG_BYTES(struct arguments, memory, "memory", 0, "BYTES",
                 "Memory of a rank, like 80G; by default the device's"),
    CT_ARG_TEXTS(struct arguments, vary, "vary", 0, "SECTION.KEY=VALUE,..",
                 "Also vary this option, among these values"),
    CT_ARG_TEXT(struct arguments, out, "out", 0, "FILE", "Write the recipe with the best settings"),
    ARG_JSON,
    {0}};

static int tune_verb(int argc, char **argv)
{
    struct arguments given = {0};
    struct args *args = &given.args;
    int rc = args_parse(arguments, argc, argv, args);

    if (rc < 0)
        return rc;
    if (!args->device)
        rc = ct_fail(CT_ECONFIG, "tune: --device is missing; give the description of a machine; "
                                 "`ctitan doctor --describe FILE` writes this machine's");
    else if (!args->ranks)
        rc = ct_fail(CT_ECONFIG, "tune: --world is missing; give the number of ranks");
    else
        rc = tune(&given);
    return args_finish(args, rc);
}

const struct verb verb_tune = {
    .name = "tune",
    .summary = "search for the fastest settings that fit into memory",
    .run = tune_verb,
    .arguments = arguments,
    .examples =
        CT_NAMES("ctitan tune recipes/llama3_8b.ini --device h100-80g --world 8 --out best.ini",
                 "ctitan tune r.ini --device this --world 4 --vary training.seq_len=512,1024")};
