/*
 * Answers of conversations as texts.
 */
#ifndef DPO_CONVERSATION_H
#define DPO_CONVERSATION_H

#include <ctitan/arena.h>

struct ct_chat_template;
struct json_t;

struct dpo_answer {
    const char *text; /* of the whole conversation, not ended by '\0' */
    size_t size;
    size_t begin, end; /* of the answer; the prompt is all before it */
};

/* Whether the prompt or one of the answers is a list of messages: then all answers must be. */
bool dpo_is_conversation(const struct json_t *object, const char *const *answers, size_t count);
/*
 * Write an answer behind its prompt. `answer` names the list with the answer alone, where "prompt"
 * is a list, and otherwise with the whole conversation. *chat is opened at the first call, in
 * `lasting`; the text is in arena. CT_ECONFIG: messages are malformed, or the folder of [model]
 * init_from has no template for them.
 */
int dpo_read_answer(struct ct_arena *lasting, struct ct_chat_template **chat,
                    const struct json_t *object, const char *answer, struct ct_arena *arena,
                    struct dpo_answer *out);

#endif
