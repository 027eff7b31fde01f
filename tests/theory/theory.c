/*
 * Communication and memory by theory, against those of a training and of `plan`.
 *
 * Each technique trains a small model for two steps with the plugin `census`, which counts what its
 * collectives move; that must equal, to the byte, the figure of its formula here, and what `plan`
 * prints. B is the microbatch of a data-parallel rank, in sequences of T tokens; M microbatches
 * make a step. All is float32.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

static const char *program, *data_folder;
static char folder[] = "/tmp/ctitan-theory-XXXXXX";

/* ---- the model ---- */

static const double V = 256, D = 64, F = 160, KV = 32, L = 4, T = 64, B = 4, M = 2, item = 4;

static const char recipe[] = "[job]\n"
                             "name = theory\n"
                             "dump_folder = %s/out\n"
                             "[plugins]\n"
                             "load = cpu, local, llama, tokens, adamw, metrics\n"
                             "[model]\n"
                             "name = llama\n"
                             "init_from = %s/hf\n"
                             "[training]\n"
                             "seq_len = 64\n"
                             "local_batch_size = 4\n"
                             "steps = 2\n"
                             "mixed_precision_param = float32\n"
                             "[tokens]\n"
                             "path = %s/tokens.bin\n"
                             "repeat = true\n"
                             "[metrics]\n"
                             "peak_tflops = 1\n";

/* Bytes. */
static double embedding(void)
{
    return item * V * D;
}

static double head(void)
{
    return item * V * D;
}

static double norm(void)
{
    return item * D;
}

static double parameters(void)
{
    return embedding() + L * item * (2 * D * D + 2 * D * KV + 3 * D * F) + (2 * L + 1) * norm() +
           head();
}

/* Bytes of one of n shards of a tensor on its rank: buffers begin at multiples of 256 bytes. */
static double held_of(double bytes, int n)
{
    return ceil(bytes / n / 256) * 256;
}

/* Bytes of all parameters. Norms alone are so small that their shards are rounded up. */
static double held(int n)
{
    double norms = 2 * L + 1;

    return (parameters() - norms * norm()) / n + norms * held_of(norm(), n);
}

/* Bytes of an activation in a step, on all ranks that share a batch. */
static double activation(double features)
{
    return item * M * B * T * features;
}

/* The share of n equal shards that a rank sends, if all ranks must see all. */
static double share(double n)
{
    return (n - 1) / n;
}

/* ---- techniques ---- */

struct traffic {
    double all_gather, reduce_scatter, all_reduce, all_to_all, permute;
};

struct technique {
    const char *name;
    struct traffic (*theory)(const struct technique *t);
    int n, replicas; /* degree of what is tested, and of dp_replicate beside it */
    const char *arguments;
};

static struct traffic ddp(const struct technique *t)
{
    return (struct traffic){.all_reduce = 2 * share(t->n) * parameters()};
}

static struct traffic zero1(const struct technique *t)
{
    double all = share(t->n) * parameters();

    return (struct traffic){.all_gather = all, .reduce_scatter = all};
}

static struct traffic zero2(const struct technique *t)
{
    double all = share(t->n) * parameters();

    return (struct traffic){.all_gather = all, .reduce_scatter = M * all};
}

/* Gathered for the forward, and again for the backward; but the backward has no use for the
   embedding, and the head's product is made there only, with the loss. */
static struct traffic zero3(const struct technique *t)
{
    double twice = parameters() - embedding() - head();

    return (struct traffic){.all_gather = M * share(t->n) * (parameters() + twice),
                            .reduce_scatter = M * share(t->n) * parameters()};
}

/* The last unit, norm and head, is kept for the backward, which begins with it. */
static struct traffic fsdp(const struct technique *t)
{
    struct traffic traffic = zero3(t);

    traffic.all_gather -= M * share(t->n) * norm();
    return traffic;
}

static struct traffic hsdp(const struct technique *t)
{
    struct traffic traffic = fsdp(t);

    traffic.all_reduce = 2 * share(t->replicas) * parameters() / t->n;
    return traffic;
}

