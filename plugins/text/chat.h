/*
 * Conversations and other data of fine-tuning: objects of JSON, of which a part is trained on.
 *
 *   chat      {"messages": [{"role": .., "content": ..}, ..], "tools": [..]}
 *   sharegpt  {"conversations": [{"from": "human", "value": ..}, {"from": "gpt", ..}, ..]}
 *   prompt    {"prompt": .., "completion": ..}: texts as they are, or lists of messages
 *   alpaca    {"instruction": .., "input": .., "output": ..}: a conversation of two messages
 *   ids       {"ids": [..], "labels": [..]}: tokens; -100 in labels is not trained on
 *
 * [text] fields renames fields: "content=text, role=speaker".
 */
#ifndef CHAT_H
#define CHAT_H

#include <jansson.h>

#include <ctitan/lib/chat.h>

#include "corpus.h"

enum chat_train { CHAT_ASSISTANT, CHAT_LAST, CHAT_ALL, CHAT_FIELD };

enum chat_field {
    CHAT_MESSAGES,
    CHAT_ROLE,
    CHAT_CONTENT,
    CHAT_TOOLS,
    CHAT_PROMPT,
    CHAT_COMPLETION,
    CHAT_INSTRUCTION,
    CHAT_INPUT,
    CHAT_OUTPUT,
    CHAT_IDS,
    CHAT_LABELS,
    CHAT_TRAIN, /* of a message: whether it is trained on, for CHAT_FIELD */
    CHAT_FIELDS,
};

struct chat_request {
    const struct ct_chat_format *format;
    const struct ct_chat_template *template; /* in the place of format; NULL: format counts */
    const char *unfit; /* why the format cannot write messages; NULL: it can */
    enum chat_train train;
    const char *field[CHAT_FIELDS]; /* names in the data */
    int64_t vocabulary;             /* of ids; 0: unknown */
};

/* Set the names of a format's fields, and those of a list "NAME=OTHER, ..". CT_ECONFIG. */
int chat_fields(struct ct_arena *arena, enum corpus_format format, const char *list,
                const char *field[CHAT_FIELDS]);
/* Hand over the object of a line as a document. CT_ECONFIG: it is malformed. */
int chat_add(struct corpus *corpus, const json_t *object, enum corpus_format format);

#endif
