/*
 * Saving a run, and resuming it on any mesh.
 *
 * Every so many steps, each rank holds the shards that it is the first to have. While the next step
 * runs, a thread writes them into FOLDER/step-N.tmp/rank-R: for each shard a line with its state
 * and position, then an empty line, then the data. When all ranks are done, rank 0 adds the
 * run's progress and renames the folder to step-N, so that a save is complete or absent. A run
 * starts from the newest save: each rank reads its own parts from the shards of all ranks.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/comm.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>
#include <ctitan/run.h>
#include <ctitan/state.h>

static struct config {
    const char *folder;
    int64_t every;
} config;

static const struct ct_option options[] = {
    CT_OPT_STRING(struct config, folder, "folder", NULL,
                  "Folder to save steps to and load them from"),
    CT_OPT_INT(struct config, every, "every", "0", 0, 1e15, "Steps between two saves; 0: never"),
    {0}};

/* ---- saving ---- */

static struct {
    enum { NOTHING, WRITING, WRITTEN } phase;
    struct ct_run *run;
    struct ct_progress progress;
    pthread_t thread;
    int rc; /* of the thread */
    char message[1024];
} save;

/* Bytes of state that this rank saves. */
static size_t own_bytes(const struct ct_run *run, const struct ct_state *state)
{
    return state->value && ct_run_shard_first(run, state, run->rank)
               ? ct_run_shard_bytes(run, state)
               : 0;
}

static void put_list(FILE *out)
{
    const struct ct_run *run = save.run;

    fprintf(out, "shards\n");
    for (size_t i = 0; i < run->state_count; i++) {
        const struct ct_state *s = &run->states[i];
        int64_t shape[CT_MAX_DIMS], offset[CT_MAX_DIMS];

        if (!own_bytes(run, s))
            continue;
        ct_run_shard(run, s, run->rank, shape, offset);
        fprintf(out, "%s %s %d", s->name, ct_dtype_name(s->dtype), s->ndim);
        for (int d = 0; d < s->ndim; d++)
            fprintf(out, " %lld+%lld", (long long)offset[d], (long long)shape[d]);
        fputc('\n', out);
    }
    fputc('\n', out);
}

static int put_shard(FILE *out, const struct ct_state *state)
{
    static char block[1 << 20];
    size_t bytes = own_bytes(save.run, state), at = 0;
    int rc = 0;

    while (rc == 0 && at < bytes) {
        size_t n = bytes - at < sizeof(block) ? bytes - at : sizeof(block);

        rc = ct_run_copy_out(save.run, state, at, n, block);
        if (rc == 0)
            fwrite(block, 1, n, out); /* ct_file_end reports a failure */
        at += n;
    }
    return rc;
}

/* Every state is released, whatever fails. */
static int put_shards(FILE *out, int rc)
{
    for (size_t i = 0; i < save.run->state_count; i++) {
        if (rc == 0)
            rc = put_shard(out, &save.run->states[i]);
        ct_run_release(save.run, &save.run->states[i]);
    }
    return rc;
}

/* The final name of the folder of the current save. */
static const char *folder_of_save(struct ct_arena *arena)
{
    return ct_arena_printf(arena, "%s/step-%lld", config.folder, (long long)save.progress.step - 1);
}

static int write_file(void)
{
    struct ct_arena scratch = {0};
    const char *folder = ct_arena_printf(&scratch, "%s.tmp", folder_of_save(&scratch));
    struct ct_new_file file = {0};
    int rc = ct_file_make_folder(folder);

    if (rc == 0)
        rc = ct_file_begin(
            &file, ct_arena_printf(&scratch, "%s/rank-%lld", folder, (long long)save.run->rank));
    if (rc == 0)
        put_list(file.out);
    rc = put_shards(file.out, rc);
    if (file.out)
        rc = ct_file_end(&file, rc);
    ct_arena_finish(&scratch);
    return rc;
}

static void *write_aside(void *context)
{
    (void)context;
    save.rc = write_file();
    if (save.rc < 0) /* the thread has its own message */
        snprintf(save.message, sizeof(save.message), "%s", ct_error_message());
    return NULL;
}

static int begin_save(struct ct_run *run)
{
    save.run = run;
    save.progress = run->progress;
    for (size_t i = 0; i < run->state_count; i++)
        ct_run_hold(run, &run->states[i]);
    if (pthread_create(&save.thread, NULL, write_aside, NULL))
        return ct_fail(CT_ENOMEM, "resume: cannot create the thread that writes");
    save.phase = WRITING;
    return 0;
}

