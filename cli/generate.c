/*
 * generate: the recipe's model continues prompts.
 *
 * One prompt is continued on the terminal, token by token. Several are continued together, and
 * printed at the end, in their order. A prompt in ids is answered in ids. Ranks choose the same
 * tokens, and the first one prints them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/app/generate.h>
#include <ctitan/lib/checkpoint.h>
#include <ctitan/lib/hf.h>
#include <ctitan/lib/launch.h>
#include <ctitan/log.h>
#include <ctitan/recipe.h>
#include <ctitan/rng.h>

#include "cli.h"
#include "crash.h"
#include "ends.h"
#include "generate.h"

#define PROMPTS 1024
#define TEMPERATURE 0.8

struct prompt {
    const char *text;
    bool ids; /* text is a list of ids */
    int32_t *tokens;
    int64_t count;               /* with what was generated */
    int64_t given;               /* of the prompt */
    int64_t shown;               /* of ids: those before this one have been printed; 0: none */
    int64_t before;              /* tokens of earlier turns */
    const struct answer *former; /* of the turn before; NULL: there is none */
    bool done;
    struct answer answer;         /* of a text */
    struct ct_decoding *decoding; /* of a text; NULL: its tokens' bytes follow each other */
    size_t skip;                  /* bytes of the given text that decoding still holds */
};

struct options {
    struct args args; /* first */
    struct prompt prompts[PROMPTS];
    int64_t count, tokens, seed;
    struct ct_sampling sampling; /* temperature negative: not given */
    bool greedy, no_cache, ignore_eos, chat;
    struct stops stops;
    const char *logits;
};

struct writer {
    struct options *o;
    struct ct_arena *arena;
    struct ct_generator *generator;
    const struct ct_tokenizer_ops *tokenizer; /* NULL: none */
    int64_t vocabulary;                       /* tokens that may be chosen */
    struct ct_candidate *candidates;
    struct chat chat;
};

/* ---- the command line ---- */

static int add_prompt(struct options *o, const char *text, bool ids)
{
    if (o->count == PROMPTS)
        return ct_fail(CT_ECONFIG, "more than %d prompts", PROMPTS);
    o->prompts[o->count++] = (struct prompt){.text = text, .ids = ids};
    return 0;
}

static int take_prompt(void *at, struct ct_arena *arena, const char *option, const char *text)
{
    (void)arena;
    return add_prompt(at, text, !strcmp(option, "--prompt-ids"));
}

static int take_stop(void *at, struct ct_arena *arena, const char *option, const char *text)
{
    struct stops *s = at;
    size_t size = strlen(text);

    (void)arena;
    if (!size)
        return ct_fail(CT_ECONFIG, "%s: the text is empty", option);
    if (s->count == STOPS)
        return ct_fail(CT_ECONFIG, "more than %d %s", STOPS, option);
    s->texts[s->count++] = text;
    s->longest = size > s->longest ? size : s->longest;
    return 0;
}

static const struct ct_argument arguments[] = {
    ARG_RECIPE,
    ARG_CHANGES,
    CT_ARG_INT(struct options, args.local, "ranks", 'n', "RANKS", 1, MOST_RANKS,
               "How many ranks, processes of this machine, generate together"),
    CT_ARG_TAKE(struct options, args, "prompt", 0, "TEXT",
                "Continue this text; several are continued together", take_prompt),
    CT_ARG_TAKE(struct options, args, "prompt-ids", 0, "I,J,..",
                "Continue these token ids, and answer in ids", take_prompt),
    CT_ARG_FLAG(struct options, chat, "chat", 0,
                "Converse: each line of standard input is a user's turn"),
    CT_ARG_INT(struct options, tokens, "tokens", 0, "N", 0, INT32_MAX,
               "Generate at most N tokens, 256 by default"),
    CT_ARG_FLAG(struct options, greedy, "greedy", 0, "Always take the most likely token"),
    CT_ARG_FLOAT(struct options, sampling.temperature, "temperature", 0, "T", 0, INFINITY,
                 "Sample at this temperature, 0.8 by default"),
    CT_ARG_INT(struct options, sampling.top_k, "top-k", 0, "K", 0, INT32_MAX,
               "Sample among the K most likely tokens; 0: all"),
    CT_ARG_FLOAT(struct options, sampling.top_p, "top-p", 0, "P", 0, 1,
                 "Sample among the most likely tokens whose probabilities sum to P, up to 1"),
    CT_ARG_INT(struct options, seed, "seed", 0, "S", 0, 0x1p62,
               "Seed of the samples, 1 by default"),
    CT_ARG_TAKE(struct options, stops, "stop", 0, "TEXT",
                "End before this text; may be given several times", take_stop),
    CT_ARG_FLAG(struct options, ignore_eos, "ignore-eos", 0, "Go on after the end of a document"),
    CT_ARG_FLAG(struct options, no_cache, "no-cache", 0,
                "Compute keys and values of all tokens again for each new one"),
    CT_ARG_TEXT(struct options, logits, "logits", 0, "FILE",
                "Write the logits after the last token, a line of numbers for each prompt"),
    {0}};

