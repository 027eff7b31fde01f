/*
 * `ctitan new schedule NAME`: writes a folder with a plugin that builds and passes `ctitan check`,
 * as a starting point.
 */
#include <ctype.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/file.h>

#include "cli.h"

/* @ stands for the plugin's name. */
static const char schedule_source[] =
    "/*\n"
    " * The pipeline schedule @: what each rank computes in a step, and in which order.\n"
    " *\n"
    " * F is the forward of a stage for one microbatch, B its backward. A backward can be given in "
    "two\n"
    " * parts: I, the gradients of its inputs, which the stage before waits for, and W, those of "
    "its\n"
    " * weights, any time later. Only the order within each rank is to be said; sends, receives "
    "and\n"
    " * everything else are added. `make`, then `ctitan check ./@.so` proves it over many numbers "
    "of\n"
    " * ranks, and `CTITAN_PLUGIN_PATH=. ctitan schedule @ --ranks 4 --microbatches 8` draws it.\n"
    " */\n"
    "#include <ctitan/error.h>\n"
    "#include <ctitan/plugin.h>\n"
    "#include <ctitan/lib/pipeline.h>\n"
    "\n"
    "static int generate(const struct ct_schedule_request *request, struct ct_action_list *lists)\n"
    "{\n"
    "    int ranks = request->ranks, microbatches = request->microbatches;\n"
    "\n"
    "    /* What cannot be done is refused with CT_ECONFIG, in words that help the user. */\n"
    "    if (microbatches < ranks)\n"
    "        return ct_fail(CT_ECONFIG, \"%d microbatches on %d ranks: at least %d are needed\",\n"
    "                       microbatches, ranks, ranks);\n"
    "    for (int rank = 0; rank < ranks; rank++) {\n"
    "        int forward = 0, ahead = ranks - rank; /* one forward, one backward, when it is full "
    "*/\n"
    "\n"
    "        for (int backward = 0; backward < microbatches; backward++) {\n"
    "            while (forward < microbatches && forward < backward + ahead)\n"
    "                ct_schedule_add(request, &lists[rank], CT_ACTION_F, rank, forward++);\n"
    "            ct_schedule_add(request, &lists[rank], CT_ACTION_B, rank, backward);\n"
    "        }\n"
    "    }\n"
    "    return 0;\n"
    "}\n"
    "\n"
    "static const struct ct_schedule_ops schedule = {\n"
    "    .size = sizeof(struct ct_schedule_ops),\n"
    "    .summary = \"one forward, one backward\",\n"
    "    .stages_per_rank_min = 1, /* with several, stage s is on rank s % ranks; */\n"
    "    .stages_per_rank_max = 1, /* .placement = ct_schedule_v, or your own, says otherwise */\n"
    "    .generate = generate,\n"
    "};\n"
    "\n"
    "CT_PLUGIN(.name = \"@\", .version = \"0.1\", .summary = \"Pipeline schedule @\",\n"
    "          .offers = CT_OFFERS({CT_SCHEDULE, \"@\", &schedule}));\n";

static const char makefile[] =
    "# Builds @.so against an installed ctitan.\n"
    "CFLAGS = -std=gnu11 -O2 -Wall -Wextra -fvisibility=hidden -fPIC\n"
    "\n"
    "@.so: @.c\n"
    "\t$(CC) $(CFLAGS) $(shell pkg-config --cflags ctitan) -shared -Wl,-z,defs -o $@@ $< "
    "$(shell pkg-config --libs ctitan)\n";

/* Write text to folder/file, with each @ replaced by name, and @@ by one @. */
static int write_file(struct ct_arena *arena, const char *name, const char *file, const char *text)
{
    size_t room = strlen(text) * (strlen(name) + 1) + 1, used = 0;
    char *out = ct_arena_alloc(arena, room);

    for (; *text; text++) {
        if (*text != '@')
            out[used++] = *text;
        else if (text[1] == '@')
            out[used++] = *text++;
        else {
            memcpy(out + used, name, strlen(name));
            used += strlen(name);
        }
    }
    return ct_file_write(ct_arena_printf(arena, "%s/%s", name, file), out, used);
}

static int check_name(const char *name)
{
    if (strlen(name) > 64)
        return ct_fail(CT_ECONFIG, "%.64s..: a plugin's name has at most 64 letters", name);
    for (const char *c = name; *c; c++)
        if (!islower((unsigned char)*c) && !isdigit((unsigned char)*c) && *c != '_')
            return ct_fail(CT_ECONFIG,
                           "%s: a plugin's name has lower-case letters, digits and _ only", name);
    if (!*name)
        return ct_fail(CT_ECONFIG, "new: a plugin needs a name");
    if (access(name, F_OK) == 0)
        return ct_fail(CT_ECONFIG, "%s is there already", name);
    return 0;
}

int verb_new(int argc, char **argv)
{
    struct ct_arena arena = {0};
    int rc;

    if (argc != 3)
        return ct_fail(CT_ECONFIG, "new: expected a kind and a name, as in `new schedule mine`");
    if (strcmp(argv[1], "schedule"))
        return ct_fail(CT_ECONFIG, "new knows one kind, schedule, and not %s", argv[1]);
    rc = check_name(argv[2]);
    if (rc == 0)
        rc = ct_file_make_folder(argv[2]);
    if (rc == 0)
        rc = write_file(&arena, argv[2], ct_arena_printf(&arena, "%s.c", argv[2]), schedule_source);
    if (rc == 0)
        rc = write_file(&arena, argv[2], "Makefile", makefile);
    if (rc == 0)
        printf("%s/%s.c and %s/Makefile: `make -C %s`, then `ctitan check %s/%s.so`\n", argv[2],
               argv[2], argv[2], argv[2], argv[2], argv[2]);
    ct_arena_finish(&arena);
    return rc;
}
