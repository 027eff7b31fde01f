#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/app/verify.h>
#include <ctitan/device/comm.h>
#include <ctitan/error.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/rates.h>
#include <ctitan/plugin.h>
#include <ctitan/recipe.h>
#include <ctitan/run.h>
#include <ctitan/text.h>

#include "cli.h"

struct numbers {
    double whole, halved; /* FLOPs per token */
    int64_t tokens;       /* per step, all ranks */
};

static void print_bytes(const char *what, size_t peak, size_t at_peak)
{
    char human[32], exact[32], other[32];

    printf("  %-18s %12s %18s %18s\n", what, human_bytes((double)peak, human),
           ct_grouped((int64_t)peak, exact), ct_grouped((int64_t)at_peak, other));
}

static void print_categories(const struct ct_memory *m)
{
    printf("  %-18s %12s %18s %18s\n", "category", "own peak", "bytes", "at the total's peak");
    for (int c = 0; c < CT_CATEGORY_COUNT; c++)
        if (m->peak[c])
            print_bytes(ct_category_name((enum ct_category)c), m->peak[c], m->at_peak[c]);
}

static void print_memory(const char *what, size_t bytes, const struct ct_memory *training)
{
    char human[32], exact[32];

    printf("\n%s per rank: %s (%s bytes)\n", what, human_bytes((double)bytes, human),
           ct_grouped((int64_t)bytes, exact));
    if (bytes > training->bytes)
        printf("  of these, %s needs %s bytes more than training\n",
               ct_stage_count() > 1 ? "validation or a later stage" : "validation",
               ct_grouped((int64_t)(bytes - training->bytes), exact));
    print_categories(training);
}

/* ---- communication ---- */

/* Calls of one kind along the same axes. */
struct traffic {
    const char *op;
    ct_axes axes;
    char along[128]; /* names of the axes */
    int64_t calls;
    double bytes;
};

static struct traffic *traffic_of(const struct ct_run *run, struct traffic *list, size_t *count,
                                  const struct ct_op *op)
{
    ct_axes axes = ct_op_axes(op, "axes");
    size_t i = 0;

    while (i < *count && (strcmp(list[i].op, op->type->name) || list[i].axes != axes))
        i++;
    if (i == *count) {
        list[(*count)++] = (struct traffic){.op = op->type->name, .axes = axes};
        ct_axes_print(&run->mesh, axes, list[i].along, sizeof(list[i].along));
    }
    return &list[i];
}

static size_t sum_traffic(const struct ct_run *run, struct traffic *list)
{
    size_t count = 0;

    for (size_t n = 0; n < run->program->step_count; n++) {
        const struct ct_instruction *i = &run->program->step[n];

        if (i->lowered->sent > 0) {
            struct traffic *t = traffic_of(run, list, &count, i->op);

            t->calls++;
            t->bytes += i->lowered->sent;
        }
    }
    return count;
}

static void print_traffic(const struct traffic *list, size_t count)
{
    char human[32], exact[32];

    printf("\nsent per step by this rank\n");
    printf("  %-18s %-24s %6s %12s %18s\n", "collective", "along", "calls", "", "bytes");
    for (size_t i = 0; i < count; i++)
        printf("  %-18s %-24s %6lld %12s %18s\n", list[i].op, list[i].along,
               (long long)list[i].calls, human_bytes(list[i].bytes, human),
               ct_grouped((int64_t)list[i].bytes, exact));
}

static json_t *traffic_json(const struct traffic *list, size_t count)
{
    json_t *all = json_array();

    for (size_t i = 0; i < count; i++)
        json_array_append_new(all, json_pack("{s:s, s:s, s:I, s:o}", "op", list[i].op, "axes",
                                             list[i].along, "calls", (json_int_t)list[i].calls,
                                             "bytes", ct_json_number(list[i].bytes)));
    return all;
}

/* ---- memory outside the plan ---- */

