/*
 * A profiled step as files: a trace, and what `watch` and `report` show of it.
 *
 * Times of the trace begin with the step. Its description, and summary.json, say where the time
 * went, which ops took most of it, and the memory that was planned and that is in use.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/clock.h>
#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/trace.h>

#include "profile.h"

#define LARGEST 10

/* ---- what took most ---- */

struct kind {
    const char *op;
    int64_t calls;
    double seconds;
};

static int by_time(const void *a, const void *b)
{
    const struct kind *x = a, *y = b;

    if (x->seconds != y->seconds)
        return x->seconds > y->seconds ? -1 : 1;
    return strcmp(x->op, y->op);
}

/* Ops by their time; returns how many. */
static size_t sum_kinds(const struct profiled *p, struct kind *list)
{
    const struct ct_program *program = p->run->program;
    size_t count = 0, k;

    for (size_t n = 0; n < program->step_count; n++) {
        const char *op = program->step[n].op->type->name;

        for (k = 0; k < count && strcmp(list[k].op, op); k++)
            ;
        if (k == count)
            list[count++] = (struct kind){.op = op};
        list[k].calls++;
        list[k].seconds += p->times[n].end - p->times[n].begin;
    }
    qsort(list, count, sizeof(*list), by_time);
    return count;
}

static json_t *largest(const struct profiled *p)
{
    struct ct_arena scratch = {0};
    struct kind *list = ct_arena_array(&scratch, struct kind, p->run->program->step_count + 1);
    size_t count = sum_kinds(p, list);
    json_t *all = json_array();

    for (size_t k = 0; k < count && k < LARGEST; k++)
        json_array_append_new(all,
                              json_pack("{ss sI sf}", "op", list[k].op, "calls",
                                        (json_int_t)list[k].calls, "seconds", list[k].seconds));
    ct_arena_finish(&scratch);
    return all;
}

/* ---- where the time went ---- */

static json_t *where(const struct profiled *p)
{
    const struct ct_program *program = p->run->program;
    struct ct_arena scratch = {0};
    double *start = ct_arena_array(&scratch, double, program->step_count + 1);
    double *end = ct_arena_array(&scratch, double, program->step_count + 1);
    double first = INFINITY, last = 0;
    struct ct_rank_times t;

    for (size_t n = 0; n < program->step_count; n++) {
        start[n] = p->times[n].begin;
        end[n] = p->times[n].end;
        first = fmin(first, start[n]);
        last = fmax(last, end[n]);
    }
    ct_rank_account(program, start, end, fmax(0, last - first), &t);
    ct_arena_finish(&scratch);
    return json_pack("{sf sf sf sf sf sf}", "instructions", fmax(0, last - first), "products",
                     t.products, "others", t.others, "exposed", t.exposed, "hidden", t.hidden,
                     "waiting", t.waiting);
}

/* ---- memory ---- */

static json_t *memory(const struct ct_run *run)
{
    const struct ct_program *p = run->program;
    struct ct_device_info info = {.memory = 0};
    size_t used = run->device_ops->used ? run->device_ops->used(run->device) : 0;
    json_t *categories = json_object();

    run->device_ops->info(run->device, CT_F32, &info);
    for (int c = 0; c < CT_CATEGORY_COUNT; c++)
        json_object_set_new(categories, ct_category_name((enum ct_category)c),
                            json_integer((json_int_t)p->memory.at_peak[c]));
    return json_pack("{sI sI sI sI sI so}", "planned", (json_int_t)run->arena_bytes, "host",
                     (json_int_t)run->host_bytes, "beside", (json_int_t)info.beside, "used",
                     (json_int_t)used, "total", (json_int_t)info.memory, "categories", categories);
}

/* ---- files ---- */

static double wall_clock(double monotonic)
{
    return ct_wall_clock() - ct_now() + monotonic;
}

static json_t *summary(const struct profiled *p)
{
    const struct ct_run *run = p->run;

    return json_pack("{sI sI sI ss sf sf sf so so so}", "step", (json_int_t)p->result->step, "rank",
                     (json_int_t)run->rank, "world", (json_int_t)run->world, "device",
                     run->device->name, "began", wall_clock(p->began), "seconds",
                     p->result->seconds, "data_seconds", p->result->data_seconds, "time", where(p),
                     "largest", largest(p), "memory", memory(run));
}

static void put_instructions(struct ct_trace *t, const struct profiled *p)
{
    const struct ct_program *program = p->run->program;

    for (size_t n = 0; n < program->step_count; n++) {
        const struct ct_instruction *i = &program->step[n];

        ct_trace_instruction(t, (int)p->run->rank, i, p->times[n].begin - p->began,
                             p->times[n].end - p->began);
        ct_trace_integer(t, "step", p->result->step);
        ct_trace_integer(t, "instruction", (int64_t)n);
        ct_trace_text(t, "kernel", i->lowered->kernel->name);
        ct_trace_close(t);
    }
}

/* A thread of the trace for each stream of CUDA. */
static void put_kernels(struct ct_trace *t, const struct profiled *p)
{
    int rank = (int)p->run->rank;
    char name[48];

    for (size_t i = 0; i < p->kernels; i++) {
        const struct profiled_kernel *k = &p->kernel[i];
        int thread = CT_TRACE_STEPS + 1 + (int)k->stream;
        bool named = false;

        for (size_t j = 0; !named && j < i; j++)
            named = p->kernel[j].stream == k->stream;
        snprintf(name, sizeof(name), "kernels, CUDA stream %u", k->stream);
        if (!named)
            ct_trace_name(t, rank, thread, name);
        ct_trace_slice(t, rank, thread, k->name, k->start - p->began, k->end - p->began);
        if (k->bytes)
            ct_trace_integer(t, "bytes", k->bytes);
        ct_trace_close(t);
    }
}

static int write_trace(const struct profiled *p, const char *path, const char *text)
{
    struct ct_new_file file;
    struct ct_trace t;
    int rank = (int)p->run->rank, rc = ct_file_begin(&file, path);

    if (rc < 0)
        return rc;
    ct_trace_begin(&t, file.out);
    ct_trace_rank(&t, rank, rank);
    ct_trace_streams(&t, rank, p->run->program);
    ct_trace_name(&t, rank, CT_TRACE_STEPS, "steps");
    ct_trace_step(&t, rank, p->result->step, 0, p->result->data_seconds, p->result->seconds);
    put_instructions(&t, p);
    put_kernels(&t, p);
    return ct_file_end(&file, ct_trace_end(&t, text));
}

static int write_files(const struct profiled *p, const char *text)
{
    const struct ct_run *run = p->run;
    char path[CT_PATH_ROOM];
    int rc = ct_run_path(run, path, "profile/step-%lld", (long long)p->result->step);

    if (rc == 0)
        rc = ct_file_make_folder(path);
    if (rc == 0)
        rc = ct_run_path(run, path, "profile/step-%lld/rank-%lld.json", (long long)p->result->step,
                         (long long)run->rank);
    if (rc == 0)
        rc = write_trace(p, path, text);
    if (rc == 0 && run->rank == 0)
        rc = ct_run_path(run, path, "profile/step-%lld/summary.json", (long long)p->result->step);
    return rc == 0 && run->rank == 0 ? ct_file_write(path, text, strlen(text)) : rc;
}

int profile_write(const struct profiled *p)
{
    json_t *o = summary(p);
    char *text = o ? json_dumps(o, JSON_REAL_PRECISION(17)) : NULL;
    int rc = text ? write_files(p, text) : ct_fail(CT_ENOMEM, "the profile of a step");

    free(text);
    json_decref(o);
    return rc;
}
