/*
 * tokenizer.json, of the tokenizers library: what byte-level BPE needs of it. Everything else is
 * refused by its name.
 */
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/json.h>

#include "tokenizer.h"

/* ---- the alphabet of bytes ---- */

/* Printable bytes stand for themselves; the others are U+0100 and following, in order. */
static bool is_printable(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* byte_of[c]: the byte that character c stands for; -1: none. */
static void fill_alphabet(int16_t byte_of[512])
{
    int next = 256;

    memset(byte_of, -1, 512 * sizeof(*byte_of));
    for (int b = 0; b < 256; b++)
        byte_of[is_printable(b) ? b : next++] = (int16_t)b;
}

/* The bytes of a word; false: it has other characters. bytes has room for size. */
static bool to_bytes(const int16_t byte_of[512], const char *word, size_t size, char *bytes,
                     size_t *count)
{
    const char *end = word + size;
    size_t length;

    for (*count = 0; word < end; word += length) {
        uint32_t c = unicode_at(word, &length);

        if (c >= 512 || byte_of[c] < 0)
            return false;
        bytes[(*count)++] = (char)byte_of[c];
    }
    return true;
}

/* ---- json ---- */

static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));

    return type ? type : "";
}

static int unsupported(const char *where, const char *type, const char *supported)
{
    return ct_fail(CT_ECONFIG, "%s: '%s' is not supported; supported: %s", where, type, supported);
}

/* Call read with each member of a sequence, or with the object itself. */
static int each(struct tokenizer *t, const json_t *object, const char *key,
                int (*read)(struct tokenizer *t, const json_t *object))
{
    const json_t *members = json_object_get(object, key);
    int rc = 0;

    if (!object || json_is_null(object))
        return 0;
    if (strcmp(type_of(object), "Sequence"))
        return read(t, object);
    if (!json_is_array(members))
        return ct_fail(CT_ECONFIG, "a Sequence without its list %s", key);
    for (size_t i = 0; rc == 0 && i < json_array_size(members); i++)
        rc = read(t, json_array_get(members, i));
    return rc;
}

/* ---- normalizer, pre_tokenizer, post_processor ---- */

static int read_normalizer(struct tokenizer *t, const json_t *object)
{
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD"};

    for (int i = 0; i < UNICODE_FORMS; i++)
        if (!strcmp(type_of(object), names[i])) {
            if (t->form_count == UNICODE_FORMS)
                return ct_fail(CT_ECONFIG, "normalizer: a sequence of more than %d forms",
                               UNICODE_FORMS);
            t->forms[t->form_count++] = (enum unicode_form)i;
            return 0;
        }
    return unsupported("normalizer", type_of(object), "NFC, NFD, NFKC, NFKD");
}

static int read_split(struct tokenizer_step *step, const json_t *object)
{
    const json_t *pattern = json_object_get(object, "pattern");
    const char *expression = json_string_value(json_object_get(pattern, "Regex"));
    const char *literal = json_string_value(json_object_get(pattern, "String"));
    const char *behavior = json_string_value(json_object_get(object, "behavior"));
    bool invert = json_is_true(json_object_get(object, "invert"));

    if (!expression && !literal)
        return ct_fail(CT_ECONFIG, "pre_tokenizer: a Split without a pattern");
    if (!behavior || (strcmp(behavior, "Isolated") && (strcmp(behavior, "Removed") || !invert)))
        return unsupported("pre_tokenizer: Split: behavior", behavior ? behavior : "",
                           "Isolated; Removed with invert");
    step->cuts = true;
    step->pattern.matches_only = !strcmp(behavior, "Removed");
    return pattern_open(&step->pattern, expression ? expression : literal, !expression);
}

static int read_byte_level(struct tokenizer_step *step, const json_t *object)
{
    step->space = !json_is_false(json_object_get(object, "add_prefix_space"));
    step->cuts = !json_is_false(json_object_get(object, "use_regex"));
    return step->cuts ? pattern_open(&step->pattern, pattern_gpt2, false) : 0;
}

