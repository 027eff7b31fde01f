/*
 * The program from outside: what a user types, what comes out, and the exit status.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <jansson.h>

#include <ctitan/arena.h>

#include <cmocka.h>

static const char *verb_plugins, *loud_plugins;
static const char *program;
static char folder[] = "/tmp/ctitan-cli-XXXXXX";
static struct ct_arena arena;

static const char recipe[] = "[plugins]\n"
                             "load = cpu, llama, tokens,\n"
                             "       adamw, metrics\n"
                             "[job]\n"
                             "dump_folder = %s/out\n"
                             "[training]\n"
                             "seq_len = 16\n"
                             "local_batch_size = 2\n"
                             "global_batch_size = 4\n"
                             "steps = 7\n"
                             "mixed_precision_param = float32\n"
                             "[model]\n"
                             "name = llama\n"
                             "[llama]\n"
                             "dim = 32\n"
                             "n_layers = 2\n"
                             "n_heads = 2\n"
                             "n_kv_heads = 2\n"
                             "ffn_dim = 64\n"
                             "vocab_size = 64\n"
                             "[tokens]\n"
                             "path = %s/tokens.bin\n"
                             "[metrics]\n"
                             "log_freq = 3\npeak_tflops = 1\n"
                             "[lr_scheduler]\n"
                             "warmup_steps = 2\n";

/* ---- running it ---- */

static char *slurp(const char *name)
{
    const char *path = ct_arena_printf(&arena, "%s/%s", folder, name);
    FILE *in = fopen(path, "r");
    char *text = ct_arena_alloc(&arena, 1 << 20);

    assert_non_null(in);
    text[fread(text, 1, (1 << 20) - 1, in)] = '\0';
    fclose(in);
    return text;
}

struct result {
    int status;
    const char *out, *err;
};

/* ctitan with the arguments; %R stands for the recipe. */
static struct result run(const char *arguments)
{
    const char *at = strstr(arguments, "%R");
    int head = at ? (int)(at - arguments) : (int)strlen(arguments);
    struct result r;

    r.status =
        system(ct_arena_printf(&arena, "cd %s && '%s' %.*s%s%s >out.txt 2>err.txt", folder, program,
                               head, arguments, at ? "r.ini" : "", at ? at + 2 : ""));
    assert_true(WIFEXITED(r.status));
    r.status = WEXITSTATUS(r.status);
    r.out = slurp("out.txt");
    r.err = slurp("err.txt");
    return r;
}

static void assert_has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("'%s' lacks '%s'", text, part);
}

/* ---- mistakes ---- */

static void mistakes_end_with_status_2_and_say_what(void **state)
{
    static const struct {
        const char *arguments, *expected;
    } mistakes[] = {
        {"", "usage: ctitan VERB"},
        {"trian %R", "no verb trian; did you mean train?"},
        {"frobnicate", "no verb frobnicate"},
        {"train", "train: RECIPE is missing: an INI file, - for standard input"},
        {"new schedule 1f1b", "there is a plugin 1f1b"},
        {"train %R other.ini", "but there is also other.ini"},
        {"train none.ini", "none.ini: No such file"},
        {"train %R --sett x=1",
         "train has no option --sett; did you mean --set? `ctitan help train` lists"},
        {"train %R --json", "train has no option --json"},
        {"train %R -x", "train has no option -x"},
        {"train %R --set", "--set needs a value"},
        {"train %R --set training.steps", "expected section.key=value"},
        {"train %R --set training.stesp=3",
         "--set: [training]: no option named stesp; did you mean steps?"},
        {"train %R --set training.steps=x", "steps = x: expected an integer"},
        {"train %R --set adamw.lr=inf", "lr = inf: expected a number, at least 0"},
        {"train %R --set adamw.beta1=1", "beta1 = 1: expected a number, 0 to 0.999999999999"},
        {"train %R --with muon --set muon.momentum=1", "momentum = 1: expected a number, 0 to 0.9"},
        {"plan %R --with muon --set 'muon.exclude=*wte*, *nothing*'",
         "[muon] exclude: the model has no parameter '*nothing*'"},
        {"plan %R --set training.global_batch_size=60 --set training.local_batch_size=8",
         "set local_batch_size = 6, or global_batch_size = 64"},
        {"plan %R --set training.global_batch_size=13 --set training.local_batch_size=4",
         "set local_batch_size = 1, or global_batch_size = 16"},
        {"plan %R --set training.global_batch_size=1000000007 "
         "--set training.local_batch_size=1073741824",
         "set local_batch_size = 1000000007, or global_batch_size = 1073741824"},
        {"plan %R --with pp --set pp.split_points=layer.1",
         "the model has no region 'layer.1'; its regions are embedding, layers.0 .. head; did "
         "you mean layers.1?"},
        {"plan %R --with pp --set pp.split_points=layers.1 --set pp.layers_per_stage=2",
         "[pp] split_points and layers_per_stage: give one of them"},
        {"train %R --with ema --set model.save_to=m --set ema.save_to=../${PWD##*/}/m",
         "is the folder of [model] save_to, too: the average would replace the weights"},
        {"explain %R --dump-kernels", "which the recipe does not load: add --with fuse"},
        {"train %R --with fuse --set fuse.dump=/proc/x", "[fuse] dump = /proc/x: "},
        {"train %R --with describe --set describe.file=/tmp",
         "[describe] file = /tmp: Is a directory"},
        {"train %R --set cpu.isa=foo", "[cpu] isa = foo: this CPU runs auto, portable"},
        {"plan %R --set model.flavor=debgu",
         "--set: [model] flavor = debgu: llama has debug, 1B, 3B, 8B, 70B and 405B; did you mean "
         "debug?"},
        {"plan r.ini --set training.skip=nothing", "--set: [training] skip: there is no transform"},
        {"plan flavor.ini", "flavor.ini:14: [model] flavor = debgu: llama has debug"},
        {"train %R --with ckpt --set ckpt.exclude_from_loading=optimiser",
         "optimizer, lr_scheduler, dataloader; did you mean optimizer?"},
        {"plan %R --with float8 --set float8.filter=up_porj",
         "[float8] filter: up_porj is neither a linear layer's region nor part of a weight's name; "
         "did you mean up_proj?"},
        {"train %R --without cpuu", "did you mean cpu?"},
        {"train %R --without cpu", "device"},
        {"train %R --without adamw", "needs an optimizer: add one of adamw"},
        {"train %R --with nothing", "no plugin named nothing"},
        {"train %R -n 2", "makes 1 rank, but there are 2"},
        {"plan %R -n 2 --with tp --set tp.degree=1",
         "the mesh tp 1 makes 1 rank, but there are 2: add --set tp.degree=2"},
        {"plan %R -n 6 --with tp,cp --set cp.degree=4", "the mesh cp 4 x tp 1 makes 4 ranks"},
        {"plan %R -n 2 --with tp,cp", "add --set cp.degree=2 or --set tp.degree=2"},
        {"train %R --max-restarts 1", "need -n RANKS"},
        {"train %R -n 2 --elastic", "--elastic needs --max-restarts N"},
        {"train %R -n zero", "-n zero: expected a number, at least 1"},
        {"plan %R --world 2000000", "--world 2000000: expected a number, at most 1048576"},
        {"train %R -n 1000000", "ranks are allowed; `ctitan plan --world 1000000`"},
        {"plan %R -n 2 --world 4", "-n and --world: give one of them"},
        {"train %R --set training.global_batch_size=3", "global_batch_size"},
        {"plan %R --set training.local_batch_size=268435456 --set training.global_batch_size=-1 "
         "--set cpu.products=onednn",
         "oneDNN multiplies matrices of up to 2147483647 rows and columns"},
        {"train %R --set model.name=lama", "no plugin that was found has it; with a model: "},
        {"train %R --set model.name=lama", "qwen3_moe; did you mean llama?"},
        {"train %R --set job.dump_folder=/proc/x",
         "[job] dump_folder: cannot create the folder /proc/x"},
        {"train %R --set job.dump_folder=", "[job] dump_folder: the path of a folder is empty"},
        {"train %R --with offload", "device cpu has no host memory to offload to"},
        {"train %R --with offload --set cpu.offload_folder=none",
         "[cpu] offload_folder = none: No such file or directory"},
        {"plan %R --with offload --set offload.parameters=false --set offload.optimizer=false",
         "[offload] parameters and optimizer are both false"},
        {"train %R --set training.dtype=float31", "expected one of float32, bfloat16"},
        {"plan %R --dump-after all", "plan has no option --dump-after"},
        {"plugins now", "plugins takes options only, but there is now"},
        {"help trai", "no verb or section trai; did you mean train?"},
        {"help trainig", "no verb or section trainig; did you mean training?"},
        {"help nothing_at_all", "no verb or section nothing_at_all"},
        {"help warmup_steps", "warmup_steps is an option in [lr_scheduler] of a recipe: "},
        {"help beta1", "beta1 is an option in [adamw] of a recipe: "},
        {"plan %Rx", "did you mean "},
        {"plan %R -n 2", "choose degrees that multiply to that, or add one of "},
        {"doctor now",
         "doctor: a recipe and its options are for --describe NAME, which is missing"},
        {"train %R --dump_after=all", "no option --dump_after; did you mean --dump-after?"},
        {"ckpt sl x", "ckpt sl: expected ls, verify, show, diff or gather; did you mean ls?"},
        {"export a b --frce", "export has no option --frce; did you mean --force?"},
        {"lora merge %R b --wiht tp", "lora has no option --wiht; did you mean --with?"},
        {"flight a --tarce x", "flight has no option --tarce; did you mean --trace?"},
        {"new optimiser x", "new optimiser: expected model, op, transform, optimizer, "},
        {"new optimiser x", "or objective; did you mean optimizer?"},
        {"plan %R --json=yes", "plan: --json takes no value"},
        {"run r.ini", "no verb run: write ctitan train"},
        {"r.ini", "no verb r.ini, but a file: write ctitan train r.ini"},
        {"--json plugins", "--json: a verb comes first: ctitan VERB --json"},
        {"train %R --lr 1e-3", "train has no option --lr: write --set adamw.lr=1e-3"},
        {"compare %R --lr 1e-3", "compare has no option --lr: write --set adamw.lr=1e-3"},
        {"train %R --learning-rate=1e-3", "--learning-rate: write --set adamw.lr=1e-3"},
        {"train %R --batch-size 3", "write --set training.local_batch_size=VALUE: sequences of a"},
        {"train %R --epochs 3", "write --set training.epochs=3"},
        {"train %R --max-steps 3", "write --set training.steps=3"},
        {"train %R --model llama", "--model: --with NAME loads the plugin of a model"},
        {"train %R --training.steps 3", "--training.steps: write --set training.steps=3"},
        {"train %R training.steps=3", "train: training.steps=3: write --set training.steps=3"},
        {"train %R --tp 2", "train has no option --tp: write --with tp --set tp.degree=2"},
        {"train %R --gpus 2", "train has no option --gpus: -n RANKS starts as many ranks"},
        {"train --config %R", "train has no option --config: the recipe is a word"},
        {"train %R --set lr=1", "--set lr=1: expected section.key=value: write --set adamw.lr=1"},
        {"train %R --set training.warmup_steps=1",
         "--set: [training]: no option named warmup_steps: write warmup_steps in [lr_scheduler]"},
        {"train %R --set training.straggler_freq=1",
         "write straggler_freq in [flight_recorder], a plugin that [plugins] load must list"},
        {"train %R --with tp --set tp.async=true",
         "--set: [tp]: no option named async: plugin tp_async does it where [plugins] load lists"},
        {"train %R --with tp --set tp.async=false", "options in [tp_async]; else remove the line"},
        {"train %R --with tp --set tp.link=1",
         "--set: [tp]: no option named link: write link in [tp_async], a plugin that [plugins]"},
        {"train %R --with tp_async", "plugin tp_async needs the mesh axis tp: add tp to [plugins]"},
        {"train %R --set validation.enable=true",
         "[validation]: no option named enable: a plugin that [plugins] load lists is on"},
        {"train %R --set comm.init_timeout_seconds=9", "write start_timeout in [comm]"},
        {"train %R --clip-grad 1", "--clip-grad: write --set training.max_norm=1"},
        {"train %R --set compile.mode=on", "no section [compile]: each technique is a plugin"},
        {"watch x --stall 0", "--stall 0: expected a number from 1e-09 to 1000000000"},
    };

    (void)state;
    system(ct_arena_printf(
        &arena, "cd %s && sed 's/^name = llama/&\\nflavor = debgu/' r.ini >flavor.ini", folder));
    for (size_t i = 0; i < CT_COUNT(mistakes); i++) {
        struct result r = run(mistakes[i].arguments);

        if (r.status != 2)
            fail_msg("ctitan %s: status %d: %s", mistakes[i].arguments, r.status, r.err);
        assert_has(r.err, mistakes[i].expected);
        assert_string_equal(r.out, "");
    }
}

