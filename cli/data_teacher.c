/*
 * data --teacher: the likeliest tokens of another model behind each token of the samples: a file of
 * samples (lib/samples.h) with
 *
 *   ids     int32 [samples, seq_len, k]     tokens, the likeliest first
 *   logps   float32 [samples, seq_len, k]   log-probabilities over the whole vocabulary
 *
 * where labels are not masked, else 0. The note "vocabulary" is the hash of the meanings of its
 * tokens, and "teacher" its folder.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/hf_recipe.h>
#include <ctitan/lib/samples.h>
#include <ctitan/lib/tokenizer.h>
#include <ctitan/log.h>
#include <ctitan/op_author.h>
#include <ctitan/plugin.h>
#include <ctitan/plugins.h>

#include "data.h"
#include "data_logits.h"
#include "data_teacher.h"

#define LIKELIEST 64 /* by default */

/* Header that the child sends first. It is followed by tokens, labels and, if there are, documents
   of each sample. */
struct sent {
    int64_t samples, seq_len, vocabulary; /* the model's; 0: unknown */
    uint64_t meanings;                    /* of the tokenizer's tokens; 0: there is none */
    bool documents;
};

/* ---- the pipe ---- */

static int send_bytes(int to, const void *data, size_t bytes)
{
    const char *from = data;

    while (bytes) {
        ssize_t n = write(to, from, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EPIPE)
            _exit(1); /* the other process says why */
        if (n < 0)
            return ct_fail(CT_EIO, "sending samples: %s", strerror(errno));
        from += n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* CT_EPEER: the child has ended before. */
static int receive_bytes(int from, void *data, size_t bytes)
{
    char *to = data;

    while (bytes) {
        ssize_t n = read(from, to, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return ct_fail(CT_EPEER, "reading samples: %s",
                           n ? strerror(errno) : "there are no more");
        to += n;
        bytes -= (size_t)n;
    }
    return 0;
}

pid_t data_teacher_fork(int *samples)
{
    int ends[2];
    pid_t child;

    if (pipe(ends) < 0)
        return ct_fail(CT_EIO, "a pipe: %s", strerror(errno));
    child = fork();
    if (child < 0) {
        close(ends[0]);
        close(ends[1]);
        return ct_fail(CT_EIO, "a process that reads the data: %s", strerror(errno));
    }
    *samples = ends[child == 0];
    close(ends[child != 0]);
    return child;
}

/* ---- the child ---- */

/* As asked for, or an epoch. */
static int count_samples(const struct reader *r, int64_t *samples)
{
    *samples = r->o->count ? r->o->count : r->ops->samples ? r->ops->samples(r->data) : 0;
    return *samples > 0
               ? 0
               : ct_fail(CT_ECONFIG, "--teacher: the data does not tell how many samples it has: "
                                     "give --samples N, as many as the run reads");
}

static int send_sample(const struct reader *r, int64_t index, int to)
{
    size_t bytes = (size_t)r->seq_len * sizeof(*r->tokens);
    int rc = data_read(r, index);

    if (rc == 1)
        return ct_fail(CT_ECONFIG, "--samples: the data ends before sample %lld", (long long)index);
    if (rc == 0)
        rc = send_bytes(to, r->tokens, bytes);
    if (rc == 0)
        rc = send_bytes(to, r->labels, bytes);
    return rc < 0 || !r->documents ? rc : send_bytes(to, r->documents, bytes);
}

int data_teacher_send(const struct reader *r, int to)
{
    struct sent sent = {.seq_len = r->seq_len,
                        .vocabulary = r->vocabulary,
                        .meanings = r->tokenizer ? ct_tokenizer_meanings(r->tokenizer) : 0,
                        .documents = r->documents};
    int rc = count_samples(r, &sent.samples);

    if (rc == 0)
        rc = send_bytes(to, &sent, sizeof(sent));
    for (int64_t i = 0; rc == 0 && i < sent.samples; i++)
        rc = send_sample(r, i, to);
    close(to);
    return rc;
}

/* ---- the teacher ---- */

/* The device of a recipe that is not applied; NULL: it has none. */
static const char *device_of(const struct ct_recipe *recipe)
{
    const struct ct_plugin *plugin;

    for (size_t i = 0; i < recipe->plugin_count; i++)
        if (ct_plugin_describe(recipe->plugins[i], &plugin) == 0)
            for (const struct ct_offer *o = plugin->offers; o && o->kind != CT_NOTHING; o++)
                if (o->kind == CT_DEVICE)
                    return plugin->name;
    return NULL;
}

/* A recipe for the model of a folder on the device of the other recipe, which also says what is
   ignored of its config.json. */
static int make_recipe(struct data_options *o, const struct sent *sent, struct ct_recipe **recipe)
{
    struct ct_arena *arena = &o->args.arena;
    const struct ct_recipe_changes none = {0};
    struct ct_recipe *own;
    const char *device, *ignore;
    int rc = args_read(&o->args, &own);

    if (rc == 0 && access(ct_arena_printf(arena, "%s/config.json", o->teacher), R_OK))
        rc = ct_fail(CT_ECONFIG, "--teacher %s: expected a Hugging Face folder, with a config.json",
                     o->teacher);
    if (rc == 0)
        rc = ct_hf_recipe(arena, o->teacher, &none, recipe);
    ignore = rc == 0 ? ct_recipe_get(own, "model", "ignore") : NULL;
    if (ignore)
        rc = ct_recipe_set(*recipe, ct_recipe_assign(arena, "model.ignore", ignore));
    if (rc == 0)
        rc = ct_recipe_set(
            *recipe, ct_arena_printf(arena, "training.seq_len=%lld", (long long)sent->seq_len));
    device = rc == 0 ? device_of(own) : NULL;
    if (device)
        rc = args_use_device(*recipe, device);
    return rc < 0 ? rc : ct_recipe_apply(*recipe);
}

/* Where the tokenizers are known, their tokens must have the same meanings; else there must be as
   many. */
static int check_vocabulary(const struct data_options *o, const struct sent *sent,
                            const struct data_logits *d)
{
    const struct ct_tokenizer_ops *t = d->run->tokenizer;

    if (t && sent->meanings && ct_tokenizer_meanings(t) != sent->meanings)
        return ct_fail(
            CT_ECONFIG,
            "--teacher %s: its tokenizer is not that of the recipe: distillation needs a "
            "teacher with the same vocabulary",
            o->teacher);
    if ((!t || !sent->meanings) && sent->vocabulary && sent->vocabulary != d->vocabulary)
        return ct_fail(CT_ECONFIG,
                       "--teacher %s: it has a vocabulary of %lld, and the recipe's model of %lld: "
                       "distillation needs a teacher with the same vocabulary",
                       o->teacher, (long long)d->vocabulary, (long long)sent->vocabulary);
    return 0;
}

/* ---- its likeliest tokens ---- */

struct candidate {
    double logit;
    int32_t token;
};

/* The lower one of two tokens with equal logits counts as likelier. */
static bool is_likelier(struct candidate a, struct candidate b)
{
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

static int by_likelihood(const void *a, const void *b)
{
    return is_likelier(*(const struct candidate *)a, *(const struct candidate *)b) ? -1 : 1;
}

/* Put a candidate in the place of the root of a heap, whose root is the least likely. */
static void replace_root(struct candidate *heap, int64_t k, struct candidate c)
{
    int64_t at = 0;

    for (int64_t child; (child = 2 * at + 1) < k; at = child) {
        if (child + 1 < k && is_likelier(heap[child], heap[child + 1]))
            child++;
        if (is_likelier(heap[child], c))
            break;
        heap[at] = heap[child];
    }
    heap[at] = c;
}

static void find_likeliest(const double *logits, int64_t count, struct candidate *heap, int64_t k)
{
    for (int64_t i = 0; i < k; i++)
        heap[i] = (struct candidate){-INFINITY, INT32_MAX};
    for (int64_t i = 0; i < count; i++) {
        struct candidate c = {logits[i], (int32_t)i};

        if (is_likelier(c, heap[0]))
            replace_root(heap, k, c);
    }
    qsort(heap, (size_t)k, sizeof(*heap), by_likelihood);
}

struct teacher {
    const struct sent *sent;
    struct data_logits logits;
    struct candidate *heap;
    int64_t k;
    int32_t *ids;
    float *logps;
};

static int look_at_token(struct teacher *t, int64_t position)
{
    const double *row = data_logits_at(&t->logits, position);
    double sum = ct_log_sum_exp(row, t->logits.vocabulary);

    if (!isfinite(sum))
        return ct_fail(CT_EINVAL, "the teacher's logits of token %lld are not finite",
                       (long long)position + 1);
    find_likeliest(row, t->logits.vocabulary, t->heap, t->k);
    for (int64_t i = 0; i < t->k; i++) {
        t->ids[position * t->k + i] = t->heap[i].token;
        t->logps[position * t->k + i] = (float)(t->heap[i].logit - sum);
    }
    return 0;
}

static int write_sample(struct teacher *t, int64_t index, int samples,
                        struct ct_new_sample_file *file)
{
    struct data_sample *s = &t->logits.sample;
    size_t bytes = (size_t)t->sent->seq_len * sizeof(*s->tokens);
    int64_t numbers = t->sent->seq_len * t->k;
    int rc = receive_bytes(samples, s->tokens, bytes);

    if (rc == 0)
        rc = receive_bytes(samples, s->labels, bytes);
    if (rc == 0 && s->documents)
        rc = receive_bytes(samples, s->documents, bytes);
    if (rc == 0)
        rc = data_logits_compute(&t->logits, index);
    if (rc < 0)
        return rc;
    memset(t->ids, 0, (size_t)numbers * sizeof(*t->ids));
    memset(t->logps, 0, (size_t)numbers * sizeof(*t->logps));
    for (int64_t i = 0; rc == 0 && i < t->sent->seq_len; i++)
        if (s->labels[i] != CT_MASKED)
            rc = look_at_token(t, i);
    if (rc < 0)
        return ct_context(rc, "sample %lld", (long long)index);
    return ct_sample_file_put(file, index, ct_labels_hash(s->tokens, s->labels, t->sent->seq_len),
                              (const void *[]){t->ids, t->logps});
}

/* ---- the whole ---- */

static int begin_file(const struct data_options *o, const struct teacher *t,
                      struct ct_new_sample_file **file)
{
    const int64_t n = t->sent->samples, seq_len = t->sent->seq_len;
    const struct ct_weight tensors[] = {
        {.name = "ids", .dtype = CT_I32, .ndim = 3, .shape = {n, seq_len, t->k}},
        {.name = "logps", .dtype = CT_F32, .ndim = 3, .shape = {n, seq_len, t->k}}};
    const struct ct_tokenizer_ops *own = t->logits.run->tokenizer;
    uint64_t meanings = own ? ct_tokenizer_meanings(own) : t->sent->meanings;
    char hash[32];

    snprintf(hash, sizeof(hash), "%016" PRIx64, meanings);
    return ct_sample_file_begin(
        o->output, tensors, CT_COUNT(tensors),
        (const char *const[]){"teacher", o->teacher, meanings ? "vocabulary" : NULL, hash, NULL},
        file);
}

static int write_all(const struct data_options *o, struct teacher *t, int samples)
{
    int64_t numbers = t->sent->seq_len * t->k;
    struct ct_new_sample_file *file = NULL;
    int rc;

    t->heap = ct_arena_array(t->logits.arena, struct candidate, t->k);
    t->ids = ct_arena_array(t->logits.arena, int32_t, numbers);
    t->logps = ct_arena_array(t->logits.arena, float, numbers);
    rc = begin_file(o, t, &file);
    for (int64_t i = 0; rc == 0 && i < t->sent->samples; i++) {
        rc = write_sample(t, i, samples, file);
        ct_status("%lld of %lld samples", (long long)i + 1, (long long)t->sent->samples);
    }
    rc = ct_sample_file_end(file, rc);
    if (rc == 0)
        ct_info("%s has the %lld likeliest tokens of the teacher for %lld sample%s", o->output,
                (long long)t->k, (long long)t->sent->samples, ct_plural(t->sent->samples));
    return rc;
}

static int ask_teacher(struct data_options *o, const struct sent *sent, int samples)
{
    struct teacher t = {.sent = sent, .k = o->top_k ? o->top_k : LIKELIEST};
    struct ct_recipe *recipe;
    int rc = make_recipe(o, sent, &recipe);

    if (rc < 0)
        return rc;
    rc = data_logits_open(&t.logits, recipe, &o->args.arena, sent->seq_len, sent->documents);
    if (rc == 0)
        rc = check_vocabulary(o, sent, &t.logits);
    if (rc == 0 && t.k > t.logits.vocabulary)
        rc = ct_fail(CT_ECONFIG, "--top-k %lld: the teacher has a vocabulary of %lld",
                     (long long)t.k, (long long)t.logits.vocabulary);
    if (rc == 0)
        rc = write_all(o, &t, samples);
    data_logits_close(&t.logits);
    return rc;
}

/* The child's failure is the cause of that of this process. */
static int finish_child(pid_t child, int rc)
{
    int status = 0;

    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    if (rc != CT_EPEER || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
        return rc;
    return ct_fail(WIFEXITED(status) && WEXITSTATUS(status) == 2 ? CT_ECONFIG : CT_EIO,
                   "--teacher: the recipe's data was not read to its end: its message is above");
}

int data_teacher_write(struct data_options *o, pid_t child, int samples)
{
    struct sent sent;
    int rc = receive_bytes(samples, &sent, sizeof(sent));

    if (rc == 0)
        rc = ask_teacher(o, &sent, samples);
    close(samples);
    return finish_child(child, rc);
}
