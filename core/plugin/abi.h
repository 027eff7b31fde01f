/*
 * Structs of plugins in the layout of this build. See "The version of this interface" in plugin.h.
 */
#ifndef CT_PLUGIN_ABI_H
#define CT_PLUGIN_ABI_H

#include <ctitan/plugin.h>

/* Give p's offers and options the layout of this build; copies are made in arena. CT_EABI: a struct
   whose size cannot be, by its kind and name. */
int ct_plugin_widen(struct ct_plugin *p, struct ct_arena *arena);

/*
 * The same for one struct, and for an array whose last element is {0}. size: of this build;
 * *widened is given itself if it has that size.
 */
int ct_abi_widen(struct ct_arena *arena, const void *given, size_t least, size_t size,
                 const void **widened);
int ct_abi_widen_array(struct ct_arena *arena, const void *given, size_t least, size_t size,
                       const void **widened);

#endif
