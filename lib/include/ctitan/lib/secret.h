/*
 * Secrets of jobs, by which processes of a job know each other over a network.
 *
 * A secret is a text of 64 hexadecimal digits in the environment, CTITAN_SECRET, which only the
 * user's own processes can read. Processes prove to each other that they have it, and never send
 * it: each sends a number that is used once, and gets a code that is made of both numbers.
 *
 * Where a job has none, and its hosts run munge, one process makes a secret and hands it to the
 * others in credentials: texts that munge encrypts, and that it reads once, within minutes, and to
 * the same user only.
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

#define CT_CREDENTIAL_ROOM 512 /* with the 0 at the end */

/*
 * Whether this host runs munge: libmunge.so.2 and the socket of munged are there. Returns 1 or 0.
 * CTITAN_MUNGE_SOCKET names another socket, and then munge is there, or it is CT_ECONFIG. To be
 * called before the following three.
 */
CT_API int ct_munge_find(void);
/* Ask munged which user this process is. To be called before ct_munge_wrap, which any thread may
   then call. CT_EIO says why not, and what to do; also if munged takes this user for the one that
   stands for all it has no number for. */
CT_API int ct_munge_identify(void);
/* Make a credential of a secret, for this user; this waits for munged. CT_EIO. */
CT_API int ct_munge_wrap(const char secret[CT_SECRET_ROOM], char credential[CT_CREDENTIAL_ROOM]);
/* The secret in a credential that a process of the same user has made. CT_EIO. */
CT_API int ct_munge_unwrap(const char *credential, char secret[CT_SECRET_ROOM]);

/* HMAC-SHA-256 (RFC 2104, FIPS 180-4) of some bytes. */
CT_API void ct_code(const void *key, size_t key_bytes, const void *data, size_t bytes,
                    uint8_t code[CT_CODE_BYTES]);
/* Compare two codes, in a time that does not depend on them. */
CT_API bool ct_code_is(const uint8_t a[CT_CODE_BYTES], const uint8_t b[CT_CODE_BYTES]);

CT_END_DECLS

#endif
