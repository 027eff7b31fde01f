/*
 * Whole runs, judged by their metrics.jsonl: the same twice, the same however the batch is split,
 * what `plan` said, and what `explain` shows can be read back.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include <ctitan/app/verify.h>
#include <ctitan/arena.h>
#include <ctitan/error.h>
#include <ctitan/graph.h>
#include <ctitan/lib/ops.h>
#include <ctitan/plugins.h>
#include <ctitan/rng.h>
#include <ctitan/text.h>

static const char *program, *long_text;
static char folder[] = "/tmp/ctitan-program-XXXXXX";
static struct ct_arena arena;

enum { VOCABULARY = 64, TOKENS = 40000 };

static const char recipe[] = "[plugins]\n"
                             "load = cpu, llama, tokens, adamw, metrics\n"
                             "[training]\n"
                             "seq_len = 32\n"
                             "local_batch_size = 8\n"
                             "steps = 20\n"
                             "mixed_precision_param = float32\n"
                             "[model]\n"
                             "name = llama\n"
                             "[llama]\n"
                             "dim = 64\n"
                             "n_layers = 2\n"
                             "n_heads = 4\n"
                             "n_kv_heads = 2\n"
                             "ffn_dim = 96\n"
                             "vocab_size = 64\n"
                             "[tokens]\n"
                             "path = tokens.bin\n"
                             "validation_path = tokens.bin\n"
                             "[adamw]\n"
                             "lr = 3e-3\n"
                             "[lr_scheduler]\n"
                             "warmup_steps = 5\n"
                             "[metrics]\n"
                             "log_freq = 1\n"
                             "peak_tflops = 1\n";

/* ---- files and commands ---- */

static const char *in_folder(const char *name)
{
    return ct_arena_printf(&arena, "%s/%s", folder, name);
}

static void write_file(const char *name, const void *data, size_t size)
{
    FILE *out = fopen(in_folder(name), "w");

    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
}

static char *read_file(const char *name)
{
    FILE *in = fopen(in_folder(name), "r");
    char *text = NULL;
    size_t room = 0;
    ssize_t size;

    if (!in)
        fail_msg("there is no %s", in_folder(name));
    size = getdelim(&text, &room, '\0', in);
    fclose(in);
    text = size < 0 ? calloc(1, 1) : text;
    return text;
}

/* Tokens that are worth learning: each is one of four that may follow the one before. */
static void write_tokens(void)
{
    static uint32_t tokens[TOKENS];

    for (int i = 1; i < TOKENS; i++)
        tokens[i] = (tokens[i - 1] * 5 + ct_philox(1, 2, (uint64_t)i).v[0] % 4) % VOCABULARY;
    write_file("tokens.bin", tokens, sizeof(tokens));
}

