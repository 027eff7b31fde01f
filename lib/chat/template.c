/*
 * The chat template of a folder, run.
 */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/file.h>
#include <ctitan/lib/chat.h>
#include <ctitan/lib/jinja.h>
#include <ctitan/lib/json.h>
#include <ctitan/lib/tokenizer.h>
#include <ctitan/rng.h>

#include "folder.h"

struct ct_chat_template {
    struct ct_jinja *jinja;
    const char *path, *date;
    json_t *tokens; /* bos_token, eos_token and so on */
    uint64_t hash;
};

/* ---- reading ---- */

static void add_token(json_t *tokens, const char *key, const char *text)
{
    if (text)
        json_object_set_new(tokens, key, json_string(text));
}

/* Adds the special tokens that the folder names, which templates write. */
static int read_tokens(const char *folder, json_t *tokens)
{
    static const char *const names[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    static const char *const files[] = {"special_tokens_map.json", "tokenizer_config.json"};
    json_t *config;
    char path[CT_PATH_ROOM];
    int rc = 0;

    for (size_t f = 0; f < CT_COUNT(files) && (rc == 0 || rc == CT_ENOENT); f++) {
        snprintf(path, sizeof(path), "%s/%s", folder, files[f]);
        rc = ct_json_read_file(path, 0, &config);
        for (size_t i = 0; rc == 0 && i < CT_COUNT(names); i++)
            add_token(tokens, names[i], ct_tokenizer_special(config, names[i]));
        json_decref(config);
    }
    return rc == CT_ENOENT ? 0 : rc;
}

bool ct_chat_has_template(const char *folder)
{
    char path[CT_PATH_ROOM], *text;
    int rc = chat_folder_template(folder, path, &text);

    free(text);
    return rc != CT_ENOENT;
}

int ct_chat_template_open(struct ct_arena *arena, const char *folder, const char *date,
                          struct ct_chat_template **out)
{
    struct ct_chat_template *t = ct_arena_new(arena, struct ct_chat_template);
    char path[CT_PATH_ROOM], *text;
    int rc = chat_folder_template(folder, path, &text);

    *out = NULL;
    if (rc == CT_ENOENT)
        return ct_fail(CT_ENOENT, "%s has no chat template", folder ? folder : "no folder");
    if (rc < 0)
        return rc;
    t->path = ct_arena_strdup(arena, path);
    t->date = ct_arena_strdup(arena, date);
    rc = ct_jinja_read(arena, path, text, strlen(text), &t->jinja);
    t->hash = ct_rng_stream(text);
    free(text);
    if (rc < 0)
        return rc;
    t->tokens = json_object();
    rc = read_tokens(folder, t->tokens);
    if (rc == 0)
        *out = t;
    else
        json_decref(t->tokens);
    return rc;
}

void ct_chat_template_close(struct ct_chat_template *t)
{
    if (t)
        json_decref(t->tokens);
}

uint64_t ct_chat_template_hash(const struct ct_chat_template *t)
{
    char *tokens = json_dumps(t->tokens, JSON_SORT_KEYS);
    uint64_t hash = t->hash ^ (tokens ? ct_rng_stream(tokens) << 1 : 0);

    free(tokens);
    return hash;
}

/* ---- tools ---- */

static bool is_list_of_objects(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_object(json_array_get(list, i)))
            return false;
    return json_is_array(list);
}

int ct_chat_read_tools(const json_t *value, json_t **tools)
{
    json_t *found = NULL;
    int rc = 0;

    *tools = NULL;
    if (json_is_string(value))
        rc = ct_json_read(json_string_value(value), json_string_length(value), NULL, CT_JSON_NUL,
                          &found);
    else
        found = json_incref((json_t *)(uintptr_t)value);
    if (rc < 0)
        return rc;
    if (is_list_of_objects(found)) {
        *tools = found;
        return 0;
    }
    rc = !found || json_is_null(found)
             ? 0
             : ct_fail(CT_ECONFIG, "expected a list of objects that describe tools, or a string "
                                   "that holds one");
    json_decref(found);
    return rc;
}

/* ---- rendering ---- */

