/*
 * The normalizers, pre-tokenizers and decoders of tokenizer.json.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "base64.h"
#include "tokenizer_json.h"

#define KEYS(...) ((const char *const[]){"type", __VA_ARGS__, NULL})

/* {"String": ".."} or {"Regex": ".."} */
static int read_pattern(const char *where, const json_t *object, struct pattern *pattern,
                        bool *character)
{
    const json_t *value = json_object_get(object, "pattern");
    const char *expression = json_string_value(json_object_get(value, "Regex"));
    const char *literal = json_string_value(json_object_get(value, "String"));
    size_t size = 0;

    if ((!expression && !literal) || json_object_size(value) != 1)
        return ct_fail(CT_ECONFIG, "%s: pattern is neither String nor Regex", where);
    if (literal && !*literal)
        return ct_fail(CT_ECONFIG, "%s: pattern: String = '' is not supported", where);
    if (literal)
        unicode_at(literal, &size);
    if (character)
        *character = literal && strlen(literal) == size;
    return ct_context(pattern_open(pattern, expression ? expression : literal, !expression), "%s",
                      where);
}

/* A text of one character. */
static int read_character(const char *where, const json_t *object, const char *key, const char **to,
                          size_t *size, struct ct_arena *arena)
{
    const char *text = tokenizer_text(object, key);

    *size = 0;
    if (*text)
        unicode_at(text, size);
    if (!*size || text[*size])
        return ct_fail(CT_ECONFIG, "%s: %s = '%.32s': expected one character", where, key, text);
    *to = ct_arena_strdup(arena, text);
    return 0;
}

/* ---- normalizers ---- */

static int read_charsmap(struct normalizer *n, struct ct_arena *arena, const json_t *object)
{
    const char *text = tokenizer_text(object, "precompiled_charsmap"), *end;
    int room = (int)(strlen(text) / 4 * 3 + 3), size, rc;
    char *bytes = malloc((size_t)room);

    if (!bytes)
        return ct_fail(CT_ENOMEM, "precompiled_charsmap");
    size = base64_decode(text, &end, bytes, room);
    rc = size < 0 || *end || !*text
             ? ct_fail(CT_ECONFIG, "precompiled_charsmap is no text in base64")
             : charsmap_read(&n->charsmap, arena, bytes, (size_t)size);
    free(bytes);
    return ct_context(rc, "normalizer: Precompiled");
}

static int read_content(struct normalizer *n, struct ct_arena *arena, const json_t *object,
                        const char *key)
{
    const char *content = json_string_value(json_object_get(object, key));

    if (!content)
        return ct_fail(CT_ECONFIG, "normalizer: %s: %s is missing", tokenizer_type(object), key);
    n->content = ct_arena_strdup(arena, content);
    n->content_size = strlen(content);
    return 0;
}

static int read_replace(struct normalizer *n, struct ct_arena *arena, const json_t *object)
{
    int rc = read_pattern("normalizer: Replace", object, &n->pattern, NULL);

    return rc < 0 ? rc : read_content(n, arena, object, "content");
}

static const struct {
    const char *name;
    enum normalizer_kind kind;
    enum unicode_form form;
    const char *keys[3];
} normalizers[] = {
    {"NFC", NORMALIZER_FORM, UNICODE_NFC, {"type"}},
    {"NFD", NORMALIZER_FORM, UNICODE_NFD, {"type"}},
    {"NFKC", NORMALIZER_FORM, UNICODE_NFKC, {"type"}},
    {"NFKD", NORMALIZER_FORM, UNICODE_NFKD, {"type"}},
    {"Prepend", NORMALIZER_PREPEND, 0, {"type", "prepend"}},
    {"Replace", NORMALIZER_REPLACE, 0, {0}},
    {"Strip", NORMALIZER_STRIP, 0, {0}},
    {"Nmt", NORMALIZER_NMT, 0, {"type"}},
    {"Precompiled", NORMALIZER_CHARSMAP, 0, {"type", "precompiled_charsmap"}},
};

static int read_keys(struct normalizer *n, struct ct_arena *arena, const json_t *object)
{
    n->left = tokenizer_flag(object, "strip_left");
    n->right = tokenizer_flag(object, "strip_right");
    switch (n->kind) {
    case NORMALIZER_PREPEND:
        return read_content(n, arena, object, "prepend");
    case NORMALIZER_REPLACE:
        return read_replace(n, arena, object);
    case NORMALIZER_CHARSMAP:
        return read_charsmap(n, arena, object);
    case NORMALIZER_STRIP:
    case NORMALIZER_NMT:
    case NORMALIZER_FORM:
        return 0;
    }
    return 0;
}

