/*
 * Crashes and hangs of plugins' code while a run trains. What each thread calls is in records
 * (calling.h), so handlers of signals only read them and write lines.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/calling.h>
#include <ctitan/graph.h>
#include <ctitan/pass.h>
#include <ctitan/plugin.h>

#include "crash.h"

#define NAMED 2  /* seconds without a sign of life after which a plugin is named */
#define ENDED 20 /* .. and after which it is not waited for */

static int rank;
static volatile sig_atomic_t asked; /* the signal that asks the run to end */
static volatile sig_atomic_t quiet; /* seconds since the last sign of life */
static volatile unsigned alive;     /* signs of life by then */

/* ---- lines ---- */

struct text {
    char line[768];
    size_t used;
};

static void add(struct text *t, const char *words)
{
    for (; words && *words && t->used + 2 < sizeof(t->line); words++)
        t->line[t->used++] = *words;
}

static void add_number(struct text *t, int64_t number)
{
    char digits[24] = "";
    size_t at = sizeof(digits) - 1;
    uint64_t rest = number < 0 ? -(uint64_t)number : (uint64_t)number;

    do
        digits[--at] = (char)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0)
        digits[--at] = '-';
    add(t, digits + at);
}

static void finish(struct text *t)
{
    t->line[t->used++] = '\n';
    if (write(STDERR_FILENO, t->line, t->used) < 0)
        return;
}

/* ---- whose code it is ---- */

static bool has_kernel(const struct ct_offer *o, const struct ct_kernel *kernel)
{
    const struct ct_kernel *k = o->ops;

    for (; o->kind == CT_KERNELS && k->op; k = (const void *)((const char *)k + k->size))
        if (k->run == kernel->run && !strcmp(k->op, kernel->op))
            return true;
    return false;
}

static bool is_of(const struct ct_offer *o, const struct ct_calling *c)
{
    if (!strcmp(c->kind, "op"))
        return c->kernel ? has_kernel(o, c->kernel)
                         : o->kind == CT_OP && c->op && !strcmp(o->name, c->op->type->name);
    if (!strcmp(c->kind, "transform"))
        return o->kind == CT_TRANSFORM && c->name &&
               !strcmp(((const struct ct_transform *)o->ops)->name, c->name);
    return o->kind == (!strcmp(c->kind, "model") ? CT_MODEL : CT_DATA);
}

/* NULL: code of ctitan, or of a plugin that is not known. */
static const char *plugin_of(const struct ct_calling *c)
{
    for (size_t i = 0; ct_plugin_at(i); i++)
        for (const struct ct_offer *o = ct_plugin_at(i)->offers; o->kind != CT_NOTHING; o++)
            if (is_of(o, c))
                return ct_plugin_at(i)->name;
    return NULL;
}

static void add_op(struct text *t, const struct ct_calling *c)
{
    const struct ct_op *op = c->op;
    const struct ct_value *value = op->outs ? op->out[0] : op->ins ? op->in[0] : NULL;

    add(t, op->type->name);
    if (c->kernel) {
        add(t, " (kernel ");
        add(t, c->kernel->name);
        add(t, ")");
    }
    if (value) {
        add(t, " of %");
        add(t, value->name);
    }
    add(t, ", section ");
    add(t, op->section->name);
    if (c->microbatch >= 0) {
        add(t, ", microbatch ");
        add_number(t, c->microbatch);
    }
}

/* "hook of plugin ema on STEP_END, step 12" */
static void add_call(struct text *t, const struct ct_calling *c)
{
    const char *kind = c->kind, *plugin = strcmp(kind, "hook") ? plugin_of(c) : NULL;
    int64_t step = c->step ? c->step : ct_calling_at(0)->step;

    add(t, kind);
    if (!strcmp(kind, "hook") && c->name && c->event) {
        add(t, " of ");
        add(t, c->name);
        add(t, " on ");
        add(t, c->event);
    } else if (!strcmp(kind, "op") && c->op) {
        add(t, " ");
        add_op(t, c);
    } else if (c->name) {
        add(t, " ");
        add(t, c->name);
    }
    if (plugin) {
        add(t, ", plugin ");
        add(t, plugin);
    }
    if (step > 0) {
        add(t, ", step ");
        add_number(t, step);
    }
}

static void begin(struct text *t)
{
    t->used = 0;
    add(t, "ctitan: rank ");
    add_number(t, rank);
    add(t, ": ");
}

/* ---- crashes ---- */

/* The signal is sent again, and its action is the system's by now: the process ends as if nothing
   had caught it. */
static void crashed(int number)
{
    const struct ct_calling *c = ct_calling();
    struct text t;

    if (!c->kind)
        c = ct_calling_at(0); /* a thread that computes for it */
    begin(&t);
    add(&t, crash_name(number));
    if (c->kind) {
        add(&t, ", in ");
        add_call(&t, c);
    } else {
        add(&t, ", in no call of a plugin's hook or op");
    }
    finish(&t);
    raise(number);
}

/* ---- what does not return ---- */

/* A copy of the record of a thread that is in code of a plugin, which may leave it meanwhile. */
static bool busy(struct ct_calling *call)
{
    const struct ct_calling *c;

    for (int i = 0; (c = ct_calling_at(i)); i++) {
        *call = *c;
        call->kind = __atomic_load_n(&c->kind, __ATOMIC_RELAXED);
        if (call->kind && !__atomic_load_n(&c->waits, __ATOMIC_RELAXED))
            return true;
    }
    return false;
}

static unsigned signs_of_life(void)
{
    const struct ct_calling *c;
    unsigned sum = 0;

    for (int i = 0; (c = ct_calling_at(i)); i++)
        sum += __atomic_load_n(&c->calls, __ATOMIC_RELAXED);
    return sum;
}

static void look(int number)
{
    struct ct_calling call;
    bool is_busy = busy(&call);
    unsigned now = signs_of_life();
    int before = errno;
    struct text t;

    (void)number;
    quiet = is_busy && now == alive ? quiet + 1 : 0;
    alive = now;
    if (quiet == NAMED || quiet == ENDED) {
        begin(&t);
        add(&t, quiet == NAMED ? "the run waits for " : "the run ends without waiting longer for ");
        add_call(&t, &call);
        if (quiet == NAMED) {
            add(&t, "; it ends without it in ");
            add_number(&t, ENDED - NAMED);
            add(&t, " s, or with another signal");
        }
        finish(&t);
    }
    if (quiet == ENDED) {
        signal(asked, SIG_DFL);
        raise(asked);
    }
    alarm(1);
    errno = before;
}

void run_interrupted(int number)
{
    asked = number;
    quiet = 0;
    alive = signs_of_life();
    alarm(1);
}

void run_catch_crashes(int of)
{
    struct sigaction action = {.sa_handler = look, .sa_flags = SA_RESTART | SA_ONSTACK};

    rank = of;
    ct_calling(); /* the first record is this thread's */
    crash_catch(crashed);
    sigaction(SIGALRM, &action, NULL);
}

void run_leave_crashes(void)
{
    alarm(0);
    crash_leave(crashed);
}
