/*
 * `ctitan check`: the contracts of tokenizers, learning-rate schedules, devices, mesh axes and
 * verbs, without a run.
 */
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/device/device.h>
#include <ctitan/error.h>
#include <ctitan/model.h>

#include "check.h"

/* ---- tokenizers ---- */

static const char *const texts[] = {
    "",
    " ",
    "Hello, world! It's 12345 o'clock.",
    "  several   spaces\tand\r\nlines\n\n\n",
    "na\xc3\xafve caf\xc3\xa9 \xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e \xf0\x9f\x99\x82 \xd7\xa9",
    "int main(void) { return x->y[0] != 0x7f; } /* 100% */",
};

#define MOST_IDS 4096
#define UNTOUCHED INT32_MIN

static int round_trip(const struct ct_tokenizer_ops *ops, const char *text)
{
    static int32_t ids[MOST_IDS], few[2];
    char back[MOST_IDS * 4];
    size_t used = 0;
    int64_t count = ops->encode(text, strlen(text), ids, MOST_IDS), again;

    if (count < 0)
        return ct_context(CT_EINVAL, "encoding \"%s\"", text);
    few[1] = UNTOUCHED;
    again = ops->encode(text, strlen(text), few, 1);
    if (again != count || few[1] != UNTOUCHED || (count > 0 && few[0] != ids[0]))
        return ct_fail(CT_EINVAL,
                       "\"%s\": with room for one token, `encode` returns %lld or writes more; it "
                       "returns the number of all, %lld",
                       text, (long long)again, (long long)count);
    for (int64_t i = 0; i < count; i++) {
        int n;

        if (ids[i] < 0 || ids[i] >= ops->vocabulary())
            return ct_fail(CT_EINVAL, "\"%s\": token %lld is %d: expected 0 to %lld", text,
                           (long long)i, ids[i], (long long)ops->vocabulary() - 1);
        n = ops->decode(ids[i], back + used, sizeof(back) - used);
        if (n < 0 || (size_t)n > sizeof(back) - used)
            return ct_fail(CT_EINVAL, "\"%s\": token %d does not decode", text, ids[i]);
        used += (size_t)n;
    }
    if (used != strlen(text) || memcmp(back, text, used))
        return ct_fail(CT_EINVAL, "\"%s\" is decoded as \"%.*s\"", text, (int)used, back);
    return 0;
}

static int check_special(const struct ct_tokenizer_ops *ops, const char *name, int32_t token)
{
    return token >= -1 && token < ops->vocabulary()
               ? 0
               : ct_fail(CT_EINVAL, "%s is %d: expected -1, or 0 to %lld", name, token,
                         (long long)ops->vocabulary() - 1);
}

/* Whether the command line says where the plugin's files are: by its own options, or as those of a
   model. */
static bool is_placed(struct check *c)
{
    const char *own = ct_arena_printf(&c->arena, "%s.", c->plugin->name);
    const char *model = "model.init_from=";

    for (size_t i = 0; i < c->set_given; i++)
        if (!strncmp(c->sets[i], own, strlen(own)) || !strncmp(c->sets[i], model, strlen(model)))
            return true;
    return false;
}

int check_tokenizer(struct check *c, const struct ct_offer *offer)
{
    const struct ct_tokenizer_ops *ops = offer->ops;
    int rc = ops->open ? ops->open() : 0;

    if (rc == CT_ECONFIG && !is_placed(c)) {
        check_untried(c, ct_arena_printf(&c->arena, "tokenizer %s", offer->name),
                      ct_error_message());
        return 0;
    }
    if (rc < 0)
        ct_context(rc, "it cannot be opened");
    if (rc == 0)
        rc = check_special(ops, "bos", ops->bos());
    if (rc == 0)
        rc = check_special(ops, "eos", ops->eos());
    if (rc == 0 && ops->end)
        rc = check_special(ops, "end", ops->end());
    for (size_t i = 0; rc == 0 && i < CT_COUNT(texts); i++)
        rc = round_trip(ops, texts[i]);
    check_result(c, rc, "tokenizer %s: %zu texts are encoded and decoded without change",
                 offer->name, CT_COUNT(texts));
    return 0;
}

/* ---- learning-rate schedules ---- */

static int check_factor(const struct ct_lr_schedule_ops *ops, int64_t total)
{
    double *first = malloc(sizeof(*first) * (size_t)total);
    int rc = first ? 0 : ct_fail(CT_ENOMEM, "factors");

    for (int64_t s = 0; rc == 0 && s < total; s++) {
        first[s] = ops->factor(s, total);
        if (!isfinite(first[s]) || first[s] < 0)
            rc = ct_fail(CT_EINVAL, "the factor of step %lld of %lld is %g", (long long)s,
                         (long long)total, first[s]);
    }
    for (int64_t s = total - 1; rc == 0 && s >= 0; s--)
        if (ops->factor(s, total) != first[s])
            rc = ct_fail(CT_EINVAL,
                         "the factor of step %lld of %lld changes from call to call: a resumed run "
                         "would get another learning rate",
                         (long long)s, (long long)total);
    free(first);
    return rc;
}

int check_lr_schedule(struct check *c, const struct ct_offer *offer)
{
    int rc = 0;

    for (int64_t total = 1; rc == 0 && total <= 10000; total *= 10)
        rc = check_factor(offer->ops, total);
    check_result(c, rc, "learning-rate schedule %s: 1 to 10,000 steps, in any order", offer->name);
    return 0;
}

/* ---- devices ---- */

#define ROOM ((size_t)1 << 16)

