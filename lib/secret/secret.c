/*
 * Secrets of jobs: where they come from.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctitan/error.h>
#include <ctitan/lib/secret.h>

int ct_random(void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = getrandom((char *)data + done, bytes - done, 0);

        if (n < 0 && errno != EINTR)
            return ct_fail(CT_EIO, "random numbers: %s", strerror(errno));
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int ct_secret_make(char secret[CT_SECRET_ROOM])
{
    uint8_t bytes[(CT_SECRET_ROOM - 1) / 2];
    int rc = ct_random(bytes, sizeof(bytes));

    for (size_t i = 0; rc == 0 && i < sizeof(bytes); i++)
        snprintf(secret + 2 * i, 3, "%02x", bytes[i]);
    return rc;
}

bool ct_secret_is(const char *text)
{
    return strlen(text) == CT_SECRET_ROOM - 1 &&
           strspn(text, "0123456789abcdef") == CT_SECRET_ROOM - 1;
}

static int read_file(const char *path, char secret[CT_SECRET_ROOM])
{
    FILE *in = fopen(path, "re");
    struct stat s;
    int rc = 0;

    if (!in || fstat(fileno(in), &s) < 0)
        rc = ct_fail(CT_ECONFIG, "CTITAN_SECRET_FILE = %s: %s", path, strerror(errno));
    else if (s.st_uid != geteuid() || (s.st_mode & (S_IRWXG | S_IRWXO)))
        rc = ct_fail(CT_ECONFIG,
                     "CTITAN_SECRET_FILE = %s: others may read it: it must be your own file, with "
                     "mode 600",
                     path);
    else if (!fgets(secret, CT_SECRET_ROOM, in) || !ct_secret_is(secret))
        rc = ct_fail(CT_ECONFIG,
                     "CTITAN_SECRET_FILE = %s: expected 64 hexadecimal digits, as `openssl rand "
                     "-hex 32` prints them",
                     path);
    if (in)
        fclose(in);
    return rc < 0 ? rc : 1;
}

int ct_secret_find(char secret[CT_SECRET_ROOM])
{
    const char *text = getenv("CTITAN_SECRET"), *path = getenv("CTITAN_SECRET_FILE");

    secret[0] = '\0';
    if (text && !ct_secret_is(text))
        return ct_fail(CT_ECONFIG, "CTITAN_SECRET: expected 64 hexadecimal digits, as `openssl "
                                   "rand -hex 32` prints them");
    if (text)
        memcpy(secret, text, CT_SECRET_ROOM);
    if (text || !path)
        return text ? 1 : 0;
    return read_file(path, secret);
}
