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
};

extern const char pattern_gpt2[], pattern_llama3[];

/* source is an expression, or, if literal, plain text. CT_ECONFIG: it does not compile, or uses
   what PCRE2 means differently. */
int pattern_open(struct pattern *pattern, const char *source, bool literal);
void pattern_close(struct pattern *pattern);

/* The matches in a text, one after the other. */
struct pattern_matches {
    const struct pattern *pattern;
    const char *text, *at, *end; /* the next one is sought from at on */
    bool begun;
};

/* The next match, which may be empty. Returns 1, 0 after the last one, or CT_EINVAL if the
   expression takes too long. */
int pattern_match(struct pattern_matches *matches, const char **begin, const char **stop);

/* Treatment of the matches, by the names in tokenizer.json. */
enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_MERGED_WITH_PREVIOUS,
    SPLIT_MERGED_WITH_NEXT,
    SPLIT_CONTIGUOUS,
    SPLIT_BEHAVIORS
};
extern const char *const split_behaviors[SPLIT_BEHAVIORS];

struct split {
    struct pattern pattern;
    enum split_behavior behavior;
    bool invert; /* the text between matches takes their place */
};

/* The parts of a text, one after the other. Initialise matches alone. */
struct split_parts {
    const struct split *split;
    struct pattern_matches matches;
    const char *from;                     /* all before it has been part of a range */
    const char *match_begin, *match_stop; /* found, but not yet a range; NULL: none */
    const char *begin, *stop;             /* ranges that have been joined; NULL: none */
    bool matched;                         /* the last of them is a match */
};

struct split_parts split_begin(const struct split *split, const char *text, const char *end);
/* The next part, which is not empty. Returns 1, 0 at the end, or a failure. */
int split_next(struct split_parts *parts, const char **begin, const char **stop);

#endif
