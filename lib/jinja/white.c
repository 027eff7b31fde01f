#include <string.h>

#include <ctitan/lib/jinja.h>

/* White space as Python's str.strip has it. */
static bool is_white(const char *s, size_t size)
{
    static const char *const wide[] = {"\xc2\x85", "\u00a0", "\u1680", "\u2000", "\u2001",
                                       "\u2002",   "\u2003", "\u2004", "\u2005", "\u2006",
                                       "\u2007",   "\u2008", "\u2009", "\u200a", "\u2028",
                                       "\u2029",   "\u202f", "\u205f", "\u3000"};

    if (size == 1)
        return *s == ' ' || (*s >= '\t' && *s <= '\r') || (*s >= 0x1c && *s <= 0x1f);
    for (size_t i = 0; i < CT_COUNT(wide); i++)
        if (strlen(wide[i]) == size && !memcmp(wide[i], s, size))
            return true;
    return false;
}

void ct_jinja_strip(const char **text, size_t *size, bool left, bool right)
{
    for (size_t n = 1; left && n <= 3 && n <= *size; n++)
        if (is_white(*text, n)) {
            *text += n;
            *size -= n;
            n = 0;
        }
    for (size_t n = 1; right && n <= 3 && n <= *size; n++)
        if (is_white(*text + *size - n, n)) {
            *size -= n;
            n = 0;
        }
}
