/*
 * Secrets of jobs, by which processes of a job know each other over a network.
 *
 * A secret is a text of 64 hexadecimal digits in the environment, CTITAN_SECRET, which only the
 * user's own processes can read. Processes prove to each other that they have it, and never send
 * it: each sends a number that is used once, and gets a code that is made of both numbers.
 */
#ifndef CT_SECRET_H
#define CT_SECRET_H

#include <ctitan/base.h>

CT_BEGIN_DECLS

#define CT_SECRET_ROOM 65 /* with the 0 at the end */
#define CT_CODE_BYTES 32

/* Random bytes of the system. CT_EIO. */
CT_API int ct_random(void *data, size_t bytes);
/* Make a new secret. CT_EIO. */
CT_API int ct_secret_make(char secret[CT_SECRET_ROOM]);
/* Whether a text is one. */
CT_API bool ct_secret_is(const char *text);
/*
 * The job's secret: CTITAN_SECRET, or the first line of the file CTITAN_SECRET_FILE, which must
 * be this user's and closed to others (mode 600). Returns 1, or 0 with an empty text if neither is
 * set. CT_ECONFIG.
 */
CT_API int ct_secret_find(char secret[CT_SECRET_ROOM]);

/* HMAC-SHA-256 (RFC 2104, FIPS 180-4) of some bytes. */
CT_API void ct_code(const void *key, size_t key_bytes, const void *data, size_t bytes,
                    uint8_t code[CT_CODE_BYTES]);
/* Compare two codes, in a time that does not depend on them. */
CT_API bool ct_code_is(const uint8_t a[CT_CODE_BYTES], const uint8_t b[CT_CODE_BYTES]);

CT_END_DECLS

#endif
