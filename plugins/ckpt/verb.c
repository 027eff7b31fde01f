/*
 * `ctitan ckpt`: what checkpoints there are, whether they are good, what is in them, how two of
 * them differ, and a whole one of files on several hosts.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/launch.h>
#include <ctitan/verb.h>

#include "ckpt.h"

static size_t bytes_of(const struct ckpt *c)
{
    size_t bytes = 0;

    for (size_t i = 0; i < c->file_count; i++)
        bytes += c->files[i].header + c->files[i].bytes;
    return bytes;
}

static int64_t elements_of(const struct ckpt *c, enum ct_role role)
{
    int64_t count = 0;

    for (size_t i = 0; i < c->tensor_count; i++)
        if (c->tensors[i].role == role)
            count += ct_shape_count(c->tensors[i].ndim, c->tensors[i].shape);
    return count;
}

static const char *time_text(int64_t seconds, char text[32])
{
    time_t t = (time_t)seconds;
    struct tm tm;

    strftime(text, 32, "%Y-%m-%d %H:%M:%S", localtime_r(&t, &tm));
    return text;
}

static const char *files_text(size_t count)
{
    return count == 1 ? "file" : "files";
}

/* How `verify` reaches other hosts; NULL: it does not. */
static const char *shell;

/* A failure to open or read a checkpoint, in a few words. */
static const char *failure_text(int rc)
{
    return ckpt_is_bad(rc) ? "damaged" : "not readable";
}

/* The action on the checkpoint of a path, or with the failure rc to open it. width: of the
   longest path. list: where the result goes instead of lines for people; NULL: there. */
typedef int do_one(struct ckpt *c, const char *path, int width, int rc, json_t *list);

/* Call work for every checkpoint of a folder, oldest first, or for the one that path is. One that a
   run removes meanwhile is none. */
static int for_each(const char *path, do_one *work, json_t *list)
{
    struct ct_arena scratch = {0};
    const char *folder = ckpt_folder_of(&scratch, path);
    int64_t *steps;
    size_t count;
    int worst = ckpt_steps(&scratch, folder, &steps, &count);
    int width = count ? (int)strlen(ckpt_step_path(&scratch, folder, steps[0])) : 0;
    struct ckpt c;

    if (!access(ct_arena_printf(&scratch, "%s/" INDEX, path), F_OK))
        worst = work(&c, path, 0, ckpt_open(&scratch, path, &c), list);
    else if (worst == 0 && !count)
        worst = ckpt_none(&scratch, path);
    else
        while (count--) {
            const char *one = ckpt_step_path(&scratch, folder, steps[count]);
            int rc = ckpt_open(&scratch, one, &c);

            if (rc == 0 || !ckpt_is_gone(one))
                rc = work(&c, one, width, rc, list);
            worst = rc < 0 && !ckpt_is_gone(one) ? rc : worst;
        }
    ct_arena_finish(&scratch);
    return worst;
}

/* ---- ls, verify ---- */

static json_t *entry_json(const struct ckpt *c, const char *path, int rc)
{
    if (rc < 0)
        return json_pack("{s:o, s:o}", "path", ct_json_text(path), "failure",
                         ct_json_text(ct_error_message()));
    return json_pack("{s:o, s:n, s:I, s:I, s:I, s:I, s:b, s:o}", "path", ct_json_text(path),
                     "failure", "step", (json_int_t)c->progress.step - 1, "time",
                     (json_int_t)c->time, "bytes", (json_int_t)bytes_of(c), "tokens",
                     (json_int_t)c->progress.tokens, "model_only", (int)c->model_only, "mesh",
                     ct_json_text(c->mesh));
}

static int list_one(struct ckpt *c, const char *path, int width, int rc, json_t *list)
{
    char when[32];

    if (list)
        json_array_append_new(list, entry_json(c, path, rc));
    else if (rc < 0)
        printf("%-*s  %s: %s\n", width, path, failure_text(rc), ct_error_message());
    else
        printf("%-*s  %s  %8.1f MB  %14lld tokens  %s, %s\n", width, path, time_text(c->time, when),
               (double)bytes_of(c) / 1e6, (long long)c->progress.tokens,
               c->model_only ? "model only" : "complete", c->mesh);
    return 0;
}

/* The worse of two results: what is damaged stays so, and what cannot be read may be good. */
static int tell_bad(const char *path, int rc, int before, json_t *failures)
{
    if (failures)
        json_array_append_new(failures, ct_json_text(ct_error_message()));
    else
        printf("%s: %s: %s\n", path, failure_text(rc), ct_error_message());
    return ckpt_is_bad(before) ? before : rc;
}

