#define PCRE2_CODE_UNIT_WIDTH 8

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>
#include <pcre2.h>
#include <unistring/version.h>
#include <xxhash.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/json.h>

#include "tokenizer.h"

#define FILE_BYTES ((size_t)256 << 20)

/* ---- encoding ---- */

/* Spans from token `first` on are moved; none begins before the text. */
static void shift(struct ids *ids, size_t first, ptrdiff_t by)
{
    for (size_t i = first; ids->spans && by && i < ids->count && i < ids->room; i++) {
        struct ct_text_span *s = &ids->spans[i];

        s->begin = by < 0 && s->begin < (size_t)-by ? 0 : s->begin + (size_t)by;
        s->end = by < 0 && s->end < (size_t)-by ? 0 : s->end + (size_t)by;
    }
}

/* The parts of a text before the next added token, in turn. */
static int
encode_between(struct tokenizer *t, const struct added *added, const char *text, size_t size,
               int (*encode)(struct tokenizer *t, const char *text, size_t size, struct ids *ids),
               struct ids *ids)
{
    const char *from = text, *at = text, *end = text + size;
    struct added_match m;
    size_t first;
    int rc = 0;

    while (rc == 0 && added_find(added, text, from, at, end, &m)) {
        size_t before = ids->count;

        if (m.begin > from)
            rc = encode(t, from, (size_t)(m.begin - from), ids);
        shift(ids, before, from - text);
        if (ids->spans && ids->count < ids->room)
            ids->spans[ids->count] =
                (struct ct_text_span){(size_t)(m.begin - text), (size_t)(m.stop - text)};
        ids_put(ids, m.id);
        from = m.stop;
        at = m.resume;
    }
    first = ids->count;
    if (rc == 0 && from < end)
        rc = encode(t, from, (size_t)(end - from), ids);
    shift(ids, first, from - text);
    return rc;
}

/* Of tokens from `first` on, which follow each other in a text. */
static void put_spans(const struct vocabulary *v, struct ids *ids, size_t first)
{
    size_t at = 0;

    for (size_t i = first; ids->spans && i < ids->count && i < ids->room; i++) {
        ids->spans[i] = (struct ct_text_span){at, at + v->tokens[ids->at[i]].size};
        at = ids->spans[i].end;
    }
}

static int encode_step(struct tokenizer *t, int number, const char *text, size_t size,
                       struct ids *ids)
{
    struct tokenizer_step *step = &t->steps[number];
    const char *at, *end, *begin, *stop;
    size_t first = ids->count;
    bool prefixed = false;
    int rc = 0;

    if (number == t->step_count) {
        rc = vocabulary_encode(&t->vocabulary, text, size, ids);
        put_spans(&t->vocabulary, ids, first);
        return rc;
    }
    if (step->space && *text != ' ') {
        step->prefixed.size = 0;
        rc = text_append(&step->prefixed, " ", 1);
        if (rc == 0)
            rc = text_append(&step->prefixed, text, size);
        text = step->prefixed.data;
        size++;
        prefixed = true;
    }
    if (rc == 0 && !step->cuts)
        rc = encode_step(t, number + 1, text, size, ids);
    for (at = text, end = text + size;
         rc == 0 && step->cuts &&
         (rc = pattern_next(&step->pattern, text, at, end, &begin, &stop)) > 0;
         at = stop) {
        size_t before = ids->count;

        rc = encode_step(t, number + 1, begin, (size_t)(stop - begin), ids);
        shift(ids, before, begin - text);
    }
    shift(ids, first, prefixed ? -1 : 0);
    return rc;
}

static int encode_normal(struct tokenizer *t, const char *text, size_t size, struct ids *ids)
{
    return encode_step(t, 0, text, size, ids);
}

/* The normal forms from number `form` on, and then the added tokens. */
static int encode_form(struct tokenizer *t, int form, const char *text, size_t size,
                       struct ids *ids)
{
    size_t normal_size = size, first = ids->count, *begin = NULL, *end;
    const char *normal;
    int rc;

    if (form == t->form_count)
        return encode_between(t, &t->normalized, text, size, encode_normal, ids);
    rc = unicode_normalize(t->forms[form], text, &normal_size, &t->normal[form % 2], &normal);
    if (rc == 0 && ids->spans && normal != text) {
        begin = malloc(2 * (normal_size + 1) * sizeof(*begin));
        end = begin + normal_size + 1;
        rc = begin ? unicode_align(t->forms[form], text, size, normal_size, begin, end)
                   : ct_fail(CT_ENOMEM, "where %zu bytes come from", normal_size);
    }
    if (rc == 0)
        rc = encode_form(t, form + 1, normal, normal_size, ids);
    for (size_t i = first; rc == 0 && begin && i < ids->count && i < ids->room; i++)
        ids->spans[i] = (struct ct_text_span){begin[ids->spans[i].begin], end[ids->spans[i].end]};
    free(begin);
    return rc;
}

