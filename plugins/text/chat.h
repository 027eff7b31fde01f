/*
 * Conversations: a list of {"role": .., "content": ..}, written as a model expects it. Only what
 * the assistant writes, with the token that ends its turn, is trained on.
 */
#ifndef CHAT_H
#define CHAT_H

#include <jansson.h>

#include "corpus.h"

struct ct_tokenizer_ops;

struct chat_template {
    const char *name;
    const char *begin;     /* before a turn's role */
    const char *middle;    /* between the role and the content */
    const char *end;       /* a token that ends the turn */
    const char *after;     /* between turns */
    const char *tokens[4]; /* each is one token; NULL ends */
    bool strip;            /* white space around contents goes */
};

/* The template of that name; NULL: none. */
const struct chat_template *chat_find(const char *name);
/* CT_ECONFIG: the tokenizer lacks one of the template's tokens. */
int chat_check(const struct chat_template *chat, const struct ct_tokenizer_ops *tokenizer);
/* Compare with the template of a Hugging Face folder, if it has one; "" or NULL: none. CT_ECONFIG:
   that has not all tokens of this one. What it writes beyond this one is a warning. */
int chat_compare(const struct chat_template *chat, const char *folder);
/* Hand over the conversation as a document. CT_ECONFIG: it is malformed. */
int chat_add(struct corpus *corpus, const json_t *messages);

#endif