static int set_up(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    write_tokens();
    write_file("r.ini", recipe, sizeof(recipe) - 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ct_arena_finish(&arena);
    return 0;
}

static int finish(void **state)
{
    (void)state;
    return system(ct_arena_printf(&arena, "rm -rf %s", folder));
}

/* ctitan ARGUMENTS; its output goes to the files out and err. */
static int ctitan(const char *arguments)
{
    int status =
        system(ct_arena_printf(&arena, "cd %s && '%s' %s >out 2>err", folder, program, arguments));

    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void must_end_with(int expected, const char *arguments)
{
    int status = ctitan(arguments);

    if (status != expected)
        fail_msg("ctitan %s: status %d, not %d:\n%s", arguments, status, expected,
                 read_file("err"));
}

/* ---- metrics ---- */

struct metrics {
    json_t *lines[4096];
    size_t count;
};

/* Train with more arguments, and read what the run logged. */
static struct metrics *train(const char *name, const char *arguments)
{
    struct metrics *m = ct_arena_new(&arena, struct metrics);
    char *text, *line, *rest;

    must_end_with(
        0, ct_arena_printf(&arena, "train r.ini --set job.dump_folder=%s %s", name, arguments));
    rest = text = read_file(ct_arena_printf(&arena, "%s/metrics.jsonl", name));
    while ((line = strsep(&rest, "\n")) && *line) {
        json_t *object = json_loads(line, 0, NULL);

        if (!object || m->count == CT_COUNT(m->lines))
            fail_msg("metrics.jsonl: %s", line);
        m->lines[m->count++] = object;
    }
    free(text);
    return m;
}

static double number(const struct metrics *m, size_t i, const char *key)
{
    json_t *value = i < m->count ? json_object_get(m->lines[i], key) : NULL;

    if (!json_is_number(value))
        fail_msg("line %zu has no number %s", i + 1, key);
    return json_number_value(value);
}

static void forget(struct metrics *m)
{
    for (size_t i = 0; i < m->count; i++)
        json_decref(m->lines[i]);
}

static void assert_close(double is, double should, double tolerance, const char *what, size_t step)
{
    if (!(fabs(is - should) <= tolerance * fabs(should)))
        fail_msg("step %zu: %s is %.9g, not %.9g", step, what, is, should);
}

/* Loss and gradient norm of every step, within a relative tolerance. */
static void compare(const struct metrics *is, const struct metrics *should, double tolerance)
{
    assert_int_equal(is->count, should->count);
    for (size_t i = 0; i < is->count; i++) {
        assert_close(number(is, i, "loss"), number(should, i, "loss"), tolerance, "loss", i + 1);
        assert_close(number(is, i, "grad_norm"), number(should, i, "grad_norm"), tolerance,
                     "grad_norm", i + 1);
    }
}

/* ---- the tests ---- */

static void a_run_learns(void **state)
{
    struct metrics *m = train("learns", "--set training.steps=60");

    (void)state;
    assert_int_equal(m->count, 60);
    assert_close(number(m, 0, "loss"), log(VOCABULARY), 0.3, "first loss", 1);
    /* four continuations of every token: ln 4 = 1.39 is what there is to know */
    if (number(m, 59, "loss") > 2)
        fail_msg("the loss after 60 steps is %g", number(m, 59, "loss"));
    forget(m);
}

static void two_runs_are_bitwise_equal(void **state)
{
    static const char *const ways[] = {
        "", "--set training.mixed_precision_param=bfloat16",
        "--set training.dtype=bfloat16 --set training.mixed_precision_param=bfloat16",
        "--set training.local_batch_size=2 --set training.global_batch_size=8"};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(ways); i++) {
        struct metrics *first = train("first", ways[i]), *second = train("second", ways[i]);

        compare(first, second, 0);
        forget(first);
        forget(second);
    }
}

static void the_seed_matters(void **state)
{
    struct metrics *zero = train("zero", "--set training.steps=1");
    struct metrics *one = train("one", "--set training.steps=1 --set training.seed=1");

    (void)state;
    assert_true(number(zero, 0, "loss") < number(one, 0, "loss") ||
                number(zero, 0, "loss") > number(one, 0, "loss"));
    forget(zero);
    forget(one);
}

static void accumulation_gives_the_whole_batch(void **state)
{
    static const int sizes[] = {4, 2, 1};
    struct metrics *whole = train("whole", "");

    (void)state;
    for (size_t i = 0; i < CT_COUNT(sizes); i++) {
        struct metrics *split = train("split", ct_arena_printf(&arena,
                                                               "--set training.local_batch_size=%d "
                                                               "--set training.global_batch_size=8",
                                                               sizes[i]));

        compare(split, whole, 1e-5);
        forget(split);
    }
    forget(whole);
}

/* The number behind "key": in the output of `plan --json`. */
static double planned(const char *arguments, const char *key)
{
    json_t *plan;
    double value;
    char *text;

    must_end_with(0, ct_arena_printf(&arena, "plan r.ini --json %s", arguments));
    text = read_file("out");
    plan = json_loads(text, 0, NULL);
    if (!json_is_number(json_object_get(plan, key)))
        fail_msg("plan --json has no number %s: %s", key, text);
    value = json_number_value(json_object_get(plan, key));
    json_decref(plan);
    free(text);
    return value;
}

static void the_plan_is_what_the_run_uses(void **state)
{
    static const char *const ways[] = {
        "--set training.steps=1",
        "--set training.steps=1 --set training.mixed_precision_param=bfloat16",
        ("--set training.steps=1 --set training.local_batch_size=1 "
         "--set training.global_batch_size=8"),
        "--set training.steps=1 --set llama.tie_embeddings=true --set training.seq_len=48",
        "--set training.steps=1 --set validation.freq=1 --set validation.steps=1"};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(ways); i++) {
        struct metrics *m = train("planned", ways[i]);

        assert_int_equal(number(m, 0, "memory_peak_bytes"), planned(ways[i], "memory_peak_bytes"));
        forget(m);
    }
}

