/*
 * Conversations: a user's turn as text, up to where the assistant's answer begins.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include <ctitan/error.h>
#include <ctitan/lib/jinja.h>
#include <ctitan/plugin.h>
#include <ctitan/recipe.h>

#include "generate.h"

/* ---- the format ---- */

/* The format that the recipe's data is written in; NULL: it has no conversations, or a folder's
   template writes them. */
static const struct ct_chat_format *format_of_data(void)
{
    const struct ct_offer *offer = ct_offer_at(CT_DATA, 0);
    const struct ct_data_ops *ops = offer ? offer->ops : NULL;
    const char *name = ops && ops->chat ? ops->chat() : NULL;

    return name ? ct_chat_find(name) : NULL;
}

static void add_message(json_t *messages, const char *role, const char *text, size_t size)
{
    json_t *message = json_object();

    json_object_set_new(message, "role", json_string(role));
    json_object_set_new(message, "content", json_stringn_nocheck(text, size));
    json_array_append_new(messages, message);
}

/* The text behind an answer, without the white space around it, in a conversation that ends with
   it; NULL: the answer is not in it. */
static const char *behind(const struct ct_jinja_text *text, const char *answer, size_t size)
{
    const char *last = NULL, *at = text->data;

    ct_chat_strip(&answer, &size);
    while ((at = memmem(at, (size_t)(text->data + text->size - at), answer, size))) {
        last = at + size;
        if (!size)
            return text->data + text->size;
        at++;
    }
    return last;
}

/* The first token behind an answer ends it. */
static int find_end(struct ct_arena *arena, struct chat *chat,
                    const struct ct_tokenizer_ops *tokenizer)
{
    static const char question[] = "The question?", answer[] = "The answer.";
    json_t *messages = json_array();
    struct ct_jinja_text text;
    const char *end = NULL;
    int rc;

    chat->end = -1;
    add_message(messages, "user", question, strlen(question));
    add_message(messages, "assistant", answer, strlen(answer));
    rc = ct_chat_template_render(chat->template, messages, NULL, false, arena, &text);
    json_decref(messages);
    if (rc < 0)
        return rc;
    end = behind(&text, answer, strlen(answer));
    if (!end || !strstr(text.data, question))
        return ct_fail(CT_ECONFIG, "the chat template of the model's folder does not write what "
                                   "user and assistant say");
    if (*end && *end != '\n')
        tokenizer->encode(end, strlen(end), &chat->end, 1);
    return 0;
}

static int open_template(struct ct_arena *arena, const char *folder, struct chat *chat)
{
    time_t now = time(NULL);
    char date[16];
    struct tm day;

    strftime(date, sizeof(date), "%Y-%m-%d", localtime_r(&now, &day));
    return ct_chat_template_open(arena, folder, date, &chat->template);
}

static int choose_format(struct ct_arena *arena, const char *const *folders, size_t count,
                         struct chat *chat)
{
    int rc = CT_ENOENT;

    chat->format = format_of_data();
    if (chat->format) {
        rc = ct_chat_begins(chat->format, ct_config.model.init_from);
        chat->begins = rc > 0;
        return rc < 0 ? rc : 0;
    }
    for (size_t i = 0; rc == CT_ENOENT && i < count; i++)
        if (*folders[i])
            rc = open_template(arena, folders[i], chat);
    if (rc == CT_ENOENT)
        rc = ct_fail(CT_ECONFIG, "the recipe has no conversations ([text] format = chat), and the "
                                 "model's folder no chat template");
    return rc;
}

int chat_open(struct ct_arena *arena, const char *const *folders, size_t count,
              const struct ct_tokenizer_ops *tokenizer, struct chat *chat)
{
    int rc = choose_format(arena, folders, count, chat);

    if (rc == 0 && !tokenizer)
        rc = ct_fail(CT_ECONFIG, "a conversation needs a tokenizer: add --with bpe");
    if (rc == 0 && chat->format)
        rc = ct_chat_check(chat->format, tokenizer);
    if (rc == 0 && chat->template)
        rc = find_end(arena, chat, tokenizer);
    if (rc < 0)
        return ct_context(rc, "--chat");
    if (chat->format)
        tokenizer->encode(chat->format->end, strlen(chat->format->end), &chat->end, 1);
    return 0;
}

void chat_close(struct chat *chat)
{
    ct_chat_template_close(chat->template);
    json_decref(chat->messages);
}

/* ---- turns ---- */

static const char *format_turn(struct ct_arena *arena, const struct ct_chat_format *f,
                               const char *text, bool first)
{
    size_t size = strlen(text);

    if (f->strip)
        ct_chat_strip(&text, &size);
    return ct_arena_printf(arena, "%s%s%suser%s%.*s%s%s%sassistant%s", first ? "" : f->end,
                           first ? "" : f->after, f->begin, f->middle, (int)size, text, f->end,
                           f->after, f->begin, f->middle);
}

/* The text that follows the former answer: the rest of its turn, and the new one. */
static int template_turn(struct ct_arena *arena, struct chat *chat, const char *text,
                         const struct answer *former, const char **turn)
{
    struct ct_jinja_text before = {0}, whole;
    const char *end = "";
    int rc = 0;

    if (!former || !chat->messages) {
        json_decref(chat->messages);
        chat->messages = json_array();
    } else {
        add_message(chat->messages, "assistant", former->text ? former->text : "", former->size);
        rc = ct_chat_template_render(chat->template, chat->messages, NULL, false, arena, &before);
        end = rc < 0 ? NULL : behind(&before, former->text ? former->text : "", former->size);
    }
    add_message(chat->messages, "user", text, strlen(text));
    if (rc == 0)
        rc = ct_chat_template_render(chat->template, chat->messages, NULL, true, arena, &whole);
    if (rc < 0)
        return rc;
    if (!end || before.size > whole.size || memcmp(before.data, whole.data, before.size) != 0)
        return ct_fail(CT_ECONFIG,
                       "--chat: the chat template writes an earlier answer in another way when a "
                       "turn follows, as without its thinking: ask in a new conversation");
    *turn = ct_arena_printf(arena, "%s%s", end, whole.data + before.size);
    return 0;
}

int chat_turn(struct ct_arena *arena, struct chat *chat, const char *text,
              const struct answer *former, const char **turn)
{
    if (chat->template)
        return template_turn(arena, chat, text, former, turn);
    *turn = format_turn(arena, chat->format, text, !former);
    return 0;
}
