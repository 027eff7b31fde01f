#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/log.h>
#include <ctitan/model.h>
#include <ctitan/reader.h>

#include "chat.h"
#include "encode.h"
#include "name.h"
#include "store.h"

/* Two changes of a file within a tick of the system's clock give it the same times. */
#define TICK_SECONDS 0.02

struct opening {
    const struct store_request *request;
    struct corpus corpus;
    XXH128_hash_t key;
    bool waited; /* for another process that made the tokens */
};

/* ---- names ---- */

/* The reader of a file of another form determines its text, so the hash has it. */
static void add_reader(XXH3_state_t *hash, const char *path)
{
    const struct ct_offer *reader = ct_reader_find(path, name_length(path));

    if (!reader)
        return;
    XXH3_128bits_update(hash, reader->name, strlen(reader->name) + 1);
    XXH3_128bits_update(hash, &((const struct ct_reader_ops *)reader->ops)->version, sizeof(int));
}

static int add_file(XXH3_state_t *hash, const char *path)
{
    char *whole = realpath(path, NULL);
    struct stat s;
    double age;

    if (!whole || stat(whole, &s) < 0) {
        free(whole);
        return ct_fail(CT_ECONFIG, "%s: %s", path, strerror(errno));
    }
    age = ct_wall_clock() - (double)s.st_ctim.tv_sec - 1e-9 * (double)s.st_ctim.tv_nsec;
    if (age >= 0 && age < TICK_SECONDS)
        ct_nap(TICK_SECONDS - age);
    XXH3_128bits_update(hash, whole, strlen(whole) + 1);
    XXH3_128bits_update(hash, &s.st_size, sizeof(s.st_size));
    XXH3_128bits_update(hash, &s.st_mtim, sizeof(s.st_mtim));
    XXH3_128bits_update(hash, &s.st_ctim, sizeof(s.st_ctim));
    add_reader(hash, path);
    free(whole);
    return 0;
}

/* Nothing of a stream is known before it is read. */
static int add_stream(XXH3_state_t *hash, const char *name, const struct corpus_request *c)
{
    char folder[CT_PATH_ROOM];

    if (!getcwd(folder, sizeof(folder)))
        return ct_fail(CT_EIO, "the current folder: %s", strerror(errno));
    XXH3_128bits_update(hash, c->command ? "command" : "pipe", c->command ? 8 : 5);
    XXH3_128bits_update(hash, name, strlen(name) + 1);
    add_reader(hash, name);
    XXH3_128bits_update(hash, folder, strlen(folder) + 1);
    XXH3_128bits_update(hash, c->stream_key, strlen(c->stream_key) + 1);
    return 0;
}

static int find_key(const struct opening *o, int width, XXH128_hash_t *key)
{
    const struct corpus_request *c = &o->request->corpus;
    const struct ct_tokenizer_ops *t = o->request->tokenizer;
    XXH3_state_t *hash = XXH3_createState();
    char text[512];
    int size, rc = 0;

    if (!hash)
        return ct_fail(CT_ENOMEM, "a hash");
    XXH3_128bits_reset(hash);
    size = snprintf(text, sizeof(text), ENCODED_MAGIC " %d %016llx %d %d %d %d %d %s", width,
                    (unsigned long long)t->identity(), c->no_bos ? -1 : (int)t->bos(),
                    (int)t->eos(), (int)c->format, (int)c->split, c->skip, c->field);
    if (size >= (int)sizeof(text))
        rc = ct_fail(CT_ECONFIG, "[text] field: a name of %zu characters", strlen(c->field));
    else
        XXH3_128bits_update(hash, text, (size_t)size + 1);
    if (c->key)
        XXH3_128bits_update(hash, c->key, strlen(c->key) + 1);
    for (size_t i = 0; rc == 0 && i < o->corpus.file_count; i++)
        rc = corpus_is_stream(&o->corpus, i) ? add_stream(hash, corpus_path(&o->corpus, i), c)
                                             : add_file(hash, corpus_path(&o->corpus, i));
    *key = XXH3_128bits_digest(hash);
    XXH3_freeState(hash);
    return rc;
}

static int cannot_keep(int rc)
{
    return ct_context(rc, "tokens cannot be kept; set [text] cache to a folder with more room or "
                          "other permissions, or to none");
}

static int find_path(struct store *s, const struct opening *o)
{
    const char *folder = o->request->cache;
    char own[CT_PATH_ROOM];
    int rc;

    if (*folder)
        rc = ct_file_team_folder(own, folder);
    else
        rc = ct_file_cache_folder(own, "tokens");
    if (rc < 0)
        return cannot_keep(CT_ECONFIG);
    if (snprintf(s->path, sizeof(s->path) - 8, "%s/%016llx%016llx", own,
                 (unsigned long long)o->key.high64,
                 (unsigned long long)o->key.low64) >= (int)sizeof(s->path) - 8)
        rc = ct_fail(CT_ECONFIG, "the path is too long");
    return rc;
}

/* ---- reading ---- */

