/*
 * `ctitan check`: the contracts of data sources, tokenizers, learning-rate schedules, devices, mesh
 * axes and verbs, without a run.
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

/* ---- data sources ---- */

#define SAMPLES 24
#define NEAR 1024                   /* samples before the end, and after it, that are read */
#define FARTHEST ((int64_t)1 << 40) /* where the end is sought */
#define GUARD 4
#define UNTOUCHED INT32_MIN

struct sample {
    int end; /* what `read` returned */
    int32_t tokens[CHECK_TOKENS + GUARD], labels[CHECK_TOKENS + GUARD],
        documents[CHECK_TOKENS + GUARD];
};

static int read_sample(const struct ct_data_ops *ops, struct ct_data *data, int64_t index,
                       bool documents, struct sample *s)
{
    for (int i = 0; i < CHECK_TOKENS + GUARD; i++)
        s->tokens[i] = s->labels[i] = s->documents[i] = UNTOUCHED;
    s->end = ops->read(data, index, s->tokens, s->labels, documents ? s->documents : NULL);
    if (s->end < 0)
        return ct_context(CT_EINVAL, "sample %lld", (long long)index);
    for (int i = CHECK_TOKENS; i < CHECK_TOKENS + GUARD; i++)
        if (s->tokens[i] != UNTOUCHED || s->labels[i] != UNTOUCHED || s->documents[i] != UNTOUCHED)
            return ct_fail(CT_EINVAL, "sample %lld: `read` writes past the end of the sequence",
                           (long long)index);
    return 0;
}

/* What is wrong inside of a sample. */
static int check_sample(const struct sample *s, int64_t index, int64_t vocabulary, bool documents)
{
    for (int i = 0; !s->end && i < CHECK_TOKENS; i++) {
        int32_t token = s->tokens[i], label = s->labels[i];

        if (token < 0 || (vocabulary > 0 && token >= vocabulary))
            return ct_fail(CT_EINVAL, "sample %lld: token %d is %d: expected 0 to %lld",
                           (long long)index, i, token, (long long)vocabulary - 1);
        if (label != -100 && (label < 0 || (vocabulary > 0 && label >= vocabulary)))
            return ct_fail(CT_EINVAL, "sample %lld: label %d is %d: expected a token, or -100",
                           (long long)index, i, label);
        if (i + 1 < CHECK_TOKENS && label != -100 && label != s->tokens[i + 1])
            return ct_fail(CT_EINVAL,
                           "sample %lld: label %d is %d, and the next token is %d: labels are "
                           "tokens shifted by one",
                           (long long)index, i, label, s->tokens[i + 1]);
        if (documents && s->documents[i] == UNTOUCHED)
            return ct_fail(CT_EINVAL,
                           "sample %lld: `has_documents` is true, but `read` sets no documents",
                           (long long)index);
    }
    return 0;
}

static bool same(const struct sample *a, const struct sample *b, bool documents)
{
    return a->end == b->end && !memcmp(a->tokens, b->tokens, sizeof(a->tokens)) &&
           !memcmp(a->labels, b->labels, sizeof(a->labels)) &&
           (!documents || !memcmp(a->documents, b->documents, sizeof(a->documents)));
}

/* Read again in another order; the samples are the same. */
static int check_again(const struct ct_data_ops *ops, struct ct_data *data,
                       const struct sample *first, bool documents, const char *how)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < SAMPLES; i++) {
        int index = (i * 7 + 5) % SAMPLES;
        struct sample again;

        rc = read_sample(ops, data, index, documents, &again);
        if (rc == 0 && !same(&again, &first[index], documents))
            rc = ct_fail(CT_EINVAL, "sample %d differs %s: a sample must depend on its index only",
                         index, how);
    }
    return rc;
}

static int not_the_end(int64_t missing, int64_t later)
{
    return ct_fail(CT_EINVAL,
                   "sample %lld is past the end of the data, but the later sample %lld is not",
                   (long long)missing, (long long)later);
}

/* A sample that is not there, after one that is: sought by doubling the index, and then by halves.
   -1: there is none up to the FARTHEST. */
static int find_end(const struct ct_data_ops *ops, struct ct_data *data, int64_t *end)
{
    int64_t low = 0, high = 1;
    struct sample s = {0};
    int rc = 0;

    while (rc == 0 && !s.end && high <= FARTHEST) {
        low = high;
        high *= 2;
        rc = read_sample(ops, data, high, false, &s);
    }
    *end = s.end ? high : -1;
    while (rc == 0 && *end >= 0 && *end - low > 1) {
        int64_t middle = low + (*end - low) / 2;

        rc = read_sample(ops, data, middle, false, &s);
        *(s.end ? end : &low) = middle;
    }
    return rc;
}