int tokenizer_read_normalizer(struct tokenizer *t, const json_t *object)
{
    struct normalizer *n = &t->normalizers[t->normalizer_count];
    size_t i = 0;
    int rc;

    while (i < CT_COUNT(normalizers) && strcmp(tokenizer_type(object), normalizers[i].name))
        i++;
    if (i == CT_COUNT(normalizers))
        return tokenizer_unsupported(
            "normalizer: type", tokenizer_type(object),
            "NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, Nmt, Precompiled, "
            "Sequence");
    if (t->normalizer_count == TOKENIZER_STEPS)
        return ct_fail(CT_ECONFIG, "normalizer: a sequence of more than %d", TOKENIZER_STEPS);
    t->normalizer_count++;
    n->kind = normalizers[i].kind;
    n->form = normalizers[i].form;
    rc = tokenizer_check_keys(ct_arena_printf(&t->arena, "normalizer: %s", normalizers[i].name),
                              object,
                              n->kind == NORMALIZER_REPLACE ? KEYS("pattern", "content")
                              : n->kind == NORMALIZER_STRIP ? KEYS("strip_left", "strip_right")
                                                            : normalizers[i].keys);
    return rc < 0 ? rc : read_keys(n, &t->arena, object);
}

/* ---- pre-tokenizers ---- */

static int read_split(struct tokenizer_step *step, const json_t *object)
{
    const char *behavior = tokenizer_text(object, "behavior");
    int rc =
        tokenizer_check_keys("pre_tokenizer: Split", object, KEYS("pattern", "behavior", "invert"));
    size_t i = 0;

    if (rc < 0)
        return rc;
    while (i < SPLIT_BEHAVIORS && strcmp(behavior, split_behaviors[i]))
        i++;
    if (i == SPLIT_BEHAVIORS)
        return tokenizer_unsupported("pre_tokenizer: Split: behavior", behavior,
                                     "Isolated, Removed, MergedWithPrevious, MergedWithNext, "
                                     "Contiguous");
    step->splits = true;
    step->split.behavior = (enum split_behavior)i;
    step->split.invert = tokenizer_flag(object, "invert");
    return read_pattern("pre_tokenizer: Split", object, &step->split.pattern, NULL);
}

static int read_byte_level(struct tokenizer_step *step, const json_t *object)
{
    int rc = tokenizer_check_keys("pre_tokenizer: ByteLevel", object,
                                  KEYS("add_prefix_space", "trim_offsets", "use_regex"));

    if (rc < 0)
        return rc;
    step->kind = STEP_BYTE_LEVEL;
    step->space = !json_is_false(json_object_get(object, "add_prefix_space"));
    step->splits = !json_is_false(json_object_get(object, "use_regex"));
    return step->splits ? pattern_open(&step->split.pattern, pattern_gpt2, false) : 0;
}

static int read_digits(struct tokenizer_step *step, const json_t *object)
{
    bool individual = tokenizer_flag(object, "individual_digits");
    int rc = tokenizer_check_keys("pre_tokenizer: Digits", object, KEYS("individual_digits"));

    if (rc < 0)
        return rc;
    step->splits = true;
    return pattern_open(&step->split.pattern, individual ? "\\p{N}" : "\\p{N}+", false);
}

static int read_white_space_split(struct tokenizer_step *step, const json_t *object)
{
    int rc = tokenizer_check_keys("pre_tokenizer: WhitespaceSplit", object, KEYS(NULL));

    if (rc < 0)
        return rc;
    step->splits = true;
    step->split.behavior = SPLIT_REMOVED;
    return pattern_open(&step->split.pattern, "\\s", false);
}

/* Files of before 0.15 have add_prefix_space alone. */
static int read_scheme(const char *where, const json_t *object, enum metaspace_scheme *scheme)
{
    static const char *const names[] = {"always", "first", "never"};
    const json_t *given = json_object_get(object, "prepend_scheme");
    bool none = json_is_false(json_object_get(object, "add_prefix_space"));
    size_t i = 0;

    while (given && i < METASPACE_SCHEMES &&
           strcmp(tokenizer_text(object, "prepend_scheme"), names[i]))
        i++;
    if (i == METASPACE_SCHEMES)
        return ct_context(tokenizer_unsupported("prepend_scheme",
                                                tokenizer_text(object, "prepend_scheme"),
                                                "always, first, never"),
                          "%s", where);
    *scheme = none && !given ? METASPACE_NEVER : (enum metaspace_scheme)i;
    if (none && *scheme != METASPACE_NEVER)
        return ct_fail(CT_ECONFIG, "%s: add_prefix_space = false and prepend_scheme = %s", where,
                       names[*scheme]);
    return 0;
}

static int read_metaspace(struct tokenizer *t, struct tokenizer_step *step, const json_t *object)
{
    static const char where[] = "pre_tokenizer: Metaspace";
    int rc = tokenizer_check_keys(
        where, object,
        KEYS("replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"));

    step->kind = STEP_METASPACE;
    if (rc == 0)
        rc = read_character(where, object, "replacement", &step->metaspace.mark,
                            &step->metaspace.size, &t->arena);
    if (rc == 0)
        rc = read_scheme(where, object, &step->metaspace.scheme);
    if (rc < 0 || json_is_false(json_object_get(object, "split")))
        return rc;
    step->splits = true;
    step->split.behavior = SPLIT_MERGED_WITH_NEXT;
    return pattern_open(&step->split.pattern, step->metaspace.mark, true);
}

