/*
 * doctor --describe: measures this machine and writes a description of it (lib/machine.h).
 *
 * The plugin describe measures, while a recipe trains. Without a recipe, it is the debug model in
 * bfloat16 on random tokens; several ranks shard it by fsdp.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/file.h>
#include <ctitan/lib/machine.h>
#include <ctitan/lib/rng.h>

#include "child.h"
#include "cli.h"

#define TOKENS 65536
#define VOCABULARY 2048 /* of the debug model */

static const char recipe[] = "[plugins]\n"
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
                             "path = %s/tokens\n"
                             "[metrics]\n"
                             "log_freq = 1\n";

static int write_recipe(struct args *args, const char *folder)
{
    uint32_t *token = ct_arena_array(&args->arena, uint32_t, TOKENS);
    const char *text =
        ct_arena_printf(&args->arena, recipe, args->ranks > 1 ? ", local, fsdp" : "", folder);
    int rc;

    for (uint32_t i = 0; i < TOKENS; i++)
        token[i] = ct_philox(1, 1, i).v[0] % VOCABULARY;
    rc = ct_file_write(ct_arena_printf(&args->arena, "%s/tokens", folder), token,
                       TOKENS * sizeof(*token));
    args->path = ct_arena_printf(&args->arena, "%s/recipe.ini", folder);
    return rc == 0 ? ct_file_write(args->path, text, strlen(text)) : rc;
}

static int measure(struct args *args, const char *folder, const char *file)
{
    size_t changes = args_changes(args, NULL), n = 3;
    const char **argv = ct_arena_array(&args->arena, const char *, changes + 12), *last;
    struct child child;
    int status, rc;

    memcpy(argv, ((const char *[]){"ctitan", "train", args->path}), n * sizeof(*argv));
    n += args_changes(args, argv + n);
    memcpy(argv + n, ((const char *[]){"--with", "describe", "--set"}), 3 * sizeof(*argv));
    argv[n + 3] = ct_arena_printf(&args->arena, "describe.file=%s", file);
    argv[n + 4] = "--set";
    argv[n + 5] = ct_arena_printf(&args->arena, "job.dump_folder=%s/run", folder);
    if (args->ranks > 1) {
        argv[n + 6] = "-n";
        argv[n + 7] = ct_arena_printf(&args->arena, "%lld", (long long)args->ranks);
    }
    rc = child_start(argv, 0, &child);
    if (rc < 0)
        return rc;
    status = child_finish(&args->arena, &child, NULL, &last);
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

int describe_machine(struct args *args, const char *name)
{
    char *folder = scratch_folder(&args->arena, "describe");
    const char *file;
    int rc = folder ? find_file(&args->arena, name, &file) : CT_EIO;

    if (rc == 0 && !args->path)
        rc = write_recipe(args, folder);
    if (rc == 0) {
        fprintf(stderr, "measuring while %s trains on %lld rank%s; nothing else should run now\n",
                strncmp(args->path, folder, strlen(folder)) ? args->path : "the debug model",
                (long long)(args->ranks ? args->ranks : 1), args->ranks > 1 ? "s" : "");
        rc = measure(args, folder, file);
    }
    if (rc == 0)
        printf("%s describes this machine%s; use it as --device %s%s\n", file,
               args->ranks > 1 ? ", its ranks filling it" : "",
               strchr(name, '/') || file != name ? "" : "./", name);
    scratch_remove(folder);
    return rc;
}
