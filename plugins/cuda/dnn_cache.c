/*
 * Plans of cuDNN in files. cuDNN compiles a plan's kernels when it is made; its text has them, so a
 * plan that is read from a file is there at once.
 *
 * A file is ctitan/cuda/plan-HASH.txt in $XDG_CACHE_HOME or ~/.cache. It has what determines the
 * plan (cuDNN, the device, the driver, the graph as it was described), size and checksum of the
 * text, and the text. It appears by renaming, so it is complete or absent, whichever ranks write
 * it. cuDNN chooses by its heuristic, and measures nothing: the plan of a file is the one that
 * would be made. A file has the time when it was last read. Where a device has added plans, its end
 * removes files that nobody has read for a month, such as those of a library or driver that was
 * replaced: by then the run has read all of its own.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <ctitan/file.h>
#include <ctitan/log.h>

#include "dnn_cache.h"

#define LARGEST ((size_t)64 << 20) /* bytes of a file */
#define UNREAD (30 * 24 * 3600)    /* seconds after which a file is removed */

struct entry {
    char key[256], path[CT_PATH_ROOM + 32];
};

static int find_entry(struct gpu *gpu, const struct dnn_graph *g, struct entry *e)
{
    char device[160], folder[CT_PATH_ROOM];
    int rc = ct_file_cache_folder(folder, "cuda");

    if (rc < 0)
        return rc;
    gpu_identify(gpu, device, sizeof(device));
    snprintf(e->key, sizeof(e->key), "cuDNN %d, %s, graph %016llx", dnn_version(), device,
             (unsigned long long)g->hash);
    snprintf(e->path, sizeof(e->path), "%s/plan-%016llx.txt", folder,
             (unsigned long long)ct_hash(e->key));
    return 0;
}

/* The text after the lines before it; NULL: it is not what was written. */
static const char *check_text(const char *data, size_t size, const char *key)
{
    unsigned long long bytes, sum;
    size_t length = strlen(key);
    const char *text;
    int used = 0;

    if (size <= length || memcmp(data, key, length) || data[length] != '\n' ||
        sscanf(data + length, " %llu %llx%n", &bytes, &sum, &used) != 2)
        return NULL;
    text = data + length + used + 1;
    return text[-1] == '\n' && text + bytes == data + size && ct_hash(text) == sum ? text : NULL;
}

/* Not 0: it is to be made. */
static int restore(const struct entry *e, struct dnn_graph *g, cudnnHandle_t handle)
{
    struct ct_arena scratch = {0};
    const char *text = NULL;
    char *data;
    size_t size;
    int rc = ct_file_read_own(&scratch, e->path, LARGEST, &data, &size);

    if (rc == 0)
        text = check_text(data, size, e->key);
    if (rc == 0 && !text)
        rc = ct_fail(CT_EINVAL, "%s is damaged", e->path);
    if (rc == 0)
        rc = dnn_graph_restore(g, handle, NULL, text, (size_t)(data + size - text));
    if (rc == 0)
        utimensat(AT_FDCWD, e->path, NULL, AT_SYMLINK_NOFOLLOW);
    if (rc < 0 && rc != CT_ENOENT)
        ct_warn("cuda: %s: a plan of cuDNN is made again", ct_error_message());
    ct_arena_finish(&scratch);
    return rc;
}

struct kept {
    const struct entry *entry;
    const char *text;
    size_t size;
};

static void print_plan(const void *object, FILE *out)
{
    const struct kept *k = object;

    fchmod(fileno(out), 0600); /* whatever the mask: what others may write is not read */
    fprintf(out, "%s\n%zu %016llx\n", k->entry->key, k->size, (unsigned long long)ct_hash(k->text));
    fwrite(k->text, 1, k->size, out);
}

void dnn_cache_remove_unread(void)
{
    char folder[CT_PATH_ROOM];
    DIR *dir = ct_file_cache_folder(folder, "cuda") < 0 ? NULL : opendir(folder);
    time_t now = time(NULL);
    const struct dirent *at;
    struct stat s;

    while (dir && (at = readdir(dir)))
        if (!strncmp(at->d_name, "plan-", 5) &&
            fstatat(dirfd(dir), at->d_name, &s, AT_SYMLINK_NOFOLLOW) == 0 &&
            now - s.st_mtime > UNREAD)
            unlinkat(dirfd(dir), at->d_name, 0);
    if (dir)
        closedir(dir);
}

static void keep(const struct entry *e, const struct dnn_graph *g)
{
    static bool warned;
    struct ct_arena scratch = {0};
    struct kept k = {.entry = e};
    char *text;
    int rc = dnn_graph_text(g, &scratch, &text, &k.size);

    k.text = text;
    if (rc == 0)
        rc = ct_file_print(e->path, print_plan, &k);
    if (rc < 0 && !warned)
        ct_warn("cuda: plans of cuDNN are not kept for later runs: %s", ct_error_message());
    warned |= rc < 0;
    ct_arena_finish(&scratch);
}

int dnn_cache_plan(struct gpu *gpu, struct dnn_graph *g, cudnnHandle_t handle, bool *added)
{
    struct entry e;
    bool kept = find_entry(gpu, g, &e) == 0;
    int rc;

    if (kept && restore(&e, g, handle) == 0)
        return 0;
    rc = dnn_graph_plan(g, handle, NULL);
    if (rc == 0 && kept) {
        keep(&e, g);
        *added = true;
    }
    return rc;
}