/* The line that verifies the files of another host, where the program has the same path. */
static const char *line_for(struct ct_arena *arena, const char *path)
{
    char folder[CT_PATH_ROOM], program[CT_PATH_ROOM];
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);

    program[n > 0 ? n : 0] = '\0';
    return ct_arena_printf(arena, "{ cd %s && %s ckpt verify --here %s; } 2>&1",
                           ct_launch_quote(arena, getcwd(folder, sizeof(folder)) ? folder : "."),
                           ct_launch_quote(arena, program), ct_launch_quote(arena, path));
}

/* Whether a host found damage or no checkpoint, by the status of its command. A shell that does not
   reach the host has another one. */
static bool is_damage(int status)
{
    return WIFEXITED(status) && (WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == 2);
}

/* Verify on a host, and print what is said there; the last line of a failure is its message. */
static int verify_on(struct ct_arena *arena, const char *host, const char *path, bool json)
{
    const char *const *argv = ct_launch_on_host(arena, shell, host, line_for(arena, path));
    const char *last = NULL;
    char line[1024];
    int status = -1;
    FILE *in;

    fflush(stdout);
    in = popen(ct_launch_line(arena, argv), "r");
    while (in && fgets(line, sizeof(line), in)) {
        if (last && !json)
            printf("host %s: %s\n", host, last);
        last = ct_arena_printf(arena, "%.*s", (int)strcspn(line, "\n"), line);
    }
    if (in)
        status = pclose(in);
    if (status != 0)
        return ct_fail(last && is_damage(status) ? CT_EDAMAGED : CT_EIO, "host %s: %s", host,
                       last ? last : "it does not answer");
    if (last && !json)
        printf("host %s: %s\n", host, last);
    return 0;
}

/* Whether this host is the one that should have the file, and lacks it. */
static bool is_lost(const struct ckpt_file *f)
{
    return f->absent && ckpt_is_own_host(f->host);
}

/* Whether a file before number i is absent on the same host. */
static bool is_known(const struct ckpt *c, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (c->files[k].absent && !strcmp(c->files[k].host, c->files[i].host))
            return true;
    return false;
}

/* Verify the files of other hosts there. */
static int read_others(const struct ckpt *c, const char *path, json_t *failures, int worst)
{
    for (size_t i = 0; shell && i < c->file_count; i++) {
        const struct ckpt_file *f = &c->files[i];
        bool asks = f->absent && !is_lost(f) && !is_known(c, i);
        int rc = asks ? verify_on(c->arena, f->host, path, failures) : 0;

        worst = rc < 0 ? tell_bad(path, rc, worst, failures) : worst;
    }
    return worst;
}

static size_t files_here(const struct ckpt *c)
{
    size_t count = 0;

    for (size_t i = 0; i < c->file_count; i++)
        count += !c->files[i].absent;
    return count;
}

/* Read all bytes of a file, if it is of this host. */
static int read_one(const struct ckpt *c, const struct ckpt_file *f)
{
    if (is_lost(f))
        return ct_fail(CT_EDAMAGED, "%s/%s is not there", c->path, f->name);
    return f->absent ? 0 : ckpt_read_file(c, f, NULL);
}

/* Compare the small files. Checkpoints of older versions have them on the host of rank 0 alone. */
static int read_small(struct ckpt *c)
{
    bool elsewhere = c->file_count && c->files[0].absent;

    return elsewhere && ckpt_is_gone(ct_arena_printf(c->arena, "%s/" CKPT_BESIDE, c->path))
               ? 0
               : ckpt_beside_read(c);
}

/* Read all bytes. 1: a run has removed the checkpoint meanwhile. */
static int read_all(struct ckpt *c, const char *path, json_t *failures)
{
    int worst = 0, rc;

    for (size_t i = 0; i < c->file_count; i++) {
        rc = read_one(c, &c->files[i]);
        if (rc < 0 && ckpt_is_gone(path))
            return 1;
        worst = rc < 0 ? tell_bad(path, rc, worst, failures) : worst;
    }
    worst = read_others(c, path, failures, worst);
    rc = read_small(c);
    return rc < 0 && !ckpt_is_gone(path) ? tell_bad(path, rc, worst, failures) : worst;
}