/* ---- help ---- */

static void help_is_made_from_the_tables(void **state)
{
    struct result r = run("help");

    (void)state;
    assert_int_equal(r.status, 0);
    assert_has(r.out, "train ");
    assert_has(r.out, "  training  ");
    assert_has(r.out, "ctitan train recipes/quickstart.ini");
    assert_has(r.out, "adamw");
    r = run("help training");
    assert_has(r.out, "seq_len = 2048");
    assert_has(r.out, "stop, skip");
    r = run("help adamw");
    assert_has(r.out, "weight_decay = 0.1");
    assert_has(r.out, "offers optimizer adamw");
    r = run("help ckpt"); /* a verb and a plugin */
    assert_has(r.out, "usage: ctitan ckpt ");
    assert_has(r.out, "keep_latest_k = ");
    r = run("help explain");
    assert_has(r.out, "-n, --ranks RANKS");
    r = run("help plan");
    assert_has(r.out, "usage: ctitan plan RECIPE");
    r = run("help tune");
    assert_has(r.out, "      --json            Print JSON.");
    r = run("help ops");
    assert_has(r.out, "all_gather ");
    assert_has(r.out, "linear ");
    r = run("help rms_norm");
    assert_has(r.out, "x[.K] T, w[K] T -> ");
    assert_has(r.out, "eps = ");
    r = run("plugins");
    assert_int_equal(r.status, 0);
    assert_has(r.out, " Adam with decoupled weight decay (op, kernels, transform, optimizer)\n");
    r = run("--version");
    assert_int_equal(strncmp(r.out, "ctitan ", 7), 0);
}

/* The next word of a text, without quotes; "": there is none. */
static const char *next_word(const char **text)
{
    size_t length;

    *text += strspn(*text, " \n");
    length = strcspn(*text, " \n");
    *text += length;
    return ct_arena_printf(&arena, "%.*s", (int)length, *text - length);
}

static void check_help(const char *verb)
{
    struct result r = run(ct_arena_printf(&arena, "%s --help", verb));
    const char *help = r.out, *at;
    int examples = 0, length = 0;

    assert_int_equal(r.status, 0);
    assert_string_equal(r.err, "");
    assert_has(help, ct_arena_printf(&arena, "usage: ctitan %s ", verb));
    assert_string_equal(run(ct_arena_printf(&arena, "%s -h", verb)).out, help);
    r = run(ct_arena_printf(&arena, "help %s", verb));
    assert_int_equal(r.status, 0);
    assert_int_equal(strncmp(r.out, help, strlen(help)), 0);
    for (const char *c = r.out; *c; c++) {
        length = *c == '\n' ? 0 : length + 1;
        if (length > 80 && strncmp(c - 80, "  file ", 7) != 0) /* a path has any length */
            fail_msg("help %s: a line is longer than 80 columns: %.81s", verb, c - 80);
    }
    at = strstr(help, "\nexamples:\n");
    assert_non_null(at);
    for (at = strstr(at, "  ctitan "); at; at = strstr(at + 1, "  ctitan ")) {
        const char *rest = ct_arena_printf(&arena, "%.*s", (int)strcspn(at, "\n"), at), *word;

        examples++;
        assert_has(rest, ct_arena_printf(&arena, "ctitan %s", verb));
        while (*(word = next_word(&rest)))
            if (*word == '-' && word[1]) /* has a sentence above */
                assert_has(help, ct_arena_printf(&arena, "%s ", word));
    }
    assert_true(examples >= 2 || !strcmp(verb, "plugins"));
}

