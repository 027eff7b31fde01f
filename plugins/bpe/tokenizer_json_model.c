/*
 * The model of tokenizer.json: BPE of bytes or of characters, and Unigram.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "tokenizer_json.h"

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

/* ---- BPE ---- */

static int check_bpe(const json_t *model)
{
    static const char *const keys[] = {"type",
                                       "dropout",
                                       "unk_token",
                                       "continuing_subword_prefix",
                                       "end_of_word_suffix",
                                       "fuse_unk",
                                       "byte_fallback",
                                       "ignore_merges",
                                       "vocab",
                                       "merges",
                                       NULL};
    static const char *const absent[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *dropout = json_object_get(model, "dropout");
    int rc = tokenizer_check_keys("model", model, keys);

    if (rc < 0)
        return rc;
    if (dropout && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return ct_fail(CT_ECONFIG, "model: dropout is not supported");
    for (size_t i = 0; i < CT_COUNT(absent); i++) {
        const json_t *value = json_object_get(model, absent[i]);
        const char *text = json_string_value(value);

        if (value && !json_is_null(value) && !(text && !*text))
            return ct_fail(CT_ECONFIG, "model: %s = '%s' is not supported", absent[i],
                           text ? text : "");
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

static int read_words(struct reader *r)
{
    char bytes[2 * VOCABULARY_BYTES];
    const char *word;
    json_t *id;
    int rc = 0;

    json_object_foreach((json_t *)(uintptr_t)r->words, word, id)
    {
        size_t size = strlen(word), count = size;
        bool mapped = r->t->byte_level && size <= sizeof(bytes) &&
                      to_bytes(r->byte_of, word, size, bytes, &count);
        bool found = mapped || !r->t->byte_level;

        rc = vocabulary_add(&r->t->vocabulary, json_integer_value(id), mapped ? bytes : word,
                            mapped ? count : size, found);
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

/* The token for characters without one, and what else a vocabulary of characters has. */
static int read_characters(struct reader *r, const json_t *model)
{
    struct vocabulary *v = &r->t->vocabulary;
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));

    v->characters = true;
    v->fuse_unknown = tokenizer_flag(model, "fuse_unk");
    if (tokenizer_flag(model, "byte_fallback"))
        vocabulary_find_fallback(v);
    if (!unknown)
        return 0;
    v->unknown = vocabulary_find(v, unknown, strlen(unknown));
    return v->unknown >= 0
               ? 0
               : ct_fail(CT_ECONFIG, "model: unk_token: '%s' is not in the vocabulary", unknown);
}

static int read_bpe(struct reader *r, const json_t *model, const json_t *added)
{
    const json_t *merges = json_object_get(model, "merges");
    size_t count = 0;
    int rc = check_bpe(model);

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
        rc = r->t->byte_level ? vocabulary_seal(&r->t->vocabulary) : read_characters(r, model);
    r->t->vocabulary.whole_first = tokenizer_flag(model, "ignore_merges");
    return rc;
}

/* ---- Unigram ---- */

/* [["token", score], ..] */
static int read_scores(struct reader *r, const json_t *words, double *scores)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < json_array_size(words); i++) {
        const json_t *pair = json_array_get(words, i), *word = json_array_get(pair, 0);
        const json_t *score = json_array_get(pair, 1);

        if (json_array_size(pair) != 2 || !json_is_string(word) || !json_is_number(score))
            return ct_fail(CT_ECONFIG, "model: vocab: entry %zu is not [\"token\", score]", i);
        scores[i] = json_number_value(score);
        rc = vocabulary_add(&r->t->vocabulary, (int64_t)i, json_string_value(word),
                            json_string_length(word), true);
    }
    return ct_context(rc, "model: vocab");
}

static int read_unknown(struct unigram *u, const json_t *id)
{
    if (!id || json_is_null(id))
        return 0;
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        (size_t)json_integer_value(id) >= u->count)
        return ct_fail(CT_ECONFIG, "model: unk_id = %lld, and the vocabulary has %zu tokens",
                       (long long)json_integer_value(id), u->count);
    u->unknown = (int32_t)json_integer_value(id);
    return 0;
}

static int check_unigram(const struct reader *r, const json_t *model)
{
    static const char *const keys[] = {"type", "unk_id", "vocab", "byte_fallback", NULL};
    const json_t *words = json_object_get(model, "vocab");
    int rc = tokenizer_check_keys("model", model, keys);

    if (rc < 0)
        return rc;
    if (!json_is_array(words) || json_array_size(words) >= VOCABULARY_LIMIT)
        return ct_fail(CT_ECONFIG, "model: vocab is no list, or too long");
    if (r->t->byte_level)
        return ct_fail(CT_ECONFIG, "model: type = 'Unigram' after pre_tokenizer: type = "
                                   "'ByteLevel' is not supported");
    return 0;
}

static int read_unigram(struct reader *r, const json_t *model, const json_t *added)
{
    const json_t *words = json_object_get(model, "vocab");
    size_t count = 0, most = json_array_size(words);
    double *scores;
    int rc = check_unigram(r, model);

    if (rc == 0)
        rc = count_ids(NULL, added, &count);
    if (rc == 0)
        rc = vocabulary_open(&r->t->vocabulary, count > most ? count : most);
    if (rc < 0)
        return rc;
    scores = calloc(most + 1, sizeof(*scores));
    rc = scores ? read_scores(r, words, scores) : ct_fail(CT_ENOMEM, "%zu scores", most);
    if (rc < 0) {
        free(scores);
        return rc;
    }
    r->t->is_unigram = true;
    rc = unigram_open(&r->t->unigram, &r->t->vocabulary, scores, most);
    if (rc == 0 && tokenizer_flag(model, "byte_fallback")) {
        r->t->unigram.byte_fallback = true;
        vocabulary_find_fallback(&r->t->vocabulary);
    }
    return rc < 0 ? rc : read_unknown(&r->t->unigram, json_object_get(model, "unk_id"));
}

int tokenizer_read_model(struct reader *r, const json_t *model, const json_t *added)
{
    const char *type = tokenizer_type(model);

    fill_alphabet(r->byte_of);
    if (!strcmp(type, "BPE") || (!*type && json_object_get(model, "merges")))
        return read_bpe(r, model, added);
    if (!strcmp(type, "Unigram"))
        return read_unigram(r, model, added);
    return tokenizer_unsupported("model: type", type, "BPE, Unigram");
}

int64_t tokenizer_find_word(const struct reader *r, const char *word)
{
    const json_t *id = json_object_get(r->words, word);

    if (r->t->is_unigram)
        return vocabulary_find(&r->t->vocabulary, word, strlen(word));
    return id ? json_integer_value(id) : -1;
}
