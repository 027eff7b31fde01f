#define PCRE2_CODE_UNIT_WIDTH 8

#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <pcre2.h>
#include <unistring/version.h>
#include <xxhash.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/tokenizer.h>

#include "tokenizer.h"

#define FILE_BYTES ((size_t)256 << 20)

const struct ct_tokenizer_file tokenizer_files[] = {
    {"tokenizer.json", "", 0}, {"tokenizer.model", "", 2}, {0}};

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

/* begins: the text is where the whole one begins. */
typedef int encode_fn(struct tokenizer *t, const char *text, size_t size, bool begins,
                      struct ids *ids);

/* The added tokens, and the parts of a text between them, in turn. */
static int encode_between(struct tokenizer *t, const struct added *added, const char *text,
                          size_t size, bool begins, encode_fn *encode, struct ids *ids)
{
    const char *from = text, *at = text, *end = text + size;
    struct added_match m;
    size_t first;
    int rc = 0;

    while (rc == 0 && added_find(added, text, from, at, end, &m)) {
        size_t before = ids->count;

        if (m.begin > from)
            rc = encode(t, from, (size_t)(m.begin - from), begins && from == text, ids);
        shift(ids, before, from - text);
        ids_put(ids, m.id, (size_t)(m.begin - text), (size_t)(m.stop - text));
        from = m.stop;
        at = m.resume;
    }
    first = ids->count;
    if (rc == 0 && from < end)
        rc = encode(t, from, (size_t)(end - from), begins && from == text, ids);
    shift(ids, first, from - text);
    return rc;
}

/* Move spans of tokens from `first` on, in a text that was made of another one, to that one. An
   empty span stays empty, whatever was removed around it. */
static void trace(const struct normal *n, struct ids *ids, size_t first)
{
    for (size_t i = first; ids->spans && n->aligned && i < ids->count && i < ids->room; i++) {
        size_t begin = n->begin[ids->spans[i].begin], end = n->end[ids->spans[i].end];

        ids->spans[i] = (struct ct_text_span){begin, end < begin ? begin : end};
    }
}

/* ---- pre-tokenizers ---- */

static bool starts_with(const char *text, size_t size, const char *mark, size_t mark_size)
{
    return size >= mark_size && !memcmp(text, mark, mark_size);
}

static int prepare_metaspace(struct tokenizer_step *step, const char *text, size_t size,
                             bool begins)
{
    const struct metaspace *m = &step->metaspace;
    bool there = *text == ' ' || starts_with(text, size, m->mark, m->size);
    bool prepends = m->scheme == METASPACE_ALWAYS || (m->scheme == METASPACE_FIRST && begins);
    const char *at = text, *end = text + size, *space;
    int rc = prepends && !there ? normal_put(&step->out, m->mark, m->size, 0, 0) : 0;

    for (; rc == 0 && (space = memchr(at, ' ', (size_t)(end - at))); at = space + 1) {
        size_t from = (size_t)(at - text), to = (size_t)(space - text);

        rc = normal_put(&step->out, at, to - from, from, to);
        if (rc == 0)
            rc = normal_put(&step->out, m->mark, m->size, to, to + 1);
    }
    return rc < 0 ? rc : normal_put(&step->out, at, (size_t)(end - at), (size_t)(at - text), size);
}

/* The part as the step changes it before it splits it. Returns whether it does, or a failure. */
static int prepare(struct tokenizer_step *step, const char *text, size_t size, bool begins,
                   bool aligned)
{
    int rc;

    if (step->kind == STEP_SPLIT ||
        (step->kind == STEP_BYTE_LEVEL && !(step->space && *text != ' ')))
        return 0;
    rc = normal_reset(&step->out, aligned);
    if (rc == 0 && step->kind == STEP_METASPACE)
        rc = prepare_metaspace(step, text, size, begins);
    else if (rc == 0)
        rc = normal_put(&step->out, " ", 1, 0, 0);
    if (rc == 0 && step->kind != STEP_METASPACE)
        rc = normal_put(&step->out, text, size, 0, size);
    return rc < 0 ? rc : 1;
}

static int encode_model(struct tokenizer *t, const char *text, size_t size, struct ids *ids)
{
    return t->is_unigram ? unigram_encode(&t->unigram, &t->vocabulary, text, size, ids)
                         : vocabulary_encode(&t->vocabulary, text, size, ids);
}

static int encode_step(struct tokenizer *t, int number, const char *text, size_t size, bool begins,
                       struct ids *ids)
{
    struct tokenizer_step *step = &t->steps[number];
    const char *begin, *stop;
    size_t first = ids->count;
    int changed = 0, rc = 0;

    if (number == t->step_count)
        return encode_model(t, text, size, ids);
    if (size)
        changed = prepare(step, text, size, begins, ids->spans != NULL);
    if (changed < 0)
        return changed;
    if (changed) {
        text = step->out.text.data;
        size = step->out.text.size;
    }
    if (!step->splits) {
        rc = encode_step(t, number + 1, text, size, begins, ids);
    } else {
        struct split_parts parts = split_begin(&step->split, text, text + size);

        while (rc == 0 && (rc = split_next(&parts, &begin, &stop)) > 0) {
            size_t before = ids->count;

            rc = encode_step(t, number + 1, begin, (size_t)(stop - begin), begins && begin == text,
                             ids);
            shift(ids, before, begin - text);
        }
    }
    if (changed)
        trace(&step->out, ids, first);
    return rc;
}