static int read_digits(struct tokenizer_step *step, const json_t *object)
{
    bool individual = json_is_true(json_object_get(object, "individual_digits"));

    step->cuts = true;
    return pattern_open(&step->pattern, individual ? "\\p{N}" : "\\p{N}+", false);
}

static int read_pre_tokenizer(struct tokenizer *t, const json_t *object)
{
    struct tokenizer_step *step = &t->steps[t->step_count];
    const char *type = type_of(object);
    bool ended = t->byte_level;

    if (ended || t->step_count == TOKENIZER_STEPS)
        return ct_fail(CT_ECONFIG, "pre_tokenizer: %s",
                       ended ? "a step after ByteLevel" : "a sequence that is too long");
    t->step_count++;
    if (!strcmp(type, "Split"))
        return read_split(step, object);
    if (!strcmp(type, "Digits"))
        return read_digits(step, object);
    t->byte_level = !strcmp(type, "ByteLevel");
    return t->byte_level ? read_byte_level(step, object)
                         : unsupported("pre_tokenizer", type, "ByteLevel, Split, Digits");
}

/* The ids of a special token of a template go to the list of its side. */
static int read_special(struct tokenizer *t, const json_t *tokens, const json_t *item, bool after)
{
    const char *name = json_string_value(json_object_get(item, "id"));
    const json_t *ids = json_object_get(json_object_get(tokens, name ? name : ""), "ids");
    int *count = after ? &t->after_count : &t->before_count;

    if (!json_is_array(ids))
        return ct_fail(CT_ECONFIG, "post_processor: special token '%s' has no ids",
                       name ? name : "");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));

        if (*count == TOKENIZER_TEMPLATE || id < 0 || id >= VOCABULARY_LIMIT)
            return ct_fail(CT_ECONFIG,
                           "post_processor: special token '%s': too many ids, or a "
                           "wrong one",
                           name);
        (after ? t->after : t->before)[(*count)++] = (int32_t)id;
    }
    return 0;
}

static int read_post_processor(struct tokenizer *t, const json_t *object)
{
    const json_t *single = json_object_get(object, "single"), *item;
    bool after = false;
    int rc = 0;

    if (!strcmp(type_of(object), "ByteLevel"))
        return 0;
    if (strcmp(type_of(object), "TemplateProcessing"))
        return unsupported("post_processor", type_of(object), "ByteLevel, TemplateProcessing");
    for (size_t i = 0; rc == 0 && i < json_array_size(single); i++) {
        item = json_object_get(json_array_get(single, i), "SpecialToken");
        if (item)
            rc = read_special(t, json_object_get(object, "special_tokens"), item, after);
        else
            after = true;
    }
    return rc;
}

/* ---- model ---- */

static int check_model(const json_t *model)
{
    static const char *const absent[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *dropout = json_object_get(model, "dropout");
    const char *type = type_of(model);

    if (*type ? strcmp(type, "BPE") : !json_object_get(model, "merges"))
        return unsupported("model", type, "BPE");
    if (json_is_true(json_object_get(model, "byte_fallback")))
        return ct_fail(CT_ECONFIG,
                       "model: byte_fallback is not supported: only byte-level vocabularies are");
    if (dropout && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return ct_fail(CT_ECONFIG, "model: dropout is not supported");
    for (size_t i = 0; i < CT_COUNT(absent); i++) {
        const json_t *value = json_object_get(model, absent[i]);
        const char *text = json_string_value(value);

        if (value && !json_is_null(value) && !(text && !*text))
            return ct_fail(CT_ECONFIG, "model: %s is not supported", absent[i]);
    }
    return 0;
}

/* The number of ids: of the vocabulary, and of the added tokens. */
static int count_ids(const json_t *words, const json_t *added, size_t *count)
{
    const char *word;
    json_t *id;
    json_int_t largest = -1;

    json_object_foreach((json_t *)(uintptr_t)words, word, id)
    {
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= VOCABULARY_LIMIT)
            return ct_fail(CT_ECONFIG, "model: vocab: the id of '%.64s' is not a number below %d",
                           word, VOCABULARY_LIMIT);
        largest = json_integer_value(id) > largest ? json_integer_value(id) : largest;
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *value = json_object_get(json_array_get(added, i), "id");

        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) >= VOCABULARY_LIMIT)
            return ct_fail(CT_ECONFIG, "added_tokens: id of entry %zu is not a number below %d", i,
                           VOCABULARY_LIMIT);
        largest = json_integer_value(value) > largest ? json_integer_value(value) : largest;
    }
    *count = (size_t)(largest + 1);
    return 0;
}