/* Groups of ranks that calls of a step use: one for the axes of each kind of stream. */
static int64_t count_groups(const struct ct_program *p)
{
    struct {
        ct_axes axes;
        int stream;
    } group[64];
    int count = 0, i;

    for (size_t n = 0; n < p->step_count && count < (int)CT_COUNT(group); n++) {
        const struct ct_instruction *at = &p->step[n];
        ct_axes axes = at->lowered->sent > 0 ? ct_op_axes(at->op, "axes") : 0;

        for (i = 0; i < count && (group[i].axes != axes || group[i].stream != at->stream); i++)
            ;
        if (axes && i == count) {
            group[count].axes = axes;
            group[count++].stream = at->stream;
        }
    }
    return count;
}

/* Estimate in bytes of what the libraries of device and communicator use outside the arena. */
static size_t beside(const struct ct_run *run, int64_t *groups)
{
    struct ct_device_info info = {.memory = 0};
    const struct ct_offer *comm = ct_offer_at(CT_COMMUNICATOR, 0);
    size_t each = comm ? ((const struct ct_comm_ops *)comm->ops)->group_memory : 0;

    run->device_ops->info(run->device, CT_F32, &info);
    *groups = each ? count_groups(run->program) : 0;
    return info.beside + (size_t)*groups * each;
}

static void print_beside(const struct ct_run *run)
{
    int64_t groups;
    size_t bytes = beside(run, &groups);
    char human[32];

    if (!bytes)
        return;
    printf("\nin addition to the plan: about %s for libraries", human_bytes((double)bytes, human));
    if (groups)
        printf(", of which %lld groups of ranks", (long long)groups);
    putchar('\n');
}

/* ---- objects of the host ---- */

/* Bytes of the host's memory for the rank's own objects. */
struct objects {
    size_t graph, program, kernels, executor, lowering;
};

static void add_program(struct objects *o, const struct ct_program *p)
{
    if (!p)
        return;
    o->program += p->size.program;
    o->kernels += p->size.kernels;
    o->executor += ct_executor_bytes(p);
    if (p->size.lowering > o->lowering)
        o->lowering = p->size.lowering;
}

static struct objects count_objects(const struct ct_run *run)
{
    struct objects o = {.graph = run->program->size.before};

    add_program(&o, run->program);
    add_program(&o, run->validation_program);
    return o;
}

static void print_objects(const struct ct_run *run)
{
    struct objects o = count_objects(run);
    const struct {
        const char *name;
        size_t bytes;
    } row[] = {{"recipe and graphs", o.graph},
               {"programs", o.program},
               {"prepared kernels", o.kernels},
               {"executors", o.executor}};
    size_t sum = o.graph + o.program + o.kernels + o.executor;
    char human[32], exact[32];

    printf("\nhost objects per rank: %s (%s bytes)", human_bytes((double)sum, human),
           ct_grouped((int64_t)sum, exact));
    printf(", and %s more while lowering\n", human_bytes((double)o.lowering, human));
    for (size_t i = 0; i < CT_COUNT(row); i++)
        printf("  %-18s %12s %18s\n", row[i].name, human_bytes((double)row[i].bytes, human),
               ct_grouped((int64_t)row[i].bytes, exact));
}

static json_t *objects_json(const struct ct_run *run)
{
    struct objects o = count_objects(run);

    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "graphs", (json_int_t)o.graph, "programs",
                     (json_int_t)o.program, "kernels", (json_int_t)o.kernels, "executors",
                     (json_int_t)o.executor, "lowering", (json_int_t)o.lowering);
}

/* ---- the disk ---- */

static void print_writes(const struct ct_run *run)
{
    char each[32], all[32];

    for (size_t i = 0; i < run->write_count; i++) {
        const struct ct_written *w = &run->writes[i];

        printf("\non disk, in %s: %s of %s each", w->folder, w->what, human_bytes(w->bytes, each));
        if (w->count)
            printf(", %lld in the run", (long long)w->count);
        if (w->most)
            printf(", at most %lld at once: %s", (long long)w->most,
                   human_bytes(w->bytes * (double)w->most, all));
        putchar('\n');
    }
}

static json_t *writes_json(const struct ct_run *run)
{
    json_t *all = json_array();

    for (size_t i = 0; i < run->write_count; i++) {
        const struct ct_written *w = &run->writes[i];

        json_array_append_new(all, json_pack("{s:s, s:s, s:o, s:I, s:I}", "what", w->what, "folder",
                                             w->folder, "bytes", ct_json_number(w->bytes), "count",
                                             (json_int_t)w->count, "most", (json_int_t)w->most));
    }
    return all;
}

