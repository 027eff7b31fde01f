#include <errno.h>
#include <ctype.h>
#include <fcntl.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/facts.h>
#include <ctitan/log.h>

struct fact {
    char *name, *value; /* value "": it could not be measured */
};

struct ct_facts {
    const char *folder, *file;
    bool (*valid)(const char *value);
    void *tree;        /* of struct fact, by name */
    bool warned, told; /* of a file that cannot be written; of lines that stay damaged */
};

struct ct_facts *ct_facts_create(const char *folder, const char *file,
                                 bool (*valid)(const char *value))
{
    struct ct_facts *facts = calloc(1, sizeof(*facts));

    if (!facts)
        return NULL;
    *facts = (struct ct_facts){.folder = strdup(folder), .file = strdup(file), .valid = valid};
    return facts;
}

size_t ct_facts_name(char *name, size_t used, size_t room, const char *words)
{
    for (const char *c = words; *c && used + 1 < room; c++)
        if (isalnum((unsigned char)*c))
            name[used++] = (char)tolower((unsigned char)*c);
        else if (used && name[used - 1] != '-')
            name[used++] = '-';
    name[used] = '\0';
    return used;
}

/* ---- in memory ---- */

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct fact *)a)->name, ((const struct fact *)b)->name);
}

static const struct fact *find(struct ct_facts *facts, const char *name)
{
    struct fact **f = tfind(&(struct fact){.name = (char *)(uintptr_t)name}, &facts->tree, compare);

    return f ? *f : NULL;
}

static const struct fact *add(struct ct_facts *facts, const char *name, const char *value)
{
    struct fact *f = malloc(sizeof(*f) + strlen(name) + strlen(value) + 2);

    if (!f)
        return NULL;
    f->name = strcpy((char *)(f + 1), name);
    f->value = strcpy(f->name + strlen(name) + 1, value);
    if (tsearch(f, &facts->tree, compare))
        return f;
    free(f);
    return NULL;
}

static const char *value_of(const struct fact *f)
{
    return f && *f->value ? f->value : NULL;
}

/* ---- the file ---- */

struct opened {
    int file; /* -1: there is none */
    bool writable;
    char path[CT_PATH_ROOM];
};

static bool lock_file(int file)
{
    int rc;

    do
        rc = flock(file, LOCK_EX);
    while (rc < 0 && errno == EINTR);
    return rc == 0;
}

/* The file, created with its folders and locked, or else for reading only. */
static struct opened open_locked(const struct ct_facts *facts)
{
    struct opened o = {.file = -1};
    size_t used;

    if (ct_file_cache_folder(o.path, facts->folder) < 0)
        return o;
    used = strlen(o.path);
    if (snprintf(o.path + used, sizeof(o.path) - used, "/%s", facts->file) >=
        (int)(sizeof(o.path) - used))
        return o;
    o.file = open(o.path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    o.writable = o.file >= 0 && lock_file(o.file);
    if (o.file < 0)
        o.file = ct_file_open(o.path, CT_FILE_OWN);
    return o;
}

static void close_opened(const struct opened *o)
{
    if (o->file >= 0)
        close(o->file);
}

static bool take_line(struct ct_facts *facts, const char *line, ssize_t length)
{
    char name[CT_FACT_ROOM], value[CT_FACT_ROOM], end;

    if (line[length - 1] != '\n' || sscanf(line, "%191s %191s %c", name, value, &end) != 2 ||
        !facts->valid(value))
        return false;
    if (!find(facts, name))
        add(facts, name, value);
    return true;
}

/* Takes the lines of a stream; *good: those that are facts, to be freed. Returns how many are
   not. */
static int take_lines(struct ct_facts *facts, FILE *in, char **good, size_t *bytes)
{
    FILE *out = open_memstream(good, bytes);
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    int damaged = 0;

    while ((length = getline(&line, &room, in)) > 0)
        if (!take_line(facts, line, length))
            damaged++;
        else if (out)
            fwrite(line, 1, (size_t)length, out);
    free(line);
    if (out)
        fclose(out);
    return damaged;
}

static void leave_out_damaged(struct ct_facts *facts, const struct opened *o, int damaged,
                              const char *good, size_t bytes)
{
    if (!facts->told)
        ct_warn("%s: %d damaged line%s of %s count%s as absent%s", facts->folder, damaged,
                ct_plural(damaged), o->path, damaged == 1 ? "s" : "",
                o->writable ? ": they are measured again" : "");
    facts->told = !o->writable;
    if (o->writable && good && pwrite(o->file, good, bytes, 0) == (ssize_t)bytes &&
        ftruncate(o->file, (off_t)bytes) < 0)
        ct_warn("%s: %s still has them", facts->folder, o->path);
}

/* The copy of the descriptor shares its lock. False: it cannot be read. */
static bool read_facts(struct ct_facts *facts, const struct opened *o)
{
    int copy = o->file < 0 ? -1 : fcntl(o->file, F_DUPFD_CLOEXEC, 0), damaged;
    FILE *in = copy < 0 ? NULL : fdopen(copy, "r");
    char *good = NULL;
    size_t bytes = 0;

    if (!in && copy >= 0)
        close(copy);
    if (!in)
        return false;
    rewind(in);
    damaged = take_lines(facts, in, &good, &bytes);
    if (damaged)
        leave_out_damaged(facts, o, damaged, good, bytes);
    free(good);
    fclose(in);
    return true;
}

static bool append(const struct opened *o, const char *name, const char *value)
{
    char line[2 * CT_FACT_ROOM + 2];
    int length = snprintf(line, sizeof(line), "%s %s\n", name, value);

    return length < (int)sizeof(line) && lseek(o->file, 0, SEEK_END) >= 0 &&
           write(o->file, line, (size_t)length) == length;
}

/* ---- both ---- */

const char *ct_fact_find(struct ct_facts *facts, const char *name)
{
    const struct fact *known = find(facts, name);
    struct opened o;

    if (known)
        return value_of(known);
    o = open_locked(facts);
    read_facts(facts, &o);
    close_opened(&o);
    return value_of(find(facts, name));
}

static void warn_once(struct ct_facts *facts)
{
    if (!facts->warned)
        ct_warn("%s: nothing that is measured can be kept, so slower defaults are taken: no file "
                "can be written in $XDG_CACHE_HOME or ~/.cache, and without one runs would choose "
                "differently, and so would ranks",
                facts->folder);
    facts->warned = true;
}

/* As it is written: others read that. */
static const struct fact *measure_once(struct ct_facts *facts, const struct opened *o,
                                       const char *name, ct_fact_measure *measure, void *context)
{
    char value[CT_FACT_ROOM] = "";

    if (o->writable && (measure(context, value) < 0 || !facts->valid(value)))
        return add(facts, name, "");
    if (o->writable && append(o, name, value))
        return add(facts, name, value);
    warn_once(facts);
    return add(facts, name, "");
}

const char *ct_fact(struct ct_facts *facts, const char *name, ct_fact_measure *measure,
                    void *context)
{
    const struct fact *known = find(facts, name);
    struct opened o;

    if (known)
        return value_of(known);
    o = open_locked(facts);
    o.writable &= read_facts(facts, &o);
    known = find(facts, name);
    if (!known)
        known = measure_once(facts, &o, name, measure, context);
    close_opened(&o);
    return value_of(known);
}
