/*
 * Pre-tokenizers: how text is split into parts, each of which is merged separately.
 *
 * The patterns of GPT-2, Llama 3 and Qwen are recognised by their text and have scanners of their
 * own. Any other one is a regular expression for PCRE2, with the meaning that it has in Oniguruma,
 * which the tokenizers library uses: \s is White_Space, \w has marks, ^ and $ are about lines, the
 * option m lets . be a newline, and {,n} is {0,n}. An empty match splits, too.
 */
#ifndef PATTERN_H
#define PATTERN_H

#include <ctitan/arena.h>

struct pattern {
    /* The end of the part that begins at `at`; NULL: an expression. */
    const char *(*scan)(const char *at, const char *end, int digits);
    int digits; /* longest run of \p{N} in a part */
    struct pcre2_real_code_8 *code;
    struct pcre2_real_match_data_8 *match;
    bool matches_only; /* text between matches is dropped */
};

extern const char pattern_gpt2[], pattern_llama3[];

/* source is an expression, or, if literal, plain text. CT_ECONFIG: it does not compile, or uses
   what PCRE2 means differently. */
int pattern_open(struct pattern *pattern, const char *source, bool literal);
void pattern_close(struct pattern *pattern);

/*
 * The next part of [at, end), which is not empty, of the text that begins at text. *begin and *stop
 * get its bounds; parts that are skipped lie before *begin. Returns 1, 0 at the end, or CT_EINVAL
 * if the expression takes too long.
 */
int pattern_next(const struct pattern *pattern, const char *text, const char *at, const char *end,
                 const char **begin, const char **stop);

#endif