static int check_options(struct options *o)
{
    double *temperature = &o->sampling.temperature;

    if (!(o->sampling.top_p > 0))
        return ct_fail(CT_ECONFIG, "--top-p 0: expected a number above 0, and 1 at most");
    if (!o->count && !o->chat)
        add_prompt(o, "", false);
    for (int64_t i = 0; (o->stops.count || o->chat) && i < o->count; i++)
        if (o->prompts[i].ids)
            return ct_fail(CT_ECONFIG, "%s and --prompt-ids: ids have no text; use --prompt",
                           o->chat ? "--chat" : "--stop");
    if (o->greedy && *temperature >= 0)
        return ct_fail(CT_ECONFIG, "--greedy and --temperature: give one of them");
    if (*temperature < 0)
        *temperature = o->greedy ? 0 : TEMPERATURE;
    return 0;
}

/* ---- the model ---- */

static bool has_file(struct args *args, const char *folder, const char *name)
{
    return *folder && !access(ct_arena_printf(&args->arena, "%s/%s", folder, name), R_OK);
}

/* The weights that the recipe trained, if there are any, unless the command line names others. A
   plugin that keeps checkpoints replaces them with the newest of these, by the same rule. */
static const char *choose_weights(struct args *args, const struct ct_recipe *recipe)
{
    const struct ct_model_config *model = &ct_config.model;

    if (*model->init_from && ct_recipe_overrides(recipe, "model", "init_from"))
        return NULL;
    return has_file(args, model->save_to, "config.json") ? model->save_to : NULL;
}

static bool has_checkpoint(struct args *args, const char *run)
{
    const struct ct_checkpoint_ops *ops;
    struct ct_checkpoint c = {0};
    int rc = ct_checkpoints_find("generate looks for", &ops);

    if (rc < 0)
        return false;
    rc = ops->open(&args->arena, run, &c);
    ops->close(&c);
    return rc == 0;
}

/* Whether `ctitan generate RUN` has weights that the run has trained. */
static bool has_trained(struct args *args, const char *run)
{
    return has_file(args, run, "recipe.ini") &&
           (has_file(args, ct_config.model.save_to, "config.json") || has_checkpoint(args, run));
}

/* Say which weights were loaded; if others than the run's were asked for, how to get those. */
static int check_weights(struct args *args, const struct ct_recipe *recipe)
{
    const char *save_to = ct_config.model.save_to, *run = ct_config.job.dump_folder;

    if (*ct_weights_noted()) {
        ct_info("generating with the weights in %s", ct_weights_noted());
        if (ct_recipe_overrides(recipe, "model", "init_from") && has_trained(args, run))
            ct_info("for the weights that a run has trained in %s: ctitan generate %s", run, run);
        return 0;
    }
    if (*save_to)
        return ct_fail(CT_ECONFIG, "there is no model in %s yet; train one with: ctitan train %s",
                       save_to, args->path);
    return ct_fail(CT_ECONFIG,
                   "no model to generate with: nothing was trained in %s that was saved; set "
                   "[model] save_to, or load ckpt, when training, or set [model] init_from to "
                   "the folder of a model",
                   run);
}

/* ---- where texts end ---- */

/* The ids of the folder that the weights are from, else those of init_from; the tokenizer's; and
   the end of a turn. */
static int choose_stops(struct writer *w, const char *const folders[2])
{
    const struct ct_tokenizer_ops *t = w->tokenizer;
    struct stops *stops = &w->o->stops;
    int rc = 0;

    if (w->o->chat)
        rc = chat_open(w->arena, folders, 2, t, &w->chat);
    if (rc < 0 || w->o->ignore_eos)
        return rc;
    for (size_t i = 0; rc == 0 && !stops->ids_count && i < 2; i++)
        if (*folders[i])
            rc = ct_hf_read_ends(w->arena, folders[i], &stops->ids, &stops->ids_count);
    if (rc == 0 && t)
        ends_add(w->arena, &stops->ids, &stops->ids_count, t->end ? t->end() : t->eos());
    if (rc == 0 && w->o->chat)
        ends_add(w->arena, &stops->ids, &stops->ids_count, w->chat.end);
    return rc;
}

