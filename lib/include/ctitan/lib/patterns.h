/*
 * Patterns of parameters' names, as options have them: "*norm.weight, *.bias". They are those of
 * fnmatch(3), separated by commas or white space.
 */
#ifndef CT_PATTERNS_H
#define CT_PATTERNS_H

#include <ctitan/graph.h>

CT_BEGIN_DECLS

struct ct_patterns {
    const char **pattern;
    size_t count;
};

/* The patterns of a list, in arena. */
CT_API struct ct_patterns ct_patterns_read(struct ct_arena *arena, const char *list);
/* The first pattern that name fits, or -1. */
CT_API int ct_patterns_find(const struct ct_patterns *patterns, const char *name);
/*
 * CT_ECONFIG: a pattern fits none of the parameters. The message begins with `where`, the option,
 * and names the pattern and the nearest parameter.
 */
CT_API int ct_patterns_check(const struct ct_patterns *patterns, struct ct_value *const *params,
                             size_t count, const char *where);

CT_END_DECLS

#endif