struct reader {
    struct tokenizer *t;
    const json_t *words; /* model.vocab */
    int16_t byte_of[512];
};

static int read_words(struct reader *r)
{
    char bytes[2 * VOCABULARY_BYTES];
    const char *word;
    json_t *id;
    int rc = 0;

    json_object_foreach((json_t *)(uintptr_t)r->words, word, id)
    {
        size_t size = strlen(word), count = size;
        bool found = size <= sizeof(bytes) && to_bytes(r->byte_of, word, size, bytes, &count);

        rc = vocabulary_add(&r->t->vocabulary, json_integer_value(id), found ? bytes : word,
                            found ? count : size, found);
        if (rc < 0)
            return ct_context(rc, "model: vocab");
    }
    return 0;
}

/* The id of a side of a merge, which is a word of the vocabulary. */
static int find_side(const struct reader *r, const char *word, size_t size, int32_t *id)
{
    const json_t *found = json_object_getn(r->words, word, size);

    *id = found ? (int32_t)json_integer_value(found) : -1;
    return found ? 0
                 : ct_fail(CT_ECONFIG, "'%.*s' is not in the vocabulary",
                           size < 64 ? (int)size : 64, word);
}

/* "a b" or ["a", "b"] */
static int read_merge(struct reader *r, const json_t *merge, uint32_t rank)
{
    const json_t *second = json_array_get(merge, 1);
    const char *left = json_string_value(second ? json_array_get(merge, 0) : merge);
    const char *right = json_string_value(second), *space;
    size_t left_size;
    int32_t ids[2] = {0};
    int rc;

    if (!second && left && (space = strchr(left, ' ')) && !strchr(space + 1, ' ')) {
        left_size = (size_t)(space - left);
        right = space + 1;
    } else {
        left_size = left ? strlen(left) : 0;
    }
    if (!left || !right || json_array_size(merge) > 2)
        return ct_fail(CT_ECONFIG, "neither \"a b\" nor [\"a\", \"b\"]");
    rc = find_side(r, left, left_size, &ids[0]);
    if (rc == 0)
        rc = find_side(r, right, strlen(right), &ids[1]);
    return rc < 0 ? rc : vocabulary_merge(&r->t->vocabulary, ids[0], ids[1], rank);
}

static int read_model(struct reader *r, const json_t *model, const json_t *added)
{
    const json_t *merges = json_object_get(model, "merges");
    size_t count = 0;
    int rc = check_model(model);

    r->words = json_object_get(model, "vocab");
    if (rc == 0 && (!json_is_object(r->words) || !json_is_array(merges)))
        rc = ct_fail(CT_ECONFIG, "model: vocab or merges is missing");
    if (rc == 0)
        rc = count_ids(r->words, added, &count);
    if (rc == 0)
        rc = vocabulary_open(&r->t->vocabulary, count);
    if (rc == 0)
        rc = vocabulary_open_merges(&r->t->vocabulary, json_array_size(merges));
    if (rc == 0)
        rc = read_words(r);
    for (size_t i = 0; rc == 0 && i < json_array_size(merges); i++) {
        rc = read_merge(r, json_array_get(merges, i), (uint32_t)i);
        if (rc < 0)
            ct_context(rc, "model: merge %zu", i);
    }
    if (rc == 0)
        rc = vocabulary_seal(&r->t->vocabulary);
    r->t->vocabulary.whole_first = json_is_true(json_object_get(model, "ignore_merges"));
    return rc;
}

