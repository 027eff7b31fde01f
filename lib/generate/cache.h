/* The transform that puts caches in front of attention. */
#ifndef CT_GENERATE_CACHE_H
#define CT_GENERATE_CACHE_H

#include <ctitan/pass.h>

/* Whether the transform does anything; false after registration. */
extern bool ct_cache_wanted;
extern const struct ct_transform ct_cache;

#endif
