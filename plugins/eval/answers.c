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

/* The text of tokens; end: no token follows. Else it is what no later token can change. */
static int decode(const struct ct_tokenizer_ops *t, const int32_t *tokens, int64_t count, bool end,
                  struct text *text)
{
    struct ct_decoding *decoding;
    const char *bytes;
    char one[4096];
    int64_t size = 0;
    int rc = 0;

    text->size = 0;
    for (int64_t i = 0; !t->decoding_open && rc == 0 && i < count; i++) {
        size = t->decode(tokens[i], one, sizeof(one));
        rc = size > 0 ? add_bytes(text, one, (size_t)size) : (int)size;
    }
    if (!t->decoding_open)
        return rc;
    rc = t->decoding_open(&decoding);
    if (rc < 0)
        return rc;
    size = t->decoding_add(decoding, tokens, (size_t)count, end, &bytes);
    rc = size < 0 ? (int)size : add_bytes(text, bytes, (size_t)size);
    t->decoding_close(decoding);
    return rc;
}

/* ---- writing ---- */

/* An answer that is being written. */
struct answer {
    const struct question *of;
    size_t before; /* bytes of the prompt's text */
    bool done, right;
};

/* Judges the text so far: is it at its end, or can it no longer be what is expected? */
static int judge(struct ct_data *task, struct answer *a, bool ended, struct text *text)
{
    const struct writing *how = task->writing;
    const struct sequence *s = a->of->written;
    size_t before = a->before, size;
    const char *written, *stop;
    int rc;

    a->done = ended || s->count - a->of->given >= how->tokens;
    rc = decode(task->tokenizer, s->tokens, s->count, a->done, text);
    if (rc < 0)
        return rc;
    before = before < text->size ? before : text->size;
    written = text->bytes + before;
    size = text->size - before;
    stop = *how->stop && size ? memmem(written, size, how->stop, strlen(how->stop)) : NULL;
    if (stop)
        size = (size_t)(stop - written);
    a->done |= stop != NULL;
    a->right = answer_is(how, written, size, a->of->expected, !a->done);
    a->done |= !a->right;
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
static int add_token(struct ct_data *task, struct answer *a, int32_t token, struct text *text)
{
    struct sequence *s = a->of->written;
    bool ended = is_end(task->writing, token);

    if (!ended)
        s->tokens[s->count++] = token;
    return judge(task, a, ended, text);
}

/* If the expected answer's tokens follow those of the prompt, and all are the likeliest, they are
   written. */
static int take_expected(struct ct_data *task, struct answer *a, struct text *text)
{
    const struct sequence *whole = &a->of->choice->whole, *s = a->of->written;
    int64_t given = a->of->given;
    int rc = 0;

    if (whole->wrong != 0 || whole->from > given || whole->count <= given ||
        memcmp(whole->tokens, s->tokens, (size_t)given * sizeof(*s->tokens)) != 0)
        return 0;
    for (int64_t i = given; rc == 0 && !a->done && i < whole->count; i++)
        rc = add_token(task, a, whole->tokens[i], text);
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
static int write_next(struct ct_data *task, struct answer *answers, struct text *text, bool *more)
{
    int rc = score_next(task, answers);

    *more = task->queued;
    for (size_t i = 0; rc == 0 && i < task->count; i++)
        if (!answers[i].done)
            rc = add_token(task, &answers[i], (int32_t)answers[i].of->written->token, text);
    return rc;
}

static int begin(struct ct_data *task, struct answer *answers, struct text *text)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < task->count; i++) {
        struct answer *a = &answers[i];

        a->of = &task->question[i];
        a->of->written->count = a->of->given;
        rc = decode(task->tokenizer, a->of->written->tokens, a->of->given, true, text);
        a->before = text->size;
        if (rc == 0)
            rc = take_expected(task, a, text);
    }
    return rc;
}

int task_write(struct ct_data *task, size_t *right)
{
    struct answer *answers = calloc(task->count, sizeof(*answers));
    struct text text = {0};
    bool more = true;
    int rc = answers ? begin(task, answers, &text) : ct_fail(CT_ENOMEM, "answers");

    while (rc == 0 && more)
        rc = write_next(task, answers, &text, &more);
    *right = 0;
    for (size_t i = 0; rc == 0 && i < task->count; i++)
        *right += answers[i].right;
    free(text.bytes);
    free(answers);
    return rc;
}
