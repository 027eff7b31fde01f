/*
 * data: what a recipe trains on, sample by sample, and the faults that data for fine-tuning has.
 *
 * Only the tokenizer and the data source are opened. What is trained on is green on a terminal, and
 * stands between the marks << and >> elsewhere.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/chat.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/terminal.h>
#include <ctitan/log.h>
#include <ctitan/plugin.h>
#include <ctitan/recipe.h>
#include <ctitan/run.h>

#include "cli.h"
#include "data_balance.h"
#include "data_reference.h"

#define CHECKED 1000 /* samples, unless --samples says so */

struct options {
    struct args args; /* first */
    int64_t first, count;
    const char *reference;
    bool check;
};

struct reader {
    const struct options *o;
    struct ct_arena *arena;
    const struct ct_tokenizer_ops *tokenizer; /* NULL: tokens are shown as numbers */
    const struct ct_data_ops *ops;
    struct ct_data *data;
    int64_t seq_len;
    void **sample; /* by stream */
    const int32_t *tokens, *labels, *documents;
    bool colours;
    int32_t *ends; /* tokens that end a text or a turn */
    size_t ends_count;
    int64_t samples, all_documents, trained;  /* found */
    int64_t unlabelled, full, endless, twice; /* faults */
};

static const struct ct_argument arguments[] = {
    ARG_RECIPE,
    ARG_CHANGES,
    CT_ARG_INT(struct options, first, "sample", 0, "N", 0, INT32_MAX,
               "Show from sample N on, 0 by default"),
    CT_ARG_INT(struct options, count, "samples", 0, "N", 1, INT32_MAX,
               "Show N samples, 1 by default; with --check or --world, read N, 1000 by default"),
    CT_ARG_FLAG(struct options, check, "check", 0,
                "Count faults instead: documents without labels or an end, or with two "
                "beginnings"),
    CT_ARG_INT(struct options, args.world, "world", 0, "RANKS", 1, MOST_RANKS,
               "Print how equal the work of so many ranks is instead, in the first N samples"),
    CT_ARG_TEXT(struct options, reference, "reference", 0, "FILE",
                "Write the log-probability of the labels of each sample instead, by the model "
                "that training begins with: for [dpo] reference_path"),
    {0}};

/* ---- opening ---- */

static void add_end(struct reader *r, int32_t id)
{
    int32_t *ends = ct_arena_array(r->arena, int32_t, r->ends_count + 1);

    if (id < 0)
        return;
    if (r->ends_count)
        memcpy(ends, r->ends, r->ends_count * sizeof(*ends));
    ends[r->ends_count++] = id;
    r->ends = ends;
}

/* Those of the tokenizer, of the model's folder and of the format of conversations. */
static int find_ends(struct reader *r)
{
    const struct ct_tokenizer_ops *t = r->tokenizer;
    const char *name = r->ops->chat ? r->ops->chat() : NULL, *folder = ct_config.model.init_from;
    const struct ct_chat_format *format = name ? ct_chat_find(name) : NULL;
    int32_t id = -1;
    int rc = 0;

    if (*folder)
        rc = ct_hf_read_ends(r->arena, folder, &r->ends, &r->ends_count);
    if (rc < 0 || !t)
        return rc;
    add_end(r, t->eos());
    add_end(r, t->end ? t->end() : -1);
    if (format && t->encode(format->end, strlen(format->end), &id, 1) == 1)
        add_end(r, id);
    return 0;
}

static int find_streams(struct reader *r, const struct ct_data_request *request)
{
    const struct ct_data_stream *s;
    size_t count = 0;
    int rc = ct_data_streams(r->ops, request, r->arena, &s);

    if (rc < 0)
        return rc;
    while (s[count].name)
        count++;
    r->sample = ct_arena_array(r->arena, void *, count + 3);
    for (size_t i = 0; i < count; i++) {
        r->sample[i] = ct_arena_alloc(r->arena, (size_t)ct_shape_count(s[i].ndim, s[i].shape) *
                                                    ct_dtype_size(s[i].dtype));
        if (!strcmp(s[i].name, "tokens"))
            r->tokens = r->sample[i];
        else if (!strcmp(s[i].name, "labels"))
            r->labels = r->sample[i];
        else if (!strcmp(s[i].name, "documents"))
            r->documents = r->sample[i];
    }
    return r->tokens && r->labels
               ? 0
               : ct_fail(CT_ECONFIG,
                         "the data has no tokens and labels, which are what data shows");
}