/* ---- prompts ---- */

static int read_ids(struct writer *w, struct prompt *p)
{
    const char *at = p->text;
    char *end;

    p->tokens = ct_arena_array(w->arena, int32_t, (int64_t)strlen(at) + 1 + w->o->tokens);
    do {
        long id = strtol(at, &end, 10);

        if (end == at || id < 0 || id > INT32_MAX)
            return ct_fail(CT_ECONFIG, "--prompt-ids %s: expected ids like 1,2,3", p->text);
        p->tokens[p->count++] = (int32_t)id;
        at = end + 1;
    } while (*end == ',');
    return *end ? ct_fail(CT_ECONFIG, "--prompt-ids %s: expected ids like 1,2,3", p->text) : 0;
}

/* Encode a prompt, or a turn of a conversation that has `before` tokens already. */
static int read_text(struct writer *w, struct prompt *p)
{
    const struct ct_tokenizer_ops *t = w->tokenizer;
    bool chat = w->o->chat, whole = !chat && t && t->prompt; /* with what belongs around it */
    const char *text = p->text;
    int64_t (*encode)(const char *, size_t, int32_t *, size_t);
    size_t size;
    int64_t count;
    int rc = 0;

    if (!t)
        return ct_fail(CT_ECONFIG, "generate needs a tokenizer: add --with bytes");
    if (chat)
        rc = chat_turn(w->arena, &w->chat, p->text, p->former, &text);
    if (rc < 0)
        return rc;
    size = strlen(text);
    encode = whole ? t->prompt : t->encode;
    count = encode(text, size, NULL, 0);
    if (count < 0)
        return ct_context((int)count, "--prompt");
    p->tokens = ct_arena_array(w->arena, int32_t, count + 1 + w->o->tokens);
    if (!whole && !p->before && (!chat || w->chat.begins) && t->bos() >= 0)
        p->tokens[p->count++] = t->bos();
    count = encode(text, size, p->tokens + p->count, (size_t)count);
    if (count < 0)
        return ct_context((int)count, "--prompt");
    p->count += count;
    return p->count ? 0
                    : ct_fail(CT_ECONFIG, "--prompt is missing; it is required as the tokenizer "
                                          "has no token that begins a document");
}

/* An answer is decoded after the text that was given: its first word keeps its space. */
static int begin_text(struct writer *w, struct prompt *p)
{
    const struct ct_tokenizer_ops *t = w->tokenizer;
    struct ct_decoding *whole = NULL;
    const char *text;
    int64_t all = 0, now = 0;
    int rc;

    if (!t->decoding_open)
        return 0;
    rc = t->decoding_open(&whole);
    if (rc == 0)
        all = t->decoding_add(whole, p->tokens, (size_t)p->count, true, &text);
    t->decoding_close(whole);
    if (rc == 0)
        rc = t->decoding_open(&p->decoding);
    if (rc == 0)
        now = t->decoding_add(p->decoding, p->tokens, (size_t)p->count, false, &text);
    if (rc < 0 || all < 0 || now < 0)
        return rc < 0 ? rc : (int)(all < 0 ? all : now);
    p->skip = (size_t)(all - now);
    return 0;
}

static int read_prompts(struct writer *w)
{
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < w->o->count; i++) {
        struct prompt *p = &w->o->prompts[i];

        rc = p->ids ? read_ids(w, p) : read_text(w, p);
        if (rc == 0 && !p->ids)
            rc = begin_text(w, p);
        p->given = p->count;
        if (rc == 0 && (rc = ct_generator_append(w->generator, i, p->tokens, p->count)) < 0)
            rc = ct_context(rc, "prompt %lld", (long long)i + 1);
    }
    return rc;
}

/* ---- output ---- */

/* Print what is new of a prompt's answer. */
static int show(const struct writer *w, struct prompt *p, bool ended)
{
    int64_t *shown = &p->shown;

    if (!p->ids)
        return answer_show(&p->answer, &w->o->stops, ended);
    for (*shown = *shown ? *shown : p->given; *shown < p->count; ++*shown)
        printf("%s%d", *shown == p->given ? "" : ",", (int)p->tokens[*shown]);
    return fflush(stdout) ? ct_fail(CT_EIO, "stdout: %s", strerror(errno)) : 0;
}

