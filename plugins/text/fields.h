#ifndef FIELDS_H
#define FIELDS_H

#include "chat.h"

/* The messages of an object of JSON, as a new list; the first `prompted` of them are a prompt's.
   CT_ECONFIG: it has none in this format. */
int fields_messages(const json_t *object, enum corpus_format format,
                    const char *const field[CHAT_FIELDS], json_t **messages, size_t *prompted);
/* The tokens of an object, in the arena. CT_ECONFIG: they or their labels are none. */
int fields_ids(const json_t *object, const char *const field[CHAT_FIELDS], int64_t vocabulary,
               bool weights, struct ct_arena *arena, struct document *document);

#endif
