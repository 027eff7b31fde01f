/*
 * Answers to conversations, as the chat template of the model's folder writes them: the prompt is
 * the text in front of the answer's words, which end as the template ends a turn.
 */
#include <string.h>

#include <jansson.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/lib/chat.h>
#include <ctitan/lib/jinja.h>

#include "conversation.h"

static bool has_messages(const json_t *object, const char *field)
{
    return json_is_object(json_array_get(json_object_get(object, field), 0));
}

bool dpo_is_conversation(const json_t *object, const char *const *answers, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (has_messages(object, answers[i]))
            return true;
    return has_messages(object, "prompt");
}

static bool is_of(const json_t *message, const char *role)
{
    const char *found = json_string_value(json_object_get(message, "role"));

    return found && !strcmp(found, role);
}

/* All messages: those of "prompt", if it has some, and those of the answer. */
static int read_messages(const json_t *object, const char *answer, json_t *messages)
{
    const json_t *prompt = json_object_get(object, "prompt");
    const json_t *list = json_object_get(object, answer);
    size_t before = json_is_array(prompt) ? json_array_size(prompt) : 0, count;

    if (!has_messages(object, answer) || (before && !has_messages(object, "prompt")))
        return ct_fail(CT_ECONFIG,
                       "\"%s\": expected a list of messages, as another part of the "
                       "line is one",
                       has_messages(object, answer) ? "prompt" : answer);
    for (size_t i = 0; i < before; i++)
        json_array_append(messages, json_array_get(prompt, i));
    json_array_extend(messages, (json_t *)(uintptr_t)list);
    count = json_array_size(messages);
    for (size_t i = 0; i < count; i++)
        if (!json_is_string(json_object_get(json_array_get(messages, i), "role")))
            return ct_fail(CT_ECONFIG, "message %zu of \"%s\" has no \"role\"", i + 1, answer);
    if (count < 2)
        return ct_fail(CT_ECONFIG,
                       "\"%s\" has one message and no prompt: write \"prompt\" as a list of "
                       "messages, too",
                       answer);
    if ((before && json_array_size(list) != 1) ||
        !is_of(json_array_get(messages, count - 1), "assistant"))
        return ct_fail(CT_ECONFIG,
                       "\"%s\": expected one message of the role \"assistant\" behind the prompt",
                       answer);
    return 0;
}

static int open_template(struct ct_arena *arena, struct ct_chat_template **chat)
{
    const char *folder = ct_config.model.init_from;

    if (*chat)
        return 0;
    if (!ct_chat_has_template(folder))
        return ct_fail(CT_ECONFIG, "messages need a chat template, and [model] init_from has none: "
                                   "write prompt and answers as texts");
    return ct_chat_template_open(arena, folder, "", chat);
}

static int write_answer(const struct ct_chat_template *chat, const json_t *object,
                        const json_t *messages, struct ct_arena *arena, struct dpo_answer *out)
{
    size_t last = json_array_size(messages) - 1;
    bool *wanted = ct_arena_array(arena, bool, last + 1);
    struct ct_text_span *spans;
    struct ct_jinja_text text;
    json_t *tools;
    int rc = ct_chat_read_tools(json_object_get(object, "tools"), &tools);

    if (rc < 0)
        return ct_context(rc, "\"tools\"");
    wanted[last] = true;
    rc = ct_chat_template_spans(chat, messages, wanted, tools, arena, &text, &spans);
    json_decref(tools);
    if (rc == 0)
        *out = (struct dpo_answer){text.data, text.size, spans[last].begin, spans[last].end};
    return rc;
}

int dpo_read_answer(struct ct_arena *lasting, struct ct_chat_template **chat, const json_t *object,
                    const char *answer, struct ct_arena *arena, struct dpo_answer *out)
{
    json_t *messages = json_array();
    int rc = read_messages(object, answer, messages);

    if (rc == 0)
        rc = open_template(lasting, chat);
    if (rc == 0)
        rc = write_answer(*chat, object, messages, arena, out);
    json_decref(messages);
    return rc;
}
