/* For the core: what is done only to try it says nothing. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

/* From now on, information and statuses of this thread are dropped, until the call that belongs to
   this one. Warnings are not. */
void ct_log_hush(void);
void ct_log_unhush(void);

#endif