/* Two sums a layer in each direction, one for the embedding, one for the head's input. */
static struct traffic tensor(const struct technique *t)
{
    return (struct traffic){.all_gather = share(t->n) * activation(V),
                            .all_reduce = 2 * share(t->n) * activation(D) * (4 * L + 2)};
}

/*
 * Each of these sums is a reduce-scatter and, where the next layer needs it whole, an all-gather.
 * What was gathered in the forward is gathered again for the gradients of the weights. The
 * gradients of embedding, norms and, where the logits are whole, of the head are sums over shards
 * of the sequence.
 */
static struct traffic sequence(const struct technique *t)
{
    return (struct traffic){
        .all_gather = share(t->n) * (activation(D) * (6 * L + 1) + activation(V)),
        .reduce_scatter = share(t->n) * (activation(D) * (4 * L + 2) + embedding() + head()),
        .all_reduce = 2 * share(t->n) * (2 * L + 1) * norm()};
}

/* Three numbers for each token and shard of the vocabulary, instead of the logits. The head's input
   is gathered again then, too, and its gradient is whole. */
static struct traffic loss(const struct technique *t)
{
    struct traffic traffic = sequence(t);

    traffic.all_gather += share(t->n) * (activation(3 * t->n) - activation(V) + activation(D));
    traffic.reduce_scatter -= share(t->n) * head();
    return traffic;
}

static struct traffic kept(const struct technique *t)
{
    struct traffic traffic = loss(t);

    traffic.all_gather -= share(t->n) * activation(D) * (2 * L + 1);
    return traffic;
}

/* Keys and values go round once in the forward and once in the backward, and their gradients come
   home in one step more. The keys' positions go round once for all layers. */
static struct traffic ring(const struct technique *t)
{
    double shard = activation(2 * KV) / t->n;

    return (struct traffic){.permute = L * shard * (3 * t->n - 2) + activation(1) * share(t->n),
                            .all_reduce = 2 * share(t->n) * parameters()};
}

/* Positions, too, are needed whole. */
static struct traffic gathered_keys(const struct technique *t)
{
    double all = L * share(t->n) * activation(2 * KV);

    return (struct traffic){.all_gather = all + share(t->n) * activation(1),
                            .reduce_scatter = all,
                            .all_reduce = 2 * share(t->n) * parameters()};
}

static struct traffic ulysses(const struct technique *t)
{
    double shard = activation(2 * D + 2 * KV) / t->n;

    return (struct traffic){.all_gather = share(t->n) * activation(1),
                            .all_to_all = 2 * L * share(t->n) * shard,
                            .all_reduce = 2 * share(t->n) * parameters()};
}

static const struct technique techniques[] = {
    {"ddp", ddp, 2, 1, "--with fsdp --set fsdp.shard_degree=1 --set fsdp.replicate_degree=2"},
    {"ddp", ddp, 4, 1, "--with fsdp --set fsdp.shard_degree=1 --set fsdp.replicate_degree=4"},
    {"ZeRO-1", zero1, 4, 1,
     "--with fsdp --set fsdp.reshard_after_forward=never --set fsdp.reduce=step"},
    {"ZeRO-2", zero2, 4, 1, "--with fsdp --set fsdp.reshard_after_forward=never"},
    {"ZeRO-3", zero3, 2, 1, "--with fsdp --set fsdp.reshard_after_forward=always"},
    {"ZeRO-3", zero3, 4, 1, "--with fsdp --set fsdp.reshard_after_forward=always"},
    {"fsdp", fsdp, 4, 1, "--with fsdp"},
    {"hsdp", hsdp, 2, 2, "--with fsdp --set fsdp.replicate_degree=2"},
    {"tensor parallel", tensor, 2, 1,
     "--with tp --set tp.degree=2 --set tp.sequence_parallel=false --set tp.loss_parallel=false"},
    {"sequence parallel", sequence, 2, 1,
     "--with tp --set tp.degree=2 --set tp.loss_parallel=false"},
    {"kept inputs", kept, 2, 1, "--with tp --set tp.degree=2 --set tp.regather=false"},
    {"loss parallel", loss, 2, 1, "--with tp --set tp.degree=2"},
    {"loss parallel", loss, 4, 1, "--with tp --set tp.degree=4"},
    {"ring", ring, 2, 1, "--with cp --set cp.degree=2"},
    {"ring", ring, 4, 1, "--with cp --set cp.degree=4"},
    {"gathered keys", gathered_keys, 4, 1, "--with cp --set cp.degree=4 --set cp.method=allgather"},
    {"ulysses", ulysses, 4, 1, "--with cp --set cp.degree=4 --set cp.method=ulysses"},
};

