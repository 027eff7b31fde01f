/*
 * Checks that all ranks run the same. Each rank writes its program, its plugins, its options, and
 * hashes of what it reads as text, one to a line. If the texts differ, the error says which plugins
 * a rank lacks, or else shows the first line that differs.
 */
#include <dlfcn.h>
#include <link.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/plugin.h>
#include <ctitan/recipe.h>
#include <ctitan/rng.h>
#include <ctitan/run.h>
#include <ctitan/text.h>

#include "run/stages.h"

#define READS "reads " /* begins a line about data or a file */

static void print_options(const char *section, const struct ct_option *options, const void *config,
                          struct ct_arena *arena, FILE *out)
{
    for (const struct ct_option *o = options; o && o->name; o++)
        fprintf(out, "[%s] %s = %s\n", section, o->name, ct_option_text(o, config, arena));
}

/* A file that was loaded, by its contents. */
static void print_file(const char *path, FILE *out)
{
    const void *base;
    size_t size;

    if (ct_file_map(path, &base, &size) == 0) {
        fprintf(out, " of a file with hash %016" PRIx64, (uint64_t)XXH3_64bits(base, size));
        ct_file_unmap(base, size);
    }
    fputc('\n', out);
}

/* The libraries of ctitan that are loaded: "libctitan", "libctitan-lib". */
static int print_library(struct dl_phdr_info *info, size_t size, void *out)
{
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;

    (void)size;
    if (strncmp(name, "libctitan", strlen("libctitan")))
        return 0;
    fprintf(out, "%.*s", (int)strcspn(name, "."), name);
    print_file(info->dlpi_name, out);
    return 0;
}

/* The stages of the recipe. */
static void print_stages(FILE *out)
{
    for (size_t k = 1; k < ct_stage_count(); k++)
        fprintf(out, "[stage] begin = %lld: %s\n", (long long)ct_stage_at(k)->begin,
                ct_stage_at(k)->what);
}

