/* The transform that puts caches in front of ops along sequences. */
#ifndef CT_GENERATE_CACHE_H
#define CT_GENERATE_CACHE_H

#include <ctitan/pass.h>

/* The current use of caches by runs of this process: CT_GENERATING_NOT after registration. */
extern enum ct_generating {
    CT_GENERATING_NOT,
    CT_GENERATING_WHOLE, /* every step computes the whole context */
    CT_GENERATING_PARTS, /* with caches */
} ct_generating;
extern const struct ct_transform ct_cache;

#endif
