/*
 * The answers that a model writes, each token being the likeliest one, until a stop, the end of a
 * text, or the limit of tokens.
 *
 * The program of validation computes them, on any mesh, for all questions together: a pass gives
 * the next token of each sequence. An answer is written only as far as it may still be the expected
 * one: the first pass, which has the expected answer's tokens behind the prompt, tells whether all
 * of them are the likeliest, and later ones end where the text differs. So most answers take two or
 * three passes, and the result is that of writing them whole.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "questions.h"

/* ---- comparing texts ---- */

static bool is_left_out(const struct writing *how, char c)
{
    return (how->ignore_punctuation && ispunct((unsigned char)c) && !((unsigned char)c & 0x80)) ||
           (how->ignore_numbers && isdigit((unsigned char)c));
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The next character that counts; -1: there is none. */
static int next(const struct writing *how, const char **at, const char *end)
{
    while (*at < end && is_left_out(how, **at))
        ++*at;
    if (*at == end)
        return -1;
    return how->ignore_case && isupper((unsigned char)**at) ? tolower((unsigned char)*(*at)++)
                                                            : (unsigned char)*(*at)++;
}

/* Leave out white space at both ends, and what counts nothing beside it. */
static void trim(const struct writing *how, const char **at, const char **end)
{
    while (*at < *end && (is_space(**at) || is_left_out(how, **at)))
        ++*at;
    while (*end > *at && (is_space((*end)[-1]) || is_left_out(how, (*end)[-1])))
        --*end;
}

bool answer_is(const struct writing *how, const char *text, size_t size, const char *expected,
               bool part)
{
    const char *end = text + size, *other = expected + strlen(expected);
    int a, b;

    trim(how, &text, &end);
    trim(how, &expected, &other);
    do {
        a = next(how, &text, end);
        b = next(how, &expected, other);
    } while (a == b && a >= 0);
    return a == b || (part && a < 0);
}

/* ---- decoding ---- */

struct text {
    char *bytes;
    size_t size, room;
};

static int add_bytes(struct text *t, const char *bytes, size_t size)
{
    if (t->size + size > t->room) {
        size_t room = 2 * (t->size + size);
        char *more = realloc(t->bytes, room);

        if (!more)
            return ct_fail(CT_ENOMEM, "the text of an answer");
        t->bytes = more;
        t->room = room;
    }
    memcpy(t->bytes + t->size, bytes, size);
    t->size += size;
    return 0;
}

/* An answer that is being written. */
struct answer {
    const struct question *of;
    struct ct_decoding *decoding; /* NULL: tokens are decoded one by one */
    int64_t decoded;              /* tokens */
    struct text text;             /* of them, as far as no later token can change it */
    size_t before;                /* bytes of the prompt's text */
    bool done, right;
};

static int decode_one_by_one(const struct ct_tokenizer_ops *t, const int32_t *tokens, int64_t count,
                             struct text *text)
{
    char one[4096];
    int rc = 0;

    for (int64_t i = 0; rc == 0 && i < count; i++) {
        int size = t->decode(tokens[i], one, sizeof(one));

        rc = size > 0 ? add_bytes(text, one, (size_t)size) : size;
    }
    return rc;
}

/* Decode tokens that are new; end: none follows. */
static int decode_new(const struct ct_tokenizer_ops *t, struct answer *a, bool end)
{
    const struct sequence *s = a->of->written;
    const int32_t *tokens = s->tokens + a->decoded;
    int64_t count = s->count - a->decoded, size;
    const char *bytes;

    a->decoded = s->count;
    if (!a->decoding)
        return decode_one_by_one(t, tokens, count, &a->text);
    size = t->decoding_add(a->decoding, tokens, (size_t)count, end, &bytes);
    return size < 0 ? (int)size : add_bytes(&a->text, bytes, (size_t)size);
}

static void end_decoding(const struct ct_tokenizer_ops *t, struct answer *a)
{
    if (a->decoding)
        t->decoding_close(a->decoding);
    free(a->text.bytes);
    a->decoding = NULL;
    a->text = (struct text){0};
}

/* Begin with the prompt alone, and count the bytes of its whole text. */
static int begin_decoding(const struct ct_tokenizer_ops *t, struct answer *a)
{
    struct answer prompt = {.of = a->of};
    int rc = t->decoding_open ? t->decoding_open(&prompt.decoding) : 0;

    if (rc == 0)
        rc = decode_new(t, &prompt, true);
    a->before = prompt.text.size;
    end_decoding(t, &prompt);
    return rc == 0 && t->decoding_open ? t->decoding_open(&a->decoding) : rc;
}

/* ---- writing ---- */

/* Judges the text so far: is it at its end, or can it no longer be what is expected? */
static int judge(struct ct_data *task, struct answer *a, bool ended)
{
    const struct writing *how = task->writing;
    const struct sequence *s = a->of->written;
    size_t before = a->before, size;
    const char *written, *stop;
    int rc;

    a->done = ended || s->count - a->of->given >= how->tokens;
    rc = decode_new(task->tokenizer, a, a->done);
    if (rc < 0)
        return rc;
    before = before < a->text.size ? before : a->text.size;
    written = a->text.bytes + before;
    size = a->text.size - before;
    stop = *how->stop && size ? memmem(written, size, how->stop, strlen(how->stop)) : NULL;
    if (stop)
        size = (size_t)(stop - written);
    a->done |= stop != NULL;
    a->right = answer_is(how, written, size, a->of->expected, !a->done);
    a->done |= !a->right;
    if (a->done)
        end_decoding(task->tokenizer, a);
    return 0;
}

static bool is_end(const struct writing *how, int32_t token)
{
    for (size_t i = 0; i < how->ends_count; i++)
        if (how->ends[i] == token)
            return true;
    return false;
}

/* Add a token to an answer, unless it is an end. */
static int add_token(struct ct_data *task, struct answer *a, int32_t token)
{
    struct sequence *s = a->of->written;
    bool ended = is_end(task->writing, token);

    if (!ended)
        s->tokens[s->count++] = token;
    return judge(task, a, ended);
}

/* If the expected answer's tokens follow those of the prompt, and all are the likeliest, they are
   written. */
static int take_expected(struct ct_data *task, struct answer *a)
{
    const struct sequence *whole = &a->of->choice->whole, *s = a->of->written;
    int64_t given = a->of->given;
    int rc = 0;

    if (whole->wrong != 0 || whole->from > given || whole->count <= given ||
        memcmp(whole->tokens, s->tokens, (size_t)given * sizeof(*s->tokens)) != 0)
        return 0;
    for (int64_t i = given; rc == 0 && !a->done && i < whole->count; i++)
        rc = add_token(task, a, whole->tokens[i]);
    return rc;
}

/* Score, of each answer that is not done, a label behind what is written. */
static int score_next(struct ct_data *task, const struct answer *answers)
{
    int rc;

    task->queued = 0;
    for (size_t i = 0; i < task->count; i++) {
        struct sequence *s = answers[i].of->written;

        if (answers[i].done)
            continue;
        s->from = s->count;
        s->tokens[s->count++] = 0;
        task->queue[task->queued++] = s;
    }
    rc = task_score(task);
    for (size_t i = 0; i < task->queued; i++)
        task->queue[i]->count--;
    return rc;
}

/* Write one token of each answer that is not done. *more: whether there is one. */
static int write_next(struct ct_data *task, struct answer *answers, bool *more)
{
    int rc = score_next(task, answers);

    *more = task->queued;
    for (size_t i = 0; rc == 0 && i < task->count; i++)
        if (!answers[i].done)
            rc = add_token(task, &answers[i], (int32_t)answers[i].of->written->token);
    return rc;
}

static int begin(struct ct_data *task, struct answer *answers)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < task->count; i++) {
        struct answer *a = &answers[i];

        a->of = &task->question[i];
        a->of->written->count = a->of->given;
        rc = begin_decoding(task->tokenizer, a);
        if (rc == 0)
            rc = take_expected(task, a);
    }
    return rc;
}

int task_write(struct ct_data *task, size_t *right)
{
    struct answer *answers = calloc(task->count, sizeof(*answers));
    bool more = true;
    int rc = answers ? begin(task, answers) : ct_fail(CT_ENOMEM, "answers");

    while (rc == 0 && more)
        rc = write_next(task, answers, &more);
    *right = 0;
    for (size_t i = 0; rc == 0 && i < task->count; i++)
        *right += answers[i].right;
    for (size_t i = 0; answers && i < task->count; i++)
        end_decoding(task->tokenizer, &answers[i]);
    free(answers);
    return rc;
}
