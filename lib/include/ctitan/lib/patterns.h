/*
 * Patterns of parameters' names, as options have them: "*norm.weight, *.bias". They are those of
 * fnmatch(3), separated by commas or white space.
 */
#ifndef CT_PATTERNS_H
#define CT_PATTERNS_H

#include <ctitan/graph.h>

CT_BEGIN_DECLS

/* Whether a name, of a parameter or of a file, ends in `end`. */
CT_API bool ct_ends_in(const char *name, const char *end);

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

/*
 * Factors by patterns, as options have them: "*embed*:0.1, lm_head*:0.5". The first pattern that a
 * name fits counts.
 */
struct ct_factors {
    struct ct_patterns patterns;
    double *factor; /* by pattern */
};

/* The factors of a list, in arena. CT_ECONFIG: an entry cannot be read, fits none of the
   parameters, or stands behind others that fit all of its own. The message begins with `where`. */
CT_API int ct_factors_read(struct ct_arena *arena, const char *list, struct ct_value *const *params,
                           size_t count, const char *where, struct ct_factors *factors);
/* The factor of a name; 1: no pattern fits it. */
CT_API double ct_factors_of(const struct ct_factors *factors, const char *name);

CT_END_DECLS

#endif
