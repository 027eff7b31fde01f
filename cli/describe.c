/*
 * doctor --describe: measures this machine and writes a description of it (lib/machine.h).
 *
 * The plugin describe measures, while a recipe trains. Without a recipe, it is the debug model in
 * bfloat16 on random tokens; several ranks shard it by fsdp, and then each has all of it, since
 * products with gathered weights and with prepared ones are different calls.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/machine.h>
#include <ctitan/lib/measure.h>
#include <ctitan/recipe.h>
#include <ctitan/rng.h>

#include "child.h"
#include "cli.h"

#define TOKENS 65536
#define VOCABULARY 2048 /* of the debug model */

static const char own_recipe[] = "[plugins]\n"
                                 "load = cpu, llama, tokens, adamw, metrics%s\n"
                                 "[model]\n"
                                 "name = llama\n"
                                 "flavor = debug\n"
                                 "[training]\n"
                                 "seq_len = 256\n"
                                 "local_batch_size = 8\n"
                                 "steps = 12\n"
                                 "mixed_precision_param = bfloat16\n"
                                 "[tokens]\n"
                                 "path = %s\n"
                                 "[metrics]\n"
                                 "log_freq = 1\n";

static int write_recipe(struct args *args, const char *folder)
{
    uint32_t *token = ct_arena_array(&args->arena, uint32_t, TOKENS);
    const char *tokens = ct_arena_printf(&args->arena, "%s/tokens", folder);
    const char *text =
        ct_arena_printf(&args->arena, own_recipe, args->ranks > 1 ? ", local, fsdp" : "",
                        ct_recipe_quote(&args->arena, tokens));
    int rc;

    for (uint32_t i = 0; i < TOKENS; i++)
        token[i] = ct_philox(1, 1, i).v[0] % VOCABULARY;
    rc = ct_file_write(tokens, token, TOKENS * sizeof(*token));
    args->path = ct_arena_printf(&args->arena, "%s/recipe.ini", folder);
    return rc == 0 ? ct_file_write(args->path, text, strlen(text)) : rc;
}

/* Do the streams of a rank share its processors? Then one thread runs them all while it measures,
   as computing beside communication would be counted with what that takes. */
static int shares_processors(struct args *args, bool *shares)
{
    struct ct_recipe *recipe;
    int rc = args->ranks > 1 ? args_read(args, &recipe) : 0;

    *shares = false;
    for (size_t i = 0; rc == 0 && args->ranks > 1 && i < recipe->plugin_count; i++)
        *shares |= !strcmp(recipe->plugins[i], "cpu");
    return rc;
}

/* set: more settings, which NULL ends. */
static int measure(struct args *args, const char *folder, const char *file, const char *const *set)
{
    struct ct_arena *arena = &args->arena;
    struct argv argv = {0};
    struct child child;
    const char *last;
    bool shares;
    int status, rc = shares_processors(args, &shares);

    if (rc < 0)
        return rc;
    argv_add(arena, &argv, "ctitan", "train", args->path, "--set", "describe.steps=10");
    args_changes(args, &argv);
    argv_add(arena, &argv, "--with", "describe", "--set",
             ct_recipe_assign(arena, "describe.file", file), "--set",
             ct_recipe_assign(arena, "job.dump_folder", ct_arena_printf(arena, "%s/run", folder)),
             "--set", "model.save_to=");
    if (shares)
        argv_add(arena, &argv, "--set", "cpu.streams=in_order");
    for (; *set; set++)
        argv_add(arena, &argv, "--set", *set);
    if (args->ranks > 1)
        argv_add(arena, &argv, "-n", ct_arena_printf(arena, "%lld", (long long)args->ranks));
    rc = child_start(THIS_PROGRAM, argv.list, 0, &child);
    if (rc < 0)
        return rc;
    status = child_finish(arena, &child, NULL, &last);
    if (status != 0)
        return ct_fail(status == 2 ? CT_ECONFIG : CT_EINVAL, "measuring: %s", last);
    return 0;
}

/* The path of the description: `name`, or where one of that name is kept, in a folder that is
   there then. */
static int find_file(struct ct_arena *arena, const char *name, const char **file)
{
    char *folder;

    *file = ct_machine_is_name(name) ? ct_machine_kept(arena, name) : name;
    if (!*file)
        return ct_fail(CT_ECONFIG,
                       "--describe %s: HOME, where it would be kept, is not set: give a path",
                       name);
    if (*file == name)
        return 0;
    folder = ct_arena_strdup(arena, *file);
    *strrchr(folder, '/') = '\0';
    return ct_file_make_folder(folder);
}

/* ---- what else the machine did ---- */

/* Warn if other processes took a notable share of the processors since `from`. */
static void warn_of_load(const struct ct_load *from)
{
    struct ct_load now = ct_load_now(ct_load_children());
    double others = ct_load_others(from, &now);

    if (others > CT_LOAD_NOTABLE)
        fprintf(stderr,
                "warning: other processes took %.0f %% of the processors meanwhile: the times are "
                "too long; measure again when nothing else runs\n",
                100 * others);
}

int describe_machine(struct args *args, const char *name)
{
    char *folder = scratch_folder(&args->arena, "describe");
    const char *file, *none = NULL;
    struct ct_load load = ct_load_now(ct_load_children());
    bool own = !args->path;
    int rc = folder ? find_file(&args->arena, name, &file) : CT_EIO;

    if (rc == 0 && own)
        rc = write_recipe(args, folder);
    if (rc == 0) {
        fprintf(stderr, "measuring while %s trains on %lld rank%s; nothing else should run now\n",
                strncmp(args->path, folder, strlen(folder)) ? args->path : "the debug model",
                (long long)(args->ranks ? args->ranks : 1),
                ct_plural(args->ranks ? args->ranks : 1));
        rc = measure(args, folder, file, &none);
    }
    if (rc == 0 && own && args->ranks > 1)
        rc = measure(args, folder, file,
                     (const char *[]){"fsdp.shard_degree=1",
                                      ct_arena_printf(&args->arena, "fsdp.replicate_degree=%lld",
                                                      (long long)args->ranks),
                                      "describe.add=true", NULL});
    if (rc == 0)
        warn_of_load(&load);
    if (rc == 0)
        printf("%s describes this machine%s; use it as --device %s%s\n", file,
               args->ranks > 1 ? ", its ranks filling it" : "",
               strchr(name, '/') || file != name ? "" : "./", name);
    scratch_remove(folder);
    return rc;
}
