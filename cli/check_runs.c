/*
 * `ctitan check`: runs. A small model is trained for a few steps with the plugin: on one rank, on
 * several meshes, and resumed from a checkpoint. Each run is a process `ctitan train` of its own,
 * with a recipe and random tokens in a temporary folder.
 *
 * What is compared depends on what the plugin is. One that brings a model, an optimizer, data or a
 * learning-rate schedule is its own measure: every mesh must have one rank's losses. Anything else
 * must not change what is computed: a run with it has the losses of a run without it. A run that is
 * refused (exit status 2, before its first step) is reported and does not count as wrong.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/model.h>
#include <ctitan/recipe.h>
#include <ctitan/rng.h>

#include "check.h"
#include "child.h"

#define PATIENCE 120.0 /* seconds for one run */

struct mesh {
    const char *name;
    int ranks;
    const char *plugins[4], *sets[5];
    bool plan; /* only for models with a plan for tensor parallelism */
};

#define CP 2

static const struct mesh meshes[] = {
    {"fsdp on 2 ranks", 2, {"fsdp"}, {NULL}, false},
    {"tp on 2 ranks", 2, {"tp"}, {"tp.degree=2"}, true},
    [CP] = {"cp on 2 ranks", 2, {"cp"}, {"cp.degree=2"}, false},
    {"pp on 2 ranks", 2, {"pp"}, {"pp.degree=2", "pp.microbatch_size=1"}, false},
    {"fsdp x tp on 4 ranks", 4, {"fsdp", "tp"}, {"tp.degree=2"}, true},
    {"fsdp x pp on 4 ranks", 4, {"fsdp", "pp"}, {"pp.degree=2", "pp.microbatch_size=1"}, false},
};

struct outcome {
    int steps, status; /* exit status; 128 and a signal */
    double loss[CHECK_STEPS], norm[CHECK_STEPS], lr[CHECK_STEPS];
    const char *why; /* the last line of its messages */
};

/* ---- the recipe ---- */

/* Whether a plugin offers all that a run needs of a kind. */
static bool is_enough(const struct ct_plugin *plugin, enum ct_kind kind)
{
    for (const struct ct_offer *o = plugin->offers; o->kind != CT_NOTHING; o++)
        if (o->kind == kind)
            return kind != CT_OPTIMIZER || !((const struct ct_optimizer_ops *)o->ops)->takes;
    return false;
}

/* The plugin (if it takes part), or one of --with, that offers a kind; else the usual one. */
static const char *choose(const struct check *c, bool with, enum ct_kind kind, const char *usual)
{
    if (with && is_enough(c->plugin, kind))
        return c->path;
    for (size_t i = 0; ct_plugin_at(i); i++)
        if (ct_plugin_at(i) != c->plugin && is_enough(ct_plugin_at(i), kind))
            return ct_plugin_at(i)->name;
    return usual;
}

/* The name of the model that the runs train. */
static const char *model_name(const struct check *c)
{
    const struct ct_offer *offer = ct_offer_at(CT_MODEL, 0);

    for (const struct ct_offer *o = c->plugin->offers; o->kind != CT_NOTHING; o++)
        if (o->kind == CT_MODEL)
            return o->name;
    return offer ? offer->name : "llama";
}

static bool is_list(const char *list, const char *name)
{
    size_t n = strlen(name);

    for (const char *at = strstr(list, name); at; at = strstr(at + 1, name))
        if ((at == list || at[-1] == ' ') && (!at[n] || at[n] == ','))
            return true;
    return false;
}

static const char *listed(struct check *c, const char *list, const char *name)
{
    if (is_list(list, name) || (!strcmp(name, c->plugin->name) && is_list(list, c->path)))
        return list;
    return ct_arena_printf(&c->arena, "%s%s%s", list, *list ? ", " : "", name);
}

struct wanted {
    const struct check *check;
    const char *list;            /* of plugins */
    const char *quoted, *tokens; /* the list and the path of tokens, as a recipe takes them */
};

