/* The transform that puts caches in front of ops along sequences. */
#ifndef CT_GENERATE_CACHE_H
#define CT_GENERATE_CACHE_H

#include <ctitan/pass.h>

/* Use of caches by the run that is being opened; CT_GENERATING_NOT at all other times. */
extern enum ct_generating {
    CT_GENERATING_NOT,
    CT_GENERATING_WHOLE, /* every step computes the whole context */
    CT_GENERATING_PARTS, /* with caches */
} ct_generating;
extern const struct ct_transform ct_cache;

#endif
