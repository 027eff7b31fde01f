/* For the core: what is done with messages at each call of a plugin. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

/* This thread's message becomes "". */
void ct_error_forget(void);

#endif
