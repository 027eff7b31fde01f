#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>

static _Thread_local char message[1024];

const char *ct_strerror(int code)
{
    switch (code) {
    case CT_OK:
        return "success";
#define X(id, text)                                                                                \
    case CT_##id:                                                                                  \
        return text;
        CT_ERRORS(X)
#undef X
    default:
        return "unknown error";
    }
}

const char *ct_error_message(void)
{
    return message;
}

int ct_fail(int code, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    return code;
}

int ct_context(int code, const char *fmt, ...)
{
    char cause[sizeof(message)];
    size_t used, room;
    va_list args;

    snprintf(cause, sizeof(cause), "%s", *message ? message : "it failed without a message");
    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);

    used = strlen(message);
    room = sizeof(message) - used;
    if (room > 2) {
        memcpy(message + used, ": ", 2);
        memcpy(message + used + 2, cause, room - 2);
        message[sizeof(message) - 1] = '\0';
    }
    return code;
}
