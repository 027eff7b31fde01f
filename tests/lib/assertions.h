/* cmocka with its includes, and assertions on failures. */
#ifndef ASSERTIONS_H
#define ASSERTIONS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <ctitan/error.h>

#include <cmocka.h>

/* The recorded message contains part. */
static inline void check_message(const char *part, const char *file, int line)
{
    if (strstr(ct_error_message(), part))
        return;
    print_error("the message '%s' lacks '%s'\n", ct_error_message(), part);
    _fail(file, line);
}
#define assert_message(part) check_message((part), __FILE__, __LINE__)

/* The call fails with code and a message that contains part. */
#define assert_fails(call, code, part)                                                             \
    do {                                                                                           \
        assert_int_equal((call), (code));                                                          \
        assert_message(part);                                                                      \
    } while (0)

/* A small generator for fuzzing: the same bytes in every run (xorshift64). */
static inline uint64_t unit_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

#endif
