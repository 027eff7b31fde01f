/*
 * tokenizer.json, of the tokenizers library: the whole, the post-processor, and the added tokens.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/json.h>

#include "tokenizer_json.h"

/* ---- json ---- */

const char *tokenizer_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "";
}

const char *tokenizer_type(const json_t *object)
{
    return tokenizer_text(object, "type");
}

bool tokenizer_flag(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

int tokenizer_unsupported(const char *where, const char *type, const char *supported)
{
    return ct_fail(CT_ECONFIG, "%s: '%s' is not supported; supported: %s", where, type, supported);
}

int tokenizer_check_keys(const char *where, const json_t *object, const char *const *keys)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        size_t i = 0;
        char *text;
        int rc;

        while (keys[i] && strcmp(keys[i], key))
            i++;
        if (keys[i])
            continue;
        text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        rc = ct_fail(CT_ECONFIG, "%s: %.64s = %.64s is not supported", where, key,
                     text ? text : "?");
        free(text);
        return rc;
    }
    return 0;
}

int tokenizer_each(struct tokenizer *t, const json_t *object, const char *key,
                   int (*read)(struct tokenizer *t, const json_t *object))
{
    const json_t *members = json_object_get(object, key);
    int rc = 0;

    if (!object || json_is_null(object))
        return 0;
    if (strcmp(tokenizer_type(object), "Sequence"))
        return read(t, object);
    if (!json_is_array(members))
        return ct_fail(CT_ECONFIG, "a Sequence without its list %s", key);
    for (size_t i = 0; rc == 0 && i < json_array_size(members); i++)
        rc = tokenizer_each(t, json_array_get(members, i), key, read);
    return rc;
}

/* ---- post_processor ---- */

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

    if (!strcmp(tokenizer_type(object), "ByteLevel"))
        return 0;
    if (strcmp(tokenizer_type(object), "TemplateProcessing"))
        return tokenizer_unsupported("post_processor", tokenizer_type(object),
                                     "ByteLevel, TemplateProcessing");
    for (size_t i = 0; rc == 0 && i < json_array_size(single); i++) {
        item = json_object_get(json_array_get(single, i), "SpecialToken");
        if (item)
            rc = read_special(t, json_object_get(object, "special_tokens"), item, after);
        else
            after = true;
    }
    return rc;
}

/* ---- added tokens ---- */

/* A token that is sought in normal text is itself brought into normal form. */
static int normalize_content(struct tokenizer *t, struct added_token *token)
{
    bool begins = true;
    int rc = 0;

    for (int i = 0; rc == 0 && i < t->normalizer_count; i++)
        rc = normalizer_apply(&t->normalizers[i], false, &token->content, &token->size, &begins);
    token->content = ct_arena_copy(&t->arena, token->content, token->size);
    return rc;
}

static int read_added(struct reader *r, const json_t *object)
{
    static const char *const keys[] = {"id",     "content",    "single_word", "lstrip",
                                       "rstrip", "normalized", "special",     NULL};
    const char *content = json_string_value(json_object_get(object, "content"));
    struct added_token *token = ct_arena_new(&r->t->arena, struct added_token);
    int64_t word = content ? tokenizer_find_word(r, content) : -1;
    bool normalized = tokenizer_flag(object, "normalized");
    int rc = 0;

    rc = tokenizer_check_keys("an entry", object, keys);
    if (rc < 0)
        return rc;
    if (!content || !*content)
        return ct_fail(CT_ECONFIG, "an entry has no content");
    *token = (struct added_token){.content = ct_arena_strdup(&r->t->arena, content),
                                  .size = strlen(content),
                                  .id = (int32_t)json_integer_value(json_object_get(object, "id")),
                                  .single_word = tokenizer_flag(object, "single_word"),
                                  .lstrip = tokenizer_flag(object, "lstrip"),
                                  .rstrip = tokenizer_flag(object, "rstrip")};
    if (word >= 0 && word != token->id)
        return ct_fail(CT_ECONFIG, "'%.64s' has id %d, but %lld in the vocabulary", content,
                       (int)token->id, (long long)word);
    if (word < 0)
        rc = vocabulary_add(&r->t->vocabulary, token->id, content, token->size, false);
    if (rc == 0 && normalized)
        rc = normalize_content(r->t, token);
    if (rc == 0 && normalized)
        vocabulary_show(&r->t->vocabulary, token->id, token->content, token->size);
    if (rc == 0 && !token->size)
        return 0; /* nothing of it is left to be found */
    return rc < 0 ? rc
                  : added_insert(normalized ? &r->t->normalized : &r->t->raw, &r->t->arena, token);
}

/* ---- the whole ---- */

/* Without a decoder the library joins by spaces; bytes are decoded as ByteLevel does it. */
static int read_decoders(struct tokenizer *t, const json_t *decoder)
{
    int rc = tokenizer_each(t, decoder, "decoders", tokenizer_read_decoder);

    if (rc == 0 && !t->decoder.count)
        t->decoder.stages[t->decoder.count++].kind =
            t->byte_level ? DECODER_BYTE_LEVEL : DECODER_JOIN;
    return rc;
}

static int read_root(struct reader *r, const json_t *root)
{
    const json_t *added = json_object_get(root, "added_tokens");
    /* Truncation and padding are of batches of the last call that was saved: transformers turns
       both off, too. */
    static const char *const keys[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    const json_t *version = json_object_get(root, "version");
    int rc = 0;

    if (version && (!json_is_string(version) || strcmp(json_string_value(version), "1.0")))
        return ct_fail(CT_ECONFIG, "version is not \"1.0\", the only one that is supported");

    rc = tokenizer_check_keys("the file", root, keys);
    if (rc == 0)
        rc = tokenizer_each(r->t, json_object_get(root, "normalizer"), "normalizers",
                            tokenizer_read_normalizer);
    if (rc == 0)
        rc = tokenizer_each(r->t, json_object_get(root, "pre_tokenizer"), "pretokenizers",
                            tokenizer_read_pre_tokenizer);
    if (rc == 0)
        rc = tokenizer_each(r->t, json_object_get(root, "post_processor"), "processors",
                            read_post_processor);
    if (rc == 0)
        rc = tokenizer_read_model(r, json_object_get(root, "model"), added);
    for (size_t i = 0; rc == 0 && i < json_array_size(added); i++) {
        rc = read_added(r, json_array_get(added, i));
        if (rc < 0)
            ct_context(rc, "added_tokens");
    }
    if (rc == 0)
        rc = read_decoders(r->t, json_object_get(root, "decoder"));
    return rc;
}

int tokenizer_read_json(struct tokenizer *t, const char *text, size_t size)
{
    struct reader r = {.t = t};
    json_t *root;
    int rc = ct_json_read(text, size, NULL, 0, &root);

    if (rc < 0)
        return rc;
    rc = read_root(&r, root);
    json_decref(root);
    return rc;
}
