/*
 * SentencePiece's library, for C.
 */
#ifndef LIBRARY_H
#define LIBRARY_H

#include <ctitan/model.h>

CT_BEGIN_DECLS

enum piece_kind { PIECE_PLAIN, PIECE_CONTROL, PIECE_UNKNOWN, PIECE_BYTE };

struct library;

/* Read a model from a file's bytes. CT_ECONFIG: the library refuses it. */
int library_open(struct library **library, const char *model, size_t size);
void library_close(struct library *library);

int32_t library_count(const struct library *library);
/* The ids of <s> and </s>; -1: none. */
int32_t library_bos(const struct library *library);
int32_t library_eos(const struct library *library);
/* The id of exactly this piece; -1: none. */
int32_t library_find(const struct library *library, const char *piece);
/* A piece, which lives as long as the model, and its size and kind. */
const char *library_piece(const struct library *library, int32_t id, size_t *size,
                          enum piece_kind *kind);

/* Encode text, as ct_tokenizer_ops.encode_spans; spans may be NULL. */
int64_t library_encode(const struct library *library, const char *text, size_t size,
                       int32_t *tokens, struct ct_text_span *spans, size_t room);

CT_END_DECLS

#endif
