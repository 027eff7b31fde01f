#include <string.h>

#include <ctitan/error.h>
#include <ctitan/lib/chat.h>
#include <ctitan/lib/jinja.h>

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

void ct_chat_strip(const char **text, size_t *size)
{
    ct_jinja_strip(text, size, true, true);
}
