#include <string.h>

#include <ctitan/error.h>
#include "chat.h"

struct turn {
    const char *role, *content;
    size_t size;
    bool trained;
};

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
        ct_chat_strip(&turn->content, &turn->size);
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

static void write_turn(struct writer *w, const struct ct_chat_format *chat, const struct turn *t)
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

static int write_all(struct writer *w, const struct ct_chat_format *chat, const json_t *messages,
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