static void print_recipe(const void *object, FILE *out)
{
    const struct wanted *w = object;
    const struct check *c = w->check;

    fprintf(out,
            "[plugins]\nload = %s\n[model]\nname = %s\n"
            "[training]\nseq_len = %d\nlocal_batch_size = 2\nglobal_batch_size = 8\nsteps = %d\n"
            "mixed_precision_param = float32\n%s[metrics]\nlog_freq = 1\npeak_tflops = 1\n",
            w->quoted, model_name(c), CHECK_TOKENS, CHECK_STEPS,
            ct_offer_at(CT_LR_SCHEDULE, 0) ? "" : "[lr_scheduler]\nwarmup_steps = 2\n");
    if (is_list(w->list, c->path) && check_offers(c->plugin, CT_OBJECTIVE))
        fprintf(out, "[objective]\nname = %s\n", ct_offer_at(CT_OBJECTIVE, 0)->name);
    if (is_list(w->list, "llama"))
        fprintf(out,
                "[llama]\ndim = 32\nn_layers = 2\nn_heads = 4\nn_kv_heads = 2\n"
                "vocab_size = %d\n",
                check_offers(c->plugin, CT_DATA) ? 512 : CHECK_VOCABULARY);
    if (is_list(w->list, "tokens"))
        fprintf(out, "[tokens]\npath = %s\n", w->tokens);
}

static const char *list_plugins(struct check *c, bool with)
{
    const char *list = "";
    static const struct {
        enum ct_kind kind;
        const char *usual;
    } roles[] = {{CT_DEVICE, "cpu"},
                 {CT_COMMUNICATOR, "local"},
                 {CT_MODEL, "llama"},
                 {CT_DATA, "tokens"},
                 {CT_OPTIMIZER, "adamw"}};

    for (size_t i = 0; i < CT_COUNT(roles); i++)
        list = listed(c, list, choose(c, with, roles[i].kind, roles[i].usual));
    list = listed(c, list, "metrics");
    for (size_t i = 0; i < c->with.count; i++)
        list = listed(c, list, c->with.at[i]);
    return with ? listed(c, list, c->path) : list;
}

bool check_runs_load(struct check *c, const char *name)
{
    return is_list(list_plugins(c, true), name);
}

static int write_recipe(struct check *c, bool with, const char *path)
{
    const char *list = list_plugins(c, with);
    const char *tokens = ct_arena_printf(&c->arena, "%s/tokens", c->folder);

    return ct_file_print(path, print_recipe,
                         &(struct wanted){c, list, ct_recipe_quote(&c->arena, list),
                                          ct_recipe_quote(&c->arena, tokens)});
}

/* A Megatron file: its documents of 3 to 13 tokens begin within the sequences. */
static int write_documents(struct check *c, const uint32_t *tokens, size_t count)
{
    static const uint64_t version = 1, none;
    static const uint8_t int32 = 4;
    const char *base = ct_arena_printf(&c->arena, "%s/documents", c->folder);
    int32_t *length = ct_arena_array(&c->arena, int32_t, count);
    uint64_t *pointer = ct_arena_array(&c->arena, uint64_t, count), documents = 0;
    int rc = ct_file_write(ct_arena_printf(&c->arena, "%s.bin", base), tokens, 4 * count);
    FILE *out = rc == 0 ? fopen(ct_arena_printf(&c->arena, "%s.idx", base), "w") : NULL;

    for (size_t at = 0; at < count; at += (size_t)length[documents++]) {
        size_t next = 3 + documents * 5 % 11;

        length[documents] = (int32_t)(next < count - at ? next : count - at);
        pointer[documents] = 4 * at;
    }
    if (rc < 0 || !out)
        return rc < 0 ? rc : ct_fail(CT_EIO, "%s.idx cannot be written", base);
    fwrite("MMIDIDX\0", 1, 9, out);
    fwrite(&version, 8, 1, out);
    fwrite(&int32, 1, 1, out);
    fwrite(&documents, 8, 1, out);
    fwrite(&none, 8, 1, out);
    fwrite(length, 4, documents, out);
    fwrite(pointer, 8, documents, out);
    return fclose(out) == 0 ? 0 : ct_fail(CT_EIO, "%s.idx cannot be written", base);
}

