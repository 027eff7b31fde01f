/*
 * Compiling, and the cache of what was compiled.
 *
 * A file of the cache is named by a hash of all that determines it: the code, and the compiler with
 * its flags and what it compiles for. HASH.so (a shared object, or what a device's compiler makes)
 * appears by renaming, so it is complete or absent. Its last bytes are a checksum of those before
 * them; a file with another checksum is compiled again. Whoever compiles holds a lock on HASH.c.
 * Ranks that find a lock taken compile another one first, and so share the work.
 *
 * What lies here is run, so nobody but this user (or root) may put it here: the folder is one that
 * no other user can change, and neither are the files.
 *
 * A process loads each code for host memory once, for all ops that it computes.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/log.h>

#include "compile.h"

/* ---- names ---- */

static void hash_as_text(char text[33], XXH128_hash_t hash)
{
    XXH128_canonical_t bytes;

    XXH128_canonicalFromHash(&bytes, hash);
    for (int i = 0; i < 16; i++)
        sprintf(text + 2 * i, "%02x", bytes.digest[i]);
}

static int find_folder(struct compiler *c)
{
    int rc;

    if (!*fuse_config.cache) {
        rc = ct_file_cache_folder(c->folder, "kernels");
        return rc == CT_ENOENT ? ct_context(rc, "[fuse] cache is not set") : rc;
    }
    rc = ct_file_private_folder(c->folder, fuse_config.cache);
    return rc < 0 ? ct_context(rc, "[fuse] cache") : 0;
}

static void end(struct compiler *c)
{
    XXH3_freeState(c->hash);
    ct_arena_finish(&c->arena);
}

/* 1: the device is not there, so nothing can be compiled for it. */
static int hash_version(struct compiler *c)
{
    char version[256];
    int rc = c->target->ops->version(c->target->device, version, sizeof(version));

    if (rc == 0)
        hash_text(c->hash, version);
    return rc;
}

/* Not 0: nothing was begun, or can be. */
static int begin(struct compiler *c, const struct fuse_target *target)
{
    int rc;

    *c = (struct compiler){.target = target, .hash = XXH3_createState()};
    XXH3_128bits_reset(c->hash);
    rc = target->ops ? hash_version(c) : system_begin(c);
    if (rc == 0)
        rc = find_folder(c);
    if (rc)
        end(c);
    return rc;
}

static const char *source_of(const struct compiler *c, const struct ct_rows_code *code)
{
    return ct_arena_printf((struct ct_arena *)&c->arena, "#include \"%s\"\n%s",
                           c->target->ops ? CT_COMPILER_HEADER : fuse_header_name(), code->text);
}

static void name_job(struct compiler *c, const struct ct_rows_code *code, struct job *job)
{
    XXH3_state_t *hash = XXH3_createState();
    char text[33];

    XXH3_copyState(hash, c->hash);
    hash_text(hash, source_of(c, code));
    hash_as_text(text, XXH3_128bits_digest(hash));
    XXH3_freeState(hash);
    *job = (struct job){.code = code, .lock = -1};
    snprintf(job->path, sizeof(job->path), "%.4000s/%s", c->folder, text);
}

/* ---- files ---- */

const char *fuse_header_name(void)
{
    static char name[48];

    if (!*name) {
        memcpy(name, "rows-", 5);
        hash_as_text(name + 5, XXH3_128bits(fuse_header_text, strlen(fuse_header_text)));
        strcpy(name + 5 + 16, ".h"); /* half of the hash */
    }
    return name;
}

int fuse_write_header(const char *folder)
{
    char path[CT_PATH_ROOM + 64];

    snprintf(path, sizeof(path), "%s/%s", folder, fuse_header_name());
    return ct_file_write(path, fuse_header_text, strlen(fuse_header_text));
}

/* The object without its checksum. CT_ENOENT: there is none, or another checksum. */
static int read_object(const struct job *job, struct ct_arena *arena, char **data, size_t *size)
{
    XXH128_hash_t sum;
    char path[CT_PATH_ROOM + 8];
    int rc;

    snprintf(path, sizeof(path), "%s.so", job->path);
    rc = ct_file_read_own(arena, path, 1 << 28, data, size);
    if (rc == CT_EINVAL)
        ct_warn("fuse: %s: it is compiled again", ct_error_message());
    if (rc < 0 || *size <= sizeof(sum))
        return CT_ENOENT;
    *size -= sizeof(sum);
    memcpy(&sum, *data + *size, sizeof(sum));
    if (XXH128_isEqual(sum, XXH3_128bits(*data, *size)))
        return 0;
    ct_warn("fuse: %s is damaged: it is compiled again", path);
    return CT_ENOENT;
}