static int check_memory(const struct ct_device_ops *ops, struct ct_device *device, char *base)
{
    char *host = malloc(2 * ROOM);
    int rc = host ? ops->copy_out(device, host, base, ROOM) : ct_fail(CT_ENOMEM, "a copy");

    for (size_t i = 0; rc == 0 && i < ROOM; i++)
        if (host[i])
            rc = ct_fail(CT_EINVAL, "reserved memory is not zeroed: byte %zu is %d", i, host[i]);
    for (size_t i = 0; rc == 0 && i < ROOM; i++)
        host[i] = (char)(i * 31 + 7);
    if (rc == 0)
        rc = ops->copy_in(device, base, host, ROOM);
    if (rc == 0)
        rc = ops->copy_out(device, host + ROOM, base, ROOM);
    if (rc == 0 && memcmp(host, host + ROOM, ROOM))
        rc = ct_fail(CT_EINVAL, "data changed between `copy_in` and `copy_out`");
    free(host);
    return rc;
}

static int check_events(const struct ct_device_ops *ops, struct ct_device *device)
{
    int rc = ops->events(device, CT_STREAMS);

    for (int s = 0; rc == 0 && s < CT_STREAMS; s++) {
        rc = ops->record(device, s, s);
        if (rc == 0)
            rc = ops->wait(device, (s + 1) % CT_STREAMS, s);
    }
    if (rc == 0)
        rc = ops->synchronize(device);
    for (int s = 0; rc == 0 && ops->query && s < CT_STREAMS; s++)
        if (ops->query(device, s) == 0)
            rc = ct_fail(CT_EINVAL, "event %d is not set after `synchronize`", s);
    return rc;
}

static int try_device(const struct ct_device_ops *ops, struct ct_device *device, const char *name)
{
    struct ct_device_info info = {0};
    void *base = NULL;
    int rc;

    ops->info(device, CT_F32, &info);
    if (strcmp(device->name, name) || device->ops != ops)
        return ct_fail(CT_EINVAL, "the device's name is %s, but it is offered as %s", device->name,
                       name);
    if (!memchr(info.name, 0, sizeof(info.name)) || !*info.name)
        return ct_fail(CT_EINVAL, "`info` gives no name");
    rc = ops->reserve(device, ROOM, &base);
    if (rc == 0 && (uintptr_t)base % 4096)
        rc = ct_fail(CT_EINVAL, "reserved memory begins at %p, which is not a multiple of 4096",
                     base);
    if (rc == 0)
        rc = check_memory(ops, device, base);
    if (rc == 0)
        rc = check_events(ops, device);
    if (base)
        ops->release(device, base, ROOM);
    return rc;
}

int check_device(struct check *c, const struct ct_offer *offer)
{
    const struct ct_device_request request = {.local_ranks = 1};
    const struct ct_device_ops *ops = offer->ops;
    struct ct_device *device = NULL;
    int rc = ops->open(&request, &device);

    if (rc == CT_ENOENT) {
        check_untried(c, offer->name, ct_error_message());
        return 0;
    }
    if (rc == 0)
        rc = try_device(ops, device, offer->name);
    if (device)
        ops->close(device);
    check_result(c, rc, "device %s: memory, copies, streams and events", offer->name);
    return 0;
}

/* ---- mesh axes ---- */

int check_axis(struct check *c, const struct ct_offer *offer)
{
    const struct ct_axis_ops *ops = offer->ops;
    int64_t degree = ops->degree();
    int rc = 0;

    if (degree < 1 && !(degree == -1 && ops->fills))
        rc = ct_fail(CT_EINVAL, "`degree` is %lld with these options: it must be at least 1%s",
                     (long long)degree, ops->fills ? ", or -1" : "");
    else if (ops->degree() != degree)
        rc = ct_fail(CT_EINVAL, "`degree` changes from call to call");
    check_result(c, rc, "axis %s: degree %lld%s, place %d", offer->name, (long long)degree,
                 degree == -1 ? " (all remaining ranks)" : "", ops->place);
    return 0;
}

/* ---- verbs ---- */

#define VERB_SECONDS 20

static _Noreturn void run_verb(const struct ct_verb_ops *ops, char **argv)
{
    int nowhere = open("/dev/null", O_RDWR);

    for (int fd = 0; fd < 3; fd++)
        dup2(nowhere, fd);
    check_leave_crashes();
    alarm(VERB_SECONDS);
    _exit(ops->run(2, argv) < 0);
}

/* An argument that nothing takes, without input: it must be refused, by a failure. */
static int try_verb(const struct ct_verb_ops *ops, const char *name)
{
    char unknown[] = "--no-such-option", *argv[] = {(char *)(uintptr_t)name, unknown, NULL};
    int status;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0)
        run_verb(ops, argv);
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        return ct_fail(CT_EIO, "no process can be started");
    if (WIFSIGNALED(status))
        return ct_fail(CT_EINVAL, "with the argument %s it is ended by signal %d", unknown,
                       WTERMSIG(status));
    return WEXITSTATUS(status) ? 0
                               : ct_fail(CT_EINVAL,
                                         "it takes the argument %s, and does not say "
                                         "that there is none",
                                         unknown);
}

int check_verb(struct check *c, const struct ct_offer *offer)
{
    const struct ct_verb_ops *ops = offer->ops;
    int rc = 0;

    if (!ops->summary || (!ops->usage && !ops->arguments))
        rc = ct_fail(CT_EINVAL, "`ctitan help %s` lacks the %s", offer->name,
                     ops->summary ? "arguments" : "summary");
    if (rc == 0)
        rc = try_verb(ops, offer->name);

    check_result(c, rc, "verb %s: an unknown option is refused", offer->name);
    return 0;
}