/* ---- all ---- */

/* here: how many ranks are on this machine. */
static void print_fit(const struct ct_run *run, int64_t here)
{
    char memory[96];

    if (!plan_fits(run, (int64_t)run->arena_bytes, memory))
        printf("\nit does not fit: %s\n", memory);
    else if (!plans_fit(run, here, memory))
        printf("\nwhat %lld rank%s like this one %s%s does not fit: %s\n", (long long)here,
               ct_plural(here), run->device->host_memory ? "need" : "offload", here == 1 ? "s" : "",
               memory);
}

static void print_people(const struct ct_run *run, const struct numbers *n,
                         const struct traffic *traffic, size_t count, const struct args *args)
{
    const struct ct_program *p = run->program;
    char a[32], b[32];

    printf("%s %s on %s, rank %lld of %lld\n", ct_config.model.name, ct_config.model.flavor,
           run->device->name, (long long)run->rank, (long long)run->world);
    printf("  parameters         %s\n", ct_grouped(run->parameters, a));
    printf("  tokens per step    %s\n", ct_grouped(n->tokens, a));
    if (ct_config.training_epochs)
        printf(
            "  steps              those of %lld epochs; a run counts them when it reads the data\n",
            (long long)ct_config.training_epochs);
    printf("  FLOPs per token    %s, causal attention counted in full; %s, by half\n",
           human_count(n->whole, a), human_count(n->halved, b));
    printf("  FLOPs per step     %s on this rank, as lowered\n", human_count(p->flops, a));
    printf("  sent per step      %s by this rank\n", human_bytes(p->comm_bytes, a));
    printf("  instructions       %zu in a step, %zu before the first\n", p->step_count,
           p->init_count);
    printf("  microbatches       %d\n", p->microbatches);
    if (run->host_bytes)
        printf("  copied per step    %s from host memory, %s to it\n",
               human_bytes(p->loaded_bytes, a), human_bytes(p->stored_bytes, b));
    print_memory("memory", run->arena_bytes, &p->memory);
    print_peak(p);
    if (run->host_bytes)
        print_memory("host memory", run->host_bytes, &p->host);
    print_beside(run);
    print_objects(run);
    if (!args->machine)
        print_fit(run, args->local ? args->local : 1);
    if (count)
        print_traffic(traffic, count);
    print_writes(run);
}

static json_t *categories_json(const struct ct_memory *m)
{
    json_t *all = json_object();

    for (int c = 0; c < CT_CATEGORY_COUNT; c++)
        json_object_set_new(all, ct_category_name((enum ct_category)c),
                            json_pack("{s:I, s:I}", "peak", (json_int_t)m->peak[c], "at_peak",
                                      (json_int_t)m->at_peak[c]));
    return all;
}

static json_t *numbers_json(const struct ct_run *run, const struct numbers *n)
{
    const struct ct_program *p = run->program;

    return json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:i, s:o, s:o, s:o}",
                     "device_plugin", run->device->name, "parameters", (json_int_t)run->parameters,
                     "tokens_per_step", (json_int_t)n->tokens, "flops_per_token",
                     ct_json_number(n->whole), "flops_per_token_halved", ct_json_number(n->halved),
                     "flops_per_step", ct_json_number(p->flops), "instructions",
                     (json_int_t)p->step_count, "init_instructions", (json_int_t)p->init_count,
                     "microbatches", (int)p->microbatches, "comm_bytes",
                     ct_json_number(p->comm_bytes), "loaded_bytes", ct_json_number(p->loaded_bytes),
                     "stored_bytes", ct_json_number(p->stored_bytes));
}