static bool is_compiled(const struct job *job)
{
    struct ct_arena scratch = {0};
    size_t size;
    char *data;
    int rc = read_object(job, &scratch, &data, &size);

    ct_arena_finish(&scratch);
    return rc == 0;
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
    if (chmod(path, 0700) < 0)
        return ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
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
    job->lock = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
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

static int write_source(const struct compiler *c, const struct job *job)
{
    const char *text = source_of(c, job->code);
    size_t size = strlen(text);

    if (ftruncate(job->lock, 0) < 0 || pwrite(job->lock, text, size, 0) != (ssize_t)size)
        return ct_fail(CT_EIO, "writing %s.c: %s", job->path, strerror(errno));
    return 0;
}

/* PATH.new, by the device's compiler. */
static int compile_for_device(const struct compiler *c, const struct job *job)
{
    const struct fuse_target *t = c->target;
    struct ct_arena scratch = {0};
    char path[CT_PATH_ROOM + 8];
    size_t size;
    void *object;
    FILE *file;
    int rc = t->ops->compile(t->device, source_of(c, job->code), &scratch, &object, &size);

    snprintf(path, sizeof(path), "%s.new", job->path);
    file = rc == 0 ? fopen(path, "we") : NULL;
    if (rc == 0 && (!file || fwrite(object, 1, size, file) != size))
        rc = ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    if (file && fclose(file) && rc == 0)
        rc = ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    ct_arena_finish(&scratch);
    return rc < 0 ? ct_context(rc, "%s.c", job->path) : 0;
}

/* Give PATH.new its place, and the lock back. rc: how compiling ended. */
static int finish(struct job *job, int rc)
{
    char from[CT_PATH_ROOM + 8], to[CT_PATH_ROOM + 8];

    snprintf(from, sizeof(from), "%s.new", job->path);
    snprintf(to, sizeof(to), "%s.so", job->path);
    if (rc == 0)
        rc = append_checksum(from);
    if (rc == 0 && rename(from, to) < 0)
        rc = ct_fail(CT_EIO, "renaming %s: %s", from, strerror(errno));
    drop_lock(job);
    return rc;
}

static int start(const struct compiler *c, struct job *job)
{
    int rc = write_source(c, job);

    if (rc == 0 && c->target->ops)
        return finish(job, compile_for_device(c, job));
    return rc < 0 ? rc : system_start(c, job);
}

/* Start a compilation unless another process runs it. 0: another one does; 1: it has been compiled
   meanwhile; 2: started. */
static int try_start(const struct compiler *c, struct job *job, bool wait)
{
    int rc = take_lock(job, wait);

    if (rc <= 0)
        return rc;
    if (is_compiled(job)) {
        drop_lock(job);
        return 1;
    }
    rc = start(c, job);
    if (rc < 0)
        drop_lock(job);
    return rc < 0 ? rc : 2;
}

/* Wait for the processes of jobs first .. end, until fewer than `most` run. */
static int finish_some(const struct compiler *c, struct job *first, struct job *end, int most)
{
    int running = 0, rc = 0;

    for (struct job *job = first; job < end; job++)
        running += job->pid != 0;
    for (struct job *job = first; job < end && running >= most; job++)
        if (job->pid) {
            int one = finish(job, system_wait(c, job));

            rc = one < 0 ? one : rc;
            running--;
        }
    return rc;
}

/* As many at a time as there are processors. */
static int compile_all(const struct compiler *c, struct job *job, int count, int *compiled)
{
    int most = (int)sysconf(_SC_NPROCESSORS_ONLN), rc = 0, last;

    for (int i = 0; i < count && rc >= 0; i++) {
        rc = try_start(c, &job[i], false);
        *compiled += rc == 2;
        if (rc >= 0)
            rc = finish_some(c, job, job + i + 1, most);
    }
    last = finish_some(c, job, job + count, 1);
    rc = last < 0 ? last : rc;
    for (int i = 0; i < count && rc >= 0; i++)
        if (!is_compiled(&job[i])) { /* another process had its lock */
            rc = try_start(c, &job[i], true);
            *compiled += rc == 2;
            if (rc >= 0)
                rc = finish_some(c, &job[i], &job[i] + 1, 1);
        }
    return rc < 0 ? rc : 0;
}

static int compile_missing(const struct compiler *c, struct job *job, int count, int *compiled)
{
    int rc = c->target->ops ? 0 : fuse_write_header(c->folder);

    return rc == 0 ? compile_all(c, job, count, compiled) : rc;
}

int fuse_compile(const struct fuse_target *target, const struct ct_rows_code *code, int count,
                 struct fuse_result *result)
{
    double from = ct_now();
    struct compiler c;
    struct job *job;
    int missing = 0, rc = begin(&c, target);

    *result = (struct fuse_result){0};
    if (rc)
        return rc < 0 ? rc : 0;
    job = ct_arena_array(&c.arena, struct job, count + 1);
    for (int i = 0; i < count; i++) {
        name_job(&c, &code[i], &job[missing]);
        if (!is_compiled(&job[missing]))
            missing++;
    }
    if (missing)
        rc = compile_missing(&c, job, missing, &result->compiled);
    result->found = count - result->compiled;
    result->seconds = ct_now() - from;
    end(&c);
    return rc;
}

/* ---- loading ---- */

static int load_object(const struct compiler *c, const struct job *job, void **function)
{
    char path[CT_PATH_ROOM + 8], *data;
    struct ct_arena scratch = {0};
    void *library;
    size_t size;
    int rc;

    snprintf(path, sizeof(path), "%s.so", job->path);
    if (c->target->ops) {
        rc = read_object(job, &scratch, &data, &size);
        if (rc == 0)
            rc = c->target->ops->load(c->target->device, data, size, function);
        ct_arena_finish(&scratch);
        return rc < 0 ? ct_context(rc, "%s", path) : 0;
    }
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return ct_fail(CT_EIO, "%s", dlerror());
    *function = dlsym(library, "fused");
    return *function ? 0 : ct_fail(CT_EIO, "%s has no function: delete it", path);
}

static struct {
    struct ct_arena arena;
    struct loaded {
        XXH128_hash_t key;
        void *function;
    } * list;
    size_t count, room;
} loaded;

/* Key of code for host memory, with all options that determine what it is compiled to. */
static XXH128_hash_t key_of(const struct ct_rows_code *code)
{
    XXH3_state_t *hash = XXH3_createState();
    XXH128_hash_t key;

    XXH3_128bits_reset(hash);
    hash_text(hash, fuse_config.cache);
    hash_text(hash, system_command());
    hash_text(hash, fuse_config.flags);
    hash_text(hash, code->text);
    key = XXH3_128bits_digest(hash);
    XXH3_freeState(hash);
    return key;
}

static int load(const struct fuse_target *target, const struct ct_rows_code *code, void **function)
{
    struct compiler c;
    struct job job;
    int compiled = 0, rc = begin(&c, target);

    if (rc)
        return rc < 0 ? rc : 0;
    name_job(&c, code, &job);
    if (!is_compiled(&job))
        rc = compile_missing(&c, &job, 1, &compiled);
    if (rc == 0)
        rc = load_object(&c, &job, function);
    end(&c);
    return rc;
}

int fuse_load(const struct fuse_target *target, const struct ct_rows_code *code, void **function)
{
    XXH128_hash_t key = key_of(code);
    int rc;

    *function = NULL;
    if (target->ops) /* a device unloads it when it is closed */
        return load(target, code, function);
    for (size_t i = 0; i < loaded.count; i++)
        if (XXH128_isEqual(loaded.list[i].key, key)) {
            *function = loaded.list[i].function;
            return 0;
        }
    rc = load(target, code, function);
    if (rc < 0)
        return rc;
    loaded.list = ct_arena_grow(&loaded.arena, loaded.list, &loaded.room, loaded.count + 1,
                                sizeof(*loaded.list));
    loaded.list[loaded.count++] = (struct loaded){key, *function};
    return 0;
}
