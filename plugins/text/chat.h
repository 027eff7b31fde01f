/*
 * Conversations: a list of {"role": .., "content": ..}, written as a model expects it. Only what
 * the assistant writes, with the token that ends its turn, is trained on.
 */
#ifndef CHAT_H
#define CHAT_H

#include <jansson.h>

#include <ctitan/lib/chat.h>

#include "corpus.h"

/* Hand over the conversation as a document. CT_ECONFIG: it is malformed. */
int chat_add(struct corpus *corpus, const json_t *messages);

#endif
