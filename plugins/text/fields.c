/*
 * Objects of several forms as lists of messages with "role" and "content".
 */
#include <string.h>

#include <ctitan/error.h>

#include "fields.h"

static const char *const names[CHAT_FIELDS] = {
    [CHAT_MESSAGES] = "messages",       [CHAT_ROLE] = "role",
    [CHAT_CONTENT] = "content",         [CHAT_TOOLS] = "tools",
    [CHAT_PROMPT] = "prompt",           [CHAT_COMPLETION] = "completion",
    [CHAT_INSTRUCTION] = "instruction", [CHAT_INPUT] = "input",
    [CHAT_OUTPUT] = "output",           [CHAT_IDS] = "ids",
    [CHAT_LABELS] = "labels",           [CHAT_TRAIN] = "train",
};

static int set_field(struct ct_arena *arena, const char *item, const char **field)
{
    const char *equals = strchr(item, '=');

    for (int i = 0; equals && i < CHAT_FIELDS; i++)
        if (strlen(names[i]) == (size_t)(equals - item) &&
            !strncmp(names[i], item, strlen(names[i])) && equals[1]) {
            field[i] = ct_arena_strdup(arena, equals + 1);
            return 0;
        }
    return ct_fail(CT_ECONFIG,
                   "[text] fields: '%s': expected NAME=OTHER, where NAME is one of messages, role, "
                   "content, tools, prompt, completion, instruction, input, output, ids, labels, "
                   "train",
                   item);
}

int chat_fields(struct ct_arena *arena, enum corpus_format format, const char *list,
                const char *field[CHAT_FIELDS])
{
    char *item;
    int rc = 0;

    memcpy(field, names, sizeof(names));
    if (format == CORPUS_SHAREGPT) {
        field[CHAT_MESSAGES] = "conversations";
        field[CHAT_ROLE] = "from";
        field[CHAT_CONTENT] = "value";
    }
    while (rc == 0 && (item = corpus_next_item(arena, &list)))
        rc = set_field(arena, item, field);
    return rc;
}

/* ---- messages ---- */

static void rename_field(json_t *object, const char *from, const char *to)
{
    json_t *value = json_object_get(object, from);

    if (!value || !strcmp(from, to))
        return;
    json_object_set(object, to, value);
    json_object_del(object, from);
}

/* ShareGPT's names of roles. */
static void rename_role(json_t *message)
{
    static const char *const roles[][2] = {{"human", "user"},        {"gpt", "assistant"},
                                           {"chatgpt", "assistant"}, {"model", "assistant"},
                                           {"function", "tool"},     {"observation", "tool"}};
    const char *role = json_string_value(json_object_get(message, "role"));

    for (size_t i = 0; role && i < CT_COUNT(roles); i++)
        if (!strcmp(role, roles[i][0])) {
            json_object_set_new(message, "role", json_string(roles[i][1]));
            return;
        }
}

static json_t *rename_all(const json_t *list, const char *const field[CHAT_FIELDS], bool sharegpt)
{
    json_t *messages = json_array(), *message;
    size_t i;

    json_array_foreach(list, i, message)
    {
        json_t *copy = json_is_object(message) ? json_copy(message) : json_incref(message);

        if (json_is_object(copy)) {
            rename_field(copy, field[CHAT_ROLE], "role");
            rename_field(copy, field[CHAT_CONTENT], "content");
            if (sharegpt)
                rename_role(copy);
        }
        json_array_append_new(messages, copy);
    }
    return messages;
}

static int lacks(const char *field)
{
    return ct_fail(CT_ECONFIG, "the object has no field \"%s\"", field);
}

static void add_message(json_t *messages, const char *role, const char *content)
{
    json_t *message = json_object();

    json_object_set_new(message, "role", json_string(role));
    json_object_set_new(message, "content", json_string(content));
    json_array_append_new(messages, message);
}

static int of_alpaca(const json_t *object, const char *const field[CHAT_FIELDS], json_t **messages)
{
    const char *instruction = json_string_value(json_object_get(object, field[CHAT_INSTRUCTION]));
    const char *input = json_string_value(json_object_get(object, field[CHAT_INPUT]));
    const char *output = json_string_value(json_object_get(object, field[CHAT_OUTPUT]));
    struct ct_arena scratch = {0};

    if (!instruction || !output)
        return ct_fail(CT_ECONFIG, "no \"%s\" or \"%s\", both strings", field[CHAT_INSTRUCTION],
                       field[CHAT_OUTPUT]);
    *messages = json_array();
    add_message(*messages, "user",
                input && *input ? ct_arena_printf(&scratch, "%s\n\n%s", instruction, input)
                                : instruction);
    add_message(*messages, "assistant", output);
    ct_arena_finish(&scratch);
    return 0;
}