static size_t index_bytes(const struct encoded *h)
{
    return ((size_t)h->documents + 1) * sizeof(int64_t) + encoded_blocks(h) * sizeof(uint64_t);
}

/* All but the tokens. */
static bool is_whole(const struct encoded *h, size_t size, int width)
{
    size_t room = size - sizeof(*h);
    const int64_t *start;

    if (memcmp(h->magic, ENCODED_MAGIC, sizeof(h->magic)) ||
        h->check != XXH3_64bits(h, offsetof(struct encoded, check)) || h->width != width ||
        h->tokens < 0 || h->documents < 1 || (size_t)h->tokens > room / (size_t)width ||
        (size_t)h->documents >= room / sizeof(*start) || encoded_bytes(h) + index_bytes(h) != room)
        return false;
    start = (const int64_t *)(const void *)((const char *)(h + 1) + encoded_bytes(h));
    if (XXH3_64bits(start, index_bytes(h)) != h->index)
        return false;
    for (int64_t d = 0; d < h->documents; d++)
        if (start[d] > start[d + 1])
            return false;
    return start[0] == 0 && start[h->documents] == h->tokens;
}

static int use(struct store *s, const struct encoded *h)
{
    s->tokens = h + 1;
    s->start = (const int64_t *)(const void *)((const char *)(h + 1) + encoded_bytes(h));
    s->count = h->documents;
    s->sums = (const uint64_t *)(s->start + s->count + 1);
    s->hash = h->hash;
    s->checked = calloc(encoded_blocks(h) + 1, sizeof(*s->checked));
    return s->checked ? 0 : ct_fail(CT_ENOMEM, "%zu blocks of tokens", encoded_blocks(h));
}

