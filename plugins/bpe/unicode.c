#include <stdlib.h>
#include <string.h>

#include <unictype.h>
#include <uninorm.h>
#include <unistr.h>

#include <ctitan/error.h>

#include "unicode.h"

#define CHARACTERS 0x110000
#define REPLACEMENT "\xEF\xBF\xBD"

const uint8_t *unicode_class;

/* ---- classes ---- */

static uint8_t classify(ucs4_t c)
{
    uint32_t category = uc_general_category(c).bitmask;
    uint8_t class = 0;

    if (category & UC_CATEGORY_MASK_L)
        class |= UNICODE_LETTER;
    if (category & UC_CATEGORY_MASK_N)
        class |= UNICODE_NUMBER;
    if (category & (UC_CATEGORY_MASK_M | UC_CATEGORY_MASK_Nd | UC_CATEGORY_MASK_Pc) ||
        uc_is_property_alphabetic(c) || uc_is_property_join_control(c))
        class |= UNICODE_WORD;
    if (uc_is_property_white_space(c))
        class |= UNICODE_SPACE;
    if (uc_combining_class(c) == 0)
        class |= UNICODE_STABLE;
    return class;
}

/* NFC may replace c, or the pair that c decomposes into. */
static void mark_unstable(uint8_t *class, ucs4_t c)
{
    ucs4_t parts[UC_DECOMPOSITION_MAX_LENGTH];
    int count = uc_canonical_decomposition(c, parts);

    if (count == 2 && uc_composition(parts[0], parts[1]) == c)
        class[parts[1]] &= (uint8_t)~UNICODE_STABLE;
    else if (count > 0)
        class[c] &= (uint8_t)~UNICODE_STABLE;
}

int unicode_init(void)
{
    uint8_t *class;

    if (unicode_class)
        return 0;
    class = malloc(CHARACTERS);
    if (!class)
        return ct_fail(CT_ENOMEM, "classes of characters");
    for (ucs4_t c = 0; c < CHARACTERS; c++)
        class[c] = classify(c);
    for (ucs4_t c = 0; c < CHARACTERS; c++)
        mark_unstable(class, c);
    unicode_class = class;
    return 0;
}

/* ---- text ---- */

int text_append(struct text *t, const char *data, size_t size)
{
    size_t room = t->room ? t->room : 256;
    char *moved;

    while (room < t->size + size)
        room *= 2;
    if (room > t->room) {
        moved = realloc(t->data, room);
        if (!moved)
            return ct_fail(CT_ENOMEM, "%zu bytes of text", room);
        t->data = moved;
        t->room = room;
    }
    if (size)
        memcpy(t->data + t->size, data, size);
    t->size += size;
    return 0;
}

void text_finish(struct text *t)
{
    free(t->data);
    *t = (struct text){0};
}

/* Bytes of the longest beginning of a character here, at least 1 (Unicode, table 3-7). */
static size_t broken_size(const uint8_t *at, const uint8_t *end)
{
    uint8_t lead = *at, least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    uint8_t most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    size_t need = lead < 0xC2 || lead > 0xF4 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4, size = 1;

    while (size < need && at + size < end && at[size] >= least && at[size] <= most) {
        least = 0x80;
        most = 0xBF;
        size++;
    }
    return size;
}

const char *unicode_before(const char *begin, const char *at)
{
    do
        at--;
    while (at > begin && ((unsigned char)*at & 0xC0) == 0x80);
    return at;
}

bool unicode_is_valid(const char *text, size_t size)
{
    return !u8_check((const uint8_t *)text, size);
}

size_t unicode_unfinished(const char *text, size_t size)
{
    const uint8_t *end = (const uint8_t *)text + size;

    for (size_t back = 1; back <= 3 && back <= size; back++) {
        uint8_t lead = end[-(ptrdiff_t)back];
        size_t need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC2 ? 2 : 1;

        if (lead >= 0x80 && lead < 0xC0)
            continue;
        return lead >= 0xC2 && lead <= 0xF4 && need > back && broken_size(end - back, end) == back
                   ? back
                   : 0;
    }
    return 0;
}