/* That of the model; 0: the recipe has none. */
static int64_t model_vocabulary(struct ct_recipe *recipe)
{
    struct ct_run_options options = {.depth = CT_RUN_MODEL, .logits = true};
    struct ct_run *run;
    int64_t vocabulary;

    if (!ct_offer_at(CT_MODEL, 0))
        return 0;
    if (ct_run_open(recipe, &options, &run) < 0) {
        ct_warn("the model's vocabulary is not known: %s", ct_error_message());
        return 0;
    }
    vocabulary = run->model_ops->vocabulary(run->model);
    ct_run_close(run);
    return vocabulary;
}

static int open_reader(struct reader *r, struct ct_recipe *recipe)
{
    const struct ct_offer *data = ct_offer_at(CT_DATA, 0);
    const struct ct_offer *tokenizer = ct_offer_at(CT_TOKENIZER, 0);
    struct ct_data_request request = {.seq_len = ct_config.training.seq_len,
                                      .seed = (uint64_t)ct_config.training.seed,
                                      .vocabulary = model_vocabulary(recipe)};
    int rc = 0;

    if (!data)
        return ct_fail(CT_ECONFIG, "the recipe has no data source: add one of text, tokens");
    r->ops = data->ops;
    r->tokenizer = tokenizer ? tokenizer->ops : NULL;
    request.tokenizer = r->tokenizer;
    if (r->tokenizer && r->tokenizer->open)
        rc = r->tokenizer->open();
    if (rc == 0)
        rc = find_streams(r, &request);
    if (rc == 0)
        rc = find_ends(r);
    r->seq_len = request.seq_len;
    return rc < 0 ? rc : r->ops->open(&request, &r->data);
}

/* ---- showing ---- */

/* Whether token t is a label: that of the token before it. */
static bool is_label(const struct reader *r, int64_t t)
{
    return t > 0 && r->labels[t - 1] != CT_MASKED && r->labels[t - 1] == r->tokens[t];
}

/* The end of the document that begins with token t. */
static int64_t document_end(const struct reader *r, int64_t t)
{
    int64_t end = t + 1;

    while (end < r->seq_len && (!r->documents || r->documents[end] == r->documents[t]))
        end++;
    return end;
}

static bool is_padding(const struct reader *r, int64_t from, int64_t to)
{
    for (int64_t t = from; t < to; t++)
        if (r->tokens[t] || r->labels[t] != CT_MASKED)
            return false;
    return r->documents && to == r->seq_len && from > 0;
}

static int64_t count_labels(const struct reader *r, int64_t from, int64_t to)
{
    int64_t n = 0;

    for (int64_t t = from; t < to; t++)
        n += r->labels[t] != CT_MASKED;
    return n;
}

static void show_token(const struct reader *r, int32_t token)
{
    char text[512];
    int size = r->tokenizer ? r->tokenizer->decode(token, text, sizeof(text)) : -1;

    if (size > 0)
        fwrite(text, 1, (size_t)size, stdout);
    else if (r->tokenizer)
        printf("<%d>", token);
    else
        printf("%d ", token);
}

static void show_document(const struct reader *r, int64_t from, int64_t to)
{
    bool inside = false;

    for (int64_t t = from; t < to; t++) {
        if (is_label(r, t) != inside) {
            inside = !inside;
            fputs(r->colours ? (inside ? "\033[32m" : "\033[0m") : inside ? "<<" : ">>", stdout);
        }
        show_token(r, r->tokens[t]);
    }
    if (inside)
        fputs(r->colours ? "\033[0m" : ">>", stdout);
    putchar('\n');
}

static void show_sample(const struct reader *r, int64_t index)
{
    int64_t n = 0;

    printf("sample %lld: %lld tokens, %lld labels\n", (long long)index, (long long)r->seq_len,
           (long long)count_labels(r, 0, r->seq_len));
    for (int64_t t = 0, end; t < r->seq_len; t = end, n++) {
        end = document_end(r, t);
        if (is_padding(r, t, end)) {
            printf("-- padding: %lld tokens\n", (long long)(end - t));
            continue;
        }
        if (r->documents)
            printf("-- document %lld: tokens %lld to %lld, positions 0 to %lld, %lld labels\n",
                   (long long)n, (long long)t, (long long)end - 1, (long long)(end - t - 1),
                   (long long)count_labels(r, t, end));
        show_document(r, t, end);
    }
}

/* ---- checking ---- */

static bool is_end(const struct reader *r, int32_t token)
{
    for (size_t i = 0; i < r->ends_count; i++)
        if (r->ends[i] == token)
            return true;
    return false;
}