/* A run that starts from the weights of another one validates as that one did at its end. */
static void check_taken_up(const char *saver, const char *taker, double tolerance)
{
    const char *validate = "--set validation.freq=100 --set validation.steps=3";
    struct metrics *first =
        train("saver", ct_arena_printf(&arena, "%s %s --set model.save_to=model", validate, saver));
    struct metrics *second =
        train("taker", ct_arena_printf(&arena,
                                       "%s %s --set model.init_from=model --set training.steps=1 "
                                       "--set adamw.lr=0",
                                       validate, taker));

    assert_close(number(second, second->count - 1, "validation_loss"),
                 number(first, first->count - 1, "validation_loss"), tolerance, "validation_loss",
                 20);
    forget(first);
    forget(second);
}

static void saved_weights_are_taken_up(void **state)
{
    (void)state;
    check_taken_up("", "", 0);
}

/* Shards of vocabulary and hidden features that are not of one length. */
static void weights_in_uneven_shards_are_saved_and_taken_up(void **state)
{
    static const char odd[] = "--set llama.vocab_size=67 --set llama.ffn_dim=97 --set "
                              "llama.n_heads=6 --set llama.n_kv_heads=3 --set llama.head_dim=8";
    const char *mesh = "-n 6 --with local --with fsdp --with tp --set tp.degree=3 "
                       "--set training.local_batch_size=4";

    (void)state;
    check_taken_up(ct_arena_printf(&arena, "%s %s", odd, mesh), odd, 1e-5);
    check_taken_up(odd, ct_arena_printf(&arena, "%s %s", odd, mesh), 1e-5);
}

/* The most memory in MB that one step of a model of 101 MB takes, with more arguments. */
static long resident(const char *arguments)
{
    const char *command = ct_arena_printf(
        &arena,
        "cd %s && exec '%s' train r.ini --set training.steps=1 --set training.local_batch_size=1 "
        "--set llama.n_layers=1 --set llama.dim=512 --set llama.ffn_dim=16384 "
        "--set job.dump_folder=memory %s >out 2>err",
        folder, program, arguments);
    struct rusage used;
    pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(wait4(pid, &status, 0, &used), pid);
    if (status)
        fail_msg("%s", read_file("err"));
    return used.ru_maxrss >> 10;
}

/* A model is larger than the memory that is left when it is to be saved. */
static void saving_needs_little_memory(void **state)
{
    long without = resident(""), with = resident("--set model.save_to=large");

    (void)state;
    if (with > without + 75)
        fail_msg("%ld MB, %ld MB with saving", without, with);
}

/* Once skipped, always skipped here: but the weights stay as they were, so losses stay finite where
   one bad batch is followed by good ones. A huge learning rate ruins them in the first step. */
static void what_is_not_finite_stops_or_is_skipped(void **state)
{
    const char *huge = "--set adamw.lr=1e30 --set lr_scheduler.warmup_steps=0";
    struct metrics *m;
    char *err;

    (void)state;
    must_end_with(1, ct_arena_printf(&arena, "train r.ini --set job.dump_folder=stops %s", huge));
    err = read_file("err");
    assert_non_null(strstr(err, "step 2: the loss "));
    assert_non_null(strstr(err, "non_finite = skip"));
    free(err);
    m = train(
        "skips",
        ct_arena_printf(&arena, "%s --set training.non_finite=skip --set training.steps=4", huge));
    assert_int_equal(m->count, 4);
    assert_null(json_object_get(m->lines[0], "skipped"));
    for (size_t i = 1; i < 4; i++)
        assert_true(json_is_true(json_object_get(m->lines[i], "skipped")));
    forget(m);
}

static void clipping_is_off_when_asked(void **state)
{
    struct metrics *off = train("off", "--set training.max_norm=0");
    struct metrics *far = train("far", "--set training.max_norm=1e30");
    struct metrics *near = train("near", "--set training.max_norm=0.01 --set adamw.eps=1");

    (void)state;
    compare(off, far, 0);
    /* with eps = 1 the size of the gradient matters, so a small one learns slowly */
    assert_true(number(near, 19, "loss") > number(off, 19, "loss"));
    forget(off);
    forget(far);
    forget(near);
}

/* ---- explain ---- */

