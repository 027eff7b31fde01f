/*
 * The failure message of each thread. It has room for one message, which longer ones are cut to.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>

#include "base/error.h"

static _Thread_local struct ct_error_kept last;
static _Thread_local int last_code;

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
    return last.message;
}

int ct_error_code(void)
{
    return last_code;
}

struct ct_error_kept ct_error_keep(void)
{
    return last;
}

int ct_error_restore(int code, const struct ct_error_kept *kept)
{
    last = *kept;
    last_code = code;
    return code;
}

void ct_error_forget(void)
{
    *last.message = 0;
    last_code = CT_OK;
}

int ct_fail(int code, const char *fmt, ...)
{
    char message[sizeof(last.message)]; /* the last one may be among the arguments */
    va_list args;

    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    strcpy(last.message, message);
    last_code = code;
    return code;
}

/* The characters of a cause's subject ("x.csv" of "x.csv: no such file") if the words end with
   it. */
static size_t subject_said(const char *words, const char *cause)
{
    const char *end = strstr(cause, ": ");
    size_t subject = end ? (size_t)(end - cause) : 0, said = strlen(words);

    if (!subject || subject > said || memcmp(words + said - subject, cause, subject) != 0)
        return 0;
    return subject == said || words[said - subject - 1] == ' ' ? subject : 0;
}

int ct_context(int code, const char *fmt, ...)
{
    struct ct_error_kept cause;
    struct ct_line line = {last.message, sizeof(last.message), 0};
    size_t said;
    va_list args;

    if (code >= 0)
        return code;
    cause = ct_error_keep();
    va_start(args, fmt);
    line.used = (size_t)vsnprintf(line.text, line.room, fmt, args);
    va_end(args);
    if (!*cause.message)
        strcpy(cause.message, "it failed without a message");
    said = subject_said(line.text, cause.message);
    ct_line_add(&line, "%s%s", said ? "" : ": ", cause.message + said);
    return code;
}