/* The first `count` messages. */
static int render(const struct ct_chat_template *t, const json_t *messages, size_t count,
                  const json_t *tools, bool prompt, struct ct_arena *arena,
                  struct ct_jinja_text *text)
{
    json_t *variables = json_copy(t->tokens), *some = json_array();
    int rc;

    for (size_t i = 0; i < count; i++)
        json_array_append(some, json_array_get(messages, i));
    json_object_set_new(variables, "messages", some);
    json_object_set_new(variables, "add_generation_prompt", json_boolean(prompt));
    json_object_set(variables, "tools", tools ? (json_t *)(uintptr_t)tools : json_null());
    rc = ct_jinja_render(t->jinja, variables, t->date, arena, text);
    json_decref(variables);
    return rc;
}

int ct_chat_template_render(const struct ct_chat_template *t, const json_t *messages,
                            const json_t *tools, bool prompt, struct ct_arena *arena,
                            struct ct_jinja_text *text)
{
    return render(t, messages, json_array_size(messages), tools, prompt, arena, text);
}

static bool begins(const struct ct_jinja_text *whole, const struct ct_jinja_text *part)
{
    return part->size <= whole->size && !memcmp(whole->data, part->data, part->size);
}

static bool is_answer(const json_t *messages, size_t i)
{
    const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));

    return role && !strcmp(role, "assistant");
}

/* Message i is what the text up to it has more than the prompt for it, without white space at its
   end: that belongs to the next turn. */
static int find_span(const struct ct_chat_template *t, const json_t *messages, size_t i,
                     const json_t *tools, struct ct_arena *arena, const struct ct_jinja_text *text,
                     struct ct_text_span *span)
{
    struct ct_jinja_text prompt, upto;
    int rc = render(t, messages, i, tools, true, arena, &prompt);
    const char *end;
    size_t size;

    if (rc == 0 && i + 1 < json_array_size(messages))
        rc = render(t, messages, i + 1, tools, false, arena, &upto);
    else
        upto = *text;
    if (rc < 0)
        return rc;
    if (!begins(&upto, &prompt) || !begins(text, &upto))
        return ct_fail(CT_ECONFIG,
                       "%s: what it writes up to message %zu does not begin what it writes of the "
                       "whole conversation, so what the assistant writes cannot be told from the "
                       "rest: mark that with {%% generation %%} in the template",
                       t->path, i + (begins(&upto, &prompt) ? 1 : 0));
    end = upto.data + prompt.size;
    size = upto.size - prompt.size;
    ct_jinja_strip(&end, &size, false, true);
    *span = (struct ct_text_span){prompt.size, prompt.size + size};
    return 0;
}

static size_t count_answers(const json_t *messages)
{
    size_t n = 0;

    for (size_t i = 0; i < json_array_size(messages); i++)
        n += is_answer(messages, i);
    return n;
}

/* Takes the messages' spans from the template's marks: one for each, in order. */
static int take_marks(const struct ct_chat_template *t, const json_t *messages,
                      const struct ct_jinja_text *text, struct ct_text_span *spans)
{
    size_t at = 0, answers = count_answers(messages);

    if (text->count != answers)
        return ct_fail(CT_ECONFIG,
                       "%s: {%% generation %%} marks %zu parts of a conversation in which the "
                       "assistant writes %zu messages",
                       t->path, text->count, answers);
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (is_answer(messages, i))
            spans[i] = text->answers[at++];
    return 0;
}

int ct_chat_template_spans(const struct ct_chat_template *t, const json_t *messages,
                           const bool *wanted, const json_t *tools, struct ct_arena *arena,
                           struct ct_jinja_text *text, struct ct_text_span **spans)
{
    size_t count = json_array_size(messages);
    int rc = render(t, messages, count, tools, false, arena, text);

    *spans = ct_arena_array(arena, struct ct_text_span, count + 1);
    if (rc == 0 && ct_jinja_marks(t->jinja))
        return take_marks(t, messages, text, *spans);
    for (size_t i = 0; rc == 0 && i < count; i++)
        if (wanted[i] && is_answer(messages, i))
            rc = find_span(t, messages, i, tools, arena, text, &(*spans)[i]);
    return rc;
}
