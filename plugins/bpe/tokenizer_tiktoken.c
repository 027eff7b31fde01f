/*
 * tiktoken's list of tokens, as Llama 3 has it (tokenizer.model): a line holds a token's bytes in
 * base64 and its rank, which is its id. Two adjacent tokens merge if the list has both's bytes, at
 * that rank. The file names neither the pattern nor the special tokens: they are Llama 3's.
 */
#include <stdlib.h>
#include <string.h>

#include <ctitan/error.h>

#include "base64.h"
#include "tokenizer.h"

#define SPECIALS 256

static int read_line(struct vocabulary *v, const char *line, size_t id)
{
    char bytes[VOCABULARY_BYTES], *end;
    const char *at;
    int size = base64_decode(line, &at, bytes, sizeof(bytes));
    unsigned long long rank = size > 0 && *at == ' ' ? strtoull(at, &end, 10) : 0;

    if (size <= 0 || *at != ' ' || end == at + 1 || (*end != '\n' && *end != '\r' && *end))
        return ct_fail(CT_ECONFIG, "expected a token in base64, a space and its rank");
    if (rank != id)
        return ct_fail(CT_ECONFIG, "expected rank %zu", id);
    return vocabulary_add(v, (int64_t)id, bytes, (size_t)size, true);
}

/* Every way to split a token into two tokens is a merge. Returns their number; add them if
   asked. */
static size_t merge_cuts(struct vocabulary *v, int32_t id, bool add)
{
    const struct vocabulary_token *token = &v->tokens[id];
    size_t found = 0;

    for (size_t cut = 1; cut < token->size; cut++) {
        int32_t left = vocabulary_find(v, token->bytes, cut);
        int32_t right = vocabulary_find(v, token->bytes + cut, token->size - cut);

        if (left < 0 || right < 0)
            continue;
        found++;
        if (add)
            vocabulary_merge(v, left, right, (uint32_t)id);
    }
    return found;
}

static int merge_all(struct vocabulary *v, size_t tokens)
{
    size_t merges = 0;
    int rc;

    for (size_t i = 0; i < tokens; i++)
        merges += merge_cuts(v, (int32_t)i, false);
    rc = vocabulary_open_merges(v, merges);
    for (size_t i = 0; rc == 0 && i < tokens; i++)
        merge_cuts(v, (int32_t)i, true);
    return rc;
}

/* Llama 3's names of the ids after the list. */
static const char *special_name(struct ct_arena *arena, int i)
{
    static const char *const names[] = {
        [0] = "<|begin_of_text|>", [1] = "<|end_of_text|>", [6] = "<|start_header_id|>",
        [7] = "<|end_header_id|>", [9] = "<|eot_id|>",
    };
    int before = 2 + (i > 7) * 2 + (i > 9); /* named ones before number i */

    if (i < 10 && names[i])
        return names[i];
    return ct_arena_printf(arena, "<|reserved_special_token_%d|>", i - before);
}

static int add_specials(struct tokenizer *t, size_t first)
{
    int rc = 0;

    for (int i = 0; rc == 0 && i < SPECIALS; i++) {
        struct added_token *token = ct_arena_new(&t->arena, struct added_token);

        token->content = special_name(&t->arena, i);
        token->size = strlen(token->content);
        token->id = (int32_t)first + i;
        rc = vocabulary_add(&t->vocabulary, token->id, token->content, token->size, false);
        if (rc == 0)
            rc = added_insert(&t->raw, &t->arena, token);
    }
    t->bos = t->before[t->before_count++] = (int32_t)first;
    t->eos = (int32_t)first + 1;
    return rc;
}

static size_t count_lines(const char *text)
{
    size_t lines = 0;

    for (; *text; text += strcspn(text, "\n"), text += *text == '\n')
        lines++;
    return lines;
}

int tokenizer_read_tiktoken(struct tokenizer *t, const char *text, size_t size)
{
    struct vocabulary *v = &t->vocabulary;
    size_t lines = count_lines(text);
    int rc;

    if (!size || base64_digit(*text) < 0 || !lines)
        return ct_fail(CT_ECONFIG, "neither tokenizer.json nor tiktoken's list of tokens (a model "
                                   "of SentencePiece is read by the plugin sentencepiece)");
    if (lines > VOCABULARY_LIMIT - SPECIALS)
        return ct_fail(CT_ECONFIG, "%zu tokens are too many", lines);
    rc = vocabulary_open(v, lines + SPECIALS);
    for (size_t i = 0; rc == 0 && i < lines; i++) {
        rc = read_line(v, text, i);
        if (rc < 0)
            return ct_context(rc, "line %zu", i + 1);
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    if (rc == 0)
        rc = merge_all(v, lines);
    if (rc == 0)
        rc = vocabulary_seal(v);
    if (rc == 0)
        rc = add_specials(t, lines);
    v->whole_first = true;
    t->byte_level = t->steps[0].splits = true;
    t->decoder.stages[t->decoder.count++].kind = DECODER_BYTE_LEVEL;
    t->step_count = 1;
    return rc < 0 ? rc : pattern_open(&t->steps[0].split.pattern, pattern_llama3, false);
}
