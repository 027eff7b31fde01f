/*
 * ranks CTITAN METHOD STEPS [FAMILIES]
 *
 * Trains a small llama on packed documents with context parallelism, on several meshes, and
 * compares loss and gradient norm of each step with those of one rank: 1e-5 relative. A mesh that
 * is run twice gives the same bits. Options that cannot be are refused with status 2.
 *
 * METHOD `places`: the same for ops of a plugin that depend on positions. METHOD `states`: the same
 * for models of the folder FAMILIES, whose tokens see earlier ones through states.
 */
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/arena.h>

#define TOLERANCE 1e-5
#define MOST_STEPS 20

static struct ct_arena arena;
static char folder[] = "/tmp/ctitan-cp-XXXXXX";
static const char *program, *method, *families;
static int faults, steps;

/* ---- the recipe ---- */

static const char recipe[] =
    "[plugins]\nload = cpu, local, llama, text, bytes, adamw, metrics, cp\n"
    "[model]\nname = llama\n"
    "[llama]\ndim = 32\nn_layers = 2\nn_heads = 8\nn_kv_heads = 4\n"
    "ffn_dim = 48\nvocab_size = 260\n"
    "[training]\ndtype = float32\nmixed_precision_param = float32\n"
    "seq_len = 48\nsteps = %d\n"
    "local_batch_size = 4\nglobal_batch_size = 4\nmax_norm = 0.5\n"
    "[adamw]\nlr = 0.003\n[lr_scheduler]\nwarmup_steps = 4\n"
    "[metrics]\nlog_freq = 1\npeak_tflops = 1\n[text]\nsplit = line\ndocument_mask = true\n";

static const char *in_folder(const char *name)
{
    return ct_arena_printf(&arena, "%s/%s", folder, name);
}

static int write_inputs(void)
{
    FILE *out = fopen(in_folder("cp.ini"), "w"), *text = fopen(in_folder("text.txt"), "w");

    if (!out || !text)
        return -1;
    fprintf(out, recipe, steps);
    fprintf(out, "path = %s\n", in_folder("text.txt"));
    for (int line = 0; line < 400; line++)
        fprintf(text, "%.*s %d\n", 5 + line * 7 % 43,
                "the quick brown fox jumps over the lazy dog and back", line);
    return fclose(out) | fclose(text);
}

/* ---- runs ---- */

/* ctitan train with settings ("-n 2 --set a.b=c", words); its exit status. */
static int train(const char *name, const char *settings)
{
    char *words = ct_arena_strdup(&arena, settings), *argv[64] = {(char *)program, "train"};
    int n = 2, status;
    pid_t child;

    argv[n++] = (char *)in_folder("cp.ini");
    argv[n++] = "--set";
    argv[n++] = ct_arena_printf(&arena, "job.dump_folder=%s", in_folder(name));
    for (char *word; (word = strsep(&words, " "));)
        if (*word)
            argv[n++] = word;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        int log = open(in_folder("log"), O_WRONLY | O_CREAT | O_TRUNC, 0666);

        dup2(log, 1);
        dup2(log, 2);
        execv(program, argv);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) < 0)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void print_log(void)
{
    FILE *log = fopen(in_folder("log"), "r");
    char line[1024];

    while (log && fgets(line, sizeof(line), log))
        printf("    %s", line);
    if (log)
        fclose(log);
}

struct result {
    double loss[MOST_STEPS], norm[MOST_STEPS];
    int steps;
};

static struct result results(const char *name)
{
    FILE *in = fopen(ct_arena_printf(&arena, "%s/%s/metrics.jsonl", folder, name), "r");
    struct result r = {.steps = 0};
    char line[4096];

    while (in && r.steps < steps && fgets(line, sizeof(line), in)) {
        json_t *step = json_loads(line, 0, NULL);

        r.loss[r.steps] = json_number_value(json_object_get(step, "loss"));
        r.norm[r.steps++] = json_number_value(json_object_get(step, "grad_norm"));
        json_decref(step);
    }
    if (in)
        fclose(in);
    return r;
}

static void fault(const char *what, const char *settings)
{
    printf("FAULT %s: %s\n", settings, what);
    print_log();
    faults++;
}

