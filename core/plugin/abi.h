/*
 * Plugin structs in this build's layout. See "The version of this interface" in plugin.h.
 */
#ifndef CT_PLUGIN_ABI_H
#define CT_PLUGIN_ABI_H

#include <ctitan/plugin.h>

/* Convert p's offers and options to the layout of this build; copies are made in arena. CT_EABI: a
   struct has an impossible size; the message names it. */
int ct_plugin_widen(struct ct_plugin *p, struct ct_arena *arena);

/*
 * The same for one struct, and for an array that ends with {0}. size: of this build. A struct that
 * already has that size is not copied.
 */
int ct_abi_widen(struct ct_arena *arena, const void *given, size_t least, size_t size,
                 const void **widened);
int ct_abi_widen_array(struct ct_arena *arena, const void *given, size_t least, size_t size,
                       const void **widened);

/* Whether the linker can map the file. CT_EABI: it is truncated. 0 also where the linker has words
   for what is wrong. */
int ct_plugin_is_whole(const char *path);

#endif
