/*
 * Conversations: a user's turn as text, up to where the assistant's answer begins.
 */
#include <stdio.h>
#include <string.h>

#include <ctitan/config.h>
#include <ctitan/error.h>
#include <ctitan/plugin.h>

#include "generate.h"

/* The format that the recipe's data is written in; NULL: it has no conversations. */
static const struct ct_chat_format *format_of_data(void)
{
    const struct ct_offer *offer = ct_offer_at(CT_DATA, 0);
    const struct ct_data_ops *ops = offer ? offer->ops : NULL;
    const char *name = ops && ops->chat ? ops->chat() : NULL;

    return name ? ct_chat_find(name) : NULL;
}

static int choose_format(const char *const *folders, size_t count, struct chat *chat)
{
    int rc = CT_ENOENT;

    chat->format = format_of_data();
    if (chat->format) {
        chat->begins = ct_chat_begins(chat->format, ct_config.model.init_from);
        return 0;
    }
    for (size_t i = 0; rc == CT_ENOENT && i < count; i++)
        if (*folders[i])
            rc = ct_chat_of_folder(folders[i], &chat->format, &chat->begins);
    if (rc == CT_ENOENT)
        rc = ct_fail(CT_ECONFIG, "the recipe has no conversations ([text] format = chat), and the "
                                 "model's folder no chat template");
    return rc;
}

int chat_open(const char *const *folders, size_t count, const struct ct_tokenizer_ops *tokenizer,
              struct chat *chat)
{
    int rc = choose_format(folders, count, chat);

    if (rc == 0 && !tokenizer)
        rc = ct_fail(CT_ECONFIG, "a conversation needs a tokenizer: add --with bpe");
    if (rc == 0)
        rc = ct_chat_check(chat->format, tokenizer);
    if (rc < 0)
        return ct_context(rc, "--chat");
    tokenizer->encode(chat->format->end, strlen(chat->format->end), &chat->end, 1);
    return 0;
}

const char *chat_turn(struct ct_arena *arena, const struct chat *chat, const char *text, bool first)
{
    const struct ct_chat_format *f = chat->format;
    size_t size = strlen(text);

    if (f->strip)
        ct_chat_strip(&text, &size);
    return ct_arena_printf(arena, "%s%s%suser%s%.*s%s%s%sassistant%s", first ? "" : f->end,
                           first ? "" : f->after, f->begin, f->middle, (int)size, text, f->end,
                           f->after, f->begin, f->middle);
}