/* All samples near the end are before it or past it. */
static int check_end(const struct ct_data_ops *ops, struct ct_data *data)
{
    int64_t end, missing = -1;
    struct sample s;
    int rc = find_end(ops, data, &end);

    for (int64_t i = end > NEAR ? end - NEAR : 0; rc == 0 && end >= 0 && i < end + NEAR; i++) {
        rc = read_sample(ops, data, i, false, &s);
        if (rc == 0 && s.end && missing < 0)
            missing = i;
        if (rc == 0 && !s.end && missing >= 0)
            rc = not_the_end(missing, i);
    }
    return rc;
}

/* The held-out part, where the options give one. */
static int check_held_out(const struct ct_data_ops *ops, struct ct_data_request request)
{
    struct ct_data *held = NULL;
    int rc;

    request.validation = true;
    rc = ops->open(&request, &held);
    if (rc == CT_ECONFIG)
        return 0;
    if (rc == 0)
        rc = check_end(ops, held);
    if (held)
        ops->close(held);
    return rc < 0 ? ct_context(rc, "of validation") : 0;
}

static int check_identity(const struct ct_data_ops *ops, const struct ct_data *data,
                          const struct ct_data *again)
{
    int64_t a[2], b[2];

    if (!ops->identity)
        return 0;
    return ops->identity(data, &a[0], &a[1]) == ops->identity(again, &b[0], &b[1]) &&
                   !memcmp(a, b, sizeof(a))
               ? 0
               : ct_fail(CT_EINVAL, "the data has another `identity` when it is opened again");
}

static int check_samples(struct check *c, const struct ct_data_ops *ops,
                         const struct ct_data_request *request, struct ct_data *data)
{
    struct sample *first = ct_arena_array(&c->arena, struct sample, SAMPLES), without;
    int64_t vocabulary = ops->vocabulary(data);
    bool documents = ops->has_documents();
    struct ct_data *other = NULL;
    int rc = 0;

    for (int i = 0; rc == 0 && i < SAMPLES; i++) {
        rc = read_sample(ops, data, i, documents, &first[i]);
        if (rc == 0 && i && first[i - 1].end && !first[i].end)
            rc = not_the_end(i - 1, i);
        if (rc == 0)
            rc = check_sample(&first[i], i, vocabulary, documents);
    }
    if (rc == 0 && first[0].end)
        rc = ct_fail(CT_EINVAL, "the data ends before the first sample of %d tokens", CHECK_TOKENS);
    if (rc == 0)
        rc = check_again(ops, data, first, documents, "when read in another order");
    if (rc == 0)
        rc = check_end(ops, data);
    if (rc == 0)
        rc = check_held_out(ops, *request);
    if (rc == 0)
        rc = read_sample(ops, data, 0, false, &without);
    if (rc == 0 && memcmp(without.tokens, first[0].tokens, sizeof(without.tokens)))
        rc = ct_fail(CT_EINVAL, "sample 0 has other tokens when documents are not requested");
    if (rc == 0)
        rc = ops->open(request, &other);
    if (rc == 0)
        rc = check_again(ops, other, first, documents, "when the source is opened again");
    if (rc == 0)
        rc = check_identity(ops, data, other);
    if (other)
        ops->close(other);
    return rc;
}

int check_data(struct check *c, const struct ct_offer *offer)
{
    const struct ct_data_ops *ops = offer->ops;
    const struct ct_offer *tokenizer = NULL;
    struct ct_data_request request = {.seq_len = CHECK_TOKENS, .seed = 1};
    struct ct_data *data = NULL;
    int rc = 0;

    if (ct_offer_at(CT_TOKENIZER, 0))
        rc = ct_offer_find(CT_TOKENIZER, NULL, &tokenizer);
    if (tokenizer) {
        request.tokenizer = tokenizer->ops;
        if (request.tokenizer->open)
            rc = request.tokenizer->open();
    }
    if (rc == 0)
        rc = ops->open(&request, &data);
    if (rc < 0)
        ct_context(rc,
                   "it cannot be opened; give required options with --set %s."
                   "KEY=VALUE, a tokenizer with --with",
                   c->plugin->name);
    if (rc == 0)
        rc = check_samples(c, ops, &request, data);
    if (data)
        ops->close(data);
    check_result(c, rc, "data source %s: %d samples, in any order, twice", offer->name, SAMPLES);
    return 0;
}

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

int check_tokenizer(struct check *c, const struct ct_offer *offer)
{
    const struct ct_tokenizer_ops *ops = offer->ops;
    int rc = ops->open ? ops->open() : 0;

    if (rc < 0)
        ct_context(rc,
                   "it cannot be opened; give required options with --set %s."
                   "KEY=VALUE",
                   c->plugin->name);
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
    int rc = ops->summary && ops->usage ? try_verb(ops, offer->name)
                                        : ct_fail(CT_EINVAL, "`ctitan help %s` lacks the %s",
                                                  offer->name, ops->summary ? "usage" : "summary");

    check_result(c, rc, "verb %s: an unknown option is refused", offer->name);
    return 0;
}
