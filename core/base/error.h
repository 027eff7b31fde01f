/* For the core: what is done with failures at each call of a plugin. */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

/* This thread's message becomes "", its code CT_OK. */
void ct_error_forget(void);
/* The code of this thread's latest failure; CT_OK after none. */
int ct_error_code(void);

#endif