static int make_folder(struct check *c)
{
    static uint32_t tokens[8192];
    int rc;

    c->folder = scratch_folder(&c->arena, "check");
    if (!c->folder)
        return CT_EIO;
    for (size_t i = 0; i < CT_COUNT(tokens); i++)
        tokens[i] = ct_philox(1, 2, i).v[0] % CHECK_VOCABULARY;
    rc = ct_file_write(ct_arena_printf(&c->arena, "%s/tokens", c->folder), tokens, sizeof(tokens));
    if (rc == 0)
        rc = write_documents(c, tokens, CT_COUNT(tokens));
    for (size_t i = CHECK_TOKENS; rc == 0 && i < CT_COUNT(tokens); i++)
        tokens[i] = tokens[i - CHECK_TOKENS];
    return rc == 0 ? ct_file_write(ct_arena_printf(&c->arena, "%s/same", c->folder), tokens,
                                   sizeof(tokens))
                   : rc;
}

/* For --set: the tokens of a file of the folder. */
static const char *set_tokens(struct check *c, const char *file)
{
    return ct_recipe_assign(&c->arena, "tokens.path",
                            ct_arena_printf(&c->arena, "%s/%s", c->folder, file));
}

void check_runs_finish(struct check *c)
{
    scratch_remove(c->folder);
}

/* ---- one run ---- */

/* The losses of a run; a later line of a step replaces an earlier one. */
static void read_metrics(const char *path, struct outcome *o)
{
    FILE *in = fopen(path, "r");
    char line[2048];

    o->steps = 0;
    while (in && fgets(line, sizeof(line), in)) {
        const char *loss = strstr(line, "\"loss\": "), *norm = strstr(line, "\"grad_norm\": "),
                   *lr = strstr(line, "\"lr\": ");
        int step = 0;

        if (sscanf(line, "{\"step\": %d", &step) != 1 || step < 1 || step > CHECK_STEPS || !loss ||
            !norm || !lr)
            continue;
        o->loss[step - 1] = strtod(loss + 8, NULL);
        o->norm[step - 1] = strtod(norm + 13, NULL);
        o->lr[step - 1] = strtod(lr + 6, NULL);
        o->steps = step > o->steps ? step : o->steps;
    }
    if (in)
        fclose(in);
}

static bool is_loaded(const struct check *c, const char *name)
{
    if (!strcmp(name, c->plugin->name))
        return true;
    for (size_t i = 0; i < c->with.count; i++)
        if (!strcmp(c->with.at[i], name))
            return true;
    return false;
}

static bool has_degree(const struct check *c)
{
    return check_offers(c->plugin, CT_AXIS) && c->plugin->options &&
           ct_option_find(c->plugin->options, "degree");
}