static void compare(const char *settings, const struct result *got, const struct result *want)
{
    double worst = 0;

    for (int i = 0; i < steps; i++) {
        worst = fmax(worst, fabs(got->loss[i] - want->loss[i]) / fabs(want->loss[i]));
        worst = fmax(worst, fabs(got->norm[i] - want->norm[i]) / fabs(want->norm[i]));
        if (!isfinite(got->loss[i]) || !isfinite(got->norm[i]))
            worst = INFINITY;
    }
    printf("%-60s %.1e\n", settings, worst);
    if (!(worst <= TOLERANCE))
        fault("is not what one rank gives", settings);
}

/* ---- cases ---- */

#define HEADTAIL " --set cp.load_balancer=headtail"
#define NONE " --set cp.load_balancer=none"
#define PLAIN " --set text.document_mask=false"

static const struct {
    const char *settings, *only; /* method; NULL: all */
    bool plain;                  /* documents see each other */
} cases[] = {
    {"-n 2 --set cp.degree=2" HEADTAIL, NULL, false},
    {"-n 2 --set cp.degree=2" HEADTAIL, NULL, true},
    {"-n 2 --set cp.degree=2" NONE, NULL, false},
    {"-n 3 --set cp.degree=3" HEADTAIL, "ring", false},
    {"-n 3 --set cp.degree=3" NONE, "allgather", true},
    {"-n 4 --set cp.degree=4" HEADTAIL, NULL, false},
    {"-n 4 --set cp.degree=4" NONE, NULL, true},
    {"-n 4 --with tp --set cp.degree=2 --set tp.degree=2" HEADTAIL, NULL, false},
    {"-n 4 --with fsdp --set cp.degree=2 --set training.local_batch_size=2" HEADTAIL, NULL, false},
    {"-n 2 --with fsdp --set cp.degree=2 --set fsdp.reduce=step --set "
     "training.local_batch_size=2" HEADTAIL,
     NULL, false},
};

static const char *with_method(const char *settings)
{
    return ct_arena_printf(&arena, "%s --set cp.method=%s", settings, method);
}

static struct result alone(const char *settings)
{
    struct result r = {0};

    if (train("one", ct_arena_printf(&arena, "--without local --without cp %s", settings)))
        fault("one rank fails", settings);
    else
        r = results("one");
    if (r.steps != steps)
        fault("has not all steps", "one rank");
    return r;
}

static void compare_run(const char *settings, const struct result *one)
{
    struct result r;

    if (train("many", settings)) {
        fault("fails", settings);
        return;
    }
    r = results("many");
    compare(settings, &r, one);
}

static void check_cases(void)
{
    struct result one[2] = {alone(""), alone(PLAIN)};

    if (!memcmp(&one[0], &one[1], sizeof(one[0])))
        fault("makes no difference", "text.document_mask");
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        const char *settings = with_method(
            ct_arena_printf(&arena, "%s%s", cases[i].settings, cases[i].plain ? PLAIN : ""));

        if (!cases[i].only || !strcmp(cases[i].only, method))
            compare_run(settings, &one[cases[i].plain]);
    }
}

static void check_twice(void)
{
    const char *settings = with_method("-n 2 --set cp.degree=2");
    struct result first, second;

    if (train("many", settings))
        fault("fails", settings);
    first = results("many");
    if (train("again", settings))
        fault("fails", settings);
    second = results("again");
    if (!first.steps || memcmp(&first, &second, sizeof(first)))
        fault("differs from run to run", settings);
}

static void check_failure(const char *settings, int expected, const char *message)
{
    char line[1024] = "";
    FILE *log;
    bool said = false;
    int status = train("refused", settings);

    log = fopen(in_folder("log"), "r");
    while (log && fgets(line, sizeof(line), log))
        said |= strstr(line, message) != NULL;
    if (log)
        fclose(log);
    if (status != expected || !said)
        fault(message, settings);
}

static void check_refusal(const char *settings, const char *message)
{
    check_failure(with_method(settings), 2, message);
}

/* ---- ops with positions of their own ---- */

#define PLACES "--with places --set places.op="

static const char *const meshes[] = {
    "-n 2 --set cp.degree=2",
    "-n 3 --set cp.degree=3 --set cp.method=allgather",
    "-n 2 --set cp.degree=2 --set cp.load_balancer=none",
    "-n 4 --with fsdp --set cp.degree=2 --set training.local_batch_size=2",
    "-n 4 --with pp --set cp.degree=2 --set pp.degree=2 --set pp.microbatch_size=1",
    "-n 4 --with tp --set cp.degree=2 --set tp.degree=2",
};