static int print_prompts(const struct writer *w)
{
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < w->o->count; i++) {
        struct prompt *p = &w->o->prompts[i];

        if (!p->ids && !w->o->chat)
            fputs(p->text, stdout);
        rc = show(w, p, true);
        putchar('\n');
    }
    return rc;
}

/* The logits after the last token of each prompt, one line a prompt. */
static int write_logits(const struct writer *w)
{
    struct ct_new_file file;
    int rc = ct_generator_step(w->generator);

    if (rc < 0 || ct_generator_run(w->generator)->rank > 0)
        return rc;
    rc = ct_file_begin(&file, w->o->logits);
    if (rc < 0)
        return rc;
    for (int64_t i = 0; i < w->o->count; i++)
        for (int64_t v = 0, n = ct_generator_vocabulary(w->generator); v < n; v++)
            fprintf(file.out, "%.9g%c", (double)ct_generator_logits(w->generator, i)[v],
                    v + 1 < n ? ' ' : '\n');
    return ct_file_end(&file, 0);
}

/* ---- tokens ---- */

static void end_decoding(struct writer *w, struct prompt *p)
{
    if (p->decoding)
        w->tokenizer->decoding_close(p->decoding);
    p->decoding = NULL;
}

/* Decode tokens of an answer. A stop within their text ends it. */
static int add_text(struct writer *w, struct prompt *p, const int32_t *tokens, size_t count,
                    bool ended)
{
    char bytes[512];
    const char *text = bytes;
    int64_t size = 0;
    size_t skip;

    if (p->decoding)
        size = w->tokenizer->decoding_add(p->decoding, tokens, count, ended, &text);
    else if (count)
        size = w->tokenizer->decode(*tokens, bytes, sizeof(bytes));
    if (size < 0)
        return (int)size;
    skip = (size_t)size < p->skip ? (size_t)size : p->skip;
    p->skip -= skip;
    if (!answer_add(w->arena, &p->answer, &w->o->stops, text + skip, (size_t)size - skip))
        return 0;
    p->done = true;
    end_decoding(w, p);
    return 0;
}

static int end_text(struct writer *w, struct prompt *p)
{
    int rc = p->decoding ? add_text(w, p, NULL, 0, true) : 0;

    end_decoding(w, p);
    return rc;
}

/* Choose the next token of a prompt. A token that ends it is not a part of the answer. */
static int choose_token(struct writer *w, int64_t i)
{
    struct prompt *p = &w->o->prompts[i];
    struct ct_philox random = ct_philox((uint64_t)w->o->seed, ct_rng_stream("generate"),
                                        (uint64_t)(p->before + p->count) + ((uint64_t)i << 32));
    int32_t token = ct_sample(ct_generator_logits(w->generator, i), w->vocabulary, &w->o->sampling,
                              (double)ct_uniform(random.v[0]), w->candidates);
    int rc;

    if (stops_have(&w->o->stops, token)) {
        p->done = true;
        return end_text(w, p);
    }
    p->tokens[p->count++] = token;
    rc = p->ids ? 0 : add_text(w, p, &token, 1, false);
    if (rc < 0)
        return rc;
    return ct_generator_append(w->generator, i, &token, 1);
}

static int write_prompts(struct writer *w)
{
    struct options *o = w->o;
    bool alone = o->count == 1;
    int64_t left = o->count;
    int rc = 0;

    if (alone && !o->prompts[0].ids && !o->chat)
        fputs(o->prompts[0].text, stdout);
    for (int64_t n = 0; rc == 0 && left && n < o->tokens; n++) {
        rc = ct_generator_step(w->generator);
        for (int64_t i = 0; rc == 0 && i < o->count; i++) {
            struct prompt *p = &o->prompts[i];

            if (p->done)
                continue;
            rc = choose_token(w, i);
            left -= p->done;
            if (rc == 0 && alone)
                rc = show(w, p, p->done);
        }
    }
    for (int64_t i = 0; rc == 0 && i < o->count; i++)
        rc = end_text(w, &o->prompts[i]);
    if (rc == 0 && alone)
        rc = show(w, &o->prompts[0], true);
    if (rc == 0 && alone)
        putchar('\n');
    else if (rc == 0)
        rc = print_prompts(w);
    return rc == 0 && o->logits ? write_logits(w) : rc;
}

static int answer(struct writer *w)
{
    int rc = read_prompts(w);

    return rc < 0 ? rc : write_prompts(w);
}

