/*
 * Answers of conversations as texts.
 */
#ifndef DPO_CONVERSATION_H
#define DPO_CONVERSATION_H

#include <ctitan/arena.h>

struct ct_chat_template;
struct json_t;

struct dpo_answer {
    const char *prompt, *answer; /* not ended by '\0' */
    size_t prompt_size, answer_size;
};

/* Whether prompt or answer is a list of messages. */
bool dpo_is_conversation(const struct json_t *object, const char *answer);
/*
 * Write an answer behind its prompt. `answer` names the list with the answer alone, where "prompt"
 * is a list, and otherwise with the whole conversation. *chat is opened at the first call, in
 * `lasting`; the texts are in arena. CT_ECONFIG: messages are malformed, or the folder of [model]
 * init_from has no template for them.
 */
int dpo_read_answer(struct ct_arena *lasting, struct ct_chat_template **chat,
                    const struct json_t *object, const char *answer, struct ct_arena *arena,
                    struct dpo_answer *out);

#endif