/* ---- running ---- */

static int ranks_of(const struct technique *t)
{
    return t->n * t->replicas;
}

/* Microbatches are M whatever the number of data-parallel ranks. */
static int global_batch(const struct technique *t)
{
    bool data_parallel = strstr(t->arguments, "fsdp") != NULL;

    return (int)(B * M) * (data_parallel ? ranks_of(t) : 1);
}

static FILE *start(const struct technique *t, const char *verb)
{
    char command[2048];
    FILE *out;

    snprintf(command, sizeof(command),
             "timeout 60 %s %s %s/recipe.ini -n %d --set training.global_batch_size=%d %s 2>&1",
             program, verb, folder, ranks_of(t), global_batch(t), t->arguments);
    out = popen(command, "r");
    assert_non_null(out);
    return out;
}

static json_t *plan(const struct technique *t)
{
    json_error_t error;
    FILE *out = start(t, "plan --json");
    json_t *json = json_loadf(out, 0, &error);

    if (!json)
        fail_msg("plan of %s: %s", t->name, error.text);
    assert_int_equal(pclose(out), 0);
    return json;
}

static double number(const json_t *json, const char *key)
{
    return json_number_value(json_object_get(json, key));
}

static double counted(const char *line, const char *what)
{
    const char *at = strstr(line, what);

    if (!at)
        fail_msg("no %s in %s", what, line);
    return strtod(at + strlen(what) + 1, NULL);
}

/* No page beyond the plan is touched, and of those in it all but a gap that no buffer fits into. */
static void check_memory(const char *line, const json_t *planned)
{
    double page = (double)sysconf(_SC_PAGESIZE), touched = counted(line, " arena");
    double pages = ceil(number(planned, "memory_peak_bytes") / page) * page;

    assert_true(touched <= pages);
    assert_true(touched >= 0.99 * pages);
}

static void check_census(const struct technique *t, const json_t *planned, const char *line)
{
    struct traffic theory = t->theory(t);
    const struct {
        const char *what;
        double bytes;
    } expected[] = {{" all_gather", theory.all_gather},
                    {" reduce_scatter", theory.reduce_scatter},
                    {" all_reduce", theory.all_reduce},
                    {" all_to_all", theory.all_to_all},
                    {" permute", theory.permute}};
    double sum = counted(line, " numbers");

    for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
        double bytes = counted(line, expected[i].what);

        if (bytes != expected[i].bytes)
            fail_msg("%s on %d ranks:%s moves %.0f bytes, not %.0f", t->name, ranks_of(t),
                     expected[i].what, bytes, expected[i].bytes);
        sum += bytes;
    }
    if (sum != number(planned, "comm_bytes"))
        fail_msg("%s on %d ranks sends %.0f bytes, the plan says %.0f", t->name, ranks_of(t), sum,
                 number(planned, "comm_bytes"));
    assert_true(counted(line, " numbers") < 100);
    check_memory(line, planned);
}

static void check_technique(const struct technique *t)
{
    json_t *planned = plan(t);
    FILE *out = start(t, "train --with census");
    char line[1024], last[1024] = "";
    int ranks = 0;

    while (fgets(line, sizeof(line), out)) {
        memcpy(last, line, sizeof(last));
        if (!strstr(line, "census "))
            continue;
        check_census(t, planned, line);
        ranks++;
    }
    if (pclose(out) || ranks != ranks_of(t))
        fail_msg("%s: %s", t->name, last);
    json_decref(planned);
}

