/* Lists of the tokens that end a text or a turn. */
#ifndef CT_CLI_ENDS_H
#define CT_CLI_ENDS_H

#include <ctitan/arena.h>

/* Add a token to a list in arena; -1: there is none. */
void ends_add(struct ct_arena *arena, int32_t **ids, size_t *count, int32_t id);

#endif
