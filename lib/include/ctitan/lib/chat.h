/*
 * How conversations are written as text.
 *
 * Each turn is `begin`, the role, `middle`, the content, `end` and `after`. A model's folder may
 * have a chat template, a program in Jinja (chat_template.jinja, or chat_template in
 * tokenizer_config.json), which can be run instead of a format; or its text says whether it is one
 * of these formats.
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
   all tokens of this format, or its file is damaged. A warning says what it writes beyond this
   format. */
CT_API int ct_chat_compare(const struct ct_chat_format *format, const char *folder);
/* Whether conversations begin with the tokenizer's token for that: as the template of a folder says
   if it is in this format, else as the format does. folder: "" or NULL: none. CT_ECONFIG: the
   template's file is damaged. */
CT_API int ct_chat_begins(const struct ct_chat_format *format, const char *folder);
/* ---- the folder's own template, run (jinja.h) ---- */

struct json_t;
struct ct_jinja_text;
struct ct_chat_template;

/* Whether a folder has a template, or a damaged file, with which ct_chat_template_open fails. */
CT_API bool ct_chat_has_template(const char *folder);
/* The template of a folder, in the arena, with the special tokens that the folder names. date: as
   for ct_jinja_render. CT_ENOENT: it has none; CT_ECONFIG. */
CT_API int ct_chat_template_open(struct ct_arena *arena, const char *folder, const char *date,
                                 struct ct_chat_template **chat);
/* Hash of its text and of the special tokens. */
CT_API uint64_t ct_chat_template_hash(const struct ct_chat_template *chat);
/* chat may be NULL. */
CT_API void ct_chat_template_close(struct ct_chat_template *chat);
/* The tools of a line of data, a list of objects or a string that holds one, as a new reference;
   NULL: none. CT_ECONFIG: anything else. */
CT_API int ct_chat_read_tools(const struct json_t *value, struct json_t **tools);
/* A list of messages as text. tools: a list of descriptions; NULL: none. prompt: the beginning of
   an answer follows. CT_ECONFIG: the template refuses them. */
CT_API int ct_chat_template_render(const struct ct_chat_template *chat,
                                   const struct json_t *messages, const struct json_t *tools,
                                   bool prompt, struct ct_arena *arena, struct ct_jinja_text *text);
/* The same, with the bytes of each message of the assistant that is wanted, by its number: what the
   template marks with {% generation %}, else what it writes beyond the prompt for that message.
   CT_ECONFIG: it writes the beginning of a conversation in another way when more follows. */
CT_API int ct_chat_template_spans(const struct ct_chat_template *chat,
                                  const struct json_t *messages, const bool *wanted,
                                  const struct json_t *tools, struct ct_arena *arena,
                                  struct ct_jinja_text *text, struct ct_text_span **spans);

CT_END_DECLS

#endif