/* All ranks have written: give the folder its final name. */
static int publish(void)
{
    const struct ct_progress *p = &save.progress;
    struct ct_arena scratch = {0};
    const char *folder = folder_of_save(&scratch);
    const char *temporary = ct_arena_printf(&scratch, "%s.tmp", folder);
    const char *text = ct_arena_printf(&scratch, "%lld %lld %lld %lld %lld\n", (long long)p->step,
                                       (long long)p->updates, (long long)p->tokens,
                                       (long long)p->samples, (long long)save.run->world);
    int rc = ct_file_write(ct_arena_printf(&scratch, "%s/progress", temporary), text, strlen(text));

    if (rc == 0)
        rc = ct_file_rename(temporary, folder);
    if (rc == 0)
        ct_info("saved %s", folder);
    ct_arena_finish(&scratch);
    return rc;
}

/* Advance the current save as far as possible; block: until it is finished. All ranks call this. */
static int advance(struct ct_run *run, bool block)
{
    enum { DONE, GOES_ON, FAILED };
    struct ct_group *world = ct_run_world(run);
    int32_t mine, all;
    int rc;

    if (save.phase == NOTHING)
        return 0;
    if (save.phase == WRITING &&
        (block ? pthread_join(save.thread, NULL) : pthread_tryjoin_np(save.thread, NULL)) == 0)
        save.phase = WRITTEN;
    mine = save.phase != WRITTEN ? GOES_ON : save.rc < 0 ? FAILED : DONE;
    rc = ct_group_all_reduce(world, &mine, &all, 1, CT_I32, CT_REDUCE_MAX);
    if (rc < 0 || all == GOES_ON)
        return rc;
    if (all == FAILED)
        return mine == FAILED ? ct_fail(save.rc, "%s", save.message)
                              : ct_fail(CT_EPEER, "resume: another rank could not save");
    save.phase = NOTHING;
    return run->rank == 0 ? publish() : 0;
}

/* ---- resuming ---- */

/* A shard in a file. */
struct shard {
    char name[512];
    enum ct_dtype dtype;
    int ndim;
    int64_t offset[CT_MAX_DIMS], shape[CT_MAX_DIMS]; /* in the whole tensor */
    int64_t elements;
};

/* "NAME DTYPE DIMENSIONS OFFSET+SIZE .." */
static int parse_shard(const char *line, struct shard *s)
{
    char dtype[32];
    int at, n;

    if (sscanf(line, "%511s %31s %d%n", s->name, dtype, &s->ndim, &at) != 3 || s->ndim < 0 ||
        s->ndim > CT_MAX_DIMS || ct_dtype_parse(dtype, &s->dtype) < 0)
        return ct_fail(CT_EINVAL, "'%s' is not a shard", line);
    for (int d = 0; d < s->ndim; d++, at += n)
        if (sscanf(line + at, " %" SCNd64 "+%" SCNd64 "%n", &s->offset[d], &s->shape[d], &n) != 2 ||
            s->shape[d] < 1)
            return ct_fail(CT_EINVAL, "'%s' is not a shard", line);
    s->elements = ct_shape_count(s->ndim, s->shape);
    return 0;
}

static int fill(struct ct_run *run, const struct ct_state *state, const struct shard *s,
                const char *data)
{
    if (s->ndim != state->ndim || s->dtype != state->dtype)
        return ct_fail(CT_EINVAL, "%s is %s of %d dimensions there", s->name,
                       ct_dtype_name(s->dtype), s->ndim);
    return ct_run_fill(run, state, s->offset, s->shape, data);
}

/* A run that only evaluates has no optimizer states, and skips them. */
static bool trains(const struct ct_run *run)
{
    for (size_t i = 0; i < run->state_count; i++)
        if (run->states[i].role == CT_ROLE_STATE)
            return true;
    return false;
}

/* found: by state, the number of elements read. */
static int read_shards(struct ct_run *run, char *text, size_t size, int64_t *found)
{
    char *data = memmem(text, size, "\n\n", 2), *end = text + size, *line;

    if (!data || strncmp(text, "shards\n", 7) != 0)
        return ct_fail(CT_EINVAL, "it is not a list of shards");
    *data = '\0';
    data += 2;
    strsep(&text, "\n");
    while ((line = strsep(&text, "\n"))) {
        const struct ct_state *state = NULL;
        struct shard s;
        int rc = parse_shard(line, &s);

        if (rc == 0 && (size_t)s.elements > (size_t)(end - data) / ct_dtype_size(s.dtype))
            rc = ct_fail(CT_EINVAL, "it ends within %s", s.name);
        if (rc == 0)
            state = ct_run_state(run, s.name);
        if (rc == 0 && !state && trains(run))
            rc = ct_fail(CT_EINVAL, "%s is not a state of this run", s.name);
        if (state)
            rc = fill(run, state, &s, data);
        if (rc < 0)
            return rc;
        if (state)
            found[state - run->states] += s.elements;
        data += (size_t)s.elements * ct_dtype_size(s.dtype);
    }
    return data == end ? 0 : ct_fail(CT_EINVAL, "it continues after its last shard");
}