/* A document that fills the row may lack its end because it was cut. */
static void check_document(struct reader *r, int64_t from, int64_t to)
{
    int64_t labels = count_labels(r, from, to);
    int32_t bos = r->tokenizer ? r->tokenizer->bos() : -1, last = -1;

    r->all_documents++;
    for (int64_t t = from; t < to; t++)
        last = r->labels[t] != CT_MASKED ? r->labels[t] : last;
    if (!labels && to - from > 1)
        *(to - from == r->seq_len ? &r->full : &r->unlabelled) += 1;
    r->endless += labels && r->documents && to - from < r->seq_len && !is_end(r, last);
    r->twice += bos >= 0 && to - from > 1 && r->tokens[from] == bos && r->tokens[from + 1] == bos;
}

static void check_sample(struct reader *r)
{
    r->samples++;
    r->trained += count_labels(r, 0, r->seq_len);
    for (int64_t t = 0, end; t < r->seq_len; t = end) {
        end = document_end(r, t);
        if (!is_padding(r, t, end))
            check_document(r, t, end);
    }
}

static int report(const struct reader *r)
{
    const struct {
        int64_t count;
        const char *what;
    } faults[] = {
        {r->unlabelled, "documents have no label: nothing of them is trained on"},
        {r->full, "documents fill a row without a label: their prompt is longer than seq_len"},
        {r->endless, "documents are trained on without a token that ends a text or a turn"},
        {r->twice, "documents begin with the token for that twice"}};
    int64_t all = 0;

    printf("%lld samples of %lld tokens, %lld documents, %.1f%% of the tokens are labels\n",
           (long long)r->samples, (long long)r->seq_len, (long long)r->all_documents,
           100.0 * (double)r->trained / ((double)r->samples * (double)r->seq_len));
    for (size_t i = 0; i < CT_COUNT(faults); i++) {
        printf("%8lld %s\n", (long long)faults[i].count, faults[i].what);
        all += faults[i].count;
    }
    return all ? ct_fail(CT_EINVAL, "the data has %lld faults", (long long)all) : 0;
}

static int read_samples(struct reader *r)
{
    int64_t count = r->o->count ? r->o->count : r->o->check ? CHECKED : 1;
    int rc = 0;

    for (int64_t i = r->o->first; rc == 0 && i < r->o->first + count; i++) {
        rc = ct_data_read(r->ops, r->data, i, r->sample);
        if (rc == 1 && i == r->o->first)
            return ct_fail(CT_ECONFIG, "--sample %lld: the data ends before it", (long long)i);
        if (rc == 0 && r->o->check)
            check_sample(r);
        else if (rc == 0)
            show_sample(r, i);
    }
    return rc < 0 ? rc : r->o->check ? report(r) : 0;
}

static int write_reference(const struct reader *r, struct ct_recipe *recipe)
{
    struct data_samples samples = {.ops = r->ops,
                                   .data = r->data,
                                   .tokens = r->tokens,
                                   .labels = r->labels,
                                   .seq_len = r->seq_len};
    size_t count = 0;

    while (r->sample[count])
        count++;
    samples.sample = ct_arena_array(r->arena, void *, count + 1);
    for (size_t i = 0; i < count; i++) /* other streams may be made from the file */
        if (r->sample[i] == r->tokens || r->sample[i] == r->labels)
            samples.sample[i] = r->sample[i];

    if (r->documents)
        return ct_fail(CT_ECONFIG, "--reference: documents that share a row are masked from each "
                                   "other in training alone");
    return data_reference_write(recipe, &samples, r->arena, r->o->reference);
}

static int show_data(int argc, char **argv)
{
    struct options o = {0};
    struct reader r = {.o = &o, .arena = &o.args.arena};
    struct ct_recipe *recipe;
    int rc = args_parse(arguments, argc, argv, &o.args);

    if (rc < 0)
        return rc;
    r.colours = ct_terminal_takes_colours(STDOUT_FILENO);
    rc = o.reference ? args_read(&o.args, &recipe) : args_recipe(&o.args, &recipe);
    if (rc == 0 && o.reference)
        rc = data_reference_apply(recipe, o.reference);
    if (rc == 0)
        rc = open_reader(&r, recipe);
    if (rc == 0)
        rc = o.reference    ? write_reference(&r, recipe)
             : o.args.world ? data_balance_print(recipe, o.args.world, r.ops, r.data,
                                                 o.count ? o.count : CHECKED)
                            : read_samples(&r);
    if (r.data)
        r.ops->close(r.data);
    return args_finish(&o.args, rc);
}

const struct verb verb_data = {
    .name = "data",
    .summary = "show what a recipe trains on, and check it",
    .run = show_data,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan data recipe.ini --sample 3", "ctitan data recipe.ini --check",
                         "ctitan data recipe.ini --world 8",
                         "ctitan data recipe.ini --reference pairs.logp")};
