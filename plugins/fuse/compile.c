/*
 * Compiling, and the cache of what was compiled.
 *
 * A file of the cache is named by a hash of all that determines it: the code, the compiler (its
 * path, size and date), its flags, and the processor that they ask it to compile for. HASH.so
 * appears by renaming, so it is complete or absent. Its last bytes are a checksum of those before
 * them; a file with another checksum is compiled again. Whoever compiles holds a lock on HASH.c.
 * Ranks that find a lock taken compile another one first, and so share the work.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/lib/file.h>
#include <ctitan/log.h>

#include "fuse.h"

#define MOST_WORDS 32

extern char **environ;

struct compiler {
    struct ct_arena arena;
    char *word[MOST_WORDS + 8]; /* command and flags; the rest is added for each file */
    int words;
    XXH3_state_t *hash; /* of the command, the compiler's file and the processor */
    char folder[CT_PATH_ROOM];
};

struct job {
    const struct fuse_code *code;
    char path[CT_PATH_ROOM]; /* without ".c", ".so" */
    int lock;                /* -1: not taken */
    pid_t pid;               /* 0: none */
};

/* ---- names ---- */

static void add_text(XXH3_state_t *hash, const char *text)
{
    XXH3_128bits_update(hash, text, strlen(text) + 1);
}

/* The first processor's model and features. */
static void add_processor(XXH3_state_t *hash)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[8192];

    while (file && fgets(line, sizeof(line), file) && *line != '\n')
        if (!strncmp(line, "model name", 10) || !strncmp(line, "flags", 5) ||
            !strncmp(line, "Features", 8) || !strncmp(line, "CPU", 3))
            add_text(hash, line);
    if (file)
        fclose(file);
}

static void split(struct compiler *c, const char *text)
{
    char *copy = ct_arena_strdup(&c->arena, text), *rest;

    for (char *word = strtok_r(copy, " ", &rest); word && c->words < MOST_WORDS;
         word = strtok_r(NULL, " ", &rest))
        c->word[c->words++] = word;
}

/* Find program in PATH. */
static int find_program(const char *program, char path[CT_PATH_ROOM])
{
    const char *folders = getenv("PATH");
    char list[CT_PATH_ROOM], *rest;

    snprintf(list, sizeof(list), "%s", folders ? folders : "/usr/bin:/bin");
    snprintf(path, CT_PATH_ROOM, "%s", program);
    if (strchr(program, '/'))
        return access(path, X_OK) == 0 ? 0 : CT_ENOENT;
    for (char *f = strtok_r(list, ":", &rest); f; f = strtok_r(NULL, ":", &rest)) {
        snprintf(path, CT_PATH_ROOM, "%s/%s", f, program);
        if (access(path, X_OK) == 0)
            return 0;
    }
    return CT_ENOENT;
}

static int add_compiler(struct compiler *c)
{
    char path[CT_PATH_ROOM];
    struct stat is;

    for (int i = 0; i < c->words; i++)
        add_text(c->hash, c->word[i]);
    if (!c->words || find_program(c->word[0], path) < 0 || stat(path, &is) < 0)
        return ct_fail(CT_ENOENT, "no C compiler: \"%s\" is not in PATH",
                       c->words ? c->word[0] : "");
    add_text(c->hash, path);
    XXH3_128bits_update(c->hash, &is.st_size, sizeof(is.st_size));
    XXH3_128bits_update(c->hash, &is.st_mtim, sizeof(is.st_mtim));
    return 0;
}

static int find_folder(struct compiler *c)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

    if (*fuse_config.cache)
        snprintf(c->folder, sizeof(c->folder), "%s", fuse_config.cache);
    else if (base && *base)
        snprintf(c->folder, sizeof(c->folder), "%s/ctitan/kernels", base);
    else if (home && *home)
        snprintf(c->folder, sizeof(c->folder), "%s/.cache/ctitan/kernels", home);
    else
        return ct_fail(CT_ECONFIG, "[fuse] cache: neither XDG_CACHE_HOME nor HOME is set; name a "
                                   "folder for compiled kernels");
    return ct_file_make_folder(c->folder);
}

static void end(struct compiler *c)
{
    XXH3_freeState(c->hash);
    ct_arena_finish(&c->arena);
}

static int begin(struct compiler *c)
{
    const char *command = fuse_config.compiler;
    int rc;

    *c = (struct compiler){.hash = XXH3_createState()};
    XXH3_128bits_reset(c->hash);
    if (!*command)
        command = getenv("CC") && *getenv("CC") ? getenv("CC") : "cc";
    split(c, command);
    split(c, fuse_config.flags);
    rc = add_compiler(c);
    if (rc == 0)
        rc = find_folder(c);
    if (rc < 0)
        end(c);
    else
        add_processor(c->hash);
    return rc;
}

