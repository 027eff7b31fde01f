/*
 * Facts about the machine, for `ctitan doctor`.
 */
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/host.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/measure.h>

#include "cli.h"
#include "doctor.h"

#define LOOK 0.3 /* seconds, at the load of the machine */

/* The value of the first "key : value" line of /proc/cpuinfo, in the arena; "" if there is none. */
static const char *cpuinfo(struct ct_arena *arena, const char *key)
{
    FILE *in = fopen("/proc/cpuinfo", "r");
    const char *found = "";
    char *line = NULL;
    size_t room = 0;

    while (in && !*found && getline(&line, &room, in) > 0) {
        char *colon = strchr(line, ':');

        if (!colon || strncmp(line, key, strlen(key)) || !strchr("\t :", line[strlen(key)]))
            continue;
        line[strcspn(line, "\n")] = '\0';
        found = ct_arena_strdup(arena, colon[1] ? colon + 2 : "");
    }
    free(line);
    if (in)
        fclose(in);
    return found;
}

static bool has_word(const char *text, const char *word)
{
    size_t length = strlen(word);

    for (; *text; text += strcspn(text, " ") + strspn(text + strcspn(text, " "), " "))
        if (strcspn(text, " ") == length && !strncmp(text, word, length))
            return true;
    return false;
}

static void find_features(struct ct_arena *arena, struct machine_facts *m)
{
    static const char *const wanted[] = {"avx2",        "fma",      "avx512f",  "avx512_bf16",
                                         "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8",
                                         "asimd",       "asimdhp",  "bf16",     "sve"};
    const char *flags = cpuinfo(arena, "flags");

    if (!*flags)
        flags = cpuinfo(arena, "Features");
    for (size_t i = 0; i < CT_COUNT(wanted) && m->feature_count < CT_COUNT(m->feature); i++)
        if (has_word(flags, wanted[i]))
            m->feature[m->feature_count++] = wanted[i];
}

/* The word of the system's setting, or NULL. */
static const char *huge_pages(struct ct_arena *arena)
{
    FILE *in = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    char line[128] = "", *chosen = NULL, *end = NULL;

    if (in && fgets(line, sizeof(line), in)) {
        chosen = strchr(line, '[');
        end = chosen ? strchr(chosen, ']') : NULL;
    }
    if (in)
        fclose(in);
    if (!end)
        return NULL;
    *end = '\0';
    return ct_arena_strdup(arena, chosen + 1);
}

static double others_share(void)
{
    struct ct_load before = ct_load_now(ct_load_job(false)), after;

    ct_nap(LOOK);
    after = ct_load_now(ct_load_job(false));
    return ct_load_others(&before, &after);
}

void machine_look(struct ct_arena *arena, struct machine_facts *m)
{
    double page = (double)sysconf(_SC_PAGESIZE);
    cpu_set_t set;

    CPU_ZERO(&set);
    *m = (struct machine_facts){.processor = cpuinfo(arena, "model name"),
                                .online = sysconf(_SC_NPROCESSORS_ONLN),
                                .memory = ct_host_whole_memory(),
                                .memory_free = (double)sysconf(_SC_AVPHYS_PAGES) * page,
                                .others = others_share(),
                                .huge_pages = huge_pages(arena)};
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        m->threads = CPU_COUNT(&set);
    find_features(arena, m);
    ct_numa_read(NULL, arena, &m->numa);
}

static int threads_of(const struct ct_numa *numa, int node)
{
    int threads = 0;

    for (int i = 0; i < numa->count; i++)
        threads += numa->processor[i].node == node;
    return threads;
}

/* ---- for people ---- */

static void print_features(const struct machine_facts *m)
{
    printf("  features    ");
    for (size_t i = 0; i < m->feature_count; i++)
        printf("%s%s", i ? ", " : "", m->feature[i]);
    printf("%s\n", m->feature_count ? "" : "none that ctitan uses");
}

static void print_nodes(const struct ct_numa *numa)
{
    const char *before = "  nodes       ";

    for (int node = 0; node < 64; node++) {
        int threads = threads_of(numa, node);

        if (!(numa->nodes >> node & 1))
            continue;
        printf("%s%d: %d thread%s%s", before, node, threads, ct_plural(threads),
               numa->memory >> node & 1 ? "" : " without memory");
        before = ", ";
    }
    if (numa->nodes)
        printf("\n  placement   %s\n",
               ct_numa_memory(numa)
                   ? "a rank's threads node by node, its memory from their node, or from each of "
                     "their nodes in turn"
                   : "left to the system");
}

void machine_print(const struct machine_facts *m)
{
    char total[32], available[32];

    printf("machine\n  processor   %s\n", *m->processor ? m->processor : "unknown");
    printf("  threads     %ld online", m->online);
    if (m->threads)
        printf(", %d for this process", m->threads);
    printf("\n");
    print_features(m);
    printf("  memory      %s, %s free\n", human_bytes(m->memory, total),
           human_bytes(m->memory_free, available));
    if (ct_host_memory() < m->memory)
        printf("              this process may have %s, by its limits\n",
               human_bytes(ct_host_memory(), total));
    if (isfinite(m->others))
        printf("  busy        %.0f %%, by other processes just now%s\n", 100 * m->others,
               m->others > CT_LOAD_NOTABLE ? ": rates below are too low" : "");
    else
        printf("  busy        unknown: /proc/stat does not say\n");
    print_nodes(&m->numa);
    printf("  huge pages  %s%s\n", m->huge_pages ? m->huge_pages : "unknown",
           m->huge_pages && !strcmp(m->huge_pages, "never")
               ? ": slower; set it to madvise or always"
               : "");
}

/* ---- for programs ---- */

json_t *machine_json(const struct machine_facts *m)
{
    json_t *features = ct_json_texts(m->feature, m->feature_count), *nodes = json_array();

    for (int node = 0; node < 64; node++)
        if (m->numa.nodes >> node & 1)
            json_array_append_new(nodes, json_pack("{s:i, s:i, s:b}", "node", node, "threads",
                                                   threads_of(&m->numa, node), "memory",
                                                   (int)(m->numa.memory >> node & 1)));
    return json_pack("{s:o, s:I, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "processor",
                     ct_json_text(m->processor), "threads_online", (json_int_t)m->online, "threads",
                     m->threads, "features", features, "memory_bytes", ct_json_number(m->memory),
                     "free_bytes", ct_json_number(m->memory_free), "others_percent",
                     ct_json_number(100 * m->others), "nodes", nodes, "huge_pages",
                     ct_json_text(m->huge_pages));
}
