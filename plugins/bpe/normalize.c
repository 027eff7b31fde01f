#include <stdlib.h>
#include <string.h>

#include <unigbrk.h>

#include <ctitan/error.h>

#include "normalize.h"

/* ---- a text and where it comes from ---- */

static int reserve(struct normal *n, size_t count)
{
    size_t room = n->room ? n->room : 256, *begin, *end;

    if (count <= n->room)
        return 0;
    while (room < count)
        room *= 2;
    begin = realloc(n->begin, room * sizeof(*begin));
    n->begin = begin ? begin : n->begin;
    end = realloc(n->end, room * sizeof(*end));
    n->end = end ? end : n->end;
    if (!begin || !end)
        return ct_fail(CT_ENOMEM, "where %zu bytes of text come from", count);
    n->room = room;
    return 0;
}

int normal_reset(struct normal *n, bool aligned)
{
    int rc = aligned ? reserve(n, 1) : 0;

    n->text.size = 0;
    n->aligned = aligned;
    if (rc == 0 && aligned)
        n->begin[0] = n->end[0] = 0;
    return rc;
}

void normal_finish(struct normal *n)
{
    text_finish(&n->text);
    free(n->begin);
    free(n->end);
    *n = (struct normal){0};
}

int normal_put(struct normal *n, const char *bytes, size_t size, size_t from, size_t to)
{
    size_t at = n->text.size;
    bool same = size == to - from;
    int rc = text_append(&n->text, bytes, size);

    if (rc < 0 || !n->aligned)
        return rc;
    rc = reserve(n, at + size + 1);
    for (size_t i = 0; rc == 0 && i < size; i++) {
        n->begin[at + i] = same ? from + i : from;
        n->end[at + i + 1] = same ? from + i + 1 : to;
    }
    if (rc == 0)
        n->begin[at + size] = to;
    return rc;
}

/* ---- one normalizer each ---- */

static int apply_form(struct normalizer *n, const char *text, size_t size, const char **normal)
{
    struct normal *out = &n->out;
    size_t normal_size = size;
    int rc = unicode_normalize(n->form, text, &normal_size, &out->text, normal);

    if (rc < 0 || *normal == text || !out->aligned)
        return rc;
    rc = reserve(out, normal_size + 1);
    return rc < 0 ? rc : unicode_align(n->form, text, size, normal_size, out->begin, out->end);
}

static int apply_prepend(struct normalizer *n, const char *text, size_t size)
{
    int rc = size ? normal_put(&n->out, n->content, n->content_size, 0, 0) : 0;

    return rc < 0 ? rc : normal_put(&n->out, text, size, 0, size);
}

/* The library takes a replacement's place from the last character that is replaced. */
static int apply_replace(struct normalizer *n, const char *text, size_t size, bool *begins)
{
    const char *at = text, *end = text + size, *begin, *stop;
    struct pattern_matches matches = {&n->pattern, text, text, end, false};
    size_t first;
    int rc;

    while ((rc = pattern_match(&matches, &begin, &stop)) > 0) {
        if (begin == text && stop > text) {
            unicode_at(text, &first);
            *begins = *begins && n->content_size && (size_t)(stop - text) == first;
        }
        rc = normal_put(&n->out, at, (size_t)(begin - at), (size_t)(at - text),
                        (size_t)(begin - text));
        if (rc == 0)
            rc = normal_put(&n->out, n->content, n->content_size, (size_t)(begin - text),
                            (size_t)(stop - text));
        if (rc < 0)
            return rc;
        at = stop;
    }
    return rc < 0 ? rc : normal_put(&n->out, at, (size_t)(end - at), (size_t)(at - text), size);
}

static int apply_strip(struct normalizer *n, const char *text, size_t size, bool *begins)
{
    const char *from = text, *to = text + size, *before;
    size_t width;

    while (n->left && from < to && unicode_class[unicode_at(from, &width)] & UNICODE_SPACE)
        from += width;
    while (n->right && to > from) {
        before = unicode_before(from, to);
        if (!(unicode_class[unicode_at(before, &width)] & UNICODE_SPACE))
            break;
        to = before;
    }
    *begins = *begins && from == text;
    return normal_put(&n->out, from, (size_t)(to - from), (size_t)(from - text),
                      (size_t)(to - text));
}

/* The characters that SentencePiece's nmt rules remove, and those that they make spaces. */
static bool nmt_removes(uint32_t c)
{
    return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F ||
           c == 0x8F || c == 0x9F;
}

static bool nmt_makes_space(uint32_t c)
{
    return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
           (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
           c == 0xFEFF || c == 0xFFFD;
}

static int apply_nmt(struct normalizer *n, const char *text, size_t size, bool *begins)
{
    size_t width;
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < size; at += width) {
        uint32_t c = unicode_at(text + at, &width);
        bool space = nmt_makes_space(c);

        if (nmt_removes(c))
            *begins = *begins && at > 0;
        else
            rc = normal_put(&n->out, space ? " " : text + at, space ? 1 : width, at, at + width);
    }
    return rc;
}

#define CLUSTER 6 /* bytes; a longer cluster of characters is mapped by characters */

static int put_mapped(struct normalizer *n, const char *text, size_t from, size_t to)
{
    size_t width;
    int rc = 0;

    for (size_t at = from; rc == 0 && at < to; at += width) {
        const char *mapped;

        unicode_at(text + at, &width);
        mapped = charsmap_find(&n->charsmap, text + at, width);
        rc = mapped ? normal_put(&n->out, mapped, strlen(mapped), at, at + width)
                    : normal_put(&n->out, text + at, width, at, at + width);
    }
    return rc;
}

/* A short cluster becomes the string for the shortest key that it begins with, as in the
   library. */
static int apply_charsmap(struct normalizer *n, const char *text, size_t size)
{
    const char *end = text + size, *stop;
    int rc = 0;

    for (const char *at = text; rc == 0 && at < end; at = stop) {
        const char *mapped = NULL;
        size_t from = (size_t)(at - text), to;

        stop = (const char *)u8_grapheme_next((const uint8_t *)at, (const uint8_t *)end);
        to = (size_t)(stop - text);
        if (to - from < CLUSTER)
            mapped = charsmap_find(&n->charsmap, at, to - from);
        rc = mapped ? normal_put(&n->out, mapped, strlen(mapped), from, to)
                    : put_mapped(n, text, from, to);
    }
    return rc;
}

int normalizer_apply(struct normalizer *n, bool aligned, const char **text, size_t *size,
                     bool *begins)
{
    const char *normal = NULL;
    int rc = normal_reset(&n->out, aligned);

    if (rc < 0)
        return rc;
    switch (n->kind) {
    case NORMALIZER_FORM:
        rc = apply_form(n, *text, *size, &normal);
        break;
    case NORMALIZER_PREPEND:
        rc = apply_prepend(n, *text, *size);
        break;
    case NORMALIZER_REPLACE:
        rc = apply_replace(n, *text, *size, begins);
        break;
    case NORMALIZER_STRIP:
        rc = apply_strip(n, *text, *size, begins);
        break;
    case NORMALIZER_NMT:
        rc = apply_nmt(n, *text, *size, begins);
        break;
    case NORMALIZER_CHARSMAP:
        rc = apply_charsmap(n, *text, *size);
        break;
    }
    if (rc < 0 || normal == *text)
        return rc;
    *text = n->out.text.data ? n->out.text.data : "";
    *size = n->out.text.size;
    return 0;
}

void normalizer_close(struct normalizer *n)
{
    pattern_close(&n->pattern);
    normal_finish(&n->out);
}
