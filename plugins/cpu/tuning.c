/* See tuning.h. */
#include <ctype.h>
#include <dnnl.h>
#include <fcntl.h>
#include <math.h>
#include <search.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/config.h>
#include <ctitan/file.h>
#include <ctitan/log.h>

#include "tuning.h"

#define LINE 160
#define KERNELS 11 /* rises when own kernels, or how they are timed, change: old facts are wrong */

struct fact {
    const char *name;
    double value;
};

static void *facts; /* a tree of struct fact, by name */

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct fact *)a)->name, ((const struct fact *)b)->name);
}

static const struct fact *find(const char *name)
{
    struct fact **f = tfind(&(struct fact){.name = name}, &facts, compare);

    return f ? *f : NULL;
}

static double add(const char *name, double value)
{
    struct fact *f = malloc(sizeof(*f) + strlen(name) + 1);

    if (!f)
        return value;
    *f = (struct fact){strcpy((char *)(f + 1), name), value};
    if (!tsearch(f, &facts, compare))
        free(f);
    return value;
}

/* Append as lower-case words joined by '-': "AMD EPYC 9R45" -> "amd-epyc-9r45". */
static size_t append(char *text, size_t n, size_t size, const char *words)
{
    for (const char *c = words; *c && n + 1 < size; c++)
        if (isalnum((unsigned char)*c))
            text[n++] = (char)tolower((unsigned char)*c);
        else if (n && text[n - 1] != '-')
            text[n++] = '-';
    text[n] = '\0';
    return n;
}

static bool identifies(const char *line, const char *colon)
{
    static const char *const keys[] = {"cpu family", "model", "model name"};

    for (size_t i = 0; i < CT_COUNT(keys); i++)
        if (strcspn(line, "\t:") == strlen(keys[i]) && !strncmp(line, keys[i], strlen(keys[i])))
            return colon != NULL;
    return false;
}

/* "25-17-amd-epyc": virtual machines give processors of several kinds one name. */
static void processor(char *text, size_t size)
{
    FILE *in = fopen("/proc/cpuinfo", "r");
    char line[LINE];
    size_t n = 0;

    *text = '\0';
    while (in && fgets(line, sizeof(line), in) && *line != '\n') {
        const char *colon = strchr(line, ':');

        if (identifies(line, colon))
            n = append(text, n, size, colon + 1);
    }
    if (in)
        fclose(in);
    while (n && text[n - 1] == '-')
        text[--n] = '\0';
    if (!n)
        append(text, 0, size, "unknown");
}

/* The file, created with its folders and locked, or else for reading only; -1: there is none. */
static int open_locked(bool *writable)
{
    const dnnl_version_t *v = dnnl_version();
    char path[CT_PATH_ROOM], model[LINE];
    int file;

    processor(model, sizeof(model));
    if (ct_file_cache_folder(path, "cpu") < 0)
        return -1;
    snprintf(path + strlen(path), sizeof(path) - strlen(path), "/%s-onednn-%d.%d.%d-kernels-%d.txt",
             model, v->major, v->minor, v->patch, KERNELS);
    file = open(path, O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    *writable = file >= 0 && flock(file, LOCK_EX) == 0;
    return file >= 0 ? file : ct_file_open(path, CT_FILE_OWN);
}

/* Read the lines that came since the last call: the file only grows. The copy of the descriptor
   shares its lock. False: they cannot be read. */
static bool read_facts(int file)
{
    static long known; /* bytes */
    int copy = fcntl(file, F_DUPFD_CLOEXEC, 0);
    FILE *in = copy < 0 ? NULL : fdopen(copy, "r");
    char *line = NULL, name[LINE];
    size_t room = 0;
    ssize_t n;
    double value;

    if (!in && copy >= 0)
        close(copy);
    if (!in || fseek(in, known, SEEK_SET) < 0) {
        if (in)
            fclose(in);
        return false;
    }
    while ((n = getline(&line, &room, in)) > 0 && line[n - 1] == '\n') {
        known += n;
        if (sscanf(line, "%159s %lf", name, &value) == 2 && value > 0 && isfinite(value) &&
            !find(name))
            add(name, value);
    }
    free(line);
    fclose(in);
    return true;
}

/* Measure, and write to the file, -1: none. The value is as it is written: others read that. */
static double measure_once(int file, const char *name, double (*measure)(void *), void *context)
{
    static bool warned;
    double value = file >= 0 ? measure(context) : -1;
    char text[32];

    snprintf(text, sizeof(text), "%.4g", value);
    value = strtod(text, NULL);
    if (file >= 0 && value < 0)
        ct_warn("cpu: the speed %s cannot be measured (out of memory?); this process takes the "
                "default",
                name);
    if (file >= 0 && (value < 0 || dprintf(file, "%s %s\n", name, text) >= 0))
        return value;
    if (!warned)
        ct_warn("cpu: no speed is measured, and slower defaults are taken, as no file can be "
                "written in $XDG_CACHE_HOME or ~/.cache: without one, runs would choose "
                "differently, and so would ranks");
    warned = true;
    return -1;
}

double cpu_tuned(const char *name, double (*measure)(void *context), void *context)
{
    const struct fact *known = find(name);
    bool writable = false;
    double value;
    int file;

    if (ct_config.deterministic)
        return -1;
    if (known)
        return known->value;
    file = open_locked(&writable);
    writable &= file >= 0 && read_facts(file);
    known = find(name);
    value = known ? known->value
                  : add(name, measure_once(writable ? file : -1, name, measure, context));
    if (file >= 0)
        close(file);
    return value;
}