static void every_verb_has_help(void **state)
{
    const char *all = run("help").out, *line = all;
    int verbs = 0;

    (void)state;
    for (const char *c = all, *end; *c; c = end + (*end != '\0')) {
        end = c + strcspn(c, "\n");
        assert_true(end - c <= 80);
    }
    line = strstr(all, "\nTrain and use models:\n");
    assert_non_null(line);
    for (line++; *line && strncmp(line, "Sections", 8) != 0; line += strcspn(line, "\n") + 1) {
        if (strncmp(line, "  ", 2) != 0 || line[2] == ' ')
            continue;
        check_help(ct_arena_printf(&arena, "%.*s", (int)strcspn(line + 2, " "), line + 2));
        verbs++;
    }
    assert_true(verbs > 18);
    assert_string_equal(run("--help").out, run("help").out);
}

/* ---- training ---- */

static json_t *line_object(char **text)
{
    size_t length = strcspn(*text, "\n");
    json_error_t error;
    json_t *object = json_loadb(*text, length, 0, &error);

    if (!object)
        fail_msg("metrics.jsonl: %s in '%.*s'", error.text, (int)length, *text);
    *text += length + ((*text)[length] == '\n');
    return object;
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_number(value))
        fail_msg("metrics.jsonl lacks a number %s", key);
    return json_number_value(value);
}

static double planned_bytes(const char *more)
{
    struct result r = run(ct_arena_printf(&arena, "plan %%R --json%s", more));
    json_t *plan = json_loads(r.out, 0, NULL);
    double bytes;

    if (!plan)
        fail_msg("plan --json: status %d: %s%s", r.status, r.out, r.err);
    bytes = number(plan, "memory_peak_bytes");
    assert_true(number(plan, "tokens_per_step") == 64);
    assert_true(number(plan, "microbatches") == 2);
    assert_true(bytes > 4 * number(plan, "parameters"));
    json_decref(plan);
    return bytes;
}

static void check_metrics(const int *steps, size_t count, double memory)
{
    char *text = slurp("out/metrics.jsonl");

    for (size_t i = 0; i < count; i++) {
        json_t *object = line_object(&text);

        assert_int_equal(number(object, "step"), steps[i]);
        assert_int_equal(number(object, "tokens"), steps[i] * 64);
        assert_true(number(object, "loss") > 1 && number(object, "loss") < 10);
        assert_true(number(object, "grad_norm") > 0);
        assert_true(number(object, "memory_peak_bytes") == memory);
        assert_true(number(object, "mfu") > number(object, "mfu_halved"));
        assert_true(number(object, "tflops") > 0);
        assert_true(number(object, "lr") > 0);
        assert_true(number(object, "tokens_per_second") * number(object, "step_time_s") - 64 <
                    1e-6);
        assert_null(json_object_get(object, "skipped"));
        json_decref(object);
    }
    assert_string_equal(text, "");
}

static void training_logs_what_was_planned(void **state)
{
    static const int steps[] = {1, 3, 6, 7};
    double memory = planned_bytes("");
    struct result r = run("train %R");

    (void)state;
    if (r.status)
        fail_msg("train: %s", r.err);
    assert_string_equal(r.out, "");
    assert_has(r.err, "[ctitan] ");
    assert_has(r.err, " - root - INFO - step:  1  loss: ");
    assert_has(r.err, "step:  7  loss: ");
    assert_has(r.err, "done: 7 steps, 448 tokens");
    assert_null(strstr(r.err, "step:  2 "));
    assert_null(strchr(r.err, '\033'));
    check_metrics(steps, CT_COUNT(steps), memory);
    assert_has(slurp("out/recipe.ini"), "; r.ini:10");
}

static void the_resolved_recipe_trains_the_same(void **state)
{
    char *first, *second, *end;

    (void)state;
    assert_int_equal(run("train %R --set metrics.peak_tflops=1").status, 0);
    first = slurp("out/metrics.jsonl");
    assert_int_equal(run("train out/recipe.ini").status, 0);
    second = slurp("out/metrics.jsonl");
    for (int i = 0; i < 4; i++) {
        /* up to the first number that is a time */
        end = strstr(first, "\"tokens_per_second\"");
        assert_non_null(end);
        assert_memory_equal(first, second, (size_t)(end - first));
        first = strchr(first, '\n') + 1;
        second = strchr(second, '\n') + 1;
    }
}

/* Which weights `generate` takes, and what it says of them. */
static void generating_says_whose_weights_it_takes(void **state)
{
    static const struct {
        const char *arguments, *expected;
    } cases[] = {
        {"--with ckpt", "in out/checkpoint/step-7\n"},
        {"--with ckpt --set model.save_to=model", "in out/checkpoint/step-7\n"},
        {"--with ckpt --set ckpt.load_step=4", "in out/checkpoint/step-4\n"},
        {"--with ckpt --set ckpt.folder=none --set ckpt.initial_load_path=out/checkpoint "
         "--set model.save_to=model",
         "in model\n"},
        {"--with ckpt --set ckpt.folder=none --set ckpt.initial_load_path=out/checkpoint",
         "in out/checkpoint/step-7\n"},
        {"--with ckpt --set model.init_from=model", "in model\n"},
        {"--set model.save_to=model", "in model\n"},
        {"--with ckpt --set ckpt.folder=none", "no model to generate with"},
        {"--set model.save_to=none", "there is no model in none yet"},
    };
    struct result r = run("train %R --with ckpt --set ckpt.interval=4 --set model.save_to=model "
                          "--set job.dump_folder=out");

    (void)state;
    if (r.status)
        fail_msg("train: %s", r.err);
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        r = run(ct_arena_printf(&arena,
                                "generate %%R --prompt-ids 1 --tokens 1 --set job.dump_folder=out "
                                "%s",
                                cases[i].arguments));
        assert_int_equal(r.status, i < CT_COUNT(cases) - 2 ? 0 : 2);
        assert_has(r.err, cases[i].expected);
    }
    system(ct_arena_printf(&arena, "rm -r '%s/out/checkpoint'", folder));
}

static void without_metrics_only_the_last_line_is_said(void **state)
{
    struct result r = run("train %R --without metrics --set job.dump_folder=quiet");

    (void)state;
    assert_int_equal(r.status, 0);
    assert_has(r.err, "done: 7 steps");
    assert_null(strstr(r.err, "step: "));
    assert_int_equal(access(ct_arena_printf(&arena, "%s/quiet/metrics.jsonl", folder), F_OK), -1);
}

/* Ranks and restarts read the recipe again, which a pipe gives only once. */
static void a_recipe_comes_from_a_pipe(void **state)
{
    struct result r;

    (void)state;
    r = run("train - -n 2 --with local,fsdp --set training.steps=2e0 "
            "--set job.dump_folder=piped < r.ini");
    if (r.status)
        fail_msg("train -: %s", r.err);
    assert_has(r.err, "done: 2 steps");
    assert_int_equal(mkfifo(ct_arena_printf(&arena, "%s/pipe", folder), 0600), 0);
    assert_int_equal(system(ct_arena_printf(&arena, "cd %s && cat r.ini > pipe &", folder)), 0);
    r = run("plan pipe");
    assert_has(r.out, "tokens per step");
    r = run("plan - < /dev/null");
    assert_int_equal(r.status, 2);
    assert_has(r.err, "-: the recipe is empty");
}

