#include <string.h>

#include <ctitan/error.h>
#include <ctitan/model.h>

#include "chat.h"

static const struct chat_template templates[] = {
    {.name = "chatml",
     .begin = "<|im_start|>",
     .middle = "\n",
     .end = "<|im_end|>",
     .after = "\n",
     .tokens = {"<|im_start|>", "<|im_end|>"}},
    {.name = "llama3",
     .begin = "<|start_header_id|>",
     .middle = "<|end_header_id|>\n\n",
     .end = "<|eot_id|>",
     .after = "",
     .tokens = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     .strip = true},
};

const struct chat_template *chat_find(const char *name)
{
    for (size_t i = 0; i < CT_COUNT(templates); i++)
        if (!strcmp(templates[i].name, name))
            return &templates[i];
    return NULL;
}

int chat_check(const struct chat_template *chat, const struct ct_tokenizer_ops *tokenizer)
{
    for (const char *const *token = chat->tokens; *token; token++)
        if (tokenizer->encode(*token, strlen(*token), NULL, 0) != 1)
            return ct_fail(CT_ECONFIG,
                           "[text] template = %s: the tokenizer has no token %s of its own",
                           chat->name, *token);
    return 0;
}

struct turn {
    const char *role, *content;
    size_t size;
    bool trained;
};

/* White space as Python's str.strip has it, which templates use. */
static bool is_white(const char *s, size_t size)
{
    static const char *const wide[] = {"\xc2\x85", "\u00a0", "\u1680", "\u2000", "\u2001",
                                       "\u2002",   "\u2003", "\u2004", "\u2005", "\u2006",
                                       "\u2007",   "\u2008", "\u2009", "\u200a", "\u2028",
                                       "\u2029",   "\u202f", "\u205f", "\u3000"};

    if (size == 1)
        return *s == ' ' || (*s >= '\t' && *s <= '\r') || (*s >= 0x1c && *s <= 0x1f);
    for (size_t i = 0; i < CT_COUNT(wide); i++)
        if (strlen(wide[i]) == size && !memcmp(wide[i], s, size))
            return true;
    return false;
}

static void strip(struct turn *turn)
{
    for (size_t size = 1; size <= 3 && size <= turn->size; size++)
        if (is_white(turn->content, size)) {
            turn->content += size;
            turn->size -= size;
            size = 0;
        }
    for (size_t size = 1; size <= 3 && size <= turn->size; size++)
        if (is_white(turn->content + turn->size - size, size)) {
            turn->size -= size;
            size = 0;
        }
}

static int read_turn(const json_t *message, bool stripped, struct turn *turn)
{
    const json_t *content = json_object_get(message, "content");

    turn->role = json_string_value(json_object_get(message, "role"));
    turn->content = json_string_value(content);
    turn->size = json_string_length(content);
    if (!turn->role || !turn->content)
        return ct_fail(CT_ECONFIG, "a message without \"role\" and \"content\", both strings");
    turn->trained = !strcmp(turn->role, "assistant");
    if (stripped)
        strip(turn);
    return 0;
}

/* A text that grows; with data NULL it is only measured. */
struct writer {
    char *data;
    size_t size, part;
    size_t *ends;
};

static void put(struct writer *w, const char *text, size_t size)
{
    if (w->data)
        memcpy(w->data + w->size, text, size);
    w->size += size;
}

static void put_text(struct writer *w, const char *text)
{
    put(w, text, strlen(text));
}

static void end_part(struct writer *w)
{
    if (w->data)
        w->ends[w->part] = w->size;
    w->part++;
}

static void write_turn(struct writer *w, const struct chat_template *chat, const struct turn *t)
{
    put_text(w, chat->begin);
    put_text(w, t->role);
    put_text(w, chat->middle);
    if (t->trained)
        end_part(w);
    put(w, t->content, t->size);
    put_text(w, chat->end);
    if (t->trained)
        end_part(w);
    put_text(w, chat->after);
}

static int write_all(struct writer *w, const struct chat_template *chat, const json_t *messages,
                     bool *trained)
{
    struct turn turn = {0};
    int rc = 0;

    *trained = false;
    for (size_t i = 0; rc == 0 && i < json_array_size(messages); i++) {
        rc = read_turn(json_array_get(messages, i), chat->strip, &turn);
        if (rc < 0)
            return rc;
        write_turn(w, chat, &turn);
        *trained |= turn.trained;
    }
    end_part(w);
    return 0;
}

int chat_add(struct corpus *c, const json_t *messages)
{
    struct writer measured = {0}, w = {0};
    struct ct_arena scratch = {0};
    bool trained;
    int rc;

    if (!json_is_array(messages))
        return ct_fail(CT_ECONFIG, "the field \"%s\" is not a list of messages", c->request->field);
    rc = write_all(&measured, c->request->chat, messages, &trained);
    if (rc == 0 && !trained)
        rc = ct_fail(CT_ECONFIG, "no message has the role \"assistant\"");
    if (rc < 0)
        return rc;
    w.data = ct_arena_alloc(&scratch, measured.size);
    w.ends = ct_arena_array(&scratch, size_t, measured.part);
    write_all(&w, c->request->chat, messages, &trained);
    rc = corpus_add(c, &(struct document){w.data, w.size, w.ends, w.part});
    ct_arena_finish(&scratch);
    return rc;
}