/* ---- added tokens ---- */

static bool flag(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

/* A token that is sought in normal text is itself brought into normal form. */
static int normalize_content(struct tokenizer *t, struct added_token *token)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < t->form_count; i++)
        rc = unicode_normalize(t->forms[i], token->content, &token->size, &t->normal[i % 2],
                               &token->content);
    token->content = ct_arena_copy(&t->arena, token->content, token->size);
    return rc;
}

static int read_added(struct reader *r, const json_t *object)
{
    const char *content = json_string_value(json_object_get(object, "content"));
    struct added_token *token = ct_arena_new(&r->t->arena, struct added_token);
    const json_t *word = content ? json_object_get(r->words, content) : NULL;
    bool normalized = flag(object, "normalized");
    int rc = 0;

    if (!content || !*content)
        return ct_fail(CT_ECONFIG, "an entry has no content");
    *token = (struct added_token){.content = ct_arena_strdup(&r->t->arena, content),
                                  .size = strlen(content),
                                  .id = (int32_t)json_integer_value(json_object_get(object, "id")),
                                  .single_word = flag(object, "single_word"),
                                  .lstrip = flag(object, "lstrip"),
                                  .rstrip = flag(object, "rstrip")};
    if (word && json_integer_value(word) != token->id)
        return ct_fail(CT_ECONFIG, "'%.64s' has id %d, but %lld in the vocabulary", content,
                       (int)token->id, (long long)json_integer_value(word));
    if (!word)
        rc = vocabulary_add(&r->t->vocabulary, token->id, content, token->size, false);
    if (rc == 0 && normalized)
        rc = normalize_content(r->t, token);
    return rc < 0 ? rc
                  : added_insert(normalized ? &r->t->normalized : &r->t->raw, &r->t->arena, token);
}

/* ---- the whole ---- */

static int read_root(struct reader *r, const json_t *root)
{
    static const char *const absent[] = {"truncation", "padding"};
    const json_t *added = json_object_get(root, "added_tokens");
    const json_t *decoder = json_object_get(root, "decoder");
    const json_t *version = json_object_get(root, "version");
    int rc = 0;

    if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0")))
        return ct_fail(CT_ECONFIG, "version is not \"1.0\", the only one that is supported");

    for (size_t i = 0; i < CT_COUNT(absent); i++)
        if (json_object_get(root, absent[i]) && !json_is_null(json_object_get(root, absent[i])))
            return ct_fail(CT_ECONFIG, "%s is not supported: set it to null", absent[i]);
    if (decoder && !json_is_null(decoder) && strcmp(type_of(decoder), "ByteLevel"))
        return unsupported("decoder", type_of(decoder), "ByteLevel");
    rc = each(r->t, json_object_get(root, "normalizer"), "normalizers", read_normalizer);
    if (rc == 0)
        rc =
            each(r->t, json_object_get(root, "pre_tokenizer"), "pretokenizers", read_pre_tokenizer);
    if (rc == 0 && !r->t->byte_level)
        return ct_fail(
            CT_ECONFIG,
            "pre_tokenizer: ByteLevel is missing: only byte-level vocabularies are supported");
    if (rc == 0)
        rc = each(r->t, json_object_get(root, "post_processor"), "processors", read_post_processor);
    if (rc == 0)
        rc = read_model(r, json_object_get(root, "model"), added);
    for (size_t i = 0; rc == 0 && i < json_array_size(added); i++) {
        rc = read_added(r, json_array_get(added, i));
        if (rc < 0)
            ct_context(rc, "added_tokens");
    }
    return rc;
}

int tokenizer_read_json(struct tokenizer *t, const char *text, size_t size)
{
    struct reader r = {.t = t};
    json_t *root;
    int rc = ct_json_read(text, size, NULL, 0, &root);

    if (rc < 0)
        return rc;
    fill_alphabet(r.byte_of);
    rc = read_root(&r, root);
    json_decref(root);
    return rc;
}