static void validation_is_logged(void **state)
{
    struct result r = run("train %R --set validation.freq=7 --set validation.steps=2 "
                          "--set tokens.validation_path=tokens.bin");
    char *text;

    (void)state;
    if (r.status)
        fail_msg("train: %s", r.err);
    assert_has(r.err, "validate step:  7  loss: ");
    text = slurp("out/metrics.jsonl");
    for (int i = 0; i < 4; i++)
        json_decref(line_object(&text));
    assert_has(text, "{\"step\": 7, \"validation_loss\": ");
    assert_has(text, "\"validation_tokens\": 64}"); /* 2 batches, 2 samples of 16 */
    assert_null(strstr(r.err, "validation uses all of its data"));
}

static void validation_that_ends_early_says_so_once(void **state)
{
    struct result r = run("train %R --set validation.freq=3 --set validation.steps=1000 "
                          "--set tokens.validation_path=tokens.bin");
    const char *said = strstr(r.err, "all of its data, which has 40 batches of 2 samples: fewer");

    (void)state;
    assert_non_null(said);
    assert_null(strstr(said + 1, "all of its data"));
    assert_has(slurp("out/metrics.jsonl"), "\"validation_tokens\": 1280}");
}

static void data_that_ends_ends_the_run_well(void **state)
{
    struct result r = run("train %R --set training.steps=100000 --set metrics.log_freq=1000 "
                          "--set validation.freq=1000 --set validation.steps=1 "
                          "--set tokens.validation_path=tokens.bin");
    const char *lines, *last;

    (void)state;
    assert_int_equal(r.status, 0);
    assert_has(r.err, "WARNING - the data ended");
    assert_has(r.err, "done: ");
    lines = slurp("out/metrics.jsonl");
    last = strstr(strchr(lines, '\n') + 1, "{\"step\": ");
    assert_non_null(last); /* as any last step, it is logged and validated */
    assert_has(last, "\"validation_loss\": ");
    assert_int_equal(atoi(last + 9), atoi(strstr(r.err, "done: ") + 6));
}

static void validation_data_of_less_than_a_batch_is_refused(void **state)
{
    struct result r =
        run("train %R --set validation.freq=3 --set training.local_batch_size=162 "
            "--set training.global_batch_size=162 --set tokens.validation_path=tokens.bin");

    (void)state;
    assert_int_equal(r.status, 2);
    assert_has(r.err, "the validation data has less than one batch of 162 samples");
}

static void a_run_that_fails_has_status_1(void **state)
{
    struct result r = run("train %R --set adamw.lr=1e30 --set lr_scheduler.warmup_steps=0");

    (void)state;
    assert_int_equal(r.status, 1);
    assert_has(r.err, "grad_norm");
    assert_null(strstr(r.err, "-nan"));
    r = run("train %R --set adamw.lr=1e30 --set lr_scheduler.warmup_steps=0 "
            "--set training.non_finite=skip");
    assert_int_equal(r.status, 0);
    assert_has(slurp("out/metrics.jsonl"), "\"skipped\": true");
}

/* ---- standard output ---- */