static int encode_raw(struct tokenizer *t, const char *text, size_t size, struct ids *ids)
{
    return encode_form(t, 0, text, size, ids);
}

int tokenizer_encode(struct tokenizer *t, const char *text, size_t size, bool special,
                     struct ids *ids)
{
    int rc = unicode_repair(text, &size, &t->repaired, &text);

    for (int i = 0; special && i < t->before_count; i++)
        ids_put(ids, t->before[i]);
    if (rc == 0)
        rc = encode_between(t, &t->raw, text, size, encode_raw, ids);
    for (int i = 0; special && i < t->after_count; i++)
        ids_put(ids, t->after[i]);
    return rc;
}

int32_t tokenizer_id(const struct tokenizer *t, const char *content)
{
    size_t size = strlen(content);

    for (size_t i = t->vocabulary.count; i-- > 0;) {
        const struct vocabulary_token *token = &t->vocabulary.tokens[i];

        if (token->bytes && token->size == size && !memcmp(token->bytes, content, size))
            return (int32_t)i;
    }
    return -1;
}

/* ---- opening ---- */

static int find_file(struct tokenizer *t, const char *path, const char **file)
{
    struct stat s;

    *file = path;
    if (stat(path, &s) < 0)
        return ct_fail(CT_ENOENT, "no file or folder %s", path);
    if (!S_ISDIR(s.st_mode))
        return 0;
    *file = ct_arena_printf(&t->arena, "%s/tokenizer.json", path);
    if (stat(*file, &s) == 0)
        return 0;
    *file = ct_arena_printf(&t->arena, "%s/tokenizer.model", path);
    if (stat(*file, &s) == 0)
        return 0;
    return ct_fail(CT_ENOENT, "neither tokenizer.json nor tokenizer.model is in %s", path);
}

/* VERSION counts the changes of this code that change ids. */
static uint64_t identify(const char *text, size_t size)
{
    enum { VERSION = 1 };
    char pcre2[64];

    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, pcre2);
    return XXH3_64bits_withSeed(text, size, XXH3_64bits_withSeed(pcre2, strlen(pcre2), VERSION)) +
           (uint64_t)_libunistring_version;
}

static int read_file(struct tokenizer *t, const char *file)
{
    struct ct_arena scratch = {0};
    size_t size;
    char *text;
    int rc = ct_file_read(&scratch, file, FILE_BYTES, &text, &size);

    if (rc < 0)
        return rc == CT_EINVAL ? CT_ECONFIG : rc;
    if (size && text[strspn(text, " \t\r\n")] == '{')
        rc = tokenizer_read_json(t, text, size);
    else
        rc = tokenizer_read_tiktoken(t, text, size);
    if (rc == 0)
        t->identity = identify(text, size);
    ct_arena_finish(&scratch);
    return rc < 0 ? ct_context(rc, "%s", file) : 0;
}

/* "<s>" or {"content": "<s>"} */
static int read_named(const struct tokenizer *t, const json_t *config, const char *key, int32_t *id)
{
    const json_t *value = json_object_get(config, key);
    const char *content =
        json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);

    if (!content)
        return 0;
    *id = tokenizer_id(t, content);
    return *id >= 0
               ? 0
               : ct_fail(CT_ECONFIG, "%s is '%s', which is not in the vocabulary", key, content);
}

static int read_config(struct tokenizer *t, const char *file)
{
    const char *slash = strrchr(file, '/');
    const char *path = ct_arena_printf(&t->arena, "%.*stokenizer_config.json",
                                       slash ? (int)(slash - file) + 1 : 0, file);
    struct stat s;
    json_t *config;
    int rc;

    if (stat(path, &s) < 0)
        return 0;
    rc = ct_json_read_file(path, 0, &config);
    if (rc < 0)
        return rc;
    rc = read_named(t, config, "bos_token", &t->bos);
    if (rc == 0)
        rc = read_named(t, config, "eos_token", &t->eos);
    json_decref(config);
    return ct_context(rc, "%s", path);
}

int tokenizer_open(struct tokenizer *t, const char *path)
{
    const char *file;
    int rc = unicode_init();

    *t = (struct tokenizer){.bos = -1, .eos = -1};
    if (rc == 0)
        rc = find_file(t, path, &file);
    if (rc == 0)
        rc = read_file(t, file);
    if (rc == 0)
        rc = read_config(t, file);
    if (rc < 0)
        tokenizer_close(t);
    return rc;
}

void tokenizer_close(struct tokenizer *t)
{
    vocabulary_close(&t->vocabulary);
    for (int i = 0; i < TOKENIZER_STEPS; i++) {
        pattern_close(&t->steps[i].pattern);
        text_finish(&t->steps[i].prefixed);
    }
    text_finish(&t->repaired);
    text_finish(&t->normal[0]);
    text_finish(&t->normal[1]);
    ct_arena_finish(&t->arena);
    *t = (struct tokenizer){0};
}
