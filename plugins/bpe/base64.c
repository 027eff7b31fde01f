#include <stdint.h>
#include <string.h>

#include "base64.h"

int base64_digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;

    return at ? (int)(at - digits) : -1;
}

int base64_decode(const char *text, const char **end, char *bytes, int room)
{
    uint32_t bits = 0;
    int held = 0, count = 0;

    for (; base64_digit(*text) >= 0; text++) {
        bits = bits << 6 | (uint32_t)base64_digit(*text);
        held += 6;
        if (held < 8)
            continue;
        held -= 8;
        if (count == room)
            return -1;
        bytes[count++] = (char)(bits >> held);
    }
    *end = text + strspn(text, "=");
    return count;
}