/* The exit status of `ctitan ARGUMENTS`, which may redirect. */
static int status_of(const char *arguments)
{
    int status = system(ct_arena_printf(&arena, "cd %s && '%s' %s", folder, program, arguments));

    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void lost_output_is_a_failure(void **state)
{
    static const char *const all[] = {"--help", "--version", "help", "plugins", "help training"};

    (void)state;
    for (size_t i = 0; i < CT_COUNT(all); i++) {
        const char *command = ct_arena_printf(&arena, "%s >/dev/full 2>err.txt", all[i]);

        assert_int_equal(status_of(command), 1);
        assert_has(slurp("err.txt"), "ctitan: stdout: ");
    }
}

static void files_are_not_written_in_the_place_of_closed_streams(void **state)
{
    char *metrics;

    (void)state;
    assert_int_equal(status_of("train r.ini --set job.dump_folder=closed <&- >&- 2>&-"), 0);
    assert_string_equal(slurp("closed/lock"), "");
    metrics = slurp("closed/metrics.jsonl");
    while (*metrics)
        json_decref(line_object(&metrics));
}

/* Megatron's files. In the second step each token is a document of its own, so it predicts none. */
static void write_unlabelled_batch(void)
{
    enum { BATCH = 64, STEPS = 9, DOCUMENTS = BATCH + 2 };
    FILE *out = fopen(ct_arena_printf(&arena, "%s/masked.bin", folder), "w");
    FILE *index = fopen(ct_arena_printf(&arena, "%s/masked.idx", folder), "w");
    int64_t at = 0;

    for (int i = 0; i < BATCH * STEPS; i++)
        fputc(i * i % 61, out);
    fwrite("MMIDIDX\0\0\1\0\0\0\0\0\0\0\1", 1, 18, index);
    fwrite((uint64_t[]){DOCUMENTS, 0}, sizeof(uint64_t), 2, index);
    for (int pointers = 0; pointers < 2; pointers++)
        for (int i = 0; i < DOCUMENTS; i++) {
            int32_t length = i == 0 ? BATCH : i <= BATCH ? 1 : BATCH * (STEPS - 2);

            fwrite(pointers ? (void *)&at : (void *)&length, pointers ? 8 : 4, 1, index);
            at += pointers ? length : 0;
        }
    assert_int_equal(fclose(out), 0);
    assert_int_equal(fclose(index), 0);
}

#define MASKED "train %R --set tokens.path=masked.bin --set tokens.document_mask=true "

/* The loss of a step of the last run. */
static double loss_of(int step)
{
    double loss = NAN;

    for (char *text = slurp("out/metrics.jsonl"); *text;) {
        json_t *object = line_object(&text);

        if (number(object, "step") == step && json_is_number(json_object_get(object, "loss")))
            loss = number(object, "loss");
        json_decref(object);
    }
    return loss;
}

static void a_batch_without_labels_is_a_case_of_non_finite(void **state)
{
    const char *plugins = run("plugins").out;
    struct result r;
    double skipped;

    (void)state;
    write_unlabelled_batch();
    r = run(MASKED "--set metrics.log_freq=1");
    assert_int_equal(r.status, 1);
    assert_has(r.err, "step 2: every label of its batch is masked, so there is no loss ([training] "
                      "non_finite = skip");
    r = run(MASKED "--set metrics.log_freq=1 --set training.non_finite=skip "
                   "--set tokens.validation_path=masked.bin --set validation.freq=3 "
                   "--set validation.steps=4");
    assert_int_equal(r.status, 0);
    assert_has(r.err, "step 2 skipped: every label of its batch is masked");
    skipped = loss_of(3);
    /* The 64 tokens of the first document have 63 labels, the 64 that follow have none. */
    assert_has(slurp("out/metrics.jsonl"), "\"validation_tokens\": 63}");
    if (!strstr(plugins, "\nckpt "))
        skip();
    r = run(MASKED "--set metrics.log_freq=1 --set training.non_finite=rewind --with ckpt "
                   "--set ckpt.interval=1");
    assert_int_equal(r.status, 0);
    /* The weights of step 1 on the third batch, both times. */
    assert_true(loss_of(2) == skipped);
}

static void rewinding_needs_checkpoints(void **state)
{
    struct result r = run("train %R --set training.non_finite=rewind");

    (void)state;
    assert_int_equal(r.status, 2);
    assert_has(r.err, "non_finite = rewind needs a plugin that can go back: load ckpt");
}

static void former_metrics_are_kept(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(run("train %R --set training.steps=1 --set job.dump_folder=twice").status,
                         0);
    assert_has(slurp("twice/metrics-before.jsonl"), "{\"step\": 1, ");
    assert_has(slurp("twice/metrics-before-2.jsonl"), "{\"step\": 1, ");
}

#define SAVES                                                                                      \
    "train %R --set training.steps=1 --set model.save_to=owner/model --set job.dump_folder="

static void shell(const char *command)
{
    if (system(ct_arena_printf(&arena, "cd %s && %s", folder, command)))
        fail_msg("%s", command);
}

/* A run that begins anew keeps the model of the run before; nobody else may replace one. */
static void models_of_other_runs_are_not_replaced(void **state)
{
    static const char *const same[] = {
        SAVES "owner --set model.init_from=owner/model/",
        SAVES "owner --set model.init_from=owner/../owner/model",
        SAVES "owner --set model.init_from=link",
    };
    struct result r = run(SAVES "owner");

    (void)state;
    assert_int_equal(r.status, 0);
    shell("cp owner/model/model.safetensors first");
    assert_int_equal(run(SAVES "owner --set training.seed=5").status, 0);
    shell("cmp first owner/model-before/model.safetensors && ! cmp -s first "
          "owner/model/model.safetensors");
    r = run(SAVES "other");
    assert_int_equal(r.status, 2);
    assert_has(r.err,
               "[model] save_to = owner/model: the folder has a model that this run did not write");
    shell("ln -s owner/model link && ! cmp -s first owner/model/model.safetensors");
    for (size_t i = 0; i < CT_COUNT(same); i++) {
        r = run(same[i]);
        assert_int_equal(r.status, 2);
        assert_has(r.err, "it is the folder of [model] init_from");
    }
    assert_int_equal(run(SAVES "other --set model.overwrite=true").status, 0);
    shell("cmp first owner/model/model.safetensors && rm link");
}

static void a_run_that_goes_on_replaces_its_own_model(void **state)
{
    (void)state;
    for (int steps = 1; steps < 3; steps++) {
        assert_int_equal(run(ct_arena_printf(&arena,
                                             "train %%R --with ckpt --set training.steps=%d --set "
                                             "job.dump_folder=goes_on --set model.save_to=outside",
                                             steps))
                             .status,
                         0);
        shell(ct_arena_printf(&arena, "cp outside/model.safetensors after-%d", steps));
    }
    shell("! cmp -s after-1 after-2 && [ ! -e outside-before ]");
    assert_int_equal(
        run("train %R --with ckpt --set training.steps=3 --set job.dump_folder=elsewhere "
            "--set model.save_to=outside")
            .status,
        2);
    shell("cmp after-2 outside/model.safetensors");
}

static void the_models_folder_follows_the_dump_folder(void **state)
{
    (void)state;
    shell("sed -e 's/^\\[model\\]/&\\nsave_to = home\\/at\\/model/' -e 's/^dump_folder.*//' "
          "-e 's/^\\[job\\]/&\\ndump_folder = .\\/home\\/\\/at\\//' r.ini > follows.ini");
    assert_int_equal(
        run("train follows.ini --set training.steps=1 --set job.dump_folder=moved").status, 0);
    shell("[ -e moved/model/config.json ] && [ ! -e home ]");
    assert_int_equal(run("train follows.ini --set training.steps=1 --set job.dump_folder=again "
                         "--set model.save_to=home/at/model")
                         .status,
                     0);
    shell("[ -e home/at/model/config.json ] && [ ! -e again/model ]");
}

static void exported_and_imported_folders_are_replaced_if_forced(void **state)
{
    static const struct {
        const char *command, *expected;
    } cases[] = {
        {"export goes_on exported",
         "exported has a model already: give another folder, or --force"},
        {"import exported imported",
         "there is imported/step-0 already: give another folder, or --force"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct result r = run(cases[i].command);

        assert_int_equal(r.status, 0);
        r = run(cases[i].command);
        assert_int_equal(r.status, 2);
        assert_has(r.err, cases[i].expected);
        assert_int_equal(run(ct_arena_printf(&arena, "%s --force", cases[i].command)).status, 0);
    }
}

static void a_limit_of_file_sizes_is_a_failure_to_write(void **state)
{
    struct result r;

    (void)state;
    r.status = system(ct_arena_printf(
        &arena,
        "cd %s && (ulimit -f 0; '%s' train r.ini --set metrics.log_freq=1 2>&1 | cat)"
        " | grep -q 'File too large'",
        folder, program));
    assert_int_equal(r.status, 0);
}

/* Address space is limited so that a run that is not refused harms nothing. */
static void a_run_that_does_not_fit_is_refused(void **state)
{
    const char *large = "--set training.local_batch_size=16777216 --set "
                        "training.global_batch_size=-1";
    struct result r = run(ct_arena_printf(&arena, "plan %%R %s", large));

    (void)state;
    assert_int_equal(r.status, 0);
    assert_has(r.out, "it does not fit: this machine has ");
    assert_null(strstr(run("plan %R").out, "fit"));
    r.status = system(ct_arena_printf(&arena,
                                      "cd %s && ulimit -v 16000000 && '%s' train r.ini %s "
                                      "2>err.txt",
                                      folder, program, large));
    assert_int_equal(WEXITSTATUS(r.status), 2);
    assert_has(slurp("err.txt"), "the plan needs 1.");
    assert_has(slurp("err.txt"), "this machine has (within the limits of this process) ");
    assert_has(slurp("err.txt"), " of memory: lower [training] local_batch_size");
}

/* The address space of each rank has room for one plan, but not for two. */
static void a_limit_of_each_process_is_not_that_of_all_ranks(void **state)
{
    const char *two = "-n 2 --with local --with fsdp --set training.local_batch_size=10000 --set "
                      "training.global_batch_size=-1";
    int status = system(ct_arena_printf(
        &arena,
        "cd %s && bytes=$('%s' plan r.ini %s | sed -n 's/^memory per rank.*(\\([0-9,]*\\) "
        ".*/\\1/p' | "
        "tr -d ,) && ulimit -v $((bytes * 3 / 2 / 1024)) && '%s' plan r.ini %s >out.txt 2>err.txt",
        folder, program, two, program, two));

    (void)state;
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_has(slurp("out.txt"), "memory per rank: ");
    assert_null(strstr(slurp("out.txt"), "not fit"));
}

static void options_without_effect_are_refused(void **state)
{
    static const struct {
        const char *arguments, *expected;
    } cases[] = {
        {"--set lr_scheduler.decay_ratio=0 --set lr_scheduler.min_lr_factor=0.1",
         "[lr_scheduler] min_lr_factor has no effect: decay_ratio = 0 means no decay"},
        {"--with ckpt --set ckpt.keep_latest_k=0 --set ckpt.keep_every=3",
         "[ckpt] keep_every has no effect: all are kept: set keep_latest_k"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        char arguments[256];
        struct result r;

        snprintf(arguments, sizeof(arguments), "train %%R %s", cases[i].arguments);
        r = run(arguments);
        assert_int_equal(r.status, 2);
        assert_has(r.err, cases[i].expected);
    }
}

static void options_without_effect_are_reported(void **state)
{
    static const struct {
        const char *arguments, *expected;
    } cases[] = {
        {"plan %R --with sac --set sac.save_ops=linear",
         "[sac] save_ops has no effect: it is for mode = op"},
        {"plan %R --with sac --set sac.mode=none --set sac.budget=0.1",
         "[sac] budget has no effect: it is for mode = budget"},
        {"plan %R --with sac --set sac.mode=none --set sac.measure=true",
         "[sac] measure has no effect: it is for mode = budget or auto"},
        {"plan %R --with sac --set sac.mode=none --set sac.budget=0.1 --set sac.every=3",
         "--set: [sac] budget has no effect: it is for mode = budget, and mode is none"},
        {"plan %R --set model.ignore=some_key", "[model] ignore has no effect: set init_from"},
        {"train %R --with profile --set profile.steps=3:8 --set training.steps=2",
         "[profile] steps has no effect: the run ends before"},
        {"train %R --with ema --set ema.validate=true --set training.steps=1",
         "[ema] validate = true has no effect: nothing is validated"},
    };

    (void)state;
    for (size_t i = 0; i < CT_COUNT(cases); i++) {
        struct result r = run(cases[i].arguments);

        assert_int_equal(r.status, 0);
        assert_has(r.err, cases[i].expected);
    }
    assert_null(strstr(run("plan %R --with sac --set sac.mode=op --set sac.save_ops=linear "
                           "--set sac.budget=0.5")
                           .err,
                       "no effect"));
}

static void the_recipe_chooses_the_instructions_before_the_environment(void **state)
{
    struct result r;

    (void)state;
    setenv("CTITAN_CPU_ISA", "foo", 1);
    r = run("plan %R");
    assert_int_equal(r.status, 2);
    assert_has(r.err, "$CTITAN_CPU_ISA = foo: this CPU runs auto, portable");
    r = run("plan %R --set cpu.isa=portable");
    assert_int_equal(r.status, 0);
    assert_has(r.err, "[cpu] isa = portable is used, and not $CTITAN_CPU_ISA = foo");
    unsetenv("CTITAN_CPU_ISA");
}

static void products_that_are_not_there_are_refused(void **state)
{
    struct result r = run("plan %R --set cpu.products=own --set cpu.isa=portable");

    (void)state;
    assert_int_equal(r.status, 0);
    r = run("plan %R --set cpu.bf16_matmul=native --set cpu.isa=portable");
    assert_int_equal(r.status, 2);
    assert_has(r.err, "[cpu] bf16_matmul = native: this CPU has no bfloat16 products; use auto");
    r = run("plan %R --set cpu.products=emulated --set cpu.bf16_matmul=widen");
    assert_int_equal(r.status, 2);
    assert_has(r.err, "[cpu] products = emulated: bf16_matmul = widen leaves");
}

/* Plans with little memory, to err.txt; it has to be refused. */
static void refuse_batches(const char *sets)
{
    int status = system(ct_arena_printf(
        &arena,
        "cd %s && ulimit -v 6000000 && '%s' plan r.ini --set training.local_batch_size=1 %s "
        "2>err.txt",
        folder, program, sets));

    assert_int_equal(WEXITSTATUS(status), 2);
    assert_has(slurp("err.txt"), ": use fewer microbatches");
}

static void too_many_microbatches_are_refused_before_they_take_memory(void **state)
{
    (void)state;
    refuse_batches("--set training.global_batch_size=1000000");
    assert_has(slurp("err.txt"), "1000000 microbatches through");
    /* Each level would fit. */
    refuse_batches("--set training.global_batch_size=160000 --set training.steps=100 --set "
                   "training.batch_ramp=80000:80000:400000");
    assert_has(slurp("err.txt"), "the stage from step 6 on");
    assert_has(slurp("err.txt"), "GiB of validation and other stages");
    assert_has(run("plan %R").out, "\nhost objects per rank: ");
}

/* A parent may ignore SIGCHLD; its children inherit that. */
static void ends_of_ranks_are_seen_whatever_the_parent_ignores(void **state)
{
    int status =
        system(ct_arena_printf(&arena,
                               "cd %s && timeout -s KILL 60 env --ignore-signal=CHLD '%s' train "
                               "r.ini -n 2 --with local --with fsdp --set "
                               "training.steps=1 2>err.txt",
                               folder, program));

    (void)state;
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_warm_up_longer_than_the_run_is_reported(void **state)
{
    const char *said = "warmup_steps = 9 is more than the 7 steps of the run";

    (void)state;
    assert_has(run("train %R --set lr_scheduler.warmup_steps=9").err, said);
    assert_null(strstr(run("train %R").err, "warmup_steps"));
}

/* Three steps of a schedule of ten, and three more after them. */
static void a_run_is_the_beginning_of_its_schedule(void **state)
{
    static const double factors[] = {0.5, 1, 1, 7.0 / 8, 6.0 / 8, 5.0 / 8};
    const char *train = "train %R --with ckpt --set ckpt.interval=3 --set metrics.log_freq=1 "
                        "--set lr_scheduler.total_steps=10";
    char *text, *whole;

    (void)state;
    for (int steps = 3; steps <= 6; steps += 3)
        assert_int_equal(run(ct_arena_printf(&arena,
                                             "%s --set training.steps=%d --set "
                                             "job.dump_folder=parts",
                                             train, steps))
                             .status,
                         0);
    assert_int_equal(
        run(ct_arena_printf(&arena, "%s --set training.steps=6 --set job.dump_folder=whole", train))
            .status,
        0);
    text = slurp("parts/metrics.jsonl");
    whole = slurp("whole/metrics.jsonl");
    for (size_t i = 0; i < CT_COUNT(factors); i++) {
        json_t *object = line_object(&text), *same = line_object(&whole);

        assert_true(fabs(number(object, "lr") - 8e-4 * factors[i]) < 1e-15);
        assert_true(number(object, "loss") == number(same, "loss"));
        json_decref(object);
        json_decref(same);
    }
    assert_string_equal(text, "");
}

static void runs_are_compared_without_metrics_of_their_own(void **state)
{
    struct result r = run("compare %R r.ini --without metrics --with profile --set "
                          "profile.steps=20 --runs 1 --steps 3");

    (void)state;
    if (r.status)
        fail_msg("compare: %s", r.err);
}

/* ---- looking without running ---- */

static double last_loss(const char *arguments)
{
    struct result r = run(arguments);
    char *text;
    json_t *object = NULL;
    double loss;

    if (r.status)
        fail_msg("ctitan %s: %s", arguments, r.err);
    for (text = slurp("out/metrics.jsonl"); *text;) {
        json_decref(object);
        object = line_object(&text);
    }
    loss = number(object, "loss");
    json_decref(object);
    return loss;
}

static void two_ranks_train_as_one(void **state)
{
    const char *plugins = run("plugins").out;
    double one, two;

    (void)state;
    if (!strstr(plugins, "\nfsdp ") || !strstr(plugins, "\nlocal "))
        skip();
    one = last_loss("train %R");
    two = last_loss("train %R -n 2 --with local --with fsdp --set training.local_batch_size=1");
    assert_true(fabs(one - two) < 1e-5 * one);
    assert_null(strstr(slurp("err.txt"), "[rank 1]"));
}

/* The only technique without a degree takes the ranks that are left, and the recipe of the run says
   so. A start that is refused leaves that file alone. */
static void ranks_that_are_left_are_taken(void **state)
{
    const char *plugins = run("plugins").out, *taken = "; the ranks that were left";
    struct result r;
    double one, two;

    (void)state;
    if (!strstr(plugins, "\ntp ") || !strstr(plugins, "\nlocal "))
        skip();
    one = last_loss("train %R");
    two = last_loss("train %R -n 2 --with local --with tp");
    assert_true(fabs(one - two) < 1e-5 * one);
    assert_has(slurp("err.txt"), "tp takes the 2 ranks that are left: [tp] degree = 2\n");
    assert_has(slurp("out/recipe.ini"), taken);
    r = run("train %R -n 2 --with local --with tp --set tp.degree=1");
    assert_int_equal(r.status, 2);
    assert_has(r.err, "add --set tp.degree=2");
    assert_has(slurp("out/recipe.ini"), taken);
    r = run("train out/recipe.ini -n 2");
    assert_int_equal(r.status, 0);
    assert_null(strstr(r.err, "that are left"));
    r = run("plan %R -n 8 --with tp,cp --set cp.degree=2 --set training.local_batch_size=2");
    assert_has(r.err, "tp takes the 4 ranks that are left: [tp] degree = 4\n");
}

static void explain_shows_the_graph_after_each_transform(void **state)
{
    struct result r = run("explain %R");

    (void)state;
    assert_int_equal(r.status, 0);
    assert_string_equal(r.err, "");
    assert_has(r.out, "differentiate");
    assert_has(r.out, "adamw");
    assert_has(r.out, "layers.1");
    r = run("explain %R --dump-after differentiate");
    assert_int_equal(r.status, 0);
    assert_has(r.out, "differentiate");
    assert_null(strstr(r.out, "adamw.m"));
    assert_int_equal(run("explain %R --set plugins.load=cpu,llama,tokens,adamw").status, 2);
    r = run("explain %R --with metrics --set plugins.load=cpu,llama,tokens,adamw");
    assert_string_equal(r.err, ""); /* the recipe has a section [metrics] */
    assert_int_equal(r.status, 0);
    r = run("explain %R --set training.skip=join_pointwise,update");
    assert_int_equal(r.status, 2);
    assert_has(r.err, "[training] skip: no run can do without update");
    r = run("explain %R -n 2 --with local --with cp --set cp.degree=2 "
            "--set training.skip=cp.ring");
    assert_int_equal(r.status, 2);
    assert_has(r.err, "[training] skip: no run can do without cp.ring");
}

static void explain_prints_kernels(void **state)
{
    struct result r = run("explain %R --with fuse --set training.skip=join_pointwise "
                          "--set fuse.cache=kernels --dump-kernels");

    (void)state;
    assert_int_equal(r.status, 0);
    assert_has(r.out, "/* fused: add, rms_norm; ");
    assert_has(r.out, "FOR_ROWS(i) {");
    assert_null(strstr(r.out, "# after"));
    r = run("explain %R --dump-kernels");
    assert_int_equal(r.status, 2);
    assert_has(r.err, "does not load: add --with fuse");
}

/* The curve of memory over the step, its peak, and the categories at the peak say the same. */
static void plan_explains_the_peak(void **state)
{
    json_t *plan = json_loads(run("plan %R --json").out, 0, NULL), *at;
    const json_t *over = json_object_get(plan, "over_step"), *points;
    const json_t *peak = json_object_get(plan, "peak");
    double sum = 0, most = 0, largest = 0;
    const char *name;
    size_t largest_at;

    (void)state;
    points = json_object_get(over, "points");
    json_object_foreach(json_object_get(plan, "memory"), name, at) sum += number(at, "at_peak");
    for (size_t n = 0; n < json_array_size(points); n++) {
        const json_t *point = json_array_get(points, n);
        double total = 0;

        for (size_t c = 1; c < json_array_size(point); c++)
            total += json_number_value(json_array_get(point, c));
        most = fmax(most, total);
        if (json_integer_value(json_array_get(point, 0)) == (json_int_t)number(peak, "instruction"))
            assert_true(total == number(peak, "bytes"));
    }
    assert_true(most > 0 && most == number(peak, "bytes") && most == sum);
    assert_true(most <= number(plan, "memory_peak_bytes"));
    json_array_foreach(json_object_get(peak, "largest"), largest_at, at) largest +=
        number(at, "bytes");
    assert_true(largest > 0 && largest < most);
    json_decref(plan);
}

static void plan_shows_memory_and_instructions(void **state)
{
    struct result r = run("plan %R");

    (void)state;
    assert_int_equal(r.status, 0);
    assert_has(r.out, "parameters");
    assert_has(r.out, "activations");
    assert_has(r.out, "FLOPs per token");
    assert_has(r.out, "\nthe peak is at instruction ");
    /* 100 ranks share 64 rows: the last has none. */
    r = run("plan %R --world 100 --rank 99 --with fsdp --set training.global_batch_size=-1");
    if (r.status)
        fail_msg("%s", r.err);
    r = run("plan %R --world 16384 --rank 16383 --with fsdp "
            "--set training.global_batch_size=-1");
    if (r.status)
        fail_msg("%s", r.err);
    r = run("plan %R --world 4 --with fsdp --set training.global_batch_size=-1");
    assert_has(r.out, "sent per step by this rank");
    assert_has(r.out, "\n  reduce_scatter     dp_shard ");
    r = run("plan %R --program");
    assert_int_equal(r.status, 0);
    assert_has(r.out, "linear");
}

/* A host of two memory nodes, in the folder "host". */
static void make_host(void)
{
    const char *script = "nodes=%s/host/sys/devices/system/node && "
                         "mkdir -p $nodes/node0 $nodes/node1 && cd $nodes && echo 0-1 >online && "
                         "echo 0 >has_memory && echo 0-3 >node0/cpulist && echo 4-5 >node1/cpulist";

    assert_int_equal(system(ct_arena_printf(&arena, script, folder)), 0);
}

static void doctor_measures_the_machine(void **state)
{
    struct result r;

    (void)state;
    make_host();
    assert_int_equal(setenv("CTITAN_SYSTEM_ROOT", ct_arena_printf(&arena, "%s/host", folder), 1),
                     0);
    assert_int_equal(setenv("OMP_NUM_THREADS", "1", 1), 0);
    assert_int_equal(setenv("CTITAN_PLUGIN_PATH", loud_plugins, 1), 0); /* one of them crashes */
    r = run("doctor");
    assert_int_equal(unsetenv("CTITAN_PLUGIN_PATH"), 0);
    assert_int_equal(unsetenv("OMP_NUM_THREADS"), 0);
    assert_int_equal(unsetenv("CTITAN_SYSTEM_ROOT"), 0);
    assert_int_equal(r.status, 2);
    assert_has(r.err, "1 plugin cannot be loaded");
    assert_has(r.out,
               "falls_early  loading it ends the process by signal 11 (Segmentation fault)\n");
    assert_has(r.out, "nodes       0: 4 threads, 1: 2 threads without memory\n");
    assert_has(r.out, "placement   a rank's threads node by node");
    assert_has(r.out, ", 1 thread, ");
    assert_has(r.out, "processor");
    assert_has(r.out, "adamw        loads");
    assert_has(r.out, "matrix product, float32");
    assert_has(r.out, "FLOP/s");
    assert_has(r.out, "memory bandwidth");
    assert_has(r.out, " GB/s");
    r = run("doctor --describe mine.ini %R --set metrics.peak_tflops=1 --set "
            "training.steps=1000000 --set describe.steps=3");
    assert_int_equal(r.status, 0);
    assert_has(r.out, "mine.ini describes this machine; use it as --device ./mine.ini");
    assert_has(slurp("mine.ini"), "[rate.");
    assert_has(slurp("mine.ini"), ", 1 rank, 3 steps.");
    assert_int_equal(setenv("XDG_CACHE_HOME", folder, 1), 0);
    r = run("doctor --describe this %R --set metrics.peak_tflops=1");
    assert_int_equal(unsetenv("XDG_CACHE_HOME"), 0);
    assert_int_equal(r.status, 0);
    assert_has(r.out, "/ctitan/devices/this.ini describes this machine; use it as --device this");
    assert_has(slurp("ctitan/devices/this.ini"), "[rate.");
    r = run("doctor --describe none.ini %R --set adamw.lrr=1");
    assert_int_equal(r.status, 2);
    assert_has(r.err, "measuring: ");
    assert_has(r.err, "did you mean lr?");
}

static int make(void **state)
{
    FILE *out;

    (void)state;
    if (!mkdtemp(folder))
        return -1;
    out = fopen(ct_arena_printf(&arena, "%s/r.ini", folder), "w");
    fprintf(out, recipe, folder, folder);
    fclose(out);
    out = fopen(ct_arena_printf(&arena, "%s/tokens.bin", folder), "w");
    for (uint32_t i = 0; i < 16 * 4 * 20 + 1; i++)
        fwrite(&(uint32_t){i * i % 61}, sizeof(uint32_t), 1, out);
    return fclose(out);
}

static int clean(void **state)
{
    int rc = system(ct_arena_printf(&arena, "rm -rf %s", folder));

    (void)state;
    ct_arena_finish(&arena);
    return rc;
}

static void verbs_of_plugins_are_run_and_explained(void **state)
{
    struct result r;

    (void)state;
    setenv("CTITAN_PLUGIN_PATH", verb_plugins, 1);
    r = run("i");
    assert_int_equal(r.status, 0);
    r = run("help i");
    assert_int_equal(r.status, 0);
    assert_has(r.out, "usage: ctitan i ARGUMENT");
    assert_has(r.out, "Does nothing");
    r = run("help");
    assert_has(r.out, "Does nothing (needy)");
    r = run("wave");
    assert_int_equal(r.status, 2);
    assert_has(r.err, "plugins good and twin both have a verb wave");
    unsetenv("CTITAN_PLUGIN_PATH");
}

/* A folder's files hide those beside the program. */
static void a_verb_or_a_format_of_a_plugin_that_cannot_be_read_is_said(void **state)
{
    struct result r;

    (void)state;
    shell("mkdir no_format no_verb && echo rubbish | tee no_format/ckpt.so > no_verb/hf.so");
    setenv("CTITAN_PLUGIN_PATH", ct_arena_printf(&arena, "%s/no_format", folder), 1);
    r = run("export goes_on exported");
    assert_has(r.err, "no plugin that was found has one; plugin ckpt, which may have one, cannot "
                      "be read: ");
    assert_has(r.err, "ckpt.so: ");
    setenv("CTITAN_PLUGIN_PATH", ct_arena_printf(&arena, "%s/no_verb", folder), 1);
    r = run("export goes_on exported");
    assert_int_equal(r.status, 2);
    assert_has(r.err, "no verb export; ");
    assert_has(r.err, "1 plugin, which may have it, cannot be read: `ctitan plugins` says why");
    shell("mkdir no_verb/verbs && echo dancer > no_verb/verbs/dance");
    r = run("dance goes_on");
    assert_int_equal(r.status, 2);
    assert_has(r.err, "the verb dance comes with the plugin dancer: no plugin named dancer");
    unsetenv("CTITAN_PLUGIN_PATH");
}

static void only_plugins_that_have_a_verb_are_loaded_for_it(void **state)
{
    const char *broken = ct_arena_printf(&arena, "%s/broken", folder);
    FILE *out;
    struct result r;

    (void)state;
    assert_int_equal(mkdir(broken, 0777), 0);
    out = fopen(ct_arena_printf(&arena, "%s/rubbish.so", broken), "w");
    assert_non_null(out);
    fputs("no library, and nothing of verbs", out);
    assert_int_equal(fclose(out), 0);
    setenv("CTITAN_PLUGIN_PATH",
           ct_arena_printf(&arena, "%s:%s:%s", broken, loud_plugins, verb_plugins), 1);
    assert_int_equal(
        system(ct_arena_printf(&arena, "head -c 1024 %s/loud.so >%s/cut.so", loud_plugins, broken)),
        0);
    r = run("schedule 9f9b --ranks 2 --microbatches 4");
    assert_int_equal(r.status, 2);
    assert_has(r.err, "no schedule 9f9b");
    assert_null(strstr(r.err, "loud is loaded"));
    r = run("plan %R --with cut");
    assert_int_equal(r.status, 2);
    assert_has(r.err, "/cut.so: a truncated file: it has 1024 of ");
    r = run("shout");
    assert_int_equal(r.status, 0);
    assert_string_equal(r.out, "here\n");
    assert_has(r.err, "loud is loaded");
    r = run("wave");
    assert_has(r.err, "plugins good and twin both have a verb wave");
    assert_null(strstr(r.err, "loud is loaded"));
    assert_null(strstr(run("help").err, "loud is loaded"));
    assert_null(strstr(run("help shout").err, "loud is loaded"));
    assert_null(strstr(run("help --man").err, "loud is loaded"));
    r = run("plugins");
    assert_null(strstr(r.err, "loud is loaded"));
    assert_has(r.out, "\nrubbish");
    assert_has(r.out, " unusable ");
    assert_has(r.out, "rubbish.so: not a shared object");
    assert_has(r.out, "\nloud ");
    r = run("juggle");
    assert_int_equal(r.status, 2);
    assert_has(r.err, "no verb juggle; `ctitan help` lists them. ");
    assert_has(r.err, "cannot be read: `ctitan plugins` says why");
    r = run(ct_arena_printf(&arena, "plan %%R --with %s/rubbish.so", broken));
    assert_int_equal(r.status, 2);
    assert_has(r.err, ": build the plugin again, or name another file");
    unsetenv("CTITAN_PLUGIN_PATH");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_end_with_status_2_and_say_what),
        cmocka_unit_test(help_is_made_from_the_tables),
        cmocka_unit_test(every_verb_has_help),
        cmocka_unit_test(verbs_of_plugins_are_run_and_explained),
        cmocka_unit_test(a_verb_or_a_format_of_a_plugin_that_cannot_be_read_is_said),
        cmocka_unit_test(only_plugins_that_have_a_verb_are_loaded_for_it),
        cmocka_unit_test(training_logs_what_was_planned),
        cmocka_unit_test(the_resolved_recipe_trains_the_same),
        cmocka_unit_test(generating_says_whose_weights_it_takes),
        cmocka_unit_test(without_metrics_only_the_last_line_is_said),
        cmocka_unit_test(a_recipe_comes_from_a_pipe),
        cmocka_unit_test(validation_is_logged),
        cmocka_unit_test(validation_that_ends_early_says_so_once),
        cmocka_unit_test(a_batch_without_labels_is_a_case_of_non_finite),
        cmocka_unit_test(rewinding_needs_checkpoints),
        cmocka_unit_test(former_metrics_are_kept),
        cmocka_unit_test(models_of_other_runs_are_not_replaced),
        cmocka_unit_test(a_run_that_goes_on_replaces_its_own_model),
        cmocka_unit_test(the_models_folder_follows_the_dump_folder),
        cmocka_unit_test(exported_and_imported_folders_are_replaced_if_forced),
        cmocka_unit_test(a_limit_of_file_sizes_is_a_failure_to_write),
        cmocka_unit_test(data_that_ends_ends_the_run_well),
        cmocka_unit_test(validation_data_of_less_than_a_batch_is_refused),
        cmocka_unit_test(a_run_that_fails_has_status_1),
        cmocka_unit_test(lost_output_is_a_failure),
        cmocka_unit_test(files_are_not_written_in_the_place_of_closed_streams),
        cmocka_unit_test(a_run_that_does_not_fit_is_refused),
        cmocka_unit_test(a_limit_of_each_process_is_not_that_of_all_ranks),
        cmocka_unit_test(options_without_effect_are_refused),
        cmocka_unit_test(options_without_effect_are_reported),
        cmocka_unit_test(the_recipe_chooses_the_instructions_before_the_environment),
        cmocka_unit_test(products_that_are_not_there_are_refused),
        cmocka_unit_test(too_many_microbatches_are_refused_before_they_take_memory),
        cmocka_unit_test(ends_of_ranks_are_seen_whatever_the_parent_ignores),
        cmocka_unit_test(a_warm_up_longer_than_the_run_is_reported),
        cmocka_unit_test(a_run_is_the_beginning_of_its_schedule),
        cmocka_unit_test(runs_are_compared_without_metrics_of_their_own),
        cmocka_unit_test(two_ranks_train_as_one),
        cmocka_unit_test(ranks_that_are_left_are_taken),
        cmocka_unit_test(explain_shows_the_graph_after_each_transform),
        cmocka_unit_test(explain_prints_kernels),
        cmocka_unit_test(plan_shows_memory_and_instructions),
        cmocka_unit_test(plan_explains_the_peak),
        cmocka_unit_test(doctor_measures_the_machine),
    };

    if (argc != 4) {
        fprintf(stderr, "usage: %s PROGRAM FOLDER-OF-PLUGINS-WITH-VERBS FOLDER-OF-LOUD\n", *argv);
        return 2;
    }
    program = realpath(argv[1], NULL);
    verb_plugins = realpath(argv[2], NULL);
    loud_plugins = realpath(argv[3], NULL);
    return cmocka_run_group_tests(tests, make, clean);
}
