/*
 * `ctitan new KIND NAME`: writes a folder with a plugin that builds and passes `ctitan check`, as a
 * starting point. It is an example of the kind, from the folder examples/, under another name.
 */
#include <ctype.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/option.h>
#include <ctitan/plugins.h>

#include "cli.h"

#define EXAMPLE_MOST ((size_t)1 << 20)

/* The name of such an example stands in strings only, so that any other name makes sense there. */
#define KINDS(X)                                                                                   \
    X(model, palm)                                                                                 \
    X(op, squareplus)                                                                              \
    X(transform, cse)                                                                              \
    X(optimizer, sgd)                                                                              \
    X(lr_schedule, inverse_root)                                                                   \
    X(data, counting)                                                                              \
    X(tokenizer, digraphs)                                                                         \
    X(schedule, eager_1f1b)                                                                        \
    X(axis, pod)                                                                                   \
    X(hook, section_times)                                                                         \
    X(device, plain)                                                                               \
    X(compiler, scalar)                                                                            \
    X(communicator, sockets)                                                                       \
    X(order, forwards_first)                                                                       \
    X(verb, defaults)                                                                              \
    X(objective, token_weights)

static const struct {
    const char *kind, *example;
} kinds[] = {
#define X(kind, example) {#kind, #example},
    KINDS(X)
#undef X
};

/* An op with kernels for both devices. Its name begins words of C, too. */
#define CUDA_EXAMPLE "softsign"

struct request {
    struct ct_arena arena;
    const char *kind, *name;
    bool cuda;
};

static const struct ct_argument arguments[] = {
#define X(kind, example) "|" #kind
    CT_ARG_CHOSEN(struct request, kind, "KIND", &KINDS(X)[1], "What the plugin is to offer"),
#undef X
    CT_ARG_WORD(
        struct request, name, "NAME",
        "The new plugin's name: small letters, digits and _; a folder of this name is made"),
    CT_ARG_FLAG(struct request, cuda, "cuda", 0,
                "Of an op: kernels for each instruction set of CPUs, and for CUDA"),
    {0}};

static const char *find_example(const struct request *r)
{
    for (size_t i = 0; !r->cuda && i < CT_COUNT(kinds); i++)
        if (!strcmp(kinds[i].kind, r->kind))
            return kinds[i].example;
    return CUDA_EXAMPLE;
}

static int check_cuda(const struct request *r)
{
    if (!r->cuda)
        return 0;
    if (strcmp(r->kind, "op") != 0)
        return ct_fail(CT_ECONFIG, "new: --cuda is for ops, and not for the kind %s", r->kind);
    if (isdigit((unsigned char)*r->name))
        return ct_fail(CT_ECONFIG,
                       "%s: with --cuda a name begins with a letter, as functions bear it",
                       r->name);
    return 0;
}

/* ---- files ---- */

/* The folder of the examples: beside the program in a build tree, below share/ if installed. make
   is the command that finds the headers there. */