int unicode_repair(const char *text, size_t *size, struct text *copy, const char **valid)
{
    const char *end = text + *size;
    const uint8_t *wrong = u8_check((const uint8_t *)text, *size);
    int rc = 0;

    *valid = text;
    if (!wrong)
        return 0;
    copy->size = 0;
    while (rc == 0 && wrong) {
        rc = text_append(copy, text, (size_t)((const char *)wrong - text));
        if (rc == 0)
            rc = text_append(copy, REPLACEMENT, strlen(REPLACEMENT));
        text = (const char *)wrong + broken_size(wrong, (const uint8_t *)end);
        wrong = u8_check((const uint8_t *)text, (size_t)(end - text));
    }
    if (rc == 0)
        rc = text_append(copy, text, (size_t)(end - text));
    *valid = copy->data;
    *size = copy->size;
    return rc;
}

/* ---- normal forms ---- */

static int append_normal(enum unicode_form form, const char *text, size_t size, struct text *out)
{
    const uninorm_t forms[] = {UNINORM_NFC, UNINORM_NFD, UNINORM_NFKC, UNINORM_NFKD};
    size_t length = 0;
    uint8_t *normal = u8_normalize(forms[form], (const uint8_t *)text, size, NULL, &length);
    int rc;

    if (!normal)
        return ct_fail(CT_ENOMEM, "a normal form of %zu bytes", size);
    rc = text_append(out, (const char *)normal, length);
    free(normal);
    return rc;
}

static bool is_stable(const char *at, size_t *size)
{
    return unicode_class[unicode_at(at, size)] & UNICODE_STABLE;
}

/* The end of the longest prefix that NFC leaves unchanged, for any text that follows. */
static const char *stable_prefix(const char *at, const char *end)
{
    const char *last = at;
    size_t size;

    while (at < end && is_stable(at, &size)) {
        last = at;
        at += size;
    }
    return at == end ? end : last;
}

/* The first stable character after the one at `at`. */
static const char *next_stable(const char *at, const char *end)
{
    size_t size;

    (void)is_stable(at, &size);
    at += size;
    while (at < end && !is_stable(at, &size))
        at += size;
    return at;
}

int unicode_normalize(enum unicode_form form, const char *text, size_t *size, struct text *copy,
                      const char **normal)
{
    const char *at = text, *end = text + *size, *plain;
    int rc = 0;

    *normal = text;
    copy->size = 0;
    if (form != UNICODE_NFC) {
        rc = append_normal(form, text, *size, copy);
    } else {
        plain = stable_prefix(at, end);
        if (plain == end)
            return 0;
        while (rc == 0 && at < end) {
            rc = text_append(copy, at, (size_t)(plain - at));
            at = plain;
            plain = at < end ? next_stable(at, end) : end;
            if (rc == 0 && at < end)
                rc = append_normal(form, at, (size_t)(plain - at), copy);
            at = plain;
            plain = stable_prefix(at, end);
        }
    }
    *normal = copy->data ? copy->data : text;
    *size = copy->size;
    return rc;
}

/* A stable character and what may join it. A character that keeps its size is aligned by bytes. */
static int align_part(enum unicode_form form, const char *text, size_t from, size_t to,
                      size_t normal_size, size_t *at, size_t *begin, size_t *end)
{
    struct text part = {0};
    int rc = append_normal(form, text + from, to - from, &part);
    bool same = part.size == to - from;

    for (size_t i = 0; rc == 0 && i < part.size && *at < normal_size; i++, ++*at) {
        begin[*at] = same ? from + i : from;
        end[*at + 1] = same ? from + i + 1 : to;
    }
    text_finish(&part);
    return rc;
}

int unicode_align(enum unicode_form form, const char *text, size_t size, size_t normal_size,
                  size_t *begin, size_t *end)
{
    size_t at = 0, from = 0, to;
    int rc = 0;

    end[0] = 0;
    for (; rc == 0 && from < size; from = to) {
        to = (size_t)(next_stable(text + from, text + size) - text);
        rc = align_part(form, text, from, to, normal_size, &at, begin, end);
    }
    for (; at < normal_size; at++) {
        begin[at] = size;
        end[at + 1] = size;
    }
    begin[normal_size] = size;
    return rc;
}
