/*
 * Proof of a lowered program, for `plan` and tests.
 */
#ifndef CT_VERIFY_H
#define CT_VERIFY_H

#include <stdio.h>

#include <ctitan/program.h>

CT_BEGIN_DECLS

/*
 * Write every violation of a program's rules to report (NULL: nowhere): overlapping lifetimes at
 * overlapping offsets, reads before writes, a stream that reads what another wrote without an event
 * between. CT_EINVAL: there is one; the message is the first.
 */
CT_API int ct_program_verify(const struct ct_program *program, FILE *report);

CT_END_DECLS

#endif