char *ct_recipe_setup(struct ct_arena *arena)
{
    const struct ct_recipe_section *section;
    const struct ct_plugin *plugin;
    char *text = NULL;
    Dl_info info;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return NULL;
    dl_iterate_phdr(print_library, out);
    for (size_t i = 0; (plugin = ct_plugin_at(i)); i++) {
        fprintf(out, "plugin %s %s", plugin->name, plugin->version);
        print_file(dladdr(plugin->name, &info) ? info.dli_fname : "", out);
    }
    for (size_t i = 0; (section = ct_recipe_section_at(i)) && section->name; i++)
        print_options(section->name, section->options, section->config, arena, out);
    for (size_t i = 0; (plugin = ct_plugin_at(i)); i++)
        print_options(plugin->name, plugin->options, plugin->config, arena, out);
    print_stages(out);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

static void print_data(const struct ct_run *run, const struct ct_data *data, const char *kind,
                       FILE *out)
{
    const struct ct_offer *offer = ct_offer_at(CT_DATA, 0);
    int64_t documents, tokens;
    uint64_t hash;

    if (!data || !run->data_ops->identity)
        return;
    hash = run->data_ops->identity(data, &documents, &tokens);
    fprintf(out, READS "the %s of [%s]: hash %016" PRIx64, kind, offer->name, hash);
    if (documents >= 0)
        fprintf(out, ", %lld document%s", (long long)documents, ct_plural(documents));
    if (tokens >= 0)
        fprintf(out, ", %lld token%s", (long long)tokens, ct_plural(tokens));
    fputc('\n', out);
}

/* Append what is read for the samples. */
static void print_reads(const struct ct_run *run, FILE *out)
{
    for (size_t k = 1; k < ct_run_stage_count(run); k++)
        if (ct_stage_at(k)->own_data)
            print_data(run, ct_run_stage_data(run, k),
                       ct_arena_printf(&((struct ct_run *)(uintptr_t)run)->arena,
                                       "data from step %lld on", (long long)ct_stage_at(k)->begin),
                       out);
    if (run->tokenizer && run->tokenizer->identity)
        fprintf(out, READS "the tokenizer: hash %016" PRIx64 "\n", run->tokenizer->identity());
    print_data(run, run->data, "data", out);
    print_data(run, run->validation_data, "validation data", out);
    for (size_t i = 0; i < run->set_count; i++)
        print_data(run, run->sets[i].data,
                   ct_arena_printf(&((struct ct_run *)(uintptr_t)run)->arena, "validation data %s",
                                   run->sets[i].name),
                   out);
}

struct digest {
    uint64_t hash, length;
};

/* The name in a line "plugin NAME VERSION .."; NULL: it is another line. */
static const char *plugin_in(const char *line, size_t *length)
{
    const char *name = line + strlen("plugin ");

    if (strncmp(line, "plugin ", strlen("plugin ")) != 0)
        return NULL;
    *length = strcspn(name, " \n");
    return name;
}

static const char *next_line(const char *line)
{
    line += strcspn(line, "\n");
    return line + (*line != '\0');
}

static bool has_plugin(const char *setup, const char *wanted, size_t length)
{
    const char *name;
    size_t n;

    for (; *setup; setup = next_line(setup))
        if ((name = plugin_in(setup, &n)) && n == length && !memcmp(name, wanted, n))
            return true;
    return false;
}

int ct_recipe_lacks(const char *setup, const char *other, char *text, size_t room)
{
    struct ct_line line = {text, room, 0};
    const char *name;
    size_t length;
    int count = 0;

    ct_line_add(&line, "%s", "");
    for (; *other; other = next_line(other))
        if ((name = plugin_in(other, &length)) && !has_plugin(setup, name, length))
            ct_line_add(&line, "%s%.*s", count++ ? ", " : "", (int)length, name);
    return count;
}

static int complain_of_plugins(const char *first, const char *other, int rank)
{
    char by_first[256], by_other[256];
    int a = ct_recipe_lacks(first, other, by_first, sizeof(by_first));
    int b = ct_recipe_lacks(other, first, by_other, sizeof(by_other));
    char text[640];
    struct ct_line line = {text, sizeof(text), 0};

    if (a == 0 && b == 0)
        return 0;
    if (a > 0)
        ct_line_add(&line, "rank 0 lacks %s", by_first);
    if (b > 0)
        ct_line_add(&line, "%srank %d lacks %s", a > 0 ? ", " : "", rank, by_other);
    return ct_fail(CT_ECONFIG,
                   "the ranks were started with different plugins: %s; start all with the same "
                   "[plugins] load and --with",
                   text);
}

/* Both begin with the line that differs; the shorter text may have none left. */
static int complain_of_line(const char *first, const char *other, int rank)
{
    size_t skip = strlen(READS);
    bool reads = !strncmp(*first ? first : other, READS, skip);
    const char *by_first = *first ? first + (reads ? skip : 0) : "no more";
    const char *by_other = *other ? other + (reads ? skip : 0) : "no more";

    return ct_fail(CT_ECONFIG, "%s: rank 0 has %.*s, rank %d %.*s%s",
                   reads ? "the ranks read different files" : "ranks run different recipes",
                   (int)strcspn(by_first, "\n"), by_first, rank, (int)strcspn(by_other, "\n"),
                   by_other, reads ? "; give all hosts the same files" : "");
}

/* Report which plugins a rank lacks, or else the first line that differs. */
static int complain(const char *first, const char *other, int rank)
{
    size_t line = 0;
    int rc = complain_of_plugins(first, other, rank);

    if (rc < 0)
        return rc;
    for (size_t i = 0; first[i] && first[i] == other[i]; i++)
        if (first[i] == '\n')
            line = i + 1;
    return complain_of_line(first + line, other + line, rank);
}

static int show(struct ct_group *world, const char *mine, const struct digest *all, int rank,
                struct ct_arena *arena)
{
    char *texts[2];
    int rc = 0;

    for (int i = 0; rc == 0 && i < 2; i++) {
        int root = i ? rank : 0;

        texts[i] = ct_arena_array(arena, char, all[root].length + 1);
        if (world->position == root)
            memcpy(texts[i], mine, all[root].length);
        rc = ct_group_broadcast(world, texts[i], all[root].length, CT_U8, root);
    }
    return rc < 0 ? rc : complain(texts[0], texts[1], rank);
}

int ct_run_compare(struct ct_run *run, const char *text)
{
    struct digest mine = {ct_rng_stream(text), strlen(text)}, *all;
    struct ct_group *world = run->world_group;
    int rc;

    if (run->world == 1)
        return 0;
    all = ct_arena_array(&run->arena, struct digest, run->world);
    rc = ct_group_all_gather(world, &mine, all, sizeof(mine), CT_U8);
    for (int64_t r = 1; rc == 0 && r < run->world; r++)
        if (memcmp(&all[r], &all[0], sizeof(mine)) != 0)
            rc = show(world, text, all, (int)r, &run->arena);
    return rc;
}

int ct_recipe_compare(struct ct_run *run, const char *files)
{
    char *text = NULL, *setup = ct_recipe_setup(&run->arena);
    size_t size;
    FILE *out = setup ? open_memstream(&text, &size) : NULL;
    int rc;

    if (out) {
        fprintf(out, "%s%s", setup, files ? files : "");
        print_reads(run, out);
    }
    rc = out && fclose(out) == 0 ? ct_run_compare(run, text)
                                 : ct_fail(CT_ENOMEM, "a list of all options");
    free(text);
    free(setup);
    return rc;
}
