#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include <ctitan/clock.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>

#include "status.h"

#define AT_LEAST 1.0 /* seconds between two writings of the step */
#define SHARE 0.005  /* of the time, that they take at most: a disk may be slow */

static struct {
    double began; /* seconds since 1970 */
    int64_t ranks, step;
    double next; /* when the step is due to be written */
} now;

/* Writes status.json. launcher: the process that may start the ranks again; 0: none. */
static int write_status(const char *state, double ended, const char *message, pid_t launcher)
{
    char path[CT_PATH_ROOM], host[256] = "";
    json_t *o;
    char *text;
    int rc;

    gethostname(host, sizeof(host) - 1);
    o = json_pack("{ss so si si sI sI sI sf sf so}", "state", state, "host", ct_json_text(host),
                  "process", (int)getpid(), "launcher", (int)launcher, "ranks",
                  (json_int_t)now.ranks, "steps", (json_int_t)ct_config.training.steps, "step",
                  (json_int_t)now.step, "began", now.began, "ended", ended, "message",
                  ct_json_text(message));
    text = json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(15));
    json_decref(o);
    if (!text)
        return ct_fail(CT_ENOMEM, "status.json");
    snprintf(path, sizeof(path), "%s/status.json", ct_config.job.dump_folder);
    rc = ct_file_write(path, text, strlen(text));
    free(text);
    return rc;
}

/* The same, and plan the next one. */
static int write_running(pid_t launcher)
{
    double began = ct_now();
    int rc = write_status("running", 0, "", launcher);

    now.next = ct_now() + fmax(AT_LEAST, (ct_now() - began) / SHARE);
    return rc;
}

static pid_t launcher_of_rank(void)
{
    return getenv("CTITAN_JOB") ? getppid() : 0;
}

/* ---- a job of several ranks, seen by its launcher ---- */

/* The newest step in metrics.jsonl, if it is this run's; a rank that was killed said no more. */
static int64_t last_logged(void)
{
    struct stat st;
    char path[CT_PATH_ROOM], *line = NULL;
    size_t room = 0;
    long long step = 0;
    FILE *in;

    snprintf(path, sizeof(path), "%s/metrics.jsonl", ct_config.job.dump_folder);
    ct_file_open_stream(path, &in);
    while (in && fstat(fileno(in), &st) == 0 && (double)st.st_mtime + 1 > now.began &&
           getline(&line, &room, in) > 0)
        sscanf(line, "{\"step\": %lld", &step);
    free(line);
    if (in)
        fclose(in);
    return step;
}

/* Go on from what rank 0 wrote. False: this job has not trained. ended: it did, in order. */
static bool take_over(const struct ct_job_end *job, bool *ended)
{
    char path[CT_PATH_ROOM];
    const char *state = "";
    json_int_t launcher = 0, step = 0, ranks = job->ranks;
    json_t *o;

    snprintf(path, sizeof(path), "%s/status.json", ct_config.job.dump_folder);
    if (ct_json_read_file(path, 0, &o) < 0)
        o = NULL; /* the job has not begun to write it */
    json_unpack(o, "{s:s, s:I, s:I, s:I, s:F}", "state", &state, "launcher", &launcher, "step",
                &step, "ranks", &ranks, "began", &now.began);
    *ended = !strcmp(state, "stopped") || !strcmp(state, "done");
    json_decref(o);
    now.ranks = ranks; /* of all hosts */
    now.step = last_logged();
    if (now.step < step)
        now.step = step;
    return launcher == getpid();
}

/* Nobody failed first, so the launcher was told to end the job. */
static bool is_interrupted(const struct ct_event_data *data)
{
    return data->job->first < 0 && data->code == CT_EPEER;
}

int status_job_end(const struct ct_event_data *data)
{
    bool interrupted = is_interrupted(data), ended;

    /* The launcher of the host with rank 0 speaks for the job. */
    if (!data->message || data->job->rank0 > 0 || !take_over(data->job, &ended) ||
        (interrupted && ended))
        return 0;
    return write_status(interrupted ? "stopped" : "failed", ct_wall_clock(), data->message,
                        getpid());
}

/* ---- a rank ---- */

int status_begin(const struct ct_run *run)
{
    if (now.began > 0)
        return 0;
    now.began = ct_wall_clock();
    now.ranks = run->world;
    now.step = run->progress.step - 1;
    return write_running(launcher_of_rank());
}

int status_step(const struct ct_step_result *step)
{
    now.step = step->step;
    return ct_now() < now.next ? 0 : write_running(launcher_of_rank());
}

int status_end(const struct ct_event_data *data)
{
    const char *state = "failed", *message = data->message ? data->message : "", *why;

    if (!(now.began > 0)) /* it has not trained */
        return 0;
    if (data->result)
        now.step = data->result->step;
    if (data->event == CT_EVENT_RUN_END) {
        state = now.step >= ct_config.training.steps ? "done" : "stopped";
        why = __atomic_load_n(&data->run->stop, __ATOMIC_ACQUIRE);
        message = why ? why : "";
    }
    return write_status(state, ct_wall_clock(), message, launcher_of_rank());
}