static void register_plugin(const char *name)
{
    const struct ct_plugin *plugin;

    if (ct_plugin_find(name, &plugin) < 0 || ct_plugin_register(plugin) < 0)
        fail_msg("%s: %s", name, ct_error_message());
}

static void what_explain_shows_reads_back(void **state)
{
    static const char *const after[] = {"precision", "differentiate", "update"};

    (void)state;
    register_plugin("adamw");
    for (size_t i = 0; i < CT_COUNT(after); i++) {
        struct ct_graph *graph;
        char *text;

        must_end_with(0, ct_arena_printf(&arena,
                                         "explain r.ini --dump-after %s "
                                         "--set training.mixed_precision_param=bfloat16",
                                         after[i]));
        text = read_file("out");
        graph = ct_graph_parse(&arena, text);
        if (!graph || ct_graph_verify(graph, stderr) < 0)
            fail_msg("after %s: %s", after[i], ct_error_message());
        if (!strstr(text, ct_graph_text(graph, &arena)))
            fail_msg("after %s: printed again, the graph differs", after[i]);
        free(text);
    }
}

/* ---- long ---- */

static double mean_loss(const struct metrics *m, size_t from, size_t to)
{
    double sum = 0;

    for (size_t i = from; i < to; i++)
        sum += number(m, i, "loss");
    return sum / (double)(to - from);
}

/* 200 steps of the debug model on text: bfloat16 is where float32 is, within what the batches make
   the loss vary. */
static void bfloat16_follows_float32(void **state)
{
    const char *arguments = ct_arena_printf(
        &arena,
        "--without tokens --with text --with bytes --set text.path=%s --set llama.dim=256 "
        "--set llama.n_layers=6 --set llama.n_heads=16 --set llama.n_kv_heads=16 "
        "--set llama.ffn_dim=768 --set llama.vocab_size=2048 --set training.seq_len=128 "
        "--set training.steps=200 --set adamw.lr=8e-4 --set lr_scheduler.warmup_steps=20",
        long_text);
    struct metrics *m32 = train("float32", arguments);
    struct metrics *m16 = train(
        "bfloat16",
        ct_arena_printf(&arena, "%s --set training.mixed_precision_param=bfloat16", arguments));

    (void)state;
    assert_int_equal(m32->count, 200);
    for (size_t from = 0; from < 200; from += 20) {
        double loss32 = mean_loss(m32, from, from + 20), loss16 = mean_loss(m16, from, from + 20);

        print_message("steps %3zu to %3zu: float32 %.4f, bfloat16 %.4f\n", from + 1, from + 20,
                      loss32, loss16);
        assert_close(loss16, loss32, 0.01, "mean loss", from + 20);
    }
    assert_true(mean_loss(m16, 180, 200) < 0.6 * mean_loss(m16, 0, 20));
    forget(m32);
    forget(m16);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_run_learns, tear_down),
        cmocka_unit_test_teardown(two_runs_are_bitwise_equal, tear_down),
        cmocka_unit_test_teardown(the_seed_matters, tear_down),
        cmocka_unit_test_teardown(accumulation_gives_the_whole_batch, tear_down),
        cmocka_unit_test_teardown(the_plan_is_what_the_run_uses, tear_down),
        cmocka_unit_test_teardown(saved_weights_are_taken_up, tear_down),
        cmocka_unit_test_teardown(weights_in_uneven_shards_are_saved_and_taken_up, tear_down),
        cmocka_unit_test_teardown(saving_needs_little_memory, tear_down),
        cmocka_unit_test_teardown(what_is_not_finite_stops_or_is_skipped, tear_down),
        cmocka_unit_test_teardown(clipping_is_off_when_asked, tear_down),
        cmocka_unit_test_teardown(what_explain_shows_reads_back, tear_down),
    };
    const struct CMUnitTest long_tests[] = {
        cmocka_unit_test_teardown(bfloat16_follows_float32, tear_down),
    };

    if (ct_ops_register() < 0)
        return 2;
    if (argc < 3) {
        fprintf(stderr, "usage: test_program CTITAN short|long [TEXT]\n");
        return 2;
    }
    program = realpath(argv[1], NULL);
    long_text = argc > 3 ? argv[3] : NULL;
    if (!strcmp(argv[2], "long"))
        return cmocka_run_group_tests(long_tests, set_up, finish);
    return cmocka_run_group_tests(tests, set_up, finish);
}
