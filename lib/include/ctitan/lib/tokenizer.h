/*
 * The files of a tokenizer, as Hugging Face folders have them.
 */
#ifndef CT_TOKENIZER_H
#define CT_TOKENIZER_H

#include <ctitan/arena.h>
#include <ctitan/model.h>

CT_BEGIN_DECLS

struct json_t; /* of jansson */

/* The file that path names: path itself, or the first of files (as in struct ct_tokenizer_ops) that
   is in the folder path, in the arena. CT_ENOENT: "no file or folder PATH", "LACKING in PATH". */
CT_API int ct_tokenizer_find(struct ct_arena *arena, const char *path,
                             const struct ct_tokenizer_file *files, const char *lacking,
                             const char **file);
/* Read tokenizer_config.json beside a tokenizer's file. *config: NULL where there is none; *path:
   in the arena. CT_ECONFIG; CT_EIO. */
CT_API int ct_tokenizer_config(struct ct_arena *arena, const char *file, struct json_t **config,
                               const char **path);
/* A hash of the number of tokens and of the text of each: equal where tokens have the same
   meanings. */
CT_API uint64_t ct_tokenizer_meanings(const struct ct_tokenizer_ops *tokenizer);
/* The text of a special token, "bos_token", which is a string or an object with its "content";
   NULL: there is none. It lives as long as config. */
CT_API const char *ct_tokenizer_special(const struct json_t *config, const char *key);

CT_END_DECLS

#endif