static int print_json(const struct planned *planned, const struct args *args,
                      const struct numbers *n, const struct traffic *traffic, size_t count,
                      const struct ct_simulated *times)
{
    const struct ct_run *run = planned->run;
    const struct ct_program *p = run->program;
    json_t *plan = numbers_json(run, n);
    int64_t groups;

    json_object_set_new(plan, "communication", traffic_json(traffic, count));
    json_object_set_new(plan, "memory_peak_bytes", json_integer((json_int_t)run->arena_bytes));
    json_object_set_new(plan, "offloaded_bytes", json_integer((json_int_t)run->host_bytes));
    json_object_set_new(plan, "beside_bytes", json_integer((json_int_t)beside(run, &groups)));
    json_object_set_new(plan, "memory", categories_json(&p->memory));
    json_object_set_new(plan, "offloaded", categories_json(&p->host));
    add_memory_json(p, plan);
    json_object_set_new(plan, "host_objects", objects_json(run));
    json_object_set_new(plan, "written", writes_json(run));
    if (ct_stage_count() > 1)
        json_object_set_new(plan, "stages", stages_json(planned));
    if (args->machine)
        json_object_set_new(plan, "time", times_json(planned, args, times));
    return ct_json_print(plan, stdout);
}

static int64_t tokens_per_step(const struct ct_run *run)
{
    return run->program->microbatches * ct_graph_batch(run->graph) * ct_config.training.seq_len;
}

/* times: only with args->machine. */
static int plan(const struct planned *planned, const struct args *args,
                const struct ct_simulated *times)
{
    const struct ct_run *run = planned->run;
    struct numbers n = {.tokens = tokens_per_step(run)};
    struct traffic *traffic = calloc(run->program->step_count + 1, sizeof(*traffic));
    size_t count = traffic ? sum_traffic(run, traffic) : 0;
    int rc = 0;

    run->model_ops->flops_per_token(run->model, ct_config.training.seq_len, &n.whole, &n.halved);
    if (args->program)
        ct_program_print(run->program, stdout);
    else if (args->json)
        rc = print_json(planned, args, &n, traffic, count, times);
    else
        print_people(run, &n, traffic, count, args);
    if (args->machine && !args->json && !args->program)
        print_times(planned, args, times);
    if (!args->json && !args->program)
        print_stages(planned);
    free(traffic);
    return rc < 0 ? rc : ct_program_verify(run->program, stderr);
}

static int plan_and_prove(struct ct_recipe *recipe, struct args *args)
{
    struct planned planned;
    struct ct_simulate_request request;
    struct ct_simulated times;
    int rc = plan_open(recipe, args, &planned);

    if (rc < 0)
        return rc;
    rc = plan_prove(&planned);
    if (rc == 0)
        rc = plan_stages(&planned, args);
    if (rc == 0 && args->machine)
        rc = plan_simulate(&planned, args, &request, &times);
    if (rc == 0)
        rc = plan(&planned, args, &times);
    if (rc == 0 && planned.run->graph->partition_axis >= 0 && !args->json && !args->program)
        printf("\nproven: the programs of all ranks of the pipeline end without deadlock\n");
    plan_close(&planned);
    return rc;
}

static const struct ct_argument arguments[] = {
    ARG_RECIPE,
    ARG_CHANGES,
    ARG_LOCAL,
    ARG_WORLD,
    ARG_RANK,
    ARG_STAGE,
    ARG_DEVICE("Plan for a described machine, and predict a step's time; NAME or a file"),
    CT_ARG_FLAG(struct args, program, "program", 0, "Print every instruction of a step"),
    ARG_JSON,
    {0}};

static int plan_verb(int argc, char **argv)
{
    struct ct_recipe *recipe = NULL;
    struct args args = {0};
    int rc = args_parse(arguments, argc, argv, &args);

    if (rc < 0)
        return rc;
    log_to_terminal(CT_LOG_INFO); /* transforms report their choices */
    rc = args_recipe(&args, &recipe);
    if (rc == 0)
        rc = plan_and_prove(recipe, &args);
    return args_finish(&args, rc);
}

const struct verb verb_plan = {
    .name = "plan",
    .summary = "show memory, parameters and FLOPs of a run, without running it",
    .run = plan_verb,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan plan recipes/debug.ini",
                         "ctitan plan recipes/llama3_8b.ini --world 8 --device h100-80g"),
    .details = "`ctitan doctor --describe NAME` describes this machine for --device NAME.\n"};