static void print_hash(char text[33], XXH128_hash_t hash)
{
    XXH128_canonical_t bytes;

    XXH128_canonicalFromHash(&bytes, hash);
    for (int i = 0; i < 16; i++)
        sprintf(text + 2 * i, "%02x", bytes.digest[i]);
}

static void name_job(const struct compiler *c, const struct fuse_code *code, struct job *job)
{
    XXH3_state_t *hash = XXH3_createState();
    char text[33];

    XXH3_copyState(hash, c->hash);
    add_text(hash, code->text);
    print_hash(text, XXH3_128bits_digest(hash));
    XXH3_freeState(hash);
    *job = (struct job){.code = code, .lock = -1};
    snprintf(job->path, sizeof(job->path), "%.4000s/%s", c->folder, text);
}

/* ---- files ---- */

const char *fuse_header_name(void)
{
    static char name[48];

    if (!*name) {
        memcpy(name, "vectors-", 8);
        print_hash(name + 8, XXH3_128bits(fuse_header_text, strlen(fuse_header_text)));
        strcpy(name + 8 + 16, ".h"); /* half of the hash */
    }
    return name;
}

int fuse_write_header(const char *folder)
{
    char path[CT_PATH_ROOM + 64];

    snprintf(path, sizeof(path), "%s/%s", folder, fuse_header_name());
    return ct_file_write(path, fuse_header_text, strlen(fuse_header_text));
}

/* Is there a compiled kernel, and does its checksum fit? */
static bool is_compiled(const struct job *job)
{
    struct ct_arena scratch = {0};
    XXH128_hash_t sum;
    char path[CT_PATH_ROOM + 8], *data;
    size_t size;
    bool whole = false;

    snprintf(path, sizeof(path), "%s.so", job->path);
    if (access(path, R_OK) == 0 && ct_file_read(&scratch, path, 1 << 28, &data, &size) == 0 &&
        size > sizeof(sum)) {
        memcpy(&sum, data + size - sizeof(sum), sizeof(sum));
        whole = XXH128_isEqual(sum, XXH3_128bits(data, size - sizeof(sum)));
        if (!whole)
            ct_warn("fuse: %s is damaged: it is compiled again", path);
    }
    ct_arena_finish(&scratch);
    return whole;
}

static int append_checksum(const char *path)
{
    struct ct_arena scratch = {0};
    XXH128_hash_t sum;
    FILE *file;
    char *data;
    size_t size;
    int rc = ct_file_read(&scratch, path, 1 << 28, &data, &size);

    if (rc < 0)
        return rc;
    sum = XXH3_128bits(data, size);
    file = fopen(path, "ae");
    if (!file || fwrite(&sum, sizeof(sum), 1, file) != 1)
        rc = ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    if (file && fclose(file) && rc == 0)
        rc = ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    ct_arena_finish(&scratch);
    return rc;
}

/* ---- compiling ---- */

/* 1: taken; 0: someone else compiles it. */
static int take_lock(struct job *job, bool wait)
{
    char path[CT_PATH_ROOM + 8];

    snprintf(path, sizeof(path), "%s.c", job->path);
    job->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (job->lock < 0)
        return ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    while (flock(job->lock, LOCK_EX | (wait ? 0 : LOCK_NB)) < 0) {
        if (errno == EINTR)
            continue;
        close(job->lock);
        job->lock = -1;
        return errno == EWOULDBLOCK ? 0 : ct_fail(CT_EIO, "locking %s: %s", path, strerror(errno));
    }
    return 1;
}

static void drop_lock(struct job *job)
{
    if (job->lock >= 0)
        close(job->lock);
    job->lock = -1;
}

static int write_source(const struct job *job)
{
    size_t size = strlen(job->code->text);

    if (ftruncate(job->lock, 0) < 0 || pwrite(job->lock, job->code->text, size, 0) != (ssize_t)size)
        return ct_fail(CT_EIO, "writing %s.c: %s", job->path, strerror(errno));
    return 0;
}