static int verify(struct ckpt *c, const char *path, int width, int rc, json_t *list)
{
    json_t *failures = list ? json_array() : NULL;
    int worst = rc < 0 ? tell_bad(path, rc, 0, failures) : read_all(c, path, failures);

    (void)width;
    if (worst > 0) {
        if (!list)
            printf("%s: removed meanwhile\n", path);
        json_decref(failures);
        return 0;
    }
    if (list)
        json_array_append_new(list,
                              json_pack("{s:o, s:b, s:o, s:I, s:I}", "path", ct_json_text(path),
                                        "undamaged", worst == 0, "failures", failures, "bytes",
                                        rc < 0 ? (json_int_t)0 : (json_int_t)bytes_of(c), "files",
                                        rc < 0 ? (json_int_t)0 : (json_int_t)c->file_count));
    else if (worst == 0 && files_here(c) < c->file_count)
        printf("%s: undamaged, %zu of %zu files%s\n", path, files_here(c), c->file_count,
               shell ? " here, the others on their hosts" : "; the others are on other hosts");
    else if (worst == 0)
        printf("%s: undamaged, %.1f MB in %zu %s\n", path, (double)bytes_of(c) / 1e6, c->file_count,
               files_text(c->file_count));
    return worst < 0 ? ct_fail(CT_EIO, "%s is %s", path, failure_text(worst)) : 0;
}

/* The checkpoints as one object. */
static int for_each_json(const char *path, do_one *work)
{
    json_t *list = json_array();
    int rc = for_each(path, work, list), printed = 0;

    if (rc == 0 || json_array_size(list))
        printed = ct_json_print(json_pack("{s:o}", "checkpoints", list), stdout);
    else
        json_decref(list);
    return rc < 0 ? rc : printed;
}

/* ---- show ---- */

/* In how many files a tensor lies. */
static size_t files_of(const struct ckpt *c, const struct ct_checkpoint_tensor *t)
{
    size_t boxes = 0;

    for (size_t i = 0; i < c->file_count; i++)
        for (size_t k = 0; k < c->files[i].box_count; k++)
            boxes += !strcmp(c->files[i].boxes[k].name, t->name);
    return boxes;
}

static void show_tensor(const struct ckpt *c, const struct ct_checkpoint_tensor *t)
{
    struct ct_shape shape = ct_shape_of(t->ndim, t->shape);
    size_t boxes = files_of(c, t);
    char text[128];

    ct_shape_print(&shape, text, sizeof(text));
    printf("  %-56s %-10s [%s] in %zu %s\n", t->name, ct_dtype_name(t->dtype), text, boxes,
           files_text(boxes));
}

static void show_people(const struct ckpt *c)
{
    char when[32];

    printf("%s: after step %lld (%lld updates, %lld tokens, %lld sample%s), %s\n", c->path,
           (long long)c->progress.step - 1, (long long)c->progress.updates,
           (long long)c->progress.tokens, (long long)c->progress.samples,
           ct_plural(c->progress.samples), time_text(c->time, when));
    printf("%lld parameters, %lld elements of the optimizer; %.1f MB in %zu %s; %s\n",
           (long long)elements_of(c, CT_ROLE_PARAM), (long long)elements_of(c, CT_ROLE_STATE),
           (double)bytes_of(c) / 1e6, c->file_count, files_text(c->file_count), c->mesh);
    for (size_t i = 0; i < c->tensor_count; i++)
        show_tensor(c, &c->tensors[i]);
    if (c->recipe)
        printf("\n%s", c->recipe);
}

static json_t *tensor_json(const struct ckpt *c, const struct ct_checkpoint_tensor *t)
{
    json_t *shape = json_array();

    for (int d = 0; d < t->ndim; d++)
        json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
    return json_pack("{s:o, s:s, s:o, s:I}", "name", ct_json_text(t->name), "dtype",
                     ct_dtype_name(t->dtype), "shape", shape, "files", (json_int_t)files_of(c, t));
}

static int show_json(const struct ckpt *c)
{
    json_t *all = entry_json(c, c->path, 0), *tensors = json_array();

    for (size_t i = 0; i < c->tensor_count; i++)
        json_array_append_new(tensors, tensor_json(c, &c->tensors[i]));
    json_object_update_new(
        all,
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "updates", (json_int_t)c->progress.updates,
                  "samples", (json_int_t)c->progress.samples, "parameters",
                  (json_int_t)elements_of(c, CT_ROLE_PARAM), "optimizer_elements",
                  (json_int_t)elements_of(c, CT_ROLE_STATE), "files", (json_int_t)c->file_count,
                  "tensors", tensors, "recipe", ct_json_text(c->recipe)));
    return ct_json_print(all, stdout);
}

static int show(const char *path, bool json)
{
    struct ct_arena scratch = {0};
    struct ckpt c;
    int rc = ckpt_locate(&scratch, path, &c);

    if (rc == 0 && json)
        rc = show_json(&c);
    else if (rc == 0)
        show_people(&c);
    ct_arena_finish(&scratch);
    return rc;
}