static void check_places(void)
{
    static const char order[] = "but [cp] load_balancer = headtail feeds sequences in another "
                                "order";
    struct result wave = alone(PLACES "wave"), running = alone(PLACES "running");

    for (size_t i = 0; i < CT_COUNT(meshes); i++)
        compare_run(ct_arena_printf(&arena, PLACES "wave %s", meshes[i]), &wave);
    compare_run(PLACES "running -n 2 --set cp.degree=2" NONE, &running);
    check_failure(PLACES "running -n 2 --set cp.degree=2", 2,
                  "places.running %placed takes whole sequences without positions");
    check_failure(PLACES "running -n 2 --set cp.degree=2", 2, order);
    check_failure(
        PLACES "table -n 2 --set cp.degree=2", 2,
        "places.table %placed combines sequences with operands that do not run along them");
    check_failure(PLACES "hidden -n 2 --set cp.degree=2", 1, "sequences are in another order");
}

/* A soft cap and slopes by distance, on every method and beside tp. */
static void check_scores(void)
{
    struct result plain = alone("");

    for (int i = 0; i < 2; i++) {
        const char *with = i ? PLACES "slopes " : PLACES "softcap ";
        struct result one = alone(with);

        if (!memcmp(&one, &plain, sizeof(one)))
            fault("makes no difference", with);
        for (int m = 0; m < 2; m++)
            compare_run(
                with_method(ct_arena_printf(&arena, "%s %s" HEADTAIL, with,
                                            m ? "-n 4 --with tp --set cp.degree=2 --set tp.degree=2"
                                              : "-n 2 --set cp.degree=2")),
                &one);
    }
}

/* ---- recurrences and convolutions ---- */

/* Sequences of 48 tokens are of documents of 8 to 50, in segments of 24 to 6 tokens. */
static void check_states(void)
{
    static const char *const models[] = {"qwen3_next", "bamba"};
    static const char *const of_states[] = {
        "-n 2 --set cp.degree=2",
        ("-n 3 --set cp.degree=3" NONE),
        "-n 4 --set cp.degree=4 --set cp.method=allgather",
        "-n 4 --with tp --set cp.degree=2 --set tp.degree=2",
        "-n 4 --with pp --set cp.degree=2 --set pp.degree=2 --set pp.microbatch_size=1",
    };

    for (size_t m = 0; m < CT_COUNT(models); m++) {
        const char *model = ct_arena_printf(&arena,
                                            "--without llama --with decoder --set "
                                            "model.name=decoder --set model.flavor=small --set "
                                            "decoder.family=%s/%s.ini",
                                            families, models[m]);
        struct result one = alone(model),
                      plain = alone(ct_arena_printf(&arena, "%s%s", model, PLAIN));

        if (!memcmp(&one, &plain, sizeof(one)))
            fault("makes no difference", "text.document_mask");
        for (size_t i = 0; i < CT_COUNT(of_states); i++)
            compare_run(ct_arena_printf(&arena, "%s %s", model, of_states[i]), &one);
        compare_run(ct_arena_printf(&arena, "%s %s%s", model, of_states[0], PLAIN), &plain);
        check_failure(
            ct_arena_printf(&arena, "%s -n 4 --set cp.degree=4 --set training.seq_len=16", model),
            2, "splits sequences of 16 tokens into 8 segments of 2; causal_conv of %");
    }
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc > 5)
        return 2;
    program = argv[1];
    method = argv[2];
    steps = atoi(argv[3]);
    families = argv[4];
    if (steps < 1 || steps > MOST_STEPS || !mkdtemp(folder) || write_inputs())
        return 2;
    if (!strcmp(method, "places")) {
        check_places();
    } else if (!strcmp(method, "states")) {
        check_states();
    } else {
        check_cases();
        check_twice();
        check_scores();
        check_refusal("-n 2 --set cp.degree=2 --set training.seq_len=51", "is not a multiple of");
    }
    if (!strcmp(method, "ulysses"))
        check_refusal("-n 2 --set cp.degree=2 --set llama.n_heads=1 --set llama.n_kv_heads=1",
                      "1 heads cannot be divided");
    if (system(ct_arena_printf(&arena, "rm -rf '%s'", folder)))
        return 2;
    ct_arena_finish(&arena);
    return faults != 0;
}