static int read_file(struct ct_run *run, const char *path, int64_t *found)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc;
    struct stat st;
    char *text;

    if (fd < 0 || fstat(fd, &st) < 0)
        return ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    /* Private, because line ends are overwritten. */
    text = mmap(NULL, (size_t)st.st_size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    close(fd);
    if (text == MAP_FAILED)
        return ct_fail(CT_EIO, "%s: %s", path, strerror(errno));
    rc = read_shards(run, text, (size_t)st.st_size, found);
    munmap(text, (size_t)st.st_size + 1);
    return rc < 0 ? ct_context(rc, "%s", path) : 0;
}

static int restore(struct ct_run *run, int64_t step)
{
    struct ct_arena scratch = {0};
    int64_t *found = ct_arena_array(&scratch, int64_t, run->state_count + 1);
    struct ct_progress *p = &run->progress;
    long long next, updates, tokens, samples, ranks;
    const char *folder = ct_arena_printf(&scratch, "%s/step-%lld", config.folder, (long long)step);
    size_t size;
    char *text;
    int rc =
        ct_file_read(&scratch, ct_arena_printf(&scratch, "%s/progress", folder), 256, &text, &size);

    if (rc == 0 &&
        sscanf(text, "%lld %lld %lld %lld %lld", &next, &updates, &tokens, &samples, &ranks) != 5)
        rc = ct_fail(CT_EINVAL, "%s/progress does not have five numbers", folder);
    for (long long r = 0; rc == 0 && r < ranks; r++)
        rc = read_file(run, ct_arena_printf(&scratch, "%s/rank-%lld", folder, r), found);
    for (size_t i = 0; rc == 0 && i < run->state_count; i++)
        if (found[i] != ct_shape_count(run->states[i].ndim, run->states[i].shape))
            rc = ct_fail(CT_EINVAL, "%s lacks a part of %s", folder, run->states[i].name);
    if (rc == 0)
        *p = (struct ct_progress){next, updates, tokens, samples};
    if (rc == 0 && run->rank == 0)
        ct_info("resuming from %s", folder);
    ct_arena_finish(&scratch);
    return rc;
}

/* The newest complete save; -1: none. */
static int64_t newest(void)
{
    DIR *folder = opendir(config.folder);
    int64_t step = -1;

    for (struct dirent *d; folder && (d = readdir(folder));) {
        long long n;
        char end;

        if (sscanf(d->d_name, "step-%lld%c", &n, &end) == 1 && n > step)
            step = n;
    }
    if (folder)
        closedir(folder);
    return step;
}

static int resume(struct ct_run *run)
{
    struct ct_group *world = ct_run_world(run);
    int64_t step = run->rank == 0 ? newest() : 0;
    int rc = ct_group_broadcast(world, &step, 1, CT_I64, 0);

    return rc < 0 || step < 0 ? rc : restore(run, step);
}

/* ---- events ---- */

static void finish(void)
{
    if (save.phase == WRITING)
        pthread_join(save.thread, NULL);
    memset(&save, 0, sizeof(save));
}

static int on_event(const struct ct_event_data *data, void *context)
{
    struct ct_run *run = data->run;
    bool due = config.every && data->step % config.every == 0;
    int rc;

    (void)context;
    if (data->event == CT_EVENT_RUN_LOAD)
        return resume(run);
    if (data->event == CT_EVENT_FAILURE) {
        finish();
        return 0;
    }
    rc = advance(run, due || data->event == CT_EVENT_RUN_END);
    if (data->event == CT_EVENT_RUN_END)
        finish();
    else if (rc == 0 && due)
        rc = begin_save(run);
    return rc;
}

static const struct ct_hook hook = {.size = sizeof(struct ct_hook),
                                    .events = 1u << CT_EVENT_RUN_LOAD | 1u << CT_EVENT_STEP_END |
                                              1u << CT_EVENT_FAILURE | 1u << CT_EVENT_RUN_END,
                                    .call = on_event};

CT_PLUGIN(.name = "resume", .version = "1.0",
          .summary = "Saves a run while it trains, and resumes it on any mesh", .options = options,
          .config = &config, .config_size = sizeof(config),
          .offers = CT_OFFERS({CT_HOOK, "resume", &hook}));