/* mesh NULL: one rank. extra: more arguments, ended by NULL. */
static int run_recipe(struct check *c, bool with, const struct mesh *mesh, const char *const *extra,
                      const char *dump, struct outcome *o)
{
    struct ct_arena *arena = &c->arena;
    struct argv a = {0};
    const char *recipe = ct_arena_printf(arena, "%s/recipe.ini", c->folder);
    const char *folder = ct_arena_printf(arena, "%s/%s", c->folder, dump);
    int ranks = mesh ? mesh->ranks : 1, rc = write_recipe(c, with, recipe);
    bool own_axis = false;
    struct child child;

    if (rc < 0)
        return rc;
    argv_add(arena, &a, "ctitan", "train", recipe, "--set",
             ct_recipe_assign(arena, "job.dump_folder", folder));
    for (int i = 0; mesh && i < 4 && mesh->plugins[i]; i++) {
        own_axis |= !strcmp(mesh->plugins[i], c->plugin->name);
        if (!with || !is_loaded(c, mesh->plugins[i]))
            argv_add(arena, &a, "--with", mesh->plugins[i]);
    }
    for (int i = 0; mesh && i < 5 && mesh->sets[i]; i++)
        argv_add(arena, &a, "--set", mesh->sets[i]);
    if (with && mesh && has_degree(c) && !own_axis) {
        ranks *= 2;
        argv_add(arena, &a, "--set", ct_arena_printf(arena, "%s.degree=2", c->plugin->name));
    }
    for (size_t i = 0; i < c->set_count; i++) {
        const char *dot = strchr(c->sets[i], '.');
        size_t n = dot ? (size_t)(dot - c->sets[i]) : 0;
        bool own = !strncmp(c->sets[i], c->plugin->name, n) && !c->plugin->name[n];

        if (with || !own)
            argv_add(arena, &a, "--set", c->sets[i]);
    }
    if (extra)
        argv_add_list(arena, &a, extra);
    if (ranks > 1)
        argv_add(arena, &a, "-n", ct_arena_printf(arena, "%d", ranks));
    rc = child_start(THIS_PROGRAM, a.list, PATIENCE, &child);
    if (rc < 0)
        return rc;
    o->status = child_finish(arena, &child, NULL, &o->why);
    if (!*o->why)
        o->why = "it printed nothing";
    read_metrics(ct_arena_printf(arena, "%s/metrics.jsonl", folder), o);
    return 0;
}

/* ---- comparing ---- */

static int fail_ended(const struct outcome *o)
{
    if (o->status > 128)
        return ct_fail(CT_EINVAL, "it was ended by signal %d, %s: %s", o->status - 128,
                       strsignal(o->status - 128), o->why);
    return ct_fail(CT_EINVAL, "it ended with status %d: %s", o->status, o->why);
}

static double apart(double a, double b)
{
    return a == b ? 0 : fabs(a - b) / fmax(fabs(a), fabs(b));
}

/* CT_EINVAL says at which step two runs differ by more than is tolerated. */
static int compare(const struct outcome *got, const struct outcome *want, double tolerance,
                   double *loss, double *norm)
{
    *loss = *norm = 0;
    if (got->status)
        return fail_ended(got);
    if (got->steps != want->steps)
        return ct_fail(CT_EINVAL, "it ran %d step%s instead of %d", got->steps,
                       ct_plural(got->steps), want->steps);
    for (int i = 0; i < got->steps; i++) {
        *loss = fmax(*loss, apart(got->loss[i], want->loss[i]));
        *norm = fmax(*norm, apart(got->norm[i], want->norm[i]));
        if (!isfinite(got->loss[i]) || *loss > tolerance)
            return ct_fail(CT_EINVAL, "the loss of step %d is %.9g, not %.9g", i + 1, got->loss[i],
                           want->loss[i]);
        if (*norm > tolerance)
            return ct_fail(CT_EINVAL, "the norm of the gradient in step %d is %.9g, not %.9g",
                           i + 1, got->norm[i], want->norm[i]);
    }
    return 0;
}

/* Said before the first step. Later it is a failure, whatever code a plugin returns. */
static bool is_refused(const struct outcome *o)
{
    return o->status == 2 && o->steps == 0;
}

/* Say how a run compares; a refusal is no failure. */
static void judge(struct check *c, const char *name, const struct outcome *got,
                  const struct outcome *want, const char *against, double tolerance)
{
    double loss, norm;
    int rc;

    if (is_refused(got)) {
        check_untried(c, name, got->why);
        return;
    }
    rc = compare(got, want, tolerance, &loss, &norm);
    if (rc < 0)
        check_result(c, rc, "%s, against %s", name, against);
    else
        check_result(c, rc, "%s: the losses of %s within %.1e, norms within %.1e", name, against,
                     loss, norm);
}

/* ---- the runs of a plugin ---- */

static bool is_own_measure(const struct ct_plugin *p)
{
    return check_offers(p, CT_MODEL) || check_offers(p, CT_OPTIMIZER) || check_offers(p, CT_DATA) ||
           check_offers(p, CT_LR_SCHEDULE) || check_offers(p, CT_OBJECTIVE);
}