static int encode_normal(struct tokenizer *t, const char *text, size_t size, bool begins,
                         struct ids *ids)
{
    return encode_step(t, 0, text, size, begins, ids);
}

/* The normalizers from number `i` on, and then the added tokens. */
static int encode_from(struct tokenizer *t, int i, const char *text, size_t size, bool begins,
                       struct ids *ids)
{
    const char *normal = text;
    size_t first = ids->count;
    int rc;

    if (i == t->normalizer_count)
        return encode_between(t, &t->normalized, text, size, begins, encode_normal, ids);
    rc = normalizer_apply(&t->normalizers[i], ids->spans != NULL, &normal, &size, &begins);
    if (rc == 0)
        rc = encode_from(t, i + 1, normal, size, begins, ids);
    if (rc == 0 && normal != text)
        trace(&t->normalizers[i].out, ids, first);
    return rc;
}

static int encode_raw(struct tokenizer *t, const char *text, size_t size, bool begins,
                      struct ids *ids)
{
    return encode_from(t, 0, text, size, begins, ids);
}

int tokenizer_encode(struct tokenizer *t, const char *text, size_t size, bool special,
                     struct ids *ids)
{
    int rc = unicode_repair(text, &size, &t->repaired, &text);

    for (int i = 0; special && i < t->before_count; i++)
        ids_put(ids, t->before[i], 0, 0);
    if (rc == 0)
        rc = encode_between(t, &t->raw, text, size, true, encode_raw, ids);
    for (int i = 0; special && i < t->after_count; i++)
        ids_put(ids, t->after[i], size, size);
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

/* ---- decoding ---- */

static int find_string(const struct tokenizer *t, int32_t token, const char **string, size_t *size)
{
    const struct vocabulary_token *v;

    *string = NULL;
    *size = 0;
    if (token < 0 || (size_t)token >= t->vocabulary.count)
        return ct_fail(CT_EINVAL, "token %d is not in the vocabulary of %zu", (int)token,
                       t->vocabulary.count);
    v = &t->vocabulary.tokens[token];
    *string = v->shown ? v->shown : v->bytes;
    *size = v->shown ? v->shown_size : v->size;
    return 0;
}

int tokenizer_decode(const struct tokenizer *t, struct decoding *d, const int32_t *tokens,
                     size_t count, bool end)
{
    const char *string;
    size_t size;
    int rc = 0;

    d->decoder = &t->decoder;
    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = find_string(t, tokens[i], &string, &size);
        if (rc == 0 && string)
            rc = decoding_put(d, string, size);
    }
    return rc == 0 && end ? decoding_end(d) : rc;
}

/* The string after another one, so that nothing of it is stripped. */
int tokenizer_bytes(const struct tokenizer *t, int32_t token, struct text *bytes)
{
    const struct decoder *decoder = &t->decoder;
    struct decoding d = {.decoder = decoder};
    const char *string;
    size_t size;
    int rc = find_string(t, token, &string, &size), byte;
    bool falls = false;

    for (int i = 0; i < decoder->count; i++)
        falls |= decoder->stages[i].kind == DECODER_BYTE_FALLBACK;
    if (rc < 0 || !string)
        return rc;
    if (t->byte_level)
        return text_append(bytes, string, size);
    byte = falls ? decoder_byte(string, size) : -1;
    if (byte >= 0)
        return text_append(bytes, (char[]){(char)byte}, 1);
    rc = decoding_put(&d, "a", 1);
    d.out.size = 0;
    if (rc == 0)
        rc = decoding_put(&d, string, size);
    if (rc == 0)
        rc = text_append(bytes, d.out.data, d.out.size);
    decoding_finish(&d);
    return rc;
}

/* ---- opening ---- */

/* VERSION counts the changes of this code that change ids. */
static uint64_t identify(const char *text, size_t size)
{
    enum { VERSION = 2 };
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

static int read_named(const struct tokenizer *t, const json_t *config, const char *key, int32_t *id)
{
    const char *content = ct_tokenizer_special(config, key);

    if (!content)
        return 0;
    *id = tokenizer_id(t, content);
    return *id >= 0
               ? 0
               : ct_fail(CT_ECONFIG, "%s is '%s', which is not in the vocabulary", key, content);
}

static int read_config(struct tokenizer *t, const char *file)
{
    const char *path;
    json_t *config;
    int rc = ct_tokenizer_config(&t->arena, file, &config, &path);

    if (rc < 0 || !config)
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
        rc = ct_tokenizer_find(&t->arena, path, tokenizer_files,
                               "neither tokenizer.json nor tokenizer.model is", &file);
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
    unigram_close(&t->unigram);
    decoder_close(&t->decoder);
    for (int i = 0; i < TOKENIZER_STEPS; i++) {
        pattern_close(&t->steps[i].split.pattern);
        normal_finish(&t->steps[i].out);
        normalizer_close(&t->normalizers[i]);
    }
    text_finish(&t->repaired);
    ct_arena_finish(&t->arena);
    *t = (struct tokenizer){0};
}