static void communication_is_as_theory_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(techniques) / sizeof(*techniques); i++)
        check_technique(&techniques[i]);
}

/* ---- pipelines ---- */

/* Schedules, and the splits between stages that lie on two ranks. */
static const struct {
    const char *name;
    int splits;
} pipelines[] = {{"gpipe", 1},      {"1f1b", 1},
                 {"zb1p", 1},       {"zbv", 2},
                 {"dualpipe_v", 2}, {"interleaved_1f1b", 3},
                 {"looped_bfs", 3}, {"interleaved_zero_bubble", 3}};

/* Checks that a rank's traffic and touched memory are those that `plan` says. */
static double check_rank(const struct technique *t, const char *line)
{
    double sends = counted(line, " send");
    char arguments[512];
    struct technique of_rank = *t;
    json_t *planned;

    snprintf(arguments, sizeof(arguments), "%s --rank %.0f", t->arguments, counted(line, " rank"));
    of_rank.arguments = arguments;
    planned = plan(&of_rank);
    assert_float_equal(sends + counted(line, " numbers"), number(planned, "comm_bytes"), 0);
    check_memory(line, planned);
    json_decref(planned);
    return sends;
}

/* An activation crosses each split once in each direction, whatever the schedule. */
static void check_pipeline(const char *schedule, int splits)
{
    char arguments[256], line[1024];
    struct technique t = {.name = schedule, .n = 2, .replicas = 1, .arguments = arguments};
    double sends = 0;
    int ranks = 0;
    FILE *out;

    snprintf(arguments, sizeof(arguments), "--with pp --set pp.degree=2 --set pp.schedule=%s",
             schedule);
    out = start(&t, "train --with census");
    while (fgets(line, sizeof(line), out))
        if (strstr(line, "census ")) {
            sends += check_rank(&t, line);
            ranks++;
        }
    assert_int_equal(pclose(out), 0);
    assert_int_equal(ranks, 2);
    assert_float_equal(sends, 2 * splits * activation(D), 0);
}

static void pipelines_send_what_crosses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(pipelines) / sizeof(*pipelines); i++)
        check_pipeline(pipelines[i].name, pipelines[i].splits);
}

/* ---- memory ---- */

static double planned_bytes(int ranks, const char *arguments, const char *category)
{
    struct technique t = {.name = category, .n = ranks, .replicas = 1, .arguments = arguments};
    json_t *json = plan(&t);
    double bytes = number(json_object_get(json_object_get(json, "memory"), category), "peak");

    json_decref(json);
    return bytes;
}

/* Both are 1/n where they are kept in shards. */
static void parameters_and_states_fall_with_shards(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n *= 2) {
        assert_float_equal(planned_bytes(n, "--with fsdp", "parameters"), held(n), 0);
        assert_float_equal(planned_bytes(n, "--with fsdp", "optimizer"), 2 * held(n), 0);
    }
    assert_float_equal(planned_bytes(4, "--with fsdp --set fsdp.replicate_degree=2", "optimizer"),
                       2 * held(2), 0);
    assert_float_equal(planned_bytes(4,
                                     "--with fsdp --set fsdp.replicate_degree=4 "
                                     "--set fsdp.shard_degree=1",
                                     "optimizer"),
                       2 * held(1), 0);
}

/* Activations fall with cp, and with tp if the sequence is split, too; what is gathered for a while
   is not among them, and not kept. */
