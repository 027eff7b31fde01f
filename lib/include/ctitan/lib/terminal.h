/*
 * The terminal that lines go to.
 *
 * A rank that a launcher started has the launcher's terminal behind a pipe. The launcher tells it
 * so by CTITAN_TERMINAL, which has the columns of the terminal, or 1 where they are not known.
 */
#ifndef CT_TERMINAL_H
#define CT_TERMINAL_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

/* Columns of the terminal that fd leads to, 40 at least; 0: fd leads to a file or a program,
   or to a terminal that cannot erase a line (TERM=dumb). For standard error, that of the launcher
   counts, too. */
CT_API int ct_terminal_columns(int fd);
/* Whether it is such a terminal, and the user has not said NO_COLOR. */
CT_API bool ct_terminal_takes_colours(int fd);

CT_END_DECLS

#endif