static int of_prompt(const json_t *object, const char *const field[CHAT_FIELDS], json_t **messages,
                     size_t *prompted)
{
    const json_t *prompt = json_object_get(object, field[CHAT_PROMPT]);
    const json_t *completion = json_object_get(object, field[CHAT_COMPLETION]);
    json_t *rest;

    if (!json_is_array(prompt) || !json_is_array(completion))
        return ct_fail(CT_ECONFIG, "\"%s\" and \"%s\": both strings, or both lists of messages",
                       field[CHAT_PROMPT], field[CHAT_COMPLETION]);
    *messages = rename_all(prompt, field, false);
    *prompted = json_array_size(*messages);
    rest = rename_all(completion, field, false);
    json_array_extend(*messages, rest);
    json_decref(rest);
    return 0;
}

int fields_messages(const json_t *object, enum corpus_format format,
                    const char *const field[CHAT_FIELDS], json_t **messages, size_t *prompted)
{
    const json_t *list = json_object_get(object, field[CHAT_MESSAGES]);

    *messages = NULL;
    *prompted = 0;
    if (format == CORPUS_ALPACA)
        return of_alpaca(object, field, messages);
    if (format == CORPUS_PROMPT)
        return of_prompt(object, field, messages, prompted);
    if (!list)
        return lacks(field[CHAT_MESSAGES]);
    if (!json_is_array(list))
        return ct_fail(CT_ECONFIG, "the field \"%s\" is not a list of messages",
                       field[CHAT_MESSAGES]);
    *messages = rename_all(list, field, format == CORPUS_SHAREGPT);
    return 0;
}

/* ---- tokens ---- */

/* The numbers of "weights"; *weights is NULL: there are none. */
static int take_weights(const json_t *list, bool taken, size_t count, struct ct_arena *arena,
                        const float **weights)
{
    float *w = ct_arena_array(arena, float, count + 1);

    *weights = NULL;
    if (!list)
        return 0;
    if (!taken)
        return ct_fail(CT_ECONFIG, "\"weights\" need [text] label_weights = true");
    if (json_array_size(list) != count)
        return ct_fail(CT_ECONFIG, "%zu \"weights\" for %zu ids", json_array_size(list), count);
    for (size_t i = 0; i < count; i++) {
        const json_t *weight = json_array_get(list, i);

        w[i] = (float)json_number_value(weight);
        if (!json_is_number(weight) || !(w[i] >= 0 && w[i] < 1e6F))
            return ct_fail(CT_ECONFIG, "\"weights\"[%zu]: expected a number from 0 to 1e6", i);
    }
    *weights = w;
    return 0;
}

int fields_ids(const json_t *object, const char *const field[CHAT_FIELDS], int64_t vocabulary,
               bool weights, struct ct_arena *arena, struct document *document)
{
    const json_t *ids = json_object_get(object, field[CHAT_IDS]);
    const json_t *labels = json_object_get(object, field[CHAT_LABELS]);
    size_t count = json_array_size(ids);
    int32_t *tokens = ct_arena_array(arena, int32_t, count + 1);

    if (!json_is_array(ids))
        return ct_fail(CT_ECONFIG, "the object has no list \"%s\"", field[CHAT_IDS]);
    if (labels && json_array_size(labels) != count)
        return ct_fail(CT_ECONFIG, "%zu \"%s\" for %zu \"%s\"", json_array_size(labels),
                       field[CHAT_LABELS], count, field[CHAT_IDS]);
    for (size_t i = 0; i < count; i++) {
        int64_t id = json_integer_value(json_array_get(ids, i));
        const json_t *own = json_array_get(labels, i);
        int64_t label = labels ? json_integer_value(own) : id;

        if (!json_is_integer(json_array_get(ids, i)) || id < 0 || id > INT32_MAX ||
            (vocabulary && id >= vocabulary))
            return ct_fail(CT_ECONFIG, "\"%s\"[%zu] is no token of the vocabulary of %lld",
                           field[CHAT_IDS], i, (long long)vocabulary);
        if (labels && !json_is_integer(own))
            return ct_fail(CT_ECONFIG, "\"%s\"[%zu] is no whole number", field[CHAT_LABELS], i);
        if (label != id && label != -100)
            return ct_fail(CT_ECONFIG,
                           "\"%s\"[%zu] is %lld: expected the token at its place, %lld, or -100",
                           field[CHAT_LABELS], i, (long long)label, (long long)id);
        tokens[i] = (int32_t)(label == id ? id : ~id);
    }
    *document = (struct document){.ids = tokens, .size = count};
    return take_weights(json_object_get(object, "weights"), weights, count, arena,
                        &document->weights);
}