/* Answer the lines of stdin, turn by turn, until it ends. */
static int talk(struct writer *w)
{
    struct options *o = w->o;
    struct prompt *p = &o->prompts[0];
    bool terminal = isatty(STDIN_FILENO);
    char *line = NULL;
    size_t room = 0;
    int64_t before = 0;
    struct answer former;
    int rc = 0;

    o->count = 1;
    for (;;) {
        fputs(terminal ? "> " : "", stdout);
        fflush(stdout);
        rc = ranks_read_line(ct_generator_run(w->generator), &line, &room);
        if (rc <= 0)
            break;
        if (!*line)
            continue;
        former = p->answer;
        *p = (struct prompt){.text = line, .before = before, .former = before ? &former : NULL};
        rc = answer(w);
        if (rc < 0)
            break;
        before += p->count;
    }
    free(line);
    if (terminal)
        putchar('\n');
    return rc;
}

/* In this process, as one rank. */
static int generate(struct args *args, struct options *o, struct ct_recipe *recipe,
                    const struct ct_identity *id)
{
    struct writer w = {.o = o, .arena = &args->arena};
    struct ct_generate_request request = {.sequences = o->count ? o->count : 1,
                                          .cache = !o->no_cache,
                                          .rank = id->rank,
                                          .world = id->world,
                                          .local_rank = id->local_rank,
                                          .local_ranks = id->local_ranks,
                                          .job = id->job};
    int rc;

    if (id->rank > 0 && !freopen("/dev/null", "w", stdout)) /* rank 0 prints */
        return ct_fail(CT_EIO, "/dev/null: %s", strerror(errno));
    request.weights = choose_weights(args, recipe);
    rc = ct_generator_open(recipe, &request, &w.generator);
    if (rc < 0)
        return rc;
    w.tokenizer = ct_generator_run(w.generator)->tokenizer;
    w.vocabulary = ct_generator_vocabulary(w.generator);
    if (w.tokenizer && w.tokenizer->vocabulary() < w.vocabulary)
        w.vocabulary = w.tokenizer->vocabulary();
    w.candidates = ct_arena_array(&args->arena, struct ct_candidate, w.vocabulary);
    rc = check_weights(args, recipe);
    if (rc == 0 && request.cache)
        ct_info("caches: %.4g MB on a rank, for %lld tokens of %lld sequence%s",
                (double)ct_generator_cache_bytes(w.generator) / 1e6,
                (long long)ct_config.training.seq_len, (long long)request.sequences,
                ct_plural(request.sequences));
    if (rc == 0)
        rc = choose_stops(&w, (const char *[]){request.weights ? request.weights : "",
                                               ct_config.model.init_from});
    if (rc == 0)
        rc = o->count ? answer(&w) : talk(&w);
    chat_close(&w.chat);
    ct_generator_close(w.generator);
    return rc;
}

static int generate_or_supervise(struct options *o, int argc, char **argv)
{
    struct ct_identity id;
    struct ct_recipe *recipe;
    int rc = check_options(o);

    if (rc == 0)
        rc = rank_begin(&o->args, &id);
    if (rc == 0)
        rc = args_recipe(&o->args, &recipe);
    if (rc < 0)
        return rc;
    o->args.reads = o->chat && !o->count;
    if (o->args.ranks > 1 && !id.by)
        return supervise(&o->args, recipe, argc, argv);
    run_catch_crashes(id.rank);
    rc = generate(&o->args, o, recipe, &id);
    run_leave_crashes();
    return rc;
}

static int generate_verb(int argc, char **argv)
{
    struct options *o = calloc(1, sizeof(*o));
    int rc = o ? 0 : ct_fail(CT_ENOMEM, "options");

    if (rc == 0) {
        *o =
            (struct options){.tokens = 256, .seed = 1, .sampling = {.temperature = -1, .top_p = 1}};
        rc = args_parse(arguments, argc, argv, &o->args);
    }
    if (rc == 0)
        rc = args_finish(&o->args, generate_or_supervise(o, argc, argv));
    free(o);
    return rc;
}

const struct verb verb_generate = {
    .name = "generate",
    .summary = "generate text with a trained model",
    .run = generate_verb,
    .arguments = arguments,
    .examples = CT_NAMES("ctitan generate recipes/quickstart.ini --prompt 'Once upon a time'",
                         "ctitan generate ~/models/Llama-3.2-1B --chat --tokens 500",
                         "ctitan generate outputs/big -n 4 --with local,tp --set tp.degree=4"),
    .details = "With several ranks, weights and caches lie on them as in training (tp, fsdp,\n"
               "ep), and rank 0 prints. pp and cp must have degree 1.\n"};
