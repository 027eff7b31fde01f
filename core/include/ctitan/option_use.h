/*
 * Options that have no effect where others have certain values. Who sets one is told so, by an
 * error, as it would otherwise seem to be on.
 */
#ifndef CT_OPTION_USE_H
#define CT_OPTION_USE_H

#include <ctitan/option.h>

CT_BEGIN_DECLS

struct ct_option_use {
    const char *name;
    bool counts;
    const char *why; /* it does not count, or what to do: "set reference = stored" */
};

/* The first of uses, which {0} ends, that does not count and has another value than its fallback;
   NULL: there is none. The next one is found in the uses behind it. All are in the table. */
CT_API const struct ct_option_use *ct_options_unused(const struct ct_option *table,
                                                     const void *config,
                                                     const struct ct_option_use *uses);
/* CT_ECONFIG: there is one: "[section] name has no effect: why". */
CT_API int ct_options_check_use(const struct ct_option *table, const void *config,
                                const char *section, const struct ct_option_use *uses);

CT_END_DECLS

#endif