bool check_has_runs(const struct ct_plugin *p)
{
    static const enum ct_kind kinds[] = {CT_TRANSFORM, CT_AXIS,         CT_HOOK,     CT_DEVICE,
                                         CT_ORDER,     CT_COMMUNICATOR, CT_TRANSPORT};

    for (size_t i = 0; i < CT_COUNT(kinds); i++)
        if (check_offers(p, kinds[i]))
            return true;
    return is_own_measure(p);
}

static bool has_plan(void)
{
    const struct ct_offer *model = ct_offer_at(CT_MODEL, 0);

    return !model || ((const struct ct_model_ops *)model->ops)->shard_plan;
}

static int check_losses(const struct outcome *one)
{
    if (one->status)
        return fail_ended(one);
    if (one->steps != CHECK_STEPS)
        return ct_fail(CT_EINVAL, "it ran %d step%s instead of %d", one->steps,
                       ct_plural(one->steps), CHECK_STEPS);
    for (int i = 0; i < CHECK_STEPS; i++)
        if (!isfinite(one->loss[i]) || !isfinite(one->norm[i]) || one->norm[i] <= 0)
            return ct_fail(CT_EINVAL, "step %d: loss %g, norm of the gradient %g", i + 1,
                           one->loss[i], one->norm[i]);
    return 0;
}

/* On samples that are all the same, the loss falls. */
static int check_optimizer(struct check *c)
{
    const char *const same[] = {"--set", set_tokens(c, "same"), NULL};
    struct outcome o;
    int rc = run_recipe(c, true, NULL, same, "optimizer", &o);

    if (rc == 0)
        rc = check_losses(&o);
    if (rc == 0 && !(o.loss[CHECK_STEPS - 1] < o.loss[0]))
        rc = ct_fail(CT_EINVAL,
                     "the loss goes from %.9g to %.9g although all samples are equal: it should "
                     "fall",
                     o.loss[0], o.loss[CHECK_STEPS - 1]);
    check_result(c, rc, "on one sample: the loss falls");
    return 0;
}

static void check_lr(struct check *c, const struct outcome *one)
{
    const struct ct_offer *offer = ct_offer_at(CT_LR_SCHEDULE, 0);
    int rc = 0;

    if (!check_offers(c->plugin, CT_LR_SCHEDULE) || one->status)
        return;
    for (int i = 0; rc == 0 && i < one->steps; i++) {
        const struct ct_lr_schedule_ops *ops = offer->ops;
        double got = one->lr[i] * ops->factor(0, CHECK_STEPS),
               want = one->lr[0] * ops->factor(i, CHECK_STEPS);

        if (apart(got, want) > 1e-12)
            rc = ct_fail(CT_EINVAL, "step %d has the learning rate %g", i + 1, one->lr[i]);
    }
    check_result(c, rc, "a run uses its learning rates");
}

/* Go on from step 2's checkpoint: the same losses, bit for bit. */
static int check_resume(struct check *c, bool with, const struct outcome *one)
{
    static const char *const save[] = {
        "--with", "ckpt", "--set", "ckpt.interval=2", "--set", "ckpt.async_mode=disabled", NULL};
    static const char *const load[] = {"--with", "ckpt",
                                       "--set",  "ckpt.interval=2",
                                       "--set",  "ckpt.async_mode=disabled",
                                       "--set",  "ckpt.load_step=2",
                                       NULL};
    struct outcome first, second;
    size_t own = is_loaded(c, "ckpt") ? 2 : 0;
    int rc = run_recipe(c, with, NULL, save + own, "resume", &first);

    if (rc == 0)
        rc = run_recipe(c, with, NULL, load + own, "resume", &second);
    if (rc < 0)
        return rc;
    if (first.status == 0)
        judge(c, "resumed from step 2", &second, one, "the whole run", 0);
    else
        judge(c, "with checkpoints", &first, one, "the run", 0);
    return 0;
}

