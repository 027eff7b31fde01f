/* The end of a process that has no memory left, for programs. */
#ifndef CT_EXHAUSTED_H
#define CT_EXHAUSTED_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

/* Sets the function that is called before a process ends that cannot get memory for an arena: it
   may say so in its own way and end the process itself. bytes: the size of the failed request. */
CT_API void ct_arena_on_exhausted(void (*call)(size_t bytes));

CT_END_DECLS

#endif