struct request {
    struct ct_arena arena;
    const char *action, *folder, *other, *to;
    bool json, here;
    struct ckpt_reach reach;
};

static const struct ct_argument arguments[] = {
    CT_ARG_CHOSEN(struct request, action, "ACTION", "ls|verify|show|diff|gather",
                  "List checkpoints, read and check all of their bytes, show what is in one, "
                  "compare two, or make a whole one of files on several hosts"),
    CT_ARG_WORD(struct request, folder, "FOLDER",
                "A run's dump folder, its folder of checkpoints, or one checkpoint"),
    CT_ARG_OPTIONAL(struct request, other, "OTHER", "For diff: the other checkpoint"),
    CT_ARG_FLAG(struct request, json, "json", 0, "Print JSON"),
    CT_ARG_TEXT(struct request, to, "to", 0, "FOLDER",
                "For gather: the folder of checkpoints that gets the whole one"),
    CT_ARG_TEXT(struct request, reach.at, "at", 0, "PATH",
                "For gather: where FOLDER of another host is seen here, in which {} stands for the "
                "host's name; without it, --shell reads the files"),
    CT_ARG_FLAG(struct request, here, "here", 0,
                "For verify: only the files of this host, where others are on other hosts"),
    CT_ARG_TEXT(struct request, reach.shell, "shell", 0, "COMMAND",
                "For verify and gather: the command that runs a line on another host, in which {} "
                "stands for its name; ssh where it is left out"),
    {0}};

static bool is_action(const struct request *r, const char *name)
{
    return !strcmp(r->action, name);
}

/* Words and options that the action has no use for, or that it lacks. */
static int check_request(const struct request *r)
{
    bool verify = is_action(r, "verify"), gather = is_action(r, "gather");

    if (is_action(r, "diff") && !r->other)
        return ct_fail(CT_ECONFIG, "ckpt diff: expected two folders");
    if (!is_action(r, "diff") && r->other)
        return ct_fail(CT_ECONFIG, "ckpt %s: expected one folder, but there is also %s", r->action,
                       r->other);
    if (gather && !r->to)
        return ct_fail(CT_ECONFIG, "ckpt gather: --to is missing, the folder of the whole one");
    if ((r->here && !verify) || (r->reach.shell && !verify && !gather))
        return ct_fail(CT_ECONFIG, "ckpt %s: --here is of verify, --shell of verify and gather",
                       r->action);
    if ((r->to || r->reach.at) && !gather)
        return ct_fail(CT_ECONFIG, "ckpt %s: --to and --at are of gather", r->action);
    return 0;
}

static int run_gather(struct request *r)
{
    json_t *list = r->json ? json_array() : NULL;
    struct ckpt c;
    int rc = ckpt_gather(&r->arena, r->folder, r->to, &r->reach, &c), printed = 0;

    if (rc == 0)
        list_one(&c, c.path, 0, 0, list);
    if (rc == 0 && list)
        printed = ct_json_print(json_incref(json_array_get(list, 0)), stdout);
    json_decref(list);
    return rc < 0 ? rc : printed;
}

static int run_action(struct request *r)
{
    do_one *work = is_action(r, "ls") ? list_one : verify;

    if (!r->reach.shell)
        r->reach.shell = CT_LAUNCH_SSH;
    shell = r->here ? NULL : r->reach.shell;
    if (is_action(r, "diff"))
        return ckpt_diff(r->folder, r->other, r->json);
    if (is_action(r, "show"))
        return show(r->folder, r->json);
    if (is_action(r, "gather"))
        return run_gather(r);
    return r->json ? for_each_json(r->folder, work) : for_each(r->folder, work, NULL);
}

static int run_ckpt(int argc, char **argv)
{
    struct request r = {0};
    int rc = ct_arguments_parse(arguments, argc, argv, &r.arena, &r);

    if (rc == 0)
        rc = check_request(&r);
    if (rc == 0)
        rc = run_action(&r);
    ct_arena_finish(&r.arena);
    return rc;
}

const struct ct_verb_ops ckpt_verb = {
    .size = sizeof(ckpt_verb),
    .summary = "list, verify, show, compare and gather checkpoints",
    .run = run_ckpt,
    .arguments = arguments,
    .examples =
        CT_NAMES("ctitan ckpt ls outputs/quickstart", "ctitan ckpt diff outputs/one outputs/two",
                 "ctitan ckpt gather outputs/quickstart --to whole/checkpoint")};
