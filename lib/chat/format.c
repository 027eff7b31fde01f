#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/chat.h>

static const struct ct_chat_format formats[] = {
    {.name = "chatml",
     .begin = "<|im_start|>",
     .middle = "\n",
     .end = "<|im_end|>",
     .after = "\n",
     .tokens = {"<|im_start|>", "<|im_end|>"}},
    {.name = "llama3",
     .begin = "<|start_header_id|>",
     .middle = "<|end_header_id|>\n\n",
     .end = "<|eot_id|>",
     .after = "",
     .tokens = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     .strip = true,
     .bos = true},
};

const struct ct_chat_format *ct_chat_find(const char *name)
{
    for (size_t i = 0; i < CT_COUNT(formats); i++)
        if (!strcmp(formats[i].name, name))
            return &formats[i];
    return NULL;
}

int ct_chat_check(const struct ct_chat_format *format, const struct ct_tokenizer_ops *tokenizer)
{
    for (const char *const *token = format->tokens; *token; token++)
        if (tokenizer->encode(*token, strlen(*token), NULL, 0) != 1)
            return ct_fail(CT_ECONFIG,
                           "a conversation in %s: the tokenizer has no token %s of its own",
                           format->name, *token);
    return 0;
}

/* White space as Python's str.strip has it, which templates use. */
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

void ct_chat_strip(const char **text, size_t *size)
{
    for (size_t n = 1; n <= 3 && n <= *size; n++)
        if (is_white(*text, n)) {
            *text += n;
            *size -= n;
            n = 0;
        }
    for (size_t n = 1; n <= 3 && n <= *size; n++)
        if (is_white(*text + *size - n, n)) {
            *size -= n;
            n = 0;
        }
}