static int start(const struct compiler *c, struct job *job)
{
    char *source = ct_arena_printf((struct ct_arena *)&c->arena, "%s.c", job->path);
    char *object = ct_arena_printf((struct ct_arena *)&c->arena, "%s.new", job->path);
    char *log = ct_arena_printf((struct ct_arena *)&c->arena, "%s.log", job->path);
    char *const last[] = {"-shared", "-fPIC", "-o", object, source, "-lm", NULL};
    char *arguments[MOST_WORDS + CT_COUNT(last)];
    posix_spawn_file_actions_t actions;
    int rc = write_source(job);

    if (rc < 0)
        return rc;
    memcpy(arguments, c->word, sizeof(*arguments) * (size_t)c->words);
    memcpy(arguments + c->words, last, sizeof(last));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    rc = posix_spawnp(&job->pid, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (rc) {
        job->pid = 0;
        return ct_fail(CT_ENOENT, "starting %s: %s", arguments[0], strerror(rc));
    }
    return 0;
}

static int refused(const struct compiler *c, const struct job *job)
{
    char path[CT_PATH_ROOM + 8], *text = NULL;
    struct ct_arena scratch = {0};
    size_t size;
    int rc;

    snprintf(path, sizeof(path), "%s.log", job->path);
    if (ct_file_read(&scratch, path, 1 << 20, &text, &size) < 0)
        text = "";
    rc = ct_fail(CT_EIO, "%s does not compile %s.c: %.400s", c->word[0], job->path, text);
    ct_arena_finish(&scratch);
    return rc;
}

static int finish(const struct compiler *c, struct job *job)
{
    char from[CT_PATH_ROOM + 8], to[CT_PATH_ROOM + 8];
    int status = -1, rc = 0;

    while (waitpid(job->pid, &status, 0) < 0 && errno == EINTR)
        ;
    job->pid = 0;
    snprintf(from, sizeof(from), "%s.new", job->path);
    snprintf(to, sizeof(to), "%s.so", job->path);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        rc = refused(c, job);
    else
        rc = append_checksum(from);
    if (rc == 0 && rename(from, to) < 0)
        rc = ct_fail(CT_EIO, "renaming %s: %s", from, strerror(errno));
    if (rc == 0) {
        snprintf(from, sizeof(from), "%s.log", job->path);
        unlink(from);
    }
    drop_lock(job);
    return rc;
}

/* Start what nobody else compiles; 1: job runs or is done. */
static int try_start(const struct compiler *c, struct job *job, bool wait)
{
    int rc = take_lock(job, wait);

    if (rc <= 0)
        return rc;
    if (is_compiled(job)) { /* in the meantime */
        drop_lock(job);
        return 1;
    }
    rc = start(c, job);
    if (rc < 0)
        drop_lock(job);
    return rc < 0 ? rc : 1;
}

/* As many at a time as there are processors. */
static int compile_all(const struct compiler *c, struct job *job, int count, int *compiled)
{
    int most = (int)sysconf(_SC_NPROCESSORS_ONLN), first = 0, running = 0, rc = 0, failed;

    for (int i = 0; i < count && rc >= 0; i++) {
        rc = try_start(c, &job[i], false);
        running += job[i].pid != 0;
        *compiled += job[i].pid != 0;
        for (; running >= most && first <= i; first++)
            if (job[first].pid) {
                failed = finish(c, &job[first]);
                rc = failed < 0 ? failed : rc;
                running--;
            }
    }
    for (; first < count; first++)
        if (job[first].pid) {
            failed = finish(c, &job[first]);
            rc = failed < 0 ? failed : rc;
        }
    for (int i = 0; i < count && rc >= 0; i++)
        if (!is_compiled(&job[i])) { /* another process had its lock */
            rc = try_start(c, &job[i], true);
            if (rc > 0 && job[i].pid) {
                ++*compiled;
                rc = finish(c, &job[i]);
            }
        }
    return rc < 0 ? rc : 0;
}

int fuse_compile(const struct fuse_code *code, int count, struct fuse_result *result)
{
    double from = ct_now();
    struct compiler c;
    struct job *job;
    int missing = 0, rc = begin(&c);

    *result = (struct fuse_result){0};
    if (rc < 0)
        return rc;
    job = ct_arena_array(&c.arena, struct job, count + 1);
    for (int i = 0; i < count; i++) {
        name_job(&c, &code[i], &job[missing]);
        if (!is_compiled(&job[missing]))
            missing++;
    }
    if (missing)
        rc = fuse_write_header(c.folder);
    if (rc == 0 && missing)
        rc = compile_all(&c, job, missing, &result->compiled);
    result->found = count - result->compiled;
    result->seconds = ct_now() - from;
    end(&c);
    return rc;
}

/* ---- loading ---- */

int fuse_load(const struct fuse_code *code, fuse_function **function)
{
    struct fuse_result result;
    struct compiler c;
    struct job job;
    char path[CT_PATH_ROOM + 8];
    void *library;
    int rc = fuse_compile(code, 1, &result);

    if (rc == 0)
        rc = begin(&c);
    if (rc < 0)
        return rc;
    name_job(&c, code, &job);
    end(&c);
    snprintf(path, sizeof(path), "%s.so", job.path);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return ct_fail(CT_EIO, "%s", dlerror());
    *(void **)function = dlsym(library, "fused");
    return *function ? 0 : ct_fail(CT_EIO, "%s has no function: delete it", path);
}