int tokenizer_read_pre_tokenizer(struct tokenizer *t, const json_t *object)
{
    struct tokenizer_step *step = &t->steps[t->step_count];
    const char *type = tokenizer_type(object);
    bool ended = t->byte_level;

    if (ended || t->step_count == TOKENIZER_STEPS)
        return ct_fail(CT_ECONFIG, "pre_tokenizer: %s",
                       ended ? "a step after ByteLevel" : "a sequence that is too long");
    t->step_count++;
    if (!strcmp(type, "Split"))
        return read_split(step, object);
    if (!strcmp(type, "Digits"))
        return read_digits(step, object);
    if (!strcmp(type, "WhitespaceSplit"))
        return read_white_space_split(step, object);
    if (!strcmp(type, "Metaspace"))
        return read_metaspace(t, step, object);
    t->byte_level = !strcmp(type, "ByteLevel");
    return t->byte_level
               ? read_byte_level(step, object)
               : tokenizer_unsupported("pre_tokenizer: type", type,
                                       "ByteLevel, Split, Digits, WhitespaceSplit, Metaspace, "
                                       "Sequence");
}

/* ---- decoders ---- */

static int read_decoder_strip(struct ct_arena *arena, struct decoder_stage *stage,
                              const json_t *object)
{
    int rc = tokenizer_check_keys("decoder: Strip", object, KEYS("content", "start", "stop"));

    if (rc < 0)
        return rc;
    stage->kind = DECODER_STRIP;
    stage->start = json_integer_value(json_object_get(object, "start"));
    stage->stop = json_integer_value(json_object_get(object, "stop"));
    return read_character("decoder: Strip", object, "content", &stage->content, &stage->size,
                          arena);
}

static int read_decoder_replace(struct ct_arena *arena, struct decoder_stage *stage,
                                const json_t *object)
{
    int rc = tokenizer_check_keys("decoder: Replace", object, KEYS("pattern", "content"));

    if (rc < 0)
        return rc;
    stage->kind = DECODER_REPLACE;
    stage->content = ct_arena_strdup(arena, tokenizer_text(object, "content"));
    stage->size = strlen(stage->content);
    return read_pattern("decoder: Replace", object, &stage->pattern, &stage->character);
}

static int read_decoder_metaspace(struct ct_arena *arena, struct decoder_stage *stage,
                                  const json_t *object)
{
    static const char where[] = "decoder: Metaspace";
    enum metaspace_scheme scheme = METASPACE_ALWAYS;
    int rc = tokenizer_check_keys(
        where, object,
        KEYS("replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"));

    stage->kind = DECODER_METASPACE;
    if (rc == 0)
        rc = read_scheme(where, object, &scheme);
    stage->never = scheme == METASPACE_NEVER;
    return rc < 0
               ? rc
               : read_character(where, object, "replacement", &stage->content, &stage->size, arena);
}

/* A vocabulary of bytes is decoded by ByteLevel alone, and none but such a one. */
static int check_decoder(const struct tokenizer *t, const struct decoder_stage *stage,
                         const char *type)
{
    if ((stage->kind == DECODER_BYTE_LEVEL) != t->byte_level || (t->byte_level && t->decoder.count))
        return ct_fail(CT_ECONFIG,
                       "decoder: type = '%s' is not supported %s pre_tokenizer: type = "
                       "'ByteLevel'",
                       type, t->byte_level ? "with" : "without");
    if (stage->kind == DECODER_BYTE_FALLBACK && stage->fused)
        return ct_fail(CT_ECONFIG, "decoder: type = 'ByteFallback' after 'Fuse' is not supported");
    return 0;
}

int tokenizer_read_decoder(struct tokenizer *t, const json_t *object)
{
    struct decoder_stage *stage = &t->decoder.stages[t->decoder.count];
    const char *type = tokenizer_type(object);
    int rc = 0;

    if (t->decoder.count == DECODER_STAGES)
        return ct_fail(CT_ECONFIG, "decoder: a sequence of more than %d", DECODER_STAGES);
    *stage = (struct decoder_stage){.fused = t->decoder.count &&
                                             (stage[-1].fused || stage[-1].kind == DECODER_FUSE)};
    if (!strcmp(type, "Replace"))
        rc = read_decoder_replace(&t->arena, stage, object);
    else if (!strcmp(type, "Strip"))
        rc = read_decoder_strip(&t->arena, stage, object);
    else if (!strcmp(type, "Metaspace"))
        rc = read_decoder_metaspace(&t->arena, stage, object);
    else if (!strcmp(type, "ByteFallback"))
        stage->kind = DECODER_BYTE_FALLBACK;
    else if (!strcmp(type, "Fuse"))
        stage->kind = DECODER_FUSE;
    else if (!strcmp(type, "ByteLevel"))
        stage->kind = DECODER_BYTE_LEVEL;
    else
        return tokenizer_unsupported("decoder: type", type,
                                     "ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, "
                                     "Sequence");
    if (rc == 0)
        rc = check_decoder(t, stage, type);
    t->decoder.count++;
    return rc;
}
