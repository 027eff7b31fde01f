/*
 * A libmunge.so.2 without a daemon: a credential is its text, not encrypted. Users are numbers in
 * the environment: FAKE_MUNGE_USER makes and reads credentials as another one, FAKE_MUNGE_READER
 * makes them for another one than it should. FAKE_MUNGE_ERROR is what every call of munged returns;
 * the FAKE_MUNGE_LAPSE-th credential is not made.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { CIPHER = 0, SOCKET = 8, READER = 9 };
enum { ANYBODY = -1 };
enum { NO_MEMORY = 5, NO_SOCKET = 6, TIMEOUT = 7, BAD_CREDENTIAL = 8, UNAUTHORIZED = 18 };

struct context {
    char socket[200];
    int cipher;
    int reader;
};

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text ? atoi(text) : otherwise;
}

EXPORT struct context *munge_ctx_create(void)
{
    struct context *c = calloc(1, sizeof(*c));

    if (c)
        snprintf(c->socket, sizeof(c->socket), "/nonexistent/munge.socket");
    return c;
}

EXPORT void munge_ctx_destroy(struct context *c)
{
    free(c);
}

EXPORT int munge_ctx_get(struct context *c, int option, ...)
{
    va_list list;

    va_start(list, option);
    if (option == SOCKET)
        *va_arg(list, char **) = c->socket;
    va_end(list);
    return option == SOCKET ? 0 : 2;
}

EXPORT int munge_ctx_set(struct context *c, int option, ...)
{
    va_list list;

    va_start(list, option);
    if (option == SOCKET)
        snprintf(c->socket, sizeof(c->socket), "%s", va_arg(list, char *));
    else if (option == CIPHER)
        c->cipher = va_arg(list, int);
    else if (option == READER)
        c->reader = va_arg(list, int);
    va_end(list);
    return 0;
}

EXPORT const char *munge_ctx_strerror(struct context *c)
{
    (void)c;
    return NULL;
}

EXPORT const char *munge_strerror(int error)
{
    static char text[32];

    snprintf(text, sizeof(text), "error %d of munge", error);
    return text;
}

static int ask_munged(const struct context *c)
{
    return access(c->socket, F_OK) ? NO_SOCKET : number("FAKE_MUNGE_ERROR", 0);
}

EXPORT int munge_encode(char **credential, struct context *c, const void *data, int bytes)
{
    static int made;
    int error = c->cipher ? ask_munged(c) : UNAUTHORIZED;

    if (++made == number("FAKE_MUNGE_LAPSE", 0))
        error = TIMEOUT;
    if (error)
        return error;
    *credential = malloc(64 + (size_t)bytes);
    if (!*credential)
        return NO_MEMORY;
    sprintf(*credential, "FAKE:%d:%d:%.*s", number("FAKE_MUNGE_USER", (int)geteuid()),
            number("FAKE_MUNGE_READER", c->reader), bytes, bytes ? (const char *)data : "");
    return 0;
}

EXPORT int munge_decode(const char *credential, struct context *c, void **data, int *bytes,
                        uid_t *user, gid_t *group)
{
    int maker, reader, at = 0, error = ask_munged(c);

    if (error)
        return error;
    if (sscanf(credential, "FAKE:%d:%d:%n", &maker, &reader, &at) != 2 || !at)
        return BAD_CREDENTIAL;
    if (reader != ANYBODY && reader != number("FAKE_MUNGE_USER", (int)geteuid()))
        return UNAUTHORIZED;
    *data = strdup(credential + at);
    *bytes = (int)strlen(credential + at) + 1;
    *user = (uid_t)maker;
    *group = 0;
    return 0;
}
