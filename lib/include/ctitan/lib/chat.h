/*
 * How conversations are written as text.
 *
 * Each turn is `begin`, the role, `middle`, the content, `end` and `after`. A model's folder may
 * have a chat template, a program in Jinja (chat_template.jinja, or chat_template in
 * tokenizer_config.json). It is not run: its text says whether it is one of these formats.
 */
#ifndef CT_CHAT_H
#define CT_CHAT_H

#include <ctitan/model.h>

CT_BEGIN_DECLS

struct ct_chat_format {
    const char *name;
    const char *begin;     /* before a turn's role */
    const char *middle;    /* between the role and the content */
    const char *end;       /* a token that ends the turn */
    const char *after;     /* between turns */
    const char *tokens[4]; /* each is one token; NULL ends */
    bool strip;            /* white space around contents goes */
    bool bos;              /* the conversation begins with the tokenizer's token for that */
};

/* The format of that name; NULL: none. */
CT_API const struct ct_chat_format *ct_chat_find(const char *name);
/* Without the white space around a text, as Python's str.strip has it. */
CT_API void ct_chat_strip(const char **text, size_t *size);
/* CT_ECONFIG: the tokenizer lacks one of the format's tokens. */
CT_API int ct_chat_check(const struct ct_chat_format *format,
                         const struct ct_tokenizer_ops *tokenizer);

/* Compare with the template of a folder, if it has one; "" or NULL: none. CT_ECONFIG: that has not
   all tokens of this format. A warning says what it writes beyond this format. */
CT_API int ct_chat_compare(const struct ct_chat_format *format, const char *folder);
/* Whether conversations begin with the tokenizer's token for that: as the template of a folder says
   if it is in this format, else as the format does. folder: "" or NULL: none. */
CT_API bool ct_chat_begins(const struct ct_chat_format *format, const char *folder);
/* The format of a folder's template, with the same warnings. bos: the template begins with the
   tokenizer's token for that. CT_ENOENT: the folder has no template; CT_ECONFIG: it is none of
   these formats. */
CT_API int ct_chat_of_folder(const char *folder, const struct ct_chat_format **format, bool *bos);

CT_END_DECLS

#endif