static bool has_order(const struct mesh *mesh)
{
    for (size_t i = 0; i < CT_COUNT(mesh->plugins) && mesh->plugins[i]; i++)
        if (!strcmp(mesh->plugins[i], "pp"))
            return true;
    return false;
}

/* Why the plugin never runs on a mesh; NULL: it may. */
static const char *excluded(const struct check *c, const struct mesh *mesh)
{
    if (mesh->plan && !has_plan())
        return "the model has no shard_plan";
    if (check_offers(c->plugin, CT_ORDER) && has_order(mesh))
        return "pp gives a run its order, too, and a run has one";
    return NULL;
}

static int check_meshes(struct check *c, const struct outcome *one)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < CT_COUNT(meshes); i++) {
        const struct mesh *mesh = &meshes[i];
        const char *why;
        struct outcome got;

        why = excluded(c, mesh);
        if (why) {
            check_note(mesh->name, why);
            continue;
        }
        rc = run_recipe(c, true, mesh, NULL, ct_arena_printf(&c->arena, "mesh%zu", i), &got);
        if (rc == 0)
            judge(c, mesh->name, &got, one, "one rank", c->mesh_tolerance);
    }
    return rc;
}

/* Documents that begin within sequences: on one rank, and with sequences that are split. */
static int check_documents(struct check *c)
{
    static const struct mesh *const split = &meshes[CP];
    const char *const masked[] = {"--set", set_tokens(c, "documents.bin"), "--set",
                                  "tokens.document_mask=true", NULL};
    struct outcome one, got;
    bool own = is_own_measure(c->plugin);
    int rc;

    if (!is_list(list_plugins(c, true), "tokens"))
        return 0;
    rc = run_recipe(c, own, NULL, masked, "documents", &one);
    if (rc == 0 && !own) {
        rc = run_recipe(c, true, NULL, masked, "documents_with", &got);
        if (rc == 0)
            judge(c, "one rank, with documents", &got, &one, "a run without it", c->tolerance);
        one = got;
    }
    if (rc == 0)
        rc = run_recipe(c, true, split, masked, "documents_split", &got);
    if (rc == 0)
        judge(c, ct_arena_printf(&c->arena, "%s, with documents", split->name), &got, &one,
              "one rank", c->mesh_tolerance);
    return rc;
}

int check_runs(struct check *c)
{
    struct outcome without, one;
    int rc, failed = c->failed;

    if (!check_has_runs(c->plugin))
        return 0;
    rc = make_folder(c);
    if (rc == 0)
        rc = run_recipe(c, true, NULL, NULL, "one", &one);
    if (rc < 0)
        return rc;
    if (is_refused(&one)) {
        check_untried(c, "runs", one.why);
        return 0;
    }
    if (is_own_measure(c->plugin)) {
        rc = check_losses(&one);
        if (rc < 0)
            check_result(c, rc, "one rank");
        else
            check_result(c, rc, "one rank: the loss goes from %.5f to %.5f", one.loss[0],
                         one.loss[CHECK_STEPS - 1]);
    } else {
        rc = run_recipe(c, false, NULL, NULL, "without", &without);
        if (rc < 0)
            return rc;
        if (without.status)
            return ct_fail(CT_EINVAL, "a run without the plugin fails: %s", without.why);
        judge(c, "one rank", &one, &without, "a run without it", c->tolerance);
    }
    if (c->failed > failed && !is_own_measure(c->plugin) && one.status == 0)
        check_note("other losses by design",
                   "where the plugin changes what is trained, --tolerance 1 accepts them, and "
                   "meshes are compared with its own run on one rank");
    if (c->failed > failed) {
        check_note("meshes and checkpoints", "not tried, as the run on one rank is wrong already");
        return 0;
    }
    check_lr(c, &one);
    if (check_offers(c->plugin, CT_OPTIMIZER))
        rc = check_optimizer(c);
    if (rc == 0)
        rc = check_resume(c, true, &one);
    if (rc == 0)
        rc = check_documents(c);
    return rc == 0 ? check_meshes(c, &one) : rc;
}
