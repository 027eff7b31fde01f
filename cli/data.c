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
#include "data.h"
#include "data_balance.h"
#include "data_reference.h"
#include "data_teacher.h"
#include "ends.h"

#define CHECKED 1000 /* samples, unless --samples says so */

static const struct ct_argument arguments[] = {
    ARG_RECIPE,
    ARG_CHANGES,
    ARG_STAGE,
    CT_ARG_INT(struct data_options, first, "sample", 0, "N", 0, INT32_MAX,
               "Show from sample N on, 0 by default"),
    CT_ARG_INT(struct data_options, count, "samples", 0, "N", 1, INT32_MAX,
               "Show N samples, 1 by default; with --check or --world, read N, 1000 by default"),
    CT_ARG_FLAG(struct data_options, check, "check", 0,
                "Count faults instead: documents without labels or an end, or with two "
                "beginnings"),
    CT_ARG_INT(struct data_options, args.world, "world", 0, "RANKS", 1, MOST_RANKS,
               "Print how equal the work of so many ranks is instead, in the first N samples"),
    CT_ARG_TEXT(struct data_options, reference, "reference", 0, "FILE",
                "Write the log-probability of the labels of each sample instead, by the model "
                "that training begins with: for [dpo] reference_path"),
    CT_ARG_TEXT(struct data_options, teacher, "teacher", 0, "FOLDER",
                "Write the likeliest tokens for each token of N samples instead, by the model of a "
                "Hugging Face folder: for [distill] path; by default an epoch"),
    CT_ARG_TEXT(struct data_options, output, "output", 'o', "FILE", "Where --teacher writes"),
    CT_ARG_INT(struct data_options, top_k, "top-k", 0, "K", 1, 1 << 20,
               "How many of the teacher's tokens, 64 by default"),
    {0}};

/* ---- opening ---- */

/* Collects the end tokens of the tokenizer, the model's folder and the conversation format. */
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
    ends_add(r->arena, &r->ends, &r->ends_count, t->eos());
    ends_add(r->arena, &r->ends, &r->ends_count, t->end ? t->end() : -1);
    if (format && t->encode(format->end, strlen(format->end), &id, 1) == 1)
        ends_add(r->arena, &r->ends, &r->ends_count, id);
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
    r->keys = ct_arena_array(r->arena, void *, count + 3);
    for (size_t i = 0; i < count; i++) {
        r->sample[i] = ct_arena_alloc(r->arena, (size_t)ct_shape_count(s[i].ndim, s[i].shape) *
                                                    ct_dtype_size(s[i].dtype));
        if (!strcmp(s[i].name, "tokens"))
            r->tokens = r->sample[i];
        else if (!strcmp(s[i].name, "labels"))
            r->labels = r->sample[i];
        else if (!strcmp(s[i].name, "documents"))
            r->documents = r->sample[i];
        else
            continue;
        r->keys[i] = r->sample[i];
    }
    return r->tokens && r->labels
               ? 0
               : ct_fail(CT_ECONFIG,
                         "the data has no tokens and labels, which are what data shows");
}

/* The model's vocabulary size; 0: the recipe has none. */
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
                                      .vocabulary = r->vocabulary = model_vocabulary(recipe)};
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

/* ---- reading ---- */

static int read_samples(struct reader *r)
{
    int64_t count = r->o->count ? r->o->count : r->o->check ? CHECKED : 1;
    int rc = 0;

    for (int64_t i = r->o->first; rc == 0 && i < r->o->first + count; i++) {
        rc = ct_data_read(r->ops, r->data, i, r->sample);
        if (rc == 1 && i == r->o->first)
            return ct_fail(CT_ECONFIG, "--sample %lld: the data ends before it", (long long)i);
        if (rc == 0 && r->o->check)
            data_check(r);
        else if (rc == 0)
            data_show(r, i);
    }
    return rc < 0 ? rc : r->o->check ? data_report(r) : 0;
}

int data_read(const struct reader *r, int64_t index)
{
    return ct_data_read(r->ops, r->data, index, r->keys);
}

static int check_options(const struct data_options *o)
{
    if (o->reference && o->teacher)
        return ct_fail(CT_ECONFIG, "--reference and --teacher: give one of them");
    if (o->teacher && !o->output)
        return ct_fail(CT_ECONFIG, "--teacher: expected --output FILE, which is written");
    if (o->teacher && (o->check || o->first || o->args.world))
        return ct_fail(CT_ECONFIG, "--check, --sample and --world have no effect with --teacher");
    if (o->reference && (o->check || o->first || o->count || o->args.world))
        return ct_fail(CT_ECONFIG, "--check, --sample, --samples and --world have no effect with "
                                   "--reference");
    if (o->args.world && (o->check || o->first))
        return ct_fail(CT_ECONFIG, "--check and --sample have no effect with --world");
    if (!o->teacher && (o->output || o->top_k))
        return ct_fail(CT_ECONFIG, "--output and --top-k have no effect without --teacher");
    return 0;
}

/* Apply the recipe, open its data, and do what is asked for with it. */
static int use_data(struct data_options *o, int samples)
{
    struct reader r = {.o = o, .arena = &o->args.arena};
    struct ct_recipe *recipe;
    int rc = o->reference ? args_read(&o->args, &recipe) : args_recipe(&o->args, &recipe);

    r.colours = ct_terminal_takes_colours(STDOUT_FILENO);
    if (rc == 0 && o->reference)
        rc = data_reference_apply(recipe, o->reference);
    if (rc == 0)
        rc = open_reader(&r, recipe);
    if (rc == 0)
        rc = o->reference    ? data_reference_write(&r, recipe, o->reference)
             : o->teacher    ? data_teacher_send(&r, samples)
             : o->args.world ? data_balance_print(recipe, o->args.world, r.ops, r.data,
                                                  o->count ? o->count : CHECKED)
                             : read_samples(&r);
    if (r.data)
        r.ops->close(r.data);
    return rc;
}

static int show_data(int argc, char **argv)
{
    struct data_options o = {0};
    int samples = -1, rc = args_parse(arguments, argc, argv, &o.args);
    pid_t child = -1;

    if (rc < 0)
        return rc;
    rc = check_options(&o);
    if (rc == 0 && o.teacher)
        child = data_teacher_fork(&samples);
    if (child > 0)
        rc = data_teacher_write(&o, child, samples);
    else if (rc == 0)
        rc = o.teacher && child < 0 ? (int)child : use_data(&o, samples);
    return args_finish(&o.args, rc);
}

const struct verb verb_data = {
    .name = "data",
    .summary = "show what a recipe trains on, and check it",
    .run = show_data,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan data recipe.ini --sample 3", "ctitan data recipe.ini --check",
                         "ctitan data recipe.ini --world 8",
                         "ctitan data recipe.ini --reference pairs.logp",
                         "ctitan data recipe.ini --teacher models/large -o teacher.top")};