static int find_folder(struct ct_arena *arena, const char **folder, const char **make)
{
    static const char *const places[] = {"examples", CT_DATA_FOLDER "/examples"};
    char program[PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", program, sizeof(program) - 1);

    program[size < 0 ? 0 : size] = '\0';
    if (strrchr(program, '/'))
        *strrchr(program, '/') = '\0';
    *make = "make";
    if (access(ct_arena_printf(arena, "%s/meson-uninstalled", program), F_OK) == 0)
        *make = ct_arena_printf(arena, "PKG_CONFIG_PATH=%s/meson-uninstalled make", program);
    for (size_t i = 0; i < CT_COUNT(places); i++) {
        *folder = ct_arena_printf(arena, "%s/%s", program, places[i]);
        if (access(*folder, R_OK) == 0)
            return 0;
    }
    return ct_fail(CT_ENOENT,
                   "new: the examples, from which plugins are made, are not in %s; "
                   "the Debian package ctitan-dev has them",
                   *folder);
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* text with `from` replaced where it is a word, or begins one like "sgd_op" or "sgd.m". Returns the
   size of *out, in arena. */
static size_t rename_words(const char *text, size_t size, const char *from, const char *to,
                           struct ct_arena *arena, char **out)
{
    size_t old = strlen(from), new = strlen(to), used = 0;

    *out = ct_arena_alloc(arena, size * (new / old + 1) + new + 1);
    for (size_t i = 0; i < size;) {
        bool found = i + old <= size && !memcmp(text + i, from, old) &&
                     !(i && is_word(text[i - 1])) &&
                     !(i + old < size && isalnum((unsigned char)text[i + old]));

        memcpy(*out + used, found ? to : text + i, found ? new : 1);
        used += found ? new : 1;
        i += found ? old : 1;
    }
    return used;
}

static int copy_file(struct ct_arena *arena, const char *from, const char *to, const char *example,
                     const char *name)
{
    char *text, *renamed;
    size_t size;
    int rc = ct_file_read(arena, from, EXAMPLE_MOST, &text, &size);

    if (rc < 0)
        return rc;
    size = rename_words(text, size, example, name, arena, &renamed);
    return ct_file_write(to, renamed, size);
}

static int check_name(const char *name)
{
    char path[PATH_MAX];

    if (strlen(name) > 64)
        return ct_fail(CT_ECONFIG, "%.64s..: a plugin's name has at most 64 characters", name);
    for (const char *c = name; *c; c++)
        if (!islower((unsigned char)*c) && !isdigit((unsigned char)*c) && *c != '_')
            return ct_fail(CT_ECONFIG,
                           "%s: a plugin's name consists of lower-case letters, digits and _",
                           name);
    if (!*name)
        return ct_fail(CT_ECONFIG, "new: a plugin needs a name");
    if (access(name, F_OK) == 0)
        return ct_fail(CT_ECONFIG, "%s exists already", name);
    if (ct_plugin_path(name, path, sizeof(path)) == 0)
        return ct_fail(CT_ECONFIG, "there is a plugin %s, %s: give the new one another name", name,
                       path);
    return 0;
}

/* The file of that ending, if the example has it. */
static int copy_if_there(struct ct_arena *arena, const char *folder, const char *example,
                         const char *name, const char *ending)
{
    const char *from = ct_arena_printf(arena, "%s/%s/%s%s", folder, example, example, ending);

    return access(from, F_OK)
               ? 0
               : copy_file(arena, from, ct_arena_printf(arena, "%s/%s%s", name, name, ending),
                           example, name);
}

static int write_plugin(struct ct_arena *arena, const char *example, const char *name)
{
    static const char *const endings[] = {".c", ".h", "_cpu.c", ".cu"};
    const char *folder, *make;
    int rc = find_folder(arena, &folder, &make);

    if (rc == 0)
        rc = ct_file_make_folder(name);
    for (size_t i = 0; rc == 0 && i < CT_COUNT(endings); i++)
        rc = copy_if_there(arena, folder, example, name, endings[i]);
    if (rc == 0)
        rc = copy_file(arena, ct_arena_printf(arena, "%s/%s/Makefile", folder, example),
                       ct_arena_printf(arena, "%s/Makefile", name), example, name);
    if (rc == 0)
        printf("%s/%s.c is the example %s under its new name. `%s -C %s` builds it, `ctitan check "
               "%s/%s.so` tries it.\n",
               name, name, example, make, name, name, name);
    return rc;
}

static int new (int argc, char **argv)
{
    struct request r = {0};
    int rc = ct_arguments_parse(arguments, argc, argv, &r.arena, &r);

    if (rc == 0)
        rc = check_name(r.name);
    if (rc == 0)
        rc = check_cuda(&r);
    if (rc == 0)
        rc = write_plugin(&r.arena, find_example(&r), r.name);
    if (rc == 0 && r.cuda)
        printf("%s/%s.cu has its kernels for CUDA: `make -C %s check-simulated` tries them on the "
               "simulated GPU.\n",
               r.name, r.name, r.name);
    ct_arena_finish(&r.arena);
    return rc;
}

const struct verb verb_new = {
    .name = "new",
    .summary = "create a plugin that builds and passes its checks, to start from",
    .run = new,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan new optimizer my_sgd", "ctitan new model my_model",
                         "ctitan new op my_op --cuda"),
    .details = "It is one C file and a Makefile; with --cuda also a C file and a CUDA file of\n"
               "kernels, and a header. `make -C NAME` builds it, `ctitan check\n"
               "NAME/NAME.so` tries it, and CTITAN_PLUGIN_PATH=. makes it known by its name.\n"};