static int map(struct store *s, int fd)
{
    const struct encoded *h;
    struct stat st;

    if (fstat(fd, &st) < 0 || (size_t)st.st_size < sizeof(*h))
        return ct_fail(CT_EINVAL, "%s is damaged", s->path);
    s->size = (size_t)st.st_size;
    s->base = mmap(NULL, s->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (s->base == MAP_FAILED) {
        s->base = NULL;
        return ct_fail(CT_EIO, "%zu bytes cannot be mapped: %s", s->size, strerror(errno));
    }
    h = s->base;
    if (is_whole(h, s->size, s->width))
        return use(s, h);
    munmap(s->base, s->size);
    s->base = NULL;
    return ct_fail(CT_EINVAL, "%s is damaged", s->path);
}

int store_check(struct store *s, size_t block)
{
    size_t at = block * ENCODED_BLOCK, left = encoded_bytes(s->base) - at;
    size_t size = left < ENCODED_BLOCK ? left : ENCODED_BLOCK;

    s->checked[block] = XXH3_64bits((const char *)s->tokens + at, size) == s->sums[block];
    if (s->checked[block])
        return 0;
    return ct_fail(CT_EIO, "%s is damaged after byte %zu: %s",
                   s->kept ? s->path : "the file in [text] spool_folder",
                   sizeof(struct encoded) + at,
                   s->kept ? "delete it, and the next run makes it again" : "start again");
}

/* 1: mapped; 0: there is none, or it is damaged. */
static int find(struct store *s)
{
    int fd = ct_file_open(s->path, CT_FILE_TEAM), rc;

    if (fd < 0)
        return fd == CT_ENOENT ? 0 : fd == CT_EINVAL ? CT_ECONFIG : fd;
    rc = map(s, fd);
    close(fd);
    return rc == 0 ? 1 : rc == CT_EINVAL ? 0 : rc;
}

/* ---- writing ---- */

/* Wait for the lock on the temporary file. The file's last writer may have renamed or removed it
   meanwhile: then the lock is worth nothing, and *fd is -1. */
static int lock(const char *path, int *fd, bool *waited)
{
    struct stat mine, there;
    int rc;

    *fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (*fd < 0)
        return ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    rc = flock(*fd, LOCK_EX | LOCK_NB);
    if (rc < 0 && errno == EWOULDBLOCK) {
        *waited = true;
        ct_info("text: waiting for another process that makes the same tokens");
        do
            rc = flock(*fd, LOCK_EX);
        while (rc < 0 && errno == EINTR);
    }
    if (rc < 0) {
        rc = ct_fail(CT_EIO, "%s cannot be locked: %s", path, strerror(errno));
        close(*fd);
        return rc;
    }
    if (fstat(*fd, &mine) < 0 || stat(path, &there) < 0 || mine.st_ino != there.st_ino ||
        mine.st_dev != there.st_dev) {
        close(*fd);
        *fd = -1;
    }
    return 0;
}

static int write_tokens(struct store *s, struct opening *o, FILE *out)
{
    XXH128_hash_t after;
    int rc = encode(out, s->width, o->request->tokenizer, &o->corpus);

    if (rc == 0 && s->kept) {
        rc = find_key(o, s->width, &after);
        if (rc == 0 && !XXH128_isEqual(o->key, after))
            rc = ct_fail(CT_ECONFIG,
                         "%s: a file changed while it was tokenised; start again when all "
                         "are complete",
                         o->request->corpus.option);
    }
    return rc;
}

/* fd, which is locked, is closed. */
static int make(struct store *s, struct opening *o, int fd, const char *temporary)
{
    FILE *out = ftruncate(fd, 0) == 0 ? fdopen(fd, "w") : NULL;
    int rc;

    if (!out) {
        rc = ct_fail(CT_EIO, "%s: %s", temporary, strerror(errno));
        close(fd);
        return rc;
    }
    rc = write_tokens(s, o, out);
    if (rc == 0 && fsync(fileno(out)) < 0)
        rc = ct_fail(CT_EIO, "%s: %s", temporary, strerror(errno));
    if (rc == 0)
        rc = ct_file_rename(temporary, s->path);
    if (rc < 0)
        unlink(temporary); /* before the lock ends with the file */
    fclose(out);
    return rc;
}

/* Once the lock is held, another process may have made the file. */
static int make_once(struct store *s, struct opening *o)
{
    char temporary[CT_PATH_ROOM];
    int fd, rc;

    snprintf(temporary, sizeof(temporary), "%.*s.tmp", CT_PATH_ROOM - 8, s->path);
    rc = lock(temporary, &fd, &o->waited);
    if (rc < 0)
        return rc;
    rc = find(s);
    if (rc == 0 && o->waited && o->corpus.streams)
        rc = ct_fail(CT_EPEER, "%s: the process that was to read it for all failed",
                     o->request->corpus.option);
    if (rc == 0 && fd >= 0) {
        if (access(s->path, F_OK) == 0)
            ct_warn("text: %s, and is made again", ct_error_message());
        rc = make(s, o, fd, temporary);
        return rc < 0 ? rc : find(s);
    }
    if (fd >= 0) {
        unlink(temporary);
        close(fd);
    }
    return rc;
}

static int find_or_make(struct store *s, struct opening *o)
{
    const struct encoded *header;
    int rc = find(s);

    if (rc > 0 && o->corpus.streams)
        ct_info("text: %s was read before, and is not read again; another [text] "
                "command_key makes it so",
                o->request->corpus.option);
    while (rc == 0)
        rc = make_once(s, o);
    if (rc < 0)
        return rc;
    ct_info("text: tokens in %s (%.2f GB)", s->path, 1e-9 * (double)s->size);
    header = s->base;
    if (!o->corpus.count && header->malformed)
        ct_warn("%lld malformed lines were skipped when these were made",
                (long long)header->malformed);
    if (!o->corpus.count && header->broken)
        ct_warn("%lld bytes that are not UTF-8 were read as U+FFFD when these were made",
                (long long)header->broken);
    return 0;
}

/* ---- the whole ---- */

static int open_kept(struct store *s, struct opening *o)
{
    int rc = find_key(o, s->width, &o->key);

    if (rc < 0)
        return ct_context(rc, "%s", o->request->corpus.option);
    rc = find_path(s, o);
    if (rc == 0)
        rc = find_or_make(s, o);
    return rc == CT_EIO ? cannot_keep(rc) : rc;
}

static int open_unnamed(struct store *s, struct opening *o)
{
    int rc = spool_open(&s->spool, o->request->corpus.spool);

    if (rc == 0)
        rc = write_tokens(s, o, s->spool.file);
    if (rc == CT_EIO)
        rc = ct_context(rc, "[text] spool_folder %s", o->request->corpus.spool);
    return rc < 0 ? rc : map(s, fileno(s->spool.file));
}

/* A stream's tokens are found again by other ranks and by validation. */
static int check_kept(const struct store *s, const struct store_request *request)
{
    if (s->kept || !s->streams)
        return 0;
    return ct_fail(CT_ECONFIG, "%s is read once, and its tokens must be kept: %s",
                   request->corpus.option,
                   request->tokenizer->identity ? "set [text] cache to a folder, or leave it out"
                                                : "the tokenizer has no `identity` for that");
}

int store_open(struct store *s, const struct store_request *request, const char *paths)
{
    const struct ct_tokenizer_ops *tokenizer = request->tokenizer;
    struct opening o = {.request = request};
    int rc = corpus_open(&o.corpus, &request->corpus, paths);

    *s = (struct store){0};
    if (rc < 0)
        return ct_context(rc, "%s", request->corpus.option);
    s->width = request->corpus.weights                                              ? 8
               : !request->corpus.chat && tokenizer->vocabulary() <= UINT16_MAX + 1 ? 2
                                                                                    : 4;
    s->kept = strcmp(request->cache, "none") != 0 && tokenizer->identity;
    s->files = o.corpus.file_count;
    s->streams = o.corpus.streams;
    rc = check_kept(s, request);
    if (rc == 0)
        rc = s->kept ? open_kept(s, &o) : open_unnamed(s, &o);
    corpus_close(&o.corpus);
    if (rc < 0)
        store_close(s);
    return rc;
}

void store_close(struct store *s)
{
    if (s->base)
        munmap(s->base, s->size);
    free(s->checked);
    spool_close(&s->spool);
    *s = (struct store){0};
}
