#include <string.h>

#include <ctitan/error.h>

#include "decode.h"

#define REPLACEMENT "\xEF\xBF\xBD"

/* A string, or a part of a fused one, arrives at stage `number`. */
static int feed(struct decoding *d, int number, const char *text, size_t size, bool first);

/* ---- one stage each ---- */

static int replace(struct decoding *d, int number, const char *text, size_t size, bool first)
{
    const struct decoder_stage *stage = &d->decoder->stages[number];
    const char *at = text, *end = text + size, *begin, *stop;
    struct pattern_matches matches = {&stage->pattern, text, text, end, false};
    struct text out = {0};
    int rc;

    while ((rc = pattern_match(&matches, &begin, &stop)) > 0) {
        rc = text_append(&out, at, (size_t)(begin - at));
        if (rc == 0)
            rc = text_append(&out, stage->content, stage->size);
        if (rc < 0)
            break;
        at = stop;
    }
    if (rc == 0)
        rc = text_append(&out, at, (size_t)(end - at));
    if (rc == 0)
        rc = feed(d, number + 1, out.data, out.size, first);
    text_finish(&out);
    return rc;
}

/* A run of bytes that is not UTF-8 becomes as many U+FFFD. */
static int end_bytes(struct decoding *d, int number)
{
    struct text *held = &d->states[number].held;
    bool valid = held->size && unicode_is_valid(held->data, held->size);
    int rc = valid ? feed(d, number + 1, held->data, held->size, true) : 0;

    for (size_t i = 0; rc == 0 && !valid && i < held->size; i++)
        rc = feed(d, number + 1, REPLACEMENT, strlen(REPLACEMENT), true);
    held->size = 0;
    return rc;
}

static int digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

int decoder_byte(const char *text, size_t size)
{
    if (size != 6 || memcmp(text, "<0x", 3) || text[5] != '>' || digit(text[3]) < 0 ||
        digit(text[4]) < 0)
        return -1;
    return digit(text[3]) * 16 + digit(text[4]);
}

static int fall_back(struct decoding *d, int number, const char *text, size_t size)
{
    int byte = decoder_byte(text, size);
    char bytes[] = {(char)byte};
    int rc;

    if (byte >= 0)
        return text_append(&d->states[number].held, bytes, 1);
    rc = end_bytes(d, number);
    return rc < 0 ? rc : feed(d, number + 1, text, size, true);
}

static bool ends_with(const struct decoder_stage *stage, const char *text, size_t size)
{
    return size >= stage->size && !memcmp(text + size - stage->size, stage->content, stage->size);
}

static int strip(struct decoding *d, int number, const char *text, size_t size, bool first)
{
    const struct decoder_stage *stage = &d->decoder->stages[number];
    struct stage_state *state = &d->states[number];

    if (first) {
        state->stripped = 0;
        state->begun = false;
    }
    while (!state->begun && state->stripped < stage->start && size >= stage->size &&
           !memcmp(text, stage->content, stage->size)) {
        text += stage->size;
        size -= stage->size;
        state->stripped++;
    }
    state->begun |= size > 0;
    for (int64_t i = 0; i < stage->stop && ends_with(stage, text, size); i++)
        size -= stage->size;
    return feed(d, number + 1, text, size, first);
}

/* In the first string the character disappears, in others it is a space. */
static int replace_marks(struct decoding *d, int number, const char *text, size_t size, bool first)
{
    const struct decoder_stage *stage = &d->decoder->stages[number];
    bool drop = d->states[number].strings == 1 && !stage->never;
    struct text out = {0};
    size_t width;
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < size; at += width) {
        bool mark;

        unicode_at(text + at, &width);
        mark = width == stage->size && !memcmp(text + at, stage->content, width);
        if (!mark || !drop)
            rc = text_append(&out, mark ? " " : text + at, mark ? 1 : width);
    }
    if (rc == 0)
        rc = feed(d, number + 1, out.data, out.size, first);
    text_finish(&out);
    return rc;
}

/* Give the bytes that are held, without the last `keep`, as UTF-8. */
static int give_bytes(struct decoding *d, int number, size_t keep)
{
    struct text *held = &d->states[number].held, copy = {0};
    size_t size = held->size - keep;
    const char *valid;
    int rc = unicode_repair(held->data, &size, &copy, &valid);

    if (rc == 0)
        rc = feed(d, number + 1, valid, size, true);
    if (keep)
        memmove(held->data, held->data + held->size - keep, keep);
    held->size = keep;
    text_finish(&copy);
    return rc;
}

static int take_bytes(struct decoding *d, int number, const char *text, size_t size)
{
    struct text *held = &d->states[number].held;
    int rc = text_append(held, text, size);

    return rc < 0 || !held->size
               ? rc
               : give_bytes(d, number, unicode_unfinished(held->data, held->size));
}

static int join(struct decoding *d, int number, const char *text, size_t size)
{
    int rc = d->states[number].strings > 1 ? feed(d, number + 1, " ", 1, true) : 0;

    return rc < 0 ? rc : feed(d, number + 1, text, size, true);
}

/* ---- the chain ---- */

/* Whether a stage can only work on a fused string as a whole. */
static bool needs_whole(const struct decoder_stage *stage)
{
    return stage->fused && ((stage->kind == DECODER_REPLACE && !stage->character) ||
                            (stage->kind == DECODER_STRIP && stage->stop > 0));
}

static int work(struct decoding *d, int number, const char *text, size_t size, bool first)
{
    switch (d->decoder->stages[number].kind) {
    case DECODER_REPLACE:
        return replace(d, number, text, size, first);
    case DECODER_BYTE_FALLBACK:
        return fall_back(d, number, text, size);
    case DECODER_FUSE:
        return feed(d, number + 1, text, size, d->states[number].strings == 1);
    case DECODER_STRIP:
        return strip(d, number, text, size, first);
    case DECODER_METASPACE:
        return replace_marks(d, number, text, size, first);
    case DECODER_BYTE_LEVEL:
        return take_bytes(d, number, text, size);
    case DECODER_JOIN:
        return join(d, number, text, size);
    }
    return ct_fail(CT_EINVAL, "decoder: kind %d", (int)d->decoder->stages[number].kind);
}

static int feed(struct decoding *d, int number, const char *text, size_t size, bool first)
{
    if (number == d->decoder->count)
        return size ? text_append(&d->out, text, size) : 0;
    d->states[number].strings += first;
    if (needs_whole(&d->decoder->stages[number]))
        return size ? text_append(&d->states[number].held, text, size) : 0;
    return work(d, number, text ? text : "", size, first);
}

int decoding_put(struct decoding *d, const char *string, size_t size)
{
    return feed(d, 0, string, size, true);
}

int decoding_end(struct decoding *d)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < d->decoder->count; i++) {
        const struct decoder_stage *stage = &d->decoder->stages[i];
        struct text *held = &d->states[i].held;

        if (stage->kind == DECODER_BYTE_FALLBACK)
            rc = end_bytes(d, i);
        else if (stage->kind == DECODER_BYTE_LEVEL && held->size)
            rc = give_bytes(d, i, 0);
        else if (needs_whole(stage))
            rc = work(d, i, held->data ? held->data : "", held->size, true);
    }
    return rc;
}

void decoding_finish(struct decoding *d)
{
    for (int i = 0; i < DECODER_STAGES; i++)
        text_finish(&d->states[i].held);
    text_finish(&d->out);
}

void decoder_close(struct decoder *decoder)
{
    for (int i = 0; i < DECODER_STAGES; i++)
        pattern_close(&decoder->stages[i].pattern);
}