static void activations_fall_with_degrees(void **state)
{
    const char *one = "--set training.local_batch_size=4 --with tp";
    double whole = planned_bytes(1, one, "activations"), kept, again;
    char arguments[160];

    (void)state;
    for (int n = 2; n <= 4; n *= 2) {
        snprintf(arguments, sizeof(arguments), "--with cp --set cp.degree=%d", n);
        assert_float_equal(planned_bytes(n, arguments, "activations") * n / whole, 1, 0.01);
        snprintf(arguments, sizeof(arguments), "--with tp --set tp.degree=%d", n);
        assert_float_equal(planned_bytes(n, arguments, "activations") * n / whole, 1, 0.1);
    }
    again = planned_bytes(4, "--with tp --set tp.degree=4", "communication");
    kept = planned_bytes(4, "--with tp --set tp.degree=4 --set tp.regather=false", "communication");
    assert_true(kept - again >= (2 * L - 2) * item * B * T * D);
    kept = planned_bytes(4, "--with tp --set tp.degree=4 --set tp.sequence_parallel=false",
                         "activations");
    assert_true(kept * 4 / whole > 1.5);
}

/* ---- threads ---- */

/* Transforms run before the first step; what they prepare must not bring threads of its own. One
   thread computes, and one reads the next step's data. */
static void a_rank_has_the_threads_that_it_is_given(void **state)
{
    struct technique t = {.name = "threads", .n = 1, .replicas = 1};
    char line[1024];
    FILE *out;
    int found = 0;

    (void)state;
    t.arguments = "--with census --set cpu.threads=1 --set cpu.streams=in_order";
    out = start(&t, "train");
    while (fgets(line, sizeof(line), out))
        if (strstr(line, "census ")) {
            assert_float_equal(counted(line, " threads"), 2, 0);
            found++;
        }
    assert_int_equal(pclose(out), 0);
    assert_int_equal(found, 1);
}

/* ---- the host memory ---- */

static double of_category(const json_t *plan, const char *memory, const char *category)
{
    return number(json_object_get(json_object_get(plan, memory), category), "peak");
}

/* Every parameter is loaded for each forward, those of layers for each backward, and all with both
   moments for the optimizer, which stores all three; ranks do that with their shards. On the device
   there are never more than two layers, or one and the larger end. */
static void what_is_offloaded_is_loaded_as_often_as_used(void **state)
{
    double layers = parameters() - embedding() - head() - norm(), layer = layers / L;
    double window = layer + (layer > head() ? layer : head() + norm());

    (void)state;
    for (int n = 1; n <= 4; n *= 2) {
        struct technique t = {
            .name = "offload", .n = n, .replicas = 1, .arguments = "--with fsdp --with offload"};
        json_t *planned = plan(&t);
        double room = 4 * (held_of(norm(), n) - norm() / n); /* of the norms in the window */

        assert_float_equal(number(planned, "loaded_bytes"),
                           (M * (parameters() + layers) + 3 * parameters()) / n, 0);
        assert_float_equal(number(planned, "stored_bytes"), 3 * parameters() / n, 0);
        assert_float_equal(of_category(planned, "offloaded", "parameters"), held(n), 0);
        assert_float_equal(of_category(planned, "offloaded", "optimizer"), 2 * held(n), 0);
        assert_float_equal(number(planned, "offloaded_bytes"), 3 * held(n), 0);
        assert_true(of_category(planned, "memory", "optimizer") <= 2 * (window / n + room));
        assert_true(of_category(planned, "memory", "parameters") <= window / n + room);
        json_decref(planned);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(communication_is_as_theory_says),
        cmocka_unit_test(pipelines_send_what_crosses),
        cmocka_unit_test(parameters_and_states_fall_with_shards),
        cmocka_unit_test(activations_fall_with_degrees),
        cmocka_unit_test(a_rank_has_the_threads_that_it_is_given),
        cmocka_unit_test(what_is_offloaded_is_loaded_as_often_as_used),
    };
    char path[128], command[128];
    FILE *out;
    int failed;

    if (argc != 4 || !mkdtemp(folder))
        return 2;
    program = argv[1];
    data_folder = argv[2];
    setenv("CTITAN_PLUGIN_PATH", argv[3], 1);
    snprintf(path, sizeof(path), "%s/recipe.ini", folder);
    out = fopen(path, "w");
    if (!out || fprintf(out, recipe, folder, data_folder, data_folder) < 0 || fclose(out))
        return 2;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return failed || system(command);
}
